"""Cells that cannot be traced: batched as they are, or at worst run row by row.

Such a cell becomes a tape of three opaque operations, so that everything after tracing works as for any other cell:

    forward      runs the user's code on a step's rows under autograd and remembers its graph under a number
    row_grads    differentiates that graph with respect to the step's inputs, and collects parameter gradients on the way
    sums         hands out the collected parameter gradients

The remembered graphs live in `records`, a dictionary that belongs to one call.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from weft.errors import FROM_OUTSIDE, ShapeError, TraceError, WeftError, warn
from weft.graph.ops import Operation
from weft.graph.rows import ChildFunction, Spec, TensorSpec, _Asking
from weft.graph.tape import Name, Rows, Tape, Value

Records = dict[Any, Any]
Run = Callable[[dict[Name, Tensor], int], dict[Name, Tensor]]


@dataclass(eq=False)
class Plain:
    """The three operations of one untraceable cell."""

    name: str
    run: Run
    names: tuple[Name, ...]
    outputs: tuple[Name, ...]
    diff: tuple[Name, ...]
    captures: Callable[[], list[Tensor]]
    around: Callable[[], AbstractContextManager[Any]]
    checked: bool = False
    """Whether a run with gradients enabled has shown which tensors they end in."""
    specs: Sequence[TensorSpec] = ()
    """What each output looked like when the cell was looked at."""

    def tape(self, specs: Mapping[Name, TensorSpec], results: Mapping[Name, TensorSpec], per_edge: Any) -> Tape:
        n = Rows("n")
        self.specs = [results[name] for name in self.outputs]
        inputs: dict[Name, Value] = {}
        for i, tensor in enumerate(self.captures()):
            inputs["capture", i] = Value(f"capture{i}", None, shape=tuple(tensor.shape), dtype=tensor.dtype)
        for i, name in enumerate(self.names):
            rows = Rows("e") if per_edge(name) else n
            inputs[name] = Value(f"input{i}", None, shape=(rows, *specs[name].shape), dtype=specs[name].dtype)
        given = [inputs[name] for name in self.names]
        forward = Value("forward", Operation(self.forward, told_who_learns=True), (given,))
        token = Value("token", operator.getitem, (forward, len(self.outputs)), {}, (n,), torch.int64)
        values, outputs = [forward, token], dict[Name, Value | None]()
        cotangents: list[Value] = []
        for i, name in enumerate(self.outputs):
            spec = results[name]
            part = Value(f"out{i}", operator.getitem, (forward, i), {}, (n, *spec.shape), spec.dtype)
            values.append(part)
            outputs["out", name] = part
            if spec.dtype.is_floating_point or spec.dtype.is_complex:
                inputs["ct", name] = Value(f"ct{i}", None, shape=part.shape, dtype=part.dtype)
                cotangents.append(inputs["ct", name])
        back = Value("row_grads", Operation(self.row_grads), (token, cotangents))
        sums = Value("param_sums", Operation(self.param_sums), (token, cotangents))
        for i, name in enumerate(self.diff):
            like = inputs[name]
            values += [back] if not i else []
            values.append(Value(f"grad{i}", operator.getitem, (back, i), {}, like.shape, like.dtype))
            outputs["grad", name] = values[-1]
        values.append(sums)
        for i, tensor in enumerate(self.captures()):
            if tensor.requires_grad:
                values.append(Value(f"sum{i}", operator.getitem, (sums, i), {}, tuple(tensor.shape), tensor.dtype))
                outputs["grad", ("capture", i)] = values[-1]
        return Tape(inputs, values, outputs)

    def forward(self, tensors: list[Tensor], learns: list[bool], n: int, e: int, records: Records) -> tuple[Tensor, ...]:
        """`learns`: of which of the tensors a gradient is wanted; not every operation can differentiate by the others."""
        number = records["next"] = records.get("next", -1) + 1
        training = records.get("training", False)
        given = dict(zip(self.names, tensors, strict=True))
        looks = not self.checked and (training or records.get("may learn", False))
        with torch.set_grad_enabled(training or looks), self.around():
            # Steps write into memory that these rows are views of, so the graph keeps copies.
            leaves = {name: tensor.detach().clone() for name, tensor in given.items()} if training else given
            for name, is_learning in zip(self.names, learns, strict=True) if training else ():
                leaves[name].requires_grad_(is_learning and name in self.diff)
            results = self.run(leaves, n)
            ordered = [results[name] for name in self.outputs]
            self._check_shapes(ordered, n)
        if looks:
            self._check_parameters(ordered, leaves)
        if training:
            records[number] = ([leaves[name] for name in self.diff], ordered)
        device = tensors[0].device if tensors else ordered[0].device
        return *(value.detach() for value in ordered), torch.full((n,), number, dtype=torch.int64, device=device)

    def _check_shapes(self, outputs: list[Tensor], n: int) -> None:
        for found, spec in zip(outputs, self.specs, strict=True):
            if tuple(found.shape) != (n, *spec.shape):
                raise unlike(self.name, spec, tuple(found.shape[1:]))

    def _check_parameters(self, outputs: list[Tensor], leaves: dict[Name, Tensor]) -> None:
        """No gradient may end in a tensor that weft does not know of, or it would be lost."""
        known = {id(tensor) for tensor in [*self.captures(), *leaves.values()]}
        pending, seen = [out.grad_fn for out in outputs if out.grad_fn is not None], set[Any]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            tensor = getattr(node, "variable", None)
            if tensor is not None and id(tensor) not in known:
                raise TraceError(
                    f"{self.name} uses a parameter of shape {list(tensor.shape)} that is not found in its modules, attributes, "
                    "arguments, closure or globals; keep it in one of them, or pass it as an argument"
                )
            pending += [next_node for next_node, _ in node.next_functions if next_node is not None]
        self.checked = True

    def row_grads(self, token: Tensor, cotangents: list[Tensor], n: int, e: int, records: Records) -> list[Tensor]:
        """Rows of one or several remembered graphs, in order."""
        parts = [self._differentiate(number, cts, records) for number, cts in _chunks(token, cotangents)]
        return [torch.cat(column) for column in zip(*parts, strict=True)] if len(parts) != 1 else parts[0]

    def _differentiate(self, number: int, cotangents: list[Tensor], records: Records) -> list[Tensor]:
        leaves, outputs = records[number]
        captures = [tensor for tensor in self.captures() if tensor.requires_grad]
        floats = [out for out in outputs if out.is_floating_point() or out.is_complex()]
        pairs = [(out, ct) for out, ct in zip(floats, cotangents, strict=True) if out.requires_grad]
        learning = [tensor for tensor in (*leaves, *captures) if tensor.requires_grad]
        grads: dict[int, Tensor | None] = {}
        if pairs and learning:
            found = torch.autograd.grad(
                [out for out, _ in pairs], learning, [ct for _, ct in pairs], retain_graph=True, allow_unused=True
            )
            grads = {id(tensor): grad for tensor, grad in zip(learning, found, strict=True)}
        records["params", number] = [grads.get(id(tensor)) for tensor in captures]
        by_leaf = [(leaf, grads.get(id(leaf))) for leaf in leaves]
        return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in by_leaf]

    def param_sums(self, token: Tensor, cotangents: list[Tensor], n: int, e: int, records: Records) -> list[Tensor | None]:
        captures = self.captures()
        totals: list[Tensor | None] = [None] * len(captures)
        at = [i for i, tensor in enumerate(captures) if tensor.requires_grad]
        for number, cts in _chunks(token, cotangents):
            if ("params", number) not in records:
                self._differentiate(number, cts, records)
            for i, grad in zip(at, records.pop(("params", number)), strict=True):
                before = totals[i]
                totals[i] = grad if before is None or grad is None else before + grad
                if grad is None:
                    totals[i] = before
        return totals


def _chunks(token: Tensor, tensors: list[Tensor]) -> list[tuple[int, list[Tensor]]]:
    """Consecutive rows that belong to one remembered graph."""
    if not len(token):
        return []
    numbers, counts = torch.unique_consecutive(token, return_counts=True)
    sizes = counts.tolist()
    columns = [tensor.split(sizes) for tensor in tensors]
    return [(number, [column[i] for column in columns]) for i, number in enumerate(numbers.tolist())]


class Unforeseen(TraceError):
    """A cell whose path depends on values asked for an input that it had not asked for before."""

    def __init__(self, name: Name, spec: TensorSpec) -> None:
        super().__init__(f"an input was asked for that was not foreseen ({name})")
        self.name, self.spec = name, spec


def row_by_row(name: str, body: Any, spec: Spec) -> Run:
    """Run a cell one row at a time: always right, never fast."""

    def run(inputs: dict[Name, Tensor], n: int) -> dict[Name, Tensor]:
        seg = inputs.get(("seg",))
        results = []
        for row in range(n):
            edges = [] if seg is None else torch.nonzero(seg == row).flatten().tolist()
            results.append(body(_RowOf(spec, inputs, row, edges)))
        return {key: _stacked(name, [torch.as_tensor(result[key]) for result in results]) for key in results[0]}

    return run


def _stacked(name: str, rows: list[Tensor]) -> Tensor:
    other = next((row for row in rows if row.shape != rows[0].shape), None)
    if other is not None:
        raise unlike(name, TensorSpec(tuple(rows[0].shape), rows[0].dtype), tuple(other.shape))
    return torch.stack(rows)


def unlike(name: str, spec: TensorSpec, shape: tuple[int, ...]) -> ShapeError:
    return ShapeError(
        f"{name} gives a tensor of shape {list(spec.shape)} for some rows and {list(shape)} for others; the shapes of its "
        "results may not depend on values"
    )


class _RowOf(_Asking):
    """Answers with one row of batched inputs."""

    def __init__(self, spec: Spec, inputs: dict[Name, Tensor], row: int, edges: list[int]) -> None:
        def ask(name: Name, wanted: TensorSpec) -> Tensor:
            if name not in inputs:
                raise Unforeseen(name, wanted)
            return inputs[name][row].clone()

        super().__init__(spec, ask)
        self.inputs, self.edges = inputs, edges

    def child_map(self, fn: ChildFunction, *per_edge: Tensor) -> Any:
        if not self.edges:
            one = self._imagined_child(fn, *(tensor.new_zeros(tensor.shape[1:]) for tensor in per_edge))
            return tree_map(lambda tensor: tensor.new_zeros((0, *tensor.shape)), one)
        results = [self._one_child(fn, edge, [t[i] for t in per_edge]) for i, edge in enumerate(self.edges)]
        return tree_map(lambda *parts: torch.stack(parts), *results)

    def _one_child(self, fn: ChildFunction, edge: int, extra: list[Tensor]) -> Any:
        state = {key: self.inputs["edge", key][edge].clone() for key in self.state if ("edge", key) in self.inputs}
        leaves, tree = torch.utils._pytree.tree_flatten(self.spec.edge)
        feeds = [self.inputs["edge_feed", i][edge] if ("edge_feed", i) in self.inputs else None for i in range(len(leaves))]
        row = None if self.spec.edge is None else torch.utils._pytree.tree_unflatten(feeds, tree)
        return fn(state, row, *extra)

    def reduce_sum(self, per_edge: Tensor) -> Tensor:
        return per_edge.sum(0, dtype=per_edge.dtype)

    def reduce_max(self, per_edge: Tensor) -> Tensor:
        return per_edge.amax(0) if per_edge.shape[0] else per_edge.new_zeros(per_edge.shape[1:])


def wary(name: str, run: Run, one_by_one: Run) -> Run:
    """Hooks are not tried beforehand: what they do may be impossible for all rows at once."""
    fails = False

    def careful(inputs: dict[Name, Tensor], n: int) -> dict[Name, Tensor]:
        nonlocal fails
        if not fails:
            device = next((tensor.device for tensor in inputs.values()), torch.device("cpu"))
            state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
            try:
                return run(inputs, n)
            except (WeftError, *FROM_OUTSIDE):
                raise
            except Exception as error:
                torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
                found = one_by_one(inputs, n)  # an error of the code, and not of batching it, is raised again here
                fails = True
                text = str(error).strip().split("\n")[0][:200]
                warn(f"{name}: a hook in it cannot be batched ({type(error).__name__}: {text}); it runs row by row")
                return found
        return one_by_one(inputs, n)

    return careful


def quietly(run: Run) -> Run:
    """vmap warns about operations that it unrolls; the cell has said so already."""

    def quiet(inputs: dict[Name, Tensor], n: int) -> dict[Name, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(inputs, n)

    return quiet
