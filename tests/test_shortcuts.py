"""Shortcuts in C record what the Python functions record, and no Python of weft runs for a call that was seen before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from examples import early_exit, parser, sampler, tagger, tree_decoder, tree_lstm
from torch import Tensor, nn

import weft
from weft.lazy import patches, shortcuts
from weft.lazy.arguments import split
from weft.lazy.batched import Batched, Recorder
from weft.lazy.kinds import kind_of
from weft.lazy.mode import Recording
from weft.lazy.pools import Rows
from weft.lazy.state import State
from weft.lazy.tape import Tape
from weft.lazy.value import Value

needs_shortcuts = pytest.mark.skipif(shortcuts.shortcut_type() is None, reason="no C compiler, or no headers of Python")


def record(model: Any, *inputs: Any, granularity: str = "auto") -> Tape:
    """What recording these examples leaves on the tape."""
    count, items = split(inputs, None)
    batched = Batched(model, True, None, None, granularity, {})
    fibers, _ = Recorder(batched, count, items, {}, "cpu").record()
    return fibers.tape


def without_shortcuts(patch: pytest.MonkeyPatch) -> None:
    """Put the Python functions back."""
    made = shortcuts.shortcut_type()
    for holder in (Value, Recording, Tape):
        for name, method in list(vars(holder).items()):
            inner = getattr(method, "__func__", method)
            if isinstance(inner, made):
                patch.setattr(holder, name, staticmethod(inner.fallback) if inner is not method else inner.fallback)
    exchanged = [(where, name, theirs, getattr(ours, "fallback", ours)) for where, name, theirs, ours in patches.PATCHES]
    patch.setattr(patches, "PATCHES", exchanged)


def content(tape: Tape) -> tuple[Any, ...]:
    """Types by the order in which they come up: where Python calls Python, the interpreter moves the place of a call once."""
    number: dict[int, int] = {}
    types = [number.setdefault(t, len(number)) for t in tape.type]
    ops = [tape.state.fines[t] for t in number]
    data = {number[t]: [row.tolist() if isinstance(row, Tensor) else row for row in rows] for t, rows in tape.data.items()}
    return tape.next, tape.floor, types, ops, tape.arguments, tape.further, data, tape.bounds


class Mixed(nn.Module):
    """Every form of call that has a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.linear, self.weight = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.pair = nn.Bilinear(4, 4, 4)

    def forward(self, number: int, x: Tensor) -> Tensor:
        h = self.linear(self.embed(torch.tensor(number))) + self.pair(self.linear(x), self.linear(x) * 2)
        h = (1.5 * h - self.weight) / 3 + torch.cat([h[:2], h[2:]]) + h[0] + h[torch.tensor(number % 4)] * torch.tensor(True)
        left, right = torch.tanh(h).chunk(2)
        scores = F.log_softmax(torch.stack([left, right]).sum(0), dim=0)
        return F.cross_entropy(scores, torch.tensor(number % 2), reduction="sum") + F.relu(h).sum() + h.softmax(0).max()


def mixed(count: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return Mixed(), list(range(count)), torch.randn(count, 4)


class Functional(nn.Module):
    """Functions of torch.nn.functional, which are Python, with keywords, zeros, and other modes on the stack."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, number: int) -> Tensor:
        h = self.linear(F.one_hot(torch.tensor(number % 4), 4).float())
        for _ in range(4):
            h = F.relu(h) + F.softmax(h, dim=0) * 0.0 + F.leaky_relu(h, 0.0).clamp(min=0.0)
            h = F.layer_norm(h, (4,)) + F.dropout(h, 0.0, True)
        return F.cross_entropy(h, torch.tensor(number % 4))


def functional(count: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return Functional(), list(range(count))


class Varying(nn.Module):
    """Operators with numbers that are others in every example."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)

    def forward(self, number: int) -> Tensor:
        h = self.embed(torch.tensor(number))
        for step in range(12):
            h = (h * (0.1 * number + step) - step) / (step + 1.5)
        return h.sum()


def varying(count: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return Varying(), list(range(1, count + 1))


MODELS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "mixed": mixed,
    "functional": functional,
    "varying": varying,
    "tree_lstm": tree_lstm.example,
    "unmarked": lambda count: tree_lstm.example(count, marked=False),
    "tagger": tagger.example,
    "parser": parser.example,
    "early_exit": early_exit.example,
    "sampler": sampler.example,
    "tree_decoder": tree_decoder.example,
}


@needs_shortcuts
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("granularity", ["auto", "operator"])
def test_shortcuts_record_what_python_records(name: str, granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *inputs = MODELS[name](6)
    for _ in range(2):  # the first call learns, and remembers what it learns
        record(model, *inputs, granularity=granularity)
    made = record(model, *inputs, granularity=granularity)
    with monkeypatch.context() as patch:
        without_shortcuts(patch)
        assert content(record(model, *inputs, granularity=granularity)) == content(made)


RECORDING = frozenset(f"weft.lazy.{name}" for name in ("calls", "mode", "modules", "quick", "shortcuts", "varying"))


@needs_shortcuts
@pytest.mark.parametrize("name", ["tree_lstm", "unmarked", "functional", "varying"])
def test_no_python_of_weft_runs_for_a_call_that_was_seen_before(name: str) -> None:
    def python_calls(count: int) -> int:
        seen = 0

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal seen
            where = frame.f_globals.get("__name__") if event == "call" else None
            seen += where in RECORDING

        sys.setprofile(profile)
        try:
            record(model, inputs[0][:1] * count)
        finally:
            sys.setprofile(None)
        return seen

    model, *inputs = MODELS[name](1)
    for _ in range(3):
        record(model, inputs[0][:1] * 2)
    few, many = python_calls(2), python_calls(12)
    calls = record(model, inputs[0][:1]).num_calls
    per_call = (many - few) / 10 / calls
    assert calls > 20
    assert per_call < 0.1, f"{per_call:.2f} Python calls of weft for each recorded call"  # a few for each example remain


@needs_shortcuts
def test_numbers_are_asked_for_in_python_once_for_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> tuple[Tensor, list[float]]:
        asked = []
        for _ in range(3):
            x = x * 2
            asked.append(float(x))
        return x, asked

    asked = 0
    ready = Rows.ready

    def counted(self: Rows) -> Any:
        nonlocal asked
        asked += 1
        return ready(self)

    monkeypatch.setattr(Rows, "ready", counted)
    net = weft.batched(fn, stack=False)
    found = [net(torch.arange(5.0))]
    assert asked == 3
    without_shortcuts(monkeypatch)
    found.append(net(torch.arange(5.0)))
    assert asked == 3 + 3 * 5
    assert found[0] == found[1] == [(torch.tensor(8.0 * at), [2.0 * at, 4.0 * at, 8.0 * at]) for at in range(5)]


@needs_shortcuts
def test_numbers_that_are_known_are_told_without_python() -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("weft"):
            seen.append(frame.f_code.co_name)

    with weft.batching():
        values = [torch.full(shape, 2.0) * number for shape in ((), (1,), (1, 1)) for number in (0, 3)]
        assert [float(value) for value in values] == [0.0, 6.0] * 3
        sys.setprofile(profile)
        told = [(value.item(), bool(value), int(value), float(value)) for value in values]
        sys.setprofile(None)
    assert told == [(0.0, False, 0, 0.0), (6.0, True, 6, 6.0)] * 3
    assert [type(number) for number in told[1]] == [float, bool, int, float]
    assert seen == []


@needs_shortcuts
def test_values_that_python_makes_are_noted() -> None:
    tape, kind = Tape(State(None), "auto", "cpu"), kind_of((2,), torch.float32)
    made = Tape.make(tape, 4096, kind)
    assert (type(made), made._tape, made._ref, made._kind, tape.values) == (Value, tape, 4096, kind, None)
    tape.track()
    made = Tape.make(tape, 8192, kind)
    assert tape.values is not None
    assert len(tape.values) == 1
    assert tape.values[0] is made


def test_modes_of_the_user_see_functions_that_are_written_in_python() -> None:
    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def fn(x: Tensor) -> Tensor:
        h = F.relu(x)
        with Watch():
            h = F.relu(h)
        return F.relu(h)

    net = weft.batched(fn)
    for _ in range(3):
        seen: list[Any] = []
        net(torch.ones(2, 3))
        assert seen.count(F.relu) == 2


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_shortcuts), False])
def test_a_stack_hands_nothing_in_before_it_is_used(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(2, 2)

    def fn(x: Tensor) -> Any:
        rows = [linear(x), linear(x)]
        assert bool(rows[0].sum() < 100.0)
        stack = torch.stack(rows)
        return stack.shape, rows[0] * 2

    if not native and shortcuts.shortcut_type() is not None:
        without_shortcuts(monkeypatch)
    for _ in range(2):
        assert len(record(fn, torch.ones(3, 2)).arguments) == 3


@needs_shortcuts
def test_a_shortcut_reads_as_the_function_that_it_stands_for() -> None:
    assert Value.tanh.__doc__ == "As `torch.Tensor.tanh`, recorded."
    assert Value.__add__.__name__ == "__add__"


def test_functions_of_torch_are_themselves_while_code_is_recorded() -> None:
    acts = {torch.tanh: "tanh", F.relu: "relu"}

    def fn(x: Tensor, op: Any) -> Tensor:
        assert acts[op] and (op is torch.tanh or op is F.relu)
        return op(x)

    found = weft.batched(fn)(torch.tensor([[1.0], [-1.0]]), [torch.tanh, F.relu])
    torch.testing.assert_close(found, torch.tensor([[1.0], [0.0]]).tanh())


@needs_shortcuts
def test_numbers_that_vary_at_a_place_are_fed_from_then_on() -> None:
    def fn(x: Tensor, at: int) -> Tensor:
        return (torch.ones(10) + x)[at]

    x = torch.arange(60.0).reshape(6, 10)
    for _ in range(2):
        result = weft.batched(fn)(x, list(range(6)))
    assert result.tolist() == [1.0, 12.0, 23.0, 34.0, 45.0, 56.0]
    assert len(set(record(fn, x, list(range(6))).type)) == 3  # ones, add, and one kind of pick
