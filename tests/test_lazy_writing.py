"""Writing into values is functional: names, views and wholes follow, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop

LINEAR = nn.Linear(3, 3).double()
WEIGHT = nn.Parameter(torch.arange(6, dtype=torch.float64).view(2, 3) - 2)


def inputs(n: int = 4) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def constants(x: Tensor) -> Any:
    total, count = torch.tensor(0.0, dtype=torch.float64), torch.tensor(0)
    same = total
    for _ in range(3):
        total += LINEAR(x).sum()
        count += 2
        count -= torch.tensor(1)
    return total, same, count * 2, count.item(), torch.tensor(1.5).mul_(2).item()


def into_a_stack(x: Tensor) -> Any:
    h = LINEAR(x)
    stack = torch.stack([h, h * 2])
    row, view = stack[1], stack.view(-1)
    stack[0] = 0
    return stack, row, view, h, stack.sum(0)


def into_a_copy_of_a_stack(x: Tensor) -> Any:
    h = LINEAR(x)
    stack = torch.stack([h, h * 2])
    copy = stack.clone()
    copy[0] = 0
    copy += 1
    return copy.sum(0), copy, stack.mean(0), h


def into_a_row_of_a_stack(x: Tensor) -> Any:
    h = LINEAR(x)
    stack = torch.stack([h, h * 2, h * 3])
    view, row = stack.view(-1), stack[0]
    row += 1
    rest = stack[1:]
    rest *= 2
    last = stack[2]
    last -= 1
    stack[1] += h
    return stack, row, rest, last, view, h, stack.sum(0)


def into_views_of_a_stack(x: Tensor) -> Any:
    h = LINEAR(x)
    stacks = [torch.stack([h, h * 2]) for _ in range(6)]
    row = stacks[0][1]
    stacks[0].t()[1] -= x[:2]
    stacks[1].view(-1)[1] = x[0]
    stacks[2].T.mul_(2)
    stacks[3].transpose(0, 1)[0].add_(1)
    turned = stacks[4].t()
    turned[1] = x[:2]
    stacks[5].flatten()[2] = x[0]
    return stacks, row, turned, h, [stack.sum(0) for stack in stacks]


def into_one_of_several_views(x: Tensor) -> Any:
    y, table = WEIGHT * LINEAR(x), torch.zeros(2, 3, dtype=torch.float64)
    copy, given = table.clone(), x.clone()
    with torch.no_grad():
        copy.chunk(2)[1].add_(x)
        copy.unbind(0)[0].sub_(x)
        given.split(1)[2].mul_(2)
    return y, table.sum(), copy[1].clone(), copy, given


def row_by_row(x: Tensor) -> Any:
    out, same = torch.zeros(6, 3, dtype=torch.float64), torch.zeros(6, 3, dtype=torch.float64)
    for i in range(6):
        out[i] += LINEAR(x) * i
        row = same[i]
        row += out[i]
    return out, same


def dynamic_programming(x: Tensor) -> Tensor:
    table = torch.zeros(5, 3, dtype=torch.float64)
    table[0] = LINEAR(x)
    for i in range(1, 5):
        table[i] = torch.tanh(LINEAR(table[i - 1].clone())) + table[i - 1]
    return table


def views_of_views(x: Tensor) -> Any:
    whole = LINEAR(x).repeat(4).view(3, 4)
    row, turned = whole[1], whole.t()
    whole[1:] *= 2
    turned[0] += 1
    part = row[0:2]
    part.zero_()
    turned[2, 1].fill_(7.0)
    return whole, row, turned, part


def turned_views(x: Tensor) -> Any:
    h = LINEAR(x).repeat(2)[:4] * 1
    same = h
    same += 1
    square = h.view(2, 2)
    square[0] = 0
    turned = square.t()
    turned[1] *= 3
    wide = h.unsqueeze(0)
    wide.add_(1)
    return h, same, square, turned, wide


def the_parts_of_a_stack_are_copies(x: Tensor) -> Any:
    h = LINEAR(x)
    stack = torch.stack([h, h + 1])
    h[0] += 1
    rest = h[1:]
    h *= 2
    return h, stack, rest, stack.mean(0)


def between_flushes(x: Tensor) -> Any:
    h = LINEAR(x)
    first, rest, steps = h[0:2], h[1:], 0
    if h.sum() > 0:
        first += 1
    else:
        h -= 1
    while h.norm() < 5 and steps < 4:
        rest *= 2
        h += 0.5
        steps += 1
    return h, first, rest


def what_was_given(x: Tensor) -> Any:
    x = x.clone()
    first, picked = x[0], x[[0, 2]]
    x += 1
    x[1] = 5.0
    return x, first, picked


def without_gradients(x: Tensor) -> Any:
    h, g, whole = LINEAR(x) * 1, LINEAR(x) * 1, LINEAR(x).repeat(2).view(2, 3) * 1
    with torch.no_grad():
        h.mul_(2)
        g[0] = 5.0
        nn.init.zeros_(whole[0])
    return h * h, g * g, whole * whole


CASES: list[Callable[..., Any]] = [
    constants,
    into_a_stack,
    into_a_copy_of_a_stack,
    into_a_row_of_a_stack,
    into_views_of_a_stack,
    into_one_of_several_views,
    row_by_row,
    dynamic_programming,
    views_of_views,
    turned_views,
    the_parts_of_a_stack_are_copies,
    between_flushes,
    what_was_given,
    without_gradients,
]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_writing_equals_the_loop(fn: Callable[..., Any]) -> None:
    assert_equals_loop(fn, inputs())


@pytest.mark.parametrize("many", [2, 9])
@pytest.mark.parametrize(
    "take",
    [
        lambda stack: stack[1:],
        lambda stack: stack[1:][:, 1:],
        lambda stack: stack[:, 1],
        lambda stack: stack[:, None],
        lambda stack: stack[..., None],
        lambda stack: stack.unsqueeze(-1),
        lambda stack: stack[1:].view(-1),
        lambda stack: stack[:, 1:].transpose(0, 1),
        lambda stack: stack.detach(),
    ],
    ids="rows columns column middle last unsqueezed flat turned detached".split(),
)
def test_parts_of_a_stack_are_views_of_it(take: Callable[[Tensor], Tensor], many: int) -> None:
    def stack_of(x: Tensor) -> Tensor:
        return torch.stack([LINEAR(x) * (i + 1) for i in range(many)])

    def into_the_stack(x: Tensor) -> Any:
        stack = stack_of(x)
        part = take(stack)
        with torch.no_grad():
            stack += 1
            stack[1, 0] = 5.0
        return stack * 2, part * 2

    def into_the_part(x: Tensor) -> Any:
        stack = stack_of(x)
        part, row = take(stack), stack[-1]
        with torch.no_grad():
            part += 1
            stack *= 2
            part[0] = 5.0
        return stack * 2, part * 2, row * 2

    def into_rows_of_the_part(x: Tensor) -> Any:
        stack = stack_of(x)
        take(stack)[0].add_(1)
        row = take(stack)[-1]
        row += 1
        return stack * 2, row * 2

    assert_equals_loop(into_the_stack, inputs())
    assert_equals_loop(into_the_part, inputs())
    assert_equals_loop(into_rows_of_the_part, inputs())


def test_a_view_of_a_view_that_nobody_holds_is_written_into_after_a_flush() -> None:
    def fn(x: Tensor) -> Any:
        h = LINEAR(x) * 1
        part = h[None][0]
        rest = part[1:]
        if part.sum() > 0:
            part *= 2
        rest += 1
        return h * 2, part * 2, rest * 2

    for _ in range(3):  # from the second call on it is known which values are alive
        assert_equals_loop(fn, inputs())


def test_counting_with_numbers_asks_for_nothing() -> None:
    def fn(n: int) -> Any:
        count = torch.tensor(0)
        while count < n:
            count += 1
        return count.item(), float(count)

    found = weft.batched(fn)([1, 3])
    assert [part.tolist() for part in found] == [[1, 3], [1.0, 3.0]]


def test_after_a_scope_values_may_be_written_into() -> None:
    weight = nn.Parameter(torch.ones(3))
    with weft.batching():
        sums = [(weight * k).sum() for k in range(3)]
    kept = sums[1]
    sums[1] += 1
    sums[2].add_(2)
    assert [each.item() for each in sums] == [0.0, 4.0, 8.0] and kept.item() == 4.0
    assert torch.equal(weft.value(torch.stack(sums)), torch.tensor([0.0, 4.0, 8.0]))
    torch.stack(sums).sum().backward()
    assert torch.equal(weight.grad, torch.full((3,), 3.0))
    assert kept.grad_fn is not None and not kept.is_leaf


def test_writing_through_detach_changes_the_numbers_and_keeps_the_gradients() -> None:
    def through_detach(x: Tensor) -> Any:
        h = LINEAR(x)
        shown = h.detach()
        h.detach()[0] = 1.0
        h.detach().clamp_(min=0.1)
        return h * h, shown * 1

    def read_after(x: Tensor) -> Any:
        h = LINEAR(x) * 1
        shown = h.detach()
        h[1:] *= 2
        return shown * 1, h

    assert_equals_loop(through_detach, inputs())
    assert_equals_loop(read_after, inputs())

    def trained(x: Tensor) -> Any:
        h = LINEAR(x) * 1
        h.detach().add_(LINEAR(x))
        return h

    def untrained(x: Tensor) -> Any:
        h = LINEAR(x) * 1
        with torch.no_grad():
            h.detach().add_(LINEAR(x))
        return h * h

    assert_equals_loop(untrained, inputs())
    with pytest.raises(weft.TraceError) as error:
        weft.batched(trained)(inputs())
    assert str(error.value) == (
        "what requires gradients is written through .detach() or .data, where one name would get them and the other would not; "
        "use .clone() first, or write inside torch.no_grad()"
    )


def test_writes_without_gradients_after_a_flush_keep_the_gradients() -> None:
    def fn(x: Tensor) -> Any:
        y, table = WEIGHT * LINEAR(x), torch.zeros(2, 3, dtype=torch.float64)
        table += x
        if y.sum() > 0.3:
            y.mul_(0.5)
        if (table * table).sum().item() > 1:
            table[1] = x
        with torch.no_grad():
            y.mul_(0.9)
        return y, table

    assert_equals_loop(fn, inputs())


def test_writing_that_cannot_be_followed_raises() -> None:
    def through_a_module(x: Tensor) -> Any:
        h = LINEAR(x)
        same = nn.Identity()(h)
        h += 1
        return same * 1

    def rows_and_views(x: Tensor) -> Any:
        h = LINEAR(x)
        part = torch.stack([h, h])[0][1:]
        h += 1
        return part * 1

    def views_of_rows(x: Tensor) -> Any:
        stack = torch.stack([LINEAR(x), x])
        part = stack[0][1:]
        stack += 1
        return part * 1

    def shared_rows(x: Tensor) -> Any:
        h = LINEAR(x)
        part = h[0:1]
        stack = torch.stack([h, h])
        row, alone = stack[0], torch.stack([h, h])[1]
        part += 1
        row += 1
        return row, row[1:], stack, h, part, alone

    cases = {
        through_a_module: "a view of a Value (what a module or a cell gave of it) is used after the Value was "
        "written into; in PyTorch it would show the change: take the view again, or .clone() it before writing",
    }
    cases[rows_and_views] = cases[views_of_rows] = (
        "a row of a torch.stack is written into, or what was stacked is, after views of one of them were taken; use .clone() "
        "before torch.stack"
    )
    for fn, message in cases.items():
        with pytest.raises(weft.TraceError) as error:
            weft.batched(fn)(inputs())
        assert str(error.value) == message
    assert_equals_loop(shared_rows, inputs())


@pytest.mark.parametrize("name", ["unsqueeze_", "squeeze_", "t_", "transpose_"])
def test_a_value_does_not_change_its_shape(name: str) -> None:
    rest = {"unsqueeze_": (0,), "transpose_": (0, 1)}.get(name, ())
    with pytest.raises(weft.TraceError) as error:
        weft.batched(lambda x: getattr(torch.stack([LINEAR(x), LINEAR(x)]).clone(), name)(*rest))(inputs())
    assert str(error.value) == f"{name}: a Value cannot change its own shape; use v = v.{name[:-1]}(...), which gives a view"


def test_the_first_write_of_a_recording_comes_after_what_was_left_for_later() -> None:
    def fn(x: Tensor) -> Any:
        h = LINEAR(x)
        total = h.sum()  # nobody asks for it: it is left for the last flush
        steps = 1 if h.max() > -99 else 2
        table = torch.zeros(2, 3, dtype=torch.float64)
        table[0] += h * steps
        return table, total

    net = weft.batched(fn)
    for _ in range(3):
        table, total = net(inputs())
        assert torch.allclose(table[:, 0], LINEAR(inputs())) and torch.allclose(total, LINEAR(inputs()).sum(1))


def a_row(y: Tensor) -> Tensor:
    return y[0]


def all_of_it(y: Tensor) -> Tensor:
    return y.view(3, 2)


@pytest.mark.parametrize("take", [a_row, all_of_it], ids=lambda take: take.__name__)
@pytest.mark.parametrize("before", [True, False])
def test_a_view_of_what_was_left_for_later_is_written_into(take: Callable[[Tensor], Tensor], before: bool) -> None:
    def fn(x: Tensor) -> Any:
        h = LINEAR(x)
        y = WEIGHT * h  # nobody asks for it: it is left for the last flush
        part = take(y) if before else None
        steps = 1 if h.sum() > -99 else 2
        part = take(y) if part is None else part
        part.clamp_(-0.5, 0.5 * steps)
        return y, part * 1

    net = weft.batched(fn)
    for _ in range(3):
        found = net(inputs())
        wanted = [torch.stack(column) for column in zip(*map(fn, inputs()), strict=True)]
        assert all(torch.allclose(one, other) for one, other in zip(found, wanted, strict=True))
