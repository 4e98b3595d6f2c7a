"""From a root block to the code that records its examples, kept with the block."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any
from zlib import crc32

import torch

from weft.blocks.block import Block
from weft.blocks.emit import DEEPEST, Emitter, Name, Value
from weft.blocks.faults import WiringError
from weft.blocks.given import Given
from weft.blocks.inference import inferring, set_type
from weft.blocks.kinds import Constant, Kind, Kinds, spec_of
from weft.blocks.types import (
    BroadcastSequenceType,
    PyObjectType,
    ResultType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
)
from weft.errors import TypeMismatch, warn
from weft.graph.calls import Library
from weft.graph.placed import without_numbers

RECORDING = "<recording of "
"""How the names begin under which the code of blocks is compiled."""


@dataclass(eq=False)
class Code:
    """What is known of a root block: the source that records its examples and the kinds of calls that it makes."""

    source: str
    compiled: CodeType
    objects: dict[str, Any]
    kinds: Kinds
    static: int
    """How many kinds there are that depend on no length."""
    type: ResultType
    metrics: dict[str, TensorType]
    value_dependent: Block | None
    blocks: list[Block]
    reached: list[Block]
    units: dict[str, Block]
    """The blocks whose work the functions of the source do, by the name of the function."""
    stamp: int
    key: int
    """Equal for equal networks, in any process: programs of one run in the other."""
    libraries: dict[Hashable, Library] = field(default_factory=dict)
    spare: list[Any] = field(default_factory=list)
    """Builders that are not in use."""

    def library(self, device: str, further: Hashable, dedupe: bool) -> Library:
        """Call types on a device, numbered as the kinds are."""
        key = (device, further, dedupe)
        found = self.libraries.get(key)
        if found is None:
            found = self.libraries[key] = Library(lambda number: self.kinds.known[number].call_type(device, dedupe))
        for number in range(len(found.types), len(self.kinds.known)):
            found.number(number)
        return found

    def length_kind(self, name: str, lengths: tuple[int, ...]) -> int:
        """The number of a kind that depends on lengths."""
        key, make = self.objects[name](*lengths)
        return self.kinds.number(key, make)

    def value_kind(self, type: TensorType) -> int:
        """The number of the kind of call that brings in a value computed before."""
        spec = spec_of(type)
        kind = Kind("value", lambda row: [row.clone()], feeds=(spec,), outputs=(spec,), weight=0)
        return self.kinds.number(("value", type), lambda: kind)


def code_of(root: Block, traced: bool = False) -> Code:
    """The code of a root block, written when first needed and again when a part of it has changed."""
    name = "traced" if traced else "code"
    kept: Code | None = root._kept.get(name)
    if kept is None or kept.stamp != _stamp(kept.reached):
        kept = root._kept[name] = _write(root, traced)
    return kept


def _stamp(reached: list[Block]) -> int:
    return sum(block._changes for block in reached)


def _write(root: Block, traced: bool) -> Code:
    reached = [module for _, module in root._reach() if isinstance(module, Block)]
    for block in reached:
        block._check_whole()
    _check_ends(reached)
    if root.input_type is None:
        _assume_objects(root)
    for block in reached:
        block._guess()
    for block in sorted(reached, key=lambda block: type(block).__name__ == "_Pipe"):
        for side in ("input", "output"):
            block._known(side)
    e = Emitter(_shared(reached), _waiting(reached), traced)
    with e.under("def MAIN(x):"):
        e.line("if 0: yield")
        x = given(e, root._known("input"))
        flatten(e, e.through_function(root, x), root._known("output"))
    while e.pending:
        e.write(e.pending.pop())
    source = "\n".join(e.lines)
    compiled = compile(source, f"{RECORDING}{root.name}>", "exec")
    return Code(
        source,
        compiled,
        e.objects,
        e.kinds,
        len(e.kinds.known),
        root._known("output"),
        e.metrics,
        e.value_dependent,
        e.blocks,
        reached,
        {name: block for block, name in e.units.items()},
        _stamp(reached),
        crc32(repr((source, [(each.name, each.args, each.feeds, each.outputs, each.many) for each in e.kinds.known])).encode()),
    )


def _assume_objects(root: Block) -> None:
    """What nothing says the type of takes Python objects, if it can."""
    try:
        with inferring():
            set_type(root, "input", PyObjectType())
    except TypeMismatch:
        root._known("input")


def _check_ends(reached: list[Block]) -> None:
    """A block that calls itself must do so on something else than its own input."""
    seen: set[Block] = set()
    for start in reached:
        path: dict[Block, None] = {}
        pending: list[tuple[Block, bool]] = [(start, False)]
        while pending:
            block, done = pending.pop()
            if done:
                del path[block]
                seen.add(block)
            elif block in path:
                raise WiringError(f"{block._path()}: it calls itself on the input that it was given, without end")
            elif block not in seen:
                path[block] = None
                pending.append((block, True))
                pending += [(part, False) for part in block._passed_on()]


def _shared(reached: list[Block]) -> set[Block]:
    """Blocks with parts of their own that are used in more than one place."""
    uses: dict[Block, int] = {}
    for block in reached:
        for part in block.subblocks:
            uses[part] = uses.get(part, 0) + 1
    return {block for block, count in uses.items() if count > 1 and block.subblocks}


def _waiting(reached: list[Block]) -> set[Block]:
    """Blocks in which a value must be known before going on."""
    holders: dict[Block, list[Block]] = {}
    for block in reached:
        for part in block.subblocks:
            holders.setdefault(part, []).append(block)
    found: set[Block] = set()
    pending = [block for block in reached if block._looks_at_values()]
    while pending:
        block = pending.pop()
        if block not in found:
            found.add(block)
            pending += holders.get(block, ())
    return found


def given(e: Emitter, type: ResultType) -> Value:
    """The example as a value of the root's input type."""
    if isinstance(type, VoidType):
        return None
    if isinstance(type, PyObjectType):
        return e.placed("x", "''")
    return _taken(e, e.let(f"{e.object(Given(type))}(x)"), type)


def _taken(e: Emitter, name: str, type: ResultType) -> Value:
    """A converted example, item by item."""
    if isinstance(type, TensorType):
        return Constant(name, type, spec_of(type))
    if isinstance(type, TupleType):
        return tuple(_taken(e, e.let(f"{name}[{place}]"), item) for place, item in enumerate(type))
    if isinstance(type, SequenceType):
        out, item = e.let("[]"), e.fresh()
        with e.under(f"for {item} in {name}:"):
            e.line(f"{out}.append({e.pack(_taken(e, item, type.element_type), type.element_type)})")
        return out
    return None if isinstance(type, VoidType) else Name(name)


@dataclass
class _Places:
    tensors: int = 0
    sequences: int = 0
    objects: int = 0


Inner = list[tuple[str, SequenceType, _Places]]


def flatten(e: Emitter, value: Value, type: ResultType) -> None:
    """Note what the example gives: references, lengths and Python objects, each kind of leaf in a list of its own.

    Sequences that are nested too deep for one loop in another are put in a list and looped over afterwards: the order within
    each kind of leaf is the same.
    """
    first, inner = len(e.lines), Inner()
    _flatten(e, value, type, _Places(), inner)
    while inner:
        name, sequence, places = inner.pop()
        e.lines.insert(first, f"{'    ' * e.indent}{name} = []")
        item = e.fresh()
        with e.under(f"for {item} in {name}:"):
            _flatten(e, Name(item), sequence, places, inner)


def _flatten(e: Emitter, value: Value, type: ResultType, places: _Places, inner: Inner) -> None:
    if isinstance(type, TupleType):
        for part, item in zip(value, type, strict=True):
            _flatten(e, part, item, places, inner)
    elif isinstance(type, BroadcastSequenceType):
        _flatten(e, value, type.element_type, places, inner)
    elif isinstance(type, SequenceType) and e.indent > DEEPEST:
        inner.append((e.fresh("q"), type, replace(places)))
        e.line(f"{inner[-1][0]}.append({value})")
        tensors, sequences, objects = leaves_of(type)
        places.tensors += len(tensors)
        places.sequences += sequences
        places.objects += objects
    elif isinstance(type, SequenceType):
        e.line(f"N{places.sequences}(len({value}))")
        places.sequences += 1
        with e.loop(value, type) as item:
            e.line("pass")
            _flatten(e, item, type.element_type, places, inner)
    elif isinstance(type, PyObjectType):
        e.line(f"O{places.objects}({value})")
        places.objects += 1
    elif isinstance(type, TensorType):
        e.line(f"W{places.tensors}({f'{value}[0]' if type.ragged else e.reference(value)})")
        places.tensors += 1


def leaves_of(type: ResultType) -> tuple[list[TensorType], int, int]:
    """The tensor leaves of a result, and how many sequences and Python objects there are."""
    tensors: list[TensorType] = []
    counts = [0, 0]
    pending = [type]
    while pending:
        each = pending.pop()
        if isinstance(each, TupleType):
            pending.extend(reversed(each))
        elif isinstance(each, SequenceType):
            counts[0] += not isinstance(each, BroadcastSequenceType)
            pending.append(each.element_type)
        elif isinstance(each, TensorType):
            tensors.append(each)
        elif isinstance(each, PyObjectType):
            counts[1] += 1
    return tensors, counts[0], counts[1]


def surroundings(code: Code) -> tuple[str, Hashable]:
    """Where the parameters are, and what else decides how calls are computed."""
    devices: dict[str, str] = {}
    modes: list[bool] = []
    for block in code.reached:
        if (block._forward_hooks or block._forward_pre_hooks) and block is not code.reached[0]:
            _warn_of_hooks(block)
        for module in block._parts().values():
            if not isinstance(module, Block):
                modes += [part.training for part in module.modules()]
                for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                    devices.setdefault(str(tensor.device), f"{block._path()}: {name}")
        for name, own in (*block._parameters.items(), *block._buffers.items()):
            if own is not None:
                devices.setdefault(str(own.device), f"{block._path()}: {name}")
    if len(devices) > 1:
        (one, first), (two, second) = list(devices.items())[:2]
        raise TypeMismatch(f"all parameters must be on one device: {first} is on {one}, {second} is on {two}")
    device = next(iter(devices), "cpu")
    kind = device.split(":")[0]
    if kind == "meta":
        raise without_numbers(f"{devices[device]} is on meta")
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return device, (cast, tuple(modes))


def _warn_of_hooks(block: Block) -> None:
    if not block._kept.get("warned of hooks"):
        block._kept["warned of hooks"] = True
        text = f"{block._path()}: hooks of a block inside another never run; put them on a module in it, or on what is called"
        warn(text, UserWarning)
