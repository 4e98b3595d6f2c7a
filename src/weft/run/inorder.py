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

Where = tuple[tuple[int, int | None], ...]
"""Types, and of each the output whose class rows count; None: its rows, behind those of the types before."""


def in_order(
    indices: Indices, codes: Mapping[int, CellCode], arenas: Arenas, names: list[Name], parts: list[tuple[int, Tensor]]
) -> Tensor:
    """An output's rows of several types, together all nodes. `names` is what each type calls the output."""
    home, where = home_of(indices.plan, [(t, codes[t], name) for (t, _), name in zip(parts, names, strict=True)])
    rows = torch.cat([part for _, part in parts]) if home is None else arenas[home]
    return rows.index_select(0, indices.kept(("order", where), lambda: places(indices.plan, where)))


def home_of(plan: Plan, given: list[tuple[int, CellCode, Name]]) -> tuple[tuple[int, Name] | None, Where]:
    """The arena that all rows of an output lie in, if there is one, and where the rows of each type are then."""
    found = [(t, _exchanged(code, name)) for t, code, name in given]
    homes = {None if one is None else (plan.class_of[t, one[0]], one[1]) for t, one in found}
    (home,) = homes if len(homes) == 1 else (None,)
    return home, tuple((t, None if home is None or one is None else one[0]) for t, one in found)


def _exchanged(code: CellCode, name: Name) -> Name | None:
    """The name (output, key) under which others read an output, if they do."""
    names = code.exchanged.get(id(code.split.outputs[name]))
    return names[0] if names else None


def places(plan: Plan, where: Where) -> Ints:
    """For each node the class row of its type's output or, without one, the row of the types one behind the other."""
    place = np.empty(plan.program.num_nodes, dtype=np.int32)
    start = 0
    for t, output in where:
        nodes = plan.rows[t]
        place[nodes] = np.arange(start, start + len(nodes)) if output is None else plan.class_row[t, output]
        start += len(nodes)
    return place
