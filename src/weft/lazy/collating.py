"""Batches of per-example code that are recorded elsewhere, as `weft.data.collate` does it in the workers of a loader.

What travels is what was recorded: numbers of kinds of calls, references, fed data. The numbers are those of the process that
recorded. To translate them, a batch brings along a few of its examples, the *witnesses*, that show every kind of call in it.
Where a number is not known yet, the witness is recorded here, too: the same code does the same calls in the same order.

    there    types  4 4 7 2     here, the same example    types  0 0 3 1      so  4 → 0,  7 → 3,  2 → 1
"""

from __future__ import annotations

import copy
import inspect
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import TraceError, TypeMismatch
from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS, CallProgram, Table, merge_calls
from weft.lazy.cached import Kept, Result, assembled, keys_of_now, record_kept
from weft.lazy.chains import Recorded
from weft.lazy.coarsen import Coarse
from weft.lazy.nests import Structure
from weft.lazy.rewrite import interleaved, rewrite
from weft.lazy.state import State, state_of
from weft.lazy.tape import Tape
from weft.run.calls import run_calls

if TYPE_CHECKING:
    from weft.lazy.batched import Batched


@dataclass(frozen=True, eq=False)
class RecordedBatch:
    """What a `weft.data.Batch` of a batched function holds."""

    maker: str
    """Whose numbers the types are."""
    calls: CallProgram
    sizes: tuple[int, ...]
    """How many calls each example made."""
    results: tuple[Result, ...]
    witnesses: tuple[tuple[int, tuple[Any, ...]], ...]
    """Examples, with their numbers in the batch, that show every type."""
    network: str
    """What was recorded, for errors."""

    def to(self, device: torch.device | str) -> RecordedBatch:
        """The same with its tensors on a device."""
        data: dict[tuple[int, int], Table] = {
            key: rows.to(device) if isinstance(rows, Tensor) else rows for key, rows in self.calls.data.items()
        }
        return replace(self, calls=replace(self.calls, data=data))


def collated(batched: Batched, examples: Sequence[Any]) -> RecordedBatch:
    """Record the examples, wherever this is; nothing is computed."""
    fn = _on_no_device(batched.fn)
    state = state_of(fn)
    state.surroundings()
    given = [arguments_of(fn, example) for example in examples]
    kept = [_recorded(batched, state, fn, "cpu", each, at) for at, each in enumerate(given)]
    shown: set[int] = set()
    witnesses = []
    for at, example in enumerate(kept):
        types = set(example.recorded.type.tolist())
        if not types <= shown:
            witnesses.append((at, given[at]))
            shown |= types
    if not kept:
        return RecordedBatch(_maker(state), CallProgram(*_NOTHING), (), (), (), _name(fn))
    programs = [CallProgram(each.type, each.arguments, each.further, each.data) for each in (one.recorded for one in kept)]
    results = tuple(Result(one.structure, one.leaves, one.refs, one.kinds) for one in kept)
    sizes = tuple(program.num_calls for program in programs)
    return RecordedBatch(_maker(state), merge_calls(programs), sizes, results, tuple(witnesses), _name(fn))


_NOTHING: Any = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32), {})


def run_recorded(batched: Batched, batch: RecordedBatch, device: str) -> tuple[Structure, Any]:
    """The structure of one example's result, and the result of all."""
    state, joins = batched.state, batched.granularity == "auto"
    state.surroundings()
    here = _translated(batched, batch, device)
    starts = np.zeros(batch.calls.num_calls + 1, bool)
    first = np.cumsum([0, *batch.sizes])
    starts[first] = True
    wanted = np.concatenate([one.refs + (int(at) << OUTPUT_BITS) for one, at in zip(batch.results, first[:-1], strict=True)])
    recorded = Recorded(here.type, here.arguments, here.further, here.data, starts)
    groups: Any = []
    if len(wanted):
        with state.lock:
            made = rewrite(Coarse.of(state, joins), state, recorded, wanted)
        groups = run_calls(state.library, [made.program(recorded.data)], made.wanted, batched.options)
    return batch.results[0].structure, assembled(batch.results, len(wanted), groups, batched.stack, device)


def _translated(batched: Batched, batch: RecordedBatch, device: str) -> CallProgram:
    """The calls with this process's types."""
    state = batched.state
    ambient = Tape(state, batched.granularity, device, is_portable=True)
    key = ("translated", batch.maker, keys_of_now(state, ambient))
    known: dict[int, int] = state.kept.setdefault(key, {})
    first = np.cumsum([0, *batch.sizes])
    for at, given in batch.witnesses:
        there = batch.calls.type[first[at] : first[at + 1]]
        if all(number in known for number in set(there.tolist())):
            continue
        try:
            here = _recorded(batched, state, batched.fn, device, given, at).recorded
        except Exception as error:
            name = _name(batched.fn)
            if name == batch.network:
                raise
            raise TypeMismatch(
                f"this weft.data.Batch was collated for another network ({batch.network}, and this is {name}); use "
                "weft.data.collate with this one"
            ) from error
        if not _is_alike(there, here.type):
            raise TraceError(
                f"example {at} of this batch makes other calls here than where the batch was recorded: the model there was "
                "another, or in another mode; collate with the model that runs the batch, in the same mode"
            )
        known.update(zip(there.tolist(), here.type.tolist(), strict=True))
    types: Ints = np.array([known[number] for number in batch.calls.type.tolist()], np.int32)
    parts: dict[tuple[int, int], list[tuple[int, Table]]] = {}
    for (number, feed), rows in batch.calls.data.items():
        parts.setdefault((known[number], feed), []).append((number, rows.to(device) if isinstance(rows, Tensor) else rows))
    data = {at: interleaved(batch.calls.type, rows) for at, rows in parts.items()}
    return CallProgram(types, batch.calls.arguments, batch.calls.further, data)


def _is_alike(there: Ints, here: Ints) -> bool:
    """Whether two recordings of an example can be the same: equal types stay equal, and there are as many calls."""
    if len(there) != len(here):
        return False
    return len(set(zip(there.tolist(), here.tolist(), strict=True))) == len(set(there.tolist()))


def _recorded(batched: Batched, state: State, fn: Any, device: str, given: tuple[Any, ...], at: int) -> Kept:
    tape = Tape(state, batched.granularity, device, is_portable=True)
    return record_kept(tape, fn, given, at, batched.options, "collate")


def arguments_of(fn: Any, example: Any) -> tuple[Any, ...]:
    """An example as arguments: a tuple is taken apart where the function needs that many."""
    if not isinstance(example, tuple) or len(example) < 2:
        return (example,)
    try:
        parameters = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn).parameters.values()
    except (TypeError, ValueError):
        return (example,)
    needed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in needed if each.default is each.empty]
    return example if len(needed) == len(example) else (example,)


def _name(fn: Any) -> str:
    """What a function, or the class of a module, is called in every process."""
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _maker(state: State) -> str:
    """A name for the numbers of this process, which a process that was forked from it does not share."""
    process, name = state.kept.get("maker", (None, ""))
    if process != os.getpid():
        process, name = state.kept["maker"] = (os.getpid(), uuid.uuid4().hex)
    return str(name)


def _on_no_device(fn: Any) -> Any:
    """The function itself; a module that is on a device has a twin beside it whose tensors are nowhere but in memory."""
    if not isinstance(fn, nn.Module) or all(tensor.device.type == "cpu" for tensor in (*fn.parameters(), *fn.buffers())):
        return fn
    found = fn.__dict__.get("_weft_twin")
    if found is None:
        memo: dict[int, Any] = {id(each): _nowhere(each) for each in (*fn.parameters(), *fn.buffers())}
        found = fn.__dict__["_weft_twin"] = [copy.deepcopy(fn, memo)]
    twin: nn.Module = found[0]
    for mine, theirs in zip(twin.modules(), fn.modules(), strict=True):
        mine.training = theirs.training
    return twin


def _nowhere(tensor: Tensor) -> Tensor:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
