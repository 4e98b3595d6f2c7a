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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FLAGS = ("-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")

NAME = "NAME"
"""What a function is called in its own text, before it has a name."""


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
    (library,) = _libraries(path, effort, "", {_digest(path, effort, source): source})
    return library


def function_name(path: str, head: str, text: str) -> str:
    """The name under which a function is found again: it tells all that its code depends on."""
    return f"weft_{_digest(path, '-O3', head + text)}"


def build_functions(path: str, head: str, texts: Mapping[str, str]) -> list[Any]:
    """Functions by their names, each called NAME in its text. What is not kept yet is compiled in one go, after `head`."""
    libraries = _libraries(path, "-O3", head, {name: text.replace(NAME, name) for name, text in texts.items()})
    return [getattr(library, name) for name, library in zip(texts, libraries, strict=True)]


def _libraries(path: str, effort: str, head: str, texts: Mapping[str, str]) -> list[ctypes.CDLL]:
    """A library for each text, under its name."""
    for place in (cache_folder, _temporary_folder):
        try:
            folder = place()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = {name: folder / f"{name}.so" for name in texts}
            missing = [name for name, file in files.items() if not file.exists()]
            if missing:
                source = "\n".join([head, *(texts[name] for name in missing)])
                _compile(path, source, effort, [files[name] for name in missing])
            return [ctypes.CDLL(str(file)) for file in files.values()]
        except OSError:
            continue
    raise OSError("no folder to compile in")


def _compile(path: str, source: str, effort: str, libraries: Sequence[Path]) -> None:
    """One library under several names; each is put there at once, so that two processes at a time do no harm."""
    with tempfile.TemporaryDirectory(dir=libraries[0].parent) as folder:
        code, made, named = (Path(folder) / name for name in ("piece.c", "piece.so", "named.so"))
        code.write_text(source)
        command = [path, effort, *FLAGS, "-o", str(made), str(code), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        for library in libraries:
            named.unlink(missing_ok=True)
            try:
                os.link(made, named)
            except OSError:  # a file system without links
                shutil.copyfile(made, named)
            named.replace(library)


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "weft"
    except RuntimeError:  # somebody whom the system does not know, as in a container
        return _temporary_folder()


def _temporary_folder() -> Path:
    """One for this user alone: others may write beside it, and what lies in it is run."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"weft-{user}"
    folder.mkdir(exist_ok=True, mode=0o700)
    if folder.lstat().st_uid != user:
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _digest(path: str, effort: str, source: str) -> str:
    what = "\n".join((path, effort, " ".join(FLAGS), _processor(), source))
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.processor()
