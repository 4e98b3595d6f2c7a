"""A flush: everything that was recorded since the last one runs as one batched computation."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from weft.errors import TraceError
from weft.graph.capture import Surroundings, fetch
from weft.graph.recording import OUTPUT_BITS, CallProgram, References, Table, table
from weft.lazy.blame import WITHIN, name_example, name_site
from weft.lazy.chains import LOW, Longs, Recorded
from weft.lazy.coarsen import coarse_program
from weft.lazy.gradients import grad_flags
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.leftover import Leftover
from weft.lazy.ops import Feed, Op
from weft.lazy.tape import Tape
from weft.run.blaming import run_blaming
from weft.run.calls import Group
from weft.run.options import Options


class Rows:
    """Results of one kind from one flush."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.kind = kind_of(rows.shape[1:], rows.dtype)
        self._rows: list[Tensor | None] | None = None
        self._numbers: list[Any] | None = None

    def row(self, at: int) -> Tensor:
        """One row as a tensor of its own: writing into it changes no other."""
        if self._rows is None:
            self._rows = [None] * len(self.rows)
            self._parts = self.rows.unbind(0)
        found = self._rows[at]
        if found is None:
            found = self._rows[at] = self._parts[at].clone()
        return found

    def numbers(self, at: int) -> Any:
        """The numbers of one row, as Python has them."""
        if self.is_changed(at):
            return self.row(at).tolist()
        if self._numbers is None:
            self._numbers = self.rows.detach().tolist()
        return self._numbers[at]

    def may_change(self) -> bool:
        """Whether rows were given out as tensors."""
        return self._rows is not None

    def ready(self) -> list[Any] | None:
        """The numbers of all rows, where they were asked for before and nobody can have changed them."""
        return self._numbers if self._rows is None else None

    def is_changed(self, at: int) -> bool:
        """Whether somebody has written into the tensor of that row."""
        found = None if self._rows is None else self._rows[at]
        return found is not None and not found.is_inference() and found._version != 0


def _identity(tensor: Tensor) -> Tensor:
    return tensor.clone()


_given: dict[tuple[Kind, str], Op] = {}


def given_op(kind: Kind, device: str) -> Op:
    """The operation that hands in what an earlier flush gave."""
    found = _given.get((kind, device))
    if found is None:
        found = _given[kind, device] = Op("given", _identity, ((Feed(0),), {}), (), (kind,), device=device)
    return found


class Flush:
    """One flush of a tape: its programs, and where its references are in them."""

    def __init__(self, tape: Tape, wanted: References, left: Leftover | None = None) -> None:
        self.tape, self.state = tape, tape.state
        self.handed = len(tape.imports)
        self.given = [tape.results[ref] for ref in tape.imported_refs]
        self.sources = {id(rows): rows for rows, _ in self.given}
        self._check_given()
        _check_unchanged(tape)
        self.recorded = recorded(tape)
        self.left, self.wanted = left, wanted
        if left is not None:
            self.recorded = left.others(self.recorded)
            self.wanted = wanted[~left.left[(wanted - tape.floor) >> OUTPUT_BITS]]
        self._flags: Any = None

    def programs(self) -> tuple[list[CallProgram], References]:
        """What to run, and the wanted references in it."""
        tape = self.tape
        chosen = self.wanted - tape.floor
        if self.left is not None:
            chosen = self.left.rest[chosen >> OUTPUT_BITS] << OUTPUT_BITS | chosen & LOW
        main, wanted, self.origin = coarse_program(self.state, self.recorded, chosen, tape.sites)
        if not self.handed:
            return [main], wanted
        imports, place = self._imports()
        # Merging adds the number of imports to every reference: it is taken off here from those that name imports.
        arguments, below = main.arguments.copy(), main.arguments < 0
        arguments[below] = (place[-arguments[below] - 1] - self.handed) << OUTPUT_BITS
        main = CallProgram(main.type, arguments, main.further, main.data)
        return [imports, main], wanted + (self.handed << OUTPUT_BITS)

    def _check_given(self) -> None:
        """Nobody has written into what is handed in."""
        if any(rows.may_change() for rows in self.sources.values()):
            for rows, row in self.given:
                if rows.is_changed(row):
                    _refuse_change(rows.kind.shape)

    def _imports(self) -> tuple[CallProgram, Longs]:
        """The results of earlier flushes that are used again, one call each, source by source; and where each of them is."""
        number_of = {key: at for at, key in enumerate(self.sources)}
        all_rows, places = zip(*self.given, strict=True)
        which = np.array([*map(number_of.__getitem__, map(id, all_rows))])
        order = np.argsort(which, kind="stable")
        counts, rows = np.bincount(which).tolist(), np.array(places)[order]
        types: list[int] = []
        parts: dict[tuple[int, int], list[Tensor]] = {}
        first = 0
        for source, count in zip(self.sources.values(), counts, strict=True):
            number = self.state.library.number(given_op(source.kind, self.tape.device))
            types += [number] * count
            index = torch.from_numpy(rows[first : first + count]).to(source.rows.device)
            parts.setdefault((number, 0), []).append(source.rows.index_select(0, index))
            first += count
        tables: dict[tuple[int, int], Table] = {
            key: found[0] if len(found) == 1 else torch.cat(found) for key, found in parts.items()
        }
        place = np.empty(self.handed, np.int64)
        place[order] = np.arange(self.handed)
        return CallProgram(np.array(types, np.int32), np.empty(0, np.int64), np.empty(0, np.int32), tables), place

    def run(self, options: Options) -> None:
        """Run, keep the results, and let the tape go on after them."""
        self._keep(self.groups(options, final=False))

    def groups(self, options: Options, final: bool = True) -> list[Group]:
        """Run everything; the results by kind. `final`: nothing will be recorded after it."""
        programs, wanted = self.programs()
        library = self.state.library
        found = run_blaming(library, programs, wanted, options, self.blame, final)
        return found if not self._cuts_gradients() else [part for group in found for part in self._detached(group)]

    def _detached(self, group: Group) -> list[Group]:
        """What was recorded without gradients has none, whatever the engine ran it with."""
        if not group.rows.requires_grad:
            return [group]
        if self._flags is None:
            self._flags = np.array(grad_flags(self.tape))
        trained = self._flags[(self.wanted[group.at] - self.tape.floor) >> OUTPUT_BITS]
        if trained.all():
            return [group]
        if not trained.any():
            return [Group(group.at, group.rows.detach())]
        rows = group.rows[torch.from_numpy(np.flatnonzero(trained))]
        others = group.rows.detach()[torch.from_numpy(np.flatnonzero(~trained))]
        return [Group(group.at[trained], rows), Group(group.at[~trained], others)]

    def _cuts_gradients(self) -> bool:
        ops = (self.state.fines[t] for t in set(self.tape.type))
        return any(op.setting.detached or op.name == "detach" for op in ops)

    def _keep(self, groups: Sequence[Group]) -> None:
        tape = self.tape
        for group in groups:
            refs = self.wanted[group.at].tolist()
            tape.results.update(zip(refs, zip(repeat(Rows(group.rows)), range(len(refs)), strict=False), strict=True))
        if self.left is not None:
            self.left.take_off(tape)
        advance(tape)

    def blame(self, call: int, error: Exception) -> None:
        """Say in which example an error came up, and in which line."""
        call -= self.handed
        if call >= 0:
            at = int(self.origin[call]) + getattr(error, WITHIN, 0)
            at = at if self.left is None else int(np.flatnonzero(~self.left.left)[at])
            name_example(error, self.example_of(at))
            name_site(error, self.state.sites[self.tape.type[at]])

    def example_of(self, call: int) -> int:
        bounds = [start for start, _ in self.tape.bounds]
        return self.tape.bounds[max(int(np.searchsorted(bounds, call, "right")) - 1, 0)][1] if bounds else 0


def recorded(tape: Tape) -> Recorded:
    """What the tape holds since the last flush; references count from its first call, those handed in are negative."""
    arguments = np.array(tape.arguments, np.int64)
    arguments -= np.where(arguments >= 0, tape.floor, 0)
    data: dict[tuple[int, int], Table] = {}
    for number, rows in tape.data.items():
        feeds = tape.state.fines[number].feeds
        for i, kind in enumerate(feeds):
            data[number, i] = table(rows[i :: len(feeds)], kind.dtype)
    starts = np.zeros(len(tape.type) + 1, bool)
    starts[[0, -1, *(call for call, _ in tape.bounds)]] = True
    return Recorded(np.array(tape.type, np.int32), arguments, np.array(tape.further, np.int32), data, starts)


def advance(tape: Tape) -> None:
    """Everything recorded so far has been run."""
    tape.past.append(tape.segment())
    tape.floor = tape.next
    tape.type, tape.arguments, tape.further = [], [], []
    tape.data = defaultdict(list)
    tape.imports, tape.imported_refs, tape.fed, tape.bounds, tape.changed = {}, [], [], [], {}
    tape.held = []
    if tape.values is not None:
        tape.values.clear()


def alive(tape: Tape) -> References:
    """References of the values that somebody still holds; of all there are where that is not known."""
    if tape.values is None:
        outputs = [len(tape.state.fines[number].outs) for number in tape.type]
        calls = np.repeat(np.arange(len(outputs)), outputs)
        first = np.repeat(np.cumsum([0, *outputs])[:-1], outputs)
        refs: References = tape.floor + (calls << OUTPUT_BITS) + np.arange(len(calls)) - first
        return refs
    tape.settle_all()
    counts = list(map(sys.getrefcount, tape.values))
    floor = tape.floor
    tape.held = [value for value, count in zip(tape.values, counts, strict=True) if count > _UNHELD and value._ref >= floor]
    return np.unique(np.array([value._ref for value in tape.held], np.int64))


_UNHELD = next(map(sys.getrefcount, [object()]))
"""What the count of references is where only a list holds an object."""


def _check_unchanged(tape: Tape) -> None:
    for tensor, version in tape.fed:
        if tensor._version != version:
            _refuse_change(tensor.shape)
    if tape.changed:
        _check_model_unchanged(tape)


def _refuse_change(shape: Sequence[int]) -> NoReturn:
    raise TraceError(
        f"a tensor of shape {list(shape)} was written into after a recorded operation had used it; use .clone() before writing"
    )


def _check_model_unchanged(tape: Tape) -> None:
    """What was recorded runs with the model as it is now, so what was recorded before a change must not use what changed."""
    last = max(calls for _, _, calls in tape.changed.values())
    first = {number: at for at, number in reversed(list(enumerate(tape.type[:last])))}
    for number, at in first.items():
        op = tape.state.fines[number]
        for place in Surroundings().add(*op.owners).tensors:
            tensor, name, calls = tape.changed.get(id(fetch(place)), (None, "", 0))
            if tensor is not None and at < calls:
                raise TraceError(
                    f"{name} changed a tensor of the model of shape {list(tensor.shape)}, which {op.name} uses in the same "
                    "recording and would see as it is at the end; change it before or after the batched call, or use .clone()"
                )
