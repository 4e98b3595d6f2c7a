"""Whether the traces of a call still hold, found out in one go: what they have in common is looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter

import torch
from torch import Tensor

from weft.graph.capture import Guards
from weft.graph.cell import Trace
from weft.graph.hooks import for_all_modules, hooked

_hooks = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Held:
    """Some traces that hold now. Where a module carries hooks or is scripted, or a tensor is complex, `can_tell` says no."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.places = [place for trace in traces for place in trace.places]
        self.kinds = [kind[:-1] for trace in traces for kind in trace.tensor_kinds]
        self.guards = Guards.together([trace.guards for trace in traces])
        self.modules = [module.__dict__ for module in {id(m): m for trace in traces for m in trace.modules}.values()]

    @staticmethod
    def can_tell(traces: Sequence[Trace]) -> bool:
        modules = [module for trace in traces for module in trace.modules]
        may_be_conjugated = any(one.is_complex() for trace in traces for one in trace.captured())
        scripted = any(isinstance(module, torch.jit.ScriptModule) for module in modules)
        return hooked(modules) is None and not scripted and not may_be_conjugated

    def tensors(self) -> list[Tensor] | None:
        """The outside tensors of all traces, one trace after the other; None if one of the traces does not hold any more."""
        try:
            found: list[Tensor] = [container[key] for container, key in self.places]
            kinds = [(one.shape, one.dtype, one.requires_grad, one.device, one.is_neg()) for one in found]
        except (KeyError, IndexError, ValueError, AttributeError):
            return None
        if kinds != self.kinds or for_all_modules() or any(chain.from_iterable(map(_hooks, self.modules))):
            return None
        if not self.guards.hold():
            return None
        return found
