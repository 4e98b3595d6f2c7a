"""A driver without a GPU: C that launches kernels is called back here, and Triton's interpreter runs them on the CPU; or they
are noted, as by a capture, and run when that is launched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernel_parts import assert_in_kernels, poison_memory
from weft.run.gpu import replay
from weft.run.gpu.launch import Kernel
from weft.run.gpu.onecall import lowered
from weft.run.gpu.replays import Replays
from weft.run.gpu.sweep import Walk

NUMPY: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}

HANDLE = 77
"""The library's."""

U, P, N, Q = ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
LAUNCH = ctypes.CFUNCTYPE(N, P, U, U, U, U, U, U, U, P, ctypes.POINTER(P), P)
TOGETHER = ctypes.CFUNCTYPE(N, P, U, U, U, U, U, U, U, P, ctypes.POINTER(P))
PRODUCT = ctypes.CFUNCTYPE(N, P, N, N, N, N, N, P, P, N, P, N, P, P, N)
COPY = ctypes.CFUNCTYPE(N, Q, Q, Q, P)
FILL = ctypes.CFUNCTYPE(N, Q, ctypes.c_ubyte, Q, P)


def _numbers(address: int, count: int, kind: Any) -> np.ndarray:
    """Memory at an address."""
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), dtype=kind)


@dataclass(eq=False)
class Driver:
    """Kernels by number, as lowered recipes see them, and what went wrong in a callback."""

    kernels: list[tuple[Kernel, list[torch.dtype | None], tuple[Any, ...]]] = field(default_factory=list)
    launches: int = 0
    products: int = 0
    captures: int = 0
    replays: int = 0
    bound: set[int] = field(default_factory=set)
    """Threads that it knows."""
    errors: list[BaseException] = field(default_factory=list)
    _noted: list[Callable[[], None]] | None = None

    def captured(self, device: torch.device, work: Callable[[], Any]) -> tuple[Captured, Any]:
        """What work launches, and what it gives."""
        noted: list[Callable[[], None]] = []
        self._noted, self.captures = noted, self.captures + 1
        try:
            return Captured(self, noted), work()
        finally:
            self._noted = None

    def _now_or_later(self, what: Callable[[], None]) -> None:
        if self._noted is None:
            what()
        else:
            self._noted.append(what)

    def made(self, kernel: Kernel, kinds: Any, constants: tuple[Any, ...]) -> Any:
        self.kernels.append((kernel, list(kinds), constants))
        about = SimpleNamespace(num_warps=4, shared=0, num_ctas=1, global_scratch_size=0, profile_scratch_size=0)
        return SimpleNamespace(function=len(self.kernels), metadata=about)

    def launch(self, function: int, programs: int, *rest: Any) -> int:
        try:
            assert get_ident() in self.bound
            self.launches += 1
            kernel, kinds, constants = self.kernels[function - 1]
            given = rest[7]
            arguments = [self._argument(given[at], kind) for at, kind in enumerate(kinds)]
            assert rest[2] == 128  # threads
            self._now_or_later(lambda: kernel.function[(programs,)](*arguments, *constants))
        except BaseException as error:
            self.errors.append(error)
        return 0

    def _argument(self, at: int, kind: torch.dtype | None) -> Any:
        if kind is None:
            return int(_numbers(at, 1, np.int32)[0])
        where = int(_numbers(at, 1, np.uint64)[0])
        return torch.from_numpy(_numbers(where, 1, NUMPY[kind]))  # the interpreter takes addresses from there

    def product(self, *given: Any) -> int:
        """As the library multiplies single numbers: matrices lie column by column."""
        try:
            self.products += 1
            handle, first, second, m, n, k, _, a, apart_a, b, apart_b, kept, c, apart_c = given
            assert handle == HANDLE
            one = _matrix(a, apart_a, *((k, m) if first else (m, k)))
            other = _matrix(b, apart_b, *((n, k) if second else (k, n)))
            one, other = (one.T if first else one), (other.T if second else other)
            out, adds = _matrix(c, apart_c, m, n), bool(_numbers(kept, 1, np.float32)[0])

            def multiply() -> None:
                product = (torch.from_numpy(one.copy()) @ torch.from_numpy(other.copy())).numpy()
                out[:] = product + out if adds else product

            self._now_or_later(multiply)
        except BaseException as error:
            self.errors.append(error)
        return 0

    def fill(self, where: int, value: int, count: int, stream: Any) -> int:
        self._now_or_later(lambda: (ctypes.memset(where, value, count), None)[1])
        return 0

    def copy(self, where: int, source: int, count: int, stream: Any) -> int:
        self._now_or_later(lambda: (ctypes.memmove(where, source, count), None)[1])
        return 0


@dataclass(eq=False)
class Captured:
    """Launches that were noted."""

    driver: Driver
    launches: list[Callable[[], None]]

    def launch(self, stream: int) -> None:
        self.driver.replays += 1
        for one in self.launches:
            one()


def _matrix(address: int, apart: int, rows: int, columns: int) -> np.ndarray:
    assert apart >= rows
    flat = _numbers(address, apart * (columns - 1) + rows, np.float32)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * apart))


def install(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """From here on recipes on the CPU run as one call, by the interpreter."""
    driver = Driver()
    back = LAUNCH(driver.launch), TOGETHER(driver.launch), PRODUCT(driver.product), FILL(driver.fill), COPY(driver.copy)
    known = [ctypes.cast(one, P).value or 0 for one in back]
    known.insert(3, 0)  # products of other than single numbers

    def made(self: Kernel, device: Any, kinds: Any, constants: tuple[Any, ...], aligned: bool) -> Any:
        return driver.made(self, kinds, constants)

    def swept(self: Walk, width: str, device: Any, aligned: bool) -> tuple[Any, int]:
        kinds = [self.kinds[0], None, None, torch.int32, *self.kinds[1:]]
        return driver.made(self.sweeps[width].kernel, kinds, (1,)), 1

    done = lowered.Lowered.done

    def checked(self: Any, given: bytes, room: int, blas: int) -> None:
        done(self, given, room, blas)
        if driver.errors:
            raise driver.errors[0]

    assert_in_kernels(monkeypatch)
    monkeypatch.setattr(Kernel, "made", made)
    monkeypatch.setattr(Walk, "made", swept)
    monkeypatch.setattr(lowered.Lowered, "done", checked)
    monkeypatch.setattr(lowered, "functions", lambda: (back, tuple(known))[1])
    monkeypatch.setattr(lowered, "bind_thread", lambda: driver.bound.add(get_ident()))
    monkeypatch.setattr(lowered, "blas_handle", lambda: HANDLE)
    monkeypatch.setattr("weft.run.gpu.execution.can_lower", lambda device: True)
    monkeypatch.setattr("weft.run.gpu.replay.can_capture", lambda device: True)
    monkeypatch.setattr("weft.run.gpu.replay.captured", driver.captured)
    monkeypatch.setattr("weft.run.execution.has_own_memory", lambda device: True)
    return driver


@contextmanager
def poisoned_driver() -> Iterator[Driver]:
    """The same for as long as this lasts, without captures at its start; fresh memory is full of NaN."""
    with pytest.MonkeyPatch.context() as patches:
        poison_memory(patches)
        patches.setattr(replay, "_replays", Replays())
        yield install(patches)
