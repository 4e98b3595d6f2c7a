"""Equal calls computed once: calls of one type on equal arguments and equal data share a result.

The rule: walk the levels from below. Calls of one level and one type whose arguments are the same results and whose data is
equal, bit by bit, are the same call; the first stands for all. A subtree that occurs twice thus disappears from the leaves up.

    +(a, b)  +(a, b)       level 1: equal arguments, one call
     a   b    a   b        level 0: equal data, one call each

Random calls stay apart, and so does data that needs a gradient: its rows are different tensors to the caller. Cost: one sort of
the calls' arguments; it pays where structure repeats (words, common phrases, small graphs), and costs a few percent elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from weft.graph.calls import CallType
from weft.graph.program import Ints
from weft.graph.recording import Table, as_tensor
from weft.plan.levels import levels, stable_order
from weft.run.callgraph import CallGraph

Wide = npt.NDArray[np.int64]


def same_calls(graph: CallGraph, types: Sequence[CallType], tables: Mapping[tuple[int, int], Table]) -> Ints:
    """For each call the first call that computes the same."""
    first = np.arange(len(graph.type), dtype=np.int32)
    apart = np.zeros(len(types), np.bool_)
    data = {t: _data_ids(types[t], t, tables) for t in np.unique(graph.type).tolist()}
    for t, ids in data.items():
        apart[t] = types[t].random or ids is None
    level = levels(graph.ptr, graph.src)
    lengths = np.diff(graph.ptr)
    order = stable_order(level, int(level.max(initial=0)) + 1)
    for nodes in np.split(order, np.cumsum(np.bincount(level))[:-1]):
        shared = nodes[~apart[graph.type[nodes]]]
        kinds = graph.type[shared].astype(np.int64) << 32 | lengths[shared]
        for kind in np.unique(kinds).tolist():
            mine = np.sort(shared[kinds == kind])
            first[mine] = _first_equal(graph, mine, first, data[kind >> 32])
    return first


def _first_equal(graph: CallGraph, calls: Ints, first: Ints, data: Wide | None) -> Ints:
    """Among calls of one type and arity, the first equal to each."""
    arity = int(graph.ptr[calls[0] + 1] - graph.ptr[calls[0]])
    at = graph.ptr[calls][:, None] + np.arange(arity)
    read = first[graph.src[at]].astype(np.int64) << 12 | graph.out[at]
    ids = np.zeros((len(calls), 1), np.int64) if data is None or not len(data) else data[graph.feed[calls]][:, None]
    _, where, inverse = np.unique(np.concatenate([read, ids], axis=1), axis=0, return_index=True, return_inverse=True)
    found: Ints = calls[where][inverse.reshape(-1)]
    return found


def _data_ids(kind: CallType, t: int, tables: Mapping[tuple[int, int], Table]) -> Wide | None:
    """For each row of a type's tables a number, equal for equal data; None where rows stay apart. No tables: no numbers."""
    columns = []
    for number in range(len(kind.feeds)):
        rows = tables[t, number]
        if not isinstance(rows, np.ndarray):
            rows = as_tensor(rows)
            if rows.requires_grad:
                return None
            rows = rows.detach().cpu()
            rows = (rows.float() if rows.dtype is torch.bfloat16 else rows).numpy()
        flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
        flat = flat.view(f"u{min(flat.itemsize, 8)}")  # 0.0 and -0.0 are equal numbers, and 1 / x tells them apart
        columns.append(np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1))
    if not columns:
        return np.zeros(0, np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
