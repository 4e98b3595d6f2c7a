"""Ports: how the inputs that a cell asks for by name become reads of its argument list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.graph.program import Port

PER_EDGE = ("edge", "edge_feed", "edge_number")

PORT_KINDS = {"slots": "slots", "sum": "sum", "edge": "edges"}
"""The kind of port that an input of a finished tape is gathered through."""

SLOTS = ("slot", "filled", "slot_edge")


def ports_of(asked: Iterable[Any], first_child: int, groups: Sequence[Sequence[int]] | None = None) -> tuple[Port, ...]:
    """How a cell that asks for these inputs reads its arguments.

    All slots are one port, gathered together, unless `groups` says which positions belong together.

    >>> ports_of([("slot", 0, "h"), ("slot", 1, "h")], 2)
    (Port(kind='slots', positions=(0, 1)),)
    >>> ports_of([("slot", 0, "h"), ("slot", 1, "h")], 2, [[0], [1]])
    (Port(kind='slots', positions=(0,)), Port(kind='slots', positions=(1,)))
    """
    names = list(asked)
    kinds = {PORT_KINDS.get(name[0], "edges" if name[0] in PER_EDGE else "") for name in names}
    ports = [Port(kind, (first_child,)) for kind in ("edges", "sum") if kind in kinds]
    if ("count",) in names and not ports:
        ports = [Port("sum", (first_child,))]
    slots = sorted({name[1] for name in names if name[0] in SLOTS})
    for group in [slots] if groups is None else groups:
        positions = tuple(position for position in group if position in slots)
        if positions:
            ports.append(Port("slots", positions))
    return tuple(sorted(ports, key=lambda port: port.kind))


def port_of(ports: Sequence[Port], name: Any) -> int | None:
    """The number of the port that an input is gathered through; None for what is not gathered."""
    kind = PORT_KINDS.get(name[0])
    for number, port in enumerate(ports):
        if port.kind == kind and (kind != "slots" or name[1] == port.positions[0]):
            return number
    return None


def slots_port(ports: Sequence[Port], position: int) -> int:
    """The number of the port that a slot belongs to."""
    return next(i for i, port in enumerate(ports) if port.kind == "slots" and position in port.positions)


def input_of(port: Port, key: Any) -> tuple[Any, ...]:
    """The name of the input that a port's gathered rows of a state key have."""
    if port.kind == "slots":
        return ("slots", port.positions[0], key)
    return ("sum", key) if port.kind == "sum" else ("edge", key)
