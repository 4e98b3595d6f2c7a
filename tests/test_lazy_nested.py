"""Batched calls inside of batched functions and of scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import weft
from lazy_parts import assert_equals_loop, inputs
from weft.lazy.flush import Flush


def _layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double()


LAYER = _layer()
SEQUENCES = [inputs(8)[:3], inputs(8)[3:5], inputs(8)[5:]]
BRANCHES: dict[str, Callable[[Tensor], Tensor]] = {
    "on what was given": lambda row: row * 2 if row.sum() > 0 else row,
    "on a result": lambda row: LAYER(row) * 2 if LAYER(row).sum() > 0 else LAYER(row),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_an_inner_function_may_branch_on_numbers(name: str) -> None:
    inner = weft.batched(BRANCHES[name])
    assert_equals_loop(lambda rows: inner(rows).sum(0), SEQUENCES)
    assert_equals_loop(lambda rows: inner(LAYER(rows)).sum(0), SEQUENCES)
    assert_equals_loop(lambda rows: inner(list(LAYER(rows))).sum(0), SEQUENCES)


def test_a_stack_follows_what_was_left_for_the_last_flush() -> None:
    def fn(rows: Tensor) -> Tensor:
        parts = []
        for row in rows:
            parts.append(LAYER(row) if row.sum() > 99 else LAYER(row) * 2)
            if LAYER(row).sum() > 0:
                parts[-1] = parts[-1] + 1
        stack = torch.stack(parts)
        assert stack.requires_grad
        return stack.sum(0)

    assert_equals_loop(fn, SEQUENCES)


def test_a_batched_call_in_a_scope_takes_real_tensors() -> None:
    net = weft.batched(lambda row: torch.tanh(LAYER(row)))
    with weft.batching():
        found = net(SEQUENCES[0])
        total = found.sum() * 2
    expected = torch.tanh(LAYER(SEQUENCES[0]))
    assert torch.allclose(weft.value(found), expected)
    assert torch.allclose(weft.value(total), expected.sum() * 2)


def test_a_parameter_that_is_split_in_an_inner_call_gets_its_gradient() -> None:
    weight = nn.Parameter(inputs(2))
    inner = weft.batched(lambda row, x: row * x, in_dims=(0, None))
    assert_equals_loop(lambda x: inner(weight, x).sum(0), inputs())


def test_gradients_of_inner_results_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    known = weft.Value.requires_grad.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(weft.Value, "requires_grad", property(lambda value: asked.append(value) or known(value)))
    inner = weft.batched(lambda row: LAYER(row))
    weft.batched(lambda rows: inner(list(rows)).sum(0))(SEQUENCES)
    assert len(asked) == 1


def doubled(x: Tensor) -> Tensor:
    """As often as its numbers say."""
    while x.norm() < 8:
        x = x * 2 + torch.tanh(LAYER(x))
    return x


def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how many calls each flush on the way runs."""
    found: list[int] = []
    run = Flush.run

    def counted(flush: Flush, options: Any) -> None:
        found.append(len(flush.recorded.type))
        run(flush, options)

    monkeypatch.setattr(Flush, "run", counted)
    return found


def test_examples_of_inner_calls_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = weft.batched(doubled)
    innermost = weft.batched(lambda rows: inner(rows).sum(0) * 0.1)

    def fn(rows: Tensor) -> Tensor:
        return inner(innermost([rows, rows * 0.3]) + inner(rows)[0]).sum(0)

    assert_equals_loop(fn, SEQUENCES)
    counted = flushes(monkeypatch)
    weft.batched(doubled)([row for rows in SEQUENCES for row in rows])
    alone = len(counted)
    weft.batched(lambda rows: inner(rows).sum(0))(SEQUENCES)
    assert len(counted) == 2 * alone


def test_an_inner_error_can_be_caught_where_the_call_is_made() -> None:
    ended = []

    def strict(x: Tensor) -> Tensor:
        try:
            if x.sum() > 1:
                raise ValueError("too much")
            return doubled(x)
        finally:
            ended.append(1)

    inner = weft.batched(strict)

    def fn(rows: Tensor) -> Tensor:
        try:
            return inner(rows).sum(0)
        except ValueError:
            return LAYER(rows[0])

    raised = [bool((rows.sum(1) > 1).any()) for rows in SEQUENCES]
    assert any(raised) and not all(raised)
    assert_equals_loop(fn, SEQUENCES)
    ended.clear()
    with pytest.raises(ValueError, match="too much") as error:
        weft.batched(lambda rows: inner(rows).sum(0))(SEQUENCES)
    assert error.value.__notes__ == [f"in example {raised.index(True)}"]
    assert len(ended) == sum(map(len, SEQUENCES))  # those that wait are ended, too
    assert_equals_loop(doubled, SEQUENCES[0])


class Seen(TorchFunctionMode):
    """Counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.tanh
        return func(*args, **(kwargs or {}))


def test_inner_examples_run_in_the_state_of_the_one_that_calls() -> None:
    def fn(rows: Tensor, trained: bool, inner: Callable[[Any], Any]) -> Any:
        with torch.set_grad_enabled(trained), Seen() as seen:
            found = inner(rows)
            again = torch.tanh(LAYER(rows[0]))
        return found.sum(0), again, seen.count, found.requires_grad, torch.is_grad_enabled()

    def looped(rows: Tensor) -> Tensor:
        return torch.stack([doubled(row) for row in rows])

    flags = [True, False, True]
    found = weft.batched(fn, stack=False)(SEQUENCES, flags, weft.batched(doubled))
    for one, other in zip(found, map(fn, SEQUENCES, flags, [looped] * 3), strict=True):
        assert one[2:] == other[2:]
        torch.testing.assert_close(one[:2], other[:2])


def test_recursion_through_inner_calls() -> None:
    def encode(tree: Any) -> Tensor:
        if isinstance(tree, int):
            return doubled(torch.full((3,), float(tree), dtype=torch.float64))
        return torch.tanh(LAYER(weft.batched(encode)(tree).sum(0)))

    assert_equals_loop(encode, [[1, [2, 3]], [[1, 2, [3, 4]], 5], 2])
    with pytest.raises(RecursionError):
        weft.batched(lambda x: forever(x))([1, 2])


def forever(x: int) -> Tensor:
    found: Tensor = weft.batched(forever)([x])
    return found


def test_inner_examples_meet_at_names() -> None:
    order = []

    def stepped(x: Tensor) -> Tensor:
        found = doubled(x)
        weft.sync("grown")
        order.append("grown")
        return found

    inner = weft.batched(stepped)

    def fn(rows: Tensor) -> Tensor:
        found = inner(rows).sum(0)
        order.append("done")
        return found

    assert_equals_loop(lambda rows: inner(rows).sum(0), SEQUENCES)
    order.clear()
    weft.batched(fn)(SEQUENCES)
    assert order == ["grown"] * sum(map(len, SEQUENCES)) + ["done"] * len(SEQUENCES)
