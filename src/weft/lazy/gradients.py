"""Which values require gradients: what the loop would say of them, found by reading the tape.

The engine differentiates a flush as a whole, and results of one kind come out of it together. So what was detached, compared,
or made of given numbers alone is told apart here. An operation has gradients of its own, by the parameters that it uses, or
passes on those of its arguments, output by output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import FROM_OUTSIDE
from weft.graph.capture import Surroundings, fetch
from weft.graph.hooks import unhooked
from weft.graph.program import Ints
from weft.graph.recording import OUTPUT_BITS
from weft.graph.twin import unwatched
from weft.lazy.chains import Flags, Layout, Longs
from weft.lazy.ops import Op
from weft.lazy.taken import Pending, joined, segment
from weft.lazy.value import LOW, Value

if TYPE_CHECKING:
    from weft.lazy.state import State
    from weft.lazy.tape import Tape

Reach = tuple[int, int]
"""Two sets of outputs, as bits: those with gradients of their own, and those with gradients if an argument has them."""

LAST = 62
"""The bit that stands for all further outputs."""

WITHOUT = frozenset(
    "detach zeros_like ones_like full_like full_like_of empty_like rand_like randn_like randint_like new_zeros new_ones "
    "new_full new_empty new_tensor".split()
)
"""Functions that give tensors without gradients, whatever they are given."""

ROUNDS = 16
"""So often all calls are looked at together; what depends on more calls in a row is followed call by call."""


class Trained:
    """What one recording has found out."""

    def __init__(self) -> None:
        self.reaches: Longs = np.empty((2, 0), np.int64)
        """For each recorded type the two sets of outputs."""
        self.outputs: Longs = np.empty(0, np.int64)
        """For each call of the flushes that were read, which of its outputs require gradients, as bits."""
        self.flushes = 0


def requires_grad(tape: Tape, value: Value) -> bool:
    """What `requires_grad` would say of the tensor."""
    if value.__class__ is not Value:
        plain = value._plain()
        return False if isinstance(plain, Tensor) else requires_grad(tape, plain)
    value = tape.settled(value)
    if not _is_differentiable(value.dtype) or not tape.ambient_grad:
        return False
    if tape.ended is not None:
        tape.result(value)
    ref = value._ref
    if 0 <= ref < tape.floor:  # many are asked for one by one, where code needs their tensors
        return bool(int(_past(tape)[ref >> OUTPUT_BITS]) >> min(ref & LOW, LAST) & 1)
    return bool(are_trained(tape, [ref])[0])


def are_trained(tape: Tape, refs: Sequence[int]) -> Flags:
    """Which of these values, or of these given tensors, require gradients."""
    chosen = np.array(refs, np.int64)
    given = chosen < 0
    if not given.any():
        return _recorded_trained(tape, chosen) if len(chosen) else given
    found = np.empty(len(refs), bool)
    found[given] = [tape.found(ref)[0].rows.requires_grad for ref in chosen[given].tolist()]
    found[~given] = are_trained(tape, chosen[~given].tolist())
    return found


def _recorded_trained(tape: Tape, refs: Longs) -> Flags:
    calls = refs >> OUTPUT_BITS
    found = bits_at(reaches(tape, _types(tape, calls))[0], refs)
    return found if found.all() else bits_at(_outputs(tape)[calls], refs)


def _types(tape: Tape, calls: Longs) -> Ints:
    """The recorded types of some calls."""
    now = segment(tape)
    first = tape.floor >> OUTPUT_BITS
    if calls.min() >= first:
        return now.type[calls - first]
    types: Ints = np.concatenate([*[part.type for part in tape.past], now.type])[calls]
    return types


def _outputs(tape: Tape) -> Longs:
    """For every call so far which of its outputs require gradients, as bits."""
    return _with(tape, _past(tape), [segment(tape)]) if tape.type else _past(tape)


def _past(tape: Tape) -> Longs:
    """The same for the calls of all flushes."""
    known = tape.trained
    if known.flushes < len(tape.past):
        known.outputs = _with(tape, known.outputs, tape.past[known.flushes :])
        known.flushes = len(tape.past)
    return known.outputs


def bits_at(outputs: Longs, refs: Longs) -> Flags:
    """Whether the output that each reference names is among these outputs of its call."""
    found: Flags = (outputs >> np.minimum(refs & LOW, LAST) & 1).astype(bool)
    return found


def _with(tape: Tape, before: Longs, more: Sequence[Pending]) -> Longs:
    """The same for some flushes more: they use nothing but themselves and what was before."""
    calls = joined(more)
    recorded, imports = calls.numbered()
    layout = Layout(recorded, *tape.state.widths())
    own, passing = reaches(tape, calls.type)
    reached = _given_trained(tape, calls.type, calls.data)
    handed = np.flatnonzero(layout.handed)
    if len(handed):
        trained = np.zeros(len(imports), bool)
        given, earlier = np.flatnonzero(imports < 0), np.flatnonzero(imports >= 0)
        trained[given] = are_trained(tape, imports[given].tolist())
        trained[earlier] = bits_at(before[imports[earlier] >> OUTPUT_BITS], imports[earlier])
        reached[layout.consumer[handed][trained[-recorded.arguments[handed] - 1]]] = True
    found: Longs = own | np.where(reached, passing, 0)
    inside = ~layout.handed & (passing & ~found != 0)[layout.consumer]
    producer, consumer = layout.producer[inside], layout.consumer[inside]
    output = np.minimum(layout.output[inside], LAST)
    for _ in range(ROUNDS):
        fresh = consumer[(found[producer] >> output & 1) != 0]
        if not len(fresh):
            return np.append(before, found)
        found[fresh] |= passing[fresh]
        rest = (passing & ~found)[consumer] != 0
        producer, consumer, output = producer[rest], consumer[rest], output[rest]
    bits, more_bits = found.tolist(), passing.tolist()
    for source, at, user in zip(producer.tolist(), output.tolist(), consumer.tolist(), strict=True):
        if bits[source] >> at & 1:
            bits[user] |= more_bits[user]
    return np.append(before, np.array(bits, np.int64))


def reaches(tape: Tape, types: Any) -> tuple[Longs, Longs]:
    """For every call what its operation reaches."""
    more = len(tape.state.fines) - tape.trained.reaches.shape[1]
    if more:
        tape.trained.reaches = np.append(tape.trained.reaches, np.full((2, more), UNKNOWN), axis=1)
    own, passing = tape.trained.reaches
    for number in np.flatnonzero(np.bincount(types, minlength=len(own)) * (passing == UNKNOWN)).tolist():
        own[number], passing[number] = reach(tape, tape.state.fines[number])
    return own[types], passing[types]


UNKNOWN = -1


def _given_trained(tape: Tape, types: Any, data: Mapping[int, list[Any]]) -> Flags:
    """Which calls are fed a tensor that requires gradients."""
    found = np.zeros(len(types), bool)
    for number, rows in data.items():
        feeds = tape.state.fines[number].feeds
        if any(_is_differentiable(kind.dtype) for kind in feeds):
            trained = [isinstance(row, Tensor) and row.requires_grad for row in rows]
            found[types == number] = np.array(trained).reshape(-1, len(feeds)).any(1)
    return found


def reach(tape: Tape, op: Op) -> Reach:
    """Which outputs of an operation require gradients."""
    if _is_silent(op):
        return 0, 0
    trained = tuple(_flags(op)) if op.is_cell else any(_flags(op))
    known: dict[tuple[bool, ...] | bool, Reach] = op.__dict__.setdefault("reaches", {})
    found = known.get(trained)
    if found is None:
        every = sum(1 << at for at, kind in enumerate(op.outs[:LAST]) if _is_differentiable(kind.dtype))
        every |= (1 << LAST) if len(op.outs) > LAST else 0
        found = known[trained] = (_tried(tape, op) if op.is_cell else None) or (every if any(_flags(op)) else 0, every)
    return found


def silent_types(state: State) -> Flags | None:
    """For each recorded type whether it passes no gradients on, though its results could have some; None where none is so."""
    known: tuple[int, Flags | None] = state.kept.get("silent", (0, None))
    if known[0] < len(state.fines):
        found = np.array(list(map(_is_silent, list(state.fines))))
        known = state.kept["silent"] = len(found), found if found.any() else None
    return known[1]


def passing_types(state: State) -> Flags:
    """For each recorded type whether gradients may come through it."""
    known: Flags | None = state.kept.get("passing")
    if known is None or len(known) < len(state.fines):
        flags = [not _is_silent(op) and any(_is_differentiable(kind.dtype) for kind in op.outs) for op in list(state.fines)]
        known = state.kept["passing"] = np.array(flags, bool)
    return known


def _is_silent(op: Op) -> bool:
    return op.setting.detached or op.name in WITHOUT


def _flags(op: Op) -> Iterator[bool]:
    """For all tensors that an operation reaches, whether each of them requires gradients now."""
    return (isinstance(each, Tensor) and each.requires_grad for each in captured(op))


def captured(op: Op) -> Iterator[Any]:
    """What an operation reaches of the model's tensors."""
    around = _around(op)
    return chain(map(fetch, around.tensors), parameters_of(around.modules))  # there may be new ones


def _around(op: Op) -> Surroundings:
    found: Surroundings | None = op.__dict__.get("around")
    if found is None:
        found = op.__dict__["around"] = Surroundings().add(*op.owners)
    return found


def parameters_of(modules: Sequence[nn.Module]) -> Iterator[Tensor]:
    """What modules hold, and those in them, each once; torch's own way there takes ten times as long."""
    todo: list[nn.Module | None] = list(modules)
    seen: set[int] = set()
    while todo:
        module = todo.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, torch.jit.ScriptModule):
            yield from module.parameters()
        else:
            yield from [each for each in module._parameters.values() if each is not None]
            todo += module._modules.values()


def _tried(tape: Tape, op: Op) -> Reach | None:
    """What the code of a cell says itself, run on fake tensors; None where it does not run on them."""
    try:
        modules = _around(op).modules
        with tape.pause(), FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad(), unwatched(), unhooked(modules):
            return _bits(op, False), _bits(op, True)
    except FROM_OUTSIDE:
        raise
    except Exception:  # it has run on others before, so it is no error of the user's
        return None


def _bits(op: Op, trained: bool) -> int:
    args = [_fake(kind, op.device, trained) for kind in op.args]
    found = op.run(args, [_fake(kind, op.device, trained) for kind in op.feeds])
    return sum(1 << at for at, tensor in enumerate(found[: LAST + 1]) if tensor.requires_grad)


def _fake(kind: Any, device: str, trained: bool) -> Tensor:
    return torch.zeros(kind.shape, dtype=kind.dtype, device=device, requires_grad=trained and _is_differentiable(kind.dtype))


def _is_differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
