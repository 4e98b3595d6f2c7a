"""The machine's C compiler, if it has one: source in, loaded library out. Libraries are kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")


@functools.cache
def compiler() -> str | None:
    """The compiler's path; None where there is none, or where WEFT_NATIVE=0 says to do without."""
    if os.environ.get("WEFT_NATIVE") == "0":
        return None
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    return found if found is not None and _works(found) else None


def _works(path: str) -> bool:
    try:
        build(path, "int weft_probe(int x) { return x + 1; }\n")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def build(path: str, source: str, effort: str = "-O3") -> ctypes.CDLL:
    """Compile and load; a library of equal source, flags, compiler and processor is compiled once."""
    what = "\n".join((path, effort, " ".join(FLAGS), _processor(), source))
    name = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
    for folder in (cache_folder(), Path(tempfile.gettempdir()) / f"weft-{os.getuid() if hasattr(os, 'getuid') else 0}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            library = folder / f"{name}.so"
            if not library.exists():
                _compile(path, source, effort, library)
            return ctypes.CDLL(str(library))
        except OSError:
            continue
    raise OSError("no folder to compile in")


def _compile(path: str, source: str, effort: str, library: Path) -> None:
    """Into a name of its own first, so that two processes at once do no harm."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        code, made = Path(folder) / "piece.c", Path(folder) / "piece.so"
        code.write_text(source)
        command = [path, effort, *FLAGS, "-o", str(made), str(code), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        made.replace(library)


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "weft"


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.processor()
