"""The function mode under which a cell's own code runs while it is traced.

It does three things, in this order, to every torch call that the code makes:
1. a parameter, buffer or captured tensor is replaced by the tensor that stands for it in the trace;
2. inside `map` over children, a value of the vertex is repeated for each of its edges;
3. operations without a batching rule are written in terms of those that have one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

from weft.errors import TraceError
from weft.graph.writes import WRITES

TENSOR_HOOKS = "it registers a hook on a tensor, which sees the gradients of single rows"
_HOOKING = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
_REQUIRES_GRAD: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]  # it is a descriptor


class ChangesOutside(TraceError):
    """Code writes into a tensor that it was not given."""

    def __init__(self, how: str) -> None:
        super().__init__(f"{WRITES} ({how})")


class CellMode(TorchFunctionMode):
    """`stand_in` gives, for a tensor that the code mentions, the tensor to use instead."""

    def __init__(self, stand_in: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stand_in = stand_in

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in _HOOKING:
            return _hook()
        if func == _REQUIRES_GRAD and torch.is_grad_enabled():
            return self._is_trained(args[0])
        if _mutates(func, name) and args and any(self._is_outside(leaf) for leaf in tree_leaves(args[0])):
            raise ChangesOutside(".data" if func == _SET_DATA else name)
        out = kwargs.get("out")
        if out is not None and any(self._is_outside(leaf) for leaf in tree_leaves(out)):
            raise ChangesOutside(f"{name} with out=")
        args = [_mapped(item, self.stand_in) for item in args]
        kwargs = {key: _mapped(item, self.stand_in) for key, item in kwargs.items()}
        lowered = LOWERINGS.get(name)
        if lowered is not None:
            return lowered(func, *args, **kwargs)
        return _in_full_precision(func, args, kwargs) if name in FULL_PRECISION else func(*args, **kwargs)

    def _is_outside(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self.stand_in(tensor) is not tensor

    def _is_trained(self, tensor: Tensor) -> bool:
        """What the code would be told of one row; batched tensors know it inside."""
        inner = tensor if self.stand_in(tensor) is not tensor else _without_rows(tensor)
        return inner.requires_grad


def _mapped(item: Any, stand_in: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors. What most arguments are is looked at first: this is done for every call of torch."""
    if isinstance(item, Tensor):
        return stand_in(item)
    cls = item.__class__
    if cls in _ATOMS:
        return item
    if cls is tuple or cls is list:
        return cls([_mapped(part, stand_in) for part in item])
    # A size is no list of numbers: Tensor.new(size) and Tensor.new(list) are two things.
    return tree_map_only(Tensor, stand_in, item, is_leaf=lambda part: isinstance(part, torch.Size))


_ATOMS = frozenset((int, float, bool, str, complex, type(None), type(...), torch.dtype, torch.device, torch.Size))


def _without_rows(tensor: Tensor) -> Tensor:
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _hook() -> RemovableHandle:
    """A hook sees the gradients of single rows. Where none are computed, the code is only looked at."""
    if torch.is_grad_enabled():
        raise TraceError(TENSOR_HOOKS)
    return RemovableHandle(OrderedDict())


def _in_full_precision(func: Any, args: Any, kwargs: Any) -> Any:
    """Autocast runs these functions in float32; batching would take them apart before autocast sees them."""
    kind = next((leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), "cpu")
    if not torch.is_autocast_enabled(kind):
        return func(*args, **kwargs)
    args, kwargs = tree_map_only(Tensor, lambda tensor: _cast(tensor, torch.float32), (args, kwargs))
    with torch.autocast(kind, enabled=False):
        return func(*args, **kwargs)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What autocast makes of an argument: it leaves float64 alone."""
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


FULL_PRECISION = frozenset(
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss hinge_embedding_loss "
    "huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss poisson_nll_loss "
    "smooth_l1_loss soft_margin_loss triplet_margin_loss".split()
)


def _mutates(func: Any, name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE or func == _SET_DATA


_IN_PLACE = frozenset({"__setitem__", "__iadd__", "__imul__", "__isub__", "__itruediv__"})
_SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]  # it is a descriptor


def _linear(func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Under autocast the bias is cast with the weight, as the eager kernel does, before batching pulls them apart."""
    kind = input.device.type
    if torch.is_autocast_enabled(kind) and input.is_floating_point():
        low = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return func(_cast(input, low), _cast(weight, low), None if bias is None else _cast(bias, low))
    return func(input, weight, bias)


def _linear_of(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(input, weight, bias)


def lstm_step(
    input: Tensor, hx: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM, as torch.nn has it."""
    hidden, cell = hx
    i, f, g, o = (_linear_of(input, w_ih, b_ih) + _linear_of(hidden, w_hh, b_hh)).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_step(input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    """One step of a GRU, as torch.nn has it."""
    r_i, z_i, n_i = _linear_of(input, w_ih, b_ih).chunk(3, -1)
    r_h, z_h, n_h = _linear_of(hidden, w_hh, b_hh).chunk(3, -1)
    r, z = (r_i + r_h).sigmoid(), (z_i + z_h).sigmoid()
    n = (n_i + r * n_h).tanh()
    return n + z * (hidden - n)


def tanh_step(input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    """One step of a simple recurrent network."""
    return torch.tanh(_linear_of(input, w_ih, b_ih) + _linear_of(hidden, w_hh, b_hh))


def relu_step(input: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    """The same with another activation."""
    return torch.relu(_linear_of(input, w_ih, b_ih) + _linear_of(hidden, w_hh, b_hh))


def _step(step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda func, *args, **kwargs: step(*args, **kwargs)


def _bilinear(func: Any, left: Tensor, right: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = torch.einsum("...i,kij,...j->...k", left, weight, right)
    return out if bias is None else out + bias


def _kl_div(
    func: Any,
    input: Tensor,
    target: Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    log_target: bool = False,
) -> Any:
    if size_average is not None or reduce is not None or torch.is_autocast_enabled(input.device.type):
        return func(input, target, size_average, reduce, reduction, log_target)
    terms = target.exp() * (target - input) if log_target else torch.xlogy(target, target) - target * input
    if reduction == "none":
        return terms
    return terms.mean() if reduction == "mean" else terms.sum() / (input.shape[0] if reduction == "batchmean" else 1)


def _index_add(func: Any, input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    is_batched = torch._C._functorch.is_batchedtensor
    if not (is_batched(input) or is_batched(source)) or not source.dim() or index.dim() != 1:
        return func(input, dim, index, source, alpha=alpha)  # of all rows at once: a sum over children
    shape = [1] * source.dim()
    shape[dim] = -1
    places = index.long().reshape(shape).expand(source.shape)
    return input.scatter_add(dim, places, source if alpha == 1 else source * alpha)


def _batch_norm(func: Any, *args: Any, **kwargs: Any) -> Any:
    """By kept statistics every number is scaled by itself; batching would put all rows side by side as channels."""
    names = "input running_mean running_var weight bias training momentum eps".split()
    given: dict[str, Any] = {"eps": 1e-5, **dict(zip(names, args, strict=False)), **kwargs}
    found: list[Any] = [given.get(name) for name in names[:6]]
    input, mean, variance, weight, bias, is_training = found
    is_uniform = len({tensor.dtype for tensor in (input, mean, variance, weight, bias) if tensor is not None}) == 1
    if func is not torch.nn.functional.batch_norm or is_training or mean is None or variance is None or not is_uniform:
        return func(*args, **kwargs)
    scale = torch.rsqrt(variance + given["eps"]) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - mean * scale
    shape = (-1, *[1] * (input.dim() - 2))
    return input * scale.reshape(shape) + shift.reshape(shape)


def _randperm(func: Any, n: int, *, dtype: torch.dtype = torch.int64, device: Any = None, **more: Any) -> Any:
    """Batching draws one permutation after the other; the order of random numbers is one, too."""
    if any(given is not None and given is not False for given in more.values()):
        return func(n, dtype=dtype, device=device, **more)
    return torch.rand(n, dtype=torch.float64, device=device).argsort().to(dtype)


def _one_hot(func: Any, index: Tensor, num_classes: int = -1) -> Any:
    """Batching would give zeros for a class that there is not; scattering raises."""
    if num_classes <= 0 or index.dtype is not torch.int64:
        return func(index, num_classes)
    zeros = torch.zeros((*index.shape, num_classes), dtype=torch.int64, device=index.device)
    return zeros.scatter(-1, index.unsqueeze(-1), 1)


def _select(func: Any, input: Tensor, dim: Any, index: Any) -> Any:
    """Not every torch looks at the index of a tensor without numbers; reading beside it must not happen."""
    whole = isinstance(dim, int) and isinstance(index, int) and -input.dim() <= dim < input.dim()
    if whole and not -input.shape[dim] <= index < input.shape[dim]:
        shape = list(input.shape)
        raise IndexError(f"select(): index {index} out of range for tensor of size {shape} at dimension {dim % input.dim()}")
    return func(input, dim, index)


def _scatter_in_place(func: Any, input: Tensor, dim: int, index: Tensor, *rest: Any, **more: Any) -> Any:
    return input.copy_(torch.scatter(input, dim, index, *rest, **more))


def _gumbel_softmax(
    func: Callable[..., Tensor], logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Jang et al., "Categorical Reparameterization with Gumbel-Softmax", 2017, without writing in place."""
    noise = -torch.empty_like(logits).exponential_().log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(logits).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return chosen - soft.detach() + soft


def _embedding(func: Any, *args: Any, **kwargs: Any) -> Any:
    """With scale_grad_by_freq= gradients are divided by how often a row is looked up in one call, not in all of them."""
    names = _EMBEDDING.get(func)
    given = {} if names is None else {**dict(zip(names, args, strict=False)), **kwargs}
    index = given.get("input", given.get("indices"))
    if not given.get("scale_grad_by_freq") or not isinstance(index, Tensor) or not torch._C._functorch.is_batchedtensor(index):
        return func(*args, **kwargs)
    rows = func(**{**given, "scale_grad_by_freq": False})
    if index.numel() < 2:
        return rows
    count = _counts(index.flatten().long(), given["weight"].shape[0]).reshape(*index.shape, 1)
    part = 1 / count.to(rows.dtype)
    return torch.where(count == 1, rows, rows * part + rows.detach() * (1 - part))


def _counts(index: Tensor, most: int) -> Tensor:
    """How often each of these numbers is among them."""
    if len(index) ** 2 <= most:
        return (index.unsqueeze(0) == index.unsqueeze(1)).sum(0)
    return torch.zeros(most, dtype=torch.int64, device=index.device).scatter_add(0, index, torch.ones_like(index))[index]


_EMBEDDING: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.embedding: (
        "input",
        "weight",
        "padding_idx",
        "max_norm",
        "norm_type",
        "scale_grad_by_freq",
        "sparse",
    ),
    torch.embedding: ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
}


LOWERINGS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "lstm_cell": _step(lstm_step),
    "gru_cell": _step(gru_step),
    "rnn_tanh_cell": _step(tanh_step),
    "rnn_relu_cell": _step(relu_step),
    "bilinear": _bilinear,
    "embedding": _embedding,
    "kl_div": _kl_div,
    "index_add": _index_add,
    "batch_norm": _batch_norm,
    "randperm": _randperm,
    "gumbel_softmax": _gumbel_softmax,
    "one_hot": _one_hot,
    "scatter_": _scatter_in_place,
    "select": _select,
}
