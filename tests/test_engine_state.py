"""What a model keeps between calls: nothing that is stale, nothing that leaks, nothing that a copy would share."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def test_the_sum_over_children_is_also_interrupted_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    model, g = weft.nn.ChildSumTreeLSTM(2, 3), weft.Graph.full_binary_tree(8)
    x = rows(g)
    expected = model(g, x, policy="depth")
    with monkeypatch.context() as patched:

        def stop(self: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(_Sum, "__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            model(g, x, policy="depth")
    assert torch.equal(model(g, x, policy="depth"), expected)


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


def test_leaves_and_inner_vertices_push_one_dtype_under_autocast() -> None:
    torch.manual_seed(0)
    model, graph = weft.nn.NaryTreeLSTM(3, 4), weft.Graph([[], [], [0, 1]], types=[0, 0, 1])
    x = torch.randn(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = model(graph, x), model(graph, x, backend="reference")
    assert found.dtype == expected.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-2)
    assert torch.allclose(found, model(graph, x), atol=1e-2)
