"""Recordings: the calls of an example (or of a whole flush), in the order in which they were made.

Three flat lists grow while a front end records: the type of every call, the references of all arguments in a row, and for call
types that take many arguments how many further ones there are. A *reference* names one output of one call as one integer.

    calls        0 word   1 word   2 node(0, 1)   3 out(2)        references of the arguments   0.0 1.0 2.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weft.graph.calls import Library
from weft.graph.program import Ints
from weft.graph.uncast import cat, stack

OUTPUT_BITS = 12
"""A reference is `call << OUTPUT_BITS | output`."""

References = npt.NDArray[np.int64]


class Picked(NamedTuple):
    """Some rows of a tensor, in this order. Who can read them where they are need not have them copied."""

    rows: Tensor
    at: npt.NDArray[np.int64]


Table = Tensor | npt.NDArray[Any] | Picked
Structure = tuple[bytes, bytes, bytes]


def reference(call: int, output: int = 0) -> int:
    """The output of a call, as one integer.

    >>> reference(2, 1) >> OUTPUT_BITS, reference(2, 1) & (1 << OUTPUT_BITS) - 1
    (2, 1)
    """
    return call << OUTPUT_BITS | output


@dataclass(eq=False)
class Recorder:
    """Collects calls. Front ends may append to the lists themselves where a call must cost next to nothing."""

    library: Library
    type: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    """For each call of a type with `many`, in order, how many further arguments it has."""
    data: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    """Fed data by (type, feed number): one number, array or tensor for each call of the type, in order."""

    def call(self, type: int, arguments: Sequence[int] = (), feeds: Sequence[Any] = ()) -> int:
        """Record one call; returns its number. `reference(number, output)` names what it gives."""
        kind = self.library.types[type]
        self.type.append(type)
        self.arguments.extend(arguments)
        if kind.many is not None:
            self.further.append(len(arguments) - len(kind.args))
        for number, feed in enumerate(feeds):
            self.data.setdefault((type, number), []).append(feed)
        return len(self.type) - 1

    def finish(self) -> CallProgram:
        """The calls as arrays, the fed data as tables with one row per call of its type."""
        types = self.library.types
        tables = {(t, i): table(rows, types[t].feeds[i].dtype) for (t, i), rows in self.data.items()}
        return CallProgram(
            np.array(self.type, np.int32), np.array(self.arguments, np.int64), np.array(self.further, np.int32), tables
        )


def table(rows: list[Any], dtype: torch.dtype) -> Table:
    """Rows of fed data as one table: tensors are stacked with their gradients, numbers and arrays become an array."""
    there = next((row.device for row in rows if isinstance(row, Tensor)), None)
    if there is not None:
        return stack([torch.as_tensor(row, dtype=dtype, device=there) for row in rows])
    with torch._C._DisableFuncTorch():  # inside a transform, too, numbers are just numbers
        found = torch.from_numpy(np.asarray(rows)).to(dtype)
        return found if dtype is torch.bfloat16 else found.numpy()


def as_tensor(rows: Table) -> Tensor:
    """A table as a tensor. Arrays stay on the host, whatever `torch.set_default_device` says."""
    if isinstance(rows, Picked):
        return rows.rows.index_select(0, torch.from_numpy(rows.at).to(rows.rows.device))
    return rows if isinstance(rows, Tensor) else torch.from_numpy(rows)


@dataclass(frozen=True, eq=False)
class CallProgram:
    """A finished recording. Numbers of types are those of one library."""

    type: Ints
    arguments: References
    further: Ints
    data: dict[tuple[int, int], Table]
    _cache: dict[object, object] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what an engine of this process has kept with it."""
        return {**self.__dict__, "_cache": {}}

    @property
    def num_calls(self) -> int:
        return len(self.type)

    @property
    def structure(self) -> Structure:
        """What is equal for two programs of equal calls, whatever is fed to them."""
        found = self._cache.get("structure")
        if found is None:
            found = self._cache["structure"] = self.type.tobytes(), self.arguments.tobytes(), self.further.tobytes()
        return cast(Structure, found)


def merge_calls(programs: Sequence[CallProgram]) -> CallProgram:
    """One program of all calls, in order."""
    if len(programs) == 1:
        return programs[0]
    first = np.cumsum([0, *(len(program.type) for program in programs)])[:-1]
    arguments = np.concatenate([program.arguments for program in programs])
    arguments += np.repeat(first << OUTPUT_BITS, [len(program.arguments) for program in programs])
    return CallProgram(
        np.concatenate([program.type for program in programs]),
        arguments,
        np.concatenate([program.further for program in programs]),
        merge_tables(programs),
    )


def merge_tables(programs: Sequence[CallProgram]) -> dict[tuple[int, int], Table]:
    """The fed tables of several programs, one after the other."""
    if len(programs) == 1:
        return programs[0].data
    parts: dict[tuple[int, int], list[Table]] = {}
    for program in programs:
        for key, rows in program.data.items():
            parts.setdefault(key, []).append(rows)
    return {key: _joined(tables) for key, tables in parts.items()}


def _joined(tables: list[Table]) -> Table:
    arrays = [part for part in tables if isinstance(part, np.ndarray)]
    return np.concatenate(arrays) if len(arrays) == len(tables) else cat([as_tensor(part) for part in tables])
