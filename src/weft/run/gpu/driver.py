"""Functions of the CUDA driver and of cuBLAS, found in the libraries that torch has loaded."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any

import torch

DRIVER, LIBRARY = "libcuda.so", "libcublas.so"


@functools.cache
def _files() -> dict[str, str]:
    """The files of loaded libraries, by name."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return {}
    found = (line.split(maxsplit=5) for line in lines)
    return {Path(parts[5]).name: parts[5] for parts in found if len(parts) == 6}


@functools.cache
def function(library: str, name: str) -> Any:
    """A function that gives 0 where all is well; None where there is none."""
    file = next((file for known, file in sorted(_files().items()) if known.startswith(library)), None)
    return None if file is None else getattr(ctypes.CDLL(file), name, None)


_thread = threading.local()


def bind_thread() -> None:
    """The driver wants to know a thread before it is called there; torch's own calls see to that."""
    if not getattr(_thread, "bound", False):
        torch.cuda.current_stream().query()
        _thread.bound = True
