"""`cache=`: the recording of each example is kept by a key, so that later epochs do not run the function at all."""

from __future__ import annotations

import marshal
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from weft.errors import TraceError, TypeMismatch
from weft.graph.capture import fetch
from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, CallProgram, References
from weft.lazy.arguments import Argument
from weft.lazy.blame import WITHIN, name_example
from weft.lazy.chains import Recorded
from weft.lazy.changes import check_unchanged
from weft.lazy.coarsen import Coarse
from weft.lazy.fibers import Fibers
from weft.lazy.kinds import Kind
from weft.lazy.leftover import recorded
from weft.lazy.nests import Structure, build
from weft.lazy.results import Gathered, Outcome, joined, separate
from weft.lazy.rewrite import rewrite
from weft.lazy.state import State
from weft.lazy.tape import Tape
from weft.lazy.value import Value
from weft.run.blaming import run_blaming
from weft.run.calls import stacked
from weft.run.options import Options

if TYPE_CHECKING:
    from weft.lazy.batched import Batched


MOST_KEPT = 65536
"""How many recordings are kept for one function and one key function; the one that was not used for longest goes first."""


@dataclass(eq=False)
class Result:
    """What one example returns. `refs` are those results that are values, in order; `leaves` hold the others."""

    structure: Structure
    leaves: list[Any]
    refs: References
    kinds: tuple[Kind, ...]

    @property
    def is_plain(self) -> bool:
        return len(self.refs) == len(self.leaves)


@dataclass(eq=False)
class Kept(Result):
    """One example's recording and result, and the program made of it with the blocks of some version."""

    recorded: Recorded
    version: int = -1
    program: CallProgram | None = None
    wanted: References = field(default_factory=lambda: np.empty(0, np.int64))
    origin: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """The recorded call where each call of the program begins."""


class CachedBatch:
    """One call of a batched function whose examples' recordings are kept."""

    def __init__(self, batched: Batched, count: int, items: Sequence[Argument], kwargs: dict[str, Any], device: str) -> None:
        if kwargs:
            raise TypeMismatch(
                "cache=: keyword arguments are not part of the key; pass them as positional arguments or in a closure"
            )
        self.batched, self.count, self.items, self.device = batched, count, items, device
        self.state = batched.state
        self.joins = batched.granularity == "auto"

    def run(self) -> tuple[Structure, Any]:
        """The structure of one example's result, and the result of all."""
        kept = self._kept()
        programs = self._programs(kept)
        first = np.cumsum([0, *(program.num_calls for program in programs)])[:-1]
        shifted = [example.wanted + (int(at) << OUTPUT_BITS) for example, at in zip(kept, first, strict=True)]
        wanted = np.concatenate(shifted)

        def blame(call: int, error: Exception) -> None:
            example = int(np.searchsorted(first, call, "right")) - 1
            at = int(kept[example].origin[call - first[example]]) + getattr(error, WITHIN, 0)
            name_example(error, example)
            self.state.blame(error, int(kept[example].recorded.type[at]))

        groups = run_blaming(self.state.library, programs, wanted, self.batched.options, blame) if len(wanted) else []
        return kept[0].structure, assembled(kept, len(wanted), groups, self.batched.stack, self.device)

    def _programs(self, kept: list[Kept]) -> list[CallProgram]:
        """The programs of all examples, from the blocks that are known now."""
        with self.state.lock:
            coarse = Coarse.of(self.state, self.joins)
            for example in kept:
                if example.version < 0:
                    coarse.see(self.state, example.recorded, example.refs)
            for example in kept:
                if example.version != coarse.version:
                    made = rewrite(coarse, self.state, example.recorded, example.refs)
                    example.program = made.program(example.recorded.data)
                    example.wanted, example.origin = made.wanted, made.heads
                    example.version = coarse.version
        return [example.program for example in kept if example.program is not None]

    def _kept(self) -> list[Kept]:
        """Every example's recording; those that are not known yet are made now."""
        ambient = Tape(self.state, self.batched.granularity, self.device)
        common = (*keys_of_now(self.state, ambient), self.joins)
        store = _store(self.state, self.batched.cache)
        found = []
        for example in range(self.count):
            given = [item(example) for item in self.items]
            key = (*common, self._key(given, example))
            kept = store.get(key)
            if kept is None:
                kept = store[key] = self._record(example, given)
                if len(store) > MOST_KEPT:
                    store.popitem(last=False)
            else:
                store.move_to_end(key)
            found.append(kept)
        return found

    def _key(self, given: list[Any], example: int) -> Hashable:
        is_own = self.batched.cache is True
        chosen = given if is_own else self.batched.cache(*given)
        try:
            written = marshal.dumps(chosen, 2)  # in C, and it tells 1 from 1.0 and True
        except ValueError:
            written = b""
        if written and (b"s" not in written or _is_built_in(chosen)):  # arrays are written as bytes are, after an "s"
            return written if is_own else (written, _types(given))
        key = (tuple(chosen) if is_own else chosen, _types(chosen), _types(given))
        try:
            if any(issubclass(cls, Tensor) for level in key[1] for cls in level):
                raise TypeError("a tensor is another one in every epoch")
            hash(key)
        except TypeError as error:
            problem = TypeMismatch(
                "cache=True: an example is not hashable, or holds a tensor; "
                "pass cache=key_fn, a function from an example to a key"
                if is_own
                else "cache=key_fn: the key is not hashable, or holds a tensor; return numbers, strings and tuples of them"
            )
            name_example(problem, example)
            raise problem from error
        return key

    def _record(self, example: int, given: list[Any]) -> Kept:
        tape = Tape(self.state, self.batched.granularity, self.device)
        return record_kept(tape, self.batched.fn, given, example, self.batched.options, "cache=")


def keys_of_now(state: State, ambient: Tape) -> tuple[Hashable, ...]:
    """What decides, besides an example, how it is recorded."""
    return (ambient.world, ambient.ambient_grad, ambient.device, _modules(state))


def record_kept(tape: Tape, fn: Any, given: Sequence[Any], example: int, options: Options, why: str) -> Kept:
    """Record one example to its end, to be kept; `why` names who keeps it, in errors."""
    tape.keeper = why
    fibers = _Once(tape, 1, lambda _: Outcome.of(fn(*given)), options)
    try:
        outcome: Outcome = fibers.run()[0]
        _check(tape, outcome, why)
        check_unchanged(tape)
        values = [leaf for leaf in outcome.leaves if leaf.__class__ is Value]
        made, refs = recorded(tape, np.array([value._ref for value in values], np.int64))
    except BaseException as error:
        if example:
            _rename(error, example)
        raise
    tape.ended, tape.fast, tape.quick = "done", {}, {}
    leaves = [_VALUE if leaf.__class__ is Value else _own(leaf) for leaf in outcome.leaves]
    return Kept(outcome.structure, leaves, refs, tuple(value._kind for value in values), made)


def _check(tape: Tape, outcome: Outcome, why: str) -> None:
    fed = [row for rows in tape.data.values() for row in rows]
    for tensor in (*fed, *outcome.leaves):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise TraceError(
                f"{why}: an example's own tensor requires gradients, and a kept recording would hold its old graph; keep "
                f"what is trained in the model, or call without {why.strip('=')}"
            )


def assembled(kept: Sequence[Result], count: int, groups: Any, stack: bool, device: str) -> Any:
    """The result of the batch; `groups` hold the wanted values of all examples, in order, `count` of them."""
    alike = all(example.structure == kept[0].structure and example.kinds == kept[0].kinds for example in kept)
    if stack and alike and all(example.is_plain for example in kept):
        width = len(kept[0].refs)
        rows = np.arange(len(kept), dtype=np.int32) * width
        columns = [stacked(groups, rows + leaf) for leaf in range(width)]
        return build(kept[0].structure, iter(columns))
    outcomes, at = [], 0
    for example in kept:  # leaf by leaf, as without a cache; references are places among the wanted ones
        leaves: list[Any] = []
        kinds = iter(example.kinds)
        for leaf in example.leaves:
            if leaf is _VALUE:
                leaves.append(Value(None, at, next(kinds)))  # type: ignore[arg-type]  # of no tape
                at += 1
            else:
                leaves.append(_own(leaf))
        outcomes.append(Outcome(example.structure, leaves))
    gathered = Gathered(np.arange(count), groups)
    return joined(outcomes, gathered.column, device) if stack else separate(outcomes, gathered)


def _own(leaf: Any) -> Any:
    """What is kept is not changed by whoever writes into what was returned."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


class _KeptValue:
    """Where a value stands in a kept result."""


_VALUE = _KeptValue  # the class itself, which is the same in every process


class _Once(Fibers):
    """One example that must not ask for numbers."""

    def need(self, value: Value) -> None:
        keeper = value._tape.keeper
        raise TraceError(
            f"{keeper}: the code asked for the number in a Value (bool, float, int, item or tolist); what it does next would "
            "depend on numbers that change from epoch to epoch, so its recording cannot be kept: call without "
            f"{keeper.strip('=')}"
        )

    def sync(self, name: str) -> None:
        """Nothing to wait for: every example is recorded to its end."""


def _rename(error: BaseException, example: int) -> None:
    notes = getattr(error, "__notes__", [])
    if "in example 0" in notes:
        notes[notes.index("in example 0")] = f"in example {example}"


def _store(state: State, cache: Any) -> OrderedDict[Hashable, Kept]:
    """What was kept with these keys; it goes when the function that makes the keys goes."""
    if cache is True:
        return cast("OrderedDict[Hashable, Kept]", state.kept.setdefault("cache", OrderedDict()))
    stores: Any = state.kept.setdefault("cache by key", weakref.WeakKeyDictionary())
    return cast("OrderedDict[Hashable, Kept]", stores.setdefault(cache, OrderedDict()))


def _modules(state: State) -> int:
    """A number for the modules that the function reaches now, and whether each of them is training."""
    reached, objects, parts = state.kept.get("reached", (None, [], []))
    if (
        reached is None
        or not all(map(is_, map(fetch, chain(reached.objects, reached.tensors)), objects))
        or [len(module._modules) for module in reached.modules] != parts
    ):
        reached = state.look_again()
        parts = [len(module._modules) for module in reached.modules]
        objects = [fetch(place) for place in chain(reached.objects, reached.tensors)]
        state.kept["reached"] = (reached, objects, parts)
    numbers: dict[Hashable, int] = state.kept.setdefault("modules", {})
    modules = tuple(reached.modules)
    return numbers.setdefault((modules, tuple(module.training for module in modules)), len(numbers))


_BUILT_IN = frozenset((bool, int, float, complex, str, bytes, type(None), type(...), list, tuple, dict, set, frozenset))


def _is_built_in(nest: Any) -> bool:
    level = [nest]
    while level:
        if not _BUILT_IN.issuperset(map(type, level)):
            return False
        level = [part for item in level if isinstance(item, list | tuple | dict | set | frozenset) for part in _parts(item)]
    return True


def _parts(item: Any) -> Any:
    return (*item, *item.values()) if isinstance(item, dict) else item


def _types(nest: Any) -> Any:
    """The types in a nest, level by level: equal keys of different types are different examples."""
    found, level = [], [nest]
    while level:
        found.append(tuple(map(type, level)))
        level = [part for item in level if isinstance(item, list | tuple | dict) for part in _parts(item)]
    return tuple(found)


def clear(state: Any) -> None:
    """Forget all kept recordings."""
    for name in ("cache", "cache by key", "modules", "reached"):
        state.kept.pop(name, None)
