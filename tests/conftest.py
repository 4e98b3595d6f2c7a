"""Every plan that any test makes is verified; without a GPU, Triton's kernels are interpreted."""

import os

import torch

os.environ["WEFT_VERIFY"] = "1"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
