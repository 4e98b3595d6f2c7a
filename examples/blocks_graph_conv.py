"""Weave modules (Kearnes et al., "Molecular graph convolutions", 2016): atoms and pairs of atoms learn from each other.

A molecule is `{"atoms": [vector, ...], "pairs": [[vector, ...], ...]}`, with a row of pairs for each atom.
"""

import torch

import weft.blocks as wb


def weave(atom_size: int, pair_size: int) -> wb.Block:
    """From (atoms, pairs) to (atoms, pairs)."""
    ends = wb.Function(wb.FC(pair_size))
    forth = wb.AllOf(wb.GetItem(0), wb.GetItem(1)) >> wb.Concat() >> ends
    back = wb.AllOf(wb.GetItem(1), wb.GetItem(0)) >> wb.Concat() >> ends
    either = wb.AllOf(forth, back) >> wb.Function(torch.add)
    pair = wb.AllOf(either, wb.GetItem(2) >> wb.FC(pair_size)) >> wb.Concat() >> wb.FC(pair_size)
    row = wb.AllOf(wb.GetItem(0) >> wb.Broadcast(), wb.GetItem(1), wb.GetItem(2)) >> wb.ZipWith(pair)
    pairs = wb.AllOf(wb.GetItem(0), wb.GetItem(0) >> wb.Broadcast(), wb.GetItem(1)) >> wb.ZipWith(row)
    atom = wb.Record((wb.FC(atom_size), wb.Map(wb.FC(pair_size)) >> wb.Sum())) >> wb.Concat() >> wb.FC(atom_size)
    return wb.AllOf(wb.ZipWith(atom), pairs)


def molecule_network(atoms: int, pairs: int, size: int, modules: int = 2) -> wb.Block:
    """From a molecule to a vector."""
    net = wb.Record([("atoms", wb.Map(wb.Vector(atoms))), ("pairs", wb.Map(wb.Map(wb.Vector(pairs))))])
    for _ in range(modules):
        net = net >> weave(size, size)
    return net >> wb.GetItem(0) >> wb.Sum()
