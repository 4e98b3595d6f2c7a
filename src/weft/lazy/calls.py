"""Recording one call: its signature is looked up, a few integers are appended, values of known kinds are returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from weft.errors import TraceError
from weft.graph.capture import holds_more
from weft.lazy.blame import Site
from weft.lazy.changes import version_of
from weft.lazy.constants import Constant
from weft.lazy.identity import Frozen, closed_over, frozen, identity
from weft.lazy.keeping import refuse_reading
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.nests import build
from weft.lazy.ops import Arg, Captured, Closing, Feed, NeedsRow, NeedsValue, Op, Window, holes_filled
from weft.lazy.quick import remember, short
from weft.lazy.shaped import BY_ALL, shaped
from weft.lazy.state import Entry
from weft.lazy.tape import Tape, active
from weft.lazy.value import MISS, Value
from weft.lazy.varying import FEW, ROOTS, with_fed_numbers

FEED, CAPTURED, BY_IDENTITY = "feed", "captured", "by identity"
ATOMS = frozenset(
    (
        bool,
        int,
        str,
        bytes,
        complex,
        type(None),
        type(...),
        torch.dtype,
        torch.device,
        torch.Size,
        torch.memory_format,
        torch.layout,
    )
)


def record(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, name: Any = None) -> Any:
    """Record a call of a torch function at a place in the user's code. `name` is the key of the operators' short cut."""
    if tape.ended is not None:
        return _with_tensors(func, args, kwargs)
    if active.tape is not tape:
        raise TraceError("a Value is used in another thread, or inside another recording, than the one that made it")
    if func in BY_ALL:
        found = shaped(tape, func, args, kwargs)
        if found is not MISS:
            return found
    written = args
    func, args, kwargs = with_fed_numbers(tape, func, args, kwargs, frame)
    head, given = ((func, *kwargs), (*args, *kwargs.values())) if kwargs else (func, args)
    found = short(tape, head, given, frame)
    if found is not MISS:
        return found
    before = len(tape.fed)
    key, refs, feeds, place = looked_up(tape, [func], args, kwargs, frame)
    if tape.has_shaped and is_of_many_sizes(tape, func, refs, feeds, place):
        del tape.fed[before:]
        return _with_tensors(func, args, kwargs)
    entry = tape.calls.get((*key, *place))
    if entry is None:
        try:
            entry = new_entry(tape, func, args, kwargs, key, place, tape.site(frame), _name(func))
        except NeedsValue:
            del tape.fed[before:]
            refuse_reading(tape, _name(func), (*args, *kwargs.values()))
            tape.has_shaped = True
            return _with_tensors(func, args, kwargs)
        _, refs, feeds, _ = looked_up(tape, [func], args, kwargs, frame)  # what is pending may have run to find it
    if not entry.op.outs and not refs:  # what is told of real tensors alone, numbers among it, is asked for anew in every call
        del tape.fed[before:]
        return _with_tensors(func, args, kwargs)
    remember(tape, head, given, frame, entry)
    is_fed = args is not written and func not in ROOTS
    if name is not None and entry.single is not None and not kwargs and (is_fed or not feeds):
        _remember(tape, name, written, entry, frame, is_fed)
    return finish(tape, entry, refs, feeds)


def looked_up(
    tape: Tape, key: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
) -> tuple[list[Any], list[int], list[Any], tuple[int, int]]:
    """The key of a call, which begins with what is called; the references and data in it; and the place in the code."""
    refs: list[int] = []
    feeds: list[Any] = []
    walk(tape, args, key, refs, feeds)
    if kwargs:
        walk_keywords(tape, kwargs, key, refs, feeds)
    return key, refs, feeds, (id(frame.f_code), frame.f_lasti) if tape.sites else (0, 0)


def is_of_many_sizes(tape: Tape, head: Any, refs: list[int], feeds: list[Any], place: tuple[int, int]) -> bool:
    """Whether such calls have been fed data of many sizes, and nothing has to be awaited to compute this one now.

    What a mask or `nonzero` gives has another size in every example: recorded, each would be a kind of call by itself.
    """
    sizes = tuple([row.shape for row in feeds if isinstance(row, Tensor)])
    if not sizes:
        return False
    seen = tape.world.sizes.setdefault((head, *place), set())
    if len(seen) <= FEW:
        seen.add(sizes)
    return len(seen) > FEW and all(ref in tape.results for ref in refs)


def finish(tape: Tape, entry: Entry, refs: list[int], feeds: list[Any]) -> Any:
    """Append the call and return what it gives."""
    if entry.single is not None:
        return tape.make(tape, tape.emitted(entry.number, refs, feeds), entry.single)
    op = entry.op
    if not op.outs:
        return build(op.structure, iter(op.constants))
    ref = tape.emitted(entry.number, refs, feeds)
    values = [tape.make(tape, ref + output, kind) for output, kind in enumerate(op.outs)]
    return build(op.structure, holes_filled(op, values))


def new_entry(
    tape: Tape,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    key: Sequence[Any],
    place: tuple[int, int],
    site: Site | None,
    name: str,
    owners: Sequence[object] = (),
    is_cell: bool = False,
) -> Entry:
    """The first call of this signature at this place."""
    signature = (*key, tape.setting, tape.device)
    is_shared = not owners and CAPTURED not in key and BY_IDENTITY not in key
    ops = _shared if is_shared and tape.ambient_autocast[0] is False else tape.world.ops
    if is_shared:
        signature = (*signature, torch.get_default_dtype())
    op, form = ops.get(signature), _form(signature)
    if op is None:
        if signature in tape.world.valued:
            raise NeedsValue
        found = Found()
        template = (tuple(found.template(tape, part) for part in args), {k: found.template(tape, v) for k, v in kwargs.items()})

        def made(row: Sequence[Tensor] | None = None) -> Op:
            everyone, like = (*owners, *found.owners), tape.world.forms.get(form)
            with tape.pause(), _ambient_autocast(tape):
                return Op(
                    name, func, template, found.args, found.feeds, tape.setting, everyone, tape.device, is_cell, row, like
                )

        try:
            op = made()
        except NeedsRow:
            row = () if tape.keeper or tape.is_portable else [realised(item) for item in found.given]
            op = ops.get(signature) or made(row)  # another example may have come here while this one waited
        except NeedsValue:
            tape.world.valued.add(signature)
            raise
        if len(_shared) > MOST_SHARED:
            _shared.clear()
        op = ops.setdefault(signature, op)
        tape.world.rely_on(op)
    tape.world.forms.setdefault(form, op)
    entry = tape.calls[(*key, *place)] = Entry(tape.state.fine(op, site), op)
    return entry


def _form(signature: Sequence[Any]) -> tuple[Any, ...]:
    """The same for tensors of all sizes."""
    return tuple([(len(part.shape), part.dtype) if part.__class__ is Kind else part for part in signature])


MOST_SHARED = 8192
_shared: dict[Any, Op] = {}
"""Operations that depend on nothing but their arguments, for all models."""


def _ambient_autocast(tape: Tape) -> Any:
    enabled, dtype = tape.ambient_autocast
    return torch.autocast(tape.autocast_kind, dtype=dtype, enabled=enabled)


def walk(tape: Tape, nest: Any, key: list[Any], refs: list[int], feeds: list[Any]) -> None:
    """The signature of these arguments; references and fed data on the way."""
    for item in nest:
        cls = item.__class__
        if cls is Value:
            if item._tape is not tape:
                feed(tape, _elsewhere(item), key, feeds)
                continue
            if tape.watchful:
                item = tape.views.current(tape, item)
            key.append(item._kind)
            refs.append(item._ref)
        elif cls in ATOMS:
            key += (cls, item)
        elif cls is float:
            key += (cls, item if item == item and item != 0 else repr(item))
        elif cls is tuple or cls is list:
            key += (cls, len(item))
            walk(tape, item, key, refs, feeds)
        elif cls is slice:
            key.append(slice)
            walk(tape, (item.start, item.stop, item.step), key, refs, feeds)
        elif isinstance(item, Tensor | Value):
            _walk_tensor(tape, item, key, refs, feeds)
        elif isinstance(item, dict):
            walk_keywords(tape, item, key, refs, feeds)
        else:
            _walk_object(tape, item, key, refs, feeds)


def walk_keywords(tape: Tape, nest: dict[Any, Any], key: list[Any], refs: list[int], feeds: list[Any]) -> None:
    key += (dict, tuple(nest))
    walk(tape, nest.values(), key, refs, feeds)


def _walk_tensor(tape: Tape, item: Any, key: list[Any], refs: list[int], feeds: list[Any]) -> None:
    if isinstance(item, Constant):
        key += (FEED, item._kind)
        feeds.append(item._known)
    elif isinstance(item, Value):
        walk(tape, (item._plain(),), key, refs, feeds)
    else:
        with torch._C.DisableTorchFunction():  # our own mode would see every attribute that is read here
            place = tape.state.place_of(item)
            if place is None:
                feed(tape, item, key, feeds)
            else:
                key += (CAPTURED, id(place[0]), place[1], item.shape, item.dtype)


def feed(tape: Tape, tensor: Tensor, key: list[Any], feeds: list[Any]) -> None:
    if tensor.device != tape.place:
        raise TraceError(f"a tensor on {tensor.device} in a batched call whose model is on {tape.device}; move one of them")
    key += (FEED, kind_of(tensor.shape, tensor.dtype))
    feeds.append(tensor)
    if tape.changes.arrays:
        tape.changes.feeds(tape, tensor)
    tape.fed.append((tensor, version_of(tensor)))


def _walk_object(tape: Tape, item: Any, key: list[Any], refs: list[int], feeds: list[Any]) -> None:
    if isinstance(item, tuple) and hasattr(item, "_make"):
        if isinstance(item, PackedSequence):
            raise TraceError(
                "a PackedSequence as an argument of a cell: how long its sequences are would be numbers in a tensor, and no "
                "shape may depend on those; call the recurrent layer outside of the cell, or pass a tensor and pack it inside"
            )
        key += (item.__class__, len(item))
        walk(tape, item, key, refs, feeds)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        key.append(item.__class__)
        walk(tape, [getattr(item, f.name) for f in dataclasses.fields(item)], key, refs, feeds)
    elif isinstance(item, nn.Module):
        key += (BY_IDENTITY, id(item), item.training)
    elif isinstance(item, FunctionType):
        alike = identity(item)
        key += (BY_IDENTITY, alike)
        walk(tape, () if alike is item else closed_over(item), key, refs, feeds)
    else:
        try:
            hash(item)
        except TypeError:
            if isinstance(item, np.ndarray):
                raise TraceError(
                    f"an array of numpy of shape {list(item.shape)} beside a Value; make a tensor of it, with "
                    "torch.from_numpy, or take the numbers with v.detach().numpy()"
                ) from None
            raise TraceError(
                f"an argument of type {type(item).__name__} is no tensor and not hashable; pass tensors, or constants that hash"
            ) from None
        key += (item.__class__, item)


class Found:
    """What a call's arguments hold, in the order in which `walk` meets it."""

    def __init__(self) -> None:
        self.args: list[Kind] = []
        self.feeds: list[Kind] = []
        self.owners: list[object] = []
        self._given: tuple[list[Any], list[Any]] = [], []

    @property
    def given(self) -> list[Any]:
        """The arguments themselves, then what is fed."""
        return [*self._given[0], *self._given[1]]

    def template(self, tape: Tape, item: Any) -> Any:
        cls = item.__class__
        if isinstance(item, Value):
            if isinstance(item, Constant) or (cls is Value and item._tape is not tape):
                return self._fed(item, item._kind)
            self.args.append(item._kind)
            self._given[0].append(item)
            return Arg(len(self.args) - 1)
        if isinstance(item, Tensor):
            place = tape.state.place_of(item)
            if place is None:
                return self._fed(item, kind_of(item.shape, item.dtype))
            self.owners.append(Window(place))
            return Captured(place)
        if cls is tuple or cls is list:
            return cls(self.template(tape, part) for part in item)
        if cls is slice:
            return slice(*(self.template(tape, part) for part in (item.start, item.stop, item.step)))
        if isinstance(item, dict):
            return {name: self.template(tape, part) for name, part in item.items()}
        if isinstance(item, tuple) and hasattr(item, "_make"):
            return cls._make(self.template(tape, part) for part in item)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            fields = {f.name: self.template(tape, getattr(item, f.name)) for f in dataclasses.fields(item)}
            return dataclasses.replace(item, **fields)
        if isinstance(item, FunctionType) and item is not identity(item):
            values = closed_over(item)
            item = Frozen(item) if values else frozen(item)
            self.owners.append(item)
            return Closing(item, self.template(tape, values)) if values else item
        if holds_more(item):
            self.owners.append(item)
        return item

    def _fed(self, item: Any, kind: Kind) -> Feed:
        self.feeds.append(kind)
        self._given[1].append(item)
        return Feed(len(self.feeds) - 1)


def _remember(tape: Tape, name: Any, args: tuple[Any, ...], entry: Entry, frame: FrameType, is_fed: bool) -> None:
    """Let the operators find this signature without building it; a number that is fed counts by its class alone."""
    parts: list[Any] = [name]
    for item in args:
        if item.__class__ is Value:
            parts.append(item._kind)
        elif is_fed:
            parts.append(item.__class__)
        elif (item.__class__ is int or item.__class__ is float) and item == item and item != 0:
            parts += (item, item.__class__)
        else:
            return
    assert entry.single is not None
    tape.tables.fast[(*parts, id(frame.f_code), frame.f_lasti)] = (entry.number, entry.single)


def _elsewhere(value: Value) -> Tensor:
    """A value of a recording that is over is a tensor like any other."""
    return value._tape.tensor(value)


def _with_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call with the tensors that the values stand for: what is pending runs first."""
    leaves: list[Value] = []
    _values((args, kwargs), leaves)
    tape = leaves[0]._tape if leaves else None
    if tape is None or tape.is_over():
        return _called(func, *realised((args, kwargs)))
    reads = func is Tensor.__getitem__ and isinstance(args[1], Tensor)
    given, keywords = realised((args, kwargs), tape.part if reads else tape.copy)
    with tape.pause(), torch._C.DisableTorchFunction():
        return func(*given, **keywords)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # what is done with tensors here is not the compiled code's own
def _called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def realised(nest: Any, tensor: Callable[[Value], Tensor] = lambda value: value._tape.tensor(value)) -> Any:
    """Tensors in the place of values."""
    cls = nest.__class__
    if isinstance(nest, Value):
        return tensor(nest)
    if cls is tuple or cls is list:
        return cls(realised(part, tensor) for part in nest)
    if cls is dict:
        return {key: realised(part, tensor) for key, part in nest.items()}
    if cls is slice:
        return slice(*(realised(part, tensor) for part in (nest.start, nest.stop, nest.step)))
    return nest


def _values(nest: Any, found: list[Value]) -> None:
    if isinstance(nest, Value):
        found.append(nest)
    elif isinstance(nest, tuple | list):
        for part in nest:
            _values(part, found)
    elif isinstance(nest, dict):
        for part in nest.values():
            _values(part, found)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", type(func).__name__)).strip("_")
