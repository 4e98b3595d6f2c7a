"""An interrupt at any moment leaves no mode, no recording and no exchanged function behind, and the next call works.

Python looks for signals where a function begins and where a call of C returns: a profile of one call counts these moments, in
weft and, for a known call, in torch. The call is then made again and again, each time with an exception raised at another one.
(While torch traces a backward pass, what is raised in its own code can end the whole process.)
"""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
from leftovers import left_behind

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
OURS = str(Path(weft.__file__).parent)
ALARMS = (KeyboardInterrupt, TimeoutError)


class Exits(nn.Module):
    """Asks for numbers, inside of a no_grad block, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.step(x)) + x
            with torch.no_grad():
                if x.norm() > 3:
                    break
        return self.out(x)


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.step(x)) * 2


class Chain(weft.VertexFunction):
    def __init__(self) -> None:
        super().__init__(state={"h": (2,)})
        torch.manual_seed(0)
        self.step, self.again = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.step(v.pull()) + self.again(v.gather(0)["h"]))
        v.scatter(h=h)
        v.push(h)


def asking() -> Callable[[], Tensor]:
    net = weft.batched(Exits())
    return lambda: net(X)


def keeping() -> Callable[[], Tensor]:
    net = weft.batched(Sums(), cache=lambda x: float(x[0]))

    def call() -> Tensor:
        net.cache_clear()
        return net(X)

    return call


def scope() -> Callable[[], Tensor]:
    model = Sums()

    def call() -> Tensor:
        with weft.batching():
            rows = [model(x) for x in X]
            total = torch.stack(rows)
        return weft.value(total)

    return call


def block() -> Callable[[], Tensor]:
    model = Sums()
    net = weft.batched(wb.Map(wb.Vector(4) >> wb.Function(model)) >> wb.Filter(wb.Function(torch.sum)) >> wb.Sum())
    return lambda: net([X[:2].tolist(), X[2:5].tolist()])


def vertices() -> Callable[[], Tensor]:
    model, graph = Chain(), weft.Graph.chain(6)
    return lambda: model(graph, X)


KINDS = [asking, keeping, scope, block, vertices]


def interrupted(call: Callable[[], Any], at: int, kind: type[BaseException], within: str = "") -> int:
    """Make the call and raise at that moment; how many moments there were in files of that folder."""
    moments = 0

    def hook(frame: Any, event: str, argument: Any) -> None:
        nonlocal moments
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(within):
            moments += 1
            if moments == at:
                raise kind("now")

    before = sys.getprofile()
    sys.setprofile(hook)
    try:
        call()
    except kind:
        pass
    finally:
        sys.setprofile(before)
    return moments


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ALARMS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_known_call_can_be_interrupted_anywhere(make: Callable[[], Any], kind: type[BaseException]) -> None:
    call = make()
    expected = call()
    count = interrupted(call, 0, kind)
    for at in range(1, count, max(1, count // 30)):
        interrupted(call, at, kind)
        assert left_behind() == [], f"after moment {at} of {count}"
        assert torch.allclose(call(), expected, atol=1e-6), f"after moment {at} of {count}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_first_call_can_be_interrupted_anywhere(make: Callable[[], Any]) -> None:
    expected = make()()
    count = interrupted(make(), 0, KeyboardInterrupt, OURS)
    for number, at in enumerate(range(1, count, max(1, count // 10))):
        call = make()
        interrupted(call, at, ALARMS[number % 2], OURS)
        assert left_behind() == [], f"after moment {at} of {count}"
        assert torch.allclose(call(), expected, atol=1e-6), f"after moment {at} of {count}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_alarms_can_interrupt(make: Callable[[], Any]) -> None:
    """Real signals, which come between any two instructions."""

    def ring(*_: Any) -> None:
        raise TimeoutError("ring")

    call = make()
    expected = call()
    start = time.perf_counter()
    call()
    took = time.perf_counter() - start
    before = signal.signal(signal.SIGALRM, ring)
    try:
        for number in range(1, 25):
            with suppress(TimeoutError):
                try:
                    signal.setitimer(signal.ITIMER_REAL, took * number / 25)
                    call()
                finally:  # it may ring here, too
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert left_behind() == [] and torch.allclose(call(), expected, atol=1e-6)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_scope_can_be_interrupted_as_soon_as_it_has_begun() -> None:
    """When its own code is done, but not yet what stands around it."""
    call = scope()
    expected = call()

    def hook(frame: Any, event: str, argument: Any) -> None:
        if event == "return" and frame.f_code.co_name == "__enter__" and frame.f_code.co_filename.endswith("scope.py"):
            raise KeyboardInterrupt

    before = sys.getprofile()
    with suppress(KeyboardInterrupt):
        sys.setprofile(hook)
        try:
            call()
        finally:
            sys.setprofile(before)
    assert left_behind() == [] and torch.allclose(call(), expected, atol=1e-6)


class Alarm(Exception):
    """An asynchronous exception of the user's own."""


def test_an_alarm_while_blocks_record_does_not_make_diagnosis_go_on_for_ever() -> None:
    calls = 0

    def endless(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise Alarm("ring")
        return x

    tree = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([]))
    deeper = wb.InputTransform(endless) >> wb.AllOf(wb.Scalar(), tree()) >> wb.Function(torch.add)
    tree.resolve_to(deeper)
    with pytest.raises(Alarm) as error:
        weft.batched(tree())([1.0])
    assert error.value.__notes__ == ["in example 0; recording it once more went well, so it is not known where"]
    assert calls < 2000


def test_a_timeout_is_not_looked_into() -> None:
    def late(x: Any) -> Any:
        raise TimeoutError("late")

    with pytest.raises(TimeoutError) as error:
        weft.batched(wb.InputTransform(late) >> wb.Scalar())([1.0])
    assert error.value.__notes__ == ["in example 0"]
    seen: list[int] = []

    @weft.cell
    def slow(x: Tensor) -> Tensor:
        seen.append(1)
        if len(seen) > 1:
            raise TimeoutError("slow")
        return x * 2

    with pytest.raises(TimeoutError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weft.batched(slow)(X)
    assert left_behind() == []
