"""`Json` and data that nobody expected: each works, or raises one error that says what came where."""

from __future__ import annotations

import math
import random
import re
from datetime import date
from typing import Any

import pytest
import torch

import weft
import weft.blocks as wb
from block_parts import assert_batches
from weft.blocks.schema import Category, Either, Fields, Items, Key, Number, Schema, Text

BASE: list[Any] = [
    {"a": 1.5, "b": [1, 2.5], "c": "x y", "d": {"e": True}},
    {"a": 2, "b": [2.5], "c": "z", "d": {"e": False}},
] * 4
SIMPLE = "expected a number, a string, True, False or null"


def encoded(example: Any) -> list[float]:
    torch.manual_seed(0)
    made = wb.Json(BASE, 6).eval_one(example)
    assert made.shape == (6,) and bool(made.isfinite().all())
    return made.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("strange", "same"),
    [
        ({"a": math.nan}, {"a": None}),
        ({"a": None}, {}),
        ({"a": "no number"}, {"a": 1.75}),
        ({"a": "nan"}, {"a": None}),
        ({"a": "2.5"}, {"a": 2.5}),
        ({"a": True}, {"a": 1}),
        ({"a": 10**400}, {"a": math.inf}),
        ({"a": math.inf}, {"a": 1e9}),
        ({"a": -(10**400)}, {"a": -1e9}),
        ({"a": torch.tensor(2.0)}, {"a": 2}),
        ({"b": None}, {"b": []}),
        ({"b": math.nan}, {"b": []}),
        ({"d": math.nan}, {}),
        ({"b": (1, 2)}, {"b": [1, 2]}),
        ({"b": [None, "x", math.nan]}, {"b": [2, 2, 2]}),
        ({"c": 3}, {"c": "never seen"}),
        ({"c": None}, {"c": math.nan}),
        ({"d": None}, {}),
        ({"d": {"e": None}}, {"d": {}}),
        ({"d": {"e": 1}}, {"d": {"e": True}}),
        ({"a": 1, "more": [{}], 7: 8}, {"a": 1}),
    ],
    ids=lambda example: str(example)[:30],
)
def test_strange_values_count_as_something_known(strange: Any, same: Any) -> None:
    assert encoded(strange) == encoded(same)


def test_strange_values_batch() -> None:
    net = wb.Json(BASE, 5).double()
    assert_batches(net, [*BASE[:2], {}, {"a": math.nan, "b": [10**400, None]}, {"c": 3, "d": {}}, {"d": None, "z": 1, "a": 1}])


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        (None, weft.TypeMismatch, "Json[0]/Pipe[0]/<wb.Read AsRecord>: expected a record, got NoneType None, in example 1"),
        ([], weft.TypeMismatch, "Json[0]/Pipe[0]/<wb.Read AsRecord>: expected a record, got list [], in example 1"),
        (
            {"z": 1, "A": 2},
            weft.MissingKey,
            "Json[0]/Pipe[0]/<wb.Read AsRecord>: expected a record with some of the fields 'a', 'b', 'c', 'd', "
            "found 'z', 'A', in example 1",
        ),
        (
            {"d": {"f": 1}},
            weft.MissingKey,
            "Json[0]/Pipe[1]/AllOf[d]/d[1]/<wb.Read AsRecord>: expected a record with some of the fields 'e', found 'f', "
            "in example 1 at .d",
        ),
        (
            {"a": [1]},
            weft.TypeMismatch,
            f"Json[0]/Pipe[1]/AllOf[a]/a[1]/<wb.Read AsNumber>: {SIMPLE}, got list [1], in example 1 at .a",
        ),
        (
            {"b": [1, {"q": 1}]},
            weft.TypeMismatch,
            f"Json[0]/Pipe[1]/AllOf[b]/b[2]/AllOf[0]/Pipe[0]/Map[0]/Pipe[0]/<wb.Read AsNumber>: {SIMPLE}, got dict {{'q': 1}}, "
            "in example 1 at .b[1]",
        ),
        (
            {"b": "text"},
            weft.TypeMismatch,
            "Json[0]/Pipe[1]/AllOf[b]/b[1]/<wb.Read as_list>: expected a list, got str 'text', in example 1 at .b",
        ),
        (
            {"c": {}},
            weft.TypeMismatch,
            f"Json[0]/Pipe[1]/AllOf[c]/c[1]/<wb.Read simple>: {SIMPLE}, got dict {{}}, in example 1 at .c",
        ),
        (
            {"d": 3},
            weft.TypeMismatch,
            "Json[0]/Pipe[1]/AllOf[d]/d[1]/<wb.Read AsRecord>: expected a record, got int 3, in example 1 at .d",
        ),
    ],
    ids=str,
)
def test_another_kind_than_all_examples_had(example: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        wb.compile(wb.Json(BASE, 3))([BASE[0], example])
    assert str(caught.value) == message


def test_records_that_may_be_missing() -> None:
    net = wb.Json([{"a": 1.5}, None, {"a": 2.5}], 3).double()
    assert str(net.schema) == "record, may be missing\n  a: number, mean 2, deviation 0.5"
    assert_batches(net, [None, {"a": 1}, math.nan, {}])


def test_texts_that_are_something_else() -> None:
    texts = [{"t": f"word{n % 40} more"} for n in range(200)]
    net = wb.Json(texts, 4)
    assert isinstance(net.schema, Fields) and isinstance(net.schema.fields["t"], Text)
    unknown = net.eval_one({"t": "?"})
    for strange in (12, 1.5, None, [], [-1, 2**40, "x", 1.5], ["x"], True):
        assert torch.equal(net.eval_one({"t": strange}), unknown)
    assert torch.equal(net.eval_one({"t": [119, 111, 114, 100, 49]}), net.eval_one({"t": "word1"}))
    with pytest.raises(weft.TypeMismatch, match=r"<wb.Read AsPieces>: expected a text, got dict \{\}, in example 0 at \.t$"):
        net.eval_one({"t": {}})


def test_values_of_several_kinds() -> None:
    mixed = [{"m": value} for value in (1, "a", [2, "b", None], {"k": 1}, None)] * 4
    net = wb.Json(mixed, 4).double()
    assert_batches(net, [*mixed[:5], {"m": True}, {"m": 7.5}, {"m": ()}, {"m": {}}, {"m": "other"}, {}])
    numbers = wb.Json([{"m": 1.5}, {"m": {"k": 2.5}}], 4)
    other = numbers.eval_one({"m": None})
    for strange in ("x", [], object()):
        assert torch.equal(numbers.eval_one({"m": strange}), other)


@pytest.mark.parametrize(
    ("examples", "printed"),
    [
        ([1, 2.5], "number, mean 1.75, deviation 0.75"),
        ([None, None], "nothing, may be missing"),
        ([{}], "record"),
        ([{"a": [[]]}], "record\n  a: list of 1\n    list of 0\n      nothing"),
        ([True, False] * 4, "one of 2: False, True"),
        ([True, 0, 1, 0] * 4, "one of 2: 0, 1"),
        ([{"a": 0.1}] * 5, "record\n  a: always 0.1, left out"),
        ([{"a": 1.5}, {"a": math.nan}], "record\n  a: number, mean 1.5, deviation 1, may be missing"),
        ([{"a": 1.5}, {"a": math.inf}, {"a": 10**400}], "record\n  a: number, mean 1.5, deviation 1"),
        ([{"a": math.inf}], "record\n  a: number, mean 0, deviation 1"),
        ([{"a": "nan"}, {"a": "inf"}], "record\n  a: text, 0 pieces"),
        ([{"a": "1.5"}, {"a": 2}], "record\n  a: number, mean 1.75, deviation 0.25"),
        ([{"a": "1_0"}], "record\n  a: text, 0 pieces"),
        (
            [{1: "", (1, 2): 2.5, None: []}],
            "record\n  1: text, 0 pieces\n  (1, 2): number, mean 2.5, deviation 1\n  None: list of 0\n    nothing",
        ),
        (
            [{"a.b": "", "": "", "training": 3}],
            "record\n  a.b: text, 0 pieces\n  : text, 0 pieces\n  training: number, mean 3, deviation 1",
        ),
        ([1e308, -1e308], "number, mean 0, deviation 1e+308"),
        ([{"a": n} for n in range(100, 250)], "record\n  a: key, left out"),
        ([{"a": n} for n in range(100, 150)], "record\n  a: number, mean 124.5, deviation 14.43"),
        ([{"a": n * n} for n in range(150)], "record\n  a: number, mean 7425, deviation 6666"),
        ([{"a": 10**n} for n in range(60)], "record\n  a: number on a logarithmic scale, mean 67.94, deviation 39.85"),
        ([[50, 46, 49], [51, 46, 50]], "number, mean 2.65, deviation 0.55"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_schemas_of_odd_examples(examples: list[Any], printed: str) -> None:
    schema = wb.Json.schema_of(examples)
    assert str(schema) == printed
    for made in (wb.Json(schema, 3).eval_one(example) for example in examples[:3]):
        assert made.shape == (3,) and bool(made.isfinite().all())


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "Json: expected a schema or a list of at least one example, got []"),
        ({"a": 1}, "Json: expected a schema or a list of at least one example, got {'a': 1}"),
        ("abc", "Json: expected a schema or a list of at least one example, got 'abc'"),
        ([{}, {"a": [1, date(2, 1, 2)]}], "Json: examples[1].a[1]: expected a JSON value, got date datetime.date(2, 1, 2)"),
        ([{"a b": {1}}], "Json: examples[0]['a b']: expected a JSON value, got set {1}"),
        ([{"a": torch.ones(2)}], "Json: examples[0].a: expected a JSON value, got Tensor tensor([1., 1.])"),
    ],
    ids=str,
)
def test_examples_that_are_no_json(examples: Any, message: str) -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.Json(examples, 3)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dim": 0}, weft.ShapeError, "Json: dim: expected at least 1, got 0"),
        ({"dim": -3}, weft.ShapeError, "Json: dim: expected at least 1, got -3"),
        ({"dim": "8"}, weft.TypeMismatch, "Json: dim: expected a whole number, got '8'"),
        ({"dim": 2.5}, weft.TypeMismatch, "Json: dim: expected a whole number, got 2.5"),
        ({"dim": True}, weft.TypeMismatch, "Json: dim: expected a whole number, got True"),
        (
            {"dim": 3, "keep_prob": 2},
            weft.TypeMismatch,
            "Json: keep_prob: expected None or a number above 0 and at most 1, got 2",
        ),
        (
            {"dim": 3, "keep_prob": "x"},
            weft.TypeMismatch,
            "Json: keep_prob: expected None or a number above 0 and at most 1, got 'x'",
        ),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        wb.Json(BASE, **settings)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Number(0, 0), "Json: schema: deviation: expected a finite number above 0, got 0"),
        (Number(math.nan, 1), "Json: schema: mean: expected a finite number, got nan"),
        (Fields({"a": Items(Number(0, -1))}), "Json: schema.a[*]: deviation: expected a finite number above 0, got -1"),
        (Fields({"a": 3}), "Json: schema.a: expected a schema, got 3"),  # type: ignore[dict-item]
        (Fields({"a b": Text("abc")}), "Json: schema['a b']: pieces: expected a list of strings, got 'abc'"),  # type: ignore[arg-type]
        (Category([[1]]), "Json: schema: values: expected strings, numbers, True, False or None, got [[1]]"),
        (Category([1, 1]), "Json: schema: values: expected different ones, got [1, 1]"),
        (Either({"x": Key()}), "Json: schema: kinds: expected some of record, list, text, number, got 'x'"),
        (Fields([1]), "Json: schema: fields: expected a dict, got [1]"),  # type: ignore[arg-type]
        (Items(None), "Json: schema[*]: expected a schema, got None"),  # type: ignore[arg-type]
    ],
)
def test_schemas_that_make_no_sense(schema: Schema, message: str) -> None:
    with pytest.raises(weft.TypeMismatch) as caught:
        wb.Json(schema, 3)
    assert str(caught.value) == message


def nested(depth: int, record: bool) -> Any:
    value: Any = 1.5
    for _ in range(depth):
        value = {"a": value} if record else [value]
    return value


@pytest.mark.parametrize("record", [False, True])
def test_deep_examples(record: bool) -> None:
    deep = nested(60, record)
    net = wb.Json([deep, nested(60, record)], 2)
    assert str(net.schema).count("\n") == 60 and str(net.schema.copy()) == str(net.schema)
    assert net.eval_one(deep).shape == (2,)


def test_lists_in_lists_do_not_make_the_network_wide() -> None:
    def lists(depth: int) -> Any:
        items: Any = [1.5, 2.5]
        for _ in range(depth):
            items = [items, []]
        return items

    sizes = []
    for depth in (2, 50, 90):
        examples = [{"a": lists(depth)}, {"a": []}]
        net = wb.Json(examples, 4)
        sizes.append(max(max(parameter.shape) for parameter in net.parameters()))
        assert wb.compile(net)(examples).isfinite().all()
    assert sizes == [9, 9, 9]
    assert [
        p.shape[-1] for p in wb.Json([[[1.5], [2.5, 2]], [[3, 4.5]]], 4).parameters() if p.dim() == 2 and p.shape[1] > 1
    ] == [7]


def test_examples_that_are_too_deep() -> None:
    with pytest.raises(weft.StructureError) as caught:
        wb.Json([1, {"a": nested(50_000, record=False)}], 3)
    pattern = (
        r"Json: examples\[1\]\.a(\[0\]){100}: nested deeper than 100 levels; write a recursive block with ForwardDeclaration"
    )
    assert re.fullmatch(pattern, str(caught.value))


def random_value(draw: random.Random, depth: int) -> Any:
    """Any JSON value, and some that only Python has."""
    if depth and draw.random() < 0.5:
        size = draw.randrange(4)
        if draw.random() < 0.5:
            return {draw.choice(["a", "b", "c", 1, ""]): random_value(draw, depth - 1) for _ in range(size)}
        return [random_value(draw, depth - 1) for _ in range(size)]
    return draw.choice([None, True, 0, 7, -(10**400), 1.5, math.nan, -math.inf, "", "a b", "12", "nan", "\ud800", (97, 98)])


@pytest.mark.parametrize("seed", range(12))
def test_random_data_is_encoded_or_refused_in_words(seed: int) -> None:
    draw = random.Random(seed)
    examples = [random_value(draw, 2) for _ in range(draw.choice([1, 3, 12]))]
    net = wb.Json(examples, 3)
    together = wb.compile(net)(examples)
    alone = torch.stack([net.eval_one(example) for example in examples])
    assert bool(alone.isfinite().all()) and torch.allclose(together, alone, atol=1e-5)
    assert str(Schema.of(examples)) == str(net.schema) and str(net)
    for other in (random_value(draw, 2) for _ in range(8)):
        try:
            assert bool(net.eval_one(other).isfinite().all())
        except weft.WeftError as error:
            assert "expected" in str(error) and "in example 0" in str(error)
