"""The options that every batched call takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import TypeMismatch
from weft.plan.schedule import POLICIES
from weft.run.gpu.launch import usable

BACKENDS = ("auto", "reference", "eager", "compiled", "triton")


@dataclass(frozen=True)
class Options:
    """How a call is to be run. All choices give the same numbers.

    `policy` orders the work, `backend` runs it. `max_rows` caps the rows of one step of a recurrence. `recompute` keeps less
    between forward and backward and computes it again. `dedupe` allows equal calls to be computed once; a vertex function makes
    no use of it yet. `graph` allows the launches of a call that comes again to be replayed, on a GPU.
    """

    policy: str = "auto"
    backend: str = "auto"
    dedupe: bool = False
    max_rows: int | None = None
    recompute: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, POLICIES)
        _one_of("backend", self.backend, BACKENDS)
        rows = self.max_rows
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise TypeMismatch(f"max_rows: expected a positive integer or None, got {rows!r}")

    def backend_on(self, device: torch.device) -> str:
        """The engine's own name of the backend for tensors on a device."""
        if self.backend == "triton" and not usable(device):
            raise TypeMismatch(
                f"backend 'triton' needs the package triton and tensors on a GPU; these are on '{device.type}'. "
                "On a CPU its kernels run only under Triton's interpreter (TRITON_INTERPRET=1)"
            )
        if self.backend != "auto":
            return self.backend
        return "native" if device.type == "cpu" else "triton" if usable(device) else "eager"

    @staticmethod
    def of(options: dict[str, Any]) -> Options:
        if not options:
            return DEFAULT
        known = Options.__dataclass_fields__
        for name in options:
            if name not in known:
                raise TypeMismatch(f"unknown option {name!r}; the options are {', '.join(known)}")
        return Options(**options)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise TypeMismatch(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


DEFAULT = Options()
