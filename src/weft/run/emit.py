"""Turn a piece into Python source that calls torch, one line per operation, and compile it.

Values that must outlive a step are written straight into a slice of their arena with `out=` where the operation can, else by a
copy. Generated source is kept on the function as `source`, for reading and for tests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from weft.graph import ops
from weft.graph.segments import segment_sum
from weft.graph.tape import Rows, Value, operands
from weft.run.split import Piece
from weft.run.views import bases, is_free

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Code:
    """A compiled piece: `run(*takes, *destinations, n, e, bounds, records)` returns the values in `returns`."""

    run: Callable[..., tuple[Any, ...]]
    takes: tuple[Value, ...]
    stores: tuple[Value, ...]
    returns: tuple[Value, ...]
    source: str
    addresses: frozenset[str] = frozenset()
    """Names of values that are given as an address in memory instead of a tensor."""
    indexed: frozenset[str] = frozenset()
    """Names of values that are given as two addresses: of memory, and of an index of rows in it.

    For gradients of recurrent outputs two more follow: the address of rows to add, and how many numbers these are apart.
    """
    fused: frozenset[str] = frozenset()
    """Names of values that generated kernels compute, each of them reading all it needs before it writes."""
    kernels: tuple[Any, ...] = ()
    """Functions of C that the piece calls (`weft.run.cpu.native`)."""
    walk: Any = None
    """The piece as a function over all steps (`weft.run.cpu.walk`), where there is one."""

    @property
    def functions(self) -> tuple[Any, ...]:
        """The functions of C that it runs by."""
        return self.kernels if self.walk is None else (self.walk.function,)


def emit(piece: Piece, stores: Iterable[Value], use_out: bool = True, leave_out: Iterable[Value] = ()) -> Code:
    """Compile a piece; `stores` are the given values to write into destinations, the rest is returned.

    What is in `leave_out`, and only needed for it, is not computed; the arguments stay the same.
    """
    return Emitter(piece, tuple(stores), use_out, tuple(leave_out)).code()


def needed_part(piece: Piece, leave_out: tuple[Value, ...]) -> Piece:
    gives = [value for value in piece.gives if not any(value is other for other in leave_out)]
    needed = {id(base) for value in gives for base in bases(value)}
    kept: list[Value] = []
    for value in reversed(piece.values):
        if id(value) in needed:
            kept.append(value)
            needed.update(id(base) for operand in operands(value) for base in bases(operand))
    return Piece(piece.stage, kept[::-1], piece.takes, gives)


def _uses(piece: Piece) -> Counter[int]:
    """How often each value is read in a piece, views that it makes included."""
    uses: Counter[int] = Counter()
    pending, seen = [*piece.values, *piece.gives], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for operand in operands(value):
            uses[id(operand)] += 1
            if is_free(operand):
                pending.append(operand)
    return uses


def _plain_slice(value: Value) -> bool:
    dim = value.args[1] if len(value.args) > 1 else 0
    step = value.args[4] if len(value.args) > 4 else 1
    return step == 1 and isinstance((value.shape or ())[dim], int) and all(isinstance(arg, int) for arg in value.args[1:])


def _narrowed(value: Value) -> tuple[int, int, int]:
    dim = value.args[1] if len(value.args) > 1 else 0
    start = value.args[2] if len(value.args) > 2 else 0
    size, length = (value.args[0].shape or ())[dim], (value.shape or ())[dim]
    assert isinstance(size, int) and isinstance(length, int)
    return dim, ops.slice_bound(start, size), length


class Emitter:
    """Writes the source of one piece, line by line."""

    def __init__(self, piece: Piece, stores: tuple[Value, ...], use_out: bool, leave_out: tuple[Value, ...]) -> None:
        self.parameters = [*piece.takes], [*stores]
        stores = tuple(value for value in stores if not any(value is other for other in leave_out))
        piece = needed_part(piece, leave_out) if leave_out else piece
        self.piece, self.stores, self.use_out = piece, stores, use_out
        self.names: dict[int, str] = {}
        self.space: dict[str, Any] = {"torch": torch, "aten": aten, "segment_sum": segment_sum}
        self.lines: list[str] = []
        self.made: set[int] = {id(value) for value in piece.takes}
        self.inside = {id(value) for value in piece.values}
        self.destination: dict[int, str] = {}
        self.joins: dict[int, str] = {}
        self.copies: dict[int, list[tuple[Value, str]]] = {}
        self.checked: set[int] = set()
        self.kept = {id(base) for value in piece.gives for base in bases(value)}
        self.uses = _uses(piece)

    def name(self, value: Value) -> str:
        if id(value) not in self.names:
            self.names[id(value)] = re.sub(r"\W", "_", value.name)
        return self.names[id(value)]

    def code(self) -> Code:
        returns = tuple(value for value in self.piece.gives if not any(value is s for s in self.stores))
        self._plan_destinations()
        if self.use_out:
            self._plan_joins()
        self.body()
        for value in self.stores:
            self._store(value)
        results = []
        for value in returns:
            self._ensure(value)
            results.append(self.name(value))
        self.finish(results)
        takes, into = self.parameters
        parameters = [name for value in takes for name in self.parameter(value)]
        parameters += [*(f"to_{self.name(value)}" for value in into), "n", "e", "bounds", "records"]
        body = [f"def {self.piece.stage}({', '.join(parameters)}):", *(f"    {line}" for line in self.lines)]
        body.append(f"    return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        source = "\n".join(body) + "\n"
        exec(compile(source, f"weft_{self.piece.stage}.py", "exec"), self.space)
        return Code(self.space[self.piece.stage], tuple(takes), tuple(into), returns, source)

    def parameter(self, taken: Value) -> list[str]:
        return [self.name(taken)]

    def body(self) -> None:
        for value in self.piece.values:
            self._ensure(value)

    def finish(self, results: list[str]) -> None:
        """What is left to do when all results are known."""

    def _new(self, value: Value) -> str:
        """Memory for a value, on the device of something that the piece is given."""
        takes, into = self.parameters
        shape = self._render(list(value.shape or ()))
        if takes or into:
            like = self.name(takes[0]) if takes else f"to_{self.name(into[0])}"
            return f"{like}.new_empty({shape}, dtype={value.dtype})"
        return f"torch.empty({shape}, dtype={value.dtype})"

    def _plan_destinations(self) -> None:
        """A stored value that this piece computes goes straight to its place; so does the base of a stored reshape."""
        for value in self.stores:
            if id(value) in self.inside and not is_free(value):
                self.destination[id(value)] = f"to_{self.name(value)}"
        for value in self.stores:
            base = value
            while base.target is aten.reshape.default:
                base = base.args[0]
            if base is not value and id(base) in self.inside and id(base) not in self.destination and base.dtype == value.dtype:
                place = f"at_{self.name(value)}"
                self.lines.append(f"{place} = to_{self.name(value)}.view({self._render(list(base.shape or ()))})")
                self.destination[id(base)] = place
                self.destination[id(value)] = place

    def _plan_joins(self) -> None:
        """What is only computed to be joined by `cat` or `stack` is computed in its place in the joined tensor."""
        for value in reversed(self.piece.values):
            if value.target not in (aten.cat.default, aten.stack.default):
                continue
            dim = value.args[1] if len(value.args) > 1 else 0
            parts: list[Value] = value.args[0]
            if dim == value.row_dim or not any(self._can_place(part, value) for part in parts):
                continue
            place = self.destination.get(id(value))
            if place is None:
                place = self.name(value)
                self.lines.append(f"{place} = {self._new(value)}")
                self.destination[id(value)] = place
            self.joins[id(value)] = place
            start = 0
            for number, part in enumerate(parts):
                size = (part.shape or ())[dim] if value.target is aten.cat.default else 1
                assert isinstance(size, int)
                at = (
                    f"{place}.narrow({dim}, {start}, {size})"
                    if value.target is aten.cat.default
                    else f"{place}.select({dim}, {number})"
                )
                if self._can_place(part, value):
                    self.lines.append(f"in_{self.name(part)} = {at}")
                    self.destination[id(part)] = f"in_{self.name(part)}"
                else:
                    self.copies.setdefault(id(value), []).append((part, at))
                start += size

    def _can_place(self, part: Value, joined: Value) -> bool:
        placed = part.target in ops.OUT_CALLS or part.target in ops.OUT_NAMES
        return placed and part.dtype == joined.dtype and id(part) in self.inside and id(part) not in self.destination

    def _store(self, value: Value) -> None:
        if id(value) not in self.destination:
            self._ensure(value)
            self.lines.append(f"to_{self.name(value)}.copy_({self.name(value)})")

    def _ensure(self, value: Value) -> None:
        if id(value) in self.made:
            return
        self.made.add(id(value))
        for operand in operands(value):
            self._ensure(operand)
        if value.constant is not None:
            self.space[self.name(value)] = value.constant
            return
        if id(value) in self.joins:
            for part, at in self.copies.get(id(value), ()):
                self.lines.append(f"{at}.copy_({self.name(part)})")
            if self.joins[id(value)] != self.name(value):
                self.lines.append(f"{self.name(value)} = {self.joins[id(value)]}")
            return
        place = self.destination.get(id(value)) if not is_free(value) else None
        call = self._call(value)
        if place is None:
            spent = self._spent_operand(value)
            if spent is not None:
                into = self._call_into(value, self.name(spent))
                assert into is not None
                self.lines.append(into)
                self.names[id(value)] = self.name(spent)
            else:
                self.lines.append(f"{self.name(value)} = {call}")
            return
        into = self._call_into(value, place)
        self.lines.append(into or f"{place}.copy_({call})")
        self.lines.append(f"{self.name(value)} = {place}")

    def _spent_operand(self, value: Value) -> Value | None:
        """An operand that is read here for the last time and can take the result: no fresh memory, and it is in the cache."""
        if not self.use_out or value.target not in ops.POINTWISE:
            return None
        for operand in operands(value):
            fresh = id(operand) in self.inside and operand.target in ops.FRESH and id(operand) not in self.destination
            same = operand.shape == value.shape and operand.dtype == value.dtype
            if fresh and same and self.uses[id(operand)] == 1 and id(operand) not in self.kept:
                return operand
        return None

    def _arguments(self, value: Value) -> str:
        parts = [self._render(arg) for arg in value.args]
        parts += [f"{key}={self._render(arg)}" for key, arg in value.kwargs.items() if key not in ("pin_memory", "layout")]
        return ", ".join(parts)

    def _call(self, value: Value) -> str:
        target = value.target
        if target is segment_sum:
            return f"segment_sum({self._arguments(value)}, bounds)"
        if getattr(target, "in_context", False):
            return f"{self._bind(target)}({self._arguments(value)}, n=n, e=e, records=records)"
        if ops.is_getitem(target):
            return f"{self.name(value.args[0])}[{value.args[1]}]"
        if target is aten.reshape.default:
            return f"{self.name(value.args[0])}.reshape({self._render(value.args[1])})"
        if target is aten.slice.Tensor and _plain_slice(value):
            dim, start, length = _narrowed(value)
            return f"{self.name(value.args[0])}.narrow({dim}, {start}, {length})"
        if target is aten.split.Tensor:
            return self._split(value)
        fast = ops.FAST_CALLS.get(target) if target is not None else None
        return f"{fast or self._bind(target)}({self._arguments(value)})"

    def _split(self, value: Value) -> str:
        """Tensor.split is a Python function; its C counterpart takes the sizes."""
        dim = value.args[2] if len(value.args) > 2 else 0
        total = (value.args[0].shape or ())[dim]
        size = value.args[1]
        if not (isinstance(total, int) and isinstance(size, int)):
            return f"{self.name(value.args[0])}.split({self._render(size)}, {dim})"
        sizes = [size] * (total // size) + ([total % size] if total % size else [])
        return f"{self.name(value.args[0])}.split_with_sizes({sizes}, {dim})"

    def _call_into(self, value: Value, place: str) -> str | None:
        target = value.target
        if not self.use_out or target is None:
            return None
        if target in ops.OUT_CALLS:
            return f"{ops.FAST_CALLS[target]}({self._arguments(value)}, out={place})"
        if target in ops.OUT_NAMES:
            overload, keyword = ops.OUT_NAMES[target]
            return f"aten.{overload}({self._arguments(value)}, {keyword}={place})"
        return None

    def _bind(self, target: Any) -> str:
        text = str(target)
        if text.startswith("aten."):
            return text
        name = f"op{len(self.space)}"
        self.space[name] = target
        return name

    def _render(self, item: Any) -> str:
        if isinstance(item, Value):
            return self.name(item)
        if isinstance(item, Rows):
            return item.kind if item.times == 1 else f"{item.times} * {item.kind}"
        if isinstance(item, list | tuple):
            inner = ", ".join(self._render(part) for part in item)
            return (
                f"({inner},)"
                if isinstance(item, tuple) and len(item) == 1
                else f"({inner})"
                if isinstance(item, tuple)
                else f"[{inner}]"
            )
        if isinstance(item, bool | int | str | type(None)):
            return repr(item)
        if isinstance(item, torch.dtype):
            return str(item)
        if isinstance(item, float):
            return f"float({str(item)!r})"
        name = f"c{len(self.space)}"
        self.space[name] = item
        return name
