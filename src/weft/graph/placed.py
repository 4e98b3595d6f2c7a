"""Where new tensors are made: on the device of a call, also where `torch.set_default_device` says otherwise."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from weft.errors import TraceError

_ANYWHERE = nullcontext()
_C: Any = torch._C


def placed(device: torch.device | str) -> AbstractContextManager[Any]:
    """A context in which tensors are made on a device. Without any default device, code says where it makes them.

    >>> with torch.device("meta"), placed("cpu"):
    ...     torch.zeros(2)
    tensor([0., 0.])
    """
    return torch.device(device) if _C._len_torch_function_stack() else _ANYWHERE


def without_numbers(places: str) -> TraceError:
    """What is raised where tensors are on meta; `places` says which."""
    return TraceError(
        f"{places}: tensors on meta hold no numbers to compute with; make them where the batch is to be computed, those of a "
        "module with module.to_empty(device=...)"
    )


@functools.cache
def type_of(device: torch.device) -> str:
    """The type of a device, whose name torch puts together anew each time."""
    return device.type


def is_on(tensor: Tensor, device: str) -> bool:
    """Whether a tensor is on a device; one without a number is the current one of its kind.

    >>> is_on(torch.zeros(1), "cpu")
    True
    """
    mine, wanted = tensor.device, torch.device(device)
    return mine.type == wanted.type and (mine.index == wanted.index or None in (mine.index, wanted.index))
