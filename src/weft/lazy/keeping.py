"""What must not be read where a recording is kept (`cache=`, `weft.data.collate`): the numbers of the model's tensors.

A kept recording runs again after the model was trained. Tensors of the model are looked up then; a number that the code took
out of one would stay what it was, so taking one raises. The numbers of an example's own tensors may be read: its key stands for
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.errors import TraceError

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


def model_tensor(tape: Tape, items: Iterable[Any]) -> Tensor | None:
    """The first tensor of the model among these, or in lists of them."""
    for item in items:
        if isinstance(item, Tensor):
            if tape.state.place_of(item) is not None:
                return item
        elif item.__class__ is tuple or item.__class__ is list:
            found = model_tensor(tape, item)
            if found is not None:
                return found
    return None


def refuse_reading(tape: Tape, name: str, items: Iterable[Any]) -> None:
    """A function of this name is about to read these: an error where that is a tensor of the model, and would be kept."""
    found = model_tensor(tape, items) if tape.keeper else None
    if found is not None:
        raise TraceError(
            f"{tape.keeper}: {name} reads the numbers of a tensor of the model of shape {list(found.shape)}, which change from "
            "epoch to epoch, so the recording cannot be kept: put what needs them into a weft.cell, which runs in every epoch, "
            f"or call without {tape.keeper.strip('=')}"
        )
