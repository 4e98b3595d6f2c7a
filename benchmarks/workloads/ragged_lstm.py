"""LSTM over sequences as long as the sentences of SST: input 512, hidden 512, the outputs of all steps in the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import weft
from benchmarks import data
from benchmarks.harness import Instance, Variant, training
from benchmarks.products import Linear, products_alone
from benchmarks.workloads.common import ONE, CaseSpec, Options, Target, readable, squares, weft_variants
from weft.nn import LSTM

D_IN, D = 512, 512
SINGLE = 16
PACKED = "nn.LSTM, packed"

Forward = Callable[["Hand"], Tensor]


@dataclass(frozen=True)
class Hand:
    """The model, and the sequences sorted by length and packed: step after step, the longest sequence first."""

    model: LSTM
    packed: PackedSequence
    counts: list[int]

    def hoisted(self) -> tuple[Tensor, ...]:
        rows: Tensor = self.model.input(self.packed.data)
        return tuple(rows.split_with_sizes(self.counts))

    def first(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        i, _, g, o = rows.chunk(4, 1)
        c = i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def step(self, rows: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step from the previous states of the sequences that still run."""
        gates, g, o = torch.addmm(rows, h, self.model.hidden.weight.t()).split_with_sizes([2 * D, D, D], 1)
        i, f = gates.sigmoid().chunk(2, 1)
        c = f * c + i * g.tanh()
        return o.sigmoid() * c.tanh(), c


def growing(hand: Hand) -> Tensor:
    rows = hand.hoisted()
    h, c = hand.first(rows[0])
    start = 0
    for last, row in zip(hand.counts, rows[1:], strict=False):
        end = start + len(row)
        new_h, new_c = hand.step(row, h[start:end], c[start:end])
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
        start += last
    return h


def preallocated(hand: Hand) -> Tensor:
    rows = hand.hoisted()
    h, c = (hand.packed.data.new_empty(len(hand.packed.data), D) for _ in range(2))
    h[: hand.counts[0]], c[: hand.counts[0]] = hand.first(rows[0])
    start = 0
    for last, row in zip(hand.counts, rows[1:], strict=False):
        here, there = slice(start, start + len(row)), slice(start + last, start + last + len(row))
        h[there], c[there] = hand.step(row, readable(h[here]), readable(c[here]))
        start += last
    return h


def frontier(hand: Hand) -> Tensor:
    rows = hand.hoisted()
    h, c = hand.first(rows[0])
    made = [h]
    for row in rows[1:]:
        if len(row) < len(h):
            h, c = h[: len(row)], c[: len(row)]
        h, c = hand.step(row, h, c)
        made.append(h)
    return torch.cat(made)


def one_by_one(model: LSTM, xs: Sequence[Tensor]) -> Tensor:
    out = []
    for x in xs:
        h, c = x.new_zeros(D), x.new_zeros(D)
        for row in x.unbind():
            i, f, g, o = (model.input(row) + model.hidden(h)).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
    return torch.stack(out)


def torch_lstm(model: LSTM) -> nn.LSTM:
    """`nn.LSTM` on the same parameters; its second bias is zero and wants no gradient."""
    lstm = nn.LSTM(D_IN, D).to(model.input.weight.dtype)
    lstm.weight_ih_l0, lstm.bias_ih_l0 = model.input.weight, model.input.bias
    lstm.weight_hh_l0 = model.hidden.weight
    lstm.bias_hh_l0 = nn.Parameter(torch.zeros_like(model.input.bias), requires_grad=False)
    return lstm


def make_instance(model: LSTM, xs: Sequence[Tensor]) -> Instance:
    """`xs`: the inputs of each sequence, the longest first."""
    packed = pack_sequence(list(xs))
    hand = Hand(model, packed, packed.batch_sizes.tolist())
    numbers = torch.arange(len(packed.data)).split_with_sizes([len(x) for x in xs])
    order = pack_sequence(list(numbers)).data
    lstm = torch_lstm(model)

    def to_caller(rows: Tensor) -> Tensor:
        return torch.empty_like(rows).index_copy_(0, order, rows)

    def variant(name: str, role: str, forward: Callable[[], Tensor]) -> Variant:
        return Variant(name, role, training(lambda: squares(forward())), forward, to_caller)  # type: ignore[arg-type]

    def by_library() -> Tensor:
        out: PackedSequence = lstm(packed)[0]
        return out.data

    def singly() -> Tensor:
        return one_by_one(model, xs)

    products = [Linear([len(packed.data)], D_IN, 4 * D, gradient_from=None), Linear(hand.counts[1:], D, 4 * D)]
    variants = [
        Variant(ONE, "one by one", training(lambda: squares(singly())), singly),
        variant("hand: growing cat", "hand", lambda: growing(hand)),
        variant("hand: preallocated", "hand", lambda: preallocated(hand)),
        variant("hand: frontier", "hand", lambda: frontier(hand)),
        variant(PACKED, "library", by_library),
        products_alone(products, packed.data.dtype),
        *weft_variants(model, [weft.Graph.chain(len(x)) for x in xs], xs, squares),
    ]
    facts = {"sequences": len(xs), "steps": len(packed.data), "levels": len(hand.counts)}
    return Instance(variants, dict(model.named_parameters()), facts)


def cases(options: Options) -> list[CaseSpec]:
    trees, _ = data.sst(options.folder(), "train", limit=1024)
    lengths = [int((tree.words >= 0).sum()) for tree in trees]

    def build(batch: int, dtype: torch.dtype) -> list[Instance]:
        torch.manual_seed(0)
        model = LSTM(D_IN, D).to(dtype)
        chosen = sorted(lengths[: SINGLE if batch == 1 else batch], reverse=True)
        xs = [torch.randn(length, D_IN, dtype=torch.float64).to(dtype) for length in chosen]
        return [make_instance(model, [x]) for x in xs] if batch == 1 else [make_instance(model, xs)]

    def targets(batch: int) -> tuple[Target, ...]:
        if batch == 1:
            return (Target("train", ONE, 1.0),)
        return Target("train", PACKED, 0.8), Target("infer", PACKED, 1.05)

    return [
        CaseSpec("ragged_lstm", f"{batch} sequence{'s' * (batch > 1)}", batch, partial(build, batch), targets(batch))
        for batch in options.choose((1, 64), (1, 16))
    ]
