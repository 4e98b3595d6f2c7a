"""A plan as text for a terminal, of 100 columns if nothing else is said."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft.graph.calls import KEY
from weft.plan.plan import Group
from weft.run.split import BACKWARD, FORWARD
from weft.tools.pieces import PieceCount, Pieces
from weft.tools.reasons import reasons, what_is_read

if TYPE_CHECKING:
    from weft.tools.planned import Planned

WIDTH = 100
NAME_WIDTH = 36
BAR_WIDTH = 48
MOST_BARS = 12


def explain(planned: Planned, width: int = WIDTH) -> str:
    """The whole text: what there is, which groups run how, widths of the steps, pieces, gathers, and why it is not less."""
    if not planned.pieces.types:
        return f"{planned.name}: no nodes, nothing to run"
    sections = [_summary(planned), _groups(planned), _widths(planned)]
    sections += [_pieces(planned, width), _gathers(planned, width), _why(planned, width)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _summary(planned: Planned) -> list[str]:
    numbers = planned.stats()
    kinds = ((key, singular, plural) for key, singular, plural in _COUNTED)
    sizes = ", ".join(counted(int(numbers[key]), singular, plural) for key, singular, plural in kinds)
    batches, bound = int(numbers["batches"]), int(numbers["lower_bound"])
    exact = "and no order has fewer" if batches == bound else f"and no order has fewer than {bound:,}"
    planning = "found in the cache" if planned.cached else f"planned in {seconds(planned.plan_s)}"
    part = [] if planned.complete else ["only the beginning: the code asks for a number, and what follows depends on it"]
    return [
        f"{planned.name}: {sizes}",
        *part,
        f"{counted(batches, 'batch', 'batches')}, {exact}; the largest has {counted(int(numbers['rows_max']), 'row', 'rows')}",
        f"{counted(int(numbers['gathers']), 'gather', 'gathers')} by index, {numbers['gathers_avoided']:,} avoided (views); "
        f"arenas of {size(int(numbers['arena_bytes']))}",
        f"policy {planned.plan.policy!r}, recorded in {seconds(planned.record_s)}, {planning}",
    ]


_COUNTED = (
    ("examples", "example", "examples"),
    ("nodes", "node", "nodes"),
    ("edges", "edge", "edges"),
    ("types", "type", "types"),
    ("levels", "level", "levels"),
)


def _groups(planned: Planned) -> list[str]:
    rows = [["group", "type", "rows", "steps", "runs"]]
    for number, group in enumerate(planned.plan.groups):
        for at, t in enumerate(group.types):
            kind = planned.pieces.types[t]
            label = str(number + 1) if at == 0 else ""
            rows.append([label, short(kind.name), f"{kind.rows:,}", f"{kind.steps:,}", how_it_runs(planned, number, t)])
    return ["Groups, in order", *table(rows, "rlrrl")]


def how_it_runs(planned: Planned, number: int, t: int) -> str:
    group = planned.plan.groups[number]
    if not group.cyclic:
        return "once: on no cycle"
    if not planned.pieces.steps_of(t):
        return "once: no state of it is read here"
    return "step by step: feeds itself" if len(group.types) == 1 else "step by step, with its group"


def _widths(planned: Planned) -> list[str]:
    lines: list[str] = []
    for number, group in enumerate(planned.plan.groups):
        if group.steps > 1 and any(planned.pieces.steps_of(t) for t in group.types):
            names = ", ".join(planned.pieces.types[t].name for t in group.types)
            lines += [f"  group {number + 1}: {short(names, 80)}", *histogram(group, _step_names(planned, group))]
    return ["Rows of each step", *lines] if lines else []


def _step_names(planned: Planned, group: Group) -> list[str]:
    """What to write behind each bar: the step's type, where there are several and every step has a bar."""
    if len(group.types) == 1 or group.steps > MOST_BARS:
        return [""] * group.steps
    return [f"  {short(planned.pieces.types[t].name)}" for t in group.step_type.tolist()]


def histogram(group: Group, names: Sequence[str]) -> list[str]:
    """Bars of step sizes; where there are many steps, of their mean over equal runs of steps."""
    sizes = (group.step_hi - group.step_lo).astype(float)
    cuts = np.unique(np.linspace(0, len(sizes), min(len(sizes), MOST_BARS) + 1).astype(int))
    runs = list(pairwise(cuts.tolist()))
    means = [float(sizes[a:b].mean()) for a, b in runs]
    labels = [str(b) if b == a + 1 else f"{a + 1}-{b}" for a, b in runs]
    left = max(map(len, labels)) + 4
    shown = [f"{mean:,.0f}" if mean == int(mean) else f"{mean:,.1f} on average" for mean in means]
    bars = zip(labels, means, shown, names, strict=False)
    return [f"{label:>{left}} {bar(mean / max(means))} {text}{name}" for label, mean, text, name in bars]


def bar(share: float) -> str:
    eighths = max(1, round(share * BAR_WIDTH * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _pieces(planned: Planned, width: int) -> list[str]:
    rows = [["", *FORWARD, *BACKWARD]]
    for t, kind in planned.pieces.types.items():
        every = [*(kind.forward.get(s) for s in FORWARD), *(kind.backward.get(s) for s in BACKWARD)]
        rows.append([short(planned.pieces.told(t), 34), *map(_piece, every)])
    kinds = planned.pieces.types.values()
    products = [
        *_products("forward", [piece for kind in kinds for piece in kind.forward.items()]),
        *_products("backward", [piece for kind in kinds for piece in kind.backward.items()]),
    ]
    legend = _LEGEND if max(map(len, _LEGEND)) <= width else textwrap.wrap(" ".join(_LEGEND), width)
    return [*legend, *table(rows, "lrrrrrr"), *wrapped(products, width, "  ")]


_LEGEND = (
    "Operations of each piece, matrix products among them in brackets; before, after, late and sums",
    "run once over all rows, during and back once per step",
)


def _piece(piece: PieceCount | None) -> str:
    if piece is None:
        return "-"
    products = f" ({piece.products})" if piece.products else ""
    return f"{piece.operations}{products}" if piece.operations else "copy"


def _products(direction: str, found: Iterable[tuple[str, PieceCount]]) -> list[str]:
    """Matrix products in one direction: how many run once, how many at every step."""
    pieces = list(found)
    once = sum(piece.products for stage, piece in pieces if stage not in ("during", "back"))
    per_step = [piece for stage, piece in pieces if stage in ("during", "back") and piece.products]
    if not pieces:
        return [f"{direction}: nothing requires a gradient"] if direction == "backward" else []
    parts = [f"{once} once"] if once or not per_step else []
    parts += [f"{piece.products} at each of {counted(piece.batches, 'step', 'steps')}" for piece in per_step]
    return [f"matrix products {direction}: {' + '.join(parts)}"]


def _gathers(planned: Planned, width: int) -> list[str]:
    lines = [line for t in planned.pieces.types for line in _views(planned.pieces, t)]
    return ["Gathers avoided", *wrapped(lines, width, "  ")] if lines else []


def _views(pieces: Pieces, t: int) -> list[str]:
    """One line for the ports of each kind whose reads are views."""
    by_times: dict[tuple[str, int], list[str]] = {}
    for gather in pieces.types[t].gathers:
        if gather.is_view:
            read = what_is_read(pieces.plan, gather.read, [KEY]) if gather.key == KEY else gather.key
            by_times.setdefault((gather.read.kind, gather.times), []).append(read)
    return [
        f"{short(pieces.told(t))} reads {', '.join(dict.fromkeys(read))} as views: "
        + ("its rows are consecutive" if times == 1 else f"the rows of all {times:,} steps are consecutive")
        for (_, times), read in by_times.items()
    ]


def _why(planned: Planned, width: int) -> list[str]:
    found = reasons(planned.pieces, planned.max_rows)
    if not found:
        return ["Everything merged: each type runs once, and nothing is gathered by index."]
    return ["What did not merge, and why", *wrapped(found, width, "  - ")]


def wrapped(sentences: Sequence[str], width: int, indent: str) -> list[str]:
    lines: list[str] = []
    for sentence in sentences:
        lines += textwrap.wrap(sentence, width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def short(name: str, width: int = NAME_WIDTH) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def counted(number: int, singular: str, plural: str) -> str:
    return f"{number:,} {singular if number == 1 else plural}"


def seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.{0 if value >= 0.1 else 1}f} ms"
    return f"{value:.2f} s"


def size(number: int) -> str:
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
