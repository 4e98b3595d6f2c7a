"""Runs a recipe's Python on stand-ins: what it would launch becomes a list of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from weft.graph.segments import bag_sum, segment_sum
from weft.run.gpu import bags, counts, lookup, rowcopy, totals
from weft.run.gpu.launch import Quick, allocator, fresh_behind
from weft.run.gpu.onecall.blocks import COUNTER, Block, Either, Pointer, Storage, strides_of
from weft.run.gpu.onecall.later import Laters
from weft.run.gpu.onecall.numbers import ALIGNED, Example, NotLowered, Number, Size
from weft.run.gpu.onecall.operations import Copy, Fill, Launch, Operation, Product, Turns
from weft.run.gpu.sweep import Walk
from weft.run.gpu.table import Limits


class Recorder:
    """Collects what a recipe does."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.example = device, Example()
        self.operations: list[Operation] = []
        self.stretches: list[Turns] = []
        """Those whose steps are being written down."""
        self.inside: dict[Storage, Turns] = {}
        """Fresh memory of single steps, and whose steps these are."""
        self.fresh_memory: list[Storage] = []
        self.later = Laters()
        self.constants: list[Tensor] = []

    # Stand-ins for what a recipe is given.

    def number(self, name: str, value: int) -> Number:
        self.example.values[name] = value
        return Number(name, self.example)

    def given(self, name: str, like: Tensor, rows: bool, part: bool = False) -> Block:
        """A tensor that the call brings; with `rows`, how many it has differs from call to call.

        What is part of a larger one starts at some row.
        """
        sizes: list[Size] = list(like.shape)
        if rows and sizes:
            sizes[0] = self.number(f"{name}_rows", like.shape[0])
        if like.device != self.device or not like.is_contiguous():
            raise NotLowered("a tensor elsewhere, or strided")
        apart = like.stride(0) if like.dim() else 1
        anywhere = part and apart * like.itemsize % ALIGNED != 0
        return Block(self, Storage(name, like.dtype, anywhere=anywhere), sizes, strides_of(sizes))

    def constant(self, tensor: Tensor) -> Block:
        """A tensor that belongs to the recipe."""
        self.constants.append(tensor)
        return self.given(f"q{len(self.constants) - 1}", tensor, False)

    # What recipes do.

    def fresh(self, sizes: Sequence[Size], strides: Sequence[Size], dtype: torch.dtype) -> Block:
        block = Block(self, Storage(f"m{len(self.fresh_memory)}", dtype, None, tuple(sizes)), sizes, strides_of(sizes))
        block.storage.count = block.numel()
        self.fresh_memory.append(block.storage)
        if self.stretches:
            self.inside[block.storage] = self.stretches[-1]
        return block

    def fresh_behind(self, fresh: Any, before: Size, sizes: Sequence[Size], dtype: torch.dtype) -> tuple[Block, Block]:
        """As `launch.fresh_behind`: rows before have addresses, but nobody's."""
        alone = self.fresh(sizes, (), dtype)
        rows = before + sizes[0], *sizes[1:]
        return Block(self, alone.storage, rows, alone.strides, -(before * alone.strides[0])), alone

    def say(self, operation: Operation) -> None:
        (self.stretches[-1].apart if self.stretches else self.operations).append(operation)

    def launch(self, quick: Quick, numbers: Sequence[Size], blocks: Sequence[Block], only: Size | None = None) -> None:
        programs = eval(quick.grid, {f"n{at}": number for at, number in enumerate(numbers)})
        for block in blocks:
            block.contiguous()
        self.say(Launch(quick.kernel, programs, [*numbers, *blocks], quick.constants, only))

    def product(self, one: Block, other: Block, out: Block | None = None) -> Block:
        if one.dim() != 2 or other.dim() != 2 or one.dtype is not other.dtype:
            raise NotLowered("a product of other than two matrices")
        if out is None:
            out = self.fresh((one.shape[0], other.shape[1]), (), one.dtype)
        self.say(Product(one, other, out.contiguous()))
        return out

    def take(self, a: Block, p: Block, b: Block | None = None, q: Block | None = None, out: Block | None = None) -> Block:
        """As `take_rows`."""
        rows = p.shape[0]
        if out is None:
            out = self.fresh((rows, *a.shape[1:]), (), a.dtype)
        self._take(a, p, b, q, out)
        return out

    def _take(self, a: Block, p: Block, b: Block | None, q: Block | None, out: Block, only: Size | None = None) -> None:
        if p.dtype is not torch.int32:
            raise NotLowered("an index of 64 bits")
        width = _width(a)
        quick = rowcopy.taker(a.dtype, b is not None, width)
        b, q = (a, p) if b is None or q is None else (b, q)
        self.launch(quick, (p.shape[0], width // rowcopy.tiles(width)[0], a.shape[0], b.shape[0]), (out, a, p, b, q), only)

    def look_up(self, table: Block, numbers: Block, *rest: Any) -> Block:
        """As `torch.embedding`, to which the rest does not matter here."""
        if table.dim() != 2 or numbers.dtype not in (torch.int32, torch.int64):
            raise NotLowered("an embedding of other than rows")
        width, out = _width(table), self.fresh((*numbers.shape, table.shape[1]), (), table.dtype)
        quick, parts = lookup.looker(table.dtype, numbers.dtype, width), width // rowcopy.tiles(width)[0]
        self.launch(quick, (numbers.numel(), parts, table.shape[0]), (table, numbers, out))
        return out

    def put(self, out: Block, p: Block, a: Block, q: Block | None = None, b: Block | None = None) -> None:
        """As `put_rows`."""
        two, width = b is not None, _width(a)
        first = rows = a.shape[0]
        if q is None or b is None:
            q, b = p, a
        else:
            rows = rows + b.shape[0]
        self.launch(rowcopy.putter(a.dtype, two, width), (rows, first, width // rowcopy.tiles(width)[0]), (out, p, a, q, b))

    def step_rows(self, arena: Block, index: Block, start: Size, lo: Size, hi: Size, slots: int) -> Block:
        """As `rowcopy.step_rows`."""
        many = (hi - lo) * slots
        there = arena.narrow(0, start, many)
        copied = self.fresh((many, *arena.shape[1:]), (), arena.dtype)
        self._take(arena, index.narrow(0, lo * slots, many), None, None, copied, only=start)
        return Block(self, Either("", arena.dtype, number=start, one=there, other=copied), there.shape, there.strides)

    def add(self, one: Block, other: Block) -> Block:
        out = self.fresh(one.shape, (), one.dtype)
        self.launch(rowcopy.adder(one.dtype), (out.numel(),), (one, other, out))
        return out

    def bags(self, rows: Block, index: Block | None, bounds: Block, segments: Size | None = None) -> Block:
        """As `bag_sum`; without an index as `segment_sum`."""
        if any(one is not None and one.dtype is not torch.int32 for one in (index, bounds)):
            raise NotLowered("an index of 64 bits")
        if segments is None:
            segments = bounds.shape[0] - 1
        out = self.fresh((segments, *rows.shape[1:]), (), rows.dtype)
        quick, some = bags.bagger(rows.dtype, index is not None), bounds if index is None else index
        self.launch(quick, (segments, prod(rows.shape[1:])), (rows, some, bounds, out))
        return out

    def segments(self, rows: Block, owners: Block, segments: Size, bounds: Block) -> Block:
        """As `segment_sum`."""
        return self.bags(rows, None, bounds, segments)

    def join(self, parts: Sequence[Block], dim: int = 0) -> Block:
        if dim != 0:
            raise NotLowered("torch.cat of columns")
        out = self.fresh((sum([part.shape[0] for part in parts]), *parts[0].shape[1:]), (), parts[0].dtype)
        start: Size = 0
        for part in parts:
            if part.dtype is not out.dtype:
                raise NotLowered("torch.cat of several dtypes")
            self.copy(part, out.narrow(0, start, part.shape[0]))
            start = start + part.shape[0]
        return out

    def zeros(self, sizes: Sequence[Size], dtype: torch.dtype, device: torch.device | None = None) -> Block:
        return self.fill(self.fresh(sizes, (), dtype))

    def copy(self, one: Block, out: Block) -> Block:
        if one.repeats:
            width, row = _width(one), one.select(0, 0).contiguous()
            parts = width // rowcopy.tiles(width)[0]
            self.launch(rowcopy.repeater(one.dtype, width), (one.shape[0], parts), (row, out))
            return out
        self.say(Copy(one.contiguous(), out.contiguous()))
        return out

    def copied(self, one: Block) -> Block:
        return self.copy(one, self.fresh(one.shape, (), one.dtype))

    def fill(self, out: Block) -> Block:
        self.say(Fill(out.contiguous()))
        return out

    def sums(self, rows: Block) -> Block:
        """As `column_sums`."""
        many, width = rows.shape[0], _width(rows)
        parts = totals.parts(many, width)
        some, out = self.fresh((parts, width), (), totals.wide(rows.dtype)), self.fresh((1, width), (), rows.dtype)
        count = Block(self, Storage(COUNTER, torch.int32), (counts.COLUMNS,), (1,), counts.BARRIER)
        self.launch(totals.adder(rows.dtype), (many, width, parts), (rows, some, out, count))
        return out

    def new_zeros(self, like: Block, sizes: Sequence[Size], dtype: torch.dtype | None = None, **where: Any) -> Block:
        return self.zeros(sizes, dtype or like.dtype)

    def scalar(self, number: float, dtype: torch.dtype, device: torch.device | None = None) -> Block:
        if number != 0:
            raise NotLowered("a number by itself")
        return self.zeros((), dtype)

    def zeros_like(self, like: Block, memory_format: Any = None) -> Block:
        return self.fill(self.fresh(like.shape, (), like.dtype))

    # Steps.

    def start(self, walk: Walk, turns: Any, table: Any, arguments: Sequence[Any]) -> None:
        """As `Walk.start`."""
        found = [one.block if isinstance(one, Pointer) else one for one in (table, *arguments)]
        if isinstance(turns, Stretches):
            self.say(Turns(turns.name, turns.first, turns.limits, walk, found))
        else:
            self.stretches[-1].walk, self.stretches[-1].arguments = walk, found

    def run(self, function: Any, arguments: Sequence[Any]) -> Any:
        """The recipe's or a piece's function, with stand-ins for everything it calls."""
        space = {name: self._stand_in(name, item) for name, item in function.__globals__.items()}
        space["range"] = lambda *bounds: iter([Number("at", self.example)])
        return FunctionType(function.__code__, space)(*arguments)

    def _stand_in(self, name: str, item: Any) -> Any:
        if name in ("torch", "aten"):
            return _Torch(self) if name == "torch" else _Aten(self)
        if isinstance(item, Quick):
            return _Launcher(self, item)
        if item is allocator:
            return lambda device: self.fresh
        walk = getattr(item, "__self__", None)
        if isinstance(walk, Walk):
            return lambda turns, device, stream, low, table, *rest: self.start(walk, turns, table, rest)
        known = {rowcopy.take_rows: self.take, rowcopy.put_rows: self.put, rowcopy.step_rows: self.step_rows}
        known |= {
            fresh_behind: self.fresh_behind,
            totals.column_sums: self.sums,
            bag_sum: self.bags,
            segment_sum: self.segments,
        }
        if callable(item) and item in known:
            return known[item]
        if isinstance(item, FunctionType) and item.__code__.co_filename.startswith("weft_"):
            return lambda *arguments: self.run(item, arguments)
        if isinstance(item, Tensor):
            fits = item.device == self.device and item.is_contiguous()
            return self.constant(item) if fits else _Unknown("a constant elsewhere, or strided")
        return _Unknown(getattr(item, "__name__", name)) if callable(item) else item


def _width(rows: Block) -> int:
    """Numbers of a row, which are the same in every call."""
    found = prod(rows.shape[1:])
    if not isinstance(found, int):
        raise NotLowered("rows of different widths")
    return found


class _Torch:
    def __init__(self, recorder: Recorder) -> None:
        self.mm: Callable[..., Block] = recorder.product
        self.zeros_like = recorder.zeros_like
        self.contiguous_format, self.cat = torch.contiguous_format, recorder.join

    @staticmethod
    def t(block: Block) -> Block:
        return block.t()

    @staticmethod
    def add(one: Block, other: Block) -> Any:
        return one + other

    @staticmethod
    def select(block: Block, dim: int, at: int) -> Block:
        return block.select(dim, at)

    @staticmethod
    def index_select(block: Block, dim: int, index: Block, out: Block | None = None) -> Block:
        return block.index_select(dim, index) if out is None else block.recorder.take(block, index, out=out)

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if not isinstance(found, torch.dtype):
            raise NotLowered(f"torch.{name}")
        return found


class _Aten:
    def __init__(self, recorder: Recorder) -> None:
        self.zeros = SimpleNamespace(default=recorder.zeros)
        self.new_zeros, self.scalar_tensor = (SimpleNamespace(default=one) for one in (recorder.new_zeros, recorder.scalar))
        self.lift_fresh_copy = SimpleNamespace(default=lambda block: block)  # nothing is written over it
        self.expand = SimpleNamespace(default=Block.expand)
        self.embedding = SimpleNamespace(default=recorder.look_up)
        self.embedding_dense_backward = SimpleNamespace(default=recorder.later.embedding_dense_backward)

    def __getattr__(self, name: str) -> Any:
        raise NotLowered(f"aten.{name}")


class _Launcher:
    def __init__(self, recorder: Recorder, quick: Quick) -> None:
        self.recorder, self.quick = recorder, quick

    def go(self, *arguments: Any) -> None:
        many = self.quick.numbers
        self.recorder.launch(self.quick, arguments[:many], arguments[many:])


class _Unknown:
    """Something that is not lowered, if it is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotLowered(self.name)

    def __getattr__(self, name: str) -> Any:
        raise NotLowered(f"{self.name}.{name}")


class Stretches:
    """Stands for a list of stretches, in a loop over both kinds: of kernels, and of steps that run apart."""

    def __init__(self, recorder: Recorder, name: str, number: int, backward: bool, first: int, limits: Limits) -> None:
        self.recorder, self.name, self.first, self.limits = recorder, name, first, limits

    def __iter__(self) -> Iterator[Any]:
        recorder = self.recorder
        begin, end = Number("begin", recorder.example), Number("end", recorder.example)
        turns = Turns(self.name, self.first, self.limits, None, [])  # type: ignore[arg-type]  # the walk is told in the loop
        recorder.stretches.append(turns)
        yield begin, end, "kernels"
        yield begin, end, "apart"
        recorder.stretches.pop()
        recorder.say(turns)


class Steps:
    """Stands for the rows of each step."""

    def __init__(self, recorder: Recorder, name: str, number: int) -> None:
        self.recorder = recorder

    def __getitem__(self, at: Any) -> tuple[Number, Number]:
        return Number("lo", self.recorder.example), Number("hi", self.recorder.example)


class PerStep:
    """Stands for one number for each step."""

    def __init__(self, recorder: Recorder, name: str, number: int) -> None:
        self.recorder, self.name = recorder, name

    def __getitem__(self, at: Any) -> Number:
        return Number(f"{self.name}[at]", self.recorder.example)
