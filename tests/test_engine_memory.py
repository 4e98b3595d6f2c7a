"""What calls do with memory: backward frees it, steps leak none of it, calls hand it on but never what somebody sees."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.testing import random_structure

torch.set_num_threads(1)


WIDE = 256


class Wide(weft.VertexFunction):
    """Rows wide enough that what a call forgets to free is seen."""

    def __init__(self) -> None:
        super().__init__(state={"h": (WIDE,)})
        self.u = nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, v: Any) -> None:
        h = torch.tanh(v.pull() + self.u(v.gather().sum("h")))
        v.scatter(h=h)
        v.push(h)


class Box:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_saved_tensors_are_freed_by_backward() -> None:
    model, graph, x, boxes = Wide(), weft.Graph.full_binary_tree(8), torch.randn(15, WIDE), []
    model(graph, x)

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        result = model(graph, x)
    assert boxes and all(box() is not None for box in boxes)
    gc.disable()
    try:
        result.sum().backward()
        assert all(box() is None for box in boxes)
    finally:
        gc.enable()
    assert result.grad_fn is not None


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Allocations(TorchDispatchMode):
    """Every piece of memory that an operation returned rows of numbers in, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.is_floating_point():  # index arrays stay with their plan
                reference = StorageWeakRef(leaf.untyped_storage())
                self.seen[reference.cdata] = reference
        return result

    def alive(self, *known: Tensor) -> int:
        """How many pieces live, besides those of tensors that may."""
        mine = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in known}
        return sum(not reference.expired() for cdata, reference in self.seen.items() if cdata not in mine)


@pytest.mark.parametrize("policy", ["condense", "depth"])
def test_backward_gives_all_memory_back_while_the_result_lives(policy: str) -> None:
    model, x = Wide(), torch.randn(63, WIDE, requires_grad=True)
    g = weft.Graph.full_binary_tree(32)
    model(g, x, policy=policy).sum().backward()
    gc.disable()
    try:
        with Allocations() as allocations:
            result = model(g, x, policy=policy)
            assert allocations.alive(x, result) > 0
            total = result.sum()
            total.backward()
        assert x.grad is not None and model.u.weight.grad is not None
        assert allocations.alive(x, result, *model.parameters(), x.grad, model.u.weight.grad) == 0
        with Allocations() as allocations, torch.no_grad():
            result = model(g, x, policy=policy)
        assert allocations.alive(x, result, *model.parameters()) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("training", [True, False])
def test_two_hundred_steps_leak_nothing(training: bool) -> None:
    """With the garbage collector off, so that a cycle through the saved context would show: over 1 MB for each step."""
    model = Wide()
    graphs = [weft.Graph.batch([weft.Graph.full_binary_tree(leaves)] * 8) for leaves in (32, 31, 30)]
    inputs = [torch.randn(g.num_vertices, WIDE) for g in graphs]

    def step(number: int) -> None:
        g, x = graphs[number % 3], inputs[number % 3]
        if training:
            model.zero_grad()
            model(g, x).square().mean().backward()
        else:
            model(g, x)

    for number in range(12):
        step(number)
    gc.collect()
    gc.disable()
    try:
        before, objects = resident_megabytes(), len(gc.get_objects())
        for number in range(200):
            step(number)
        grown = resident_megabytes() - before
        gc.collect()
        more = len(gc.get_objects()) - objects
    finally:
        gc.enable()
    assert grown < 20
    assert more < 200


class TestMemoryBetweenCalls:
    """Memory goes from one call to the next, but never while somebody sees it."""

    @staticmethod
    def trained() -> tuple[weft.VertexFunction, list[weft.Graph], list[Tensor]]:
        torch.manual_seed(0)
        model = weft.nn.ChildSumTreeLSTM(8, 64)
        graphs = [random_structure(seed, "tree", size=6000) for seed in range(3)]
        return model, graphs, [torch.randn(graph.num_vertices, 8) for graph in graphs]

    def test_calls_in_flight_keep_theirs(self) -> None:
        model, graphs, xs = self.trained()
        alone = []
        for graph, x in zip(graphs, xs, strict=True):
            model.zero_grad()
            model(graph, x).square().sum().backward()
            alone.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for _ in range(2):
            outputs = [model(graph, x) for graph, x in zip(graphs, xs, strict=True)]
            for output, expected in reversed(list(zip(outputs, alone, strict=True))):
                model.zero_grad()
                output.square().sum().backward()
                for p, grad in zip((p for p in model.parameters() if p.grad is not None), expected, strict=True):
                    assert torch.equal(p.grad, grad)

    def test_a_graph_that_is_retained_keeps_its(self) -> None:
        model, graphs, xs = self.trained()
        first = model(graphs[0], xs[0]).square().sum()
        wanted = torch.autograd.grad(first, list(model.parameters()), retain_graph=True)
        for graph, x in zip(graphs, xs, strict=True):
            model(graph, x).sum().backward()
        for a, b in zip(torch.autograd.grad(first, list(model.parameters())), wanted, strict=True):
            assert torch.equal(a, b)

    def test_results_are_the_callers(self) -> None:
        model, graphs, xs = self.trained()
        chain, x = weft.Graph.chain(6000), torch.randn(6000, 8)
        kept = [model(chain, x), model(graphs[0], xs[0])]
        with torch.no_grad():
            kept += [model(chain, x), model(graphs[0], xs[0])]
        copies = [rows.detach().clone() for rows in kept]
        for graph, inputs in zip(graphs, xs, strict=True):
            model(graph, inputs).sum().backward()
            with torch.no_grad():
                model(graph, inputs)
        kept[0].sum().backward()
        assert all(torch.equal(rows, copy) for rows, copy in zip(kept, copies, strict=True))

    def test_saved_tensors_may_be_elsewhere(self) -> None:
        model, graphs, xs = self.trained()
        model(graphs[0], xs[0]).sum().backward()
        wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            total = model(graphs[0], xs[0]).sum()
        model(graphs[1], xs[1]).sum().detach()
        total.backward()
        for p, grad in zip((p for p in model.parameters() if p.grad is not None), wanted, strict=True):
            assert torch.equal(p.grad, grad)
