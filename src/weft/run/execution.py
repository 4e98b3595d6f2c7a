"""One batched call: its tensors, its memory, its forward pass and its backward passes, the general way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.graph.ports import slots_port
from weft.graph.program import Ints
from weft.graph.tape import Name
from weft.plan.arguments import arguments as argument_positions
from weft.run.backward import Backward
from weft.run.call import Call
from weft.run.forward import run_forward
from weft.run.gpu.table import step_table
from weft.run.indices import Indices
from weft.run.kind import given_tensors, kind_of
from weft.run.results import Results
from weft.run.spare import LEAST, empty
from weft.run.typerun import Arenas, TypeRun
from weft.run.upload import as_tensor, has_own_memory


class Execution:
    """One forward pass and, perhaps, its backward passes."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.indices = Indices.of(call.plan, call.device)
        self.tensors, places = given_tensors(call)
        self.must = set(map(id, call.everyone))
        self.kind = kind = kind_of(call, self.tensors, places)
        self.types, self.training, self.needs = kind.types, kind.training, kind.needs
        self.learns, self.codes = kind.learns, kind.codes
        self.memory: list[Tensor] = []
        self.borrowed: set[int] = set()
        self.records: dict[Any, Any] = {"training": self.training, "may learn": torch.is_grad_enabled()}
        if has_own_memory(call.device):
            self.indices.bring(self.training, self._step_tables)

    def _step_tables(self) -> list[Ints]:
        cyclic = [number for number, group in enumerate(self.plan.groups) if group.cyclic]
        return [step_table(self.plan, number) for number in cyclic] if self.call.backend == "triton" else []

    def input_numbers(self) -> dict[Any, int]:
        """Which of the call's tensors each fed or captured input of a type is."""
        found: dict[Any, int] = {}
        for t in self.types:
            for name in self.call.cells[t].trace.tape.inputs:
                at = self.kind.input(t, name) if name[0] in ("capture", "feed") else None
                if at is not None:
                    found[t, name] = at
        return found

    # Memory that goes from one call to the next.

    def _borrow(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        if not self.types or math.prod(shape) * dtype.itemsize < LEAST:
            return empty(shape, dtype, device)
        tensor = self.call.cells[self.types[0]].spare.take(shape, dtype, device)
        self.memory.append(tensor)
        return tensor

    def give_back(self, outputs: Sequence[Tensor]) -> None:
        """Leave the memory of a call without backward pass to the next one, unless a result lies there."""
        if self.memory:
            self.call.cells[self.types[0]].spare.give_back(self.memory, outputs)

    def lend(self, tensors: Sequence[Tensor], in_use: Sequence[Tensor | None]) -> None:
        """Leave memory that was saved for backward to the next call, unless somebody sees it."""
        if self.types and self.borrowed:
            storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
            mine = [tensor for at, tensor in storages.items() if at in self.borrowed]
            busy = [tensor for tensor in in_use if tensor is not None]
            self.call.cells[self.types[0]].spare.give_back(mine, busy)
            self.borrowed = set()

    # Forward.

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.arenas = self._make_arenas()
        self.runs = {
            t: TypeRun(t, self.codes[t], self.indices, self.arenas, self._fed(tensors), self.records, self._borrow)
            for t in self.types
        }
        run_forward(self.plan, self.runs)
        results = Results(self.call, self.codes, self.indices)
        outputs = [results.rows(wanted, self.runs, self.arenas) for wanted in self.call.wanted]
        self._note_borrowed(outputs)
        return outputs

    def _note_borrowed(self, outputs: Sequence[Tensor]) -> None:
        if self.memory and self.training:
            seen = {tensor.untyped_storage().data_ptr() for tensor in outputs}
            self.borrowed = {tensor.untyped_storage().data_ptr() for tensor in self.memory} - seen

    def _fed(self, tensors: Sequence[Tensor]) -> Callable[[int, Name], Tensor]:
        def fed(t: int, name: Any, into: Tensor | None = None) -> Tensor:
            tensor = tensors[self.kind.input(t, name) or 0]
            if name[0] == "feed":
                rows, count = self._fed_rows(t), len(self.plan.rows[t])
                if rows is None:
                    return tensor if tensor.shape[0] == count else tensor[:count]
                return torch.index_select(tensor, 0, rows) if into is None else torch.index_select(tensor, 0, rows, out=into)
            if name[0] == "capture":
                return tensor
            return self._edge_rows(t, name, tensor)

        return fed

    def _fed_rows(self, t: int) -> Tensor | None:
        """Rows of what is fed to a type's rows; None where these are simply the first ones."""
        feed = self.call.feed
        return self.indices.rows(t) if feed is None else as_tensor(feed[self.plan.rows[t]], self.call.device)

    def _edge_index(self, t: int, name: Any) -> tuple[Tensor, Tensor | None]:
        """Rows of the edge data that an input reads, and which of them exist."""
        run, per_edge = self.runs[t], name[0] == "edge_feed"
        read = run.bag if per_edge else run.ports[slots_port(run.kinds, name[1])]
        assert read is not None
        arguments = argument_positions(self.plan, read)
        if not per_edge:
            arguments = arguments.reshape(-1, read.width)[:, run.kinds[read.port].positions.index(name[1])]
        edge = self.plan.program.edge
        assert edge is not None
        rows = as_tensor(edge[arguments], self.call.device)
        if per_edge:
            return rows, None
        exists = as_tensor((arguments >= 0) & (edge[arguments] >= 0), self.call.device)
        return rows.clamp_min(0), exists

    def _edge_rows(self, t: int, name: Any, tensor: Tensor) -> Tensor:
        rows, exists = self._edge_index(t, name)
        if exists is None:
            return tensor.index_select(0, rows)
        if not tensor.shape[0]:
            return tensor.new_zeros((len(rows), *tensor.shape[1:]))
        chosen = tensor.index_select(0, rows)
        return torch.where(exists.view(-1, *[1] * (tensor.dim() - 1)), chosen, torch.zeros((), dtype=tensor.dtype))

    def _make_arenas(self) -> Arenas:
        arenas: Arenas = {}
        for t in self.types:
            for name, spec in self.call.cells[t].trace.outputs.items():
                if name in self.codes[t].role.exchanged:
                    output, key = name
                    number = self.plan.class_of[t, output]
                    if (number, key) not in arenas:
                        rows = self.plan.classes[number].rows + int(self.plan.classes[number].has_empty)
                        arena = self._borrow((rows, *spec.shape), spec.dtype, self.call.device)
                        if self.plan.classes[number].has_empty:
                            arena[-1:].zero_()
                        arenas[number, key] = arena
        return arenas

    # Between forward and backward.

    def pack(self) -> list[Tensor]:
        """Everything that backward needs, as a flat list; the rest is let go."""
        tensors: list[Tensor] = []
        self.saved: list[tuple[int, str]] = []
        for t in self.types:
            run = self.runs[t]
            for value in self.codes[t].saved:
                if run.has(value):
                    self.saved.append((t, value.name))
                    tensors.append(run.whole(value))
        self.saved_arenas = list(self.arenas)
        tensors += self.arenas.values()
        self.forget()
        return tensors

    def forget(self) -> None:
        self.runs, self.arenas, self.memory = {}, {}, []

    def backward(
        self, tensors: Sequence[Tensor], saved: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        arenas = dict(zip(self.saved_arenas, saved[len(self.saved) :], strict=True))
        self.runs = {t: TypeRun(t, self.codes[t], self.indices, arenas, self._fed(tensors), self.records) for t in self.types}
        for (t, key), tensor in zip(self.saved, saved, strict=False):
            self.runs[t].store[key] = tensor
        sweep = Backward(self.plan, self.runs, Results(self.call, self.codes, self.indices).given(grads), self.learns)
        sweep.run()
        results = self._gradients(tensors, sweep)
        self.wrote_down(sweep, tensors, grads)
        self.forget()
        return results

    def wrote_down(self, sweep: Backward, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Called when a backward pass is done."""

    def _gradients(self, tensors: Sequence[Tensor], sweep: Backward) -> list[Tensor | None]:
        results: list[Tensor | None] = [None] * len(tensors)
        for (t, name), grad in sweep.gradients.items():
            at = self.kind.input(t, name)
            if at is None or not self.needs[at]:
                continue
            if name[0] != "capture":
                grad = self._to_fed_rows(t, name, grad, tensors[at])
            before = results[at]
            results[at] = grad if before is None else before + grad
        for at, tensor in enumerate(tensors):
            if results[at] is None and id(tensor) in self.must and self.needs[at]:
                results[at] = torch.zeros_like(tensor)
        return results

    def _to_fed_rows(self, t: int, name: Any, grad: Tensor, tensor: Tensor) -> Tensor:
        """From rows of a type back to rows of the fed tensor."""
        if name[0] == "feed":
            rows = self._fed_rows(t)
            if rows is None:
                return grad if len(grad) == len(tensor) else _with_zeros(grad, tensor)
            if not self._repeats() and len(rows) == tensor.shape[0]:
                return torch.empty_like(tensor, memory_format=torch.contiguous_format).index_copy_(0, rows.long(), grad)
            return torch.zeros_like(tensor).index_add_(0, rows, grad)
        rows, exists = self._edge_index(t, name)
        if exists is not None:
            rows, grad = rows[exists], grad[exists]
        return torch.zeros_like(tensor).index_add_(0, rows, grad)

    def _repeats(self) -> bool:
        return self.plan.program.feed is not None


def _with_zeros(rows: Tensor, like: Tensor) -> Tensor:
    """The first rows of a gradient; the others are zeros."""
    whole = torch.zeros_like(like, memory_format=torch.contiguous_format)
    whole[: len(rows)] = rows
    return whole
