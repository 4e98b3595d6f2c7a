"""N-ary Tree-LSTM in DGL, level by level, for an interpreter that has DGL and torch and nothing of weft.

    python dgl_tree_lstm.py CASE.npz OUT.npz --repeat 7

Takes, gives and prints what `dynet_tree_lstm.py` does. A step is batching the trees' graphs, finding the levels, forward and
backward. Leaves take no part in the message passing.
"""

import argparse
import json
import time
from typing import Any

import dgl  # type: ignore[import-not-found]
import numpy as np
import torch
import torch.nn.functional as F
from timed import timed  # type: ignore[import-not-found]

NAMES = ("leaf_weight", "leaf_bias", "node_weight", "node_bias", "out_weight", "out_bias")


class TreeLSTM:
    def __init__(self, case: dict[str, Any]) -> None:
        self.parameters = {name: torch.tensor(case[name], requires_grad=True) for name in NAMES}
        self.d = case["leaf_weight"].shape[0] // 3

    def message(self, edges: Any) -> dict[str, Any]:
        return {"h": edges.src["h"], "c": edges.src["c"]}

    def reduce(self, nodes: Any) -> dict[str, Any]:
        d, p = self.d, self.parameters
        h, c = nodes.mailbox["h"].view(-1, 2 * d), nodes.mailbox["c"]
        gates, update = F.linear(h, p["node_weight"], p["node_bias"]).split_with_sizes([4 * d, d], 1)
        i, o, forget = gates.sigmoid().split_with_sizes([d, d, 2 * d], 1)
        new = i * update.tanh() + (forget.view(-1, 2, d) * c).sum(1)
        return {"h": o * new.tanh(), "c": new}

    def logits(self, trees: list[dict[str, Any]], x: torch.Tensor) -> torch.Tensor:
        d, p = self.d, self.parameters
        graph = dgl.batch([tree["graph"] for tree in trees])
        leaf, *levels = dgl.topological_nodes_generator(graph)
        i, o, u = F.linear(x, p["leaf_weight"], p["leaf_bias"]).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        empty = x.new_zeros(graph.num_nodes(), d)
        graph.ndata["h"] = empty.index_copy(0, leaf, o.sigmoid() * c.tanh())
        graph.ndata["c"] = empty.index_copy(0, leaf, c)
        graph.prop_nodes(levels, self.message, self.reduce)
        return F.linear(graph.ndata["h"], p["out_weight"], p["out_bias"])

    def train(self, batch: dict[str, Any]) -> float:
        for parameter in self.parameters.values():
            parameter.grad = None
        loss = F.cross_entropy(self.logits(batch["trees"], batch["x"]), batch["labels"], reduction="sum")
        loss.backward()
        return loss.item()

    def infer(self, batch: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return self.logits(batch["trees"], batch["x"])


def make_batch(case: dict[str, Any], spans: list[tuple[int, int]]) -> dict[str, Any]:
    """Graphs of the trees, with the leaves' rows and all labels of the batch ready."""
    trees, words, labels = [], [], []
    for start, end in spans:
        children = case["children"][start:end]
        inner = np.flatnonzero(children[:, 0] >= 0)
        source, target = children[inner].reshape(-1), np.repeat(inner, 2)
        graph = dgl.graph((torch.tensor(source), torch.tensor(target)), num_nodes=end - start)
        trees.append({"graph": graph})
        words.append(case["words"][start:end])
        labels.append(case["labels"][start:end])
    ids = np.concatenate(words)
    table = torch.from_numpy(case["table"])
    return {"trees": trees, "x": table[torch.from_numpy(ids[ids >= 0])], "labels": torch.from_numpy(np.concatenate(labels))}


def batches(case: dict[str, Any]) -> list[dict[str, Any]]:
    """One batch, or each tree by itself."""
    ends = np.cumsum(case["sizes"]).tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    return [make_batch(case, [span]) for span in spans] if case["single"] else [make_batch(case, spans)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("out")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with np.load(chosen.case) as stored:
        case = {name: stored[name] for name in stored.files}
    model, groups = TreeLSTM(case), batches(case)
    loss = model.train(groups[0])
    gradients: dict[str, Any] = {name: p.grad.numpy() for name, p in model.parameters.items() if p.grad is not None}
    np.savez(chosen.out, loss=np.array(loss), **gradients)
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    result = {name: timed(getattr(model, name), groups, chosen.repeat, clock) for name in ("train", "infer")}
    print(json.dumps({**result, "version": dgl.__version__}))


if __name__ == "__main__":
    main()
