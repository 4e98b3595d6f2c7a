"""The worked examples run, learn what they should, and are short."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import weft.blocks as wb
from block_parts import assert_batches

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = {"blocks_attention": 26, "blocks_tree_lstm": 119, "blocks_graph_conv": 32}
"""Lines of the same networks in Looks et al., "Deep Learning with Dynamic Computation Graphs", ICLR 2017."""


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", LINES)
def test_line_counts(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)]
    prose = {
        line
        for node in documented
        if ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    code = [line for number, line in lines if line.strip() and not line.strip().startswith("#") and number not in prose]
    assert len(code) <= LINES[name]


def number(value: float) -> dict[str, Any]:
    return {"op": "num", "value": value}


def test_evaluator() -> None:
    net = example("blocks_worked").evaluator()
    sums = {"op": "+", "left": number(3), "right": {"op": "*", "left": number(2), "right": number(5)}}
    assert net.eval_one(sums) == 13
    assert wb.compile(net)([sums, number(4), {"op": "-", "left": sums, "right": sums}]).tolist() == [13, 4, 0]


def test_hierarchical_encoder() -> None:
    net = example("blocks_worked").hierarchical(4)
    assert_batches(net.double(), ["a few words", "", "one"])
    assert sum(name.endswith("forget.fn.weight") for name in net.state_dict()) == 2


def test_record_to_vector() -> None:
    net = example("blocks_worked").record(3)
    people = [{"age": 3, "job": "cook", "marks": [1, 2], "height": None}, {"age": 4, "job": "smith", "marks": [], "height": 2}]
    assert_batches(net.double(), people)


def test_lstm_cell_from_its_parts_is_that_of_torch() -> None:
    cell = example("blocks_worked").lstm_cell(3, 2).double()
    mine = nn.LSTMCell(3, 2, dtype=torch.float64)
    with torch.no_grad():
        parts = {name.split(".")[0]: p for name, p in cell.named_parameters() if "weight" in name}
        for gate, name in enumerate(("input", "forget", "update", "output")):
            rows = slice(2 * gate, 2 * gate + 2)
            parts[name].copy_(torch.cat([mine.weight_ih[rows], mine.weight_hh[rows]], 1))
            dict(cell.named_parameters())[f"{name}.fn.bias"].copy_((mine.bias_ih + mine.bias_hh)[rows])
    x, h, c = torch.randn(3).double(), torch.randn(2).double(), torch.randn(2).double()
    got, (again, memory) = cell.eval_one((x, (h, c)))
    wanted = mine(x, (h, c))
    assert torch.allclose(got, wanted[0]) and torch.allclose(memory, wanted[1]) and torch.equal(got, again)


def test_attention() -> None:
    module = example("blocks_attention")
    torch.manual_seed(0)
    parts = wb.Map(wb.Vector(3)) >> module.attention()
    whole = wb.Map(wb.Vector(3)) >> module.in_one_block()
    whole.load_state_dict(dict(zip(whole.state_dict(), parts.state_dict().values(), strict=True)))
    examples = [[[1, 2, 3], [0, 1, 0]], [], [[1, 1, 1]] * 3]
    for one, two in zip(assert_batches(parts.double(), examples), assert_batches(whole.double(), examples), strict=True):
        assert torch.allclose(one, two)


def test_graph_convolution() -> None:
    net = example("blocks_graph_conv").molecule_network(2, 3, 4).double()
    molecules = [
        {"atoms": [[0.1 * i, 1] for i in range(n)], "pairs": [[[i, j, 1] for j in range(n)] for i in range(n)]}
        for n in (3, 1, 0)
    ]
    assert_batches(net, molecules)
    turned = {
        "atoms": molecules[0]["atoms"][::-1],
        "pairs": [[molecules[0]["pairs"][2 - i][2 - j] for j in range(3)] for i in range(3)],
    }
    assert torch.allclose(net.eval_one(turned), net.eval_one(molecules[0]))


def test_tree_lstm_learns() -> None:
    assert example("blocks_tree_lstm").main(steps=60) > 0.75


def test_calculator_is_right_on_deeper_expressions() -> None:
    assert example("blocks_calculator").main() >= 0.99


def test_fizzbuzz_on_numbers_never_trained_on() -> None:
    assert example("blocks_fizzbuzz").main() >= 0.99
