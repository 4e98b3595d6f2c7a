"""LSTM and GRU as vertex functions, over chains or any graph in which a vertex has at most one child.

Weights are laid out as in `torch.nn.LSTM` and `torch.nn.GRU`, so that theirs can be copied in.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from weft import VertexFunction


class LSTM(VertexFunction):
    """The recurrence of `torch.nn.LSTM`, its two biases being one; the input projection is on no cycle and runs once.

    >>> import torch, weft, weft.nn
    >>> g = weft.Graph.batch([weft.Graph.chain(7), weft.Graph.chain(3)])
    >>> weft.nn.LSTM(8, 16)(g, torch.randn(10, 8)).shape
    torch.Size([10, 16])
    """

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.input = nn.Linear(d_in, 4 * d)
        self.hidden = nn.Linear(d, 4 * d, bias=False)

    def forward(self, v: Any) -> None:
        last = v.gather(0)
        i, f, g, o = (self.input(v.pull()) + self.hidden(last["h"])).chunk(4)
        c = f.sigmoid() * last["c"] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)


class GRU(VertexFunction):
    """The recurrence of `torch.nn.GRU`.

    >>> import torch, weft, weft.nn
    >>> weft.nn.GRU(8, 16)(weft.Graph.chain(7), torch.randn(7, 8)).shape
    torch.Size([7, 16])
    """

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": (d,)})
        self.input = nn.Linear(d_in, 3 * d)
        self.hidden = nn.Linear(d, 3 * d)

    def forward(self, v: Any) -> None:
        last = v.gather(0)["h"]
        r, z, n = self.input(v.pull()).chunk(3)
        r_h, z_h, n_h = self.hidden(last).chunk(3)
        fresh = (n + (r + r_h).sigmoid() * n_h).tanh()
        h = fresh + (z + z_h).sigmoid() * (last - fresh)
        v.scatter(h=h)
        v.push(h)
