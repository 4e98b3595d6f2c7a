"""A call of a recipe written down: its Python runs once, on stand-ins for what the call gave it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from weft.run.gpu.onecall.blocks import Block, Storage
from weft.run.gpu.onecall.copies import without_copies
from weft.run.gpu.onecall.joining import in_fewer_launches
from weft.run.gpu.onecall.kept import Kept
from weft.run.gpu.onecall.later import Later
from weft.run.gpu.onecall.numbers import NotLowered, Number, Size
from weft.run.gpu.onecall.operations import Operation, storages_of
from weft.run.gpu.onecall.record import PerStep, Recorder, Steps, Stretches
from weft.run.gpu.onecall.thrifty import Memory, added_up, in_thrifty_order
from weft.run.recipe import Recipe

LISTS = {"turns": Stretches, "steps": Steps, "starts": PerStep}
"""Facts that are lists, by the first part of their keys."""


def kind_of_fact(key: Hashable) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


@dataclass(frozen=True, eq=False)
class Given:
    """What a recipe's function is given beside its facts; `rows`: tensors of which the number of rows differs."""

    tensors: Sequence[Tensor]
    rows: frozenset[int]
    chosen: Sequence[Tensor] = ()
    saved: Sequence[Tensor] | Kept | None = None
    grads: Sequence[Tensor | None] = ()


@dataclass(frozen=True, eq=False)
class Noted:
    """A recipe written down: what it does, its results in terms of stand-ins, and which of its memory that is."""

    recorder: Recorder
    operations: list[Operation]
    results: Any
    brought: dict[Storage, Sequence[Size]]
    """Memory that the results are part of, and as which it is made."""
    facts: dict[str, type]
    """What the facts are: numbers, arrays on the device, or lists."""
    spent: list[tuple[Block, list[str]]]
    """What forward kept: memory as a whole, and the names of all that is part of it."""
    saved: int
    """How many tensors forward kept."""
    saved_as_one: bool
    """Whether they come as parts of one piece of memory (`Kept`)."""

    @cached_property
    def together(self) -> list[Storage]:
        """What this keeps for backward, in one piece of memory: there, what was read makes room for something larger."""
        if not isinstance(self.results, tuple):
            return []
        kept = [*kept_whole(self.results).values()]
        return [storage for storage in kept if storage.dtype is kept[0].dtype]

    @cached_property
    def kept_as_one(self) -> bool:
        """Whether all that is kept lies there, as rows that always have one size."""
        kept: Sequence[Block] = self.results[1] if isinstance(self.results, tuple) else ()
        fixed = all(type(size) is int for block in kept for size in (*block.shape[1:], *block.strides))
        return bool(kept) and fixed and all(block.storage in self.together and block.dim() for block in kept)


def note(recipe: Recipe, before: Noted | None, facts: Sequence[Any], given: Given, device: torch.device) -> Noted:
    """Run a recipe on stand-ins for what a call gave it; `before`: the forward pass, where it is written down, too."""
    recorder = Recorder(device)
    numbers = [
        _stand_in(recorder, f"f{at}", key, fact) for at, (key, fact) in enumerate(zip(recipe.makers, facts, strict=True))
    ]
    tensors = [recorder.given(f"t{at}", one, at in given.rows) for at, one in enumerate(given.tensors)]
    chosen = [recorder.given(f"c{at}", one, True) for at, one in enumerate(given.chosen)]
    start: list[Any] = [numbers, tensors, chosen]
    if given.saved is None:
        saved = []
        arguments = [*start, _Absent("records"), device, 0, recorder.fresh]
    else:
        saved = [recorder.given(f"s{at}", one, True, part=True) for at, one in enumerate(given.saved)]
        grads = [None if one is None else recorder.given(f"g{at}", one, True) for at, one in enumerate(given.grads)]
        arguments = [*start, list(saved), grads, _Absent("records"), device, 0, False, recorder.fresh]
    try:
        results = recorder.run(recipe.run, arguments)
    except (TypeError, AttributeError) as error:
        raise NotLowered(f"something that stand-ins cannot do: {error}") from error
    if recorder.later.lines and not isinstance(results, list):
        raise NotLowered("a gradient of an embedding in a forward pass")
    brought: dict[Storage, Sequence[Size]] = {}
    for block in [*flat(results), *recorder.later.blocks]:
        storage = block.storage
        if storage.count is None:
            raise NotLowered("a result that is given")
        brought.setdefault(storage, block.shape if block.is_whole else storage.sizes)
    kinds = {f"f{at}": _kind(one) for at, one in enumerate(numbers)}
    spent = _spent(before, saved)
    operations = without_copies(added_up(recorder.operations, [*brought]), [*brought])
    memory = _memory(operations, recorder, before, spent, [*brought])
    operations = in_fewer_launches(in_thrifty_order(operations, memory), memory)
    return Noted(recorder, operations, results, brought, kinds, spent, len(saved), isinstance(given.saved, Kept))


def _memory(
    operations: Sequence[Operation],
    recorder: Recorder,
    before: Noted | None,
    spent: Sequence[tuple[Block, list[str]]],
    results: Sequence[Storage],
) -> Memory:
    """Whose memory operations use. Of what forward kept, some is part of the same memory."""
    kept: Sequence[Block] = () if before is None else before.results[1]
    whose: dict[str, Hashable] = {f"s{at}": block.storage for at, block in enumerate(kept)}
    owners: dict[Storage, Hashable | None] = {}
    sizes: dict[Hashable, int] = {whose[names[0]]: _size(recorder, block.numel(), block.dtype) for block, names in spent}
    for storage in dict.fromkeys(one for operation in operations for one in storages_of(operation)):
        if storage.count is not None:
            owners[storage] = storage
            sizes[storage] = 0 if storage in recorder.inside else _size(recorder, storage.count, storage.dtype)
        else:
            owners[storage] = whose.get(storage.name, "kept") if storage.name.startswith("s") else None
    given = [whose[names[0]] for _, names in spent]
    return Memory(owners, sizes, given, results)


def _size(recorder: Recorder, count: Size, dtype: torch.dtype) -> int:
    """Bytes in the call that is looked at."""
    return recorder.example.value(count) * dtype.itemsize


def _spent(before: Noted | None, saved: Sequence[Block]) -> list[tuple[Block, list[str]]]:
    """Memory that forward made and kept whole: backward may use it when it has read it."""
    if before is None:
        return []
    kept: Sequence[Block] = before.results[1]
    found = []
    for at, storage in kept_whole(before.results).items():
        found.append((saved[at], [f"s{number}" for number, one in enumerate(kept) if one.storage is storage]))
    return found


def kept_whole(results: Any) -> dict[int, Storage]:
    """Of the results of a forward pass what is kept as a whole, by its number among what is kept; not what the caller sees."""
    outputs, kept = results
    seen = {block.storage for block in flat(outputs)}
    found: dict[int, Storage] = {}
    for at, block in enumerate(kept):
        if block.is_whole and block.storage not in seen and block.storage not in found.values():
            found[at] = block.storage
    return found


def _kind(fact: Any) -> type:
    return int if isinstance(fact, Number) else type(fact)


def flat(results: Any) -> list[Block]:
    """All tensors among a recipe's results, but for those that are made later."""
    if isinstance(results, list | tuple):
        return [block for one in results for block in flat(one)]
    return [] if results is None or isinstance(results, Later) else [results]


class _Absent:
    """Stands for something that only some recipes use."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __getitem__(self, at: Any) -> Any:
        raise NotLowered(self.what)


def _stand_in(recorder: Recorder, name: str, key: Hashable, fact: Any) -> Any:
    if kind_of_fact(key) in LISTS:
        assert isinstance(key, tuple)
        return LISTS[kind_of_fact(key)](recorder, name, *key[1:])
    if isinstance(fact, int):
        return recorder.number(name, fact)
    return recorder.given(name, fact, True)
