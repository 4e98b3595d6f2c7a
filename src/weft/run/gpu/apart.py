"""Steps of a recipe that the library multiplies for: each a gather or a view, a product, and one fused kernel.

A recurrence over trees is wide at the leaves and narrow at the roots. Its narrow steps are one kernel's; for wide ones a launch
each costs less than what the library's products save (`cost.py`).
"""

from __future__ import annotations

import torch

from weft.graph.ports import port_of
from weft.graph.tape import Value
from weft.run.emit import Code
from weft.run.gpu.cost import rates
from weft.run.gpu.rowcopy import step_rows
from weft.run.gpu.sweep import comes_apart, few_rows
from weft.run.gpu.table import largest_step
from weft.run.recipe import Writer
from weft.run.recipetypes import TypeText
from weft.run.split import Piece

aten = torch.ops.aten

N = "hi - lo"


def operations(piece: Piece) -> float:
    """Of one row's products."""
    found = 0.0
    for value in piece.values:
        if value.target is aten.mm.default:
            inner, outer = (value.args[1].shape or (0, 0))[-2:]
            found += 2.0 * inner * outer
    return found


def rows_apart(writer: Writer, text: TypeText, number: int, piece: Piece) -> int | None:
    """From how many rows on steps run apart, in a plan that has such steps; None in one that has none."""
    if not fits_apart(writer, text, piece):
        return None
    least = rates(writer.indices.device).rows(operations(piece))
    some = writer.ask(("apart", number, least), lambda indices: largest_step(indices.plan, number) >= least, by_rows=True)
    return least if some else None


def asked_few_rows(writer: Writer, text: TypeText) -> bool:
    """Whether kernels suit a type; where its steps can run apart, this is the same for all plans."""
    apart = comes_apart(writer.indices.plan, text.type)
    return writer.ask(("few rows", text.type), lambda indices: few_rows(text.code, indices.plan, text.type), by_rows=not apart)


def fits_apart(writer: Writer, text: TypeText, piece: Piece) -> bool:
    """Whether steps of a piece can run by themselves."""
    type = text.type
    outputs = {name[0] for name in text.code.role.exchanged}
    values = [*piece.takes, *piece.gives]
    return (
        comes_apart(writer.indices.plan, type)  # all plans of a recipe have one shape
        and all(text.class_range(output) for output in outputs)
        and all(value.rows is None or value.row_dim == 0 for value in values)
    )


def step_facts(writer: Writer, number: int) -> str:
    """The rows of each step."""
    return writer.fact(
        ("steps", number),
        lambda indices: list(
            zip(indices.plan.groups[number].step_lo.tolist(), indices.plan.groups[number].step_hi.tolist(), strict=True)
        ),
    )


def step_call(writer: Writer, text: TypeText, code: Code, known: dict[str, str]) -> str:
    """One step's call of a piece, in terms of `at`, `lo` and `hi`; `known`: texts of values that are found otherwise."""
    takes = [known.get(value.name) or _taken(writer, text, value) for value in code.takes]
    stores = [f"{text.store[value.name]}.narrow(0, lo, {N})" for value in code.stores]
    return f"{writer.bind(code.run, 'piece')}({', '.join([*takes, *stores, N, '0', 'None', 'records'])})"


def _taken(writer: Writer, text: TypeText, value: Value) -> str:
    name = text.code.input_name.get(value.name)
    if name in text.code.role.recurrent_in and value.name not in text.store:
        port = port_of(text.kinds, name)
        assert port is not None and name is not None
        read = text.ports[port]
        starts = text.fact("starts", lambda indices, read: indices.read(read).starts, port)
        rows = f"{text.arenas[read.value_class, name[-1]]}, {text.index(port)}, {starts}[at], lo, hi, {read.width}"
        tail = ", ".join(map(str, [N, *[size for size in (value.shape or ())[1:] if isinstance(size, int)]]))
        return f"{writer.bind(step_rows)}({rows}).view({tail})"
    found = text.whole(value)
    if value.rows is None:
        return found
    return f"{found}.narrow(0, {value.rows.times} * lo, {value.rows.times} * ({N}))"
