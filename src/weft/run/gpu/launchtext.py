"""The launches of a group's sweep as lines of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.graph.tape import Value
from weft.run.gpu.apart import step_facts
from weft.run.gpu.bind import Source
from weft.run.gpu.launch import interpreted
from weft.run.gpu.sweep import Walk
from weft.run.gpu.table import step_table, stretches
from weft.run.indices import Indices
from weft.run.recipe import Writer
from weft.run.recipetypes import TypeText

Argument = Callable[[TypeText, Source], str]


@dataclass(frozen=True, eq=False)
class Apart:
    """Steps of `least` rows and more run by themselves: the lines of one, in terms of `at`, `lo` and `hi`."""

    least: int
    lines: list[str]


def say_launches(
    writer: Writer,
    number: int,
    walk: Walk,
    members: Sequence[TypeText],
    argument: Argument,
    apart: Apart | None,
    first: int = 0,
) -> None:
    """Walk the steps of a group, from the `first` on. `argument` gives the variable of each parameter."""
    some, backward = walk.sweeps["narrow"], walk.backward
    limits = walk.limits(writer.indices.device, None if apart is None else apart.least)
    arguments = [writer.fact(("table", number), lambda indices: indices.tensor(step_table(indices.plan, number)))]
    for text, binding, scratch in zip(members, some.bindings, some.scratch, strict=True):
        arguments += [argument(text, source) for source in binding.parameters.values()]
        arguments += [_scratch(writer, text, value) for value, _ in scratch]
    turns = writer.fact(
        ("turns", number, backward, first, limits), lambda indices: stretches(indices.plan, number, backward, limits, first)
    )
    low, held = "0", ""
    if not interpreted():
        pairs = list(zip(arguments, walk.kinds, strict=True))
        arguments = [one if kind is None else writer.let(f"{one}.data_ptr()") for one, kind in pairs]
        low = " | ".join(one for one, kind in zip(arguments, walk.kinds, strict=True) if kind is not None)
        held = ", ".join(dict.fromkeys(one for one, kind in pairs if kind is not None and one.startswith("x")))
    rest = f"device, stream, {low}, {', '.join(arguments)})"
    start = writer.bind(walk.start, "walk")
    if apart is None:
        writer.say(f"{start}({turns}, {rest}")
    else:
        writer.say(
            f"for begin, end, width in {turns}:",
            "    if width != 'apart':",
            f"        {start}(((begin, end, width),), {rest}",
            "        continue",
            f"    for at in {'range(end - 1, begin - 1, -1)' if backward else 'range(begin, end)'}:",
            f"        lo, hi = {step_facts(writer, number)}[at]",
            *[f"        {line}" for line in apart.lines],
        )
    if held:
        writer.say(f"({held},)")  # until here the memory behind the addresses must live


def _scratch(writer: Writer, text: TypeText, value: Value) -> str:
    """Memory for the widest step."""
    assert value.rows is not None
    type, port = text.type, text.bag if value.rows.kind == "e" else None

    def rows(indices: Indices) -> int:
        cuts = indices.step_cuts(type) if port is None else indices.edge_cuts(indices.plan.reads[text.reads[port]])
        return max(cuts.sizes, default=0)

    widest = writer.fact(("widest", type, port), rows)
    return writer.empty([widest, *[size for size in value.shape or () if isinstance(size, int)]], value.dtype)
