"""Every Python block of README.md and docs/*.md runs: in order, one namespace per file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+://|#)([^)#]+)")


def blocks(text: str) -> list[str]:
    """The Python blocks, each moved down by blank lines so that a traceback shows its line in the page."""
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in BLOCK.finditer(text)]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))], ids=page_name)
def test_python_blocks_run(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page.read_text(encoding="utf-8")):
        exec(compile(block, page_name(page), "exec"), namespace)
    assert "weft" in namespace, "the first block of a page imports weft"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_failing_block_is_found_with_its_line() -> None:
    (block,) = blocks("text\n\n```python\nx = 1\nraise ValueError(x)\n```\n")
    with pytest.raises(ValueError, match="1") as caught:
        exec(compile(block, "page.md", "exec"), {})
    assert caught.traceback[-1].lineno == 4
