"""The public functions: `weft.batched`, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from weft.errors import TraceError, TypeMismatch
from weft.lazy.batched import Batched
from weft.lazy.calls import realised
from weft.lazy.nests import build, flatten
from weft.lazy.netmodule import BatchedModule
from weft.lazy.tape import active
from weft.lazy.value import Value


def batched(
    fn: Callable[..., Any],
    *,
    stack: bool = True,
    in_dims: Any = None,
    cache: Any = None,
    granularity: str = "auto",
    **options: Any,
) -> Any:
    """A function of one example as a function of many: to Python control flow what `torch.vmap` is to tensor code.

    Each positional argument of the call is a list or tuple with one item per example, or a tensor that is split along its first
    dimension; anything else, and every keyword argument, is shared (`in_dims` says otherwise, as in `torch.vmap`). `fn` may
    recurse, loop and branch, on data and on the values of tensors. Results come in the order of the examples, stacked leaf by
    leaf (`stack=False`: a list of the examples' own results). A module gives a module with the same `state_dict`.

    `cache=key_fn` keeps the recording of each example by `key_fn(*example)` (`True`: examples are their own keys).
    `granularity` says what is recorded as one call: "auto" joins straight runs of operations, "cell" only modules and what
    `weft.cell` marks, "operator" nothing but single operations, "function" the whole function. Further keywords are the options
    of every batched call: `policy`, `backend`, `dedupe`, `max_rows`, `recompute`, `graph`.

    >>> import torch, weft
    >>> def total(numbers):
    ...     return torch.tensor(0.0) if not numbers else torch.tensor(numbers[0]) * 2 + total(numbers[1:])
    >>> weft.batched(total)([[1.0], [1.0, 2.0], []])
    tensor([2., 6., 0.])
    """
    made = getattr(type(fn), "__weft_batched__", None)
    if made is not None:
        with nullcontext() if active.tape is None else active.tape.pause():  # blocks make tensors of their own
            return made(fn, stack=stack, in_dims=in_dims, cache=cache, **options)
    if not callable(fn):
        raise TypeMismatch(f"weft.batched: expected a function or a module, got {type(fn).__name__}")
    inner = Batched(fn, stack, in_dims, cache, granularity, options)
    return BatchedModule(fn, inner) if isinstance(fn, nn.Module) else inner


def value(nest: Any) -> Any:
    """The nest with tensors in the place of Values; what is pending runs first.

    >>> import torch, weft
    >>> with weft.batching():
    ...     v = torch.ones(2) + 1
    ...     print(weft.value({"v": v}))
    {'v': tensor([2., 2.])}
    """
    leaves: list[Any] = []
    structure = flatten(nest, leaves)
    return build(structure, iter([realised(leaf) for leaf in leaves]))


def is_tensor(x: object) -> bool:
    """Whether x is a tensor or stands for one.

    >>> import torch, weft
    >>> weft.is_tensor(torch.ones(2)), weft.is_tensor(2)
    (True, False)
    """
    return isinstance(x, Tensor | Value)


def sync(name: str = "") -> None:
    """Inside a batched function: wait until every example has arrived at this name or is finished.

    Examples that went different ways meet again, so that what comes after is batched across all of them even if numbers are
    needed there. Outside of a batched call it does nothing.

    >>> import torch, weft
    >>> def fn(x):
    ...     steps = 0
    ...     while x.sum() < 8:
    ...         x, steps = x * 2, steps + 1
    ...     weft.sync("grown")
    ...     return steps
    >>> weft.batched(fn)(torch.tensor([[1.0], [3.0]]))
    tensor([3, 2])
    """
    tape = active.tape
    if tape is None or tape.paused:
        return
    wait = getattr(tape.driver, "sync", None)
    if wait is None:
        raise TraceError("weft.sync has a meaning inside weft.batched only, where examples wait for each other")
    wait(name)
