"""Figures in the documentation are those of the report that is named beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
REPORT = re.compile(r"`(benchmarks/reports/[\w-]+\.json)`")
VARIANTS = {"vertex function": "weft"}
"""What a column is called in reports, where that differs; hand-batched is the fastest of several."""


def tables_of_steps(page: Path) -> list[tuple[Path, list[dict[str, str]]]]:
    """Tables of milliseconds for numbers of trees, by the report that is named last before them."""
    found, report, rows, names = [], None, [], []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        named = REPORT.search(line)
        if named is not None:
            report = ROOT / named[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not names:
            names = cells
        elif cells and names[0] == "trees" and "one by one" in names and cells[0].isdigit():
            rows.append(dict(zip(names, cells, strict=True)))
        if not cells:
            if rows and report is not None:
                found.append((report, rows))
            rows, names = [], []
    return found


def median(result: dict[str, Any], column: str) -> float:
    variant = result["hand_batched"] if column == "hand-batched" else VARIANTS.get(column, column)
    return float(result["variants"][variant]["median"])


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_times_of_steps_are_those_of_the_report(page: str) -> None:
    tables = tables_of_steps(ROOT / page)
    assert tables
    for report, rows in tables:
        results = {(one["batch"], one["mode"]): one for one in json.loads(report.read_text(encoding="utf-8"))["results"]}
        for row in rows:
            mode = "infer" if row.get("") == "inference" else "train"
            for column, shown in row.items():
                if column not in ("trees", ""):
                    assert float(shown) == pytest.approx(median(results[int(row["trees"]), mode], column), rel=6e-3), (
                        row,
                        column,
                    )
