"""Networks made from examples of JSON records."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import random
from pathlib import Path
from typing import Any

import torch

import weft.blocks as wb
from block_parts import assert_batches
from weft.blocks.schema import Category, Fields, Items, Key, Number, Text

DRAW = random.Random(0)


def patient(number: int) -> dict[str, Any]:
    """A record with everything in it: what decides is the sum of the marks of kind "a"."""
    marks = [{"kind": DRAW.choice("abc"), "value": DRAW.random()} for _ in range(DRAW.randrange(6))]
    record: dict[str, Any] = {"id": f"n{number}", "age": DRAW.uniform(20, 80), "marks": marks, "code": [104, 105, 32, 97]}
    if number % 3:
        record["height"] = str(150 + number)
    record["extra"] = number if number % 2 else {"deep": [number]}
    return record


RECORDS = [patient(number) for number in range(60)]


def test_schema_of_examples() -> None:
    lines = str(wb.Json.schema_of(RECORDS)).splitlines()
    assert lines[0] == "record"
    assert lines[1] == "  id: text, 3 pieces"
    assert lines[2].startswith("  age: number, mean ")
    assert lines[3:6] == ["  marks: list of up to 5", "    record", "      kind: one of 3: 'a', 'b', 'c'"]
    assert lines[6].startswith("      value: number, mean 0.")
    assert lines[7] == "  code: text, 0 pieces"
    assert lines[8] == "  extra: either"
    assert lines[9:12] == ["    record: record", "      deep: list of 1", "        number, mean 29, deviation 17.31"]
    assert lines[12] == "    number: number, mean 30, deviation 17.31"
    assert lines[13].startswith("  height: number, mean ") and lines[13].endswith(", may be missing")


def test_batched_is_one_by_one_also_for_records_never_seen() -> None:
    net = wb.Json(RECORDS, 5).double()
    strange = [
        {"id": "", "age": None, "marks": [], "code": [], "extra": None, "height": None},
        {"id": "x y", "age": "no number", "marks": [{"kind": "z", "value": 1e9}], "code": [1], "extra": "neither", "more": 3},
    ]
    assert_batches(net, [*RECORDS[:6], *strange])


def test_a_schema_can_be_edited() -> None:
    schema = wb.Json.schema_of(RECORDS)
    assert isinstance(schema, Fields)
    before = schema.copy()
    del schema.fields["id"]
    schema.fields["age"] = Category([20, 30])
    schema.fields["code"] = Key()
    schema.fields["height"].optional = False
    assert isinstance(schema.fields["marks"], Items) and isinstance(schema.fields["marks"].item, Fields)
    schema.fields["marks"].item.fields["value"] = Number(0.5, 2, logarithmic=True)
    small = wb.Json(schema, 4)
    assert small.schema is schema and "FieldOf 'id'" not in str(small) and "FieldOf 'code'" not in str(small)
    assert "  age: one of 2: 20, 30\n" in str(schema)
    assert "      value: number on a logarithmic scale, mean 0.5, deviation 2\n" in str(schema)
    assert "  height: number" in str(schema) and "missing" not in str(schema)
    assert small.eval_one({"age": 20}).shape == (4,)
    assert isinstance(before, Fields) and sorted(before.fields) == ["age", "code", "extra", "height", "id", "marks"]
    assert str(before) == str(wb.Json.schema_of(RECORDS))


def test_a_schema_without_some_kinds() -> None:
    schema = wb.Json.schema_of(RECORDS)
    plain = schema.without(Text, Items)
    assert isinstance(plain, Fields) and sorted(plain.fields) == ["age", "extra", "height"]
    assert isinstance(schema, Fields) and len(schema.fields) == 6
    assert wb.Json(Number(0, 1), 2).eval_one(3).shape == (2,)
    assert wb.Json(Items(Text([])), 2).eval_one(["a", "b"]).shape == (2,)


def test_places_of_a_schema() -> None:
    schema = wb.Json.schema_of([{"a": [{"odd key": 1.5}], "b": 2.5}])
    assert [place for place, _ in schema.places()] == ["", ".a", ".a[*]", ".a[*]['odd key']", ".b"]


def test_gates_of_useless_fields_close() -> None:
    """With L2 regularisation, what does not help is turned off."""
    torch.manual_seed(0)
    draw = random.Random(1)
    records = [{"useful": draw.gauss(0, 1), "noise": draw.gauss(0, 1)} for _ in range(120)]
    labels = torch.tensor([record["useful"] > 0 for record in records]).long()
    net = wb.compile(wb.Json(records, 8) >> torch.nn.Linear(8, 2), cache=id)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(records), labels).backward()
        optimizer.step()
    (gates,) = [parameter for name, parameter in net.named_parameters() if name.endswith("gates")]
    useful, noise = gates.abs().tolist()
    assert useful > 0.3 and noise < 0.05


def test_the_block_tree_is_shown() -> None:
    net = wb.Json([{"a": 1.5, "b": ["x", "y"]}, {"a": 2.5, "b": []}], 3)
    assert str(net).splitlines() == [
        "<wb.Json 3>  object -> float32[3]",
        "  0: <wb.Pipe>  object -> float32[3]",
        "    0: <wb.Read AsRecord>  object -> object",
        "    1: <wb.AllOf>  object -> (float32, (float32))",
        "      a: <wb.Pipe 'a'>  object -> float32",
        "        0: <wb.FieldOf 'a'>  object -> object",
        "        1: <wb.Read AsNumber>  object -> object",
        "        2: <wb.Scalar>  object -> float32",
        "      b: <wb.Pipe 'b'>  object -> (float32)",
        "        0: <wb.FieldOf 'b'>  object -> object",
        "        1: <wb.Read as_list>  object -> object",
        "        2: <wb.AllOf>  object -> (float32)",
        "          0: <wb.Pipe>  object -> float32",
        "            0: <wb.Read log_length>  object -> object",
        "            1: <wb.Scalar>  object -> float32",
        "    2: <wb.Function GatedLayer(2 parts, 3)>  (float32, (float32)) -> float32[3]",
    ]


def test_copies_and_state() -> None:
    net = wb.Json(RECORDS, 4)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert list(made.state_dict()) == list(net.state_dict())
        assert torch.equal(made.eval_one(RECORDS[1]), net.eval_one(RECORDS[1]))


def test_deep_ones_are_pickled_with_what_shares_their_parameters() -> None:
    record: dict[str, Any] = {"a": 1.0}
    for _ in range(96):
        record = {"k": record, "v": 2.0, "text": ["some", "words"]}
    net = wb.Json([record, record], 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    net(record).sum().backward()
    made, other = pickle.loads(pickle.dumps((net, optimiser)))
    assert list(made.state_dict()) == list(net.state_dict()) and made.input_type == net.input_type
    assert torch.equal(made.eval_one(record), net.eval_one(record))
    assert all(one is two for one, two in zip(made.parameters(), other.param_groups[0]["params"], strict=True))
    parents = [parent() for block in made.modules() for parent in getattr(block, "_parents", ())]
    assert parents and set(parents) <= set(made.modules())
    optimiser.step()
    made(record).sum().backward()
    other.step()
    assert torch.allclose(made.eval_one(record), net.eval_one(record))


def test_the_example_learns() -> None:
    spec = importlib.util.spec_from_file_location("json_records", Path(__file__).parents[1] / "examples" / "json_records.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    records = [patient(number) for number in range(180)]
    sums = [sum(mark["value"] for mark in record["marks"] if mark["kind"] == "a") for record in records]
    labels = torch.tensor([total > 0.3 for total in sums]).long()
    accuracy, largest, strength = example.split_accuracy(records, labels, 0)
    assert accuracy > largest + 15 and strength in example.STRENGTHS
    seen, unseen = example.split(labels, 2 / 3, 0)
    assert sorted([*seen.tolist(), *unseen.tolist()]) == list(range(180))
    assert abs(float(labels[seen].float().mean() - labels[unseen].float().mean())) < 0.02
