"""Batched equals one by one: random programs under every policy, outputs and every gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from replay import assert_programs_agree
from weft.api.function import VertexFunction
from weft.run import collect, columns, gather
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.once import outside_tensors
from weft.testing.programs import SAMPLES
from weft.testing.structures import KINDS

PROGRAMS, AT_ONCE = 500, 20


@pytest.fixture(scope="module")
def models() -> dict[str, VertexFunction]:
    """Models by kind, so that each is traced once for all seeds."""
    return {}


@pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))
def test_random_programs_agree_under_every_policy(first: int, models: dict[str, VertexFunction]) -> None:
    for seed in range(first, first + AT_ONCE):
        assert_programs_agree(seed, models)


@pytest.mark.parametrize("small", [0, gather.SMALL], ids=["scratch memory", "kept memory"])
def test_random_programs_agree_when_steps_come_in_small_blocks(
    small: int, models: dict[str, VertexFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views are made a block of steps at a time, and wide gathers go through scratch memory: here both happen at once."""
    monkeypatch.setattr(columns, "BLOCK", 2)
    for module in (gather, collect):
        monkeypatch.setattr(module, "SMALL", small)
    for seed in range(60):
        assert_programs_agree(seed, models)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # Inductor's own imports
@pytest.mark.parametrize("sample", ["chain", "gru", "n-ary tree-lstm", "child-sum tree-lstm", "layer norm"])
def test_random_programs_agree_when_compiled(sample: str, models: dict[str, VertexFunction]) -> None:
    for seed, kind in enumerate(("dag", "tree", "holes", "batch")):
        program, inputs = random_program(seed, models=models, sample=sample, structure=random_structure(seed, kind))
        assert_equivalent(program, *inputs, policies=["auto"], backends=["compiled"])


def test_the_random_programs_cover_every_cell_and_every_kind_of_structure() -> None:
    drawn = [random_program(seed) for seed in range(PROGRAMS)]
    assert {program.name for program, _ in drawn} == set(SAMPLES)
    graphs = [inputs[0] for _, inputs in drawn]
    assert any(g.num_vertices == 0 for g in graphs)
    assert any(g.num_vertices == 1 for g in graphs)
    assert any(g.num_graphs > 2 for g in graphs)
    assert any((g.children < 0).any() for g in graphs)
    assert any(len(set(g.children.tolist())) < len(g.children) for g in graphs)


@pytest.mark.parametrize("kind", KINDS)
def test_structures_repeat_and_are_what_they_say(kind: str) -> None:
    for seed in range(20):
        graph = random_structure(seed, kind, types=3)
        assert graph == random_structure(seed, kind, types=3)
        assert graph.type_ids is None or graph.num_vertices == 0 or int(graph.type_ids.max()) < 3
        if kind != "cyclic":
            assert len(graph.depth) == graph.num_vertices
    different = {random_structure(seed, kind).key for seed in range(20)}
    assert len(different) > 1 or kind in ("single", "empty", "lonely", "star")


@pytest.mark.parametrize("kind", KINDS)
def test_structures_may_be_small(kind: str) -> None:
    for size in (1, 2, 3, 4):
        assert all(random_structure(seed, kind, size=size, types=2).num_vertices < 40 for seed in range(20))


def test_structures_of_no_size() -> None:
    with pytest.raises(weft.TypeMismatch, match=r"^size: expected a positive number of vertices, got 0$"):
        random_structure(0, "tree", size=0)


def test_unknown_kind() -> None:
    with pytest.raises(weft.TypeMismatch, match=r"kind: expected one of 'tree', 'binary tree', .* got 'ring'"):
        random_structure(0, "ring")


def test_programs_repeat() -> None:
    for seed in range(30):
        (one, first), (two, second) = random_program(seed), random_program(seed)
        assert (one.name, one.rounds, first[0]) == (two.name, two.rounds, second[0])
        assert torch.equal(first[1], second[1])
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


class Small(weft.VertexFunction):
    """A cell whose every part a test can spoil."""

    def __init__(self) -> None:
        super().__init__(state={"h": (3,)})
        self.w, self.spare, self.drop = nn.Linear(2, 3), nn.Linear(2, 3), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, v: Any) -> None:
        h = torch.tanh(self.w(v.pull()) + self.drop(v.gather().sum("h")))
        v.scatter(h=h)
        v.push({"h": h, "first": h[0]})


class Spoiled(weft.VertexFunction):
    """Calls `Small`, then changes what comes out of every engine but the reference."""

    def __init__(self, spoil: Any) -> None:
        super().__init__(state={"h": (3,)})
        self.small, self.spoil = Small().double().eval(), spoil

    def forward(self, v: Any) -> Any:
        raise NotImplementedError

    def __call__(self, graph: weft.Graph, x: Tensor, **options: Any) -> Any:
        result = self.small(graph, x, **options)
        return result if options["backend"] == "reference" else self.spoil(result, self.small)


def given() -> tuple[weft.Graph, Tensor]:
    return weft.Graph.chain(4), torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, by: float) -> Tensor:
        ctx.by = by
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by, None


def nan_at_2(result: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
    mask = torch.zeros(4, dtype=torch.bool)
    mask[2] = True
    return {**result, "first": result["first"].masked_fill(mask, float("nan"))}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r, _: {**r, "first": r["first"] + 1e-9}, r"output\['first'\]: the largest difference is 1e-09 at \[\d\]"),
        (nan_at_2, r"output\['first'\]: NaN at other places: nan at \[2\], one by one"),
        (lambda r, _: {**r, "h": r["h"][:, :2]}, r"output\['h'\]: shape \[4, 2\], one by one \[4, 3\]"),
        (lambda r, _: {**r, "h": r["h"].float()}, r"output\['h'\]: torch.float32, one by one torch.float64"),
        (lambda r, _: [r["h"], r["first"]], r"the result has the structure .*, one by one it has"),
        (
            lambda r, _: {**r, "h": _Scale.apply(r["h"], 1.5)},
            r"gradient of parameter 'small.w.weight': the largest difference is",
        ),
        (lambda r, _: {k: t.detach() for k, t in r.items()}, r"gradient of parameter 'small.w.weight': None, but one by one"),
        (
            lambda r, m: {**r, "h": r["h"] + 0 * m.spare.weight.sum() + (m.spare.bias - m.spare.bias.detach())},
            r"gradient of parameter 'small.spare.bias': its largest entry is .*, but None one by one",
        ),
    ],
)
def test_the_first_difference_is_named(spoil: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=r"^policy 'auto', backend 'eager': " + message):
        assert_equivalent(Spoiled(spoil), *given())


def test_a_difference_within_rounding_passes_and_the_tolerance_can_be_set() -> None:
    def shift(result: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
        return {**result, "h": result["h"] + 1e-13}

    assert_equivalent(Spoiled(shift), *given())
    with pytest.raises(AssertionError, match=re.escape("allowed is 1e-14")):
        assert_equivalent(Spoiled(shift), *given(), tolerance=1e-14)


def test_a_gradient_of_the_input_is_compared_though_it_requires_none() -> None:
    graph, x = given()

    class Halved(Spoiled):
        def __call__(self, graph: weft.Graph, x: Tensor, **options: Any) -> Any:
            return self.small(graph, x if options["backend"] == "reference" else _Scale.apply(x, 0.5), **options)

    with pytest.raises(AssertionError, match=r"gradient of input 1: the largest difference is"):
        assert_equivalent(Halved(None), graph, x)
    assert not x.requires_grad


def test_gradients_of_captured_tensors_are_compared() -> None:
    program, _ = random_program(0, sample="captured")
    assert {name for name in outside_tensors(program) if not name.startswith("parameter")} == {
        "captured tensor 'SHARED' of shape [3]",
        "captured tensor 'plain' of shape [3]",
        "closure tensor 3 of shape [3, 3]",
    }


def test_everything_is_left_as_it_was() -> None:
    model = Small().double()
    model.drop.eval()
    model.w.weight.grad = torch.ones_like(model.w.weight)
    graph, x = given()
    x.requires_grad_()
    before = torch.get_rng_state()
    with torch.no_grad():
        assert_equivalent(model, graph, x)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert (model.training, model.drop.training) == (True, False)
    assert torch.equal(model.w.weight.grad, torch.ones_like(model.w.weight))
    assert x.grad is None and model.w.bias.grad is None


def test_random_functions_are_compared_in_what_cannot_depend_on_chance() -> None:
    model = Small().double()
    assert_equivalent(model, *given())
    eager, reference = (model(*given(), backend=backend)["h"] for backend in ("eager", "reference"))
    assert not torch.equal(eager, reference)


def test_random_functions_must_repeat_under_one_seed() -> None:
    class Restless(Spoiled):
        def __call__(self, graph: weft.Graph, x: Tensor, **options: Any) -> Any:
            result = self.small.train()(graph, x, **options)
            return {**result, "h": result["h"] + 1e-3 * float(np.random.default_rng().random())}

    with pytest.raises(AssertionError, match=r"output\['h'\]: the same seed and call gave other numbers the second time"):
        assert_equivalent(Restless(None), *given())


def test_what_cannot_be_checked() -> None:
    with pytest.raises(weft.TypeMismatch, match=r"assert_equivalent: expected a weft.VertexFunction, .* got Tensor"):
        assert_equivalent(torch.zeros(2), torch.zeros(2))


def test_policies_and_backends_can_be_chosen() -> None:
    seen: list[tuple[str, str]] = []

    class Watched(Spoiled):
        def __call__(self, graph: weft.Graph, x: Tensor, **options: Any) -> Any:
            seen.append((options["policy"], options["backend"]))
            return self.small(graph, x, **options)

    assert_equivalent(Watched(None), *given(), policies=["depth"], backends=["eager", "reference"], max_rows=2)
    assert seen == [("auto", "reference"), ("depth", "eager"), ("depth", "reference")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


OTHERS: dict[str, tuple[Any, str]] = {
    "strings": (
        lambda x: ("plain" if type(x) is Tensor else "batched", x * 2),
        "policy 'auto', backend 'eager': output[0][0]: 'batched', one by one 'plain'",
    ),
    "None": (
        lambda x: {"found": None if type(x) is Tensor else "it"},
        "policy 'auto', backend 'eager': the result has the structure TreeSpec(dict, ['found'], [TreeSpec(list, None, [*, *, "
        "*])]), one by one it has TreeSpec(dict, ['found'], [*])",
    ),
    "kinds": (
        lambda x: [b"1" if type(x) is Tensor else "1", x],
        "policy 'auto', backend 'eager': output[0][0]: '1', one by one b'1'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_objects_that_are_no_numbers_are_compared(name: str) -> None:
    fn, message = OTHERS[name]
    with pytest.raises(AssertionError) as error:
        assert_equivalent(fn, torch.randn(3, 2), policies=["auto"])
    assert str(error.value) == message


def test_objects_that_are_equal_or_made_anew_are_no_difference() -> None:
    array = np.ones(2)
    assert_equivalent(lambda x: ("same", b"same", {"a": array, "b": np.ones(2)}, object(), None, x * 2), torch.randn(3, 2))
