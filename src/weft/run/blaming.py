"""Who was it: rows of many examples fail at once, so where a batch fails one call after the other tells which one it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.utils.checkpoint import _StopRecomputationError

from weft.errors import FROM_OUTSIDE, WeftError
from weft.graph.calls import Library
from weft.graph.recording import CallProgram, References
from weft.run.calls import Blame, Group, run_calls
from weft.run.options import Options

NOBODY = (*FROM_OUTSIDE, torch.OutOfMemoryError, _StopRecomputationError)
"""Errors that no call is to blame for; the last is how a checkpoint says that it has what it needs."""


def run_blaming(
    library: Library, programs: Sequence[CallProgram], wanted: References, options: Options, blame: Blame, final: bool = True
) -> list[Group]:
    """Run calls; where one of them raises an error, `blame` is told which, and may add to what the error says."""
    try:
        return run_calls(library, programs, wanted, options, blame, final)
    except NOBODY:
        raise
    except Exception as error:
        if options.backend == "reference" or getattr(error, "__notes__", None):
            raise
        try:
            run_calls(library, programs, wanted, replace(options, backend="reference"), blame, final)
        except Exception as again:
            is_worded = isinstance(error, WeftError) and not isinstance(again, WeftError)
            raise (error if is_worded else again) from None
        raise
