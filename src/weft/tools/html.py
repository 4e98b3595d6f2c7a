"""A plan as one self-contained page, and as a smaller fragment for notebooks; pictures are inline SVG, nothing is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from weft.run.split import BACKWARD, FORWARD
from weft.tools.chart import batches_picture, colour
from weft.tools.explain import counted, explain, how_it_runs, seconds, size
from weft.tools.pieces import PieceCount

if TYPE_CHECKING:
    from weft.tools.planned import Planned


def page(planned: Planned) -> str:
    """The whole page."""
    body = [_header(planned)]
    if planned.pieces.types:
        body += [
            _section("Batches", _BATCHES, f"<div class='scroll'>{batches_picture(planned)}</div>"),
            _section("Groups and pieces", _PIECES, _groups_table(planned)),
            _section("Arenas", _ARENAS, _arenas(planned)),
        ]
    body.append(_section("In words", "What plan.explain() prints.", f"<pre>{escape(explain(planned))}</pre>"))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>weft plan: {escape(planned.name)}</title><style>{_PAGE_STYLE}{_SHARED_STYLE}</style></head>"
        f"<body><main class='weft-plan'>{''.join(body)}</main></body></html>\n"
    )


def fragment(planned: Planned) -> str:
    """A summary and the picture, in the colours of the page around it."""
    picture = batches_picture(planned) if planned.pieces.types else ""
    return (
        f"<div class='weft-plan'><style>{_FRAGMENT_STYLE}{_SHARED_STYLE}</style>{_header(planned, small=True)}{picture}</div>"
    )


_BATCHES = (
    "Time goes from left to right, one lane per type. Pale bars run once over all rows; the others are steps of a recurrence, "
    "as high as the step has rows."
)
_PIECES = (
    "Operations in each piece of a cell, matrix products among them in bold. During and back run once per step, all others "
    "once. Backward: if every output has a gradient."
)
_ARENAS = "Memory of the states or results that are exchanged, in the colours of the types that write them."


def _header(planned: Planned, small: bool = False) -> str:
    numbers = planned.stats()
    sizes = [counted(int(numbers[key]), key[:-1], key) for key in ("examples", "nodes", "edges", "types", "levels")]
    planning = "from the cache" if planned.cached else seconds(planned.plan_s)
    tiles = [
        (f"{numbers['batches']:,}", "batches", f"lower bound {numbers['lower_bound']:,}"),
        (f"{numbers['rows_max']:,}", "rows at most", "in one batch"),
        (f"{numbers['products']:,}", "matrix products", f"{numbers['products_backward']:,} backward"),
        (f"{numbers['gathers']:,}", "index gathers", f"{numbers['gathers_avoided']:,} avoided"),
        (size(int(numbers["arena_bytes"])), "of arenas", f"for {planned.plan.program.num_nodes:,} nodes"),
        (planning, "to plan", f"{seconds(planned.record_s)} to record"),
    ]
    head = "h3" if small else "h1"
    shown = "".join(
        f"<div class='tile'><b>{escape(a)}</b><span>{escape(b)}</span><i>{escape(c)}</i></div>" for a, b, c in tiles
    )
    title = f"<{head}>Plan of <em>{escape(planned.name)}</em></{head}>"
    part = "" if planned.complete else "; only the beginning, up to the first number that the code asks for"
    about = f"<p>{', '.join(sizes)}; policy {escape(planned.plan.policy)}{part}</p>"
    return f"<header>{title}{about}</header><div class='tiles'>{shown}</div>"


def _section(title: str, note: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(note)}</p>{body}</section>"


def _groups_table(planned: Planned) -> str:
    stages = [*FORWARD, *BACKWARD]
    head = "<tr><th colspan='5'></th><th colspan='3' class='over'>forward</th><th colspan='3' class='over'>backward</th></tr>"
    head += _row("th", ["group", "type", "rows", "steps", "runs", *stages])
    rows: list[str] = []
    place = 0
    for number, group in enumerate(planned.plan.groups):
        for t in group.types:
            kind = planned.pieces.types[t]
            pieces = [*(kind.forward.get(s) for s in FORWARD), *(kind.backward.get(s) for s in BACKWARD)]
            name = f"<span class='dot' style='background:{colour(place)}'></span>{escape(kind.name)}"
            runs = escape(how_it_runs(planned, number, t))
            rows.append(_row("td", [str(number + 1), name, f"{kind.rows:,}", f"{kind.steps:,}", runs, *map(_piece, pieces)]))
            place += 1
    return f"<div class='scroll'><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _piece(piece: PieceCount | None) -> str:
    if piece is None:
        return "<span class='none'>–</span>"
    times = f"<small>×{piece.batches:,}</small>" if piece.batches > 1 else ""
    products = f" <b>{piece.products}</b>" if piece.products else ""
    return f"{piece.operations}{products}{times}" if piece.operations else f"copy{times}"


def _arenas(planned: Planned) -> str:
    arenas = planned.pieces.arenas
    most = max((arena.bytes for arena in arenas), default=0) or 1
    place = {t: at for at, t in enumerate(t for group in planned.plan.groups for t in group.types)}
    lines = []
    for arena in arenas:
        parts = "".join(
            f"<i style='width:{100 * rows * arena.row_bytes / most:.2f}%;background:{colour(place[t])}'></i>"
            for t, rows in sorted(arena.written, key=lambda part: place[part[0]])
        )
        told = f"{counted(arena.rows, 'row', 'rows')} of {size(arena.row_bytes)} = {size(arena.bytes)}"
        key = escape(arena.key) or "result"  # recorded calls give results without a key
        lines.append(f"<div class='arena'><code>{key}</code><div>{parts}</div><span>{told}</span></div>")
    return "".join(lines) or "<p>No state is exchanged.</p>"


_SHARED_STYLE = """
.weft-plan svg { width: 100%; height: auto; display: block; font: 13px system-ui, sans-serif; }
.weft-plan svg text { fill: currentColor; }
.weft-plan svg .lane { font-weight: 600; }
.weft-plan svg .faint { fill: currentColor; opacity: .62; font-size: 12px; }
.weft-plan svg .rule { stroke: currentColor; opacity: .22; }
.weft-plan svg .whole { fill-opacity: .5; }
.weft-plan svg rect:hover { fill-opacity: .75; }
.weft-plan em { font-style: normal; }
.weft-plan .tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.weft-plan .tile b { display: block; line-height: 1.2; white-space: nowrap; }
.weft-plan .tile span, .weft-plan .tile i { display: block; font-style: normal; }
"""

_PAGE_STYLE = """
:root { color-scheme: light dark; }
:root { --page: #f3f5f7; --card: #fff; --ink: #1c2530; --soft: #5d6a79; --line: #dfe4ea; --mark: #2a7fb8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161b; --card: #1a2027; --ink: #e4e9ef; --soft: #98a5b3; --line: #2c343d; --mark: #63b0e0; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 30px 20px 50px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; }
h1 em { color: var(--mark); }
h2 { font-size: 17px; margin: 0; }
p { margin: 2px 0 14px; color: var(--soft); max-width: 80ch; }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; }
section { margin-top: 14px; padding: 18px 20px; }
.tile b { font-size: 22px; color: var(--mark); }
.tile i { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
.scroll svg { min-width: 640px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); }
th, td { padding: 6px 10px 6px 0; white-space: nowrap; }
td { border-top: 1px solid var(--line); }
td:nth-child(3), td:nth-child(4), tr + tr th:nth-child(3), tr + tr th:nth-child(4) { text-align: right; padding-right: 18px; }
th.over { border-bottom: 1px solid var(--line); padding-bottom: 2px; }
td small { color: var(--soft); margin-left: 4px; }
td b { color: var(--mark); }
.none { opacity: .4; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
.arena { display: grid; grid-template-columns: minmax(40px, auto) 1fr 290px; gap: 12px; align-items: center; margin: 6px 0; }
.arena div { display: flex; background: var(--page); border-radius: 4px; height: 14px; overflow: hidden; }
.arena i { height: 100%; opacity: .85; }
.arena span { color: var(--soft); font-size: 14px; }
pre { margin: 0; padding: 16px; overflow-x: auto; background: var(--page); border-radius: 8px; }
pre { font: 13px/1.45 ui-monospace, monospace; }
@media (max-width: 640px) { .arena { grid-template-columns: 60px 1fr; } .arena span { grid-column: 2; } }
"""

_FRAGMENT_STYLE = """
.weft-plan { max-width: 960px; font: 13px/1.4 system-ui, sans-serif; }
.weft-plan h3 { margin: 0; font-size: 16px; }
.weft-plan header p { margin: 0 0 8px; opacity: .7; }
.weft-plan .tiles { margin-bottom: 6px; }
.weft-plan .tile { border: 1px solid rgba(128, 128, 128, .3); border-radius: 6px; padding: 6px 10px; }
.weft-plan .tile b { font-size: 17px; }
.weft-plan .tile i { opacity: .65; }
"""
