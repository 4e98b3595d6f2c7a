"""Ready vertex functions: the recurrent, tree and grid networks of the papers, each written for one vertex."""

from weft.nn.grid import GridCell
from weft.nn.recurrent import GRU, LSTM
from weft.nn.tree import GatedTree, TreeFC, TreeFCLeaf, TreeFCNode, TreeGRU
from weft.nn.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM, TreeLSTMLeaf, TreeLSTMNode

__all__ = [
    "GRU",
    "LSTM",
    "ChildSumTreeLSTM",
    "GatedTree",
    "GridCell",
    "NaryTreeLSTM",
    "TreeFC",
    "TreeFCLeaf",
    "TreeFCNode",
    "TreeGRU",
    "TreeLSTMLeaf",
    "TreeLSTMNode",
]
