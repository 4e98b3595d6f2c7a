"""What a flush finds out in C and by numpy is the same, array by array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from examples import early_exit, parser, sampler, tree_decoder
from torch import Tensor, nn

import weft
import weft.testing
from random_lazy import DIM, Interpreter, random_example
from weft.lazy import division, flush, leftover, native, pools, rewrite, taken
from weft.lazy.kinds import kind_of
from weft.lazy.leftover import Selection
from weft.lazy.pools import ROW_BITS
from weft.lazy.state import State
from weft.lazy.taken import Pending
from weft.lazy.tape import Tape
from weft.lazy.value import Value
from weft.run.callgraph import call_graph

pytestmark = pytest.mark.skipif(native.functions("weave", "weft_take") is None, reason="no C compiler")

EXAMPLES = {"parser": parser, "tree_decoder": tree_decoder, "early_exit": early_exit, "sampler": sampler}


def by_numpy(patch: pytest.MonkeyPatch, module: Any, work: Callable[[], Any]) -> Any:
    with patch.context() as inside:
        inside.setattr(module, "functions", lambda *_: None)
        return work()


def assert_equal(found: Any, wanted: Any, name: str = "") -> None:
    assert type(found) is type(wanted), name
    if isinstance(found, np.ndarray):
        assert found.dtype == wanted.dtype, name
        assert found.tolist() == wanted.tolist(), name
    elif hasattr(found, "__dataclass_fields__"):
        for field in found.__dataclass_fields__:
            if not field.startswith("_"):
                assert_equal(getattr(found, field), getattr(wanted, field), f"{name}.{field}")
    elif isinstance(found, list | tuple):
        assert len(found) == len(wanted), name
        for at, pair in enumerate(zip(found, wanted, strict=True)):
            assert_equal(*pair, f"{name}[{at}]")
    else:
        assert found is wanted if isinstance(found, Value) else found == wanted, name


class Compared:
    """While it is there, everything that C finds is compared with what numpy finds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.seen = patch, {"divided": 0, "left": 0, "rewritten": 0, "taken": 0}
        self.natively, self.divide, self.segment = rewrite._natively, division.divided, taken.segment
        patch.setattr(leftover, "divided", self.divided)
        patch.setattr(rewrite, "_natively", self.rewritten)
        for module in (leftover, taken):
            patch.setattr(module, "segment", self.taken)

    def taken(self, tape: Any) -> Pending:
        tape.taken = None
        wanted = by_numpy(self.patch, taken, lambda: self.segment(tape))
        tape.taken = None
        found = self.segment(tape)
        assert_equal(found, wanted)
        self.seen["taken"] += len(found.type) > 0
        return found

    def divided(self, tape: Any, *given: Any) -> Any:
        found = self.divide(tape, *given)
        if found is not None:
            assert_equal(found, by_numpy(self.patch, division, lambda: self.divide(tape, *given)))
            self.seen["divided"] += 1
            self.seen["left"] += bool(found.left.any() and found.runs.any())
        return found

    def rewritten(self, coarse: Any, state: Any, *given: Any) -> Any:
        found = self.natively(coarse, state, *given)
        if found is not None:
            graph = found.calls._cache["graph"]
            wanted = by_numpy(self.patch, rewrite, lambda: rewrite.rewrite(coarse, state, *given))
            assert_equal(found, wanted)
            assert_equal(graph, call_graph(state.library.types, replace(found.calls, _cache={})))
            self.seen["rewritten"] += 1
        return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_woven_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *inputs = EXAMPLES[name].example(24)
    net = weft.batched(model)
    net(*(given[:8] for given in inputs))
    compared = Compared(monkeypatch)
    for first in (8, 16):
        net(*(given[first : first + 8] for given in inputs))
    leaves = {"parser": 4, "tree_decoder": 4, "early_exit": 0, "sampler": 4}[name]
    assert min(compared.seen["divided"], compared.seen["rewritten"], compared.seen["taken"]) > 4
    assert compared.seen["left"] >= leaves


def test_random_programs_are_woven_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    net = weft.batched(Interpreter())
    compared = Compared(monkeypatch)
    for first in (1000, 1012, 1000, 1000):
        programs = [random_example(seed)[0] for seed in range(first, first + 12)]
        net(programs, torch.randn(12, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(first)))
    assert min(compared.seen["divided"], compared.seen["rewritten"], compared.seen["taken"]) > 4


def test_rows_are_found_source_by_source() -> None:
    found = pools.found_rows({9: 4 << ROW_BITS | 1, 2: 7, 5: 4 << ROW_BITS | 3}, np.array([2, 5, 9]))
    assert (found.rows.tolist(), found.place.tolist(), found.sources) == ([7, 3, 1], [0, 1, 2], [(0, 1), (4, 2)])
    with pytest.raises(KeyError, match="1000"):
        pools.found_rows({}, np.array([1000]))


def test_values_that_somebody_holds_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape(State(None), "auto", "cpu")
    tape.track()
    kind = kind_of((), torch.float32)
    made: Any = [SimpleNamespace(args=args, many=None, outs=(kind, kind)) for args in ((), (kind,))]
    tape.state.fines += made
    mine = [tape.make(tape, ref << 12 | 1, kind) for ref in (7, 3, 5, 3, 9)]
    assert len(mine) == 5
    for ref in (2, 8):
        tape.make(tape, ref << 12, kind)
    tape.results[5 << 12 | 1] = 0
    tape.waits = bytearray(10)
    starts, nothing = np.ones(8, bool), np.empty(0, np.int64)
    columns = np.zeros(7, np.int32), nothing, nothing.astype(np.int32), starts, np.zeros(7, np.int32)
    calls = Pending(np.arange(3, 10), *columns, {}, [])
    for alike in (lambda work: work(), lambda work: by_numpy(monkeypatch, division, work)):
        found = alike(lambda: division.divided(tape, calls, [tape.values or []], None, [], None))
        assert found.waiting == []
        assert found.wanted.tolist() == [3 << 12 | 1, 7 << 12 | 1, 9 << 12 | 1]
        assert found.runs.tolist() == [True, False, False, False, True, False, True]
        with pytest.raises(KeyError, match="4096"):
            alike(lambda: division.divided(tape, reading(calls, 1 << 12), [], None, [], np.array([9 << 12])))


def test_values_that_wait_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape(State(None), "auto", "cpu")
    tape.track()
    kind = kind_of((), torch.float32)
    made: Any = [SimpleNamespace(args=(), many=None, outs=(kind,)) for _ in range(2)]
    tape.state.fines += made
    tape.state.eager()[0] = True
    tape.waits = bytearray((0, 1, 0))  # one of three calls was left by an earlier flush
    tape.results |= {0: 0, 2 << 12: 1}
    mine = [tape.make(tape, ref << 12, kind) for ref in (0, 1, 3, 4, 5)]
    columns = np.array([0, 1, 0], np.int32), np.empty(0, np.int64), np.empty(0, np.int32), np.ones(4, bool)
    calls = Pending(np.arange(3, 6), *columns, np.array([0, 0, 1], np.int32), {}, [])
    for alike in (lambda work: work(), lambda work: by_numpy(monkeypatch, division, work)):
        found = alike(lambda: division.divided(tape, calls, [tape.values or []], [0], [], None))
        assert [value._ref >> 12 for value in found.waiting] == [1, 4, 5]
        assert found.left.tolist() == [False, True, True]
    assert len(mine) == 5


def reading(calls: Pending, ref: int) -> Pending:
    """The last call uses a result of an earlier flush."""
    return replace(calls, type=np.append(calls.type[:-1], 1).astype(np.int32), arguments=np.array([ref]))


class Twice(nn.Module):
    """What is left is used again by a later flush, and asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.late = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        late = self.late(x)
        if self.step(x).sum() > 0:
            x = x + 1
        again = self.late(late)
        if self.step(x).sum() > 0:
            again = again + late
        return again, float(again.detach().sum())


def test_what_was_left_is_there_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Twice().double(), torch.randn(6, 3, dtype=torch.float64)
    net = weft.batched(model)
    wholes: list[bool] = []
    run = flush.Flush.__init__

    def noted(self: Any, selection: Selection) -> None:
        wholes.append(selection.calls.holds_left)
        run(self, selection)

    monkeypatch.setattr(flush.Flush, "__init__", noted)
    weft.testing.assert_equivalent(model, x)
    first = net(x)
    assert any(wholes)
    wholes.clear()
    assert torch.equal(net(x)[0], first[0])
    assert not any(wholes), "what was needed before waits no more"
