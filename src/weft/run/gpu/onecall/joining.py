"""Launches that need nothing of each other become one, where that takes no more memory.

    take   a -> c                        take and turn   a -> c, b -> d
    turn   b -> d             becomes    sweep           c, d -> e
    sweep  c, d -> e

Kernels whose programs can be divided among jobs are joined (`run/gpu/together.py`). Two operations on the same memory keep
their order, and what becomes one launch is in use at one time: so a launch goes to the place of another only past those that
have nothing to do with it, and only if the blocks, placed anew, fit into as many bytes as before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations

from weft.run.gpu.onecall.blocks import COUNTER, Block
from weft.run.gpu.onecall.numbers import Size
from weft.run.gpu.onecall.operations import Launch, Operation, Turns, blocks_of, storages_of
from weft.run.gpu.onecall.thrifty import MOST_OPERATIONS, Memory, room_of
from weft.run.gpu.together import Together, together

Group = tuple[Operation, ...]
"""What is to be one launch; or one operation."""


def in_fewer_launches(operations: Sequence[Operation], memory: Memory) -> list[Operation]:
    """The same with launches joined. In steps that run apart, neighbours are."""
    for operation in operations:
        if isinstance(operation, Turns):
            operation.apart = _joined(_neighbours(operation.apart, memory))
    groups: list[Group] = [(one,) for one in operations]
    if len(operations) > MOST_OPERATIONS:
        return list(operations)
    most = _room(groups, memory)
    while (fewer := next((one for one in _with_one_less(groups, memory) if _room(one, memory) <= most), None)) is not None:
        groups = fewer
    return _joined(groups)


def _neighbours(operations: Sequence[Operation], memory: Memory) -> list[Group]:
    found: list[Group] = []
    for one in operations:
        if found and _may_be_one(found[-1], (one,), memory):
            found[-1] = (*found[-1], one)
        else:
            found.append((one,))
    return found


def _with_one_less(groups: Sequence[Group], memory: Memory) -> Iterator[list[Group]]:
    """All ways to join two groups, at the place of either."""
    for one, other in combinations(range(len(groups)), 2):
        first, second, between = groups[one], groups[other], groups[one + 1 : other]
        if _may_be_one(first, second, memory):
            before, after = groups[:one], groups[other + 1 :]
            if not any(_touch(group, second, memory) for group in between):
                yield [*before, first + second, *between, *after]
            if between and not any(_touch(first, group, memory) for group in between):
                yield [*before, *between, first + second, *after]


def _may_be_one(one: Group, other: Group, memory: Memory) -> bool:
    some = [*one, *other]
    launches = [launch for launch in some if isinstance(launch, Launch) and isinstance(launch.kernel, Together)]
    if len(launches) < len(some) or any(launch.only is not None for launch in launches):
        return False
    counting = [launch for launch in launches if any(storage.name == COUNTER for storage in storages_of(launch))]
    aligned = {all(block.aligned for block in blocks_of(launch)) for launch in launches}
    return len(counting) < 2 and len(aligned) == 1 and not _touch(one, other, memory)


def _touch(one: Group, other: Group, memory: Memory) -> bool:
    """Whether two groups use the same memory, of that which is written at all."""
    return not _used(one, memory).isdisjoint(_used(other, memory))


def _used(group: Group, memory: Memory) -> set[Hashable]:
    return {owner for operation in group for owner in memory.of(operation)}


def _room(groups: Sequence[Group], memory: Memory) -> int:
    return room_of([[*_used(group, memory)] for group in groups], memory)


def _joined(groups: Sequence[Group]) -> list[Operation]:
    return [group[0] if len(group) == 1 else _one_launch([one for one in group if isinstance(one, Launch)]) for group in groups]


def _one_launch(launches: Sequence[Launch]) -> Launch:
    kernels = [launch.kernel for launch in launches if isinstance(launch.kernel, Together)]
    arguments: list[Size | Block] = [one for launch in launches for one in launch.arguments]
    programs, ends = launches[0].programs, list[Size]()
    for launch in launches[1:]:
        ends.append(programs)
        programs = programs + launch.programs
    constants = [one for launch in launches for one in launch.constants]
    return Launch(together(*kernels), programs, [*arguments, *ends], tuple(constants))
