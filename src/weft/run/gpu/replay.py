"""`graph=True`: a call that comes again with the same plan replays its launches as CUDA graphs, forward and backward.

For batches that repeat a structure: the same examples again, or examples of one shape. What is captured is the one call of C
that a recipe has become (`onecall`), so a capture holds nothing but launches, and its memory is known: the call runs once as
ever, and once more, into the same memory, for the capture. Later calls copy their rows in, launch, and copy the results out.
Parameters are read where they lie, and so are the numbers of rows that are wanted. What forward keeps for backward belongs to
one call at a time: a call that comes before the backward pass of the last one is done runs without replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import torch
from torch import Tensor

from weft.run.gpu.capture import Graph, can_capture, captured
from weft.run.gpu.launch import Fresh, allocator, current_stream
from weft.run.gpu.onecall.later import Unfinished
from weft.run.gpu.replays import Replays
from weft.run.recipe import Recipe

if TYPE_CHECKING:
    from weft.run.gpu.execution import GpuExecution, Saving

Results = tuple[Sequence[Tensor], "Saving"]
"""Of a forward pass, and what is kept for the backward pass."""

_autograd: Any = torch._C._autograd
_lock = RLock()
"""Copying in, launching and copying out belong together, whoever else calls."""


@dataclass(eq=False)
class Pass:
    """One direction: `run` launches everything; the results lie in its memory until it runs again."""

    graph: Graph
    rows: list[Any]
    """Places of what is given anew at every call."""
    results: Any
    memory: list[Tensor]
    recipe: Recipe

    def run(self, stream: int, given: Sequence[Tensor | None]) -> None:
        for place, tensor in zip(self.rows, given, strict=True):
            if place is not None and tensor is not None:
                place.copy_(tensor)
        self.graph.launch(stream)


def _pass(execution: GpuExecution, recipe: Recipe, rows: list[Any], work: Callable[[Fresh], Any]) -> tuple[Any, Pass | None]:
    """Do and capture some work: results, None where it cannot be one call, and the capture, None where there is none."""
    device, memory = execution.call.device, list[Tensor]()
    fresh = allocator(device)

    def noted(*looks: Any) -> Tensor:
        memory.append(fresh(*looks))
        return memory[-1]

    results = work(noted)
    if results is None:
        return None, None
    again = iter(memory)

    def same(sizes: tuple[int, ...], *rest: Any) -> Tensor:
        place = next(again)
        if tuple(place.shape) != sizes:
            raise RuntimeError("a call that asks for other memory than the one before")
        return place

    try:
        graph, _ = captured(device, lambda: work(same))
    except RuntimeError:
        return results, None
    return results, Pass(graph, rows, results, memory, recipe)


class Replay:
    """The passes of calls with one plan that were captured."""

    def __init__(self, execution: GpuExecution, forward: Pass, at: Hashable) -> None:
        self.forward, self.at, self.whole = forward, at, execution.whole
        self.chosen = execution.chosen()  # which the plan need not keep
        self.backward: dict[int, Pass | None] = {}
        """By recipe; None where there is no capture."""
        self._holder: Callable[[], GpuExecution | None] = lambda: None

    def is_free(self) -> bool:
        """Whether nobody waits for its backward pass."""
        holder = self._holder()
        return holder is None or holder.replay is not self

    def hold(self, execution: GpuExecution) -> Results:
        """The results of the forward pass that ran last, which belongs to a call until its backward pass is done."""
        outputs, kept = self.forward.results
        if execution.training:
            execution.replay, execution.whole, self._holder = self, self.whole, ref(execution)
        return _copies(outputs, execution.call.device), kept


_replays: Replays[Replay] = Replays()


def replayed(execution: GpuExecution, recipe: Recipe, tensors: Sequence[Tensor]) -> Results | None:
    """The results of a forward pass and what is kept, by a replay; None where it must run without."""
    if not can_capture(execution.call.device):
        return None
    first = execution.kind.first_feed
    rows, at = tensors[first:], _place(execution, tensors)
    watched = execution.training and _autograd._top_saved_tensors_default_hooks(True) is not None
    if watched or not all(tensor.is_contiguous() for tensor in rows):
        return None
    looks = tuple([(tensor.shape, tensor.dtype) for tensor in rows])
    key = id(recipe), at, looks, torch.is_inference_mode_enabled()
    with _lock:
        found = _replays.find(execution.plan, key)
        if found is not None:
            if not found.is_free():
                return None
            found.forward.run(current_stream(execution.call.device), rows)
            return found.hold(execution)
        if not _replays.wants(execution.plan, key):
            return None
        places = _copies(rows, execution.call.device)
        given = [*tensors[:first], *places]
        results, forward = _pass(execution, recipe, places, lambda fresh: execution._whole(recipe, given, fresh=fresh))
        if forward is None:
            _replays.refuse(execution.plan, key)
            return cast("Results | None", results)
        return _replays.add(execution.plan, key, Replay(execution, forward, at)).hold(execution)


def replayed_back(
    execution: GpuExecution,
    replay: Replay,
    recipe: Recipe,
    tensors: Sequence[Tensor],
    saved: Saving,
    grads: Sequence[Tensor | None],
) -> list[Tensor | None] | None:
    """The results of a backward pass, by what ran the forward pass; None where it must run without."""
    device = execution.call.device
    if not can_capture(device) or _place(execution, tensors) != replay.at:
        return None
    with _lock:
        if id(recipe) in replay.backward:
            found = replay.backward[id(recipe)]
            if found is None:
                return None
            found.run(current_stream(device), grads)
            return _finished(found.results, device)
        places, given = _copies(grads, device), [*tensors[: execution.kind.first_feed], *replay.forward.rows]
        results, back = _pass(
            execution, recipe, places, lambda fresh: execution._whole(recipe, given, saved, places, True, fresh)
        )
        replay.backward[id(recipe)] = back
        return _finished(results, device, copy=back is not None)


def _finished(results: Any, device: torch.device, copy: bool = True) -> list[Tensor | None] | None:
    """The results of a backward pass, and those that torch makes of them; None where there are none."""
    if isinstance(results, Unfinished):
        return results.finished(_copies(results.results, device) if copy else None)
    return _copies(results, device) if copy else cast("list[Tensor | None] | None", results)


def _place(execution: GpuExecution, tensors: Sequence[Tensor]) -> Hashable:
    """Where a call runs, and where the tensors lie that it reads in place."""
    mine = [*tensors[: execution.kind.first_feed], *execution.chosen()]
    stream = current_stream(execution.call.device)
    return stream, tuple([tensor.data_ptr() for tensor in mine]), tuple([tensor.stride() for tensor in mine])


def _copies(tensors: Sequence[Tensor | None], device: torch.device) -> list[Any]:
    """In memory of their own: for whoever may keep them and write to them."""
    fresh = allocator(device)
    found = [None if tensor is None else _like(tensor, fresh) for tensor in tensors]
    made, some = ([tensor for tensor in each if tensor is not None] for each in (found, tensors))
    if some:
        torch._foreach_copy_(made, some)
    return found


def _like(tensor: Tensor, fresh: Fresh) -> Tensor:
    if tensor.is_contiguous():
        return fresh(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
