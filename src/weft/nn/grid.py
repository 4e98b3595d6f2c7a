"""A two-dimensional LSTM for grids."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft import VertexFunction


class GridCell(VertexFunction):
    """Two-dimensional LSTM of Graves, Fernandez and Schmidhuber, "Multi-Dimensional Recurrent Neural Networks", ICANN 2007.

    Slot 0 is the neighbour above, slot 1 the one to the left, as in `weft.Graph.grid`; outside the grid they are zero. The
    rows of both weights are input gate, output gate, forget gate up, forget gate left, update.

    >>> import torch, weft, weft.nn
    >>> weft.nn.GridCell(8, 16)(weft.Graph.grid(3, 4), torch.randn(12, 8)).shape
    torch.Size([12, 16])
    """

    def __init__(self, d_in: int, d: int) -> None:
        super().__init__(state={"h": (d,), "c": (d,)})
        self.input = nn.Linear(d_in, 5 * d)
        self.hidden = nn.Linear(2 * d, 5 * d, bias=False)

    def forward(self, v: Any) -> None:
        up, left = v.gather(0), v.gather(1)
        rows = self.input(v.pull()) + self.hidden(torch.cat([up["h"], left["h"]]))
        d = rows.shape[0] // 5
        i, o, f_up, f_left = rows[:-d].sigmoid().chunk(4)
        c = i * rows[-d:].tanh() + f_up * up["c"] + f_left * left["c"]
        h = o * c.tanh()
        v.scatter(h=h, c=c)
        v.push(h)
