"""Blocks as modules: recursion, sharing, dtypes; programs that are kept, sent and batched by a loader; ragged results."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
import weft.blocks as wb
from block_parts import assert_batches, assert_equal, is_list, mix, running
from weft.run import blaming


def recursive(size: int = 3) -> wb.Block:
    """Nested lists of numbers to a vector."""
    deep = wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([size]))
    inner = wb.Map(deep()) >> wb.Sum() >> wb.Function(nn.Linear(size, size), name="inner") >> nn.Dropout(0.5)
    leaf = wb.Scalar("int64") >> wb.Function(nn.Embedding(5, size), name="leaf")
    deep.resolve_to(wb.OneOf(is_list, (leaf, inner)))
    return deep()


KEYS = ["target.0.leaf.fn.weight", "target.1.inner.fn.weight", "target.1.inner.fn.bias"]


def test_recursion_is_no_obstacle_to_the_methods_of_a_module() -> None:
    net = recursive()
    assert list(net.state_dict()) == KEYS == [name for name, _ in net.named_parameters()]
    assert len(list(net.modules())) == len(set(net.modules())) == len(list(net.named_modules()))
    assert [module.training for module in net.eval().modules() if isinstance(module, nn.Dropout)] == [False]
    assert [module.training for module in net.train().modules() if isinstance(module, nn.Dropout)] == [True]
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert list(made.state_dict()) == KEYS
        made.load_state_dict(net.state_dict())
        assert_equal(made.eval().eval_one([1, [2]]), net.eval().eval_one([1, [2]]))
    seen: list[str] = []
    net.apply(lambda module: seen.append(type(module).__name__))
    assert seen.count("Linear") == 1
    assert repr(net) == "<wb.ForwardDeclaration()>" and "(as above)" in str(net)
    assert net.get_submodule("target.1.inner").subblocks == ()
    with pytest.raises(RuntimeError, match=r'Missing key.*"target.0.leaf.fn.weight".*'):
        net.load_state_dict({key: value for key, value in net.state_dict().items() if key != KEYS[0]})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        net.load_state_dict({**net.state_dict(), "other": torch.zeros(1)})


def test_types_follow_the_parameters_to_another_dtype() -> None:
    net = recursive().eval()
    assert net.half().output_type == wb.TensorType([3], "float16")
    assert net.eval_one([1, [2]]).dtype == torch.float16
    assert wb.compile(net.double())([[1, [2]], 3]).dtype == torch.float64
    assert_batches(net, [[1, [2, 2]], 3, []])
    person = wb.Record({"age": wb.Scalar(), "tags": wb.OneHot(3)}) >> wb.Concat() >> nn.Linear(4, 2)
    assert person.double().eval_one({"age": 3, "tags": 1}).dtype == torch.float64


def test_integers_stay_integers_when_all_tensors_get_another_dtype() -> None:
    words, counts = nn.Embedding(3, 2), torch.tensor([2**53 + 1, 3])
    net = wb.AllOf(wb.Scalar("int64") >> words, wb.FromTensor(counts), wb.Scalar(), wb.Scalar("bool"))
    for dtype in (torch.float64, torch.float16):
        found = net.type(dtype).eval_one(1)
        assert [each.dtype for each in found] == [dtype, torch.int64, dtype, torch.bool]
        assert found[0].tolist() == words.weight[1].tolist() and found[1].tolist() == counts.tolist()


def test_two_blocks_that_refer_to_each_other() -> None:
    even, odd = (wb.ForwardDeclaration(wb.PyObjectType(), wb.TensorType([2])) for _ in range(2))
    for mine, other, name in ((even, odd, "even"), (odd, even, "odd")):
        step = wb.Function(nn.Linear(2, 2), name=name)
        mine.resolve_to(wb.OneOf(len, {0: wb.Zeros([2]), 1: wb.GetItem(0) >> other() >> step}))
    net = even()
    assert len(net.state_dict()) == 4 == len(list(net.parameters()))
    assert_batches(net.double(), [[], [[]], [[[]]], [[[[]]]]])


def test_a_block_in_several_places_is_one_module() -> None:
    word = wb.Scalar("int64") >> wb.Embedding(5, 3)
    net = wb.Record({"a": word, "b": wb.Map(word) >> wb.Sum()}) >> wb.Function(mix)
    assert len(net.state_dict()) == len(list(net.parameters())) == 1
    alone = word >> nn.Tanh()
    assert len(alone.state_dict()) == 1 and next(alone.parameters()) is next(net.parameters())
    assert_batches(net.double(), [{"a": 1, "b": [1, 2]}, {"a": 2, "b": []}])


def test_one_module_behind_two_blocks_is_one_kind_of_call() -> None:
    linear = nn.Linear(3, 3)
    net = wb.AllOf(wb.Vector(3) >> linear, wb.Vector(3) >> wb.Function(linear, name="again"))
    program = wb.compile(net).program([1, 2, 3])
    assert len(set(program.calls.type.tolist())) == 1 and program.calls.num_calls == 2


def test_calls_that_are_equal_may_be_computed_once() -> None:
    net = wb.Map(wb.Scalar("int64") >> wb.Embedding(5, 3) >> nn.Dropout(0.5)) >> wb.Sum()
    words = [[1, 1, 2], [1, 2]]
    assert_batches(net.eval().double(), words, dedupe=True)
    torch.manual_seed(0)
    drawn = wb.compile((wb.Scalar() >> nn.Dropout(0.5)).train(), dedupe=True)([1.0] * 64)
    assert set(drawn.tolist()) == {0.0, 2.0}


def test_depth_is_limited_by_memory_alone() -> None:
    net, chain = recursive().eval(), wb.Map(wb.Scalar()) >> wb.Fold(wb.Function(mix), wb.Zeros([]))
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    assert wb.compile(net).program(nested).calls.num_calls == 100_001 + 100_000
    assert wb.compile(chain).program(list(range(100_000))).calls.num_calls == 200_001


def test_long_pipes_and_deep_blocks() -> None:
    pipe = wb.Pipe(wb.Scalar(), *(wb.Function(torch.neg) for _ in range(1100)))
    assert pipe.eval_one(2) == 2 and pipe.max_depth(2) == 1100
    block: wb.Block = wb.Scalar()
    for _ in range(1100):
        block = wb.Optional(block)
    assert block.eval_one(7) == 7 and block.eval_one(None) == 0
    assert len(list(block.modules())) == 1101 and len(str(block).splitlines()) == 1101


def test_programs_are_kept_and_sent() -> None:
    net = wb.compile(recursive().double().eval())
    examples = [[1, [2, 3]], 4, []]
    programs = [pickle.loads(pickle.dumps(net.program(example))) for example in examples]
    assert_equal(net(programs), net(examples))
    assert_equal(net([pickle.loads(pickle.dumps(program)) for program in programs]), net(examples))
    assert_equal(net(net.merge(programs)), net(examples))
    lengths = wb.compile(wb.Map(wb.Vector(2, "float64")) >> wb.Stack() >> wb.Function(running))
    lengths.stack = False
    rows = [[[1, 2]] * n for n in (3, 1, 2)]
    other = copy.deepcopy(lengths)
    kept = [other.program(row) for row in rows]
    assert_equal(lengths([kept[2], kept[0]]), lengths([rows[2], rows[0]]))


def test_cache_keeps_the_program_of_an_example() -> None:
    seen: list[Any] = []
    net = wb.compile(wb.InputTransform(lambda x: seen.append(x) or x) >> wb.Scalar(), cache=True)
    assert net([1, 2, 1]).tolist() == net([1, 2, 1]).tolist() == [1, 2, 1]
    assert seen == [1, 2]
    net.cache_clear()
    net([2])
    assert seen == [1, 2, 2]


def test_a_program_of_another_network_is_not_run() -> None:
    net = wb.compile(wb.Vector(2) >> nn.Linear(2, 2), cache=tuple)
    program, example = net.program([1, 2]), [1, 2]
    net([example])
    net.double()
    assert net([example]).dtype == torch.float64
    with pytest.raises(weft.StructureError, match="a program was recorded by another network, or before its types changed"):
        net([program])


def test_values_and_caches_do_not_go_together() -> None:
    with pytest.raises(weft.StructureError) as caught:
        wb.compile(wb.Map(wb.Scalar()) >> wb.Filter(wb.Identity()), cache=True)
    assert str(caught.value) == (
        "Pipe[1]/<wb.Filter>: what is computed depends on the values of tensors; no program can be kept (cache)"
    )


def test_items_that_look_at_values_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    flushes: list[int] = []
    plain = blaming.run_calls

    def counted(library: Any, programs: Any, *rest: Any, **more: Any) -> Any:
        flushes.append(len(programs[0].type))
        return plain(library, programs, *rest, **more)

    monkeypatch.setattr(blaming, "run_calls", counted)
    halve = wb.While(wb.Function(lambda x: x > 1), wb.Function(lambda x: x / 2), 20)
    net = wb.Map(
        wb.Map(wb.Scalar("float64") >> halve >> wb.AllOf(wb.Metric("end"), wb.Identity()) >> wb.GetItem(1)) >> wb.Sum()
    )
    examples = [[[5.0, 1.0], [9.0]], [], [[2.0, 64.0, 3.0]]]
    wb.compile(net)(examples)
    assert len(flushes) == 8, "as many batches as the longest loop needs, and one for the sums"
    assert_batches(net, examples)


def test_an_error_after_a_value_was_needed_names_its_place() -> None:
    net = wb.compile(
        wb.Record([(0, wb.Map(wb.Scalar()) >> wb.Filter(wb.Identity())), (1, wb.Map(wb.GetItem("a") >> wb.Scalar()))])
    )
    with pytest.raises(weft.MissingKey) as caught:
        net([([1, 0], []), ([1], [{"a": 1}, {"b": 2}])])
    assert (
        str(caught.value)
        == "Record[1]/Map[0]/Pipe[0]/<wb.GetItem 'a'>: expected the key 'a', found 'b', in example 1 at [1][1]"
    )


def test_equivalence_of_blocks_under_every_policy() -> None:
    net = recursive().eval()
    weft.testing.assert_equivalent(net, [[1, [2, 3]], 4, []])
    weft.testing.assert_equivalent(wb.compile(net), [[1, [2, 3]], 4, []], policies=["auto"])


def test_a_loader_builds_batches() -> None:
    net = wb.compile(recursive().eval())
    data = [([1, [2]], 0), (3, 1), ([], 0), ([[4]], 1)]
    collate = weft.data.collate(net)
    loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=collate, num_workers=1)  # type: ignore[arg-type]
    for (batch, labels), part in zip(loader, (data[:3], data[3:]), strict=True):
        assert labels.tolist() == [label for _, label in part]
        assert_equal(net(batch), net([tree for tree, _ in part]))
    value_dependent = wb.compile(wb.Map(wb.Scalar()) >> wb.Filter(wb.Identity()) >> wb.Sum())
    with pytest.raises(weft.StructureError, match="depends on the values of tensors"):
        weft.data.collate(value_dependent)([[1, 2]])


def test_batched_of_a_block() -> None:
    net = weft.batched(wb.Map(wb.Scalar()))
    assert [[float(x) for x in row] for row in net([[1, 2], []])] == [[1, 2], []]


def test_what_stands_left_of_the_arrow() -> None:
    block = wb.Function(torch.neg)
    assert (torch.ones(2) >> block).eval_one(None).tolist() == [-1, -1]
    assert (np.ones(2) >> wb.Function(torch.neg)).eval_one(None).tolist() == [-1, -1]
    assert ({"a": wb.Scalar()} >> wb.Concat()).eval_one({"a": 1}).tolist() == [1]
    assert ((wb.Scalar(), wb.Scalar()) >> wb.Concat()).eval_one([1, 2]).tolist() == [1, 2]
    assert ([wb.Scalar(), wb.Scalar()] >> wb.Concat()).eval_one([1, 2]).tolist() == [1, 2]
    assert (nn.Tanh() >> wb.Function(torch.neg)).set_input_type([]).eval_one(0) == 0
    with pytest.raises(TypeError):
        wb.Scalar() >> 3
    with pytest.raises(TypeError):
        "a" >> wb.Scalar()


def test_a_compiled_block_in_a_model_of_the_users() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = wb.compile(recursive())
            self.out = nn.Linear(3, 2)

        def forward(self, trees: list[Any]) -> torch.Tensor:
            out: torch.Tensor = self.out(self.encoder(trees))
            return out

    model, other = Model().eval(), Model().eval()
    assert list(model.state_dict()) == [*(f"encoder.{key}" for key in KEYS), "out.weight", "out.bias"]
    other.load_state_dict(model.state_dict())
    assert_equal(other([[1, [2]], 3]), model([[1, [2]], 3]))
    assert not any(module.training for module in model.modules())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = model([1])
    model([[1, [2]], 3]).sum().backward()
    optimizer.step()
    assert not torch.equal(model([1]), before)


def test_a_failed_call_leaves_nothing_behind() -> None:
    net = wb.compile(wb.Map(wb.Scalar()) >> wb.Sum())
    for _ in range(2):
        with pytest.raises(weft.TypeMismatch):
            net([[1, 2], ["x"]])
        assert net([[1, 2], [3]]).tolist() == [3, 3]


def test_everything_public_shows_an_example() -> None:
    public = {name: value for name, value in vars(wb).items() if getattr(value, "__module__", "").startswith("weft.blocks")}
    assert len(public) > 50
    shown = {name for name, value in public.items() if ">>> " in (inspect.getdoc(value) or "")}
    assert public.keys() - shown == {"BlockProgram", "CompiledBlock"}, "made by `compile` and by what it gives"


def test_kept_programs_tell_equal_numbers_of_different_types_apart() -> None:
    assert wb.compile(wb.InputTransform(repr), cache=True)([1, True, 1.0]) == ["1", "True", "1.0"]
    by_value = wb.compile(wb.InputTransform(lambda pair: repr(pair[0])), cache=tuple)
    assert by_value([[1, 2], [True, 2], [1.0, 2], [1, 2]]) == ["1", "True", "1.0", "1"]


def test_an_empty_batch_with_a_cache() -> None:
    assert wb.compile(wb.Vector(2), cache=tuple)([]).shape == (0, 2)
    assert wb.compile(wb.Map(wb.Scalar()), cache=tuple)([]) == []


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_hooks_of_a_module_in_a_function_are_noticed_when_they_come_and_go() -> None:
    block = wb.Vector(2) >> torch.nn.Linear(2, 2)
    net = wb.compile(block)
    before = net([[1, 2], [3, 4]])
    hook = block.subblocks[1].fn.register_forward_hook(lambda module, given, out: out * 0 + 7)
    assert net([[1, 2], [3, 4]]).tolist() == [[7, 7], [7, 7]]
    hook.remove()
    assert torch.equal(net([[1, 2], [3, 4]]), before)


def test_a_compiled_block_is_the_block() -> None:
    block = wb.Vector(2) >> nn.Linear(2, 2)
    net = wb.compile(block)
    assert not net.eval().training and not block.training
    block.train()
    assert net.training
    net.double()
    assert block.output_type == wb.TensorType([2], "float64")
    alone = wb.compile(wb.FromTensor(nn.Parameter(torch.ones(2))))
    assert list(alone.state_dict()) == ["tensor"] and len(list(alone.parameters())) == 1
    alone([None, None]).sum().backward()
    assert next(alone.parameters()).grad.tolist() == [2, 2]


def test_paths_lead_somewhere_from_a_compiled_block() -> None:
    block = wb.Vector(2) >> wb.Function(nn.Linear(2, 2), name="out")
    net = wb.compile(block)
    assert net.get_parameter("out.fn.weight") is block.get_parameter("out.fn.weight")
    assert net.get_submodule("out") is block.subblocks[1]
    zeros = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    assert torch.func.functional_call(net, zeros, ([[1, 2]],)).tolist() == [[0, 0]]
    assert not torch.equal(net([[1, 2]]), torch.zeros(1, 2))
    tensor = nn.Parameter(torch.ones(2))
    assert wb.compile(wb.FromTensor(tensor)).get_parameter("tensor") is tensor
    with pytest.raises(AttributeError, match="'CompiledBlock' object has no attribute 'other'"):
        _ = net.other


def test_layers_have_names_and_can_be_piped() -> None:
    net = wb.Vector(2) >> (wb.FC(3, name="hidden") >> wb.FC(2, None, name="out"))
    assert list(net.state_dict()) == ["hidden.fn.weights", "hidden.fn.bias", "out.fn.weights", "out.fn.bias"]
    word = wb.Scalar("int64") >> wb.Embedding(4, 2, name="word") >> wb.FractalNet(1, 1, lambda: wb.FC(2), name="deep")
    assert list(word.state_dict()) == ["word.fn.weights", "deep.fn.layers.0.weights", "deep.fn.layers.0.bias"]
    assert (np.ones(2, "float32") >> wb.FC(3)).eval_one(None).shape == (3,)
    assert (torch.ones(2) >> wb.FC(3)).eval_one(None).shape == (3,)
    assert (np.float32(2) >> wb.Function(torch.neg)).eval_one(None) == -2
    assert not hasattr(wb.FC(3), "scales") and not hasattr(wb.FC(3), "weights")


def test_tensors_side_by_side_need_no_input() -> None:
    net = wb.Map(wb.Scalar()) >> wb.Fold(
        wb.Function(lambda state, x: (state[0] + x, state[1] * x)), (torch.tensor(0.0), torch.tensor(1.0))
    )
    assert net.eval_one([2, 3], tolist=True) == (5, 6) and net.eval_one([], tolist=True) == (0, 1)
    assert wb.Optional((wb.Scalar(),), (torch.tensor(2.0),)).eval_one(None, tolist=True) == (2,)


class Settings:
    scale = 2.0


def test_settings_of_a_class_that_a_function_reads_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = wb.compile(wb.Scalar() >> wb.Function(lambda x: x * Settings.scale))
    assert net([1, 2]).tolist() == [2, 4]
    monkeypatch.setattr(Settings, "scale", 3.0)
    assert net([1, 2]).tolist() == [3, 6]


def test_hooks_that_never_run_are_announced_once() -> None:
    net = wb.Vector(2) >> nn.Linear(2, 2)
    net.subblocks[1].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning) as caught:
        wb.compile(net)([[1, 2]])
        wb.compile(net)([[1, 2]])
    assert [str(warning.message) for warning in caught] == [
        "Pipe[1]/<wb.Function Linear(in_features=2, out_features=2, bias=True)>: hooks of a block inside another never run; "
        "put them on a module in it, or on what is called"
    ]


def test_every_public_name_is_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (Path(__file__).parents[1] / "docs").glob("blocks*.md"))
    public = [name for name, value in vars(wb).items() if getattr(value, "__module__", "").startswith("weft.blocks")]
    assert {name for name in public if not re.search(rf"\b{name}\b", pages)} <= {"Block", "Schema"}
