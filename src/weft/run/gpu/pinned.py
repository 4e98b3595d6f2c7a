"""Copies to a device through pinned memory that is kept: slots that take turns, each free again when its last copy is done."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from weft.run.gpu.driver import DRIVER, bind_thread, function

SLOTS, SIZE = 16, 1 << 20
"""How many copies may be under way, and the bytes of each; more goes torch's way."""

Part = tuple[int, int, int]
"""Address and bytes of something to copy, and where in the copy it goes."""


class Copier(Protocol):
    """What a ring asks of a driver."""

    def event(self) -> Any: ...
    def wait(self, event: Any) -> None: ...
    def copy(self, into: int, source: int, count: int, stream: int, event: Any) -> None: ...


class CudaCopier:
    """The driver itself."""

    def __init__(self) -> None:
        names = ("cuEventCreate", "cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuEventRecord")
        found = [function(DRIVER, name) for name in names]
        if None in found:
            raise LookupError("no driver")
        self._create, self._wait, self._copy, self._record = found
        self._copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
        self._record.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self._wait.argtypes = [ctypes.c_uint64]

    def event(self) -> int:
        made = ctypes.c_uint64()
        _check(self._create(ctypes.byref(made), 2))  # it need not tell the time
        return made.value

    def wait(self, event: int) -> None:
        _check(self._wait(event))

    def copy(self, into: int, source: int, count: int, stream: int, event: int) -> None:
        _check(self._copy(into, source, count, stream) or self._record(event, stream))


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA refused a copy (code {code})")


class Ring:
    """Pinned memory of one device."""

    def __init__(self, memory: torch.Tensor, copier: Copier) -> None:
        self.memory, self.copier, self.lock, self.turn = memory, copier, threading.Lock(), 0
        self.events = [copier.event() for _ in range(SLOTS)]

    def send(self, parts: Sequence[Part], into: int, count: int, stream: int) -> None:
        """Copy parts to a place on the device, as one copy of `count` bytes on a stream. The host does not wait for it."""
        with self.lock:
            turn, self.turn = self.turn, (self.turn + 1) % SLOTS
            slot = self.memory.data_ptr() + turn * SIZE
            self.copier.wait(self.events[turn])
            for source, size, at in parts:
                ctypes.memmove(slot + at, source, size)
            self.copier.copy(into, slot, count, stream, self.events[turn])


_rings: dict[torch.device, Ring | None] = {}


def ring(device: torch.device) -> Ring | None:
    """The ring of a device; None where there is no driver to ask, and while launches are captured instead of run."""
    if device not in _rings:
        try:
            _rings[device] = Ring(torch.empty(SLOTS * SIZE, dtype=torch.uint8, pin_memory=True), CudaCopier())
        except LookupError:
            _rings[device] = None
    if torch.cuda.is_current_stream_capturing():
        return None
    bind_thread()
    return _rings[device]
