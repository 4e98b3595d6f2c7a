"""Memory is O(nodes): at equal nodes a deep structure needs no more than a flat one, and little beside the arenas.

The arenas of a training step are its tensors with a row for every node that the mathematics asks for: the states, the values
saved for backward, the gradients of the states and the gradient in front of each recurrent weight. For the cell here,
h = tanh(x + U h'), that is three of one size: h (which is also what tanh saves), the gradient of h, and the gradient of
x + U h'. On top come the result in the caller's order, inputs and gradients in row order, gathered children, and all index
arrays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import weft
import weft.nn
from weft.run import collect, gather

torch.set_num_threads(1)

ONE_STEP = """
import json, resource, sys
from pathlib import Path
import torch, weft
from torch import nn

NODES, D = 1_000_000, 16
depth, backend, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)

class Cell(weft.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": (D,)})
        self.u = nn.Linear(D, D, bias=False)

    def forward(self, v):
        h = torch.tanh(v.pull() + self.u(v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)

def now():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def peak():  # of this program alone: what getrusage tells includes the process that started it
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def step(graph, x):
    with torch.set_grad_enabled(mode == "training"):
        out = model(graph, x, backend=backend)
    if mode == "training":
        out.sum().backward()

model = Cell()
step(weft.Graph.chain(3), torch.randn(3, D))
graph = weft.Graph.batch([weft.Graph.chain(depth)] * (NODES // depth))
x = torch.randn(NODES, D)
before = now()
step(graph, x)
states = weft.plan(model, graph, x).stats()["arena_bytes"]
print(json.dumps({"before": before, "grown": peak() - before, "states": states}))
"""


def grown(depth: int, backend: str, mode: str) -> tuple[int, int]:
    """By how much the peak of a process lies above what it had before the step, and the size of the states' arenas."""
    command = [sys.executable, "-c", ONE_STEP, str(depth), backend, mode]
    unverified = {name: value for name, value in os.environ.items() if name != "WEFT_VERIFY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=unverified)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    return numbers["grown"], numbers["states"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the size of the process as Linux tells it")
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_a_million_nodes_need_the_same_memory_at_any_depth(backend: str) -> None:
    flat, states = grown(10, backend, "training")
    deep, _ = grown(10_000, backend, "training")
    shown = f"flat {flat >> 20} MiB, deep {deep >> 20} MiB, states {states >> 20} MiB"
    assert states >= 1_000_000 * 16 * 4, shown
    assert deep <= 1.1 * flat, shown
    assert max(flat, deep) <= 3 * (3 * states), shown


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the size of the process as Linux tells it")
def test_inference_needs_the_states_the_rows_and_the_result() -> None:
    deep, states = grown(10_000, "auto", "inference")
    assert deep <= 3 * (2 * states), f"deep {deep >> 20} MiB, states {states >> 20} MiB"


class Living(TorchDispatchMode):
    """Follows the memory of all tensors made inside; `peak` is the largest total in bytes, without tensors that were there."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()
        self.there = {tensor.untyped_storage()._cdata for tensor in there}
        self.living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.living = {key: entry for key, entry in self.living.items() if not entry[0].expired()}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.there:
                    self.living[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.living.values()))
        return result


NODES, D = 4096, 8


class Recurrence(weft.VertexFunction):
    """The cell of the large test; by the first child, or by the sum of all."""

    def __init__(self, summed: bool) -> None:
        super().__init__(state={"h": (D,)})
        self.u, self.summed = nn.Linear(D, D, bias=False), summed

    def forward(self, v: Any) -> None:
        h = torch.tanh(v.pull() + self.u(v.gather().sum("h") if self.summed else v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)


def chains(depth: int) -> weft.Graph:
    return weft.Graph.batch([weft.Graph.chain(depth)] * (NODES // depth))


def combs(depth: int) -> weft.Graph:
    """Binary trees of which every inner vertex has a leaf beside it: `depth` levels, 2 * depth vertices."""
    comb: list[list[int]] = [[], []]
    for level in range(1, depth):
        comb += [[], [2 * level - 1, 2 * level]]
    return weft.Graph.batch([weft.Graph(comb)] * (NODES // (2 * depth)))


def peak_rows(model: weft.VertexFunction, graph: weft.Graph, backend: str, training: bool) -> float:
    """The peak of a step in rows of D float32 numbers per node."""
    x = torch.randn(graph.num_vertices, D)

    def step() -> None:
        with torch.set_grad_enabled(training):
            out = model(graph, x, backend=backend)
        if training:
            out.sum().backward()

    step()
    model.zero_grad()
    with Living([x, *model.parameters()]) as living:
        step()
    return living.peak / (graph.num_vertices * D * 4)


@pytest.fixture
def no_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buffers may be kept for all steps where large ones are not; here every buffer counts as large."""
    for module in (gather, collect):
        monkeypatch.setattr(module, "SMALL", 0)


CELLS = {
    "slot": (Recurrence(False), chains),
    "sum": (Recurrence(True), combs),
    "lstm": (weft.nn.LSTM(D, D), chains),
    "child-sum tree-lstm": (weft.nn.ChildSumTreeLSTM(D, D), combs),
    "tree-gru": (weft.nn.TreeGRU(D, D), combs),
}


@pytest.mark.usefixtures("no_small_buffers")
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("name", CELLS)
def test_no_cell_needs_a_buffer_per_level(name: str, backend: str, training: bool) -> None:
    """128 times the levels at equal nodes; the flat one still has steps of many rows, which need room while they run."""
    model, structure = CELLS[name]
    flat, deep = (peak_rows(model, structure(depth), backend, training) for depth in (8, 1024))
    assert deep <= 1.15 * flat + 0.5, f"rows per node: flat {flat:.2f}, deep {deep:.2f}"


@pytest.mark.usefixtures("no_small_buffers")
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_rows_that_a_step_of_the_recurrence_holds_at_once(backend: str) -> None:
    """h, the result, its gradient in row order, the gradients for the children and before U, and the gathered children."""
    assert peak_rows(Recurrence(False), chains(1024), backend, True) <= 6.05
    assert peak_rows(Recurrence(False), chains(1024), backend, False) <= 3.05
