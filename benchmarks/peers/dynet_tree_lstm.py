"""N-ary Tree-LSTM in DyNet with automatic batching, for an interpreter that has DyNet and numpy and nothing of weft.

    python dynet_tree_lstm.py CASE.npz OUT.npz --repeat 7

CASE.npz holds trees, word rows and parameters (`benchmarks/peers/run_peer.py` writes it); OUT.npz gets the gradients, for
comparison. Prints one line of JSON: milliseconds of a training step (building the graph, forward, backward) and of inference.
"""

import argparse
import json
import time
from typing import Any

import dynet_config  # type: ignore[import-not-found]

dynet_config.set(mem=2048, autobatch=1, random_seed=1)
import dynet as dy  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402
from timed import timed  # type: ignore[import-not-found]  # noqa: E402

Tree = tuple[Any, ...]  # children, words, labels: Python lists with an entry for each vertex
NAMES = ("leaf_weight", "leaf_bias", "node_weight", "node_bias", "out_weight", "out_bias")


class TreeLSTM:
    def __init__(self, case: dict[str, Any]) -> None:
        self.collection = dy.ParameterCollection()
        self.parameters = {name: self.collection.parameters_from_numpy(case[name]) for name in NAMES}
        self.table = self.collection.lookup_parameters_from_numpy(case["table"])
        self.d = case["leaf_weight"].shape[0] // 3

    def logits(self, children: list[tuple[int, int]], words: list[int]) -> list[Any]:
        """One expression for each vertex, children before parents."""
        d, p = self.d, self.parameters
        states: list[tuple[Any, Any]] = []
        out = []
        for (left, right), word in zip(children, words, strict=True):
            if left < 0:
                x = dy.lookup(self.table, word, update=False)
                rows = dy.affine_transform([p["leaf_bias"], p["leaf_weight"], x])
                gates = dy.logistic(dy.pick_range(rows, 0, 2 * d))
                i, o = dy.pick_range(gates, 0, d), dy.pick_range(gates, d, 2 * d)
                c = dy.cmult(i, dy.tanh(dy.pick_range(rows, 2 * d, 3 * d)))
            else:
                (h0, c0), (h1, c1) = states[left], states[right]
                rows = dy.affine_transform([p["node_bias"], p["node_weight"], dy.concatenate([h0, h1])])
                gates = dy.logistic(dy.pick_range(rows, 0, 4 * d))
                i, o, f0, f1 = (dy.pick_range(gates, k * d, (k + 1) * d) for k in range(4))
                update = dy.tanh(dy.pick_range(rows, 4 * d, 5 * d))
                c = dy.cmult(i, update) + dy.cmult(f0, c0) + dy.cmult(f1, c1)
            h = dy.cmult(o, dy.tanh(c))
            states.append((h, c))
            out.append(dy.affine_transform([p["out_bias"], p["out_weight"], h]))
        return out

    def train(self, trees: list[Tree]) -> float:
        dy.renew_cg()
        losses = []
        for children, words, labels in trees:
            losses += [dy.pickneglogsoftmax(y, label) for y, label in zip(self.logits(children, words), labels, strict=True)]
        loss = dy.esum(losses)
        value: float = loss.value()
        loss.backward()
        return value

    def infer(self, trees: list[Tree]) -> Any:
        dy.renew_cg()
        return dy.esum([y for children, words, _ in trees for y in self.logits(children, words)]).npvalue()


def batches(case: dict[str, Any]) -> list[list[Tree]]:
    """The trees as Python lists: one batch, or each tree by itself."""
    ends = np.cumsum(case["sizes"]).tolist()
    trees = []
    for start, end in zip([0, *ends], ends, strict=False):
        trees.append(tuple(case[name][start:end].tolist() for name in ("children", "words", "labels")))
    return [[tree] for tree in trees] if case["single"] else [trees]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("out")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    chosen = parser.parse_args()
    with np.load(chosen.case) as stored:
        case = {name: stored[name] for name in stored.files}
    model, groups = TreeLSTM(case), batches(case)
    loss = model.train(groups[0])
    np.savez(chosen.out, loss=loss, **{name: p.grad_as_array() for name, p in model.parameters.items()})
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    result = {name: timed(getattr(model, name), groups, chosen.repeat, clock) for name in ("train", "infer")}
    print(json.dumps({**result, "version": dy.__version__}))


if __name__ == "__main__":
    main()
