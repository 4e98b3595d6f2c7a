"""Kernels for a GPU, written in Triton and generated from traced cells."""
