"""The batches of a plan as an SVG: one lane per type, time from left to right, a step's bar as high as it has rows.

What runs once over all rows is a pale bar of full height; the bars of steps are to the scale of the largest step of the lane,
so that the widths of levels can be seen beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from weft.tools.explain import counted
from weft.tools.pieces import Batch

if TYPE_CHECKING:
    from weft.tools.planned import Planned

COLOURS = ("#2a7fb8", "#d9822b", "#3d9970", "#b5527f", "#7a68c8", "#a08a2e", "#4aa3a8", "#c0564a")
MOST_BARS = 240
ONCE = ("before", "after")
WIDTH, LEFT, LANE, BAR, WIDEST = 960.0, 6.0, 84.0, 46.0, 64.0


@dataclass(frozen=True)
class Bar:
    """A batch, or several of one type and stage that share a column of the picture."""

    type: int
    stage: str
    start: float
    end: float
    rows: int
    text: str


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def bars(batches: list[Batch]) -> list[Bar]:
    """One bar per batch; beyond `MOST_BARS` batches, columns of equal time, in each type the largest of its batches."""
    if len(batches) <= MOST_BARS:
        return [Bar(b.type, b.stage, i, i + 1, b.rows, _told(b)) for i, b in enumerate(batches)]
    width = len(batches) / MOST_BARS
    columns: dict[tuple[int, int, str], list[Batch]] = {}
    for i, batch in enumerate(batches):
        columns.setdefault((int(i / width), batch.type, batch.stage), []).append(batch)
    return [
        Bar(t, stage, at * width, (at + 1) * width, max(b.rows for b in found), _told_many(found))
        for (at, t, stage), found in columns.items()
    ]


def _told(batch: Batch) -> str:
    when = f"step {batch.step + 1}" if batch.stage not in ONCE else f"{batch.stage}, once"
    return f"{when}: rows {batch.lo:,} to {batch.hi - 1:,} ({batch.rows:,})"


def _told_many(found: list[Batch]) -> str:
    if len(found) == 1:
        return _told(found[0])
    return f"steps {found[0].step + 1:,} to {found[-1].step + 1:,}: up to {max(b.rows for b in found):,} rows each"


def batches_picture(planned: Planned) -> str:
    """The whole picture; colours are those of `colour` in the order of the groups' types."""
    batches = list(planned.pieces.batches())
    order = [t for group in planned.plan.groups for t in group.types]
    scale = min((WIDTH - 2 * LEFT) / max(len(batches), 1), WIDEST)
    drawn = bars(batches)
    lanes = [_lane(planned, t, place, [bar for bar in drawn if bar.type == t], scale) for place, t in enumerate(order)]
    height = LANE * len(order) + 26
    axis = _text(LEFT, height - 6, "first batch") + _text(LEFT + scale * len(batches), height - 6, "last batch", "end")
    if scale * len(batches) < 200:
        axis = _text(LEFT, height - 6, "batches in the order of running")
    label = f"{len(batches)} batches of {len(order)} types in the order of running"
    return f"<svg viewBox='0 0 {WIDTH:.0f} {height:.0f}' role='img' aria-label='{label}'>{''.join(lanes)}{axis}</svg>"


def _lane(planned: Planned, t: int, place: int, drawn: list[Bar], scale: float) -> str:
    kind = planned.pieces.types[t]
    top = LANE * place
    floor = top + 24 + BAR
    most = max((bar.rows for bar in drawn if bar.stage not in ONCE), default=0)
    shapes = [
        f"<g fill='{colour(place)}'>",
        *(_rect(bar, scale, floor, most) for bar in drawn),
        "</g>",
    ]
    title = f"<tspan class='lane' fill='{colour(place)}'>{escape(kind.name)}</tspan>"
    about = f"group {kind.group + 1}, {counted(kind.rows, 'row', 'rows')}"
    if most:
        about += f", largest step {most:,}"
    sizes = f"<tspan dx='10' class='faint'>{about}</tspan>"
    line = f"<line x1='{LEFT}' x2='{WIDTH - LEFT}' y1='{floor + 0.5:.1f}' y2='{floor + 0.5:.1f}' class='rule'/>"
    return f"<text x='{LEFT}' y='{top + 17:.1f}'>{title}{sizes}</text>{line}{''.join(shapes)}"


def _rect(bar: Bar, scale: float, floor: float, most: int) -> str:
    height = BAR if bar.stage in ONCE else max(BAR * bar.rows / most, 2.0)
    width = max((bar.end - bar.start) * scale, 1.5)
    gap = 1.5 if width > 6 else 0.4 if width > 2 else 0
    faint = " class='whole'" if bar.stage in ONCE else ""
    box = f"x='{LEFT + bar.start * scale:.2f}' y='{floor - height:.2f}' width='{width - gap:.2f}' height='{height:.2f}'"
    return f"<rect {box} rx='{2 if min(width, height) > 6 else 0}'{faint}><title>{escape(bar.text)}</title></rect>"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' class='faint'>{escape(text)}</text>"
