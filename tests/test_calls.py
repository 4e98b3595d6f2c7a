"""Recorded calls: random programs of several call types, batched against one by one, outputs and all gradients."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from weft.graph.calls import CallType, Library, call_type
from weft.graph.recording import OUTPUT_BITS, CallProgram, Recorder, merge_calls, reference
from weft.graph.rows import Rows, TensorSpec
from weft.run.calls import Group, in_order, prepare, run_calls, stacked
from weft.run.options import Options

D = 4
VECTOR, NUMBER = TensorSpec((D,), torch.float64), TensorSpec((), torch.int64)


class Net(nn.Module):
    """The modules that the call types below use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, D, dtype=torch.float64)
        self.pair = nn.Linear(2 * D, D, dtype=torch.float64)
        self.cell = nn.LSTMCell(D, D, dtype=torch.float64)
        self.norm = nn.LayerNorm(D, dtype=torch.float64)
        self.start = nn.Parameter(torch.randn(D, dtype=torch.float64))

    def mixed(self, rows: Rows) -> list[Tensor]:
        return [rows.reduce_sum(rows.child_map(lambda state, _: torch.tanh(self.norm(state[""])))), rows.child_sum("")]


def library_of(net: Net) -> Library:
    def lstm(x: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        return list(net.cell(x, (h, c)))

    made = {
        "embed": lambda: call_type("embed", lambda i: [net.embed(i)], feeds=[NUMBER], owners=[net]),
        "input": lambda: call_type("input", lambda x: [x * 1], feeds=[VECTOR]),
        "start": lambda: call_type("start", lambda: [net.start * 1], owners=[net]),
        "pair": lambda: call_type("pair", lambda a, b: [torch.tanh(net.pair(torch.cat([a, b])))], [VECTOR] * 2, owners=[net]),
        "lstm": lambda: call_type("lstm", lstm, [VECTOR] * 3, owners=[net]),
        "scaled": lambda: call_type("scaled", lambda a, i: [a / (i + 1)], [VECTOR], [NUMBER]),
        "split": lambda: call_type("split", lambda a: [a.flip(0), a.sum().expand(D), a.argmax()], [VECTOR]),
        "index": lambda: call_type("index", lambda a, i: [a * (i + 1)], [VECTOR, NUMBER]),
        "mixed": lambda: call_type("mixed", net.mixed, many=VECTOR, owners=[net]),
        "weighted": lambda: call_type(
            "weighted", lambda a, rows: [rows.reduce_sum(rows.child_map(lambda state, _: state[""] * a))], [VECTOR], many=VECTOR
        ),
    }
    return Library(lambda key: made[key]())


def record(library: Library, seed: int) -> tuple[CallProgram, list[int], list[Tensor]]:
    """A random program, the references of some of its results, and the inputs that need a gradient."""
    pick = random.Random(seed)
    recorder = Recorder(library)
    inputs: list[Tensor] = []
    vectors: list[int] = []
    numbers: list[int] = []

    def add(key: str, arguments: list[int] = [], feeds: list[object] = []) -> int:  # noqa: B006
        return recorder.call(library.number(key), arguments, feeds)

    for _ in range(pick.randint(1, 25)):
        kind = pick.choice(
            ["embed", "input", "start", "pair", "pair", "lstm", "lstm", "scaled", "split", "index", "mixed", "weighted"]
        )
        if not vectors and kind not in ("embed", "input", "start"):
            kind = "embed"
        if kind == "index" and not numbers:
            kind = "split"
        recent = vectors[-5:]
        some = [pick.choice(recent) for _ in range(pick.randint(0, 4))] if recent else []
        if kind == "embed":
            vectors.append(reference(add(kind, [], [pick.randrange(7)])))
        elif kind == "input":
            inputs.append(torch.randn(D, dtype=torch.float64, requires_grad=True))
            vectors.append(reference(add(kind, [], [inputs[-1]])))
        elif kind == "start":
            vectors.append(reference(add(kind)))
        elif kind in ("pair", "lstm"):
            made = add(kind, [pick.choice(recent) for _ in range(2 + (kind == "lstm"))])
            vectors.append(reference(made))
            if kind == "lstm":
                vectors.append(reference(made, 1))
        elif kind == "scaled":
            vectors.append(reference(add(kind, [pick.choice(recent)], [pick.randrange(3)])))
        elif kind == "split":
            made = add(kind, [pick.choice(recent)])
            vectors.extend((reference(made), reference(made, 1)))
            numbers.append(reference(made, 2))
        elif kind == "index":
            vectors.append(reference(add(kind, [pick.choice(recent), pick.choice(numbers)])))
        elif kind == "mixed":
            made = add(kind, some)
            vectors.extend((reference(made), reference(made, 1)))
        else:
            vectors.append(reference(add(kind, [pick.choice(recent), *some])))
    wanted = pick.sample(vectors, min(len(vectors), 3)) + numbers[:1]
    return recorder.finish(), wanted, inputs


def results(library: Library, seeds: range, options: Options) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(seeds.start)
    programs, wanted, inputs = [], [], []
    first = 0
    for seed in seeds:
        program, some, given = record(library, seed)
        wanted += [ref + (first << OUTPUT_BITS) for ref in some]
        first += program.num_calls
        programs.append(program)
        inputs += given
    return in_order(run_calls(library, programs, np.array(wanted), options), len(wanted)), inputs


def gradients(outputs: list[Tensor], inputs: list[Tensor], net: Net) -> list[Tensor | None]:
    torch.manual_seed(1)
    floats = [out for out in outputs if out.is_floating_point() and out.requires_grad]
    loss = sum(((out * torch.randn_like(out)).sum() for out in floats), torch.zeros(()))
    return list(torch.autograd.grad(loss, [*inputs, *net.parameters()], allow_unused=True))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def library(net: Net) -> Library:
    return library_of(net)


@pytest.mark.parametrize("policy", ["auto", "depth", "agenda"])
@pytest.mark.parametrize("seed", range(25))
def test_batched_equals_one_by_one(net: Net, library: Library, seed: int, policy: str) -> None:
    seeds = range(10 * seed, 10 * seed + 1 + seed % 7)
    one, given = results(library, seeds, Options(backend="reference"))
    expected = gradients(one, given, net)
    for backend in ("auto", "eager"):
        many, inputs = results(library, seeds, Options(policy=policy, backend=backend))
        for a, b in zip(many, one, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        found = gradients(many, inputs, net)
        for a, b in zip(found, expected, strict=True):
            if b is None and a is not None:  # a row or a parameter of a type whose other calls have gradients
                b = torch.zeros_like(a)
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_parameters_that_no_result_depends_on_get_none(net: Net, library: Library) -> None:
    recorder = Recorder(library)
    leaf = reference(recorder.call(library.number("embed"), (), [1]))
    pair = reference(recorder.call(library.number("pair"), [leaf, leaf]))
    split = reference(recorder.call(library.number("split"), [pair]), 2)
    top = reference(recorder.call(library.number("index"), [leaf, split]))
    (group,) = run_calls(library, [recorder.finish()], np.array([top]))
    unused = [net.start, net.pair.weight, net.norm.weight]
    assert torch.autograd.grad(group.rows.sum(), unused, allow_unused=True) == (None, None, None)


def test_what_no_result_needs_is_not_computed(net: Net, library: Library) -> None:
    recorder = Recorder(library)
    used = recorder.call(library.number("input"), (), [torch.ones(D, dtype=torch.float64)])
    bad = recorder.call(library.number("input"), (), [torch.full((D,), torch.nan, dtype=torch.float64)])
    recorder.call(library.number("pair"), [reference(bad), reference(bad)])
    good = recorder.call(library.number("pair"), [reference(used), reference(used)])
    (group,) = run_calls(library, [recorder.finish()], np.array([reference(good)]))
    grads = torch.autograd.grad(group.rows.sum(), list(net.pair.parameters()))
    assert all(bool(grad.isfinite().all()) for grad in grads)


def test_nothing_wanted_gives_nothing(library: Library) -> None:
    recorder = Recorder(library)
    recorder.call(library.number("start"))
    assert run_calls(library, [recorder.finish()], np.array([], np.int64)) == []


def test_arguments_of_one_class_are_gathered_together(library: Library) -> None:
    recorder = Recorder(library)
    leaf = reference(recorder.call(library.number("embed"), (), [1]))
    top = reference(recorder.call(library.number("pair"), [leaf, leaf]))
    run_calls(library, [recorder.finish()], np.array([top]))
    engine = library.kept["engine"]
    assert engine.sharing.groups(library.types, library.number("pair")) == ((0, 1),)


def test_stacked_puts_rows_in_the_order_asked_for() -> None:
    groups = [Group(np.array([0, 3]), torch.tensor([0.0, 3.0])), Group(np.array([1, 2]), torch.tensor([1.0, 2.0]))]
    assert stacked(groups, np.array([3, 1, 1])).tolist() == [3.0, 1.0, 1.0]
    assert [one.item() for one in in_order(groups, 4)] == [0.0, 1.0, 2.0, 3.0]


def test_merging_counts_references_on() -> None:
    library = Library(lambda key: CallType(str(key), lambda x: [x], (VECTOR,), outputs=(VECTOR,)))
    recorder = Recorder(library)
    recorder.call(library.number("a"), [reference(0)])
    program = recorder.finish()
    assert (merge_calls([program, program]).arguments >> OUTPUT_BITS).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(10))
def test_equal_calls_computed_once_give_the_same(net: Net, library: Library, seed: int) -> None:
    seeds = range(100 * seed, 100 * seed + 6)
    one, given = results(library, seeds, Options(backend="reference"))
    many, inputs = results(library, seeds, Options(dedupe=True))
    for a, b in zip(many, one, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for a, b in zip(gradients(many, inputs, net), gradients(one, given, net), strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None and a is not None else b, rtol=1e-12, atol=1e-12)


def test_equal_calls_are_computed_once_but_never_random_ones() -> None:
    drop = nn.Dropout(0.5)
    made = {
        "number": lambda: call_type("number", lambda i: [i * 2.0], feeds=[NUMBER]),
        "noise": lambda: call_type(
            "noise", lambda a: [drop(a.expand(64))], [TensorSpec((), torch.float32)], owners=[drop], random=True
        ),
    }
    library = Library(lambda key: made[key]())
    recorder = Recorder(library)
    refs = []
    for number in (3, 4, 3):
        given = recorder.call(library.number("number"), (), [number])
        refs.append(reference(recorder.call(library.number("noise"), [reference(given)])))
    program = recorder.finish()
    plan = prepare(library, [program], np.array(refs), Options(dedupe=True), {})[0].plan
    assert [len(rows) for rows in plan.rows] == [2, 3]
    first, _, third = in_order(run_calls(library, [program], np.array(refs), Options(dedupe=True)), 3)
    assert not torch.equal(first, third)


def test_threads_share_a_library(net: Net) -> None:
    shared = library_of(net)
    record(shared, 0)
    found: list[list[Tensor]] = []
    run = [threading.Thread(target=lambda: found.append(results(shared, range(40, 44), Options())[0])) for _ in range(4)]
    for key in ("embed", "input", "start", "pair", "lstm", "scaled", "split", "index", "mixed", "weighted"):
        shared.number(key)
    for thread in run:
        thread.start()
    for thread in run:
        thread.join()
    assert len(found) == 4
    expected = results(shared, range(40, 44), Options(backend="reference"))[0]
    for one in found:
        assert [tuple(a.shape) for a in one] == [tuple(b.shape) for b in expected]
