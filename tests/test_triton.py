"""Kernels for a GPU, run on a CPU by Triton's interpreter: every kernel beside the torch calls that it stands for."""

from __future__ import annotations

from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import weft
import weft.nn
from kernel_parts import NEEDS_INTERPRETER, fast_products, poison_memory, recipe_texts, results, tree, watch_recipes
from weft.run.gpu import sweep, tiles
from weft.run.gpu.execution import GpuExecution
from weft.run.gpu.turn import to_be_turned, turned
from weft.run.gpu.variables import Tile
from weft.testing import assert_equivalent, random_program, random_structure
from weft.testing.programs import SAMPLES

pytestmark = NEEDS_INTERPRETER

STEPWISE = "backend 'triton' runs its steps one by one, for no kernel can express"
FALLS_BACK = {
    "matrix-vector": f"MatrixVector: {STEPWISE} a product (@) of two tensors that differ from vertex to vertex",
}
"""Of the sample cells, those with an operation that no kernel expresses, and what the warning says of it."""


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in FALLS_BACK])
def test_random_programs_agree(sample: str) -> None:
    for seed, kind in enumerate(("dag", "batch")):
        structure = random_structure(seed, kind, types=SAMPLES[sample].types)
        program, inputs = random_program(seed, sample=sample, structure=structure)
        for _ in range(2):  # the first call writes recipes, the second goes by them
            assert_equivalent(program, *inputs, policies=["auto"], backends=["triton"])


@pytest.mark.parametrize("sample", FALLS_BACK)
def test_what_no_kernel_expresses_runs_step_by_step_and_says_why(sample: str) -> None:
    program, inputs = random_program(1, sample=sample, structure=random_structure(1, "tree", types=SAMPLES[sample].types))
    with pytest.warns(weft.FallbackWarning) as told:
        assert_equivalent(program, *inputs, policies=["auto"], backends=["triton"])
    assert FALLS_BACK[sample] in {str(warning.message) for warning in told}


class Reshapes(weft.VertexFunction):
    """A parameter is read through a view that is the same for every step, by a kernel of a step."""

    def __init__(self) -> None:
        super().__init__(state={"h": (4,)})
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.float64))

    def forward(self, v: Any) -> None:
        h = torch.tanh((v.pull() + v.gather().sum()).reshape(2, 2) * self.scale.reshape(2, 2)).reshape(4)
        v.scatter(h=h)
        v.push(h)


def test_a_step_reads_a_reshaped_parameter_from_where_it_is() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_equivalent(Reshapes(), weft.Graph([[], [0], [1, 0]]), x, policies=["auto"], backends=["triton"])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("rows", [0, 1, 2, 63, 127, 1000])
@pytest.mark.parametrize("make", [weft.nn.LSTM, weft.nn.TreeGRU, weft.nn.ChildSumTreeLSTM], ids=lambda make: make.__name__)
def test_steps_of_any_number_of_rows_write_all_they_should(make: Any, rows: int) -> None:
    torch.manual_seed(0)
    model = make(4, 6).double()
    graph = weft.Graph.batch([weft.Graph.chain(3) for _ in range(rows)] + [weft.Graph.chain(2)])
    x = torch.randn(graph.num_vertices, 4, dtype=torch.float64)
    found, expected = results(model, graph, x, "triton"), results(model, graph, x, "eager")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12 * max(1.0, float(tensor.abs().max()))), name


def test_steps_of_different_widths_are_different_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide steps, narrow ones, and those between have their own tiles; one range of steps follows the other, both ways."""
    small = {"narrow": 1, "middling": 2, "broad": 4}
    monkeypatch.setattr(tiles, "TILES", {name: Tile(rows, 8, 16, "tf32") for name, rows in small.items()})
    monkeypatch.setattr(tiles, "PROCESSORS", 1)
    monkeypatch.setattr(tiles, "_known", {})
    monkeypatch.setattr(sweep, "WIDTHS", (*small, "apart"))
    launched: list[tuple[bool, int, int, str]] = []
    right = sweep.Walk.start

    def start(self: sweep.Walk, turns: Any, *arguments: Any) -> None:
        launched.extend((self.backward, *turn) for turn in turns)
        right(self, turns, *arguments)

    monkeypatch.setattr(sweep.Walk, "start", start)
    torch.manual_seed(0)
    model = weft.nn.LSTM(3, 5)
    graph = weft.Graph.batch([weft.Graph.chain(n) for n in (7, 6, 4, 3, 3, 3)])
    x = torch.randn(graph.num_vertices, 3)
    expected = results(model, graph, x, "eager")
    with fast_products():
        found = results(model, graph, x, "triton")
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-5), name
    forward = [(0, 3, "broad"), (3, 5, "middling"), (5, 6, "narrow")]
    assert launched == [(False, *one) for one in forward] + [(True, *one) for one in reversed(forward)]


def test_steps_have_the_smallest_tiles_of_which_each_processor_does_one() -> None:
    """Of units of 256, by 132 processors."""
    cpu = torch.device("cpu")
    at_once = {name: tiles.rows_at_once(tile, 256 // tile.columns, cpu) for name, tile in tiles.TILES.items()}
    assert at_once == {"narrow": 64, "middling": 128, "broad": 512, "wide": 1024, "widest": 2048}
    assert tiles.rows_at_once(tiles.TILES["narrow"], 256, cpu) == 16  # more columns than processors


def test_what_is_loaded_ahead_fits_into_memory() -> None:
    cpu = torch.device("cpu")
    for tile in tiles.TILES.values():
        for units in range(1, 17):
            many = tiles.stages(tile, units, cpu)
            bytes_ = 4 * tile.inner * tile.ways * (tile.rows + units * tile.columns) * many
            assert many == 2 or bytes_ <= tiles.SHARED
            assert many == tile.stages or bytes_ * (many + 1) > tiles.SHARED * many


def test_a_weight_is_turned_where_a_fast_product_would_read_it_number_by_number() -> None:
    matrix = torch.randn(70, 130)
    assert torch.equal(turned(matrix), matrix.t())
    assert not to_be_turned(matrix)
    with fast_products():
        assert to_be_turned(matrix)
        assert not to_be_turned(matrix.t())
        assert not to_be_turned(matrix.bfloat16())


def test_turned_weights_in_sweeps_and_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_recipes(monkeypatch, GpuExecution)
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(3, 6)
    graph = weft.Graph.batch([weft.Graph([[], [], [0, 1], [], [2, 3]], types=[0, 0, 1, 0, 1])] * 3)
    x = torch.randn(graph.num_vertices, 3)
    expected = results(model, graph, x, "eager")
    for _ in range(2):
        with fast_products():
            found = results(model, graph, x, "triton")
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, atol=1e-5), name
    assert seen == [False, True]
    turning = ["fresh((12, 30)" in text and ".go(30, 12, " in text for text in recipe_texts(model)]
    assert turning == [False, True]  # forward, backward


def test_leaves_that_hand_on_their_rows_copy_them_once() -> None:
    torch.manual_seed(0)
    model = weft.nn.TreeFC(6)
    graph = weft.Graph.batch([weft.Graph([[], [], [0, 1], [], [2, 3]], types=[0, 0, 1, 0, 1])] * 3)
    x = torch.randn(graph.num_vertices, 6)
    expected = results(model, graph, x, "eager")
    for _ in range(2):
        found = results(model, graph, x, "triton")
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, atol=1e-5), name
    forward = recipe_texts(model)[0]
    assert "(tensors[2], f4, out=x2)" in forward and "index_select" not in forward


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_products_split_over_warps_are_the_same_products(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies exactly whatever the precision, so that only the splitting shows."""
    monkeypatch.setattr(sweep, "tile_for", lambda *_: Tile(columns=8, inner=16, precision=precision, ways=4))
    torch.manual_seed(0)
    model = weft.nn.NaryTreeLSTM(3, 20, classes=2)
    graph = weft.Graph.batch([weft.Graph([[], [], [0, 1], [], [2, 3]], types=[0, 0, 1, 0, 1])] * 3)
    x = torch.randn(graph.num_vertices, 3)
    found, expected = results(model, graph, x, "triton"), results(model, graph, x, "eager")
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name


@pytest.mark.parametrize("d", [20, 30])
def test_rows_that_others_write_are_loaded_ahead_in_words_of_16_bytes_only(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller words would go through a cache that may still hold what was there before."""
    texts: list[str] = []
    right = sweep.Walk.run

    def run(self: sweep.Walk, *arguments: Any) -> None:
        texts.append(self.sweeps["narrow"].kernel.source)
        right(self, *arguments)

    monkeypatch.setattr(sweep.Walk, "run", run)
    model = weft.nn.LSTM(3, d)
    results(model, weft.Graph.chain(4), torch.randn(4, 3), "triton")
    forward, backward = ([line.strip() for line in text.splitlines() if "for k in" in line] for text in texts)
    assert forward == [f"for k in tl.range(0, {d}, 32{', num_stages=1' if d == 30 else ''}):"]
    assert backward == [f"for k in tl.range(0, {4 * d}, 32):"]  # four gates: a multiple of four numbers


def test_without_a_gpu_and_without_the_interpreter_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    model = weft.nn.LSTM(3, 4)
    with pytest.raises(TypeError) as told:
        model(weft.Graph.chain(3), torch.randn(3, 3), backend="triton")
    assert str(told.value) == (
        "backend 'triton' needs the package triton and tensors on a GPU; these are on 'cpu'. "
        "On a CPU its kernels run only under Triton's interpreter (TRITON_INTERPRET=1)"
    )


def test_memory_lives_until_its_kernel_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else memory that is asked for in between is the same: the count of the first sweep, for one."""
    made, alive = list[ref[Tensor]](), list[bool]()
    scratch = sweep._scratch

    def noted(run: Any, value: Any) -> Tensor:
        found = scratch(run, value)
        made.append(ref(found))
        return found

    def start(self: Any, turns: Any, *rest: Any) -> None:
        alive.extend(one() is not None for one in made)

    monkeypatch.setattr(sweep, "_scratch", noted)
    monkeypatch.setattr(sweep, "interpreted", lambda: False)
    monkeypatch.setattr(sweep.Walk, "start", start)
    with torch.no_grad():
        weft.nn.TreeGRU(3, 4)(tree(3), torch.randn(5, 3), backend="triton")
    assert made and alive == [True] * len(made)
