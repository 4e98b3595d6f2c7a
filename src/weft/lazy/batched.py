"""`weft.batched`: per-example code, run once per example to record it, and computed batched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.batch import Batch
from weft.errors import TraceError, TypeMismatch
from weft.graph.placed import without_numbers
from weft.graph.program import Ints
from weft.graph.recording import References
from weft.graph.transforms import is_transformed
from weft.lazy.alone import run_alone
from weft.lazy.arguments import Argument, split
from weft.lazy.blame import name_example, name_path
from weft.lazy.cached import CachedBatch, clear
from weft.lazy.chains import Flags, Longs
from weft.lazy.changes import check_shown, check_unchanged
from weft.lazy.collating import RecordedBatch, collated, run_recorded
from weft.lazy.empty import Signature, empty, remember, signature
from weft.lazy.fibers import Fibers
from weft.lazy.flush import Flush, parted
from weft.lazy.given import known_leaves
from weft.lazy.gradients import are_trained, parameters_of
from weft.lazy.kinds import Kind
from weft.lazy.leftover import everything
from weft.lazy.little import is_little, note, noticing_draws, own_examples
from weft.lazy.nests import Structure
from weft.lazy.patches import UndoRecording
from weft.lazy.pools import Part, found_rows, taken
from weft.lazy.reached import leave_out_unreached
from weft.lazy.results import Gathered, Outcome, joined, separate, wanted_references
from weft.lazy.state import State, state_of
from weft.lazy.tape import Tape, active
from weft.lazy.views import Views
from weft.run.calls import Group, is_observed
from weft.run.options import Options

NO_TYPES: Ints = np.empty(0, np.int32)
GRANULARITIES = ("auto", "operator", "cell", "function")


class Batched:
    """A function of one example as a function of many: what `weft.batched` gives for a function."""

    def __init__(
        self, fn: Callable[..., Any], stack: bool, in_dims: Any, cache: Any, granularity: str, options: dict[str, Any]
    ) -> None:
        if granularity not in GRANULARITIES:
            raise TypeMismatch(f"granularity: expected one of {', '.join(map(repr, GRANULARITIES))}, got {granularity!r}")
        if cache is not None and not isinstance(cache, bool) and not (callable(cache) and isinstance(cache, Hashable)):
            raise TypeMismatch(f"cache: expected True or a function from an example to a key, got {cache!r}")
        self.fn, self.stack, self.in_dims, self.granularity = fn, stack, in_dims, granularity
        self.cache: Any = cache
        self.options = Options.of(options)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments that `weft.batched` was given."""
        return {
            "stack": self.stack,
            "in_dims": self.in_dims,
            "cache": self.cache,
            "granularity": self.granularity,
            **vars(self.options),
        }

    @staticmethod
    def of(fn: Callable[..., Any], settings: dict[str, Any]) -> Batched:
        own = {name: settings[name] for name in ("stack", "in_dims", "cache", "granularity")}
        return Batched(fn, **own, options={name: given for name, given in settings.items() if name not in own})

    @property
    def state(self) -> State:
        return state_of(self.fn, is_own=self.cache is not None and self.cache is not False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Batch):
            return self._recorded_batch(args[0])
        if torch._C._get_tracing_state() is not None:  # where sizes are tensors, too
            raise TraceError("torch.jit.trace cannot look into a batched call; trace the model for one example")
        count, items = split(args, self.in_dims)
        key = signature(self.fn, self.stack, items)
        if is_transformed():
            return self._one_by_one(count, items, kwargs, key)
        if active.tape is not None and not active.tape.paused:
            return self._nested(active.tape, count, items, kwargs, key)
        if count and self._is_little():
            with noticing_draws(self.state):
                return self._one_by_one(count, items, kwargs, key, own_examples)
        device = device_of(self.fn, items, count)
        if not count:
            return empty(self.state, key, device)
        if device == "meta":
            raise _without_numbers(self.fn, items)
        kind = Recorder if self.cache is None or self.cache is False else CachedBatch
        with UndoRecording(), UndoRecording():
            structure, result = kind(self, count, items, kwargs, device).run()
        if self.stack:
            remember(self.state, key, structure, result)
        return result

    def collate_examples(self, examples: Sequence[Any]) -> RecordedBatch:
        """What a `weft.data.Batch` of these examples holds."""
        return collated(self, examples)

    def _recorded_batch(self, batch: Batch) -> Any:
        if not isinstance(batch.content, RecordedBatch):
            raise TypeMismatch("this weft.data.Batch was collated for another network; use weft.data.collate with this one")
        device, key = device_of(self.fn, (), 0), signature(self.fn, self.stack, None)
        if not len(batch):
            return empty(self.state, key, device)
        if device == "meta":
            raise _without_numbers(self.fn, ())
        with UndoRecording(), UndoRecording():
            structure, result = run_recorded(self, batch.content, device)
        if self.stack:
            remember(self.state, key, structure, result)
        return result

    def cache_clear(self) -> None:
        """Forget the recordings that `cache=` has kept."""
        clear(self.state)

    def _nested(self, tape: Tape, count: int, items: Sequence[Argument], kwargs: dict[str, Any], key: Signature) -> Any:
        """Inside another recording: the examples are recorded there, and batched with everything else."""
        if not count:
            with tape.pause():
                found = empty(self.state, key, tape.device)
            return known_leaves(tape, found)
        with torch._C.DisableTorchFunction():  # rows of real tensors are taken now
            items = [item.on(tape) for item in items]
        assert tape.driver is not None
        results = tape.driver.inner(count, lambda i: self.fn(*[item(i) for item in items], **kwargs))
        if not self.stack:
            return results
        outcomes = [Outcome.of(result) for result in results]
        stacked = joined(outcomes, torch.stack, tape.device)
        remember(self.state, key, outcomes[0].structure, stacked)
        return known_leaves(tape, stacked)

    def _is_little(self) -> bool:
        is_plain = self.cache in (None, False) and self.granularity == "auto" and self.options == Options()
        return is_plain and not is_observed() and is_little(self.state)

    def _one_by_one(
        self,
        count: int,
        items: Sequence[Argument],
        kwargs: dict[str, Any],
        key: Signature,
        taken: Callable[[list[Any]], Sequence[Any]] = list,
    ) -> Any:
        """Inside a transform, where nothing can be recorded, and where it does not pay."""
        fn, results = self.fn, list[Any]()
        columns = [taken([item(example) for example in range(count)]) for item in items]
        try:
            for given in zip(*columns, strict=True):
                results.append(fn(*given, **kwargs))
        except Exception as error:
            name_example(error, len(results))
            name_path(error, error, fn)
            raise
        if not count:
            return empty(self.state, key, device_of(self.fn, items, count))
        if not self.stack:
            return results
        if {result.__class__ for result in results} == {Tensor} and len({(each.shape, each.dtype) for each in results}) == 1:
            return torch.stack(results)
        return joined([Outcome.of(result) for result in results], torch.stack, device_of(self.fn, items, count))


Batched.__call__ = torch.compiler.disable(Batched.__call__)  # type: ignore[method-assign]  # to torch.compile a graph break


class Recorder:
    """One call of a batched function: record, run, put the results together."""

    def __init__(self, batched: Batched, count: int, items: Sequence[Argument], kwargs: dict[str, Any], device: str) -> None:
        self.batched, self.count, self.items, self.kwargs, self.device = batched, count, items, kwargs, device
        self.state = batched.state

    def run(self) -> tuple[Structure, Any]:
        """The structure of one example's result, and the result of all."""
        outcomes, gathered = self.computed()
        if not self.batched.stack:
            return None, separate(outcomes, gathered)
        return outcomes[0].structure, joined(outcomes, gathered.column, self.device)

    def record(self) -> tuple[Fibers, list[Outcome]]:
        """Run the function for every example; flushes on the way are run."""
        self.state.surroundings()  # before the code runs: what it then assigns to its module is no part of the model
        tape = Tape(self.state, self.batched.granularity, self.device)
        if self.state.kept.get("needs values"):
            tape.track()
        fibers = Fibers(tape, self.count, self._start(tape), self.batched.options)
        return fibers, list(fibers.run())

    def _start(self, tape: Tape) -> Callable[[int], Any]:
        fn, items, kwargs = self.batched.fn, [item.on(tape) for item in self.items], self.kwargs
        if self.batched.granularity == "function":
            from weft.lazy.cells import _marked

            fn = _marked(fn)
        if len(items) == 1:
            only = items[0]
            return lambda i: Outcome.of(fn(only(i), **kwargs))
        return lambda i: Outcome.of(fn(*[item(i) for item in items], **kwargs))

    def computed(self) -> tuple[list[Outcome], Gathered]:
        fibers, outcomes = self.record()
        tape = fibers.tape
        try:
            wanted = wanted_references(outcomes)
            known = _known(tape, wanted)
            if run_alone(tape, wanted[~known], self.batched.options):
                known = _known(tape, wanted)
            groups = self._last_flush(tape, wanted, known)
            note(tape, self.count, fibers.flushes)
            return outcomes, Gathered(wanted, _with_earlier(tape, wanted, groups, known))
        finally:
            close(tape)

    def _last_flush(self, tape: Tape, wanted: References, known: Flags) -> list[Group]:
        if known.all():
            check_unchanged(tape)
            leave_out_unreached(tape, wanted, NO_TYPES)
            return []
        flush = Flush(everything(tape, wanted[~known]))
        groups = flush.groups(self.batched.options)
        leave_out_unreached(tape, wanted, flush.recorded.type)
        return groups


def close(tape: Tape) -> None:
    """The recording is over; values that were kept aside say so when they are used."""
    tape.ended = tape.ended or "done"
    tape.fast, tape.quick, tape.driver = {}, {}, None
    tape.results, tape.sources, tape.past, tape.taken, tape.fed, tape.values, tape.nodes = {}, [], [], None, [], None, []
    tape.handed, tape.gone, tape.stacks, tape.views = {}, [], [], Views()
    tape.type, tape.arguments, tape.left, tape.waits = [], [], [], bytearray()
    tape.data.clear()


def _known(tape: Tape, wanted: References) -> Flags:
    """Which of these have been computed."""
    return np.fromiter(map(tape.results.__contains__, wanted.tolist()), bool, len(wanted))


def _with_earlier(tape: Tape, wanted: Any, groups: list[Group], known: Flags) -> list[Group]:
    """Results of earlier flushes beside those of the last one."""
    earlier, later = np.flatnonzero(known).astype(np.int32), np.flatnonzero(~known).astype(np.int32)
    refs = wanted[earlier]
    check_shown(tape, refs.tolist())
    found = [Group(later[group.at], group.rows) for group in groups]
    where, first = found_rows(tape.results, refs), 0
    order = np.argsort(where.place, kind="stable")
    kinds: dict[Kind, list[tuple[Part, Longs]]] = {}
    for number, count in where.sources:
        source, some = tape.sources[number], slice(first, first + count)
        kinds.setdefault(source.kind, []).append(((source, where.rows[some]), order[some]))
        first += count
    for parts in kinds.values():
        at = np.concatenate([places for _, places in parts])
        group = Group(earlier[at], taken([part for part, _ in parts]))
        found += parted(group, are_trained(tape, refs[at].tolist())) if group.rows.requires_grad else [group]
    return found


def device_of(fn: Any, items: Sequence[Argument], count: int) -> str:
    """Where the model is; without one, where the first example's tensors are."""
    return next((device for _, device in _devices(fn, items if count else ())), "cpu")


def _devices(fn: Any, items: Sequence[Argument]) -> Iterator[tuple[str, str]]:
    """Who is where: the model, and the first example."""
    holder = getattr(fn, "__self__", fn)
    if isinstance(holder, nn.Module):
        for tensor in chain(parameters_of([holder]), holder.buffers()):
            yield "the model", str(tensor.device)
            break
    for item in items:
        found = item(0)
        if isinstance(found, Tensor):
            yield "the first example", str(found.device)
            break


def _without_numbers(fn: Any, items: Sequence[Argument]) -> TraceError:
    places = " and ".join(f"{who} is on {device}" for who, device in _devices(fn, items))
    return without_numbers(places)
