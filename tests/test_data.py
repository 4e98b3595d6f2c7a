"""Loading: batches built in worker processes, similar depths together."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import weft
import weft.blocks as wb
import weft.data

TREES = [weft.Graph.from_parents(parents) for parents in ([1, -1], [2, 2, -1], [1, 2, 3, -1], [-1])]

OF_FOUR = "expected rows of torch.float32 of shape [4], as in example 0"


def items() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [((tree, torch.randn(tree.num_vertices, 4, generator=generator)), at) for at, tree in enumerate(TREES)]


def model() -> weft.VertexFunction:
    torch.manual_seed(0)
    return weft.nn.TreeGRU(4, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_what_the_graphs_would(workers: int) -> None:
    net, data = model(), items()
    context = "spawn" if workers else None
    loader = DataLoader(
        data, batch_size=3, collate_fn=weft.data.collate(net), num_workers=workers, multiprocessing_context=context
    )
    got = [(net(batch), len(batch), labels) for batch, labels in loader]
    assert [count for _, count, _ in got] == [3, 1]
    assert torch.cat([labels for *_, labels in got]).tolist() == [0, 1, 2, 3]
    one = torch.cat([net(graph, x) for (graph, x), _ in data])
    torch.testing.assert_close(torch.cat([rows for rows, *_ in got]), one)


def test_a_batch_moves_and_pickles() -> None:
    net = model()
    batch, _ = weft.data.collate(net)(items())
    again = pickle.loads(pickle.dumps(batch.to("cpu")))
    assert torch.equal(net(batch), net(again)) and len(again) == 4


def test_items_may_be_the_examples_or_hold_them_anywhere() -> None:
    net = model()
    pairs = [pair for pair, _ in items()]
    whole = net(weft.data.collate(net)(items())[0])
    at_end, rest = weft.data.collate(net, inputs=1)([(at, pair) for at, pair in enumerate(pairs)])
    apart, nothing = weft.data.collate(net, inputs=(0, 1))(pairs)
    chosen, kept = weft.data.collate(net, inputs=lambda item: item["in"], rest=len)([{"in": pair} for pair in pairs])
    assert rest.tolist() == [0, 1, 2, 3] and nothing is None and kept == 4
    for batch in (at_end, apart, chosen):
        assert torch.equal(net(batch), whole)


def test_a_list_is_an_example_and_no_tuple_of_parts() -> None:
    net = wb.compile(wb.InputTransform(len) >> wb.Scalar())
    batch, rest = weft.data.collate(net)([[1, 2, 3], [4]])
    assert net(batch).tolist() == [3, 1] and rest is None


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((3, 0), "TreeGRU: example 1: expected a weft.Graph, or a pair of a graph and its x, got int"),
        (((TREES[1], torch.zeros(2, 4)), 0), "TreeGRU: example 1: x: expected 3 rows, one for each vertex, got shape [2, 4]"),
        (
            ((TREES[1], [torch.zeros(3, 4)]), 0),
            "TreeGRU: example 1: expected x of the same structure as that of example 0, came another",
        ),
        (
            ((TREES[1], torch.zeros(3, 5)), 0),
            f"TreeGRU: example 1: x: {OF_FOUR}, got torch.float32 of shape [5]",
        ),
        (
            ((TREES[1], torch.zeros(3, 4, dtype=torch.float64)), 0),
            f"TreeGRU: example 1: x: {OF_FOUR}, got torch.float64 of shape [4]",
        ),
    ],
)
def test_an_example_that_does_not_fit_is_named(item: Any, message: str) -> None:
    with pytest.raises(weft.WeftError) as error:
        weft.data.collate(model())([items()[0], item])
    assert str(error.value) == message


def test_the_leaf_of_a_nest_that_does_not_fit_is_named() -> None:
    first, second = ({"a": torch.zeros(2), "b": torch.zeros(2, width)} for width in (3, 4))
    with pytest.raises(weft.ShapeError) as error:
        weft.data.collate(model())([((TREES[0], first), 0), ((TREES[0], second), 1)])
    expected = "expected rows of torch.float32 of shape [3], as in example 0, got torch.float32 of shape [4]"
    assert str(error.value) == f"TreeGRU: example 1: x['b']: {expected}"


def test_items_that_are_a_graph_and_its_x_are_told_how_to_say_so() -> None:
    net, collating = model(), weft.data.collate(model())
    pairs = [pair for pair, _ in items()]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as failed:
        collating(pairs)
    assert failed.value.__notes__ == [
        "weft.data.collate: the first part of every item was taken as the example, and rest= failed on what is left; "
        "where an item is a graph and its x, pass inputs=(0, 1)"
    ]
    batch, rest = collating(pairs[:1])
    assert rest.shape == (1, 2, 4)
    with pytest.raises(weft.TypeMismatch, match=r"v\.pull") as missing:
        net(batch)
    assert missing.value.__notes__[-1] == (
        "the examples of this weft.data.Batch are graphs alone; where an item is a graph and its x, pass inputs=(0, 1) to "
        "weft.data.collate"
    )


def test_collate_of_something_else() -> None:
    with pytest.raises(weft.TypeMismatch) as error:
        weft.data.collate(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    expected = "collate: expected a weft.VertexFunction, or what weft.batched or weft.blocks.compile gave, got Linear"
    assert str(error.value) == expected


def test_every_epoch_has_every_example_once_in_batches_of_similar_depth() -> None:
    depths = [(7 * at) % 50 for at in range(203)]
    sampler = weft.data.DepthSampler(depths, 8, pool=4)
    first, second = list(sampler), list(sampler)
    assert first != second and len(first) == len(sampler) == 26
    for epoch in (first, second):
        assert sorted(at for batch in epoch for at in batch) == list(range(203))
        spread = sum(max(depths[at] for at in batch) - min(depths[at] for at in batch) for batch in epoch) / len(epoch)
        assert spread < 20  # of 49; plain shuffling has about 38
    assert len(weft.data.DepthSampler(depths, 8, drop_last=True)) == 25
    assert {len(batch) for batch in weft.data.DepthSampler(depths, 8, drop_last=True)} == {8}


def test_an_epoch_is_chosen_by_number() -> None:
    made = [weft.data.DepthSampler(range(40), 4, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    for sampler in made:
        sampler.set_epoch(3)
    assert list(made[0]) == list(made[1])


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_of_nothing_gives_no_batches(drop_last: bool) -> None:
    sampler = weft.data.DepthSampler([], 8, drop_last=drop_last)
    assert list(sampler) == [] and len(sampler) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 0), "DepthSampler: batch_size: expected a positive integer, got 0"),
        (([1, 2], 1, 1.5), "DepthSampler: pool: expected a positive integer, got 1.5"),
        (([[1, 2]], 1), "DepthSampler: depths: expected one number per example, got shape [1, 2]"),
    ],
)
def test_a_sampler_that_cannot_be(arguments: Any, message: str) -> None:
    with pytest.raises(weft.TypeMismatch) as error:
        weft.data.DepthSampler(*arguments)
    assert str(error.value) == message
