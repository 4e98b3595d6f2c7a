"""What calls of one kind have in common: which of their tensors is which, which types learn, and the compiled cells."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from weft.graph.ports import port_of
from weft.plan.shape import native
from weft.run.call import Call
from weft.run.code import CellCode, Codes, Role

KEPT_CODES = 64
"""How many sets of compiled cells are remembered: training, inference, other outputs, other shapes of plans."""
MOST_RECENT = 16
"""How many kinds of calls are compared with: code with layers has one for each."""


def given_tensors(call: Call) -> tuple[list[Tensor], list[int]]:
    """A call's tensors: those that cells capture, each once, feeds, edges, everyone's; and where each captured one is."""
    captured = call.captured
    if captured is None:
        captured = [tensor for t in call.plan.present for tensor in call.cells[t].trace.captured()]
    once = set(map(id, captured))
    tensors, places = [*captured], [*range(len(captured))]
    if len(once) < len(captured):
        tensors = [*{id(tensor): tensor for tensor in captured}.values()]
        numbers = {id(tensor): at for at, tensor in enumerate(tensors)}
        places = [numbers[id(tensor)] for tensor in captured]
    tensors += call.feeds.values()
    tensors += call.edges
    if call.everyone:
        tensors += [tensor for tensor in call.everyone if id(tensor) not in once]
    return tensors, places


def kind_of(call: Call, tensors: list[Tensor], places: list[int]) -> Kind:
    """As an earlier call had it, if one was of the same kind."""
    if call.alike is None:
        return _compared(call, tensors, places)
    kind: Kind
    made = native(call.plan)
    shape = call.plan.shape if made is None else made.layout  # such calls have the same types
    for known_shape, known_places, kind in call.alike:
        if known_shape is shape and known_places == places:
            return kind
    kind = _compared(call, tensors, places)
    call.alike[:] = [(shape, places, kind), *call.alike][:MOST_RECENT]
    return kind


def _compared(call: Call, tensors: list[Tensor], places: list[int]) -> Kind:
    """The kind of one of the last calls, if it is the same: comparing is faster than looking up."""
    plan = call.plan
    needs = [tensor.requires_grad for tensor in tensors]
    if not torch.is_grad_enabled():
        needs = [False] * len(tensors)
    wanted = [one.kind(plan) for one in call.wanted]
    now = (needs, places, wanted, call.backend, call.recompute, call.device, [*call.feeds], call.cells, plan.shape)
    recent: list[tuple[Any, Kind]] = call.cells[plan.present[-1]].recent if plan.present else []  # the first many calls share
    for known, kind in recent:
        if known == now:
            return kind
    kind = Kind(call, needs, places)
    recent[:] = [(now, kind), *recent][:MOST_RECENT]
    return kind


class Kind:
    """Found from one call, the same for all plans of one shape; nothing of the plan or of its rows is kept."""

    def __init__(self, call: Call, needs: list[bool], places: list[int]) -> None:
        self.types, self.needs, self.training = call.plan.present, needs, any(needs)
        given = iter(places)
        self.place = {(t, i): next(given) for t in self.types for i in range(len(call.cells[t].trace.places))}
        self.first_feed = max(places, default=-1) + 1
        self.feed_at = {name: self.first_feed + i for i, name in enumerate(call.feeds)}
        self.first_edge = self.first_feed + len(call.feeds)
        finding = _Finding(self, call)
        self.learns = finding.learning_types()
        self.codes = finding.codes(self.learns)

    def input(self, t: int, name: Any) -> int | None:
        """Which of the call's tensors an input of a type comes from."""
        if name[0] == "capture":
            return self.place[t, name[1]]
        if name[0] == "feed":
            return self.feed_at[(t, *name[1:]) if (t, *name[1:]) in self.feed_at else name[1:]]
        if name[0] in ("slot_edge", "edge_feed"):
            return self.first_edge + int(name[-1])
        return None

    def needed(self, t: int, name: Any) -> bool:
        """Whether a gradient of an input is wanted."""
        at = self.input(t, name)
        return at is not None and self.needs[at]


class _Finding:
    """Finds what a kind of call needs."""

    def __init__(self, kind: Kind, call: Call) -> None:
        self.kind, self.call, self.plan = kind, call, call.plan

    def learning_types(self) -> dict[int, bool]:
        """Which types' outputs depend on anything that needs a gradient."""
        learns: dict[int, bool] = {}
        for group in self.plan.groups if self.kind.training else ():
            for t in group.types:
                tape = self.call.cells[t].trace.tape
                known = [name for kind, *name in tape.outputs if kind == "grad" and tape.outputs[kind, *name] is not None]
                learns[t] = any(self.kind.needed(t, name) for (name,) in known)
            reads = [read for read in self.plan.reads if read.type in group.types and read.value_class >= 0]
            sources = {member[0] for read in reads for member in self.plan.classes[read.value_class].members}
            anyone = any(learns.get(source, False) for source in sources) or any(learns[t] for t in group.types)
            for t in group.types:
                learns[t] = learns[t] or (anyone and any(read.type == t for read in reads))
        return learns

    def codes(self, learns: dict[int, bool]) -> Codes:
        """The compiled cells, which do not change while plans have one shape and the same gradients and outputs are wanted."""
        call, kind = self.call, self.kind
        asked = tuple([one.kind(self.plan) for one in call.wanted]), call.recompute, call.backend, call.device.type
        given = tuple(kind.needs), tuple(kind.place.items()), tuple(call.feeds), tuple(call.cells.items())
        key = (self.plan.shape, asked, given)
        kept = call.cells[kind.types[0]].kept if kind.types else OrderedDict()
        if key not in kept:
            kept[key] = Codes({t: self._code(t, learns) for t in kind.types})
            if len(kept) > KEPT_CODES:
                kept.popitem(last=False)
        return kept[key]

    def _code(self, t: int, learns: dict[int, bool]) -> CellCode:
        plan, cell = self.plan, self.call.cells[t]
        read_classes = {read.value_class for read in plan.reads}
        group = plan.groups[plan.group_of[t]]
        own = {read.value_class for read in plan.reads if read.recurrent and read.type in group.types}
        recurrent_in, recurrent_out, exchanged = set(), set(), set()
        recurrent = {read.port for read in plan.reads if read.type == t and read.recurrent}
        for name in cell.trace.tape.inputs:
            if port_of(plan.program.types[t].ports, name) in recurrent:
                recurrent_in.add(name)
        wanted = {cell.own_name(w.name) for w in self.call.wanted if t in w.types(plan)}
        for name in cell.trace.outputs:
            if isinstance(name, tuple) and isinstance(name[0], int):
                value_class = plan.class_of[t, name[0]]
                if value_class in own:
                    recurrent_out.add(name)
                if value_class in read_classes or name in wanted:
                    exchanged.add(name)
        pushed = {name for name in cell.trace.outputs if name in wanted}
        role = Role(
            frozenset(recurrent_in),
            frozenset(recurrent_out),
            frozenset(exchanged),
            frozenset(pushed | exchanged),
            frozenset(name for name in cell.trace.tape.inputs if self._wants_gradient(t, name, learns)),
            self.call.recompute,
            self.call.backend,
            self.call.device.type,
        )
        return cell.code(role)

    def _wants_gradient(self, t: int, name: Any, learns: dict[int, bool]) -> bool:
        if not self.kind.training:
            return False
        port = port_of(self.plan.program.types[t].ports, name)
        if port is not None:
            classes = [r.value_class for r in self.plan.reads if r.type == t and r.port == port]
            members = [member for number in classes if number >= 0 for member in self.plan.classes[number].members]
            return any(learns[member[0]] for member in members)
        return self.kind.needed(t, name)
