"""nn.LSTM, nn.GRU and nn.RNN on one example's sequence: recorded step by step, equal to the loop, batched across lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import weft
from lazy_parts import assert_equals_loop

SEQUENCES = [torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 1, 3)]
LAYERS: dict[str, Any] = {
    "LSTM": lambda: nn.LSTM(4, 3),
    "GRU": lambda: nn.GRU(4, 3),
    "RNN": lambda: nn.RNN(4, 3),
    "RNN with relu": lambda: nn.RNN(4, 3, nonlinearity="relu"),
    "two layers, both ways": lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True),
    "GRU both ways": lambda: nn.GRU(4, 3, num_layers=2, bidirectional=True, bias=False),
    "projected": lambda: nn.LSTM(4, 3, proj_size=2, num_layers=2),
}


def layer(name: str) -> Any:
    torch.manual_seed(0)
    return LAYERS[name]().double()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("granularity", ["auto", "operator"])
def test_sequences_of_different_lengths_equal_the_loop(name: str, granularity: str) -> None:
    module = layer(name)

    def fn(x: Tensor) -> Any:
        out, last = module(x)
        return out[-1], out.sum(0), last

    assert_equals_loop(weft.batched(fn, granularity=granularity), SEQUENCES)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "two layers, both ways"])
def test_states_to_begin_with(name: str) -> None:
    module = layer(name)
    count = module.num_layers * (2 if module.bidirectional else 1)
    start = nn.Parameter(torch.randn(count, 3, dtype=torch.float64))

    def fn(x: Tensor) -> Any:
        first = start + x.sum()
        out, last = module(x, (first, first * 2) if name != "GRU" else first)
        again, _ = module(torch.tanh(x), last)
        return out[0] + again[-1]

    assert_equals_loop(fn, SEQUENCES)


@pytest.mark.parametrize("batch_first", [False, True])
def test_batches_inside_an_example(batch_first: bool) -> None:
    torch.manual_seed(0)
    module = nn.GRU(4, 3, batch_first=batch_first).double()
    assert_equals_loop(lambda x: module(x * 2), torch.randn(3, 2, 5, 4, dtype=torch.float64))


def test_a_value_as_the_sequence_and_inside_of_a_sequential_part() -> None:
    embed, module, out = nn.Embedding(7, 4).double(), layer("LSTM"), nn.Linear(3, 2).double()

    def fn(words: list[int]) -> Tensor:
        rows, (h, _) = module(torch.stack([embed(torch.tensor(word)) for word in words]))
        return out(rows).sum(0) + out(h[0])

    assert_equals_loop(fn, [[1, 2, 3], [4], [5, 6, 0, 1]])


def test_lengths_run_together() -> None:
    module = layer("LSTM")
    plan = weft.plan(weft.batched(lambda x: module(x)[0][-1]), SEQUENCES)
    assert plan.stats()["batches"] <= 5 + 4, plan.explain()


def test_dropout_between_layers_draws_for_each_example() -> None:
    torch.manual_seed(0)
    module = nn.LSTM(4, 8, num_layers=2, dropout=0.5).double()
    same = [SEQUENCES[0]] * 2
    found = weft.batched(lambda x: module(x)[0][-1])(same)
    assert not torch.equal(found[0], found[1])
    module.eval()
    assert torch.allclose(weft.batched(lambda x: module(x)[0][-1])(same), torch.stack([module(x)[0][-1] for x in same]))


def test_what_torch_refuses_it_refuses_in_its_words() -> None:
    module = layer("LSTM")
    wrong = {
        "input.size(-1) must be equal to input_size. Expected 4, got 2": lambda x: module(x[:, :2]),
        "LSTM: Expected input to be 2D or 3D, got 1D instead": lambda x: module(x[0]),
        "Expected sequence length to be larger than 0 in RNN": lambda x: module(x[:0]),
    }
    for message, fn in wrong.items():
        with pytest.raises((RuntimeError, ValueError)) as expected:
            fn(SEQUENCES[0])
        with pytest.raises(type(expected.value)) as error:
            weft.batched(fn)(SEQUENCES)
        assert message in str(error.value) and str(error.value) == str(expected.value)


def test_hooks_see_the_call() -> None:
    module, seen = layer("GRU"), []
    module.register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(weft.FallbackWarning, match="it runs row by row"):
        weft.batched(lambda x: module(x)[0][-1])(SEQUENCES[:1])
    assert len(seen) == 1


PACKED: dict[str, Callable[[Any, Tensor], Any]] = {
    "one sequence": lambda x, _: pack_sequence([x]),
    "three, sorted": lambda x, y: pack_sequence([torch.cat([x, x]), x, y[:1]]),
    "three, not sorted": lambda x, y: pack_sequence([y[:1], torch.cat([x, x]), x], enforce_sorted=False),
    "padded": lambda x, y: pack_padded_sequence(torch.stack([x, x * 2]), [len(x), 1], batch_first=True),
}


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 3),
        lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, proj_size=2),
        lambda: nn.GRU(4, 3, bidirectional=True, batch_first=True),
        lambda: nn.RNN(4, 3, num_layers=2),
    ],
)
def test_packed_sequences_of_different_lengths(make: Callable[[], Any], name: str) -> None:
    torch.manual_seed(0)
    layer = make().double()
    examples = [torch.randn(length, 4, dtype=torch.float64) for length in (3, 5, 3, 1)]

    def fn(x: Tensor) -> Any:
        out, last = layer(PACKED[name](x, x * 3))
        padded, lengths = pad_packed_sequence(out)
        return padded.sum(0), lengths.sum(), *(last if isinstance(last, tuple) else (last,))

    assert_equals_loop(fn, examples, backends=["auto", "reference"])


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_packed_sequences_with_states_to_begin_with() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(4, 3, bidirectional=True).double()

    def fn(x: Tensor) -> Any:
        packed = pack_sequence([x[:1], x, x], enforce_sorted=False)
        begin = torch.stack([torch.stack([x[0, :3], x[-1, :3], x[0, 1:]])] * 2)
        out, last = layer(packed, begin)
        return layer(PackedSequence(torch.cat([out.data[:, :4]]), *out[1:]), last)[1]

    assert_equals_loop(fn, [torch.randn(length, 4, dtype=torch.float64) for length in (3, 2, 4)])


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning")
def test_a_packed_sequence_is_no_argument_of_a_cell() -> None:
    layer = nn.LSTM(4, 3).double()
    last = weft.cell(lambda packed: layer(packed)[1][0])
    with pytest.raises(weft.TraceError) as told:
        weft.batched(lambda x: last(pack_sequence([x])))(SEQUENCES)
    assert str(told.value) == (
        "a PackedSequence as an argument of a cell: how long its sequences are would be numbers in a tensor, and no shape may "
        "depend on those; call the recurrent layer outside of the cell, or pass a tensor and pack it inside"
    )
