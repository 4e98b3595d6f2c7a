"""Tensor code as blocks."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from weft.blocks.block import Block
from weft.blocks.checks import check_callable
from weft.blocks.emit import Emitter, Value, nest_of, tensors_in
from weft.blocks.inference import set_type
from weft.blocks.kinds import Body, Constant, Kind, positional, spec_of, tensor_leaves
from weft.blocks.layers import FC, Embedding, Growing, Layer
from weft.blocks.types import ResultType, TensorType, TupleType, is_tensor_nest
from weft.errors import TypeMismatch, WeftError
from weft.graph.calls import call_type
from weft.graph.rows import TensorSpec

TRIAL_LENGTHS = (3, 5, 7, 11, 13, 17, 19, 23)
"""Lengths with which code is tried where a dimension is unknown; primes, so that a result tells which it came from."""


class Function(Block):
    """A function of one example's tensors, or a module: one unit of batching.

    A tuple is handed over as positional arguments: `(a, (b, c))` calls `fn(a, (b, c))`. The result may be a tensor or nested
    tuples of tensors. What it gives is found by running it once on fake tensors.

    >>> import torch, weft.blocks as wb
    >>> (wb.AllOf(wb.Scalar(), wb.Scalar()) >> wb.Function(torch.add)).eval_one(2)
    tensor(4.)
    """

    _input_classes = _output_classes = (TensorType, TupleType)

    def __init__(self, fn: Callable[..., Any], infer_output_type: bool = True, *, name: str | None = None) -> None:
        super().__init__(name=fn.name if name is None and isinstance(fn, Layer) else name)
        check_callable(self.name, "fn", fn)
        if isinstance(fn, type) and issubclass(fn, nn.Module):
            raise TypeMismatch(f"{self.name}: fn: expected a function or a module, got a class; make one: {fn.__name__}(...)")
        self._infer = infer_output_type
        self._inferred_for: ResultType | None = None
        self.__dict__["fn"] = fn
        if isinstance(fn, FC | Embedding):
            set_type(self, "output", TensorType([fn.output_size], next((p.dtype for p in fn.parameters()), None)))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "fn":  # a module in its place, adapted or quantised
            check_callable(self.name, "fn", value)
            self.__dict__["fn"] = value
        else:
            super().__setattr__(name, value)

    def _parts(self) -> Mapping[str, nn.Module]:
        fn = self.__dict__["fn"]
        return {"fn": fn} if isinstance(fn, nn.Module) else {}

    def _update(self) -> None:
        given = self.input_type
        if given is None:
            return
        leaves = given.terminal_types()
        if not is_tensor_nest(given) or not leaves:
            raise self._mismatch(f"input type: expected a tensor or a tuple of tensors, got {given!r}")
        if isinstance(self.__dict__["fn"], FC):
            self._check_dtype(given)
        if self._infer and (self.output_type is None or self._inferred_for != given):
            set_type(self, "output", self._inferred(given))
            self._inferred_for = given

    def _check_dtype(self, given: ResultType) -> None:
        """Layers say what they give before they know what they get, in the default dtype."""
        output = self.output_type
        if isinstance(given, TensorType) and isinstance(output, TensorType) and given.dtype != output.dtype:
            if given.dtype.is_floating_point:
                way_out = "change both with torch.set_default_dtype or the network's .to(dtype)"
                raise self._mismatch(f"input type: expected {output.dtype}, as its output, got {given!r}; {way_out}")

    def _inferred(self, given: ResultType) -> ResultType:
        leaves = given.terminal_types()
        ragged = sum(isinstance(leaf, TensorType) and leaf.ragged for leaf in leaves)
        if not ragged:
            return self._tried(given, ())
        failed: Exception | None = None
        for lengths in _trials(ragged):
            try:
                first, second = (self._tried(given, tried) for tried in (lengths, tuple(n + 1000 for n in lengths)))
            except Exception as error:
                failed = failed or error
            else:
                return _with_unknown(self, first, second, lengths)
        assert failed is not None
        raise failed

    def _tried(self, given: ResultType, lengths: tuple[int, ...]) -> ResultType:
        """The output type, seen by running the code on fake tensors."""
        fn, arrange = self.__dict__["fn"], positional(given)
        specs, device = specs_of(given, lengths), _device(fn)
        seen: list[Any] = []

        def on_zeros() -> Any:
            with torch.no_grad():
                return fn(*arrange([torch.zeros(spec.shape, dtype=spec.dtype, device=device) for spec in specs]))

        def body(*tensors: Tensor) -> Sequence[Tensor]:
            seen.append(fn(*arrange(tensors)))
            return [leaf for leaf in tensor_leaves(seen[-1]) if isinstance(leaf, Tensor)]

        try:
            if _waits_inside(fn):
                on_zeros()
            call_type(self.name, body, specs, owners=(fn,), device=device)
        except Exception as error:
            try:
                seen.append(on_zeros())  # code that looks at values cannot run on fake tensors
            except Exception:
                if isinstance(error, WeftError):
                    raise type(error)(f"{self._path()}: {error}") from None
                error.add_note(f"while finding out what {self._path()} gives for {given!r}")
                raise error from None
        return self._type_of(seen[-1])

    def _type_of(self, result: Any) -> ResultType:
        if isinstance(result, tuple | list):
            if not result:
                raise self._mismatch("expected the function to return a tensor or a tuple of tensors, got an empty one")
            return TupleType(*(self._type_of(part) for part in result))
        if not isinstance(result, Tensor):
            raise self._mismatch(f"expected the function to return a tensor or a tuple of tensors, got {type(result).__name__}")
        return TensorType(tuple(result.shape), result.dtype)

    def _emit(self, e: Emitter, x: Value) -> Value:
        given, output = self._known("input"), self._known("output")
        leaves = tensors_in(x, given)
        count = len(output.terminal_types())
        if any(type.ragged for _, type in leaves):
            return self._emit_ragged(e, leaves, count)
        key = ("function", function_key(self.__dict__["fn"]), given, output)
        constants = [leaf for leaf, _ in leaves if isinstance(leaf, Constant)]
        if len(constants) == len(leaves) and not e.traced:
            kinds = tuple((constant.key, constant.feed) for constant in constants)
            outs = e.call((*key, kinds), lambda: self._kind(constants), feeds=[constant.name for constant in constants])
        else:
            outs = e.call(key, self._kind, [leaf for leaf, _ in leaves])
        return nest_of(iter(outs), output)

    def _kind(self, constants: Sequence[Constant] = ()) -> Kind:
        specs = tuple(specs_of(self._known("input"), ()))
        feeds = tuple(constant.feed for constant in constants)
        body = self._body([constant.decode for constant in constants])
        outputs = tuple(map(spec_of, self._known("output").terminal_types()))
        owners = (self.__dict__["fn"],)
        return Kind(self._label(), body, () if feeds else specs, feeds, outputs, owners=owners, where=self._path())

    def _label(self) -> str:
        fn = self.__dict__["fn"]
        return self._given_name or str(getattr(fn, "__name__", type(fn).__name__))

    def _body(self, decodes: Sequence[Callable[[Tensor], Tensor] | None] = ()) -> Body:
        fn, arrange = self.__dict__["fn"], positional(self._known("input"))
        dtypes = [leaf.dtype for leaf in self._known("output").terminal_types() if isinstance(leaf, TensorType)]

        def body(*tensors: Tensor) -> Sequence[Tensor]:
            if decodes:
                tensors = tuple(row if decode is None else decode(row) for row, decode in zip(tensors, decodes, strict=True))
            results = tensor_leaves(fn(*arrange(tensors)))
            # Under autocast a result may come in another dtype than the one that readers were promised.
            return [
                result if result.dtype == dtype else result.to(dtype) for result, dtype in zip(results, dtypes, strict=True)
            ]

        return body

    def _emit_ragged(self, e: Emitter, leaves: list[tuple[Value, TensorType]], count: int) -> Value:
        arguments = [e.let(f"{leaf}[0]") if type.ragged else leaf for leaf, type in leaves]
        lengths = [f"{leaf}[1]" for leaf, type in leaves if type.ragged]
        outs = e.ragged_call(self._ragged_kind, arguments, lengths, count)
        output = self._known("output")
        sources = self.__dict__.get("_sources", {})
        named: list[Value] = []
        for place, (out, type) in enumerate(zip(outs, output.terminal_types(), strict=True)):
            ragged = isinstance(type, TensorType) and type.ragged
            named.append(e.let(f"({out}, {lengths[sources[place]]})") if ragged else out)
        return nest_of(iter(named), output)

    def _ragged_kind(self, *lengths: int) -> tuple[Hashable, Callable[[], Kind]]:
        """The kind of call for inputs of these lengths."""
        given, output = self._known("input"), self._known("output")
        sources = self.__dict__.get("_sources", {})
        outputs = tuple(
            TensorSpec((lengths[sources[place]], *leaf.shape[1:]), leaf.dtype) if leaf.ragged else spec_of(leaf)
            for place, leaf in enumerate(output.terminal_types())
            if isinstance(leaf, TensorType)
        )
        key = ("function", function_key(self.__dict__["fn"]), given, output, lengths)
        args, owners = tuple(specs_of(given, lengths)), (self.__dict__["fn"],)
        return key, lambda: Kind(self._label(), self._body(), args, (), outputs, owners=owners, where=self._path())


def specs_of(type: ResultType, lengths: Sequence[int]) -> list[TensorSpec]:
    """The leaves of a nest of tensors; unknown dimensions get these lengths, one after the other."""
    rest = iter(lengths)
    leaves = [leaf for leaf in type.terminal_types() if isinstance(leaf, TensorType)]
    return [TensorSpec((next(rest), *leaf.shape[1:]), leaf.dtype) if leaf.ragged else spec_of(leaf) for leaf in leaves]


def _trials(count: int) -> Iterator[tuple[int, ...]]:
    """Lengths to try for so many inputs: all different first, then code that needs some, then all, of them equal."""
    yield TRIAL_LENGTHS[:count]
    if count <= 4:
        groupings = sorted(itertools.product(range(count), repeat=count), key=lambda groups: -len(set(groups)))
        for groups in groupings:
            first_seen = list(dict.fromkeys(groups))
            if len(first_seen) < count and first_seen == sorted(first_seen) and first_seen[-1] == len(first_seen) - 1:
                yield tuple(TRIAL_LENGTHS[group] for group in groups)
    else:
        yield TRIAL_LENGTHS[:1] * count


def _with_unknown(block: Function, first: ResultType, second: ResultType, lengths: tuple[int, ...]) -> ResultType:
    """Two trials with different lengths tell which dimensions are unknown, and whose length they are."""
    sources = block.__dict__["_sources"] = {}
    found: list[TensorType] = []
    for place, (one, two) in enumerate(zip(first.terminal_types(), second.terminal_types(), strict=True)):
        assert isinstance(one, TensorType) and isinstance(two, TensorType)
        if one == two:
            found.append(one)
            continue
        if one.shape[1:] != two.shape[1:] or one.shape[0] not in lengths or two.shape[0] != one.shape[0] + 1000:
            raise block._mismatch(
                f"only the first dimension may be of unknown length, and must be that of an input; got {list(one.shape)} "
                f"for inputs of the lengths {list(lengths)}"
            )
        sources[place] = lengths.index(one.shape[0])
        found.append(TensorType([None, *one.shape[1:]], one.dtype))
    return nest_of(iter(found), first) if isinstance(first, TensorType) else TupleType(*nest_of(iter(found), first))


def _waits_inside(fn: Any) -> bool:
    """Whether there are modules that find their sizes at the first call, and have had none."""
    return isinstance(fn, nn.Module) and any(map(_waits, fn.modules()))


def _waits(module: nn.Module) -> bool:
    if isinstance(module, LazyModuleMixin):
        return bool(module.has_uninitialized_params())
    return isinstance(module, Growing) and module.waits_for_input


def _device(fn: Any) -> str:
    if isinstance(fn, nn.Module):
        for tensor in (*fn.parameters(), *fn.buffers()):
            return str(tensor.device)
    return "cpu"


def function_key(fn: Any) -> Hashable:
    """What a function computes: bound methods and partials by what they are made of, others by identity."""
    if isinstance(fn, types.MethodType):
        return ("method", id(fn.__self__), id(fn.__func__))
    if isinstance(fn, functools.partial):
        parts = (*fn.args, *(part for item in sorted(fn.keywords.items()) for part in item))
        return ("partial", function_key(fn.func), tuple(_plain_key(part) for part in parts))
    return id(fn)


def _plain_key(value: Any) -> Hashable:
    return (type(value), value) if isinstance(value, int | float | str | bool | None | torch.dtype) else id(value)
