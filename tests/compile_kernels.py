"""Compiles kernels for a GPU that is not there: `python compile_kernels.py FILE`, a list of kernels as JSON.

A process of its own, because Triton either interprets all kernels of a process or none. Prints how many were compiled; the
first one that cannot be is an error.
"""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path
from typing import Any

HOPPER = ("cuda", 90, 32)
SHARED = 232_448
"""Bytes that a program may share between its warps there."""


def compiled(number: int, kernel: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    file, source = f"<kernel {number}>", kernel["source"]
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": f"kernel_{number}"}
    exec(compile(source, file, "exec"), space)
    function, kinds, constants = space[kernel["name"]], kernel["kinds"], kernel["constants"]
    signature = dict(zip(function.arg_names, [*kinds, *["constexpr"] * len(constants)], strict=True))
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(kinds) if kind.startswith("*")}
    fixed = {(len(kinds) + at,): constant for at, constant in enumerate(constants)}
    given = ASTSource(function, signature=signature, constexprs=fixed, attrs=aligned)
    return triton.compile(given, target=GPUTarget(*HOPPER), options=kernel["options"])


if __name__ == "__main__":
    kernels = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for number, kernel in enumerate(kernels):
        made = compiled(number, kernel)
        if made.metadata.shared > SHARED:
            raise SystemExit(f"{kernel['name']} wants {made.metadata.shared} bytes of shared memory\n{kernel['source']}")
    print(len(kernels), "compiled")
