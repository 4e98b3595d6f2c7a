"""nn.LSTM, nn.GRU and nn.RNN on a Value: every step is a call.

Torch runs a whole sequence in one operation, which cannot be batched over examples. Recorded step by step, sequences of
different lengths run together, and what depends on the input alone runs once for all steps. A packed sequence is taken as
torch takes it: every step has as many rows as there are sequences that long.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

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
    shape = _shape(module, args[0])
    fits = len(shape) in (2, 3) and shape[-1] == module.input_size and 0 not in shape
    return bool(fits and _fitting(module, shape, *args[1:], **kwargs))


def _shape(module: Any, x: Any) -> tuple[int, ...]:
    """The shape of what it is called with; of packed sequences that which they have when they are padded."""
    if not isinstance(x, PackedSequence):
        return tuple(x.shape) if isinstance(x, Value | Tensor) else ()
    steps, batch = len(x.batch_sizes), int(x.batch_sizes[0])
    return (*((batch, steps) if module.batch_first else (steps, batch)), x.data.shape[-1])


def _fitting(module: Any, shape: tuple[int, ...], hx: Any = None) -> bool:
    """Whether the states that it begins with have the shapes that it takes."""
    if hx is None:
        return True
    given = hx if module.mode == "LSTM" else (hx,)
    return isinstance(given, tuple) and [tuple(part.shape) for part in given] == _state_shapes(module, shape)


def _state_shapes(module: Any, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    count = module.num_layers * (2 if module.bidirectional else 1)
    batch = () if len(shape) == 2 else (shape[0 if module.batch_first else 1],)
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
            hx = tuple(torch.zeros(shape, dtype=x.dtype, device=x.device) for shape in _state_shapes(module, _shape(module, x)))
        rows, last = self._layers(list(x.transpose(0, 1) if across else x), hx if isinstance(hx, tuple) else (hx,))
        return torch.stack(rows, 1 if across else 0), last if self.is_lstm else last[0]

    def _layers(self, rows: list[Any], hx: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
        """What the last layer gives at every step, and the states in which all of them end."""
        module, begins, ends = self.module, list(zip(*hx, strict=True)), list[tuple[Any, ...]]()
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
        return rows, tuple(torch.stack(list(column)) for column in zip(*ends, strict=True))

    def _one_way(self, rows: list[Any], state: tuple[Any, ...], at: int) -> tuple[list[Any], tuple[Any, ...]]:
        weights = [getattr(self.module, name) for name in self.module._all_weights[at]]
        projection = weights.pop() if getattr(self.module, "proj_size", 0) else None
        step, outs, begin = _STEPS[self.module.mode], [], state
        done: list[tuple[Any, ...]] = []
        for row in rows:
            state = self._of_step(row, state, begin, done, at)
            given = state if self.is_lstm else state[0]
            found = record(self.tape, step, (row, given, *weights), {}, self.frame)
            state = found if self.is_lstm else (found,)
            if projection is not None:
                state = (F.linear(state[0], projection), *state[1:])
            outs.append(state[0])
        return outs, self._at_the_end(state, done)

    def _of_step(self, row: Any, state: Any, begin: Any, done: list[Any], at: int) -> tuple[Any, ...]:
        """The state that a step takes."""
        return state  # type: ignore[no-any-return]

    def _at_the_end(self, state: tuple[Any, ...], done: list[Any]) -> tuple[Any, ...]:
        return state


class _PackedRun(_Run):
    """One call with sequences side by side, the longest first: shorter ones end earlier, and begin later on the way back."""

    def __call__(self, packed: PackedSequence, hx: Any = None) -> Any:
        data, order, back = packed.data, packed.sorted_indices, packed.unsorted_indices
        if hx is None:
            shapes = _state_shapes(self.module, _shape(self.module, packed))
            hx = tuple(torch.zeros(shape, dtype=data.dtype, device=data.device) for shape in shapes)
        hx = hx if isinstance(hx, tuple) else (hx,)
        hx = hx if order is None else tuple(part[:, order] for part in hx)
        rows, last = self._layers(list(data.split(packed.batch_sizes.tolist())), hx)
        last = last if back is None else tuple(part[:, back] for part in last)
        return PackedSequence(torch.cat(rows), packed.batch_sizes, order, back), last if self.is_lstm else last[0]

    def _of_step(self, row: Any, state: Any, begin: Any, done: list[Any], at: int) -> tuple[Any, ...]:
        goes_back = self.module.bidirectional and at % 2 == 1
        before, now = state[0].shape[0], row.shape[0]
        if now < before:
            if not goes_back:
                done.append([part[now:] for part in state])
            return tuple(part[:now] for part in state)
        if now > before:
            return tuple(torch.cat([part, first[before:now]]) for part, first in zip(state, begin, strict=True))
        return state  # type: ignore[no-any-return]

    def _at_the_end(self, state: tuple[Any, ...], done: list[Any]) -> tuple[Any, ...]:
        return tuple(torch.cat(parts) for parts in zip(state, *reversed(done), strict=True)) if done else state


def recurrent(tape: Tape, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
    """Record the call step by step."""
    kind = _PackedRun if isinstance(args[0], PackedSequence) else _Run
    return kind(tape, module, frame)(*args, **kwargs)
