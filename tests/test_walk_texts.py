"""What is written into the C text of a walk: parts of wide rows, and steps of more rows than go through at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.run import code
from weft.run.cpu import walk
from weft.testing import random_structure

torch.set_num_threads(1)
D = 6
F64 = torch.float64


class Parts(weft.VertexFunction):
    """Products whose results are read in parts: by other products, by sums over children, by gates."""

    def __init__(self) -> None:
        super().__init__({"h": (D,), "c": (D,)})
        self.x, self.wide, self.more = nn.Linear(D, 2 * D), nn.Linear(D, 3 * D), nn.Linear(D, 2 * D, bias=False)
        self.u = nn.Linear(D, D, bias=False)

    def forward(self, v: Any) -> None:
        kids, (gate, own) = v.gather(), self.x(v.pull()).chunk(2)

        def each(child: Any) -> dict[str, Tensor]:
            a, b, c = self.wide(child["h"]).chunk(3)
            return {"a": a, "b": self.u(b) * gate, "c": torch.sigmoid(c) * child["c"]}

        seen = kids.map(each)
        top, low = self.more(kids.sum("h")).chunk(2)
        h = torch.tanh(own + seen.sum("a") + self.u(low))
        c = seen.sum("b") + seen.sum("c") + top
        v.scatter(h=h, c=torch.tanh(c))
        v.push(torch.cat([h, c]))


class Joined(weft.VertexFunction):
    """A state that is joined from a sum over children and an input, another that is a part of a product."""

    def __init__(self) -> None:
        super().__init__({"h": (2 * D,), "c": (D,)})
        self.x, self.w, self.u = nn.Linear(D, D), nn.Linear(2 * D, D), nn.Linear(2 * D, 3 * D)

    def forward(self, v: Any) -> None:
        kids = v.gather()
        h = torch.tanh(torch.cat([self.x(v.pull()), kids.map(lambda child: self.w(child["h"])).sum()]))
        first, c, last = self.u(kids.sum("h")).chunk(3)
        v.scatter(h=h, c=c)
        v.push(first + last * kids.sum("c"))


def outcome(model: weft.VertexFunction, graph: weft.Graph, x: Tensor, backend: str) -> list[Tensor]:
    """The result, its gradient for the input and for every parameter."""
    x = x.clone().requires_grad_()
    out = model(graph, x, backend=backend)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *model.parameters()])]


def check_alike(model: weft.VertexFunction, graph: weft.Graph, x: Tensor, backend: str) -> None:
    expected = outcome(model, graph, x, backend)
    for _ in range(2):  # the second call goes by a recipe
        for found, right in zip(outcome(model, graph, x, "auto"), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The C texts of all walks that are made."""
    seen: list[str] = []
    right = walk.Native

    def native(path: str, head: str, text: str, arguments: Any) -> Any:
        seen.append(text)
        return right(path, head, text, arguments)

    monkeypatch.setattr(walk, "Native", native)
    return seen


def apart(text: str, function: str) -> set[bool]:
    """For each call of a function that is told how long rows are and how far apart: whether these differ."""
    inner = {"multiply": -3, "segment_sum": -2, "spread": -2, "copy": -2}[function]
    calls = [found.split(", ") for found in re.findall(rf"->{function}\(([^;{{]*)\);", text)]
    return {call[inner] != call[-1] for call in calls if call[-1].isdigit()}


@pytest.mark.parametrize(
    ("make", "functions"), [(Parts, ("multiply", "segment_sum")), (Joined, ("spread", "copy"))], ids=["parts", "joined"]
)
def test_parts_of_wide_rows_are_read_where_they_lie(
    make: Callable[[], weft.VertexFunction], functions: tuple[str, ...], texts: list[str]
) -> None:
    model = make().double()
    for seed, kind in enumerate(("tree", "batch", "dag")):
        graph = random_structure(seed, kind, size=20)
        check_alike(model, graph, torch.randn(graph.num_vertices, D, dtype=F64), "reference")
    for function in functions:
        assert True in apart("".join(texts), function), f"no walk has a {function} of parts of rows"


class Slots(weft.VertexFunction):
    """A Tree-LSTM of two slots (Tai, Socher, Manning, ACL 2015), of which some are empty."""

    def __init__(self) -> None:
        super().__init__({"h": (48,), "c": (48,)})
        self.x, self.u = nn.Linear(48, 5 * 48), nn.Linear(2 * 48, 5 * 48, bias=False)

    def forward(self, v: Any) -> None:
        left, right = v.gather(0), v.gather(1)
        i, o, u, f, g = (self.x(v.pull()) + self.u(torch.cat([left["h"], right["h"]]))).chunk(5)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * left["c"] + g.sigmoid() * right["c"]
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


def test_steps_of_more_rows_than_go_through_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read by row moves on: inputs, indices of slots, what is written."""
    chunks: list[int] = []
    right = walk.make_walk

    def make_walk(*args: Any, **kwargs: Any) -> walk.Walk | None:
        made = right(*args, **kwargs)
        chunks.append(0 if made is None else made.chunk)
        return made

    monkeypatch.setattr(code, "make_walk", make_walk)
    model = Slots().double()
    shapes = [weft.Graph.full_binary_tree(4), weft.Graph.from_parents([2, 2, 3, -1]), weft.Graph.chain(3)]
    graph = weft.Graph.batch(shapes * 250)
    check_alike(model, graph, torch.randn(graph.num_vertices, 48, dtype=F64), "eager")
    assert sum(0 < chunk < 500 for chunk in chunks) >= 2, "steps of 750 rows and more go through in several parts"
