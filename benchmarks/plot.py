"""The times of a run as one picture, an SVG that needs nothing else: a bar for every variant, the scale new for each case."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.report import Result

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 860, 230, 110, 22, 44
_INK, _MUTED = "#1d2733", "#647184"
_OURS, _HAND, _OTHER = "#0b7285", "#8a97a6", "#cbd3dc"


def picture(results: Sequence[Result]) -> str:
    """All cases below each other."""
    parts, top = [], 0
    for result in results:
        parts += _case(result, top)
        top += _HEAD + _ROW * len(result.timings) + 14
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {top}' width='{_WIDTH}' height='{top}' "
        f"font-family='system-ui, sans-serif' font-size='13'><rect width='100%' height='100%' fill='#fff'/>"
        f"{''.join(parts)}</svg>\n"
    )


def write(results: Sequence[Result], path: Path) -> None:
    path.write_text(picture(results), encoding="utf-8")


def _case(result: Result, top: int) -> list[str]:
    title = f"{result.case.workload}, {result.case.label}, {result.mode}: ms, * fastest by hand"
    parts = [_text(16, top + 28, title, weight="600")]
    longest = max(timing.median for timing in result.timings.values())
    for row, (name, timing) in enumerate(result.timings.items()):
        y = top + _HEAD + row * _ROW
        length = max(timing.median / longest * (_WIDTH - _LEFT - _RIGHT), 1.5)
        colour = _OURS if name.startswith("weft") else _HAND if name == result.hand else _OTHER
        parts.append(_text(_LEFT - 10, y + 13, f"{name} *" if name == result.hand else name, anchor="end"))
        parts.append(f"<rect x='{_LEFT}' y='{y}' width='{length:.1f}' height='16' rx='3' fill='{colour}'/>")
        parts.append(_text(_LEFT + length + 8, y + 13, f"{timing.median:,.2f}", colour=_MUTED))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = _INK, weight: str = "400") -> str:
    where = f"x='{x:.1f}' y='{y}' text-anchor='{anchor}'"
    return f"<text {where} fill='{colour}' font-weight='{weight}'>{escape(text)}</text>"
