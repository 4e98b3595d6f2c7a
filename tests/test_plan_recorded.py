"""`weft.plan` of functions, modules and blocks: what they would run, without running it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb

torch.set_num_threads(1)
TREES = [((1, 2), 3), 4, ((5, 6), (7, (8, 9)))]


class TreeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.node, self.out = nn.Embedding(10, 4), weft.cell(nn.Bilinear(4, 4, 4)), nn.Linear(4, 3)

    def encode(self, tree: Any) -> Tensor:
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))  # type: ignore[no-any-return]
        return self.node(self.encode(tree[0]), self.encode(tree[1]))  # type: ignore[no-any-return]

    def forward(self, tree: Any) -> Tensor:
        return self.out(self.encode(tree))  # type: ignore[no-any-return]


def test_a_module_is_planned_as_it_would_be_batched() -> None:
    model = TreeNet()
    planned = weft.plan(model, TREES)
    numbers = planned.stats()
    assert (numbers["examples"], numbers["nodes"], numbers["complete"], numbers["cached"]) == (3, 9 + 6 + 3, 1, 0)
    assert numbers["levels"] == 5 and numbers["batches"] == numbers["lower_bound"] == 1 + 3 + 1
    assert "Bilinear" in planned.explain()
    assert weft.plan(weft.batched(model), TREES).stats()["cached"] == 1


def test_nothing_is_computed() -> None:
    seen: list[int] = []

    two = nn.Parameter(torch.full((2,), 2.0))

    def noted(x: Tensor) -> Tensor:
        seen.append(1)
        return x * two

    weft.plan(noted, torch.ones(3, 2))
    assert len(seen) == 3  # once for each example, to record it
    assert weft.batched(noted)(torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]


def test_value_dependent_code_is_planned_up_to_the_first_value() -> None:
    half = nn.Parameter(torch.tensor(0.5))

    def halved(x: Tensor) -> Tensor:
        x = x * half
        while x.sum() > 1:
            x = x * half
        return x

    planned = weft.plan(halved, torch.ones(3, 4))
    numbers = planned.stats()
    assert numbers["complete"] == 0 and numbers["nodes"] > 0
    assert planned.explain().splitlines()[1] == (
        "only the beginning: the code asks for a number, and what follows depends on it"
    )
    assert "; only the beginning, up to the first number that the code asks for</p>" in planned._repr_html_()
    assert "only the beginning" not in weft.plan(TreeNet(), TREES).explain()
    assert weft.batched(halved)(torch.ones(3, 4)).sum() == 3


def test_a_block_is_planned() -> None:
    block = wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(torch.add), wb.FromTensor(torch.zeros(())))
    numbers = weft.plan(block, [[1, 2, 3], [4]]).stats()
    assert numbers["examples"] == 2 and numbers["complete"] == 1
    assert weft.plan(wb.compile(block), [[1, 2, 3], [4]]).stats()["nodes"] == numbers["nodes"]


def test_arguments_of_recorded_calls_are_told_by_their_place() -> None:
    doubled = weft.plan(lambda x: x * 2, [torch.ones(2), torch.ones(2)]).explain()
    assert "Gathers avoided\n  mul reads argument 0 as views: its rows are consecutive\n" in doubled
    assert (
        weft.plan(TreeNet(), TREES)
        .explain()
        .endswith("""What did not merge, and why
  - Bilinear feeds itself: 3 steps, each reads what earlier ones computed.
  - Bilinear gathers arguments 0, 1 by index: arguments come from several steps (1 of 3 steps); rows
    are consecutive, but all steps of a port read alike (2 of 3 steps).
  - Linear gathers argument 0 by index: arguments come from several steps.""")
    )


def test_items_of_a_list_are_told_as_such() -> None:
    weight = nn.Parameter(torch.ones(2))
    listed = weft.plan(lambda rows: torch.stack([row * weight for row in rows]).sum(0), [torch.ones(n, 2) for n in (3, 1)])
    assert listed.explain().endswith(" gathers all items, summed, by index: items are added up while they are gathered.")


def test_types_of_one_name_are_told_apart_by_their_groups() -> None:
    first, second = nn.GRUCell(2, 2), nn.GRUCell(2, 2)

    def stacked(rows: Tensor) -> Tensor:
        for cell in (first, second):
            h = torch.zeros(2)
            for row in rows:
                h = cell(row, h)
            rows = torch.stack([h, h])
        return h

    text = weft.plan(stacked, [torch.ones(n, 2) for n in (3, 5)]).explain()
    told = [
        line.split(" feeds itself")[0] for line in text.splitlines() if " feeds itself:" in line and line.startswith("  - ")
    ]
    assert len(told) == 2 and all(re.fullmatch(r"  - GRUCell \(group \d\)", name) for name in told) and told[0] != told[1]
    assert max(map(len, text.splitlines())) <= 100


def test_the_width_of_the_text_can_be_chosen() -> None:
    planned = weft.plan(TreeNet(), TREES)
    wide, narrow = planned.explain().splitlines(), planned.explain(width=70).splitlines()
    assert max(map(len, wide)) > 90 and max(map(len, narrow)) <= 70
    assert " ".join(narrow).split() == " ".join(wide).split()


def test_policies_differ() -> None:
    model = TreeNet()
    by_depth = weft.plan(model, TREES, policy="depth").stats()
    assert by_depth["batches"] > weft.plan(model, TREES).stats()["batches"]


def test_nothing_to_plan() -> None:
    with pytest.raises(weft.StructureError) as error:
        weft.plan(len, [[1], [2]])
    assert str(error.value) == "weft.plan: len: nothing is computed for these inputs, so there is nothing to plan"
    with pytest.raises(weft.TypeMismatch) as error:
        weft.plan(3, [1])
    assert str(error.value) == "weft.plan: expected a model, a block or a function, got int"


def test_plans_carry_the_names_that_users_gave() -> None:
    rows = wb.Map(wb.Vector(2)) >> wb.Sum()
    named = wb.Reduce(wb.Function(torch.add), name="total").set_input_type(wb.SequenceType(wb.TensorType([2])))
    x = torch.ones(2, 2)

    def twice(x: Any) -> Any:
        return x * 2

    cases = [(rows, [[[1.0, 2.0]]], "Pipe"), (weft.batched(rows), [[[1.0, 2.0]]], "Pipe")]
    cases += [(weft.batched(nn.Tanh()), x, "Tanh"), (twice, x, "twice"), (weft.batched(twice), x, "twice")]
    cases += [(named, [[[1.0, 2.0], [3.0, 4.0]]], "total")]
    assert [weft.plan(fn, given).explain().split(":")[0] for fn, given, _ in cases] == [name for *_, name in cases]
