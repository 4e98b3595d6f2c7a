"""`logsigmoid` as one operation of `x`, forward and backward: PyTorch's own hands on a buffer that depends on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.graph import ops
from weft.graph.tape import Tape

aten = torch.ops.aten


def log_sigmoid(x: Tensor) -> Tensor:
    """What `log_sigmoid_forward` gives first."""
    return torch.nn.functional.logsigmoid(x)


def log_sigmoid_backward(g: Tensor, x: Tensor) -> Tensor:
    """Its derivative, from `x` alone."""
    return g * torch.sigmoid(-x)


def without_buffers(tape: Tape) -> None:
    """Rewrite a tape in place so that nothing reads the buffer."""
    for value in tape.values:
        if ops.is_getitem(value.target) and value.args[0].target is aten.log_sigmoid_forward.default and value.args[1] == 0:
            value.target, value.args = log_sigmoid, (value.args[0].args[0],)
        elif value.target is aten.log_sigmoid_backward.default:
            value.target, value.args = log_sigmoid_backward, value.args[:2]
