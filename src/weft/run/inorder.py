"""Rows of several types, brought into the order of nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from weft.graph.program import Ints
from weft.graph.tape import Name
from weft.plan.plan import Plan
from weft.run.code import CellCode
from weft.run.indices import Indices
from weft.run.typerun import Arenas


def in_order(
    indices: Indices, codes: Mapping[int, CellCode], arenas: Arenas, names: list[Name], parts: list[tuple[int, Tensor]]
) -> Tensor:
    """An output's rows of several types, together all nodes: out of one arena, if all of them lie there.

    `names` is what each type calls the output.
    """
    found = [_exchanged(codes[t], name) for (t, _), name in zip(parts, names, strict=True)]
    homes = {
        None if one is None else (indices.plan.class_of[t, one[0]], one[1]) for (t, _), one in zip(parts, found, strict=True)
    }
    (home,) = homes if len(homes) == 1 else (None,)
    rows = torch.cat([part for _, part in parts]) if home is None else arenas[home]
    where = tuple((t, None if home is None or one is None else one[0]) for (t, _), one in zip(parts, found, strict=True))
    return rows.index_select(0, indices.kept(("order", where), lambda: _places(indices.plan, where)))


def _exchanged(code: CellCode, name: Name) -> Name | None:
    """The name (output, key) under which others read an output, if they do."""
    names = code.exchanged.get(id(code.split.outputs[name]))
    return names[0] if names else None


def _places(plan: Plan, where: tuple[tuple[int, int | None], ...]) -> Ints:
    """For each node the class row of its type's output or, without one, the row of the types one behind the other."""
    place = np.empty(plan.program.num_nodes, dtype=np.int32)
    start = 0
    for t, output in where:
        nodes = plan.rows[t]
        place[nodes] = np.arange(start, start + len(nodes)) if output is None else plan.class_row[t, output]
        start += len(nodes)
    return place
