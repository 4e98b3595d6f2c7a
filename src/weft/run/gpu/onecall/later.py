"""Results that torch computes after one call, of what the call made: gradients of embeddings.

Adding up the gradients of all rows of a table takes a sort, which torch has. Nothing in a pass waits for them, so they are left
to the end: one call gives what they are computed of beside its other results, and so does a replay.

    def finish(results, rest):
        l0 = aten.embedding_dense_backward(rest[0], rest[1], 10000, -1, False)
        return [l0, results[1], results[2]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.run.gpu.onecall.blocks import Block
from weft.run.gpu.onecall.numbers import NotLowered, Size


@dataclass(eq=False)
class Later:
    """Stands for a tensor that torch makes at the end."""

    laters: Laters
    name: str
    shape: tuple[Size, ...]
    dtype: torch.dtype

    def __getattr__(self, name: str) -> Any:
        raise NotLowered(f"a gradient of an embedding: tensor.{name}")

    def __add__(self, other: Any) -> Later:
        return self.laters.sum(self, other)

    def __radd__(self, other: Any) -> Later:
        return self.laters.sum(other, self)


class Laters:
    """All of them: lines of Python, and the memory that these read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.blocks: list[Block] = []

    def embedding_dense_backward(self, grad: Block, numbers: Block, rows: int, *rest: Any) -> Later:
        if grad.recorder.stretches:
            raise NotLowered("a gradient of an embedding in a step")
        if type(rows) is not int or grad.dim() != numbers.dim() + 1:
            raise NotLowered("a gradient of an embedding whose size is to be found")
        return self._add("aten.embedding_dense_backward", (grad, numbers, rows, *rest), (rows, grad.shape[-1]), grad.dtype)

    def sum(self, one: Any, other: Any) -> Later:
        alike = all(isinstance(part, Block | Later) for part in (one, other)) and one.dtype is other.dtype
        if not alike or len(one.shape) != len(other.shape) or not all(map(_equal, one.shape, other.shape)):
            raise NotLowered("a sum of two shapes")
        return self._add("torch.add", (one, other), one.shape, one.dtype)

    def _add(self, call: str, arguments: Sequence[Any], shape: tuple[Size, ...], dtype: torch.dtype) -> Later:
        made = Later(self, f"l{len(self.lines)}", shape, dtype)
        self.lines.append(f"{made.name} = {call}({', '.join(map(self._argument, arguments))})")
        return made

    def _argument(self, one: Any) -> str:
        if isinstance(one, Later):
            return one.name
        if not isinstance(one, Block):
            return repr(one)
        self.blocks.append(one.recorder.copied(one))  # of what is written over afterwards, and of what is given
        return f"rest[{len(self.blocks) - 1}]"

    def text(self, results: Sequence[Any]) -> str:
        """The source of `finish`."""
        found = [one.name if isinstance(one, Later) else f"results[{at}]" for at, one in enumerate(results)]
        return "\n    ".join(["def finish(results, rest):", *self.lines, f"return [{', '.join(found)}]\n"])


def _equal(one: Size, other: Size) -> bool:
    return bool(one == other)


@dataclass(frozen=True, eq=False)
class Unfinished:
    """What one call gave: results, None where one comes later, and what these are made of."""

    results: list[Tensor | None]
    rest: list[Tensor]
    finish: Callable[[Sequence[Tensor | None], Sequence[Tensor]], list[Tensor | None]]

    def finished(self, results: Sequence[Tensor | None] | None = None) -> list[Tensor | None]:
        """All results; with others in place of those that are there."""
        return self.finish(self.results if results is None else results, self.rest)
