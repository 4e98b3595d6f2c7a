"""The picture of a benchmark's times."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks import plot
from benchmarks.harness import Timing
from benchmarks.report import Result
from benchmarks.run import main
from benchmarks.workloads.common import CaseSpec

SVG = "{http://www.w3.org/2000/svg}"


def test_every_variant_has_a_bar_to_the_scale_of_its_case() -> None:
    times = {"one by one": Timing(80.0, 79.0, 3), "hand: a < b": Timing(10.0, 9.0, 3), "weft": Timing(8.0, 7.0, 3)}
    case = CaseSpec("grid", "two & three", 3, lambda dtype: [])
    picture = ElementTree.fromstring(plot.picture([Result(case, "train", times, "hand: a < b", {}, 0.0)]))
    _, *bars = picture.iter(f"{SVG}rect")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert [width / widths[0] for width in widths] == [1, 0.125, 0.1]
    assert [text.text for text in picture.iter(f"{SVG}text")] == [
        "grid, two & three, train: ms, * fastest by hand",
        *("one by one", "80.00", "hand: a < b *", "10.00", "weft", "8.00"),
    ]


def test_a_run_leaves_a_report_and_its_picture(tmp_path: Path) -> None:
    assert main(["tree_fc", "--quick", "--batch", "1", "--mode", "infer", "--repeat", "1", "--out", str(tmp_path / "new")]) == 0
    report, picture = sorted((tmp_path / "new").iterdir())
    assert (report.suffix, picture.suffix, report.stem) == (".json", ".svg", picture.stem)
    ElementTree.parse(picture)
