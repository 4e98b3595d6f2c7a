"""Two-dimensional LSTM over 10 x 10 grids, a directed acyclic graph: input 150, hidden 150, all outputs in the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from benchmarks.harness import Instance, Variant, training
from benchmarks.products import Linear, products_alone
from benchmarks.workloads.common import ONE, CaseSpec, Options, Target, squares, weft_variants
from weft.nn import GridCell

SIDE = 10
D_IN, D = 150, 150
SINGLE = 8

Forward = Callable[["Hand"], Tensor]


@dataclass(frozen=True)
class Hand:
    """The model, and the batch in order of anti-diagonals ("waves"): wave after wave, in it row after row, example by example.

    `kids`: for each wave but the first, places of the neighbours above and left of each vertex, after a row of zeros.
    """

    model: GridCell
    batch: int
    x: Tensor
    order: Tensor
    counts: list[int]
    kids: list[Tensor]

    def hoisted(self) -> tuple[Tensor, ...]:
        rows: Tensor = self.model.input(self.x)
        return tuple(rows.split_with_sizes(self.counts))

    def first(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        i, o, _, _, u = rows.chunk(5, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def wave(self, rows: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One wave from the neighbours' states [n, 2 D], above and left side by side."""
        gates, update = torch.addmm(rows, h, self.model.hidden.weight.t()).split_with_sizes([4 * D, D], 1)
        i, o, forget = gates.sigmoid().split_with_sizes([D, D, 2 * D], 1)
        c = i * update.tanh() + (forget.view(-1, 2, D) * c.view(-1, 2, D)).sum(1)
        return o * c.tanh(), c

    def to_caller(self, rows: Tensor) -> Tensor:
        return torch.empty_like(rows).index_copy_(0, self.order, rows)


def growing(hand: Hand) -> Tensor:
    rows = hand.hoisted()
    zero = hand.x.new_zeros(1, D)
    h, c = (torch.cat([zero, state]) for state in hand.first(rows[0]))
    for row, kids in zip(rows[1:], hand.kids, strict=True):
        new_h, new_c = hand.wave(row, h.index_select(0, kids).view(-1, 2 * D), c.index_select(0, kids))
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    return h[1:]


def preallocated(hand: Hand) -> Tensor:
    rows = hand.hoisted()
    h, c = (hand.x.new_zeros(len(hand.x) + 1, D) for _ in range(2))
    done = 1 + hand.counts[0]
    h[1:done], c[1:done] = hand.first(rows[0])
    for row, kids in zip(rows[1:], hand.kids, strict=True):
        here = slice(done, done + len(row))
        h[here], c[here] = hand.wave(row, h.index_select(0, kids).view(-1, 2 * D), c.index_select(0, kids))
        done = here.stop
    return h[1:]


def _neighbours(wave: Tensor, batch: int, grows: bool) -> Tensor:
    """[n, 2 D] of the next wave out of the last: above is one row up, left the same row; the border is zero."""
    if grows:
        return torch.cat([F.pad(wave, (0, 0, batch, 0)), F.pad(wave, (0, 0, 0, batch))], 1)
    return torch.cat([wave[:-batch], wave[batch:]], 1)


def frontier(hand: Hand) -> Tensor:
    """Only the last wave lives, and neighbours are slices of it."""
    rows = hand.hoisted()
    h, c = hand.first(rows[0])
    made = [h]
    for row in rows[1:]:
        grows = len(row) > len(h)
        h, c = hand.wave(row, _neighbours(h, hand.batch, grows), _neighbours(c, hand.batch, grows))
        made.append(h)
    return torch.cat(made)


def one_by_one(model: GridCell, xs: list[Tensor]) -> Tensor:
    out = []
    for x in xs:
        zero = x.new_zeros(D)
        states: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for at, row in enumerate(x.unbind()):
            r, k = divmod(at, SIDE)
            (h0, c0), (h1, c1) = states.get((r - 1, k), (zero, zero)), states.get((r, k - 1), (zero, zero))
            gates, update = (model.input(row) + model.hidden(torch.cat([h0, h1]))).split_with_sizes([4 * D, D])
            i, o, f0, f1 = gates.sigmoid().chunk(4)
            c = i * update.tanh() + f0 * c0 + f1 * c1
            states[r, k] = (o * c.tanh(), c)
            out.append(states[r, k][0])
    return torch.stack(out)


def _waves(batch: int) -> tuple[Tensor, list[int], list[Tensor]]:
    """Order of the rows, rows of each wave, and where the neighbours are (row 0 is zero, the others count from 1)."""
    waves = [[(r, k - r) for r in range(max(0, k - SIDE + 1), min(k, SIDE - 1) + 1)] for k in range(2 * SIDE - 1)]
    cells = [cell for wave in waves for cell in wave]
    place = {cell: 1 + at * batch for at, cell in enumerate(cells)}
    order = torch.tensor([b * SIDE * SIDE + r * SIDE + k for r, k in cells for b in range(batch)])
    kids = []
    for wave in waves[1:]:
        starts = [(place.get((r - 1, k)), place.get((r, k - 1))) for r, k in wave]
        kids.append(torch.tensor([0 if s is None else s + b for pair in starts for b in range(batch) for s in pair]))
    return order, [len(wave) * batch for wave in waves], kids


def make_instance(model: GridCell, xs: list[Tensor]) -> Instance:
    """`xs`: the inputs of each grid, [SIDE * SIDE, D_IN]."""
    order, counts, kids = _waves(len(xs))
    hand = Hand(model, len(xs), torch.cat(xs)[order], order, counts, kids)

    def by_hand(name: str, forward: Forward) -> Variant:
        return Variant(name, "hand", training(lambda: squares(forward(hand))), lambda: forward(hand), hand.to_caller)

    def singly() -> Tensor:
        return one_by_one(model, xs)

    products = [Linear([len(hand.x)], D_IN, 5 * D, gradient_from=None), Linear(counts[1:], 2 * D, 5 * D)]
    variants = [
        Variant(ONE, "one by one", training(lambda: squares(singly())), singly),
        by_hand("hand: growing cat", growing),
        by_hand("hand: preallocated", preallocated),
        by_hand("hand: frontier", frontier),
        products_alone(products, hand.x.dtype),
        *weft_variants(model, [weft.Graph.grid(SIDE, SIDE) for _ in xs], xs, squares),
    ]
    facts = {"grids": len(xs), "vertices": len(hand.x), "levels": len(counts)}
    return Instance(variants, dict(model.named_parameters()), facts)


def cases(options: Options) -> list[CaseSpec]:
    def build(batch: int, dtype: torch.dtype) -> list[Instance]:
        torch.manual_seed(0)
        model = GridCell(D_IN, D).to(dtype)
        count = SINGLE if batch == 1 else batch
        xs = [torch.randn(SIDE * SIDE, D_IN, dtype=torch.float64).to(dtype) for _ in range(count)]
        return [make_instance(model, [x]) for x in xs] if batch == 1 else [make_instance(model, xs)]

    return [
        CaseSpec("grid", f"{batch} grid{'s' * (batch > 1)}", batch, partial(build, batch), _targets(batch))
        for batch in options.choose((1, 16, 64), (1, 16))
    ]


def _targets(batch: int) -> tuple[Target, ...]:
    return (Target("train", ONE, 1.0),) if batch == 1 else ()
