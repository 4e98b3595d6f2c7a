"""A recipe as one call: compiled, bound to the driver and the library, and called."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Hashable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import torch

from weft.cc import build, compiler
from weft.plan.library import address
from weft.run.gpu.counts import counter
from weft.run.gpu.driver import bind_thread
from weft.run.gpu.launch import Kernel, is_gpu
from weft.run.gpu.onecall.kept import Kept
from weft.run.gpu.onecall.later import Unfinished
from weft.run.gpu.onecall.library import functions
from weft.run.gpu.onecall.note import LISTS, Given, Noted, kind_of_fact, note
from weft.run.gpu.onecall.numbers import NotLowered, floor
from weft.run.gpu.onecall.text import FIRST_KERNEL, FIRST_VARIABLE, OF_KERNEL, Writer
from weft.run.gpu.onecall.wrapper import views_text, wrapper_text
from weft.run.indices import Indices
from weft.run.recipe import Fact, Recipe


def blas_handle() -> int:
    """The library's handle for the current stream, with torch's settings."""
    handle: int = torch._C._cuda_getCurrentBlasHandle()
    return handle


def _steps(number: Any) -> Fact:
    def found(indices: Indices) -> tuple[int, int, int]:
        group = indices.plan.groups[number]
        return address(group.step_lo), address(group.step_hi), group.steps

    return found


def _starts(number: Any) -> Fact:
    return lambda indices: address(indices.plan.reads[number].slices)


def _maker(key: Hashable, make: Fact) -> Fact:
    """Of one of a recipe's facts; lists as C reads them."""
    if kind_of_fact(key) not in LISTS:
        return make
    assert isinstance(key, tuple)
    return _starts(key[1]) if key[0] == "starts" else _steps(key[1])


def _makers(recipe: Recipe, before: Recipe | None) -> dict[str, tuple[Hashable, Fact]]:
    """Of all facts: their keys and what makes them, by name. Some are known to the recipe that ran before."""
    earlier = [] if before is None else list(_makers(before, None).values())
    found = {}
    for at, (key, make) in enumerate(recipe.makers.items()):
        found[f"f{at}"] = key, _maker(key, make) if callable(make) else earlier[make][1]
    return found


MOST_VERSIONS = 4
"""Of one recipe."""


def can_lower(device: torch.device) -> bool:
    """Whether there is a driver that launches kernels."""
    return is_gpu(device)


@dataclass(eq=False)
class Versions:
    """A recipe as one call: in several versions, because what sizes decide was decided for the call that it was made of."""

    kept: list[Lowered] = field(default_factory=list)
    refused: str | None = None
    """Why there are no more."""

    @staticmethod
    def of(recipe: Recipe, device: torch.device, before: Lowered | None, as_one: bool = False) -> Versions:
        """`before`: what ran the forward pass, whose memory a backward pass uses again; `as_one`: it comes as `Kept`."""
        found: Versions | None = recipe.whole.get((device, before, as_one))
        if found is None:
            found = recipe.whole.setdefault((device, before, as_one), Versions())
        return found

    def add(
        self, recipe: Recipe, before: tuple[Recipe, Lowered | None] | None, indices: Indices, given: Given
    ) -> Lowered | None:
        """One for what a call gave, to which none was suited; None where there is not to be one."""
        if len(self.kept) >= MOST_VERSIONS:
            self.refused = "too many versions"
        if self.refused is not None:
            return None
        earlier, forward = before or (None, None)
        facts = recipe.facts(indices, () if earlier is None else earlier.facts(indices))
        try:
            noted = note(recipe, None if forward is None else forward.noted, facts, given, indices.device)
            self.kept.append(Lowered(noted, _makers(recipe, earlier), indices))
        except NotLowered as why:
            self.refused = str(why)
            return None
        return self.kept[-1]


class Lowered:
    """A recipe as one call: `run(facts, tensors, chosen, saved, grads, owned, stream, fresh)`.

    That gives None where the recipe must do it.
    """

    def __init__(self, noted: Noted, makers: dict[str, tuple[Hashable, Fact]], indices: Indices) -> None:
        texts = indices.texts([key for key, _ in makers.values()])
        self.told = {name: texts[key] for name, (key, _) in makers.items() if key in texts}
        self.rest = [make for name, (_, make) in makers.items() if name not in self.told]
        self.noted, self.text, self.device = noted, Writer(noted, self.told).write(), indices.device
        path, known = compiler(), functions()
        if path is None or known is None:
            raise NotLowered("no compiler")
        try:
            library = build(path, self.text.source, "-O1")
        except (OSError, subprocess.SubprocessError):
            raise NotLowered("a compiler that cannot") from None
        self._room, self._call = library.weft_room, library.weft_call
        self._room.restype, self._room.argtypes = ctypes.c_int64, [ctypes.c_char_p]
        self._call.restype, self._call.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
        self.table = (ctypes.c_int64 * (FIRST_KERNEL + OF_KERNEL * len(self.text.kernels)))(*known)
        for number, (kernel, *_) in enumerate(self.text.kernels):
            if isinstance(kernel, Kernel):
                self._compile(number)
        self.source = wrapper_text(noted, self.text.variables, self.told)
        if noted.kept_as_one:
            self.source = views_text(noted.results[1]) + self.source
        if noted.recorder.later.lines:
            self.source = noted.recorder.later.text(noted.results) + self.source
        self.run = self._loaded()

    def facts(self, indices: Indices) -> tuple[Any, ...]:
        """What the call needs to know of a plan."""
        told = indices.told if self.told else ()
        return (*told, *[make(indices) for make in self.rest]) if self.rest else told

    def _compile(self, number: int) -> None:
        """Put a kernel into the table of functions."""
        kernel, constants, kinds, aligned = self.text.kernels[number]
        at = FIRST_KERNEL + OF_KERNEL * number
        if isinstance(kernel, Kernel):
            made, programs = kernel.made(self.device, kinds, constants, aligned), 0
        else:
            walk, width = kernel
            made, programs = walk.made(width, self.device, aligned)
        if made.metadata.global_scratch_size or made.metadata.profile_scratch_size or made.metadata.num_ctas != 1:
            raise NotLowered("a kernel that wants memory of its own")
        self.table[at : at + OF_KERNEL] = [made.function, programs, 32 * made.metadata.num_warps, made.metadata.shared]

    def room(self, given: bytes) -> int:
        """Bytes of working memory, and one more where the library multiplies; negative where the recipe must do it."""
        while (found := self._room(given)) < -1:
            self._compile(-2 - found)
        return int(found)

    def done(self, given: bytes, room: int, blas: int) -> None:
        """Launch everything; `blas`: the library's handle, if it multiplies."""
        failed = self._call(given, room, blas)
        if failed:
            raise RuntimeError(f"CUDA refused a launch or a product (codes {failed:#x} together)")

    def _loaded(self) -> Any:
        space = {
            "torch": torch,
            "aten": torch.ops.aten,
            "FLOOR": floor,
            "constants": self.noted.recorder.constants,
            "Kept": Kept,
            "Unfinished": Unfinished,
            "numbers": Struct(f"{FIRST_VARIABLE + len(self.text.variables)}q").pack,
            "table": ctypes.addressof(self.table),
            "bind": bind_thread,
            "blas": blas_handle,
            "counter": counter,
            "device": self.device,
            "room": self.room,
            "done": self.done,
        }
        exec(compile(self.source, "weft_onecall.py", "exec"), space)
        return space["run"]
