"""nn.LSTM, nn.GRU and nn.RNN on a Value: every step is a call.

Torch runs a whole sequence in one operation, which cannot be batched over examples. Recorded step by step, sequences of
different lengths run together, and what depends on the input alone runs once for all steps.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.graph.lowering import gru_step, lstm_step, relu_step, tanh_step
from weft.lazy.calls import record
from weft.lazy.tape import Tape
from weft.lazy.value import Value

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
_STEPS = {"LSTM": lstm_step, "GRU": gru_step, "RNN_TANH": tanh_step, "RNN_RELU": relu_step}


def is_recurrent(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is such a layer, called in a way that it takes; what it refuses it says best itself."""
    if type(module) not in RECURRENT or not args or len(args) > 2 or kwargs.keys() - {"hx"}:
        return False
    x = args[0]
    fits = isinstance(x, Value | Tensor) and x.ndim in (2, 3) and x.shape[-1] == module.input_size
    return bool(fits and 0 not in x.shape and _fitting(module, x, *args[1:], **kwargs))


def _fitting(module: Any, x: Any, hx: Any = None) -> bool:
    """Whether the states that it begins with have the shapes that it takes."""
    if hx is None:
        return True
    given = hx if module.mode == "LSTM" else (hx,)
    return isinstance(given, tuple) and [tuple(part.shape) for part in given] == _state_shapes(module, x)


def _state_shapes(module: Any, x: Any) -> list[tuple[int, ...]]:
    count = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if x.ndim == 2 else (x.shape[0 if module.batch_first else 1],)
    hidden = (count, *batch, module.proj_size or module.hidden_size)
    return [hidden, (count, *batch, module.hidden_size)] if module.mode == "LSTM" else [hidden]


class _Run:
    """One call of a layer."""

    def __init__(self, tape: Tape, module: Any, frame: FrameType) -> None:
        self.tape, self.module, self.frame = tape, module, frame
        self.is_lstm = module.mode == "LSTM"

    def __call__(self, x: Any, hx: Any = None) -> Any:
        module = self.module
        across = module.batch_first and x.ndim == 3
        if hx is None:
            hx = tuple(torch.zeros(shape, dtype=x.dtype, device=x.device) for shape in _state_shapes(module, x))
        begins = list(zip(*(hx if isinstance(hx, tuple) else (hx,)), strict=True))
        rows = list(x.transpose(0, 1) if across else x)
        ends: list[tuple[Any, ...]] = []
        for layer in range(module.num_layers):
            if layer and module.dropout and module.training:
                rows = [F.dropout(row, module.dropout, True) for row in rows]
            ways = []
            for way in range(2 if module.bidirectional else 1):
                at = len(ends)
                outs, end = self._one_way(rows[::-1] if way else rows, begins[at], at)
                ways.append(outs[::-1] if way else outs)
                ends.append(end)
            rows = ways[0] if len(ways) == 1 else [torch.cat(pair, -1) for pair in zip(*ways, strict=True)]
        last = tuple(torch.stack(list(column)) for column in zip(*ends, strict=True))
        return torch.stack(rows, 1 if across else 0), last if self.is_lstm else last[0]

    def _one_way(self, rows: list[Any], state: tuple[Any, ...], at: int) -> tuple[list[Any], tuple[Any, ...]]:
        weights = [getattr(self.module, name) for name in self.module._all_weights[at]]
        projection = weights.pop() if getattr(self.module, "proj_size", 0) else None
        step, outs = _STEPS[self.module.mode], []
        for row in rows:
            given = state if self.is_lstm else state[0]
            found = record(self.tape, step, (row, given, *weights), {}, self.frame)
            state = found if self.is_lstm else (found,)
            if projection is not None:
                state = (F.linear(state[0], projection), *state[1:])
            outs.append(state[0])
        return outs, state


def recurrent(tape: Tape, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record the call step by step."""
    return _Run(tape, module, frame)(*args, **kwargs)
