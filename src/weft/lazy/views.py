"""Which values are views of which: a tensor shares memory with its views, values do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import TraceError
from weft.lazy.value import STEP

if TYPE_CHECKING:
    from weft.lazy.tape import Tape


class Views:
    """Which references are views of which, found by reading the tape where writing makes it matter."""

    def __init__(self) -> None:
        self.bases: dict[int, int] = {}
        self.viewed: set[int] = set()
        self.of_model: set[int] = set()
        """References that are views of a tensor of the model."""
        self.segment = self.call = self.argument = self.many = 0

    def update(self, tape: Tape) -> None:
        """Read what was recorded since the last time."""
        segments = [*tape.past, tape.segment()]
        while True:
            self._read(tape, segments[self.segment])
            if self.segment == len(segments) - 1:
                return
            self.segment += 1
            self.call = self.argument = self.many = 0

    def _read(self, tape: Tape, segment: Any) -> None:
        floor, types, arguments, further, imports = segment
        fines = tape.state.fines
        for call in range(self.call, len(types)):
            op = fines[types[call]]
            if op.views_model:
                self.of_model.update(range(floor + call * STEP, floor + call * STEP + len(op.outs)))
            for output, base in enumerate(op.views):
                if base >= 0:
                    ref = arguments[self.argument + base]
                    ref = ref if ref >= 0 else imports[-ref - 1]
                    self.bases[floor + call * STEP + output] = ref
                    self.viewed.add(ref)
            self.argument += len(op.args)
            if op.many is not None:
                self.argument += further[self.many]
                self.many += 1
        self.call = len(types)


def check_current(tape: Tape, refs: list[int]) -> None:
    """Raise if one is a view of something that was written into after the view was taken."""
    tape.views.update(tape)
    for ref in refs:
        base = tape.views.bases.get(ref)
        while base is not None:
            if base in tape.overwritten:
                raise TraceError(
                    "a view (an index, slice or reshape) of a Value is used after the Value was written into; in PyTorch it "
                    "would show the change: take the view again, or .clone() it before writing"
                )
            base = tape.views.bases.get(base)
