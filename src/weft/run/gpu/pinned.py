"""Copies to a device through pinned memory that is kept: slots, each of them free again when its last copy is done."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any

import torch

from weft.cc import build, compiler
from weft.run.gpu.driver import DRIVER, bind_thread, function
from weft.run.gpu.launch import is_capturing

SLOTS, SIZE = 8, 1 << 22
"""How many copies may be under way, and the bytes of each; more goes torch's way."""

Part = tuple[int, int, int]
"""Address and bytes of something to copy, and where in the copy it goes."""


class Driver:
    """What a ring asks of the driver: functions, by their addresses, and events that tell when a copy is done."""

    def __init__(self) -> None:
        names = "cuEventQuery", "cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuEventRecord"
        found = [function(DRIVER, name) for name in names]
        self._create = function(DRIVER, "cuEventCreate")
        if self._create is None or None in found:
            raise LookupError("no driver")
        self.functions = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in found]

    def event(self) -> int:
        made = ctypes.c_uint64()
        _check(self._create(ctypes.byref(made), 2))  # it need not tell the time
        return made.value


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA refused a copy (code {code})")


class Ring:
    """Pinned memory of one device."""

    def __init__(self, memory: torch.Tensor, driver: Driver) -> None:
        self.memory, self.lock = memory, threading.Lock()
        told = [*driver.functions, memory.data_ptr(), SIZE, SLOTS, *[driver.event() for _ in range(SLOTS)]]
        self._told, self._send = (ctypes.c_int64 * len(told))(*told), _sender()

    def send(self, parts: Sequence[Part], into: int, count: int, stream: int) -> None:
        """Copy parts to a place on the device, as one copy of `count` bytes on a stream. The host does not wait for it."""
        told = _packing(len(parts))(*chain.from_iterable(parts))
        with self.lock:
            failed = self._send(self._told, into, count, stream, len(parts), told)
        if failed:
            _check(failed)


@functools.cache
def _packing(parts: int) -> Any:
    return Struct(f"{3 * parts}q").pack


@functools.cache
def _sender() -> Any:
    path = compiler()
    if path is None:
        raise LookupError("no compiler")
    try:
        send = build(path, Path(__file__).with_name("pinned.c").read_text(encoding="utf-8"), "-O1").weft_send
    except (OSError, subprocess.SubprocessError):
        raise LookupError("a compiler that cannot") from None
    send.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_long, ctypes.c_char_p]
    return send


_rings: dict[torch.device, Ring | None] = {}


def _ring() -> Ring | None:
    try:
        return Ring(torch.empty(SLOTS * SIZE, dtype=torch.uint8, device="cpu", pin_memory=True), Driver())
    except LookupError:
        return None


def ring(device: torch.device) -> Ring | None:
    """The ring of a device; None without driver or compiler, and while launches are captured instead of run."""
    if device not in _rings:
        _rings.setdefault(device, _ring())  # another thread may have made one by now, and use it
    if is_capturing(device):
        return None
    bind_thread()
    return _rings[device]
