"""What captures ask of the driver, and that nothing is left behind where it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.run.gpu import capture

BEGIN, END, MAKE = "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"
DROP, LAUNCH, DESTROY = "cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy"
CPU = torch.device("cpu")


class FakeDriver:
    """Notes what it is asked, and refuses what it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuses: set[str] = set()

    def function(self, library: str, name: str) -> Callable[..., int]:
        def answer(*given: Any) -> int:
            self.asked.append(name)
            if name in (END, MAKE) and name not in self.refuses:
                (given[1] if name == END else given[0])._obj.value = 7  # the handle that is asked for
            return 901 if name in self.refuses else 0

        return answer


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(capture, "function", made.function)
    monkeypatch.setattr(capture, "blas_handle", lambda: 0)
    monkeypatch.setattr(capture, "_stream_beside", lambda device, stream: SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return made


def test_what_was_captured_is_launched_again_and_destroyed(driver: FakeDriver) -> None:
    graph, results = capture.captured(CPU, lambda: driver.asked.append("work") or 3)
    assert results == 3
    assert driver.asked == [BEGIN, "work", END, MAKE, DROP]
    graph.launch(0)
    graph.launch(0)
    del graph
    assert driver.asked[5:] == [LAUNCH, LAUNCH, DESTROY]


def test_an_error_ends_the_capture(driver: FakeDriver) -> None:
    with pytest.raises(ZeroDivisionError):
        capture.captured(CPU, lambda: 1 // 0)
    assert driver.asked == [BEGIN, END, DROP]


@pytest.mark.parametrize(
    ("refused", "asked"),
    [(BEGIN, [BEGIN]), (END, [BEGIN, END]), (MAKE, [BEGIN, END, MAKE, DROP])],
)
def test_refusals_are_told_and_leave_nothing_behind(driver: FakeDriver, refused: str, asked: list[str]) -> None:
    driver.refuses = {refused}
    with pytest.raises(RuntimeError, match=rf"^CUDA refused {refused} \(901\)$"):
        capture.captured(CPU, lambda: None)
    assert driver.asked == asked


def test_a_launch_that_is_refused_is_told(driver: FakeDriver) -> None:
    graph, _ = capture.captured(CPU, lambda: None)
    driver.refuses = {LAUNCH}
    with pytest.raises(RuntimeError, match=r"^CUDA refused to launch a graph \(901\)$"):
        graph.launch(0)


def test_without_the_functions_of_graphs_there_is_no_capture(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "function", lambda library, name: None)
    with pytest.raises(RuntimeError, match=rf"^CUDA refused {BEGIN} \(no such function\)$"):
        capture.captured(CPU, lambda: None)
    assert not capture.can_capture(CPU)
