"""Twin tracing: one graph that is valid for every row count, from two traces at different primes.

A size that differs between the traces must be `times * rows` in both, with the same `times`; a size that is equal is a
constant. The primes keep vertices and edges apart, so no size is reserved and no guess is made. Anything else, or two
traces of different length, means that the function depends on the number of rows, and `TraceError` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functionalize
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.errors import TraceError
from weft.graph import ops
from weft.graph.checks import with_checks
from weft.graph.logsigmoid import without_buffers
from weft.graph.strided import order_in_memory
from weft.graph.tape import Name, Rows, Tape, Value, operands, prune

aten = torch.ops.aten

FIRST, SECOND = {"n": 61, "e": 103}, {"n": 67, "e": 107}

Sizes = dict[str, int]

_functorch: Any = torch._C._functorch
_autograd: Any = torch._C._autograd


class Escaped(TraceError):
    """A stand-in tensor has got into the user's own keeping: nothing may be computed with it."""


class _NoFallback:
    """While tracing, vmap must not unroll an operation row by row."""

    def __enter__(self) -> None:
        self.was = _functorch._is_vmap_fallback_enabled()
        _functorch._set_vmap_fallback_enabled(False)

    def __exit__(self, *_: object) -> None:
        _functorch._set_vmap_fallback_enabled(self.was)


@contextmanager
def unwatched() -> Iterator[None]:
    """What is only looked at is not for those who wait for real tensors: hooks on saved tensors, the search for NaN, autocast,
    which keeps the weights that it has cast."""
    hooks, casts_are_kept = [], torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        with torch.autograd.set_detect_anomaly(False):
            yield
    finally:
        torch.set_autocast_cache_enabled(casts_are_kept)
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def twin_trace(
    function: Callable[..., Sequence[torch.Tensor | None]],
    example: Callable[[Sizes], list[torch.Tensor]],
    input_names: Sequence[Name],
    output_names: Callable[[], Sequence[Name]],
) -> Tape:
    """Trace `function(sizes, *tensors)` at two sizes and merge the traces. `output_names` is asked after tracing."""
    graphs = [_trace(function, sizes, example(sizes)) for sizes in (FIRST, SECOND)]
    return _merge(graphs[0], graphs[1], input_names, output_names())


def _trace(function: Callable[..., Any], sizes: Sizes, tensors: list[torch.Tensor]) -> torch.fx.GraphModule:
    def at_sizes(*args: torch.Tensor) -> Any:
        return function(sizes, *args)

    with ExitStack() as stack:
        stack.enter_context(_NoFallback())
        stack.enter_context(unwatched())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.enable_grad())
        return make_fx(functionalize(at_sizes, remove="mutations"), tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def _merge(
    first: torch.fx.GraphModule, second: torch.fx.GraphModule, input_names: Sequence[Name], output_names: Sequence[Name]
) -> Tape:
    nodes, twins = list(first.graph.nodes), list(second.graph.nodes)
    if [node.target if node.op == "call_function" else node.op for node in nodes] != [
        node.target if node.op == "call_function" else node.op for node in twins
    ]:
        raise TraceError("the operations depend on the number of rows")
    env: dict[torch.fx.Node, Value] = {}
    tape = Tape({}, [], {})
    names = iter(input_names)
    for index, (node, twin) in enumerate(zip(nodes, twins, strict=True)):
        if node.op == "output":
            results = _literal(node.args[0], twin.args[0], env)
            flat = list(results) if isinstance(results, list | tuple) else [results]
            tape.outputs = dict(zip(output_names, flat, strict=True))
            continue
        value = _value(f"v{index}", first, node, twin, env)
        env[node] = value
        if node.op == "placeholder":
            tape.inputs[next(names)] = value
        else:
            tape.values.append(value)
    with_checks(tape)
    prune(tape)
    without_buffers(tape)
    _check_products(tape)
    _check_row_order(tape)
    _check_rows_apart(tape)
    return tape


def _value(name: str, module: torch.fx.GraphModule, node: torch.fx.Node, twin: torch.fx.Node, env: dict[Any, Value]) -> Value:
    meta, twin_meta = node.meta.get("val"), twin.meta.get("val")
    shape, dtype = None, None
    if isinstance(meta, torch.Tensor):
        assert isinstance(twin_meta, torch.Tensor)
        shape, dtype = tuple(_size(a, b) for a, b in zip(meta.shape, twin_meta.shape, strict=True)), meta.dtype
        if sum(isinstance(size, Rows) for size in shape) > 1:
            raise TraceError(f"{node.target} combines different rows with each other")
    if node.op == "get_attr":
        constant = getattr(module, str(node.target))
        if isinstance(constant, FakeTensor):
            raise Escaped("it keeps a tensor that it makes on first use where weft cannot make it anew; make it beforehand")
        return Value(name, None, shape=tuple(constant.shape), dtype=constant.dtype, constant=constant)
    if node.op == "placeholder":
        return Value(name, None, shape=shape, dtype=dtype)
    assert callable(node.target)
    args = _literal(node.args, twin.args, env)
    kwargs = {key: _literal(node.kwargs[key], twin.kwargs[key], env) for key in node.kwargs}
    if node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
        assert isinstance(node.args[0], Node)
        order = order_in_memory(node.args[0].meta["val"].stride())
        kwargs |= {} if order is None else {"order": order}
    return Value(name, node.target, args, kwargs, shape, dtype)


def _literal(item: Any, twin: Any, env: dict[Any, Value]) -> Any:
    if isinstance(item, torch.fx.Node):
        return env[item]
    if isinstance(item, tuple | list):
        if len(item) != len(twin):
            raise TraceError("the operations depend on the number of rows")
        parts = [_literal(a, b, env) for a, b in zip(item, twin, strict=True)]
        return tuple(parts) if isinstance(item, tuple) else parts
    if isinstance(item, int) and not isinstance(item, bool):
        return _size(item, twin)
    if item != twin and not (item != item and twin != twin):
        raise TraceError(f"a constant depends on the number of rows ({item} and {twin})")
    return item


def _size(first: int, second: int) -> int | Rows:
    if first == second:
        return int(first)
    for kind in ("n", "e"):
        times, rest = divmod(first, FIRST[kind])
        if rest == 0 and times * SECOND[kind] == second:
            return Rows(kind, times)
    raise TraceError(f"a size depends on the number of rows in a way that is not a multiple ({first} and {second})")


def _check_products(tape: Tape) -> None:
    """Fake tensors of different dtypes can be multiplied, real ones cannot: the code itself then says it best."""
    for value in tape.values:
        if ops.is_product(value.target) and len({operand.dtype for operand in operands(value)}) > 1:
            raise TraceError(f"{value.target} multiplies tensors of different dtypes")


def _check_row_order(tape: Tape) -> None:
    """Slicing rows is right only where the rows are the outermost part of the dimension that carries them."""
    for value in tape.values:
        if value.target not in ops.RESHAPES or value.row_dim is None:
            continue
        source = value.args[0]
        if _before(source) != _before(value):
            raise TraceError(f"{value.target} regroups rows with other dimensions")


def _check_rows_apart(tape: Tape) -> None:
    """Rows must not influence each other: what is summed over rows may become a gradient, but never a row again."""
    summed: set[int] = set()
    from_rows = {id(value) for value in tape.inputs.values() if value.rows is not None}
    for value in tape.values:
        read = list(operands(value))
        if not any(id(operand) in from_rows for operand in read):
            continue
        from_rows.add(id(value))
        if any(id(operand) in summed for operand in read) and value.rows is not None:
            raise TraceError(f"{value.target} mixes different rows")
        if (value.shape is not None and value.rows is None) or any(id(operand) in summed for operand in read):
            summed.add(id(value))


def _before(value: Value) -> int:
    product = 1
    for size in (value.shape or ())[: value.row_dim]:
        product *= size if isinstance(size, int) else 1
    return product
