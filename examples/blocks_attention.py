"""Feed-forward attention (Raffel and Ellis, 2015): the softmax of a learned score weights the items of a sequence."""

import torch

import weft.blocks as wb


def attention() -> wb.Block:
    score = wb.Function(wb.FC(1, torch.tanh)) >> wb.Function(lambda s: s[0])
    weights = wb.Map(score) >> wb.Softmax()
    return wb.AllOf(wb.Identity(), weights) >> wb.ZipWith(wb.Function(torch.mul)) >> wb.Sum()


def in_one_block() -> wb.Block:
    return wb.Attend(wb.Function(wb.FC(1, torch.tanh)) >> wb.Function(lambda s: s[0]))
