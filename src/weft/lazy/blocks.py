"""A block: a straight run of operations as one call type, so that unmarked code batches like a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.graph.calls import CallType
from weft.lazy.blame import WITHIN
from weft.lazy.kinds import Kind
from weft.lazy.ops import Body, Op

Source = tuple[int, int]
"""Either (position of an operation in the block, output), or (OUTSIDE, argument of the block)."""

OUTSIDE = -1


class Block:
    """Operations in order; for each its arguments' sources; and which of their outputs are seen outside."""

    def __init__(self, ops: Sequence[Op], sources: Sequence[Sequence[Source]], outs: Sequence[Source]) -> None:
        self.ops, self.sources, self.outs = tuple(ops), tuple(map(tuple, sources)), tuple(outs)

    def body(self, *given: Tensor) -> list[Tensor]:
        results: list[list[Tensor]] = []
        at = len(self.args())
        for op, sources in zip(self.ops, self.sources, strict=True):
            args = [given[where] if position == OUTSIDE else results[position][where] for position, where in sources]
            try:
                results.append(op.run(args, given[at : at + len(op.feeds)]))
            except Exception as error:
                setattr(error, WITHIN, len(results))
                raise
            at += len(op.feeds)
        return [results[position][output] for position, output in self.outs]

    def args(self) -> list[Kind]:
        """The kinds of the arguments from outside."""
        found: dict[int, Kind] = {}
        for op, sources in zip(self.ops, self.sources, strict=True):
            for kind, (position, where) in zip(op.args, sources, strict=True):
                if position == OUTSIDE:
                    found[where] = kind
        return [found[where] for where in range(len(found))]

    def call_type(self) -> CallType:
        feeds = [kind.spec for op in self.ops for kind in op.feeds]
        outs = [self.ops[position].outs[output].spec for position, output in self.outs]
        owners: dict[int, Any] = {id(owner): owner for op in self.ops for owner in op.owners}
        return CallType(
            self.name,
            Body(self.body),
            tuple(kind.spec for kind in self.args()),
            tuple(feeds),
            tuple(outs),
            None,
            tuple(owners.values()),
            any(op.random for op in self.ops),
            self.ops[0].device,
        )

    @property
    def name(self) -> str:
        names = [op.name for op in self.ops]
        return "+".join(names) if len(names) <= 4 else f"{names[0]}+...+{names[-1]} ({len(names)} operations)"
