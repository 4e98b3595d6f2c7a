"""Checks that anyone can run: batched equals one by one, on random structures and random programs.

>>> import weft.testing
>>> fn, inputs = weft.testing.random_program(seed=3)
>>> weft.testing.assert_equivalent(fn, *inputs)
"""

from weft.testing.equivalence import assert_equivalent
from weft.testing.programs import RandomProgram, random_program
from weft.testing.structures import random_structure

__all__ = ["RandomProgram", "assert_equivalent", "random_program", "random_structure"]
