"""Evaluating examples: record, run, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_map_only

from weft.blocks.block import Block
from weft.blocks.building import BlockProgram, Builder, merge, numbered, side_by_side
from weft.blocks.code import Code, code_of, leaves_of, surroundings
from weft.blocks.diagnose import explained, note_place
from weft.blocks.results import Results, empty_rows, wanted_of
from weft.errors import StructureError
from weft.graph.recording import OUTPUT_BITS
from weft.run.blaming import run_blaming
from weft.run.calls import in_order, stacked
from weft.run.options import Options

REFERENCE = Options(backend="reference")


def record(root: Block, examples: Sequence[Any], first: int = 0) -> BlockProgram:
    """The calls of examples, without computing anything."""
    code = code_of(root)
    if code.value_dependent is not None:
        raise StructureError(
            f"{code.value_dependent._path()}: what is computed depends on the values of tensors; it is not known before running"
        )
    builder = code.spare.pop() if code.spare else Builder(code)
    for number, example in enumerate(examples):
        start = len(builder.type)
        try:
            for _ in builder.record(example):
                pass
        except Exception as error:
            raise explained(root, example, first + number, error, len(builder.type) - start) from None
        builder.ends.append(len(builder.type))
    made = builder.finish(len(examples))
    code.spare.append(builder)
    return made


def run(root: Block, programs: Sequence[BlockProgram], options: Options) -> Results:
    """Compute programs together."""
    code = code_of(root)
    forget_metrics(root)
    device, further = surroundings(code)
    programs = [numbered(code, program) for program in programs]
    program = side_by_side(programs, programs[0].calls)
    library = code.library(device, further, options.dedupe)
    types = [*leaves_of(code.type)[0], *code.metrics.values()]
    wanted, ranges = wanted_of(program)

    def blame(call: int, error: Exception) -> None:
        number = int(np.concatenate([each.calls.type for each in programs])[call])
        ends = np.cumsum(np.concatenate([each.sizes for each in programs]))
        note_place(error, code.kinds.known[number], int(np.searchsorted(ends, call, "right")))

    groups = run_blaming(library, [each.calls for each in programs], wanted, options, blame)
    rows: list[Any] = []
    for (start, end), type in zip(ranges, types, strict=True):
        if type.ragged:
            rows.append(in_order(groups, len(wanted))[start:end])
        elif start == end:
            rows.append(empty_rows(type, device))
        else:
            rows.append(stacked(groups, np.arange(start, end, dtype=np.int32)))
    return noted(root, code, program, rows)


def forget_metrics(root: Block) -> None:
    for name in ("metrics", "metric_labels"):
        root._kept.pop(name, None)


def noted(root: Block, code: Code, program: BlockProgram, rows: list[Any]) -> Results:
    """Metrics stay with the root; the rest is the result."""
    count = len(program.outputs)
    root._kept["metrics"] = dict(zip(code.metrics, rows[count:], strict=True))
    root._kept["metric_labels"] = dict(zip(code.metrics, program.labels, strict=True))
    return Results(program.count, rows[:count], program.lengths, program.objects)


def evaluate(root: Block, examples: Sequence[Any], options: Options) -> Results:
    """Record and compute examples together."""
    code = code_of(root)
    forget_metrics(root)
    if code.value_dependent is not None:
        from weft.blocks.flushing import run_in_flushes

        return run_in_flushes(root, code, examples, options)
    return run(root, [record(root, examples)], options)


def eval_one(root: Block, x: Any, tolist: bool) -> Any:
    (result,) = evaluate(root, [x], REFERENCE).single(code_of(root).type)
    return tree_map_only(Tensor, lambda tensor: tensor.tolist(), result) if tolist else result


def max_depth(root: Block, x: Any) -> int:
    """The longest chain of calls. Constants are free, reductions count as if pair by pair, what a metric notes is one more."""
    code = code_of(root)
    program = merge(code, [record(root, [x])])
    kinds = code.kinds.known
    arguments, further = program.calls.arguments.tolist(), iter(program.calls.further.tolist())
    depths: list[int] = []
    at = 0
    for number in program.calls.type.tolist():
        kind = kinds[number]
        many = next(further) if kind.many is not None else 0
        end = at + len(kind.args) + many
        depths.append(max((depths[ref >> OUTPUT_BITS] for ref in arguments[at:end]), default=0) + kind.depth(many))
        at = end
    ends = [depths[ref >> OUTPUT_BITS] for refs in program.outputs for ref in refs.tolist()]
    ends += [depths[ref >> OUTPUT_BITS] + 1 for refs in program.metrics for ref in refs.tolist()]
    return max(ends, default=0)
