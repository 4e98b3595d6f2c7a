"""The batched engine: one plan, one `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.graph.placed import placed
from weft.graph.stored import as_stored, is_as_stored
from weft.run.call import Call
from weft.run.cpu.execution import NativeExecution
from weft.run.execution import Execution
from weft.run.gpu.execution import GpuExecution

_C: Any = torch._C
_autograd: Any = _C._autograd
_ANYWHERE = nullcontext()
_BY_RECIPE: dict[str, type[Execution]] = {"native": NativeExecution, "triton": GpuExecution}


def run_batched(call: Call) -> list[Tensor]:
    """The wanted rows; differentiable where torch would be."""
    if torch.is_inference_mode_enabled() and torch.is_grad_enabled():  # nothing that is made there can learn
        with torch.no_grad():
            return run_batched(call)
    if not _C._len_torch_function_stack():
        return _run(call)
    with placed(call.device):
        return _run(call)


def _run(call: Call) -> list[Tensor]:
    execution = execution_of(call)
    if not execution.training:
        with torch.no_grad() if torch.is_grad_enabled() else _ANYWHERE:
            outputs = execution.forward(execution.tensors)
        execution.give_back(outputs)
        execution.forget()
        return outputs
    apply = _Batched.apply if _C._are_functorch_transforms_active() else _apply_plainly
    results = apply(execution, *execution.tensors)
    execution.tensors = []
    return list(results)


def execution_of(call: Call) -> Execution:
    """What runs a call: the general way, or something that remembers what earlier calls did."""
    return _BY_RECIPE.get(call.backend, Execution)(call)


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


class _Batched(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, execution: Execution, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = execution.forward(tensors)
        ctx.set_materialize_grads(False)
        if whole := [out for out in outputs if not (out.is_floating_point() or out.is_complex())]:
            ctx.mark_non_differentiable(*whole)
        ctx.count, ctx.execution = len(tensors), execution
        ctx.save_for_backward(*tensors, *execution.pack())
        if execution.borrowed and _autograd._top_saved_tensors_default_hooks(True) is not None:
            execution.borrowed = set()  # what was saved may be elsewhere by now
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, execution = ctx.saved_tensors, ctx.execution
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() or _C._len_torch_function_stack():
            with torch.no_grad(), placed(execution.call.device):
                results = execution.backward(tensors, kept, _in_memory(grads))
        else:
            results = execution.backward(tensors, kept, _in_memory(grads))
        if unreached := getattr(ctx, "unreached", None):
            pairs = zip(saved, results, strict=False)
            results = [None if id(tensor) in unreached else grad for tensor, grad in pairs]
        if execution.borrowed and not _autograd._get_current_graph_task_keep_graph():
            execution.lend(kept, results)
        if torch.is_grad_enabled():
            behind = [tensor for tensor in (*saved[: ctx.count], *grads) if tensor is not None and tensor.requires_grad]
            results = [None if grad is None else _apply(Once, *behind, grad) for grad in results]
        return None, *results


def _in_memory(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients as torch brings them, their numbers in memory."""
    found: list[Tensor | None] = []
    for grad in grads:
        if grad is not None and _C._functorch.is_legacy_batchedtensor(grad):
            raise WeftError("a batched call takes one cotangent at a time: leave out is_grads_batched=True and vectorize=True")
        found.append(grad if grad is None or is_as_stored(grad) else as_stored(grad))
    return found


# What `apply` does where no torch.func transforms are active, after it has looked for traces of them.
_apply_plainly: Any = super(torch.autograd.Function, _Batched).apply


class Once(torch.autograd.Function):
    """Marks a gradient, which depends on all that the call was given, as one that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        return tensors[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise WeftError(
            "double backward: a batched call can be differentiated once; for higher derivatives use backend='reference'"
        )
