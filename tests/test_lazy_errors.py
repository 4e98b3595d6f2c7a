"""Errors of batched code name the example and the way out; the next call works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.testing
from lazy_parts import TREES, tree_net


def test_what_would_silently_differ_raises() -> None:
    buffer = torch.zeros(2)

    def into_a_tensor(x: Tensor) -> Tensor:
        buffer[0] = (x * 2).sum()
        return x

    def changed_after(x: Tensor) -> Tensor:
        own = torch.tensor([1.0, 2.0])
        y = torch.zeros(2) + own
        own.add_(1)
        return y

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    cases = {
        into_a_tensor: "a Value cannot be written into a real tensor",
        changed_after: "was written into after a recorded operation had used it",
        lambda x: Double.apply(x * 2): "put the call into a weft.cell",
        lambda x: torch.vmap(torch.sin)(x * 2): "put the call into a weft.cell",
        lambda x: torch.func.grad(torch.sin)(x.sum() * (torch.zeros(()) + 2)): "put the call into a weft.cell",
        lambda x: (x * (torch.zeros(2) + 1)).backward(): "return it and call backward on the result",
        lambda x: torch.add(torch.zeros(2), x, out=buffer): "cannot be written into a given tensor",
    }
    for fn, message in cases.items():
        with pytest.raises(weft.TraceError) as error:
            weft.batched(lambda x, fn=fn: fn(torch.zeros(2) + x if fn not in (changed_after,) else x))(torch.ones(2, 2))
        assert message in str(error.value), str(error.value)
        assert fn is changed_after or error.value.__notes__ == ["in example 0"]
    assert torch.equal(buffer, torch.zeros(2))
    assert torch.equal(weft.batched(lambda x: x * 2)(torch.ones(2, 2)), torch.full((2, 2), 2.0)), "the next call works"


def test_einops_like_libraries_are_told_the_way_out() -> None:
    def picky(x: Any) -> Tensor:
        raise RuntimeError(f"Tensor type unknown {type(x)}")

    with pytest.raises(weft.TraceError, match=r"it insists on real tensors; put the call into a weft.cell"):
        weft.batched(lambda x: picky(x + torch.zeros(2)))(torch.ones(2, 2))


def test_an_error_names_the_example_and_leaves_nothing_behind() -> None:
    model = tree_net()
    net = weft.batched(model)
    with pytest.raises(IndexError) as error:
        net([1, (1, 2), ((1, 2), 99)])
    line = "return self.embed(torch.tensor(tree))"
    assert error.value.__notes__ == ["in example 2", f"recorded in TreeNet.encode, lazy_parts.py:32: {line}"]
    with pytest.raises(ValueError, match="not enough values to unpack") as unpack:
        net([1, (1,)])
    assert unpack.value.__notes__ == ["in example 1"]
    with pytest.raises(RuntimeError) as shapes:
        weft.batched(lambda x: torch.zeros(3) + (torch.zeros(2) + x))(torch.ones(2, 2))
    assert shapes.value.__notes__ == ["in example 0"]
    assert torch.allclose(net(TREES), torch.stack([model(tree) for tree in TREES]))
    assert nn.Module._call_impl.__qualname__ == "Module._call_impl"


def test_recursion_keeps_pythons_limit_and_names_the_example() -> None:
    def down(n: int, x: Tensor) -> Tensor:
        return x if n == 0 else down(n - 1, x * 1.0)

    with pytest.raises(RecursionError) as error:
        weft.batched(down)([3, 100000], torch.ones(2, 2))
    assert error.value.__notes__ == ["in example 1"]


def test_calls_that_raise_say_what_is_wrong() -> None:
    with pytest.raises(weft.TypeMismatch, match=r"weft.batched: expected a function or a module, got int"):
        weft.batched(3)  # type: ignore[arg-type]
    with pytest.raises(weft.TypeMismatch, match=r"weft.cell: expected a function, a module or a module class, got int"):
        weft.cell(3)  # type: ignore[type-var]
    with pytest.raises(weft.TypeMismatch, match="granularity: expected one of 'auto', 'operator', 'cell', 'function', got 'x'"):
        weft.batched(torch.sin, granularity="x")
    with pytest.raises(weft.TypeMismatch, match="unknown option 'polcy'"):
        weft.batched(torch.sin, polcy="auto")


def test_values_that_were_kept_aside_say_so() -> None:
    kept: list[Any] = []

    def fn(x: Tensor) -> Tensor:
        kept.append(x * torch.ones(2))
        return kept[-1]

    weft.batched(fn)(torch.ones(2, 2))
    with pytest.raises(weft.TraceError, match=r"belongs to a call of weft.batched that is over"):
        kept[0] + 1


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("convert", [float, int, complex, bool, torch.Tensor.item])
def test_conversions_of_several_numbers_raise_what_tensors_raise(convert: Any, count: int) -> None:
    with pytest.raises((ValueError, RuntimeError)) as expected:
        convert(torch.ones(count))
    with pytest.raises(type(expected.value)) as found:
        weft.batched(lambda x: convert(x.cos()) if convert is not torch.Tensor.item else x.cos().item())(torch.ones(2, count))
    assert str(found.value).splitlines()[0] == str(expected.value)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("mine")


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


class Looking(nn.Module):
    """Fails when the batch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(3, 2)

    def forward(self, index: Tensor) -> Tensor:
        return self.words(index)  # type: ignore[no-any-return]


@weft.cell
def failing_function(x: Tensor) -> Tensor:
    raise ValueError("mine")


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.parts = Failing(), nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 3)])
        self.cell, self.nested = weft.cell(Failing()), weft.cell(nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(3, 3))))
        self.look = weft.cell(Looking())

    def forward(self, way: str) -> Any:
        x = torch.ones(2)
        if way == "look":
            return self.look(torch.tensor(5))
        if way == "parts":
            return self.parts[1](x)
        if way == "function":
            return failing_function(x)
        return x if way == "" else getattr(self, way)(x)


@pytest.mark.parametrize(
    ("way", "note"),
    [
        ("inner", "in inner (Failing)"),
        ("cell", "in cell cell (Failing)"),
        ("parts", "in parts.1 (Linear)"),
        ("nested", "in nested.1.0 (Linear)"),
        ("function", "in cell failing_function"),
        ("look", "in look.words (Embedding)"),
    ],
)
def test_an_error_names_the_module_or_cell_by_its_path(way: str, note: str) -> None:
    for fn in (Outer(), Outer().forward):
        with pytest.raises((ValueError, RuntimeError, IndexError)) as error:
            weft.batched(fn)(["", way])
        assert error.value.__notes__[:2] == ["in example 1", note]


def test_an_error_in_code_that_is_no_module_names_the_path_from_the_first_module() -> None:
    outer = Outer()
    with pytest.raises(ValueError, match="mine") as error:
        weft.batched(lambda way: outer(way))(["", "inner"])
    assert error.value.__notes__ == ["in example 1", "in inner (Failing)"]


def test_a_cell_that_changes_its_own_tensors_is_named() -> None:
    counting = weft.cell(Counting())
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: counting(x))(torch.ones(2, 2))
    assert str(error.value) == (
        "Counting: it changes a parameter, buffer or outside tensor in place (add_), which would be done once for a batch, and "
        "not for every example; return what changes as a result, and change the tensor before or after the batched call"
    )
    assert counting.count == 0
