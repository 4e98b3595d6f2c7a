"""Execution: the reference engine, one node at a time, and the batched engine."""
