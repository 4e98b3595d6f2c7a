"""Runs the twin of the Tree-LSTM workload in an interpreter that has the other system, and compares its numbers first."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import data
from benchmarks.harness import Mode, Timing, Unequal, difference
from benchmarks.workloads import tree_lstm
from benchmarks.workloads.common import CaseSpec, Options, part
from weft.nn import NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode

SCRIPTS = {"DyNet": "dynet_tree_lstm.py", "DGL": "dgl_tree_lstm.py"}
TOLERANCE = 1e-4  # float32, and DyNet approximates tanh and the logistic function in its own way


class PeerFailed(Exception):
    """The other interpreter could not run the workload."""


def _parameters(model: NaryTreeLSTM) -> dict[str, torch.nn.Parameter]:
    leaf, node = part(model, TreeLSTMLeaf), part(model, TreeLSTMNode)
    layers = {"leaf": leaf.input, "node": node.hidden, "out": node.out}
    return {f"{name}_{which}": getattr(layer, which) for name, layer in layers.items() for which in ("weight", "bias")}


def _write(path: Path, model: NaryTreeLSTM, groups: Sequence[Sequence[data.BinaryTree]], table: Tensor) -> None:
    trees = [tree for group in groups for tree in group]
    arrays: dict[str, Any] = {name: value.detach().numpy() for name, value in _parameters(model).items()}
    for name in ("children", "words", "labels"):
        arrays[name] = np.concatenate([getattr(tree, name) for tree in trees])
    sizes = np.array([len(tree.words) for tree in trees])
    np.savez(path, single=np.array(len(groups) > 1), table=table.numpy(), sizes=sizes, **arrays)


def _compare(peer: str, path: Path, model: NaryTreeLSTM, trees: Sequence[data.BinaryTree], table: Tensor) -> None:
    hand = next(v for v in tree_lstm.make_instance(model, trees, table).variants if v.role == "hand")
    model.zero_grad()
    wanted = {"loss": hand.train(), **{name: p.grad for name, p in _parameters(model).items()}}
    with np.load(path) as got:
        for name, tensor in wanted.items():
            assert tensor is not None
            gap = difference(torch.from_numpy(got[name]).reshape(tensor.shape), tensor)
            if gap > TOLERANCE:
                raise Unequal(f"{peer}: {name} differs by {gap:.2g}")


def measure(peer: str, python: str, case: CaseSpec, options: Options, repeat: int, clock: str = "wall") -> dict[Mode, Timing]:
    """Milliseconds of the other system on the trees of this case of the Tree-LSTM workload."""
    trees, table = tree_lstm.load(options)
    groups, table = tree_lstm.batch_of(trees, case.batch), table.float()
    model = tree_lstm.make_model(torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        given, got = Path(folder, "case.npz"), Path(folder, "out.npz")
        _write(given, model, groups, table)
        script = str(Path(__file__).parent / SCRIPTS[peer])
        command = [python, script, str(given), str(got), "--repeat", str(repeat), "--clock", clock]
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise PeerFailed(f"{python} could not run the {peer} twin:\n{done.stderr.strip()[-2000:]}")
        _compare(peer, got, model, groups[0], table)
    result = json.loads(done.stdout.splitlines()[-1])
    return {"train": Timing(**result["train"]), "infer": Timing(**result["infer"])}
