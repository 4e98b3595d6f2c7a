"""Cells that work on plain objects: as `self`, as arguments, in partial functions; what these hold is found and watched."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop, inputs
from weft.graph import capture
from weft.graph import cell as tracing
from weft.graph.capture import Surroundings

F64 = torch.float64


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double()


def weight() -> Tensor:
    return torch.linspace(-1, 1, 3, dtype=F64).requires_grad_()


class Scorer:
    """A class that is no module, with one."""

    def __init__(self) -> None:
        self.layer, self.w, self.scale = layer(), weight(), 1.0

    @weft.cell
    def step(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() * self.w * self.scale


class Slotted:
    __slots__ = ("layer", "scale", "w")

    def __init__(self) -> None:
        self.layer, self.w, self.scale = layer(), weight(), 1.0

    @weft.cell
    def step(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() * self.w * self.scale


class Inherited(Scorer):
    pass


@dataclasses.dataclass(eq=False)
class Fields:
    layer: nn.Linear = dataclasses.field(default_factory=layer)
    w: Tensor = dataclasses.field(default_factory=weight)
    scale: float = 1.0

    @weft.cell
    def step(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh() * self.w * self.scale


OBJECTS = [Scorer, Slotted, Inherited, Fields]


def learned(run: Callable[[], Tensor], parameters: list[Tensor]) -> list[Tensor | None]:
    """The gradients of what is trained, with a head outside of the call."""
    for parameter in parameters:
        parameter.grad = None
    (run() ** 2).sum().backward()
    return [parameter.grad for parameter in parameters]


def assert_learns(fn: Callable[[Tensor], Tensor], *parameters: Tensor) -> None:
    """It is traced, and everything gets the gradients of the loop."""
    given = inputs()
    wanted = learned(lambda: torch.stack([fn(x) for x in given]), list(parameters))
    assert all(one is not None for one in wanted)
    for backend in ("auto", "eager", "reference"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net = weft.batched(fn, backend=backend)
            for _ in range(2):
                found = learned(lambda net=net: net(given), list(parameters))  # type: ignore[misc]
                for one, other in zip(found, wanted, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", OBJECTS)
def test_what_a_plain_object_holds_learns(make: Callable[[], Any]) -> None:
    one = make()
    assert_learns(lambda x: one.step(one.step(x)), one.w, *one.layer.parameters())


@pytest.mark.parametrize("make", OBJECTS)
def test_what_changes_in_a_plain_object_is_noticed(make: Callable[[], Any]) -> None:
    one = make()
    net = weft.batched(lambda x: one.step(x))

    def check() -> None:
        assert torch.allclose(net(inputs()), torch.stack([one.step(x) for x in inputs()]), rtol=1e-12)

    check()
    one.scale = 2.0
    check()
    one.w = torch.ones(3, dtype=F64, requires_grad=True)
    check()
    one.layer = nn.Linear(3, 3).double()
    check()
    with torch.no_grad():
        one.layer.weight.mul_(3)
    check()
    assert_learns(lambda x: one.step(x), one.w, *one.layer.parameters())


def test_what_changes_in_an_argument_is_noticed() -> None:
    settings = Holder(scale=1.0, inner=Holder(shift=[0.0]), size=1)
    scaled = weft.cell(lambda x, s: (x * s.scale + s.inner.shift[0]).repeat(s.size))
    net = weft.batched(lambda x: scaled(x, settings))
    given = inputs()
    assert torch.equal(net(given), given)
    settings.scale = 2.0
    assert torch.equal(net(given), given * 2)
    settings.inner.shift[0] = 1.0
    assert torch.equal(net(given), given * 2 + 1)
    settings.inner = Holder(shift=[3.0])
    assert torch.equal(net(given), given * 2 + 3)
    settings.size = 2
    assert torch.equal(net(given), (given * 2 + 3).repeat(1, 2))


def test_what_changes_in_the_class_of_an_argument_is_noticed() -> None:
    class Settings:
        scale = 1.0

    settings = Settings()
    scaled = weft.cell(lambda x, s: x * s.scale)
    net = weft.batched(lambda x: scaled(x, settings))
    assert torch.equal(net(inputs()), inputs())
    Settings.scale = 2.0
    assert torch.equal(net(inputs()), inputs() * 2)
    settings.scale = 3.0
    assert torch.equal(net(inputs()), inputs() * 3)


def test_partial_functions() -> None:
    w, one = weight(), layer()
    assert_learns(weft.cell(functools.partial(lambda w, x: x * w, w)), w)
    assert_learns(weft.cell(functools.partial(lambda x, *, m: m(x), m=one)), *one.parameters())
    applied = weft.cell(lambda f, x: f(x))
    part = functools.partial(torch.mul, w)
    assert_learns(lambda x: applied(part, x), w)


def test_functions_as_arguments() -> None:
    w, one, applied, factor = weight(), layer(), weft.cell(lambda f, x: f(x)), [2.0]
    assert_learns(lambda x: applied(lambda y: y * w, x), w)
    assert_learns(lambda x: applied(lambda y: one(y), x), *one.parameters())
    net = weft.batched(lambda x: applied(lambda y: y * factor[0], x))
    assert torch.equal(net(inputs()), inputs() * 2)
    factor[0] = 3.0
    assert torch.equal(net(inputs()), inputs() * 3)


def test_functions_as_arguments_that_close_over_values() -> None:
    applied = weft.cell(lambda f, x: f(x))

    def fn(x: Tensor) -> Tensor:
        total = x.sum()
        return applied(lambda y: y * total + factor, x)  # type: ignore[no-any-return]

    factor = 2.0
    assert_equals_loop(fn, inputs())


def test_functions_that_are_made_anew_and_do_the_same_are_one_kind_of_call() -> None:
    one, applied = layer(), weft.cell(lambda f, x: f(x))
    batches = [
        weft.plan(fn, inputs()).stats()["batches"] for fn in (lambda x: applied(lambda y: one(y), x), lambda x: applied(one, x))
    ]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("kind", [set, frozenset, deque, list, tuple])
def test_modules_and_tensors_in_containers(kind: Any) -> None:
    one, w = layer(), weight()
    holder = Holder(parts=kind([one]), tensors=kind([w]))
    step = weft.cell(lambda h, x: next(iter(h.parts))(x) * next(iter(h.tensors)))
    assert_learns(lambda x: step(holder, x), w, *one.parameters())


def test_a_plain_object_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Scorer()
    net = weft.batched(lambda x: one.step(x))
    net(inputs())
    monkeypatch.setattr(tracing, "_tape", lambda *_: pytest.fail("traced again"))
    for _ in range(2):
        assert torch.allclose(net(inputs()), torch.stack([one.step(x) for x in inputs()]), atol=1e-6)


def test_dropout_in_a_plain_object_follows_its_mode() -> None:
    holder = Holder(drop=nn.Dropout(0.5))
    holder.drop.eval()
    step = weft.cell(lambda h, x: h.drop(x))
    net = weft.batched(lambda x: step(holder, x), dedupe=True)
    given = torch.ones(8, 64)
    assert torch.equal(net(given), given)
    holder.drop.train()
    found = net(given)
    assert not torch.equal(found[0], found[1])
    holder.drop.eval()
    assert torch.equal(net(given), given)


def test_a_parameter_that_is_not_found_is_no_silent_loss() -> None:
    one = layer()
    hidden = weakref.ref(one)

    @weft.cell
    def secret(x: Tensor) -> Tensor:
        found = hidden()
        assert found is not None
        return found(x)  # type: ignore[no-any-return]

    net = weft.batched(lambda x: secret(x))
    for _ in range(2):
        with pytest.warns(weft.FallbackWarning) if _ == 0 else contextlib.nullcontext(), pytest.raises(weft.TraceError) as told:
            net(inputs())
        assert str(told.value) == (
            "test_a_parameter_that_is_not_found_is_no_silent_loss.<locals>.secret uses a parameter of shape [3] that is not "
            "found in its modules, attributes, arguments, closure or globals; keep it in one of them, or pass it as an argument"
        )
    with torch.no_grad():
        assert torch.equal(net(inputs()), torch.stack([one(x) for x in inputs()]))


def test_what_a_logger_holds_is_not_looked_through() -> None:
    holder = Holder(log=logging.getLogger("weft.test"), layer=layer())
    around = Surroundings().add(holder)
    assert len(around.objects) < 20
    assert len(around.tensors) == 2


def test_a_tensor_of_a_plain_object_is_not_replaced_in_between() -> None:
    one = Slotted()
    before = one.w

    def fn(x: Tensor) -> Tensor:
        found = one.step(x)
        one.w = found
        return found

    with pytest.raises(weft.TraceError) as told:
        weft.batched(fn)(inputs()[:1])
    assert str(told.value) == (
        "another tensor was put in the place of a tensor of the model (w, of shape [3]), which Slotted.step uses in the same "
        "recording and would see as it is at the end; replace it before or after the batched call, or keep what changes from "
        "example to example in a variable"
    )
    assert one.w is before


class Everything:
    """Leads to all that a program has, and to a layer."""

    def __init__(self, many: int) -> None:
        self.near = layer()
        self.far: Any = None
        for number in range(many):
            self.far = [number, self.far]


def test_of_all_that_a_program_has_the_nearest_is_found() -> None:
    program = Everything(1000)
    found = capture.Surroundings(_room=50).add(program)
    assert len(found._alive) < 100 and program.near in found.modules
    net = weft.batched(weft.cell(lambda x: program.near(x)))
    net(inputs()).sum().backward()
    assert program.near.weight.grad is not None


def test_what_installed_packages_keep_to_themselves_is_not_looked_for() -> None:
    """An `assert` in code of a test calls functions of pytest, which know of all tests."""

    def checked(x: Tensor) -> Tensor:
        assert x.shape == (2,), "of a test"
        return x * 2

    found = capture.Surroundings().add(checked)
    assert len(found._alive) < 20, [type(one) for one in found._alive]
