"""A flush: everything that was recorded since the last one runs as one batched computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from weft.graph.recording import OUTPUT_BITS, CallProgram, References, Table
from weft.graph.uncast import cat
from weft.lazy.blame import WITHIN, name_example, name_site
from weft.lazy.chains import Flags, Longs
from weft.lazy.changes import check_shown, check_unchanged, refuse_change
from weft.lazy.coarsen import Coarse
from weft.lazy.gradients import are_trained
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.leftover import Selection
from weft.lazy.ops import Feed, Op
from weft.lazy.pools import ROW_BITS, places_of
from weft.lazy.rewrite import Rewritten, rewrite
from weft.plan.schedule import PlanCache
from weft.run.blaming import run_blaming
from weft.run.calls import Group
from weft.run.options import Options


def _identity(tensor: Tensor) -> Tensor:
    return tensor.clone()


MOST_FLUSHES = 256
"""For so many flushes it is kept what their recordings became."""

_given: dict[tuple[Kind, str], Op] = {}


def given_op(kind: Kind, device: str) -> Op:
    """The operation that hands in what an earlier flush gave."""
    found = _given.get((kind, device))
    if found is None:
        found = _given[kind, device] = Op("given", _identity, ((Feed(0),), {}), (), (kind,), device=device)
    return found


@dataclass(frozen=True, eq=False)
class Merged:
    """What a flush runs, but for the tensors that it is given."""

    imports: CallProgram
    """The calls that hand in results of earlier flushes."""
    main: Rewritten
    order: Longs
    """In which order the results that are handed in are."""


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
        self.recorded, self.wanted = selection.division.others, selection.wanted
        self._find_handed()

    def _find_handed(self) -> None:
        """Which results of earlier flushes are used, and where they are."""
        arguments = self.recorded.arguments
        used = np.zeros(len(self.selection.handed), bool)
        used[-arguments[arguments < 0] - 1] = True
        refs = self.selection.handed[used].tolist()
        self.handed, self.slot = len(refs), np.cumsum(used) - 1
        check_shown(self.tape, refs)
        self.source, self.row = places_of(self.tape.results, refs)
        self.sources = np.flatnonzero(np.bincount(self.source)).tolist()
        self._check_given()

    def programs(self, final: bool = True) -> tuple[list[CallProgram], References]:
        """What to run, and the wanted references in it."""
        division = self.selection.division
        self.merged = merged = self._merged(division.now(division.wanted), final)
        main = merged.main.program(self.selection.tables())
        if not self.handed:
            return [main], merged.main.wanted
        return [replace(merged.imports, data=self._handed(merged)), main], merged.main.wanted

    def _merged(self, chosen: References, final: bool) -> Merged:
        """As it was for the last recording of this structure, if nothing has been learned since."""
        state, recorded = self.state, self.recorded
        with state.lock:
            coarse = Coarse.of(state, self.tape.sites, b"" if final else np.flatnonzero(np.bincount(recorded.type)).tobytes())
            known: PlanCache = state.kept.setdefault("flushes", PlanCache(MOST_FLUSHES))
            kinds = tuple([self.tape.sources[number].kind for number in self.sources])
            key = (*recorded.key, chosen.tobytes(), self.source.tobytes(), kinds, self.tape.device)
            found = known.find((coarse, coarse.version, *key)) or self._joined(rewrite(coarse, state, recorded, chosen))
            known.add((coarse, coarse.version, *key), found)  # by the version after the rewriting, which may have learned more
            assert isinstance(found, Merged)
            return found

    def _joined(self, main: Rewritten) -> Merged:
        """With the results of earlier flushes in front, one call each, source by source."""
        order = np.argsort(self.source, kind="stable")
        numbers = np.zeros(len(self.tape.sources), np.int32)
        for at in self.sources:
            numbers[at] = self.state.library.number(given_op(self.tape.sources[at].kind, self.tape.device))
        none = np.empty(0, np.int64)
        imports = CallProgram(numbers[self.source[order]], none, none.astype(np.int32), {})
        place = np.empty(self.handed, np.int64)
        place[order] = np.arange(self.handed)
        # Merging adds the number of imports to every reference: it is taken off here from those that name imports.
        arguments, below = main.calls.arguments.copy(), main.calls.arguments < 0
        arguments[below] = (place[self.slot[-arguments[below] - 1]] - self.handed) << OUTPUT_BITS
        calls = CallProgram(main.calls.type, arguments, main.calls.further, {})
        return Merged(imports, replace(main, calls=calls, wanted=main.wanted + (self.handed << OUTPUT_BITS)), order)

    def _check_given(self) -> None:
        """Nobody has written into what is handed in."""
        written = self.tape.changes.written
        for source in map(self.tape.sources.__getitem__, self.sources):
            if source.is_written(written):
                refuse_change(source.kind.shape)

    def _handed(self, merged: Merged) -> dict[tuple[int, int], Table]:
        """What the calls that hand in results of earlier flushes are fed."""
        counts, rows = np.bincount(self.source)[self.sources].tolist(), self.row[merged.order]
        parts: dict[tuple[int, int], list[Tensor]] = {}
        first = 0
        for number, count in zip(self.sources, counts, strict=True):
            kind = int(merged.imports.type[first])
            parts.setdefault((kind, 0), []).append(self.tape.sources[number].take(rows[first : first + count]))
            first += count
        return {key: found[0] if len(found) == 1 else cat(found) for key, found in parts.items()}

    def run(self, options: Options) -> None:
        """Run, keep the results, and let the tape go on after them."""
        self._keep(self.groups(options, final=False), options.backend == "reference")

    def groups(self, options: Options, final: bool = True) -> list[Group]:
        """Run everything; the results by kind. `final`: nothing will be recorded after it."""
        programs, wanted = self.programs(final)
        library = self.state.library
        found = run_blaming(library, programs, wanted, options, self.blame, final)
        return [part for group in found for part in self._told_apart(group)] if final else found

    def _told_apart(self, group: Group) -> list[Group]:
        """Results that require gradients, and those that would not in the loop, whatever the engine ran them with."""
        if not group.rows.requires_grad:
            return [group]
        refs = self.wanted[group.at]
        return parted(group, are_trained(self.tape, refs.tolist()))

    def _keep(self, groups: Sequence[Group], plain: bool) -> None:
        tape = self.tape
        for group in groups:
            number, pool = tape.pool(kind_of(group.rows.shape[1:], group.rows.dtype), plain)
            first = number << ROW_BITS | pool.add(group.rows)
            refs = self.wanted[group.at].tolist()
            tape.results.update(zip(refs, range(first, first + len(refs)), strict=True))
        self.selection.leave()

    def blame(self, call: int, error: Exception) -> None:
        """Say in which example an error came up, and in which line."""
        call -= self.handed
        if call >= 0:
            at = int(self.merged.main.heads[call]) + getattr(error, WITHIN, 0)
            at = self.selection.position(at)
            calls = self.selection.calls
            name_example(error, int(calls.example[at]))
            name_site(error, self.state.sites[int(calls.type[at])])
