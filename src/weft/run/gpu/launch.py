"""Loading generated kernels and launching them with little work on the host.

Triton's own launcher looks at every argument at every launch. Here that happens once for each way in which arguments can differ
(alignment of pointers), and the compiled kernel is launched directly after that.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor

from weft.graph.placed import type_of


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, one operation at a time."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def usable(device: torch.device) -> bool:
    """Whether generated kernels can run on a device."""
    return has_triton() and (is_gpu(device) or (device.type == "cpu" and interpreted()))


def is_gpu(device: torch.device) -> bool:
    """Whether there is a driver that copies and launches."""
    return type_of(device) == "cuda"


def current_stream(device: torch.device) -> int:
    """The handle of a device's current stream; 0 without one."""
    return torch._C._cuda_getCurrentRawStream(device.index or 0) if is_gpu(device) else 0


def is_capturing(device: torch.device) -> bool:
    """Whether launches on the current stream are captured instead of run."""
    return is_gpu(device) and torch._C._cuda_isCurrentStreamCapturing()


Fresh = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
_fast: Fresh | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)


def allocator(device: torch.device) -> Fresh:
    """Makes tensors with unknown contents from sizes, strides and dtype; on the current GPU by a short way."""
    if _fast is not None and is_gpu(device) and device.index == torch._C._cuda_getDevice():
        return _fast
    return lambda sizes, strides, dtype: torch.empty(sizes, dtype=dtype, device=device)


def fresh_behind(fresh: Fresh, before: int, sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of memory that are numbered from `before` on: as part of all rows, of which nobody uses those before, and alone.

    Where a call is lowered, there is no memory for those before.
    """
    rows = (before + sizes[0], *sizes[1:])
    strides = [prod(rows[at + 1 :]) for at in range(len(rows))]
    every = fresh(rows, tuple(strides), dtype)
    return every, every.narrow(0, before, sizes[0])


def fresh_text(sizes: Sequence[str | int], dtype: torch.dtype | None, name: str = "fresh") -> str:
    """The call of an allocator."""
    strides: list[str | int] = []
    apart: str | int = 1
    for size in reversed(sizes):
        strides.append(apart)
        apart = size * apart if isinstance(size, int) and isinstance(apart, int) else f"({size}) * {apart}"
    return f"{name}({_tuple(sizes)}, {_tuple(strides[::-1])}, {dtype})"


def _tuple(items: Sequence[str | int]) -> str:
    return f"({', '.join(map(str, items))}{',' * (len(items) == 1)})"


class Quick:
    """Launches a kernel whose arguments are `numbers` numbers, n0, n1, ... and then tensors, always of the same kinds.

    `go(*numbers, *tensors)` launches `grid` programs, a text in terms of the numbers. After the first launch with aligned
    memory it is a function that does for these tensors only what differs from launch to launch.
    """

    def __init__(self, kernel: Kernel, numbers: int, grid: str, constants: tuple[Any, ...] = ()) -> None:
        self.kernel, self.numbers, self.grid, self.constants = kernel, numbers, grid, constants
        self.go: Callable[..., None] = self._go

    def _go(self, *arguments: Any) -> None:
        there = arguments[-1].device
        # Single numbers may be elsewhere, as torch allows.
        tensors = [one if one.device == there else one.to(there) for one in arguments[self.numbers :]]
        numbers = arguments[: self.numbers]
        programs = eval(self.grid, {f"n{at}": number for at, number in enumerate(numbers)})
        self.kernel.launch(programs, there, (*numbers, *tensors), self.constants)
        if self.go == self._go and (there.index, True, self.constants) in self.kernel.compiled:
            self.go = self._written(there.index, len(tensors))

    def _written(self, index: int, many: int) -> Callable[..., None]:
        ready = self.kernel.compiled[index, True, self.constants]
        numbers, tensors, at = ([f"{name}{i}" for i in range(n)] for name, n in (("n", self.numbers), ("t", many), ("p", many)))
        fixed = [f"fixed{i}" for i in range(len(self.kernel.fixed[ready]))]
        text = f"""def go({", ".join(numbers + tensors)}):
    {", ".join(at)}, = {", ".join(f"{one}.data_ptr()" for one in tensors)},
    programs = {self.grid}
    if ({" | ".join(at)}) & 15 or not programs or not ({" == ".join(f"{one}.get_device()" for one in tensors)} == {index}):
        return general({", ".join(numbers + tensors)})
    ready(programs, 1, 1, stream({index}), {", ".join([*fixed, *numbers, *at, *map(repr, self.constants)])})
"""
        space = {"general": self._go, "ready": ready, "stream": torch._C._cuda_getCurrentRawStream}
        space |= dict(zip(fixed, self.kernel.fixed[ready], strict=True))
        exec(compile(text, "weft_launch.py", "exec"), space)
        made: Callable[..., None] = space["go"]
        return made


class Kernel:
    """One generated kernel. The last parameters, `constants`, are compile-time numbers.

    With `asserts` it stops the device where an assertion in it does not hold.
    """

    def __init__(
        self, source: str, name: str, warps: int = 4, stages: int = 3, cooperative: bool = False, asserts: bool = False
    ) -> None:
        self.source = source
        self.function = _load(source, name)
        self.options = {"num_warps": warps, "num_stages": stages}
        if cooperative and not interpreted():
            self.options["launch_cooperative_grid"] = True
        if asserts:
            self.options |= {"debug": True, "sanitize_overflow": False}
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
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
            compiled, *fixed = _launcher(made)
            self.compiled[key], self.fixed[compiled], self._made[key] = compiled, tuple(fixed), made
        return compiled

    def made(self, device: torch.device, kinds: Sequence[torch.dtype | None], constants: tuple[Any, ...], aligned: bool) -> Any:
        """The compiled kernel itself, for those who launch it by the driver."""
        self.ready(device, kinds, constants, aligned)
        return self._made[device.index, aligned, constants]

    def _compile(self, kinds: Sequence[torch.dtype | None], constants: tuple[Any, ...], aligned: bool) -> Any:
        """Compile without looking at the values of numbers, and at the alignment of pointers only as a whole."""
        from triton.runtime.jit import MockTensor

        given = [1 if kind is None else MockTensor(kind, [1]) for kind in kinds]
        for one in given:
            if not aligned and isinstance(one, MockTensor):
                one.data_ptr = lambda: 1
        options = self.options
        if not aligned and options.get("launch_cooperative_grid"):
            options = {**options, "num_stages": 1}  # see Job._whole_words
        compiled = self.function.warmup(*given, *constants, grid=(1,), **options)
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        compiled._init_handles()
        return compiled


def _launcher(made: Any) -> tuple[Any, ...]:
    """What launches a compiled kernel, and what it is always given: Triton's own launcher, or the C function behind it."""
    import triton

    run = made.run
    known = triton.__version__.startswith("3.6.") and hasattr(run, "launch")
    if known and not (run.global_scratch_size or run.profile_scratch_size):
        how = run.launch_cooperative_grid, run.launch_pdl, None, None
        return run.launch, made.function, *how, made.packed_metadata, None, None, None
    return run, made.function, made.packed_metadata, None, None, None


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
