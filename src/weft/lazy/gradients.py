"""Which values require gradients: what the loop would say of them, found by reading the tape.

The engine differentiates a flush as a whole, and results of one kind come out of it together. So what was detached, compared,
or made of given numbers alone is told apart here. An operation has gradients of its own, by the parameters that it uses, or
passes on those of its arguments, output by output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import FROM_OUTSIDE
from weft.graph.capture import Surroundings, fetch
from weft.graph.twin import unwatched
from weft.lazy.chains import Flags, Layout, Longs, Recorded
from weft.lazy.ops import Op
from weft.lazy.taken import calls_from, calls_of
from weft.lazy.value import LOW, STEP, Value

if TYPE_CHECKING:
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
        self.past: list[Longs] = []
        """For each flush that was asked about, which outputs of its calls require gradients."""


def requires_grad(tape: Tape, value: Value) -> bool:
    """What `requires_grad` would say of the tensor."""
    if value.__class__ is not Value:
        plain = value._plain()
        return False if isinstance(plain, Tensor) else requires_grad(tape, plain)
    tape.put_back()
    value = tape.settled(value)
    if not _is_differentiable(value.dtype) or not tape.ambient_grad:
        return False
    if tape.ended is not None or value._ref < tape.floor:
        tape.result(value)
        return bool(are_trained(tape, [value._ref])[0])
    found = trained_outputs(tape, calls_of(tape), tape.imported_refs, tape.data)[(value._ref - tape.floor) // STEP]
    return bool(bits_at(found, np.array(value._ref)))


def are_trained(tape: Tape, refs: Sequence[int]) -> Flags:
    """Which of these results of earlier flushes, or of these given tensors, require gradients."""
    found = np.zeros(len(refs), bool)
    given = [at for at, ref in enumerate(refs) if ref < 0 and ref in tape.results]
    found[given] = [tape.found(refs[at])[0].rows.requires_grad for at in given]
    at = np.flatnonzero(np.array(refs, np.int64) >= 0)
    if not len(at):
        return found
    floors = [segment[0] for segment in tape.past]
    chosen = np.array(refs, np.int64)[at]
    segments = np.searchsorted(floors, chosen, "right") - 1
    types = [tape.past[k][1][(ref - floors[k]) // STEP] for k, ref in zip(segments.tolist(), chosen.tolist(), strict=True)]
    found[at] = bits_at(reaches(tape, np.array(types))[0], chosen)
    if found[at].all():
        return found
    _read_past(tape, int(segments.max()))
    bits = [tape.trained.past[k][(ref - floors[k]) // STEP] for k, ref in zip(segments.tolist(), chosen.tolist(), strict=True)]
    found[at] = bits_at(np.array(bits, np.int64), chosen)
    return found


def _read_past(tape: Tape, last: int) -> None:
    """Find out which outputs of the calls up to a flush are trained, flush by flush: they use nothing but earlier ones."""
    while len(tape.trained.past) <= last:
        floor, types, arguments, further, imports, data = tape.past[len(tape.trained.past)]
        tape.trained.past.append(trained_outputs(tape, calls_from(floor, types, arguments, further), imports, data))


def bits_at(outputs: Longs, refs: Longs) -> Flags:
    """Whether the output that each reference names is among these outputs of its call."""
    found: Flags = (outputs >> np.minimum(refs & LOW, LAST) & 1).astype(bool)
    return found


def trained_outputs(tape: Tape, calls: Recorded, imports: Sequence[int], data: Mapping[int, list[Any]]) -> Longs:
    """For every one of these calls, which of its outputs require gradients, as bits."""
    layout = Layout(calls, *tape.state.widths())
    own, passing = reaches(tape, calls.type)
    reached = _given_trained(tape, calls.type, data)
    handed = np.flatnonzero(layout.handed)
    reached[layout.consumer[handed][are_trained(tape, imports)[-calls.arguments[handed] - 1]]] = True
    found: Longs = own | np.where(reached, passing, 0)
    inside = ~layout.handed & (passing & ~found != 0)[layout.consumer]
    producer, consumer = layout.producer[inside], layout.consumer[inside]
    output = np.minimum(layout.output[inside], LAST)
    for _ in range(ROUNDS):
        fresh = consumer[(found[producer] >> output & 1) != 0]
        if not len(fresh):
            return found
        found[fresh] |= passing[fresh]
        rest = (passing & ~found)[consumer] != 0
        producer, consumer, output = producer[rest], consumer[rest], output[rest]
    bits, more = found.tolist(), passing.tolist()
    for source, at, user in zip(producer.tolist(), output.tolist(), consumer.tolist(), strict=True):
        if bits[source] >> at & 1:
            bits[user] |= more[user]
    return np.array(bits, np.int64)


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
    if op.setting.detached or op.name in WITHOUT:
        return 0, 0
    trained = _flags(op) if op.owners else ()
    known: dict[tuple[bool, ...], Reach] = op.__dict__.setdefault("reaches", {})
    found = known.get(trained)
    if found is None:
        every = sum(1 << at for at, kind in enumerate(op.outs[:LAST]) if _is_differentiable(kind.dtype))
        every |= (1 << LAST) if len(op.outs) > LAST else 0
        found = known[trained] = (_tried(tape, op) if op.is_cell else None) or (every if any(trained) else 0, every)
    return found


def _flags(op: Op) -> tuple[bool, ...]:
    """For all tensors that an operation reaches, whether each of them requires gradients now."""
    around = op.__dict__.get("around")
    if around is None:
        around = op.__dict__["around"] = Surroundings().add(*op.owners)
    parameters = (parameter for module in around.modules for parameter in module.parameters())  # there may be new ones
    return tuple(isinstance(each, Tensor) and each.requires_grad for each in (*map(fetch, around.tensors), *parameters))


def _tried(tape: Tape, op: Op) -> Reach | None:
    """What the code of a cell says itself, run on fake tensors; None where it does not run on them."""
    try:
        with tape.pause(), FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad(), unwatched():
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
