"""Loading generated kernels and launching them with little work on the host.

Triton's own launcher looks at every argument at every launch. Here that happens once for each way in which arguments can differ
(alignment of pointers), and the compiled kernel is launched directly after that.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
from collections.abc import Sequence
from importlib.util import find_spec
from operator import or_
from typing import Any

import torch
from torch import Tensor


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, one operation at a time."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def usable(device: torch.device) -> bool:
    """Whether generated kernels can run on a device."""
    return has_triton() and (device.type == "cuda" or (device.type == "cpu" and interpreted()))


def current_stream(device: torch.device) -> int:
    """The handle of a device's current stream; 0 without one."""
    return torch._C._cuda_getCurrentRawStream(device.index or 0) if device.type == "cuda" else 0


class Quick:
    """Launches a kernel whose arguments are some numbers and then tensors, always of the same kinds."""

    def __init__(self, kernel: Kernel, constants: tuple[Any, ...] = ()) -> None:
        self.kernel, self.constants = kernel, constants
        self._ready: dict[tuple[int | None, bool], tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, programs: int, numbers: tuple[int, ...], tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        if device.type != "cuda":
            self.kernel.launch(programs, device, (*numbers, *tensors), self.constants)
            return
        pointers = [tensor.data_ptr() for tensor in tensors]
        aligned = not functools.reduce(or_, pointers) & 15
        found = self._ready.get((device.index, aligned))
        if found is None:
            kinds = [*[None] * len(numbers), *[tensor.dtype for tensor in tensors]]
            ready = self.kernel.ready(device, kinds, self.constants, aligned)
            found = self._ready[device.index, aligned] = ready, self.kernel.fixed[ready]
        ready, fixed = found
        if programs:
            stream = torch._C._cuda_getCurrentRawStream(device.index)
            ready(programs, 1, 1, stream, *fixed, *numbers, *pointers, *self.constants)


class Kernel:
    """One generated kernel. The last parameters, `constants`, are compile-time numbers."""

    def __init__(self, source: str, name: str, warps: int = 4, stages: int = 3, cooperative: bool = False) -> None:
        self.source = source
        self.function = _load(source, name)
        self.options = {"num_warps": warps, "num_stages": stages}
        if cooperative and not interpreted():
            self.options["launch_cooperative_grid"] = True
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.fixed: dict[Any, tuple[Any, ...]] = {}
        """What every launch of a compiled kernel is given first."""

    def launch(self, programs: int, device: torch.device, arguments: Sequence[Any], constants: tuple[Any, ...] = ()) -> None:
        """Run on `programs` programs. Numbers among the arguments must not be compile-time constants in disguise."""
        if not programs:
            return
        if interpreted():
            self.function[(programs,)](*arguments, *constants)
            return
        kinds = [None if type(argument) is int else argument.dtype for argument in arguments]
        pointers = [argument if type(argument) is int else argument.data_ptr() for argument in arguments]
        aligned = not any(p & 15 for p, kind in zip(pointers, kinds, strict=True) if kind is not None)
        ready = self.ready(device, kinds, constants, aligned)
        ready(programs, 1, 1, current_stream(device), *self.fixed[ready], *pointers, *constants)

    def ready(
        self, device: torch.device, kinds: Sequence[torch.dtype | None], constants: tuple[Any, ...], aligned: bool
    ) -> Any:
        """The compiled kernel's launcher, to be called with `fixed` and the addresses. `kinds`: what arguments point to."""
        key = (device.index, aligned, constants)
        compiled = self.compiled.get(key)
        if compiled is None:
            with torch.cuda.device(device):
                made = self._compile(kinds, constants, aligned)
            compiled = self.compiled[key] = made.run
            self.fixed[compiled] = (made.function, made.packed_metadata, None, None, None)
        return compiled

    def _compile(self, kinds: Sequence[torch.dtype | None], constants: tuple[Any, ...], aligned: bool) -> Any:
        """Compile without looking at the values of numbers, and at the alignment of pointers only as a whole."""
        from triton.runtime.jit import MockTensor

        given = [1 if kind is None else MockTensor(kind, [1]) for kind in kinds]
        for one in given:
            if not aligned and isinstance(one, MockTensor):
                one.data_ptr = lambda: 1
        compiled = self.function.warmup(*given, *constants, grid=(1,), **self.options)
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        compiled._init_handles()
        return compiled


_loaded: dict[str, Any] = {}


def _load(source: str, name: str) -> Any:
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    if (found := _loaded.get(key + name)) is None:
        file = f"<weft kernel {key}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        space: dict[str, Any] = {"__name__": f"weft_kernel_{key}"}
        exec(compile(source, file, "exec"), space)
        found = _loaded[key + name] = space[name]
    return found
