"""What a program must hold to, one sentence for each rule that is broken; integer arrays only, no torch.

Rules come in stages, and a stage is looked at only where the ones before it hold: numbers are read through `ptr` only once
`ptr` is known to be sound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.errors import StructureError
from weft.graph.program import EMPTY, Ints, NodeType, Program

PORT_KINDS = ("slots", "sum", "edges")

_NEW, _OPEN, _DONE = range(3)


def verify_program(program: Program) -> None:
    """Raise `StructureError` that says which rules a program breaks and where; do nothing if it breaks none.

    >>> import numpy as np
    >>> pair = Program((NodeType("leaf"),), np.zeros(2, np.int32), np.zeros(3, np.int32), np.zeros(0, np.int32))
    >>> verify_program(pair)
    >>> verify_program(Program(pair.types, np.array([0, 7], np.int32), pair.ptr, pair.src))
    Traceback (most recent call last):
    weft.errors.StructureError: broken program: node 1 has type 7, but there is 1 node type.
    """
    for stage in (_types, _arrays, _nodes, _arguments, _cycles):
        broken = list(stage(program))
        if broken:
            raise StructureError(f"broken program: {' '.join(broken)}")


def counted(count: int, word: str) -> str:
    """`1 node`, `2 nodes`, `2 classes`."""
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count} {word}{ending}"


def _types(program: Program) -> Iterator[str]:
    for number, kind in enumerate(program.types):
        if kind.outputs < 0:
            yield f"node type {number} has {kind.outputs} outputs; their number cannot be negative."
        for at in range(len(kind.ports)):
            yield from _port(number, kind, at)


def _port(number: int, kind: NodeType, at: int) -> Iterator[str]:
    port = kind.ports[at]
    where = f"port {at} of node type {number}"
    if port.kind not in PORT_KINDS:
        yield f"{where} has kind {port.kind!r}; the kinds are {', '.join(map(repr, PORT_KINDS))}."
    if not port.positions:
        yield f"{where} reads no position."
    elif min(port.positions) < 0:
        yield f"{where} reads position {min(port.positions)}; positions count from 0."
    if port.kind != "slots" and len(port.positions) > 1:
        yield f"{where} has {len(port.positions)} positions; a port of kind {port.kind!r} has one, the first that it takes."


def _arrays(program: Program) -> Iterator[str]:
    n, m = program.num_nodes, program.num_arguments
    wanted = {"type": n, "ptr": n + 1, "src": m, "out": m, "feed": n, "edge": m}
    for name, length in wanted.items():
        array: Ints | None = getattr(program, name)
        if array is None:
            continue
        if array.ndim != 1 or array.dtype.kind != "i":
            yield f"{name} is {array.dtype} with {counted(array.ndim, 'dimension')}; it must be a flat array of integers."
        elif len(array) != length:
            yield f"{name} has {len(array)} entries; {counted(n, 'node')} with {counted(m, 'argument')} need {length}."


def _nodes(program: Program) -> Iterator[str]:
    ptr, kinds = program.ptr, len(program.types)
    bad = (program.type < 0) | (program.type >= kinds)
    if bad.any():
        node = int(bad.argmax())
        are = "is" if kinds == 1 else "are"
        yield f"node {node} has type {program.type[node]}, but there {are} {counted(kinds, 'node type')}."
    if ptr[0] != 0:
        yield f"ptr starts at {ptr[0]}; it must start at 0."
    if ptr[-1] != program.num_arguments:
        yield f"ptr ends at {ptr[-1]}; it must end at the number of arguments, {program.num_arguments}."
    falls = np.diff(ptr) < 0
    if falls.any():
        node = int(falls.argmax())
        yield f"ptr falls from {ptr[node]} to {ptr[node + 1]} at node {node}; it must never decrease."
    if program.feed is not None and (program.feed < 0).any():
        node = int((program.feed < 0).argmax())
        yield f"node {node} reads feed row {program.feed[node]}; feed rows count from 0."


def _arguments(program: Program) -> Iterator[str]:
    src, edge = program.src, program.edge
    bad = (src < EMPTY) | (src >= program.num_nodes)
    if bad.any():
        at = int(bad.argmax())
        yield f"{_argument(program, at)} reads node {src[at]}, but there are {counted(program.num_nodes, 'node')}."
    else:
        yield from _outputs(program)
    if edge is not None and (edge < EMPTY).any():
        at = int((edge < EMPTY).argmax())
        yield f"{_argument(program, at)} has edge row {edge[at]}; edge rows count from 0, -1 is none."


def _outputs(program: Program) -> Iterator[str]:
    src = program.src
    out = np.zeros_like(src) if program.out is None else program.out
    outputs = np.array([*(kind.outputs for kind in program.types), 0], dtype=np.int32)[program.type]
    filled = src >= 0
    bad = filled & ((out < 0) | (out >= outputs[src])) if len(outputs) else filled
    if bad.any():
        at = int(bad.argmax())
        has = counted(int(outputs[src[at]]), "output")
        yield f"{_argument(program, at)} reads output {out[at]} of node {src[at]}, whose type has {has}."
    bad = ~filled & (out != 0)
    if bad.any():
        at = int(bad.argmax())
        yield f"{_argument(program, at)} is empty but names output {out[at]}; empty arguments name output 0."


def _argument(program: Program, at: int) -> str:
    node = int(np.searchsorted(program.ptr, at, side="right")) - 1
    return f"argument {at - int(program.ptr[node])} of node {node}"


def _cycles(program: Program) -> Iterator[str]:
    reader = np.repeat(np.arange(program.num_nodes), np.diff(program.ptr))
    if (program.src < reader).all():
        return
    cycle = _find_cycle(program.ptr.tolist(), program.src.tolist())
    if cycle:
        shown = cycle if len(cycle) <= 6 else [*cycle[:3], "...", cycle[-1]]
        yield f"the arguments run in a cycle: {' reads '.join(f'{node}' for node in [*shown, cycle[0]])}."


def _find_cycle(ptr: list[int], src: list[int]) -> list[int]:
    """Nodes on a cycle, each reads the next; none if there is no cycle. Depth first, without recursion."""
    state = [_NEW] * (len(ptr) - 1)
    for root in range(len(state)):
        path, ahead = [root], [ptr[root]]
        if state[root] == _DONE:
            continue
        state[root] = _OPEN
        while path:
            node, at = path[-1], ahead[-1]
            if at == ptr[node + 1]:
                state[node] = _DONE
                path.pop()
                ahead.pop()
                continue
            ahead[-1] += 1
            target = src[at]
            if target >= 0 and state[target] == _OPEN:
                return path[path.index(target) :]
            if target >= 0 and state[target] == _NEW:
                state[target] = _OPEN
                path.append(target)
                ahead.append(ptr[target])
    return []
