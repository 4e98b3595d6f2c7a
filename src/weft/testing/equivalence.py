"""`assert_equivalent`: the batched engines against one vertex at a time, outputs and every gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.api.function import VertexFunction
from weft.errors import TypeMismatch
from weft.plan.schedule import POLICIES
from weft.testing.compare import check_alike, check_gradient, check_leaves, check_others, check_repeats
from weft.testing.once import Outcome, Subject, outside_tensors, run_once
from weft.testing.per_example import PerExample

REFERENCE = {"policy": "auto", "backend": "reference"}


def assert_equivalent(
    fn_or_model: Any,
    *inputs: Any,
    policies: Iterable[str] | None = None,
    backends: Iterable[str] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    edges: Any = None,
    rounds: int | None = None,
    init: Any = None,
    **options: Any,
) -> None:
    """Run batched under every policy and backend asked for, and one by one; raise `AssertionError` at the first difference.

    A `weft.VertexFunction` is called with a graph; any other function or module is one of a single example, called as
    `weft.batched` of it is: one by one is then a plain loop.

    Compared are the outputs and, for a random cotangent, the gradients of all parameters, of all floating-point inputs (copies
    that require gradients take their place) and of captured tensors that require gradients. Per tensor `max|a-b|` may be at
    most `tolerance * max(1, max|b|)`; by default 1e-12 in float64, 1e-5 in float32, some units of rounding below. NaN
    and infinities must be at the same places. A gradient that is None counts as all zeros: whether a parameter that only some
    vertices use is reached at all depends on the structure, and engines may find out or not. Results that are neither tensors
    nor numbers must be equal.

    If the function draws random numbers (dropout in training), numbers cannot agree: then shapes, dtypes and finiteness are
    compared, which gradients exist, and that the same seed gives the same bits twice.

    Gradients, random state, buffers, train and eval modes and the inputs are left as they were. `policies` defaults to all,
    `backends` to "eager" and, for the policy "auto", also "auto"; `edges`, `rounds`, `init` and the options are those of
    calling a `weft.VertexFunction`.

    >>> import torch, weft, weft.testing
    >>> class Depth(weft.VertexFunction):
    ...     def __init__(self):
    ...         super().__init__(state={"depth": ()})
    ...     def forward(self, v):
    ...         depth = v.gather().max("depth") + 1
    ...         v.scatter(depth=depth)
    ...         v.push(depth)
    >>> weft.testing.assert_equivalent(Depth(), weft.Graph.from_parents([2, 2, 3, -1]), policies=["depth", "condense"])
    """
    if not callable(fn_or_model):
        raise TypeMismatch(
            "assert_equivalent: expected a weft.VertexFunction, a function or module of one example, or a program of "
            f"weft.testing.random_program, got {type(fn_or_model).__name__}"
        )
    call = {name: given for name, given in (("edges", edges), ("rounds", rounds), ("init", init)) if given is not None}
    if isinstance(fn_or_model, VertexFunction) or hasattr(fn_or_model, "takes_options"):
        subject = Subject.of(fn_or_model, inputs, call)
    else:
        function = PerExample(fn_or_model)
        subject = Subject(function, inputs, call, outside_tensors(function.fn))
    with _everything_left_alone(fn_or_model):
        expected = run_once(subject, seed, REFERENCE)
        for policy in POLICIES if policies is None else policies:
            for backend in _default_backends(policy) if backends is None else backends:
                chosen = {**options, "policy": policy, "backend": backend}
                _check(subject, chosen, expected, seed, tolerance)


def _default_backends(policy: str) -> tuple[str, ...]:
    """Plain tensor operations under every policy, and once what users get who ask for nothing."""
    return ("eager", "auto") if policy == "auto" else ("eager",)


def _check(subject: Subject, options: dict[str, Any], expected: Outcome, seed: int, tolerance: float | None) -> None:
    where = f"policy {options['policy']!r}, backend {options['backend']!r}"
    got = run_once(subject, seed, options)
    shown, wanted = (" ".join(str(outcome.tree).split()) for outcome in (got, expected))
    if shown != wanted:
        raise AssertionError(f"{where}: the result has the structure {shown}, one by one it has {wanted}")
    check_others(where, got, expected)
    if expected.is_random:
        check_repeats(where, got, run_once(subject, seed, options))
        check_alike(where, got, expected)
        return
    check_leaves(where, got, expected, tolerance)
    for name, gradient in got.gradients.items():
        check_gradient(f"{where}: gradient of {name}", gradient, expected.gradients[name], tolerance)


@contextmanager
def _everything_left_alone(model: Any) -> Iterator[None]:
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    buffers: list[Tensor] = [buffer for module in modules for buffer in module.buffers(recurse=False)]
    values = [buffer.detach().clone() for buffer in buffers]
    try:
        with torch.random.fork_rng(devices), torch.enable_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for buffer, before in zip(buffers, values, strict=True):
            if not torch.equal(buffer, before):
                buffer.data.copy_(before)
