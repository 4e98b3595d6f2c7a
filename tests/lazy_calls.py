"""Common calls on values, and what becomes of each: the table of docs/recording.md is made from here.

`v` is a vector of four numbers, `m` a matrix of three rows of four, `s` a single number, `i` an integer below three; `w` is a
parameter, `data` a real tensor; layers carry their torch.nn names.
"""

from __future__ import annotations

import copy  # noqa: F401 - the calls use it
from typing import Any

import numpy as np  # noqa: F401 - the calls use it
import torch
import torch.nn.functional as F  # noqa: F401 - the calls use it
from torch import Tensor, nn

import weft

RECORDS, NEEDS, RAISES = "records", "needs the value", "raises"


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def einops_like(x: Any) -> Tensor:
    """What einops does with a type that it does not know."""
    if isinstance(x, Tensor):
        return x
    raise RuntimeError(f"Tensor type unknown to einops {type(x)}")


CALLS: dict[str, str] = {
    **dict.fromkeys(
        """v + v; v - 1; 2 * v; v / v; v // 2; v % 2; v ** 2; 2 ** v; -v; abs(v); m @ v; v @ v; v > 0; v == v; ~(v > 0)
        v[0]; v[1:3]; v[-1]; m[1, 2]; m[:, None]; m[..., 0]; v[[0, 2]]; v[i]; m[i]; v.sum(); v.mean(); v.max()
        m.max(0); m.argmax(1); v.std(); v.norm(); v.cumsum(0); m.sum(dim=1, keepdim=True); m.prod(0); torch.tanh(v)
        v.sigmoid(); torch.relu(v); F.gelu(v); F.softmax(v, 0); F.log_softmax(v, dim=-1); torch.exp(v)
        v.clamp(0, 1); v.view(2, 2); v.reshape(-1, 1); v.unsqueeze(0); m.t(); m.T; m.transpose(0, 1)
        m.permute(1, 0); m.flatten(); v.expand(2, 4); v.chunk(2); v.split(2); torch.unbind(m); list(m); m.squeeze()
        v.repeat(2); torch.flip(v, [0]); torch.cat([v, v]); torch.stack([v, v]); torch.stack([v, v]).sum(0)
        torch.einsum("ij,j->i", m, v); torch.outer(v, v); torch.where(v > 0, v, -v); torch.topk(v, 2); torch.sort(v)
        v.gather(0, i.reshape(1)); v.index_select(0, i.reshape(1)); v.masked_fill(v > 0, 0.0)
        torch.maximum(v, data); torch.tensor([s.detach(), s.detach()]); v * data; w * v; F.linear(v, w.expand(2, 4))
        Linear(v); LayerNorm(v); Embedding(i); Embedding(torch.tensor(1)); LSTMCell(v); GRUCell(v); Bilinear(v, v)
        Conv1d(m); MultiheadAttention(m, m, m); TransformerEncoderLayer(m); Sequential(v)
        F.scaled_dot_product_attention(m, m, m); F.cross_entropy(v, i); F.mse_loss(v, data)
        F.dropout(v, 0.5, training=False); F.one_hot(i, 5); F.pad(v, (1, 1)); F.normalize(v, dim=0); v.detach()
        v.clone(); v.float(); v.to(torch.float64); v.type_as(data); v.new_zeros(3); torch.zeros_like(v)
        v.contiguous(); iadd(v); setitem(v); v[0].add_(1);
        v.clone().fill_(0.0); v.shape; v.dtype; v.device; len(m); v.dim()
        v.numel(); v.size(0); v.is_floating_point(); v.requires_grad; weft.is_tensor(v); repr(v)
        torch.distributions.Normal(v, 1.0).log_prob(data); torch.distributions.Categorical(logits=v).log_prob(i)
        torch.distributions.Bernoulli(logits=v).entropy(); torch.distributions.Normal(data, 1.0).log_prob(v)
        F.kl_div(F.log_softmax(v, 0), F.softmax(v, 0), reduction="sum"); v.index_add(0, torch.tensor([0, 0]), v[:2])
        masked(v); LSTM(m); GRU(m); v[np.array([0, 2])]; without_gradients(v); through_detach(v)""".replace("\n", ";").split(
            ";"
        ),
        RECORDS,
    ),
    **dict.fromkeys(
        """bool(s > 0); float(s.detach()); int(s); s.item(); v.tolist(); 1 if s > 0 else 2; [10, 20, 30][i]
        f"{s.item():.2f}"; v.detach().numpy(); v[v > 0]; torch.nonzero(v); torch.equal(v, v); torch.allclose(v, v)
        3 in v; weft.value(v); range(i); torch.masked_select(v, v > 0); torch.unique(v)""".replace("\n", ";").split(";"),
        NEEDS,
    ),
    **dict.fromkeys(
        """v.backward(); v.register_hook(print); v.requires_grad_(); v.data_ptr(); data.add_(v)
        write(data, s); torch.add(v, v, out=data); Twice.apply(v); torch.vmap(torch.sin)(v)
        torch.func.grad(torch.sin)(s); einops_like(v); v.apply_(abs); compiled(v); copy.copy(v); copy.deepcopy(v)
        v.retain_grad(); torch.autograd.grad(s, w); torch.autograd.backward(s); v.unsqueeze_(0); m.t_(); v * np.ones(4)
        v.resize_(2); v.share_memory_(); np.exp(v)""".replace("\n", ";").split(";"),
        RAISES,
    ),
}
CALLS = {text.strip(): status for text, status in CALLS.items() if text.strip()}


class Layers(nn.Module):
    """What the calls need of a model; a call is run with its parts as local names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4))
        self.Linear, self.LayerNorm, self.Embedding = nn.Linear(4, 3), nn.LayerNorm(4), nn.Embedding(3, 4)
        self.LSTMCell, self.GRUCell, self.Bilinear = nn.LSTMCell(4, 3), nn.GRUCell(4, 3), nn.Bilinear(4, 4, 2)
        self.Conv1d, self.Sequential = nn.Conv1d(3, 2, 2), nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        self.LSTM, self.GRU = nn.LSTM(4, 3), nn.GRU(4, 3)
        self.MultiheadAttention = nn.MultiheadAttention(4, 2)
        self.TransformerEncoderLayer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
        self.names: list[str] = []
        self.double()

    def run(self, text: str, x: Tensor, number: int) -> Any:
        v = x * self.w
        m = torch.stack([v, v * 2, v + 1]).clone()
        i = (v.sum() * 0).long() + number
        data = torch.tensor([0.25, -2.0, 1.5, 0.5], dtype=torch.float64)
        space = {
            **globals(),
            **self._modules,
            "v": v,
            "m": m,
            "s": v.sum(),
            "i": i,
            "w": self.w,
            "data": data,
        }
        return eval(text, space)

    def forward(self, x: Tensor, number: int) -> Any:
        return [_result(self.run(name, x, number)) for name in self.names]


class Compiled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def compiled(x: Any) -> Any:
    return torch.compile(Compiled(), backend="eager")(x)


def iadd(v: Any) -> Any:
    v = v * 1
    v += 1
    return v


def masked(v: Any) -> Any:
    v = v * 1
    v[v > 0.5] = 0.5
    v %= 0.4
    return v


def without_gradients(v: Any) -> Any:
    with torch.no_grad():
        half = v / 2
    return v * half


def through_detach(v: Any) -> Any:
    v = v * 1
    v.detach().clamp_(min=0.5)
    return v


def setitem(v: Any) -> Any:
    v = v * 1
    v[1] = v[0] * 2
    return v


def write(target: Any, given: Any) -> None:
    target[1] = given


def _result(found: Any) -> Any:
    """Results that can be compared: tensors and numbers; anything else counts by its text."""
    if weft.is_tensor(found) or isinstance(found, bool | int | float):
        return found
    if isinstance(found, tuple | list) and not isinstance(found, torch.Size):
        return [_result(part) for part in found]
    return None


def table() -> str:
    """The table of the documentation."""
    rows = ["| status | calls |", "|---|---|"]
    for status in (RECORDS, NEEDS, RAISES):
        texts = [text.replace("|", "\\|") for text, kind in CALLS.items() if kind == status]
        rows.append(f"| {status} ({len(texts)}) | " + ", ".join(f"`{text}`" for text in texts) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
