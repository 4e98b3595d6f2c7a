"""Plans as pages and as traces."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import weft
import weft.nn
from plan_parts import Fold, Given, Size, two_trees
from weft.tools.planned import Planned


class Tags(HTMLParser):
    """Checks that tags nest, and collects them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen[tag] += 1
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen[tag] += 1


def page_of(planned: Planned, folder: Path) -> str:
    planned.to_html(folder / "plan.html")
    return (folder / "plan.html").read_text(encoding="utf-8")


def test_the_page_is_complete_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    planned = weft.plan(*two_trees())
    page = page_of(planned, tmp_path)
    tags = Tags(page)
    assert tags.seen["section"] == 4 and tags.seen["svg"] == 1
    assert tags.seen["rect"] == planned.stats()["batches"] == 4
    assert not re.search(r"(src|href)=|url\(|@import|<script|https?:", page)
    assert "prefers-color-scheme: dark" in page
    assert "step 2: rows 2 to 2 (1)" in page and "before, once: rows 0 to 4 (5)" in page


def test_names_given_by_users_are_escaped(tmp_path: Path) -> None:
    model = weft.Typed({"<script>x</script>": Fold(), "leaf & co": Given()})
    planned = weft.plan(model, weft.Graph([[], [0, 0]], types=["leaf & co", "<script>x</script>"]), torch.ones(2, 4))
    for text in (page_of(planned, tmp_path), planned._repr_html_()):
        assert "<script" not in text and "&lt;script&gt;x&lt;/script&gt;" in text and "leaf &amp; co" in text
        Tags(text)


def test_arenas_of_recorded_results_have_a_name(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    page = page_of(weft.plan(lambda x: x * weight, [torch.ones(2), torch.ones(2)]), tmp_path)
    assert "<div class='arena'><code>result</code>" in page and "<code></code>" not in page


def test_a_long_plan_is_drawn_with_a_bounded_number_of_bars(tmp_path: Path) -> None:
    planned = weft.plan(Size(), weft.Graph.chain(5000))
    page = page_of(planned, tmp_path)
    assert planned.stats()["batches"] == 5000
    assert 200 < Tags(page).seen["rect"] < 300 and len(page) < 100_000


def test_the_fragment_for_notebooks_is_smaller() -> None:
    planned = weft.plan(*two_trees())
    fragment = planned._repr_html_()
    assert fragment.startswith("<div class='weft-plan'>") and "<section" not in fragment and "<svg" in fragment
    Tags(fragment)


def test_the_trace_has_a_slice_for_every_batch(tmp_path: Path) -> None:
    planned = weft.plan(*two_trees())
    planned.to_perfetto(tmp_path / "plan.json")
    trace = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["pid"], event["ts"], event["dur"]) for event in slices] == [
        ("before", 1, 0, 5),
        ("step 1", 2, 5, 2),
        ("step 2", 2, 7, 1),
        ("after", 2, 8, 3),
    ]
    names = {event["args"].get("name") for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"group 1 (once)", "group 2 (on a cycle)", "NaryTreeLSTM.leaf (no children)", "NaryTreeLSTM.node"} <= names
    assert trace["otherData"]["batches"] == "4"
