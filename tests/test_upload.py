"""Index arrays go to a device in one piece; each is found there by where it lies here."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import weft
from weft.api.vertexcall import VertexCall
from weft.graph import segments
from weft.graph.program import Ints
from weft.plan.library import address
from weft.plan.native import device_parts
from weft.plan.plan import Plan
from weft.plan.returns import returns
from weft.run.gpu.pinned import SIZE, SLOTS, Driver, Ring
from weft.run.gpu.table import step_table
from weft.run.indices import Indices
from weft.run.options import DEFAULT
from weft.run.upload import ALIGNED, Uploaded, as_tensor

CPU = torch.device("cpu")


def test_arrays_are_found_in_their_blocks() -> None:
    first, second = np.arange(7, dtype=np.int32), np.arange(100, 112, dtype=np.int32).reshape(3, 4)
    there = Uploaded([(address(one), one.size) for one in (first, second)], CPU)
    for array in (first, first[2:5], second, second[1]):
        found = there.tensor(array)
        assert found is not None
        assert found.tolist() == array.reshape(-1).tolist()
    start = there.tensor(second)
    assert start is not None
    assert (start.data_ptr() - there.memory.data_ptr()) % (4 * ALIGNED) == 0
    assert there.tensor(np.arange(3, dtype=np.int32)) is None


def _step_tables(plan: Plan) -> list[Ints]:
    return [step_table(plan, number) for number, group in enumerate(plan.groups) if group.cyclic]


def tree_plan() -> Plan:
    graph = weft.Graph.batch([weft.Graph.full_binary_tree(n) for n in (2, 4, 8)])
    call = VertexCall(weft.nn.ChildSumTreeLSTM(2, 3), graph, torch.randn(graph.num_vertices, 2), None, None, None, DEFAULT)
    return call.plan()[0]


def test_what_a_plan_is_read_by_comes_from_one_copy() -> None:
    """Also in a plan that was not made in C, whose arrays are pieces of their own."""
    plan = tree_plan()
    assert _step_tables(plan)
    for in_parts in (True, False):
        if in_parts and not device_parts(plan, False):
            continue
        if not in_parts:
            plan = replace(plan)
        indices = Indices(plan, CPU)
        indices.bring(True, partial(_step_tables, plan))
        (there,) = indices.there
        memory = there.memory
        read = [*plan.rows, *(one.index for one in plan.reads), *_step_tables(plan)]
        read += [one.single for one in returns(plan).values() if one.single is not None]
        for array in (array for array in read if len(array)):
            found = indices.tensor(array)
            assert torch.equal(found, as_tensor(array, CPU).reshape(-1))
            assert found.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def test_a_plan_that_was_used_without_gradients_gets_its_way_back_later() -> None:
    plan = tree_plan()
    indices = Indices.of(plan, CPU)
    for training, pieces in ((False, 1), (False, 1), (True, 2), (True, 2), (False, 2)):
        indices.bring(training, partial(_step_tables, plan))
        assert len(indices.there) == pieces
    single = next(one.single for one in returns(plan).values() if one.single is not None)
    assert indices.tensor(single).untyped_storage().data_ptr() == indices.there[1].memory.untyped_storage().data_ptr()


def test_every_stream_has_its_own_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is in order with what is launched on its stream, and with nothing else."""
    plan, found = tree_plan(), dict[int, Indices]()
    for stream in (3, 4, 3, 4):
        monkeypatch.setattr("weft.run.indices.current_stream", lambda device, stream=stream: stream)
        indices = Indices.of(plan, CPU)
        assert found.setdefault(stream, indices) is indices
    assert found[3] is not found[4]


def test_while_launches_are_captured_nothing_is_copied_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some stream the way back is there, too."""
    plan = tree_plan()
    for stream, training in ((3, False), (4, True), (6, False)):
        monkeypatch.setattr("weft.run.indices.current_stream", lambda device, stream=stream: stream)
        Indices.of(plan, CPU).bring(training, partial(_step_tables, plan))
    monkeypatch.setattr("weft.run.indices.current_stream", lambda device: 4)
    there = Indices.of(plan, CPU)
    monkeypatch.setattr("weft.run.indices.current_stream", lambda device: 5)
    with monkeypatch.context() as capturing:
        capturing.setattr("weft.run.indices.is_capturing", lambda device: True)
        assert Indices.of(plan, CPU) is there
    assert Indices.of(plan, CPU) is not there


def test_while_launches_are_captured_counts_are_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_counting", {})
    assert segments._while_captured(3, CPU).tolist() == [0, 1, 2] and not segments._counting
    kept = segments.count_to(2000, CPU)
    assert segments._while_captured(3, CPU).data_ptr() == kept.data_ptr()


class Slow(Driver):
    """Copies when it is told to, not when it is asked to."""

    def __init__(self) -> None:
        self.pending: dict[int, tuple[int, int, int]] = {}
        self.asked: tuple[int, int, int] | None = None
        self.events = 0
        calls = ctypes.CFUNCTYPE(*[ctypes.c_int, ctypes.c_int64]), ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 4)
        self.kept = (
            calls[0](lambda event: 600 * (event in self.pending)),
            calls[0](self.wait),
            calls[1](self.copy),
            ctypes.CFUNCTYPE(*[ctypes.c_int] + [ctypes.c_int64] * 2)(self.record),
        )
        self.functions = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self.kept]

    def event(self) -> int:
        self.events += 1
        return self.events - 1

    def wait(self, event: int) -> int:
        if event in self.pending:
            ctypes.memmove(*self.pending.pop(event))
        return 0

    def copy(self, into: int, source: int, count: int, stream: int) -> int:
        self.asked = into, source, count
        return 0 if stream == 7 else 1

    def record(self, event: int, stream: int) -> int:
        assert self.asked is not None
        self.pending[event] = self.asked
        return 0


def test_pinned_memory_is_used_again_when_its_copy_is_done() -> None:
    driver = Slow()
    ring = Ring(torch.empty(SLOTS * SIZE, dtype=torch.uint8), driver)
    sent = [np.full(5, number, dtype=np.int32) for number in range(3 * SLOTS)]
    found = [torch.zeros(8, dtype=torch.int32) for _ in sent]
    for array, place in zip(sent, found, strict=True):
        ring.send([(address(array), 8, 0), (address(array) + 8, 12, 16)], place.data_ptr(), 28, 7)
    for event in range(SLOTS):
        driver.wait(event)
    for number, place in enumerate(found):
        assert place.tolist() == [number, number, *place[2:4].tolist(), number, number, number, 0]


def test_memory_that_is_free_is_used_before_any_other() -> None:
    driver = Slow()
    ring = Ring(torch.empty(SLOTS * SIZE, dtype=torch.uint8), driver)
    sent, place = np.arange(3, dtype=np.int32), torch.zeros(3, dtype=torch.int32)
    used = []
    for done in ((), (), (0,), (), (1, 2)):
        for event in done:
            driver.wait(event)
        before = set(driver.pending)
        ring.send([(address(sent), 12, 0)], place.data_ptr(), 12, 7)
        used += set(driver.pending) - before
    assert used == [0, 1, 0, 2, 1]


def test_a_copy_that_the_driver_refuses_is_an_error() -> None:
    ring = Ring(torch.empty(SLOTS * SIZE, dtype=torch.uint8), Slow())
    with pytest.raises(RuntimeError, match=r"CUDA refused a copy \(code 1\)"):
        ring.send([], 0, 0, 5)
