"""Launches captured by the driver as one graph, which can be launched again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from weft.run.gpu.counts import counter
from weft.run.gpu.driver import DRIVER, function
from weft.run.gpu.launch import current_stream, is_capturing, is_gpu
from weft.run.gpu.onecall.lowered import blas_handle

T = TypeVar("T")

RELAXED = 2
"""The driver's mode of a capture during which all threads may call what they like."""
NOT_BLOCKING = 1
"""The driver's flag of a stream that has nothing to do with the default stream."""


def can_capture(device: torch.device) -> bool:
    """Whether launches can be captured here and now: not while somebody else captures them."""
    return is_gpu(device) and not is_capturing(device)


def _ask(name: str, *given: Any) -> None:
    found = function(DRIVER, name)
    code = "no such function" if found is None else found(*given)
    if code:
        raise RuntimeError(f"CUDA refused {name} ({code})")


class Graph:
    """Captured launches."""

    def __init__(self, template: ctypes.c_void_p) -> None:
        self._handle = ctypes.c_void_p()
        self._launch, self._destroy = (function(DRIVER, name) for name in ("cuGraphLaunch", "cuGraphExecDestroy"))
        _ask("cuGraphInstantiateWithFlags", ctypes.byref(self._handle), template, ctypes.c_ulonglong(0))

    def launch(self, stream: int) -> None:
        """Launch all of them."""
        code = self._launch(self._handle, ctypes.c_void_p(stream))
        if code:
            raise RuntimeError(f"CUDA refused to launch a graph ({code})")

    def __del__(self) -> None:
        if self._handle:
            self._destroy(self._handle)


_beside: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
"""Nothing ever runs on these streams. There is one for each stream on which graphs are launched, because what launches of a
stream share, such as the library's working memory and the counters of sweeps, must not be shared by graphs that run at once."""


def _stream_beside(device: torch.device, stream: int) -> torch.cuda.Stream:
    """For captures of what will be launched on a stream."""
    found = _beside.get((device, stream))
    if found is None:
        made = ctypes.c_void_p()
        _ask("cuStreamCreate", ctypes.byref(made), NOT_BLOCKING)
        found = _beside[device, stream] = torch.cuda.ExternalStream(made.value or 0, device)
        counter(device, found.cuda_stream)
    return found


def captured(device: torch.device, work: Callable[[], T]) -> tuple[Graph, T]:
    """What some work launches, to be launched on the current stream later, and what the work gives. It must not ask for
    memory, and must have been done once. A RuntimeError where it cannot be captured; nothing is left behind then."""
    stream = _stream_beside(device, current_stream(device))
    handle = ctypes.c_void_p(stream.cuda_stream)
    with torch.cuda.stream(stream):
        blas_handle()  # the library takes its working memory when it first meets a stream
        _ask("cuStreamBeginCapture_v2", handle, RELAXED)
        try:
            results = work()
        except BaseException:
            _drop(_ended(handle))
            raise
        template = _ended(handle)
    try:
        return Graph(template), results
    finally:
        _drop(template)


def _ended(stream: ctypes.c_void_p) -> ctypes.c_void_p:
    template = ctypes.c_void_p()
    _ask("cuStreamEndCapture", stream, ctypes.byref(template))
    return template


def _drop(template: ctypes.c_void_p) -> None:
    _ask("cuGraphDestroy", template)
