"""The traced cells of a library's call types."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from weft.errors import ShapeError, TraceError, warn
from weft.graph.calls import KEY, CallType
from weft.graph.capture import Surroundings
from weft.graph.cell import Trace, hand_on, trace, trace_plainly
from weft.graph.held import Held
from weft.graph.rows import TensorSpec
from weft.graph.tape import Name
from weft.graph.tracing import tracing
from weft.graph.twin import Escaped
from weft.run.call import CompiledCell
from weft.run.callports import Groups
from weft.run.young import NEW, Young

KEPT_TRACES = 4
MOST_TOGETHER = 256


class Cells:
    """Cells by call type and by which arguments are gathered together; the last few of each stay."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, Groups], list[CompiledCell]] = {}
        self.together: dict[Hashable, list[tuple[Held, dict[int, CompiledCell]]]] = {}
        self.foreseen: dict[Name, TensorSpec] = {}
        self.warned: set[int] = set()
        self.young = Young()

    def cell(self, t: int, kind: CallType, groups: Groups) -> CompiledCell:
        is_young = self.young.is_young(t, kind)
        kept = [cell for cell in self.kept.get((t, groups), ()) if is_young or not _is_new(cell)]
        found = next((cell for cell in kept if cell.trace.holds()), None)
        if found is None:
            found = self._untraced(kind, groups, NEW) if is_young else self._traced(t, kind, groups)
            _check_shapes(kind, found.trace)
            self.kept[t, groups] = [found, *kept][:KEPT_TRACES]
        return found

    def all(
        self, key: Hashable, make: Callable[[], dict[int, CompiledCell]]
    ) -> tuple[dict[int, CompiledCell], Sequence[Tensor] | None]:
        """The cells of plans that are known by a key, looked at together; and the tensors outside, if that has found them."""
        kept = self.together.get(key, [])
        for held, cells in kept:
            tensors = held.tensors()
            if tensors is not None:
                return cells, tensors
        self.young.begin()
        cells = make()
        if any(map(_is_new, cells.values())):
            return cells, None
        traces = [cell.trace for cell in cells.values()]
        if Held.can_tell(traces):
            if len(self.together) >= MOST_TOGETHER:
                self.together.clear()
            self.together[key] = [(Held(traces), cells), *kept][:KEPT_TRACES]
        return cells, None

    def foresee(self, name: Name, spec: TensorSpec) -> None:
        """A cell that is not traced asked for one thing more of its further arguments than it had."""
        self.foreseen[name] = spec
        self.together.clear()
        self.kept = {key: [cell for cell in cells if cell.trace.fallback is None] for key, cells in self.kept.items()}

    def _traced(self, t: int, kind: CallType, groups: Groups) -> CompiledCell:
        if kind.hands_on and kind.signature is not None:
            return CompiledCell(hand_on(kind.name, kind.spec, kind.signature))
        surroundings = Surroundings().add(kind.body, *kind.owners)
        try:
            with tracing:
                return CompiledCell(trace(kind.name, kind.engine_body(), kind.spec, surroundings, groups))
        except Escaped as error:
            raise Escaped(f"{kind.name}: {error}") from None
        except TraceError as error:
            made = self._untraced(kind, groups, str(error))
        is_empty = any(0 in spec.shape for spec in (*kind.args, *kind.feeds))  # so there is no work to be slow with
        if t not in self.warned and not is_empty:
            self.warned.add(t)
            warn(f"{kind.name}: {made.trace.fallback}")
        return made

    def _untraced(self, kind: CallType, groups: Groups, reason: str) -> CompiledCell:
        foreseen = {} if kind.many is None else self.foreseen
        body, surroundings = kind.engine_body(), Surroundings().add(kind.body, *kind.owners)
        return CompiledCell(trace_plainly(kind.name, body, kind.spec, surroundings, reason, foreseen, groups, kind.signature))


def _is_new(cell: CompiledCell) -> bool:
    return cell.trace.fallback is not None and cell.trace.fallback.startswith(NEW)


def _check_shapes(kind: CallType, trace: Trace) -> None:
    """Whoever reads the results was made for the shapes that were found at first."""
    for number, spec in enumerate(kind.outputs):
        now = trace.outputs[number, KEY]
        if now.shape != spec.shape:
            raise ShapeError(
                f"{kind.name}: expected a result of shape {list(spec.shape)}, as when it was first looked at, got "
                f"{list(now.shape)}; after a change of shapes make the block, or the batched function, anew"
            )
