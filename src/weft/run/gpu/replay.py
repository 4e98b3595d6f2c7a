"""`graph=True`: a call that comes again with the same plan replays its launches as a CUDA graph.

For inference, where batches repeat a structure: the same examples again, or examples of one shape. The first call of a plan
goes by its recipe, the second is captured, later ones copy their rows in, replay, and copy the results out. Parameters may
change in place; other parameters, or rows of another shape, are captured anew. The last few captures are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.plan.plan import Plan
from weft.run.gpu.launch import allocator, current_stream
from weft.run.gpu.sweep import fresh_counter
from weft.run.recipe import Recipe

if TYPE_CHECKING:
    from weft.run.gpu.execution import GpuExecution

MOST_REPLAYS = 16
"""Captures keep their memory, so only so many are kept."""

_captured: OrderedDict[Hashable, tuple[Plan, Replay | None]] = OrderedDict()
"""By plan, recipe and looks of the tensors; the plan is kept, so that its address stays its own."""


@dataclass(eq=False)
class Replay:
    """A captured call; `inputs` are copied to before a replay. What the graph refers to is kept alive."""

    graph: Any
    inputs: dict[int, Tensor]
    outputs: list[Tensor]
    recipe: Recipe
    counter: Tensor

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for at, place in self.inputs.items():
            place.copy_(tensors[at])
        self.graph.replay()
        return [output.clone() for output in self.outputs]


def replayed(execution: GpuExecution, recipe: Recipe, tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """The results by a replay; None for a plan that is new here."""
    fed = set(range(execution.kind.first_feed, len(tensors)))
    looks = tuple([(tensor.shape, tensor.dtype) if at in fed else tensor.data_ptr() for at, tensor in enumerate(tensors)])
    key = (id(execution.plan), id(recipe), looks)
    if key not in _captured:
        _keep(key, execution.plan, None)
        return None
    found = _captured[key][1]
    _captured.move_to_end(key)
    if found is None:
        found = _capture(execution, recipe, tensors, fed)
        _keep(key, execution.plan, found)
    return found.run(tensors)


def _keep(key: Hashable, plan: Plan, replay: Replay | None) -> None:
    _captured[key] = plan, replay
    while len(_captured) > MOST_REPLAYS:
        _captured.popitem(last=False)


def _capture(execution: GpuExecution, recipe: Recipe, tensors: Sequence[Tensor], fed: set[int]) -> Replay:
    device, facts = execution.call.device, recipe.facts(execution.indices)
    given = [tensor.clone() if at in fed else tensor for at, tensor in enumerate(tensors)]
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        counter = fresh_counter(device, stream.cuda_stream)  # replays of two captures may run at once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = current_stream(device), allocator(device)
        outputs, _ = recipe.run(facts, given, execution.chosen(), execution.records, device, *made)
    return Replay(graph, {at: given[at] for at in fed}, list(outputs), recipe, counter)
