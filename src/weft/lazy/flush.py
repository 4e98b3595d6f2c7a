"""A flush: everything that was recorded since the last one runs as one batched computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from weft.graph.calls import CallType
from weft.graph.recording import CallProgram, References, Table
from weft.lazy.blame import WITHIN, name_example
from weft.lazy.chains import Flags, Layout, Longs
from weft.lazy.changes import check_shown, check_unchanged, refuse_change
from weft.lazy.coarsen import Coarse
from weft.lazy.gradients import are_trained, silent_types
from weft.lazy.kinds import Kind
from weft.lazy.leftover import Selection
from weft.lazy.pools import Part, handed
from weft.lazy.rewrite import Imports, rewrite
from weft.run.blaming import run_blaming
from weft.run.calls import Group
from weft.run.options import Options


@dataclass(frozen=True)
class Given:
    """Hands in what an earlier flush gave."""

    kind: Kind
    device: str

    def call_type(self) -> CallType:
        specs = (self.kind.spec,)
        return CallType("given", _cloned, (), specs, specs, device=self.device, hands_on=True)


def _cloned(tensor: Tensor) -> list[Tensor]:
    return [tensor.clone()]


def parted(group: Group, trained: Flags) -> list[Group]:
    """The results that are trained, and the others without gradients."""
    if trained.all():
        return [group]
    if not trained.any():
        return [Group(group.at, group.rows.detach())]
    places = (torch.from_numpy(np.flatnonzero(flags)).to(group.rows.device) for flags in (trained, ~trained))
    rows = (group.rows.index_select(0, next(places)), group.rows.detach().index_select(0, next(places)))
    return [Group(group.at[trained], rows[0]), Group(group.at[~trained], rows[1])]


class Flush:
    """One flush of a tape: its programs, and where its references are in them."""

    def __init__(self, selection: Selection) -> None:
        self.selection, self.tape, self.state = selection, selection.tape, selection.tape.state
        check_unchanged(self.tape)
        self.recorded, self.wanted = selection.division.others, selection.division.wanted
        self._find_handed()

    def _find_handed(self) -> None:
        """Where the results of earlier flushes are that are used, and which calls hand them in: source by source."""
        tape, division = self.tape, self.selection.division
        if tape.changes.shown:
            check_shown(tape, division.handed.tolist())
        self.rows, place, self.sources = division.found
        self._check_given()
        library, device = self.state.library, tape.device
        self.kinds = [library.number(Given(tape.sources[number].kind, device)) for number, _ in self.sources]
        self.learning = self._learning(place)
        self.imports = Imports(np.repeat(np.array(self.kinds, np.int32), [count for _, count in self.sources]), place)

    def _learning(self, place: Longs) -> Flags | None:
        """Which of the rows that are handed in are used by something that passes gradients on; None: all."""
        types = silent_types(self.state)
        if types is None or not len(place):
            return None
        silent = types[self.recorded.type]
        if not silent.any():
            return None
        layout = Layout(self.recorded, *self.state.widths())
        at = np.flatnonzero(layout.handed & ~silent[layout.consumer])
        found = np.zeros(len(place), bool)
        found[place[-self.recorded.arguments[at] - 1]] = True
        return None if found.all() else found

    def program(self, final: bool = True) -> tuple[CallProgram, References]:
        """What to run, and the wanted references in it."""
        state, recorded = self.state, self.recorded
        with state.lock:
            coarse = Coarse.of(state, self.tape.sites, b"" if final else self.selection.division.present.tobytes())
            self.main = main = rewrite(coarse, state, recorded, self.selection.division.chosen, self.imports)
        return main.program(self.selection.tables(), self._handed()), main.wanted

    def _check_given(self) -> None:
        """Nobody has written into what is handed in."""
        written = self.tape.changes.written
        for number, _ in self.sources:
            source = self.tape.sources[number]
            if source.is_written(written):
                refuse_change(source.kind.shape)

    def _handed(self) -> dict[tuple[int, int], Table]:
        """What the calls that hand in results of earlier flushes are fed."""
        parts: dict[int, list[Part]] = {}
        first = 0
        for (number, count), t in zip(self.sources, self.kinds, strict=True):
            parts.setdefault(t, []).append((self.tape.sources[number], self.rows[first : first + count]))
            first += count
        if self.learning is None:
            return {(t, 0): handed(found) for t, found in parts.items()}
        return {(t, 0): handed(found, self.learning[self.imports.types == t]) for t, found in parts.items()}

    def run(self, options: Options) -> None:
        """Run, keep the results, and let the tape go on after them."""
        self._keep(self.groups(options, final=False), options.backend == "reference")

    def groups(self, options: Options, final: bool = True) -> list[Group]:
        """Run everything; the results by kind. `final`: nothing will be recorded after it."""
        program, wanted = self.program(final)
        library = self.state.library
        found = run_blaming(library, [program], wanted, options, self.blame, final)
        return [part for group in found for part in self._told_apart(group)] if final else found

    def _told_apart(self, group: Group) -> list[Group]:
        """Results that require gradients, and those that would not in the loop, whatever the engine ran them with."""
        if not group.rows.requires_grad:
            return [group]
        refs = self.wanted[group.at]
        return parted(group, are_trained(self.tape, refs.tolist()))

    def _keep(self, groups: Sequence[Group], plain: bool) -> None:
        for group in groups:
            self.tape.keep(self.wanted[group.at].tolist(), group.rows, plain)
        node = next((group.rows.grad_fn for group in groups if group.rows.requires_grad), None)
        if isinstance(node, BackwardCFunction):  # calls that ran one by one are differentiated one by one
            self.tape.nodes.append(node)
        self.selection.leave()

    def blame(self, call: int, error: Exception) -> None:
        """Say in which example an error came up, and in which line."""
        call -= len(self.imports.types)
        if call >= 0:
            self.blame_call(int(self.main.heads[call]) + getattr(error, WITHIN, 0), error)

    def blame_call(self, at: int, error: Exception) -> None:
        """The same for one of the calls that were recorded and run."""
        at, calls = self.selection.position(at), self.selection.calls
        name_example(error, int(calls.example[at]))
        self.state.blame(error, int(calls.type[at]))
