"""The workloads by name. Each file writes one network in every way it is compared in."""

from collections.abc import Callable

from benchmarks.workloads import blocks_tree_lstm, child_sum, grid, imperative, ragged_lstm, tree_fc, tree_lstm
from benchmarks.workloads.common import CaseSpec, Options

WORKLOADS: dict[str, Callable[[Options], list[CaseSpec]]] = {
    "tree_lstm": tree_lstm.cases,
    "blocks_tree_lstm": blocks_tree_lstm.cases,
    "child_sum": child_sum.cases,
    "tree_fc": tree_fc.cases,
    "ragged_lstm": ragged_lstm.cases,
    "grid": grid.cases,
    "imperative": imperative.cases,
}
