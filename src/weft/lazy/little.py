"""Functions in which there is too little to batch run example by example, as they are written.

What a mask or `nonzero` gives has another size in every example, so what is done with it is done example by example. What else
there is must make up for recording it, and for the wait at every mask: a handful of small operations does not. How much there
is was seen when the function was recorded last:

    recorded calls for each example and wait     few          many
    small tensors and layers                     as written   batched
    large ones                                   batched      batched

So do functions of tensors that have another size in nearly every example, where calls would run alone (`lazy/alone.py`).
Every now and then it is recorded again, since the next examples may be larger, or more alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.graph.recording import OUTPUT_BITS
from weft.lazy.ops import Op
from weft.lazy.state import State
from weft.lazy.tape import Tape

FEW_CALLS = {True: 8, False: 16}
"""With gradients, and without: so many calls take the loop less time. There and back it takes three times as long for each."""

LARGE = 1 << 14
"""Numbers in a tensor, or in the parameters of a layer, with which a batch pays whatever the number of calls is."""

AGAIN = 64
"""After so many calls it is looked at again."""


def note(tape: Tape, examples: int, flushes: int) -> None:
    """Remember of a recording that is over whether there was too little in it."""
    little: dict[Hashable, int] = tape.state.kept.setdefault("little", {})
    calls = tape.next >> OUTPUT_BITS
    is_little = tape.has_shaped and calls <= FEW_CALLS[tape.ambient_grad] * examples * max(flushes, 1)
    is_little = is_little and all(map(_is_small, tape.state.fines))
    is_diverse = tape.is_diverse and not flushes and not any(op.random for op in tape.state.fines)
    may = not tape.state.kept.get("draws") and (is_little or is_diverse)
    little[_mode(tape.state, tape.ambient_grad)] = AGAIN if may else 0


@contextmanager
def noticing_draws(state: State) -> Iterator[None]:
    """Of a call as it is written: whether it draws numbers after all, on a way that no recording took; then it is the last."""
    before = torch.get_rng_state()
    yield
    if not torch.equal(before, torch.get_rng_state()):
        state.kept["draws"], state.kept["little"] = True, {}


def is_little(state: State) -> bool:
    """Whether the function is better not recorded."""
    little: dict[Hashable, int] = state.kept.get("little", {})
    if not any(little.values()):
        return False
    mode = _mode(state, torch.is_grad_enabled())
    left = little.get(mode, 0)
    if left:
        little[mode] = left - 1
    return left > 0


def _mode(state: State, grad: bool) -> Hashable:
    """What was seen in one mode says nothing about others: in training there may be numbers to draw."""
    return grad, *[module.training for module in state.surroundings().modules]


def _is_small(op: Op) -> bool:
    """Whether it is little work. What draws numbers never is, since it must always draw them the same way."""
    held = [owner for owner in op.owners if isinstance(owner, nn.Module)]
    numbers = sum(parameter.numel() for module in held for parameter in module.parameters())
    return not op.random and numbers < LARGE and all(kind.count < LARGE for kind in (*op.args, *op.outs))


def own_examples(items: list[Any]) -> Sequence[Any]:
    """The examples with tensors that may be written into."""
    if {item.__class__ for item in items} == {Tensor} and not any(item.requires_grad for item in items):
        if len({(item.shape, item.dtype, item.device) for item in items}) == 1:
            return torch.stack(items).unbind(0)  # one copy takes less time than many
    return [_own(item) for item in items]


def _own(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item.clone()
    if item.__class__ is tuple or item.__class__ is list:
        return item.__class__([_own(part) for part in item])
    return {key: _own(part) for key, part in item.items()} if item.__class__ is dict else item
