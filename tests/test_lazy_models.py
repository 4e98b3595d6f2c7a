"""Models of many kinds, written for one example as anybody would, equal to their loop in outputs and gradients."""

from __future__ import annotations

import functools
import logging.handlers
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weft
from lazy_parts import assert_equals_loop

DIM, WORDS = 4, 12
SENTENCES = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [3]]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.encoder, self.decoder = nn.Embedding(WORDS, DIM), nn.LSTMCell(DIM, DIM), nn.GRUCell(DIM, DIM)
        self.out, self.linear, self.conv = nn.Linear(DIM, WORDS), nn.Linear(DIM, DIM), nn.Conv1d(DIM, DIM, 2, padding=1)
        self.several = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))
        self.named = nn.ModuleDict({"odd": nn.Linear(DIM, DIM), "even": nn.Linear(DIM, DIM)})
        self.memory, self.start = nn.Parameter(torch.randn(5, DIM)), nn.Parameter(torch.randn(DIM))
        self.register_buffer("places", torch.randn(20, DIM))
        self.double()


P = Parts()
MODELS: list[Callable[..., Any]] = []


def model(fn: Callable[..., Any]) -> Callable[..., Any]:
    MODELS.append(fn)
    return fn


def word(number: int) -> Tensor:
    return P.embed(torch.tensor(number))  # type: ignore[no-any-return]


def encoded(words: list[int]) -> list[Tensor]:
    h = c = torch.zeros(DIM, dtype=torch.float64)
    states = []
    for number in words:
        h, c = P.encoder(word(number), (h, c))
        states.append(h)
    return states


@model
def beam_search(words: list[int]) -> Any:
    beams: list[Any] = [(torch.zeros((), dtype=torch.float64), encoded(words)[-1], [])]
    for _ in range(3):
        found = []
        for score, h, tokens in beams:
            state = P.decoder(word(tokens[-1] if tokens else 0), h)
            best = F.log_softmax(P.out(state), -1).topk(2)
            found += [(score + v, state, [*tokens, i]) for v, i in zip(best.values, best.indices.tolist(), strict=True)]
        found.sort(key=lambda one: -float(one[0].detach()))
        beams = found[:2]
    return torch.stack([score for score, *_ in beams]).logsumexp(0)


@model
def pointer_network(words: list[int]) -> Any:
    states = torch.stack(encoded(words))
    query, taken = states[-1], torch.zeros(len(words), dtype=torch.bool)
    total = torch.zeros((), dtype=torch.float64)
    for _ in words:
        scores = torch.tanh(P.linear(states) + query).sum(-1).masked_fill(taken, -1e9)
        chosen = int(scores.argmax())
        total = total + F.log_softmax(scores, 0)[chosen]
        taken = taken.clone()
        taken[chosen] = True
        query = P.decoder(states[chosen], query)
    return total


@model
def memory_network(words: list[int]) -> Any:
    query: Any = sum(word(number) for number in words)
    for _ in range(3):
        query = query + torch.softmax(P.memory @ query, 0) @ P.memory
    return P.out(query)


@model
def hierarchical_attention(words: list[int]) -> Any:
    sentences = []
    for length in words:
        rows = torch.stack([word(number % WORDS) for number in range(length)])
        weights = torch.softmax(P.linear(rows).tanh().sum(1), 0)
        sentences.append((weights.unsqueeze(1) * rows).sum(0))
    whole = torch.stack(sentences)
    return P.out(torch.softmax(whole @ P.start, 0) @ whole)


@model
def siamese(words: list[int]) -> Any:
    left, right = encoded(words)[-1], encoded(words[::-1])[-1]
    return F.cosine_similarity(left, right, dim=0), torch.dist(left, right + 1)


@dataclass
class Result:
    state: Tensor
    length: int


class Pair(NamedTuple):
    first: Tensor
    second: Any


@model
def structures(words: list[int]) -> Any:
    h = encoded(words)[-1]
    return {"r": Result(h, len(words)), "p": Pair(h * 2, Pair(P.start * len(words), True)), "l": [None, (h.sum(), 1.5)]}


@model
def generators(words: list[int]) -> Any:
    def states() -> Iterator[Tensor]:
        h = P.start
        for number in words:
            h = P.decoder(word(number), h)
            yield h

    return functools.reduce(torch.add, states())


@model
def dtypes(words: list[int]) -> Any:
    h, count = encoded(words)[-1], torch.tensor(len(words))
    positive = h > 0
    return h.float().double() * count, positive.sum(), (positive & (h < 1)).any(), count / 2, torch.tensor([1, 2]) + count


@model
def empty_lists(words: list[int]) -> Any:
    states = encoded(words[1:])
    return torch.stack(states).mean(0) if states else P.start


@model
def deep_recursion(words: list[int]) -> Any:
    def deeper(levels: int, h: Tensor) -> Tensor:
        return h if levels == 0 else deeper(levels - 1, torch.tanh(P.linear(h)))

    return deeper(60, word(words[0]))


@model
def batched_inside(words: list[int]) -> Any:
    return weft.batched(lambda number: P.linear(word(number)))(words).sum(0)


@model
def chosen_modules(words: list[int]) -> Any:
    h = word(words[0])
    for number in words:
        h = torch.relu(P.several[number % 3](h)) + P.named["odd" if number % 2 else "even"](h)
    return h


@model
def convolution(words: list[int]) -> Any:
    return P.conv(torch.stack([word(number) for number in words]).t()).max(1).values


@model
def causal_attention(words: list[int]) -> Any:
    rows = torch.stack(encoded(words)) + P.places[: len(words)]
    later = torch.triu(torch.ones(len(words), len(words), dtype=torch.bool), 1)
    return (torch.softmax((rows @ rows.T).masked_fill(later, -math.inf), -1) @ rows)[-1]


@model
def writing_in_place(words: list[int]) -> Any:
    total = torch.zeros(DIM, dtype=torch.float64)
    for number in words:
        total += word(number)
        total *= 0.9
    total[0] = total[1] * 2
    total[1:3] -= 1
    return total


@model
def chart(words: list[int]) -> Any:
    spans: dict[tuple[int, int], Tensor] = {(i, i): word(number) for i, number in enumerate(words)}
    for width in range(1, len(words)):
        for i in range(len(words) - width):
            j = i + width
            parts = [torch.tanh(P.linear(spans[i, k] + spans[k + 1, j])) for k in range(i, j)]
            spans[i, j] = torch.stack(parts).amax(0)
    return spans[0, len(words) - 1]


@model
def viterbi(words: list[int]) -> Any:
    scores, back = P.memory[4], []
    for number in words:
        best, at = (scores.unsqueeze(1) + P.memory[:4, :4]).max(0)
        scores = best + word(number)
        back.append(at)
    last = int(scores.argmax())
    for at in reversed(back):
        last = int(at[last])
    return scores.max(), last


@model
def edit_distance(words: list[int]) -> Any:
    row = [torch.tensor(float(j), dtype=torch.float64) for j in range(len(words) + 1)]
    for i, left in enumerate(words, 1):
        new = [torch.tensor(float(i), dtype=torch.float64)]
        for j, right in enumerate(words[::-1], 1):
            cost = torch.sigmoid(word(left) @ word(right))
            new.append(torch.stack([row[j] + 1, new[-1] + 1, row[j - 1] + cost]).min())
        row = new
    return row[-1]


@model
def adaptive_time(words: list[int]) -> Any:
    h, spent, steps = word(words[0]), torch.zeros((), dtype=torch.float64), 0
    out = torch.zeros(DIM, dtype=torch.float64)
    while float(spent.detach()) < 0.9 and steps < 6:
        h = P.decoder(h, h)
        share = torch.sigmoid(h.sum())
        out, spent, steps = out + share * h, spent + share, steps + 1
    return out, steps


@model
def exceptions(words: list[int]) -> Any:
    h = encoded(words)[-1]
    try:
        if h.sum().item() > 0:
            raise ValueError
        h = h * 2
    except ValueError:
        h = h * 3
    finally:
        h = h + 1
    return h


@model
def targets_without_gradients(words: list[int]) -> Any:
    h = encoded(words)[-1]
    with torch.no_grad():
        target = P.linear(h)
    return F.mse_loss(h, target), (h - P.linear(h).detach()).pow(2).sum()


@model
def shift_reduce(words: list[int]) -> Any:
    stack: list[Tensor] = []
    buffer = [word(number) for number in words]
    while buffer or len(stack) > 1:
        if buffer and (len(stack) < 2 or (stack[-1] + stack[-2]).sum() > 0):
            stack.append(buffer.pop(0))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(torch.tanh(P.linear(right) + left))
    return stack[0]


@model
def linear_algebra(words: list[int]) -> Any:
    h = encoded(words)[-1]
    matrix = torch.outer(h, h) + torch.eye(DIM, dtype=torch.float64)
    return torch.linalg.solve(matrix, h), torch.logdet(matrix), torch.linalg.cholesky(matrix).diagonal().sum()


@model
def complex_numbers(words: list[int]) -> Any:
    h = encoded(words)[-1]
    z = torch.complex(h, h * 2)
    return (z * z.conj()).real.sum(), torch.fft.fft(h).abs()


@model
def tied_weights(words: list[int]) -> Any:
    rows = torch.stack(encoded(words))
    return F.nll_loss(F.log_softmax(F.linear(rows, P.embed.weight), -1), torch.tensor(words))


@model
def padding(words: list[int]) -> Any:
    rows = F.pad(torch.stack([word(number) for number in words]), (0, 0, 0, 6 - len(words)))
    present = torch.arange(6) < len(words)
    return (rows * present[:, None]).sum(0) / present.sum(), rows


@model
def early_return(words: list[int]) -> Any:
    h = word(words[0])
    for number in words[1:]:
        h = P.decoder(word(number), h)
        if h.abs().max() > 0.5:
            return h * 10
    return h


@model
def cached_pieces(words: list[int]) -> Any:
    @functools.lru_cache(None)
    def piece(number: int) -> Tensor:
        return P.linear(word(number))  # type: ignore[no-any-return]

    return sum(piece(number % 3) for number in words)


@model
def numbers_of_its_own(words: list[int]) -> Any:
    h = encoded(words)[-1]
    a, b, c, d = h
    number = h.sum().item()
    return h * number + math.sin(number), a * b - c * d, max(h.tolist())


@pytest.mark.parametrize("fn", MODELS, ids=lambda fn: fn.__name__)
def test_models_equal_their_loop(fn: Callable[..., Any]) -> None:
    assert_equals_loop(weft.batched(fn, stack=False), SENTENCES)
    assert len(weft.batched(fn, stack=False)(SENTENCES[::-1])) == len(SENTENCES)


class Normalised(nn.Module):
    """Layers that scale by statistics that are kept, as in a network that is no longer trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.conv = nn.Linear(DIM, DIM), nn.Conv2d(1, 3, 3, padding=1)
        self.rows, self.images, self.plain = nn.BatchNorm1d(DIM), nn.BatchNorm2d(3), nn.BatchNorm1d(DIM, affine=False)
        for norm in (self.rows, self.images, self.plain):
            norm.running_mean, norm.running_var = torch.randn(norm.num_features), torch.rand(norm.num_features) + 0.5
        self.double()

    def forward(self, words: list[int]) -> Any:
        h = self.linear(torch.stack([word(number).detach() for number in words]))
        return self.rows(h).sum(0), self.images(self.conv(h[None, None])).sum((0, 2)), self.plain(h.t()[None]).sum(-1)


def test_kept_statistics_are_batched_without_a_warning() -> None:
    assert_equals_loop(Normalised().eval(), SENTENCES)


@pytest.mark.filterwarnings("ignore::weft.FallbackWarning", "ignore:Initializing zero-element tensors")
def test_torch_logs_nothing_about_what_cannot_be_traced() -> None:
    log, told = logging.getLogger("torch._subclasses.fake_tensor"), logging.handlers.BufferingHandler(1000)
    log.addHandler(told)
    try:
        loss = nn.AdaptiveLogSoftmaxWithLoss(DIM, 20, [4, 10], dtype=torch.float64)
        weft.batched(lambda x: loss(x, torch.tensor([1, 5, 11, 2, 19])).loss)(torch.randn(5, 5, DIM, dtype=torch.float64))
    finally:
        log.removeHandler(told)
    assert not told.buffer


class Transformers(nn.Module):
    """Stacks of layers, which look at their masks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}
        self.places = nn.Embedding(WORDS, DIM, dtype=torch.float64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 2, 8, **options), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(DIM, 2, 8, **options), 2)

    def forward(self, words: list[int]) -> Any:
        x, size = self.places(torch.tensor(words))[None], len(words)
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        causal = nn.Transformer.generate_square_subsequent_mask(size, dtype=torch.float64)
        near = (torch.arange(size)[:, None] - torch.arange(size)).abs() < 2
        h = self.encoder(x, mask=causal) + self.encoder(x, mask=later) + self.encoder(x, mask=~near)
        return self.decoder(x, h, tgt_mask=causal, memory_mask=later).sum(1), self.encoder(x, mask=later, is_causal=True).sum(1)


@pytest.mark.parametrize("training", [True, False])
def test_masks_of_transformers_are_not_looked_at(training: bool) -> None:
    model = Transformers().train(training)
    assert_equals_loop(model, SENTENCES)
    for found, words in zip(weft.batched(model, cache=tuple, stack=False)(SENTENCES), SENTENCES, strict=True):
        assert all(torch.allclose(one, other) for one, other in zip(found, model(words), strict=True))
