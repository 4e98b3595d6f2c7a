"""`weft.batched`: per-example code gives the numbers of the loop, in the shape that was promised."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import TREES, Node, assert_equals_loop, tree_net


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("granularity", ["auto", "operator", "cell"])
def test_trees_equal_the_loop(marked: bool, granularity: str) -> None:
    model = tree_net(marked)
    assert_equals_loop(weft.batched(model, granularity=granularity), TREES)


def test_every_policy_and_backend_agrees() -> None:
    weft.testing.assert_equivalent(tree_net(), TREES)


def test_a_module_gives_a_module_with_its_own_keys() -> None:
    model = tree_net()
    net = weft.batched(model)
    assert isinstance(net, nn.Module)
    assert list(net.state_dict()) == list(model.state_dict())
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert net(TREES).shape == (4, 3)
    net.eval()
    assert not model.training and not model.node.training
    model.train()
    assert net.training
    net.float()
    assert model.out.weight.dtype == torch.float32
    assert net(TREES).dtype == torch.float32
    net.load_state_dict(tree_net().state_dict())
    assert net.encode(1).shape == (4,), "attributes are those of the module"
    twin = copy.deepcopy(net)
    assert twin.fn is not model and torch.equal(twin(TREES), net(TREES))
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(TREES), net(TREES))


def test_hooks_on_the_batched_module_fire_once() -> None:
    net, calls = weft.batched(tree_net()), []
    net.register_forward_hook(lambda *_: calls.append(1))
    net(TREES)
    assert calls == [1]


def test_a_marked_module_stays_what_it_is() -> None:
    plain, marked = Node(4), weft.cell(Node(4))
    assert isinstance(marked, Node) and list(marked.state_dict()) == list(plain.state_dict())
    assert marked.eval().linear.training is False
    twin = copy.deepcopy(marked)
    assert pickle.loads(pickle.dumps(twin)).state_dict().keys() == plain.state_dict().keys()
    x = torch.ones(4)
    assert isinstance(marked(x, x), Tensor)


def test_cells_may_be_functions_methods_and_classes() -> None:
    @weft.cell
    def scaled(nest: dict[str, Any], by: float) -> Any:
        return nest["a"] * by, {"b": nest["b"][0] - nest["a"]}

    @weft.cell
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halve, self.linear = Half(), nn.Linear(3, 3)

        @weft.cell
        def project(self, x: Tensor) -> Tensor:
            return self.linear(x).tanh()

        def forward(self, x: Tensor) -> Any:
            a, rest = scaled({"a": self.project(x), "b": [self.halve(x)]}, 2.0)
            return a, rest["b"]

    torch.manual_seed(0)
    assert_equals_loop(Net().double(), torch.randn(3, 3, dtype=torch.float64))


Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Both:
    value: Any
    count: int


def test_results_are_stacked_leaf_by_leaf() -> None:
    def fn(x: Tensor, n: int) -> Any:
        y = x * 2
        return {"pair": Pair(y, (n, n > 1)), "both": Both(y.sum(), n), "none": None, "name": f"example {n}", "half": n / 2}

    x = torch.arange(6.0).reshape(3, 2)
    found = weft.batched(fn)(x, [1, 2, 3])
    assert torch.equal(found["pair"].first, x * 2)
    assert torch.equal(found["pair"].second[0], torch.tensor([1, 2, 3]))
    assert torch.equal(found["pair"].second[1], torch.tensor([False, True, True]))
    assert isinstance(found["both"], Both) and torch.equal(found["both"].value, x.sum(1) * 2)
    assert found["none"] is None and found["name"] == ["example 1", "example 2", "example 3"]
    assert torch.equal(found["half"], torch.tensor([0.5, 1.0, 1.5]))
    separate = weft.batched(fn, stack=False)(x, [1, 2, 3])
    assert separate[1]["pair"].second == (2, True) and torch.equal(separate[2]["both"].value, x[2].sum() * 2)


def test_unequal_results_name_two_examples() -> None:
    x = torch.ones(3, 2)
    with pytest.raises(weft.ShapeError) as shapes:
        weft.batched(lambda x, n: (x * 2).repeat(n))(x, [2, 2, 1])
    assert str(shapes.value) == (
        "result of examples 0 and 2: float32[4] and float32[2] cannot be stacked; use weft.batched(fn, stack=False) for a list "
        "of the examples' results"
    )
    with pytest.raises(weft.StructureError) as structures:
        weft.batched(lambda x, n: (x * 2,) * n)(x, [1, 2, 1])
    assert str(structures.value) == (
        "examples 0 and 1 return different structures: (float32[2],) and (float32[2], float32[2]); use weft.batched(fn, "
        "stack=False) for a list of the examples' results"
    )
    with pytest.raises(weft.StructureError) as kinds:
        weft.batched(lambda x, n: {"a": None if n else 1})(x, [0, 1, 0])
    assert str(kinds.value) == (
        "result['a'] of examples 0 and 1: a Python int and None cannot be stacked; use weft.batched(fn, stack=False) for a "
        "list of the examples' results"
    )


def test_an_empty_batch_has_a_shape_once_one_is_known() -> None:
    net = weft.batched(tree_net())
    with pytest.raises(weft.StructureError, match="an empty batch"):
        net([])
    net(TREES)
    assert net([]).shape == (0, 3) and net([]).dtype == torch.float64
    assert weft.batched(net.fn, stack=False)(TREES[:1]) is not None
    assert weft.batched(net.fn, stack=False)([]) == []


def test_arguments_are_split_or_shared() -> None:
    def fn(x: Tensor, scale: Any, *, shift: float) -> Tensor:
        return x * scale + shift

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(weft.batched(fn)(x, 2.0, shift=1.0), x * 2 + 1)
    assert torch.equal(weft.batched(fn)(x, [2.0, 3.0], shift=0.0), x * torch.tensor([[2.0], [3.0]]))
    assert torch.equal(weft.batched(fn, in_dims=(1, None))(x, torch.tensor(2.0), shift=0.0), x.T * 2)
    with pytest.raises(weft.StructureError, match="argument 0 holds 2 examples, argument 1 holds 3"):
        weft.batched(fn)(x, [1.0, 2.0, 3.0], shift=0.0)
    with pytest.raises(weft.TypeMismatch, match="no argument holds examples"):
        weft.batched(fn)(1.0, 2.0, shift=0.0)


def test_gradients_reach_inputs_parameters_and_captured_tensors() -> None:
    torch.manual_seed(0)
    captured = torch.randn(3, dtype=torch.float64, requires_grad=True)
    table = torch.randn(4, 3, dtype=torch.float64)

    def fn(x: Tensor, i: int) -> Tensor:
        return (x * captured + table[i]).sum() * captured[i % 3]

    assert_equals_loop(fn, torch.randn(4, 3, dtype=torch.float64), [0, 1, 2, 3])


def test_writing_into_values_is_functional() -> None:
    def fn(x: Tensor) -> Any:
        out = torch.zeros(3, 2, dtype=torch.float64)
        same = out
        for i in range(3):
            out[i] = x * i
        y = x * 1
        y += 1
        y.mul_(2)
        y[0] = 5.0
        return out, same, y

    assert_equals_loop(fn, torch.randn(3, 2, dtype=torch.float64))


def test_grad_mode_and_autocast_belong_to_the_calls() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)

    def fn(x: Tensor) -> Any:
        with torch.no_grad():
            a = linear(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = linear(x)
        c = linear(x)
        return a, b, c, a.requires_grad, c.requires_grad, c.detach().requires_grad

    a, b, c, *flags = weft.batched(fn)(torch.randn(3, 3))
    assert not a.requires_grad and c.requires_grad and b.dtype == torch.bfloat16
    assert torch.allclose(a, c) and [bool(flag.all()) for flag in flags] == [False, True, False]
    with torch.no_grad():
        assert not weft.batched(linear)(torch.randn(3, 3)).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert weft.batched(lambda x: linear(x) * 2)(torch.randn(3, 3)).dtype == torch.bfloat16


def test_dropout_is_batched_and_repeats_with_the_seed() -> None:
    model = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5)).double()
    net = weft.batched(model)
    x = torch.ones(4, 3, dtype=torch.float64)
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(first, net(x))
    assert not torch.equal(first[0], first[1]), "examples draw independently"
    state = weft.lazy.state.state_of(model)
    assert [kind.random for kind in state.library.types if kind.name != "given"] == [True]
    assert torch.equal(weft.batched(model.eval())(x), model(x))


def test_nested_batches_are_recorded_in_the_outer_one() -> None:
    inner = weft.batched(lambda x, y: x * y)

    def outer(xs: Tensor) -> Tensor:
        return inner(xs, [xs[1], xs[0]]).sum(0) if weft.is_tensor(xs) else xs

    xs = torch.randn(3, 2, 4, dtype=torch.float64)
    assert_equals_loop(outer, xs)


def test_two_threads_record_independently() -> None:
    model, found, errors = tree_net(), {}, []
    models = [tree_net(), model, tree_net(), model]
    expected = torch.stack([model(tree) for tree in TREES])

    def work(name: int) -> None:
        try:
            net = weft.batched(models[name])
            for _ in range(5):
                found[name] = net(TREES)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for result in found.values():
        assert torch.allclose(result, expected, atol=1e-12)


def test_a_whole_function_may_be_the_unit() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3).double()
    fn = weft.batched(lambda x, n: linear(x).tanh().sum() * n, granularity="function")
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.allclose(fn(x, [1, 2, 1, 2]), linear(x).tanh().sum(1) * torch.tensor([1, 2, 1, 2]))
    kinds = [kind for kind in fn.state.library.types if kind.name != "given"]
    assert len(kinds) == 2, "constants are part of the signature"


def test_hooks_inside_a_cell_fire_once_per_batch_and_are_announced() -> None:
    torch.manual_seed(0)
    node, seen = weft.cell(Node(4).double()), []
    node.linear.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    x = torch.randn(5, 4, dtype=torch.float64)
    net = weft.batched(lambda x: node(x, x))
    with pytest.warns(weft.FallbackWarning, match=r"Node: a module in it carries hooks \(Linear\); it runs by plain vmap"):
        first = net(x)
    calls = len(seen)
    assert torch.allclose(net(x), first)
    assert len(seen) - calls == 1


def test_hooks_of_a_layer_see_values() -> None:
    linear, seen = nn.Linear(3, 3).double(), []
    linear.register_forward_hook(lambda module, args, out: seen.append(type(out)))
    weft.batched(linear)(torch.randn(2, 3, dtype=torch.float64))
    assert seen == [weft.Value, weft.Value]
