"""What a model keeps between calls: nothing that is stale, nothing that leaks, nothing that a copy would share."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.run.gather import _Select, _Sum
from weft.testing import assert_equivalent, random_structure

torch.set_num_threads(1)

GLOBAL_SCALE = 1.0
GLOBAL_SHIFT = torch.zeros(3)


class Net(weft.VertexFunction):
    """Reads all that can change between calls: settings, globals, submodules, buffers, modes."""

    def __init__(self, d: int = 3) -> None:
        super().__init__(state={"h": (d,)})
        self.w, self.u, self.drop = nn.Linear(2, d), nn.Linear(d, d), nn.Dropout(0.5)
        self.scale, self.activation, self.sizes = 1.0, torch.tanh, [1, 2]
        self.register_buffer("shift", torch.zeros(d))
        self.eval()

    def forward(self, v: Any) -> None:
        below = self.drop(self.u(v.gather(0)["h"] + v.gather(1)["h"]))
        h = self.activation(self.w(v.pull()) * self.scale + below * self.sizes[0] + self.shift + GLOBAL_SHIFT) * GLOBAL_SCALE
        v.scatter(h=h)
        v.push(h)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


GRAPH = random_structure(2, "binary tree", size=60)


def rows(g: weft.Graph = GRAPH, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(g.num_vertices, 2, generator=torch.Generator().manual_seed(0)).to(dtype)


def _set(name: str, value: Any) -> Any:
    return lambda model: setattr(model, name, value)


@pytest.mark.parametrize(
    "change",
    [
        _set("scale", 0.25),
        _set("activation", torch.sigmoid),
        _set("sizes", [3, 2]),
        lambda model: model.sizes.__setitem__(0, 5),
        _set("shift", torch.ones(3)),
        lambda model: model.shift.fill_(2),
        lambda model: setattr(model, "u", nn.Linear(3, 3)),
        lambda model: setattr(model, "u", nn.Sequential(nn.Linear(3, 3), nn.Tanh())),
        lambda model: setattr(model.u, "weight", nn.Parameter(torch.ones(3, 3))),
        lambda model: model.u.weight.data.fill_(0.1),
        lambda model: model.load_state_dict({name: t + 1 for name, t in model.state_dict().items()}),
        lambda model: setattr(model.drop, "p", 0.0) or model.train(),
        lambda model: model.requires_grad_(False),
    ],
)
def test_what_changes_between_calls_is_honoured(change: Any) -> None:
    model = net()
    before = model(GRAPH, rows())
    change(model)
    assert_equivalent(model, GRAPH, rows(), policies=["auto"])
    assert model(GRAPH, rows()).shape == before.shape


@pytest.mark.parametrize(("name", "value"), [("GLOBAL_SCALE", 0.5), ("GLOBAL_SHIFT", torch.ones(3))])
def test_globals_are_honoured(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    before = model(GRAPH, rows())
    monkeypatch.setitem(globals(), name, value)
    assert_equivalent(model, GRAPH, rows(), policies=["auto"])
    assert not torch.equal(model(GRAPH, rows()), before)


def test_train_and_eval_are_honoured() -> None:
    model = net()
    quiet = model(GRAPH, rows())
    model.train()
    assert not torch.equal(model(GRAPH, rows()), model(GRAPH, rows()))
    model.eval()
    assert torch.equal(model(GRAPH, rows()), quiet)


def test_dtypes_are_honoured() -> None:
    model = net()
    assert model(GRAPH, rows()).dtype == torch.float32
    assert model.double()(GRAPH, rows(dtype=torch.float64)).dtype == torch.float64
    assert model.float()(GRAPH, rows()).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(GRAPH, rows())
    assert not torch.equal(rough.float(), model(GRAPH, rows()))


class Fails(RuntimeError):
    pass


@pytest.mark.parametrize("error", [Fails, KeyboardInterrupt])
@pytest.mark.parametrize("policy", ["condense", "depth"])
def test_an_exception_in_the_middle_of_a_sweep_leaves_nothing_behind(
    error: type[BaseException], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    expected = model(GRAPH, rows(), policy=policy, backend="eager")
    with monkeypatch.context() as patched:
        done: list[None] = []

        def stop(self: Any) -> None:
            if done:
                raise error
            done.append(right(self))

        right = _Select.__call__
        patched.setattr(_Select, "__call__", stop)
        with pytest.raises(error):
            model(GRAPH, rows(), policy=policy, backend="eager")
    assert torch.equal(model(GRAPH, rows(), policy=policy, backend="eager"), expected)
    assert_equivalent(model, GRAPH, rows(), policies=[policy])


def test_an_exception_of_the_users_code_keeps_its_type_and_leaves_nothing_behind() -> None:
    class Broken(Net):
        broken = True

        def forward(self, v: Any) -> None:
            if self.broken:
                raise Fails("the user's own words")
            v.scatter(h=self.w(v.pull()))
            v.push(self.w(v.pull()))

    for backend in ("eager", "reference"):
        model = Broken()
        with warnings.catch_warnings(), pytest.raises(Fails, match="the user's own words"):
            warnings.simplefilter("ignore", weft.FallbackWarning)
            model(GRAPH, rows(), backend=backend)
        model.broken = False
        assert_equivalent(model, GRAPH, rows(), policies=["auto"])


def test_a_bad_row_of_the_input_raises_and_the_next_call_works() -> None:
    class Words(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (3,)})
            self.embed = nn.Embedding(5, 3)

        def forward(self, v: Any) -> None:
            h = self.embed(v.pull()) + v.gather().sum("h")
            v.scatter(h=h)
            v.push(h)

    model, g = Words(), weft.Graph.chain(3)
    for backend in ("eager", "reference"):
        with pytest.raises(IndexError, match="index out of range"):
            model(g, torch.tensor([1, 7, 2]), backend=backend)
    assert_equivalent(model, g, torch.tensor([1, 4, 2]))


def test_an_exception_in_backward_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()

    def stop(_: Tensor) -> None:
        raise Fails

    handle = model.w.weight.register_hook(stop)
    with pytest.raises(Fails):
        model(GRAPH, rows()).sum().backward()
    handle.remove()
    model.zero_grad()
    assert_equivalent(model, GRAPH, rows(), policies=["auto"])


# Memory.


class Box:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_saved_tensors_are_freed_by_backward() -> None:
    model, boxes = net(), []
    model(GRAPH, rows())

    def pack(tensor: Tensor) -> Box:
        box = Box(tensor)
        boxes.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        result = model(GRAPH, rows())
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


WIDE = 256


def wide_net() -> Net:
    class Wide(weft.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={"h": (WIDE,)})
            self.u = nn.Linear(WIDE, WIDE, bias=False)

        def forward(self, v: Any) -> None:
            h = torch.tanh(v.pull() + self.u(v.gather().sum("h")))
            v.scatter(h=h)
            v.push(h)

    return Wide()  # type: ignore[return-value]


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
    model, x = wide_net(), torch.randn(63, WIDE, requires_grad=True)
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
    model = wide_net()
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


# Copies.


def test_a_deep_copy_has_its_own_parameters_and_caches() -> None:
    model = net()
    before = model(GRAPH, rows())
    twin = copy.deepcopy(model)
    assert torch.equal(twin(GRAPH, rows()), before)
    with torch.no_grad():
        twin.w.weight.zero_()
    assert torch.equal(model(GRAPH, rows()), before)
    assert not torch.equal(twin(GRAPH, rows()), before)
    twin(GRAPH, rows()).sum().backward()
    assert model.w.weight.grad is None and twin.w.weight.grad is not None
    assert_equivalent(twin, GRAPH, rows(), policies=["auto"])


def test_pickle_and_save_keep_the_model_and_none_of_its_caches() -> None:
    model = net()
    size = len(pickle.dumps(model))
    before = model(GRAPH, rows())
    data = pickle.dumps(model)
    assert len(data) <= size + 64
    assert torch.equal(pickle.loads(data)(GRAPH, rows()), before)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(GRAPH, rows()), before)


def test_state_dicts_hold_parameters_and_buffers_only() -> None:
    model = net()
    model(GRAPH, rows()).sum().backward()
    assert set(model.state_dict()) == {"w.weight", "w.bias", "u.weight", "u.bias", "shift"}
    other = Net()
    other(GRAPH, rows())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(GRAPH, rows()), model(GRAPH, rows()))


def test_a_model_is_freed_with_its_caches() -> None:
    model = net()
    model(GRAPH, rows()).sum().backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_the_sum_over_children_is_also_interrupted_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    model, g = wide_net(), weft.Graph.full_binary_tree(8)
    x = torch.randn(g.num_vertices, WIDE)
    expected = model(g, x, policy="depth")
    with monkeypatch.context() as patched:

        def stop(self: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(_Sum, "__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            model(g, x, policy="depth")
    assert torch.equal(model(g, x, policy="depth"), expected)


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
