"""A plan as a trace: planned batches as slices, rows as durations, in the Chrome trace event format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.tools.planned import Planned


def trace_json(planned: Planned) -> str:
    """One process per group, one thread per type; a row lasts a microsecond, and batches follow each other."""
    events = [*_names(planned), *_slices(planned)]
    about = {"plan": planned.name, "unit": "one row is shown as one microsecond", **planned.stats()}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {k: str(v) for k, v in about.items()}})


def _names(planned: Planned) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number, group in enumerate(planned.plan.groups):
        title = f"group {number + 1} ({'on a cycle' if group.cyclic else 'once'})"
        events.append(_about(number, 0, "process_name", name=title))
        events.append(_about(number, 0, "process_sort_index", sort_index=number))
        for t in group.types:
            events.append(_about(number, t + 1, "thread_name", name=planned.pieces.types[t].name))
    return events


def _about(group: int, thread: int, what: str, **args: object) -> dict[str, Any]:
    return {"ph": "M", "pid": group + 1, "tid": thread, "name": what, "args": args}


def _slices(planned: Planned) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    clock = 0
    for batch in planned.pieces.batches():
        piece = planned.pieces.types[batch.type].forward[batch.stage]
        name = batch.stage if batch.stage in ("before", "after") else f"step {batch.step + 1}"
        args = {
            "stage": batch.stage,
            "rows": batch.rows,
            "first row": batch.lo,
            "operations": piece.operations,
            "matrix products": piece.products,
        }
        place = {"pid": batch.group + 1, "tid": batch.type + 1, "ts": clock}
        events.append({"ph": "X", "name": name, "cat": batch.stage, "dur": batch.rows, "args": args, **place})
        events.append({"ph": "C", "name": "rows", "args": {"rows": batch.rows}, **place})
        clock += batch.rows
    return events
