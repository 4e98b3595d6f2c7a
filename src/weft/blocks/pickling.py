"""Pickling blocks that are nested deeper than pickle, which calls itself for every level, can go.

Such a block is pickled flat: the classes of all blocks that it reaches, then their states, in which places stand for blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from weft.blocks.block import Block

DEEPEST = 64
"""Blocks that are nested so deep are pickled as Python pickles everything."""


class Place:
    """Stands for a block in a pickled state."""


def flat(blocks: Sequence[Block]) -> tuple[Any, ...]:
    """What `refilled` makes these blocks of again; the first is the outermost."""
    tensors = {id(tensor): tensor for tensor in (*blocks[0].parameters(), *blocks[0].buffers())}  # they stay what they are
    places = [Place() for _ in blocks]
    memo: dict[int, Any] = {**tensors, **{id(block): place for block, place in zip(blocks, places, strict=True)}}
    states = [copy.deepcopy(block.__getstate__(), memo) for block in blocks]
    return [type(block) for block in blocks], places, list(tensors.values()), states


def refilled(classes: list[type[Block]], places: list[Place], tensors: list[Tensor], states: list[dict[str, Any]]) -> Block:
    """The outermost block: all of them are made first and filled afterwards."""
    blocks = [each.__new__(each) for each in classes]
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    memo.update((id(place), block) for place, block in zip(places, blocks, strict=True))
    for block, state in zip(blocks, states, strict=True):
        block.__setstate__(copy.deepcopy(state, memo))
    return blocks[0]
