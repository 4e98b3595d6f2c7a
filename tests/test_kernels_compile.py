"""Kernels are not only interpreted: Triton compiles them for a GPU, which it can do without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
import weft.nn
from kernel_parts import NEEDS_INTERPRETER, fast_products, results, tree
from random_cells import random_case
from weft.run.gpu.launch import Kernel
from weft.run.gpu.sweep import Walk

pytestmark = [*NEEDS_INTERPRETER, pytest.mark.filterwarnings("ignore::weft.FallbackWarning")]

POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1"}
PROGRAMS = 132


class Kernels:
    """All kernels that calls launch from here on, and those that other widths of steps would need."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[Any, dict[str, Any]] = {}
        made, launch, start = Kernel.__init__, Kernel.launch, Walk.start

        def named(kernel: Any, source: str, name: str, *rest: Any, **options: Any) -> None:
            made(kernel, source, name, *rest, **options)
            kernel.name, kernel.is_cooperative = name, options.get("cooperative", False)

        def launched(kernel: Any, programs: int, device: Any, arguments: Any, constants: Any = ()) -> None:
            self.note(kernel, arguments, constants)
            launch(kernel, programs, device, arguments, constants)

        def started(walk: Walk, turns: Any, device: Any, stream: int, low: int, table: Any, *arguments: Any) -> None:
            for sweep in walk.sweeps.values():
                self.note(sweep.kernel, [table, 0, 0, table, *arguments], (PROGRAMS,))
            start(walk, turns, device, stream, low, table, *arguments)

        monkeypatch.setattr(Kernel, "__init__", named)
        monkeypatch.setattr(Kernel, "launch", launched)
        monkeypatch.setattr(Walk, "start", started)

    def note(self, kernel: Any, arguments: Any, constants: Any) -> None:
        if not hasattr(kernel, "name"):  # made before, by another test
            return
        kinds = ["i32" if type(one) is int else POINTERS[one.dtype] for one in arguments]
        options = {**kernel.options, **({"launch_cooperative_grid": True} if kernel.is_cooperative else {})}
        self.found[kernel.source, *kinds, constants] = {
            "source": kernel.source,
            "name": kernel.name,
            "kinds": kinds,
            "constants": constants,
            "options": options,
        }


def compile_all(kernels: Kernels, folder: Path) -> str:
    """What the process that compiles them prints."""
    file = folder / "kernels.json"
    file.write_text(json.dumps([*kernels.found.values()]), encoding="utf-8")
    surroundings = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": "0"}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, str(script), str(file)], env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_of_every_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, graph = Kernels(monkeypatch), weft.Graph.batch([tree(leaves) for leaves in (3, 5)])
    with fast_products():
        results(weft.nn.ChildSumTreeLSTM(5, 6), graph, torch.randn(graph.num_vertices, 5), "triton")
    assert len(kernels.found) >= 10  # five widths, both ways
    assert compile_all(kernels, tmp_path) == f"{len(kernels.found)} compiled\n"


def test_random_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch)
    for seed in range(6):
        model, graph, x, edges = random_case(seed)
        out = model.float()(
            graph, None if x is None else x.float(), edges=None if edges is None else edges.float(), backend="triton"
        )
        trained = [leaf for leaf in torch.utils._pytree.tree_leaves(out) if leaf.requires_grad]
        if trained:
            sum(leaf.sum() for leaf in trained).backward()
    assert compile_all(kernels, tmp_path) == f"{len(kernels.found)} compiled\n"
