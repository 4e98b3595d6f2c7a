"""What is kept with a graph between calls belongs to the model that made it."""

from __future__ import annotations

from typing import Any

import weft


class Times(weft.VertexFunction):
    """1 + factor * the sum of the children."""

    def __init__(self, factor: float) -> None:
        super().__init__(state={"n": ()})
        self.factor = factor

    def forward(self, v: Any) -> None:
        n = v.gather().sum("n") * self.factor + 1
        v.scatter(n=n)
        v.push(n)


def chain(types: str) -> weft.Graph:
    return weft.Graph.chain(len(types), types=list(types))


def test_models_that_number_their_types_differently_share_a_graph() -> None:
    one = weft.Typed({"x": Times(2), "y": Times(3), "z": Times(5)})
    other = weft.Typed({"z": Times(5), "x": Times(2), "y": Times(3)})
    shared, with_y, with_z, last = chain("xxz"), chain("xyxy"), chain("xzxz"), chain("xy")
    one(weft.Graph.batch([shared, with_y]))  # x and y on one cycle: the first and second type of `one`
    other(weft.Graph.batch([with_z, last]))  # z and x on one cycle: the first and second type of `other`
    result = other(weft.Graph.batch([shared, with_z, last]))
    assert result.tolist() == [1, 3, 16, 1, 6, 13, 66, 1, 4]
