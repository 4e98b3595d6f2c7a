"""Programs and plans computed on numbers that stand for terms: equal numbers, equal computations (but for 1 in 2**64).

A node's number is mixed from its type, its fed row and the numbers it reads; a gradient is a sum of numbers mixed by those
who read. `run_program` goes node by node and is the truth; `run_plan` does with a plan what the batched engine does: steps
write slices of arenas, ports gather by slice or index, gradients return along the plan's returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.graph.program import Program
from weft.plan.arguments import arguments
from weft.plan.levels import levels
from weft.plan.plan import NOT_A_SLICE, Group, Plan, Read, Return
from weft.plan.returns import returns

Numbers = npt.NDArray[np.uint64]

UNWRITTEN = np.uint64(0xDEAD)
"""What memory holds before anything is written to it."""


class Crash(Exception):
    """Something that a real engine would refuse: an index or a size out of range."""


def number(value: object) -> Numbers:
    return np.asarray(value).astype(np.int64).astype(np.uint64)


def mix(*parts: object) -> Numbers:
    mixed = np.full(1, 0x9E3779B97F4A7C15, dtype=np.uint64)
    for part in parts:
        here = part if isinstance(part, np.ndarray) and part.dtype == np.uint64 else number(part)
        mixed = (mixed ^ np.atleast_1d(here)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(32))
    return mixed


def bag(values: Numbers, offsets: npt.NDArray[np.integer]) -> Numbers:
    """The sum of each segment."""
    if (np.diff(offsets) < 0).any() or offsets[0] != 0 or offsets[-1] != len(values):
        raise Crash("segments")
    total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values)))
    return total[offsets[1:]] - total[offsets[:-1]]


def within(offsets: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Each element's place in its segment."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


@dataclass
class Results:
    """For every node and output its number, and its gradient."""

    values: Numbers
    gradients: Numbers

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Results)
        return np.array_equal(self.values, other.values) and np.array_equal(self.gradients, other.gradients)


def given_gradient(nodes: object, output: int) -> Numbers:
    """What comes to every output from outside."""
    return mix(1234, nodes, output)


def run_program(program: Program) -> Results:
    """One node at a time, straight from the definition of ports."""
    n, wide = program.num_nodes, max([1, *(kind.outputs for kind in program.types)])
    values, gradients = np.zeros((n, wide), np.uint64), np.zeros((n, wide), np.uint64)
    bases: dict[int, Numbers] = {}
    order = np.argsort(levels(program.ptr, program.src), kind="stable").tolist()
    for node in order:
        kind = program.types[program.type[node]]
        at = range(program.ptr[node], program.ptr[node + 1])
        out = [0 if program.out is None else int(program.out[a]) for a in at]
        read = [0 if program.src[a] < 0 else int(values[program.src[a], o]) for a, o in zip(at, out, strict=True)]
        edge = [-1 if program.edge is None else int(program.edge[a]) for a in at]
        filled = [bool(program.src[a] >= 0) for a in at]
        digests: list[object] = []
        for port in kind.ports:
            if port.kind == "slots":
                for position in port.positions:
                    there = position < len(at)
                    value = np.uint64(read[position] if there else 0)
                    digests += [np.array([value]), there and filled[position], edge[position] if there else -1]
            else:
                taken = [i for i in range(port.positions[0], len(at)) if filled[i]]
                parts = [
                    np.array([read[i]], np.uint64)
                    if port.kind == "sum"
                    else mix(np.array([read[i]], np.uint64), edge[i], place)
                    for place, i in enumerate(taken)
                ]
                digests.append(sum(parts, np.zeros(1, np.uint64)))
        feed = node if program.feed is None else int(program.feed[node])
        bases[node] = mix(int(program.type[node]), feed, *digests)
        for output in range(kind.outputs):
            values[node, output] = mix(bases[node], output)[0]
            gradients[node, output] = given_gradient(node, output)[0]
    for node in reversed(order):
        kind = program.types[program.type[node]]
        first, count = int(program.ptr[node]), int(program.ptr[node + 1] - program.ptr[node])
        back = mix(bases[node], *(gradients[node, output : output + 1] for output in range(kind.outputs)))
        for p, port in enumerate(kind.ports):
            if port.kind == "slots":
                sent = [(i, column) for column, i in enumerate(port.positions) if i < count]
            else:
                taken = [i for i in range(port.positions[0], count) if program.src[first + i] >= 0]
                sent = [(i, 0 if port.kind == "sum" else place) for place, i in enumerate(taken)]
            for i, place in sent:
                source = int(program.src[first + i])
                if source >= 0:
                    output = 0 if program.out is None else int(program.out[first + i])
                    gradients[source, output : output + 1] += mix(back, p, place)
    return Results(values, gradients)


def run_plan(plan: Plan) -> Results:
    """As the batched engine goes about it; raises where that would."""
    try:
        return _PlanRun(plan).run()
    except (IndexError, ValueError, KeyError, TypeError, OverflowError, StopIteration) as error:
        raise Crash(str(error)) from error


def part(array: Numbers, start: int, size: int) -> Numbers:
    if start < 0 or size < 0 or start + size > len(array):
        raise Crash("slice out of range")
    return array[start : start + size]


def select(array: Numbers, index: npt.NDArray[np.integer]) -> Numbers:
    if len(index) and (index.min() < 0 or index.max() >= len(array)):
        raise Crash("index out of range")
    return array[index]


class _PlanRun:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.program = plan, plan.program
        self.types = [t for t, rows in enumerate(plan.rows) if len(rows)]
        self.arenas: list[Numbers] = []
        for value_class in plan.classes:
            arena = np.full(value_class.rows + int(value_class.has_empty), UNWRITTEN)
            if value_class.has_empty:
                arena[-1] = 0
            self.arenas.append(arena)
        self.ports: dict[int, list[Read]] = {t: [] for t in self.types}
        for read in plan.reads:
            self.ports[read.type].append(read)
        self.base = {t: np.full(len(plan.rows[t]), UNWRITTEN) for t in self.types}
        self.sizes: dict[int, list[int]] = {}
        for t in self.types:
            lo, hi = plan.type_steps(t)
            self.sizes[t] = (hi - lo).tolist()
            if sum(self.sizes[t]) != len(plan.rows[t]) or min(self.sizes[t], default=0) < 0:
                raise Crash("steps do not cover the rows")

    def run(self) -> Results:
        for group in self.plan.groups:
            self._forward(group)
        n, wide = self.program.num_nodes, max([1, *(kind.outputs for kind in self.program.types)])
        values, gradients = np.zeros((n, wide), np.uint64), np.zeros((n, wide), np.uint64)
        for t in self.types:
            for output in range(self.program.types[t].outputs):
                rows = select(self.arenas[self.plan.class_of[t, output]], self.plan.class_row[t, output])
                if len(rows) == n:
                    values[:, output] = select(rows, self.plan.row)
                else:
                    values[self.plan.rows[t], output] = rows
        self.gradient = {
            (t, output): given_gradient(self.plan.rows[t], output).copy()
            for t in self.types
            for output in range(self.program.types[t].outputs)
        }
        self.returned: dict[tuple[int, int], Numbers] = {}
        for number_ in range(len(self.plan.groups) - 1, -1, -1):
            self._backward(number_, self.plan.groups[number_])
        for (t, output), rows in self.gradient.items():
            gradients[self.plan.rows[t], output] = rows
        return Results(values, gradients)

    # Forward.

    def _forward(self, group: Group) -> None:
        whole = {(t, r.port): self._gather(r) for t in group.types for r in self.ports[t] if not r.recurrent}
        done = dict.fromkeys(group.types, 0)
        start = dict.fromkeys(group.types, 0)
        for t in group.step_type.tolist():
            step, lo = done[t], start[t]
            hi = lo + self.sizes[t][step]
            digests: list[object] = []
            for read in self.ports[t]:
                values = self._gather(read, step) if read.recurrent else self._cut(read, whole[t, read.port], lo, hi)
                digests += self._digest(read, values, lo, hi)
            nodes = self.plan.rows[t][lo:hi]
            feed = nodes if self.program.feed is None else self.program.feed[nodes]
            base = self.base[t][lo:hi] = mix(t, feed, *digests)
            for output in range(self.program.types[t].outputs):
                self._write(t, output, step, lo, mix(base, output))
            done[t], start[t] = step + 1, hi
        if any(done[t] != len(self.sizes[t]) for t in group.types):
            raise Crash("steps left over")

    def _gather(self, read: Read, step: int | None = None) -> Numbers:
        """What a port reads, at once or in one step."""
        elements = read.offsets[read.bounds] if read.offsets is not None else read.bounds * read.width
        if (np.diff(elements) < 0).any() or elements[-1] - elements[0] != len(read.index):
            raise Crash("pieces do not cover the index")
        if step is not None and len(read.bounds) != len(self.sizes[read.type]) + 1:
            raise Crash("pieces are not the steps")
        if read.value_class < 0:
            size = len(read.index) if read.kind != "sum" or read.offsets is None else len(read.offsets) - 1
            return np.zeros(size, np.uint64)
        arena = self.arenas[read.value_class]
        first, last = (elements[0], elements[-1]) if step is None else (elements[step], elements[step + 1])
        index = read.index[first - elements[0] : last - elements[0]]
        if read.kind == "sum":
            assert read.offsets is not None
            lo, hi = (0, len(read.offsets) - 1) if step is None else (read.bounds[step], read.bounds[step + 1])
            return bag(select(arena, index), read.offsets[lo : hi + 1] - read.offsets[lo])
        if (read.slices != NOT_A_SLICE).all() and (step is not None or len(read.slices) == 1):
            return part(arena, int(read.slices[0 if step is None else step]), len(index))
        return select(arena, index)

    def _cut(self, read: Read, values: Numbers, lo: int, hi: int) -> Numbers:
        if read.kind == "slots":
            return part(values, lo * read.width, (hi - lo) * read.width)
        if read.kind == "sum":
            return part(values, lo, hi - lo)
        assert read.offsets is not None
        return part(values, int(read.offsets[lo]), int(read.offsets[hi] - read.offsets[lo]))

    def _digest(self, read: Read, values: Numbers, lo: int, hi: int) -> list[object]:
        edge = self.program.edge
        if read.kind == "sum":
            return [values]
        if read.kind == "slots":
            table = values.reshape(hi - lo, read.width)
            rows = self.plan.classes[read.value_class].rows if read.value_class >= 0 else 0
            filled = (read.index.reshape(-1, read.width) < rows)[lo:hi]
            at = arguments(self.plan, read).reshape(-1, read.width)[lo:hi]
            rows_of = np.full(at.shape, -1) if edge is None else np.where(at >= 0, edge[at] if len(edge) else -1, -1)
            columns = [(table[:, c], filled[:, c], rows_of[:, c]) for c in range(read.width)]
            return [item for column in columns for item in column]
        assert read.offsets is not None
        offsets = read.offsets[lo : hi + 1] - read.offsets[lo]
        at = arguments(self.plan, read)[read.offsets[lo] : read.offsets[hi]]
        if len(at) != len(values) or (np.diff(offsets) < 0).any() or (len(at) and at.min() < 0):
            raise Crash("edges")
        rows_of = np.full(len(at), -1) if edge is None else edge[at]
        return [bag(mix(values, rows_of, within(offsets)) if len(at) else values, offsets)]

    def _write(self, t: int, output: int, step: int, lo: int, values: Numbers) -> None:
        rows, arena = self.plan.class_row[t, output], self.arenas[self.plan.class_of[t, output]]
        if (np.diff(rows) == 1).all():
            part(arena, int(rows[0]) + lo, len(values))[:] = values
        else:
            part(arena, int(rows[self.plan.type_steps(t)[0][step]]), len(values))[:] = values

    # Backward.

    def _backward(self, number_: int, group: Group) -> None:
        backs = [(read, returns(self.plan).get((read.type, read.port, number_))) for read in self.plan.reads]
        outer = [(read, back) for read, back in backs if back is not None and not read.recurrent]
        inner = [(read, back) for read, back in backs if back is not None and read.recurrent and read.type in group.types]
        outer += [(read, back) for read, back in backs if back and read.recurrent and read.type not in group.types]
        for t in group.types:
            for output in range(self.program.types[t].outputs):
                for read, back in outer:
                    if read.value_class == self.plan.class_of[t, output]:
                        sent = self.returned[read.type, read.port]
                        rows = self._pull(read, back, 0, sent if read.recurrent else sent[:-1])
                        self.gradient[t, output] += select(rows, self.plan.class_row[t, output] - back.first)
            for read in self.ports[t]:
                total = len(read.offsets) - 1 if read.kind == "sum" and read.offsets is not None else len(read.index)
                self.returned[t, read.port] = np.concatenate((np.full(total, UNWRITTEN), np.zeros(1, np.uint64)))
        left = {t: len(self.sizes[t]) for t in group.types}
        ends = {t: len(self.plan.rows[t]) for t in group.types}
        for t in reversed(group.step_type.tolist()):
            left[t] -= 1
            hi = ends[t]
            lo = ends[t] = hi - self.sizes[t][left[t]]
            columns = []
            for output in range(self.program.types[t].outputs):
                mine = self.gradient[t, output][lo:hi]
                for read, back in inner:
                    if read.value_class == self.plan.class_of[t, output]:
                        start = int(self.plan.class_row[t, output][self.plan.type_steps(t)[0][left[t]]])
                        piece = (back.bounds[:-1] + back.first).tolist().index(start)
                        mine += self._pull(read, back, piece, self.returned[read.type, read.port])
                columns.append(mine)
            self._send(t, lo, hi, mix(self.base[t][lo:hi], *columns))

    def _pull(self, read: Read, back: Return, piece: int, rows: Numbers) -> Numbers:
        lo, hi = int(back.bounds[piece]), int(back.bounds[piece + 1])
        if back.nothing[piece]:
            return np.zeros(hi - lo, np.uint64)
        if back.slices[piece] != NOT_A_SLICE:
            return part(rows, int(back.slices[piece]), hi - lo)
        if back.single is not None and (read.recurrent or len(rows) > back.single.max()):
            return select(rows, back.single[lo:hi])
        index, ends = back.bags()
        offsets = ends[lo : hi + 1]
        return bag(select(rows, index[offsets[0] : offsets[-1]]), offsets - offsets[0])

    def _send(self, t: int, lo: int, hi: int, back: Numbers) -> None:
        for read in self.ports[t]:
            rows = self.returned[t, read.port]
            if read.kind == "slots":
                sent = np.stack([mix(back, read.port, column) for column in range(read.width)], axis=1).reshape(-1)
                part(rows, lo * read.width, len(sent))[:] = sent
            elif read.kind == "sum":
                part(rows, lo, hi - lo)[:] = mix(back, read.port, 0)
            elif len(read.index):
                assert read.offsets is not None
                offsets = read.offsets[lo : hi + 1] - read.offsets[lo]
                sent = mix(np.repeat(back, np.diff(offsets)), read.port, within(offsets))
                part(rows, int(read.offsets[lo]), int(offsets[-1]))[:] = sent[: int(offsets[-1])]
