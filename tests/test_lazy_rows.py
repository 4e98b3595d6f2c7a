"""Models that look at their values still run in large batches: examples wait for each other, finished ones for the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from examples import early_exit, parser, sampler, tree_decoder
from torch import Tensor, nn

import weft
from weft.lazy.flush import Flush
from weft.run import calls

MODELS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "parser": parser.example,
    "tree_decoder": tree_decoder.example,
    "early_exit": early_exit.example,
    "sampler": sampler.example,
}


def batches(run: Callable[[], Any], patch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """For every flush: how many examples take part, and the rows of each batch."""
    found: list[tuple[int, list[int]]] = []
    live: list[int] = []
    groups, engine = Flush.groups, calls.run_batched

    def watched(self: Flush, *args: Any, **kwargs: Any) -> Any:
        selection = self.selection
        live.append(len(np.unique(selection.calls.example[selection.division.runs])))
        return groups(self, *args, **kwargs)

    def counted(call: Any) -> Any:
        found.append((live[-1], [rows for group in call.plan.groups for rows in (group.step_hi - group.step_lo).tolist()]))
        return engine(call)

    with patch.context() as inside:
        inside.setattr(Flush, "groups", watched)
        inside.setattr(calls, "run_batched", counted)
        run()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_has_half_as_many_rows_as_there_are_live_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *inputs = MODELS[name](64)
    net = weft.batched(model)
    net(*inputs)  # the first call finds out that values are needed, and what belongs together
    found = batches(lambda: net(*inputs), monkeypatch)
    rows = [count for _, counts in found for count in counts]
    live = [examples for examples, counts in found for _ in counts]
    assert len(found) > 3
    assert np.mean(rows) >= np.mean(live) / 2, f"{np.mean(rows):.1f} rows for {np.mean(live):.1f} live examples"


class Countdown(nn.Module):
    """Asks for a number in every round; then does some more that nobody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.tail = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        for _ in range(rounds):
            x = torch.tanh(self.linear(x))
            assert x.sum() < 4
        for _ in range(3):
            x = self.tail(x) + x
        return x


def test_the_ends_of_all_examples_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, rounds = Countdown(), torch.randn(6, 3), [1, 2, 3, 4, 5, 6]
    net = weft.batched(model)
    net(x, rounds)
    found = batches(lambda: net(x, rounds), monkeypatch)
    assert [examples for examples, _ in found] == [6, 5, 4, 3, 2, 1, 6]
    weft.testing.assert_equivalent(model.double(), x.double(), rounds)


def test_what_a_finished_example_left_is_there_for_the_others() -> None:
    kept: list[Tensor] = []

    def fn(x: Tensor) -> Tensor:
        h = weight * x
        if not kept:
            kept.append((h + 1).sum())  # the first example ends here, and nobody has asked for it
            return h
        assert h.sum() > 0
        return h * kept[0]

    weight, x = torch.ones(2, requires_grad=True), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for _ in range(2):
        kept.clear()
        net = weft.batched(fn)
        assert net(x).tolist() == [[1.0, 2.0], [15.0, 20.0], [25.0, 30.0]]


def test_a_number_of_a_finished_example_can_be_asked_for() -> None:
    kept: list[Tensor] = []

    def fn(x: Tensor) -> Any:
        h = weight * x
        if not kept:
            kept.append((h + 1).sum())
            return h, 0.0
        first = float(h.sum())
        return h, first + float(kept[0])

    weight, x = torch.ones(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    net = weft.batched(fn)
    for _ in range(2):
        kept.clear()
        assert net(x)[1].tolist() == [0.0, 12.0]


def test_examples_that_use_each_other_do_not_wait_for_the_end() -> None:
    shared: list[Tensor] = []

    def fn(x: Tensor) -> Tensor:
        h = weight * x
        if not shared:
            shared.append(h)
            return h + 1
        assert (h + shared[0]).sum() > 0
        return h

    weight, x = torch.ones(2, requires_grad=True), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    net = weft.batched(fn)
    for _ in range(3):
        shared.clear()
        assert net(x).tolist() == [[2.0, 3.0], [3.0, 4.0]]
