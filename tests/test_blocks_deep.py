"""Deep data and deep blocks: work grows with depth and no faster; states whose type nobody says."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.blocks as wb
from block_parts import assert_batches


def filtered_tree() -> Any:
    """Recursion through a value-dependent block: every level is a batch of its own."""
    linear = nn.Linear(2, 2)
    tree = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([2]))
    children = wb.GetItem("children") >> wb.Map(tree()) >> wb.Filter(wb.Function(lambda v: v.sum() > -100)) >> wb.Sum()
    node = wb.AllOf(wb.GetItem("value") >> wb.Vector(2), children)
    tree.resolve_to(node >> wb.Function(lambda own, below: torch.tanh(linear(own) + below)))
    return tree()


def chain(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"value": [1.0, 2.0], "children": []}
    for _ in range(levels):
        found = {"value": [0.5, -1.0], "children": [found]}
    return found


def calls(run: Callable[[], Any]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_recursion_through_a_filter_is_linear_in_depth() -> None:
    net = weft.batched(filtered_tree())
    small, large = [chain(30)], [chain(240)]
    net(small), net(large)
    assert calls(lambda: net(large)) < 9 * calls(lambda: net(small))


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"v": 1.0}
    for _ in range(levels):
        found = {"a": found, "v": 2.0}
    return found


def test_deep_blocks_are_copied() -> None:
    made = wb.Json([nested(90)], dim=4)
    copied = copy.deepcopy(made)
    assert torch.equal(copied.eval_one(nested(90)), made.eval_one(nested(90)))
    assert copied.state_dict().keys() == made.state_dict().keys()
    assert not {id(p) for p in copied.parameters()} & {id(p) for p in made.parameters()}


def test_copies_share_what_the_original_shares() -> None:
    layer = wb.FC(3)
    both = wb.Vector(3) >> wb.AllOf(layer, layer) >> wb.Concat()
    holder = nn.ModuleList([both, filtered_tree()])
    copied = copy.deepcopy(holder)
    assert len(list(copied[0].parameters())) == len(list(both.parameters()))
    assert torch.equal(copied[0].eval_one([1.0, 2.0, 3.0]), both.eval_one([1.0, 2.0, 3.0]))
    assert torch.equal(copied[1].eval_one(chain(3)), holder[1].eval_one(chain(3)))


STATES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "numbers": (lambda: wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(torch.sub)), [[1.0, 2.0], [], [3.0]]),
    "vectors": (lambda: wb.Map(wb.Vector(2)) >> wb.Fold(wb.Function(lambda s, x: s * 2 + x)), [[[1.0, 2.0]], []]),
    "a layer": (lambda: wb.Map(wb.Vector(3)) >> wb.Fold(wb.Concat() >> nn.Linear(6, 3)), [[[1.0, 2.0, 0.5]] * 2, []]),
    "integers": (lambda: wb.Map(wb.Scalar("int64")) >> wb.Fold(wb.Function(torch.add)), [[1, 2], []]),
}


@pytest.mark.parametrize("name", STATES)
def test_a_fold_begins_with_zeros_of_the_items_type_where_that_is_what_it_makes(name: str) -> None:
    make, examples = STATES[name]
    torch.manual_seed(0)
    block = make()
    assert not block.eval_one([]).any() and block.eval_one([]).shape == block.eval_one(examples[0]).shape
    assert_batches(block, examples)


def test_a_type_that_is_said_later_is_not_guessed_before() -> None:
    fold = wb.Fold(wb.Function(torch.add))
    net = wb.Map(wb.Scalar()) >> fold
    fold.set_output_type([2])
    assert net.eval_one([1.0, 2.0], tolist=True) == [3.0, 3.0]


def test_a_state_that_cannot_be_found_says_what_to_give() -> None:
    linear = nn.Linear(3, 2)

    def longer(state: Tensor, x: Tensor) -> Tensor:
        return linear(torch.cat([state, x[None]]))

    with pytest.raises(weft.TypeMismatch) as error:
        (wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(longer))).eval_one([1.0])
    assert str(error.value) == (
        "Cannot determine output type for Pipe[1]/<wb.Fold>; give Fold a start, as in Fold(combine, Zeros([3])), or say it "
        "with set_output_type"
    )
    net = wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(longer), wb.Zeros([2]))
    assert net.eval_one([1.0]).shape == (2,)


def in_lists(x: Any, depth: int) -> Any:
    for level in range(depth):
        x = [x, x] if level in (0, depth - 1) else [x]
    return x


@pytest.mark.parametrize("depth", [3, 12, 13, 14, 21, 40, 100])
def test_results_are_sequences_in_sequences_of_any_depth(depth: int) -> None:
    first = wb.GetItem(0) >> wb.Scalar()
    tuples: wb.Block = wb.AllOf(first, wb.Map(wb.Scalar("int64")), wb.Identity())
    for _ in range(depth):
        tuples = wb.Map(tuples)
    net = wb.AllOf(tuples, wb.Length())
    for value in ([1, 2], [3]):
        expected = in_lists((float(value[0]), value, value), depth), 2.0
        assert net.eval_one(in_lists(value, depth), tolist=True) == expected
    batch = wb.compile(net)([in_lists([1, 2], depth), in_lists([3], depth)])
    assert str(batch[0]) == str([net.eval_one(in_lists(value, depth))[0] for value in ([1, 2], [3])])


def test_an_example_that_is_given_as_sequences_in_sequences_has_its_limit() -> None:
    type: Any = wb.TensorType([])
    for _ in range(21):
        type = wb.SequenceType(type)
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.Identity().set_input_type(type).eval_one(in_lists(1, 21))
    text = "an example cannot be given as sequences nested 21 deep; begin with a block that takes a Python object"
    assert str(caught.value) == text
    assert wb.Identity().set_input_type(type.element_type).eval_one(in_lists(1, 20), tolist=True) == in_lists(1, 20)
