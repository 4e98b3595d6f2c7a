"""Compositions: a graph of blocks, wired by hand."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from weft.blocks.block import Block, convert_to_block
from weft.blocks.emit import Emitter, Value, Writing
from weft.blocks.faults import WiringError
from weft.blocks.inference import inferring, set_type, wake
from weft.blocks.types import ResultType, TupleType, VoidType
from weft.errors import TypeMismatch


@dataclass(frozen=True)
class Item:
    """`block[key]`: one item of a tuple that a block gives."""

    block: Block
    key: Any

    def __iter__(self) -> Iterator[Any]:
        raise TypeMismatch(f"{self.block._path()}[{self.key!r}]: an item of a block cannot be looped over")


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.open: list[Composition] = []


_scopes = _Scopes()


def current(wanting: str) -> Composition:
    """The composition whose scope is open."""
    if not _scopes.open:
        raise WiringError(f"{wanting}: only inside `with composition.scope():`")
    return _scopes.open[-1]


class _Placeholder(Block):
    """The input or output of a composition."""

    def __init__(self, side: str) -> None:
        super().__init__(name=side)
        self.__dict__["_constructed"] = ((), {})
        self.__dict__["_constructor_name"] = "Placeholder"


Wire = Block | Item


class Composition(Block):
    """A graph of blocks. Inside `scope()` blocks say what they read; `output` says what the whole gives.

    >>> import torch, weft.blocks as wb
    >>> both = wb.Composition()
    >>> with both.scope():
    ...     double = wb.Function(lambda x: 2 * x).reads(both.input)
    ...     _ = both.output.reads(wb.Function(torch.add).reads(both.input, double))
    >>> (wb.Scalar() >> both).eval_one(3)
    tensor(9.)
    """

    def __init__(self, children: Any = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.__dict__["input"], self.__dict__["output"] = _Placeholder("input"), _Placeholder("output")
        for end in (self.input, self.output):
            end._parents.append(weakref.ref(self))
        self._wires: dict[Block, tuple[Wire, ...]] = {}
        self._single: set[Block] = set()
        for child in children or ():
            self._adopt(child)

    input: Block
    output: Block

    @contextmanager
    def scope(self) -> Iterator[Composition]:
        """Inside, `block.reads(...)` wires blocks of this composition."""
        _scopes.open.append(self)
        try:
            yield self
        finally:
            _scopes.open.pop()

    def connect(self, a: Any, b: Block) -> None:
        """Let `b` read `a`: a block, `block[i]`, or a tuple or list of these, which `b` gets as a tuple."""
        before = self._subblocks, dict(self._wires), set(self._single)
        try:
            with inferring():
                self._connect(a, b)
        except BaseException:
            for part in self._subblocks[len(before[0]) :]:
                part._parents = [holder for holder in part._parents if holder() is not self]
            self._subblocks, self._wires, self._single = before
            raise

    def _connect(self, a: Any, b: Block) -> None:
        several = isinstance(a, tuple | list)
        wires = tuple(self._source(one) for one in (a if several else (a,)))
        if not isinstance(b, Block):
            raise TypeMismatch(f"{self._path()}: connect: expected a block that reads, got {b!r}")
        if b is self.input:
            raise ValueError(f"{self._path()}: the input of a composition cannot read")
        if isinstance(b, _Placeholder) and b is not self.output:
            raise ValueError(f"{self._path()}: {b._path()} belongs to another composition")
        if b in self._wires:
            raise ValueError(f"{self._path()}: the input of {b!r} is already connected")
        self._add(b)
        self._wires[b] = wires
        if not several:
            self._single.add(b)
        wake(self)
        self._changes += 1

    def _source(self, one: Any) -> Wire:
        block = one.block if isinstance(one, Item) else convert_to_block(one)
        if block is self.output:
            raise ValueError(f"{self._path()}: the output of a composition cannot be read inside it")
        if isinstance(block, _Placeholder) and block is not self.input:
            raise ValueError(f"{self._path()}: {block._path()} belongs to another composition")
        self._add(block)
        return Item(block, one.key) if isinstance(one, Item) else block

    def _add(self, block: Block) -> None:
        if not isinstance(block, _Placeholder) and block not in self._subblocks:
            self._adopt(block)

    def _parts(self) -> Mapping[str, nn.Module]:
        return dict(self._named())

    def _update(self) -> None:
        pairs: tuple[tuple[Block, str, Block, str], ...] = (
            (self, "input", self.input, "output"),
            (self, "output", self.output, "input"),
        )
        for one, side, other, its in pairs:
            for left, a, right, b in ((one, side, other, its), (other, its, one, side)):
                if left._types[a] is not None:
                    set_type(right, b, left._types[a])
        for reader, wires in self._wires.items():
            self._follow(reader, wires)
        if self._subblocks and self.output in self._wires and self._needs_no_input():
            set_type(self, "input", VoidType())

    def _needs_no_input(self) -> bool:
        used = any(_block(wire) is self.input for wires in self._wires.values() for wire in wires)
        return not used and all(isinstance(part.input_type, VoidType) or part in self._wires for part in self._subblocks)

    def _follow(self, reader: Block, wires: tuple[Wire, ...]) -> None:
        """Types along the wires into one block, in both directions."""
        types = [self._type_of(wire) for wire in wires]
        single = reader in self._single
        if None not in types:
            set_type(reader, "input", types[0] if single else TupleType(*types))
        known = reader.input_type
        if known is None:
            return
        if single:
            wanted = [known]
        elif isinstance(known, TupleType) and len(known) == len(wires):
            wanted = list(known)
        elif isinstance(known, TupleType) or not types or None in types:
            raise reader._mismatch(f"it takes {known!r}, and reads {len(wires)} blocks")
        else:
            return
        for wire, type in zip(wires, wanted, strict=True):
            if isinstance(wire, Block):
                set_type(wire, "output", type)

    def _type_of(self, wire: Wire) -> ResultType | None:
        block = _block(wire)
        type = block.output_type
        if isinstance(wire, Block) or type is None:
            return type
        if not isinstance(type, TupleType):
            raise block._mismatch(f"[{wire.key!r}] needs a TupleType, got {type!r}; use GetItem")
        key = wire.block._item_position(wire.key) if hasattr(wire.block, "_item_position") else wire.key
        if isinstance(key, bool) or not isinstance(key, int) or not -len(type) <= key < len(type):
            raise block._mismatch(f"[{wire.key!r}] is not an item of {type!r}")
        item: ResultType = type[key]
        return item

    def _check_whole(self) -> None:
        self._order()
        if self.output not in self._wires and not isinstance(self.output_type, VoidType):
            raise self._mismatch("its output reads nothing; wire it, or set_output_type(VoidType())")

    def _passed_on(self) -> Iterable[Block]:
        return [part for part in self._subblocks if part in self._single and self._wires[part] == (self.input,)]

    def _readers(self) -> dict[Block, list[Block]]:
        """The blocks that read each block."""
        found: dict[Block, list[Block]] = {}
        for reader, wires in self._wires.items():
            for source in {_block(wire) for wire in wires}:
                found.setdefault(source, []).append(reader)
        return found

    def _order(self) -> list[Block]:
        """Parts so that each comes after those it reads."""
        counts = {part: len({_block(w) for w in self._wires.get(part, ())} - {self.input}) for part in self._subblocks}
        readers = self._readers()
        ready = [part for part in reversed(self._subblocks) if counts[part] == 0]
        order: list[Block] = []
        while ready:
            part = ready.pop()
            order.append(part)
            for reader in readers.get(part, ()):
                if reader in counts:
                    counts[reader] -= 1
                    if counts[reader] == 0:
                        ready.append(reader)
        if len(order) < len(self._subblocks):
            raise WiringError(f"{self._path()}: Composition cannot have cycles.")
        return order

    def _check_wired(self) -> None:
        """Complain of what nothing reads, and of what reads nothing."""
        readers = self._readers()
        for part in self._subblocks:
            if part not in self._wires and not isinstance(part._known("input"), VoidType):
                raise part._mismatch("it reads nothing; wire it with reads or connect")
            if part not in readers and not isinstance(part._known("output"), VoidType):
                raise self._mismatch(f"children have unused outputs: {part!r}")

    def _emit(self, e: Emitter, x: Value) -> Writing:
        self._check_wired()
        values: dict[Block, Value] = {self.input: x}
        uses = Counter(_block(wire) for wires in self._wires.values() for wire in wires)

        def read(reader: Block) -> Value:
            wires = self._wires.get(reader)
            if wires is None:
                return None
            found = tuple(self._item(e, wire, values[_block(wire)]) for wire in wires)
            return found[0] if reader in self._single else merged(e, found, reader._known("input"))

        for part in self._order():
            y = yield part, read(part)
            values[part] = e.settled(y, part._known("output")) if uses[part] > 1 else y
        return read(self.output)

    def _item(self, e: Emitter, wire: Wire, value: Value) -> Value:
        if isinstance(wire, Block):
            return value
        key = wire.block._item_position(wire.key) if hasattr(wire.block, "_item_position") else wire.key
        return value[key]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for end in (self.input, self.output):
            end.__dict__.setdefault("_parents", []).append(weakref.ref(self))


def merged(e: Emitter, parts: tuple[Value, ...], type: ResultType) -> Value:
    """Values side by side; Python objects side by side are one Python object, a tuple."""
    if isinstance(type, TupleType):
        return parts
    return e.let(f"({''.join(f'{part}, ' for part in parts)})", parts[0].place if parts else "''")


def _block(wire: Wire) -> Block:
    return wire.block if isinstance(wire, Item) else wire
