"""Child slots as one tensor: all slots of a state key are gathered together, so that joining them is a view.

`("slot", p, key)` inputs become selections from one `("slots", first p, key)` input of shape [rows, slots, ...]; `cat` or
`stack` over all of them is then a reshape of it. Their gradients become one `("grad", ("slots", first p, key))`, which is again
a reshape where they were cut from one tensor (the derivative of that `cat`).
"""

from __future__ import annotations

import torch

from weft.graph.tape import Rows, Tape, Value, prune

aten = torch.ops.aten


def join_slots(tape: Tape, positions: tuple[int, ...]) -> None:
    """Rewrite a tape's inputs and gradients of one port's slots, in place."""
    keys = list(dict.fromkeys(name[2] for name in tape.inputs if name[0] == "slot" and name[1] in positions))
    front: list[Value] = []
    for key in keys:
        parts = [tape.inputs.pop(("slot", p, key), None) for p in positions]
        example = next(part for part in parts if part is not None)
        shape = example.shape or ()
        whole = Value(f"slots_{key}_{positions[0]}", None, shape=(shape[0], len(positions), *shape[1:]), dtype=example.dtype)
        tape.inputs["slots", positions[0], key] = whole
        selected = []
        for at, part in enumerate(parts):
            if part is not None:
                part.target, part.args = aten.select.int, (whole, 1, at)
                front.append(part)
            selected.append(part)
        _join_uses(tape, whole, selected)
        _join_gradients(tape, key, positions, example)
    tape.values[:0] = front
    prune(tape)


def separate_states(tape: Tape) -> None:
    """A tensor that is scattered under two keys lives in two arenas: the second becomes a copy."""
    seen: set[int] = set()
    for name, value in tape.outputs.items():
        if value is None or name[0] != "out" or not isinstance(name[1][0], int):
            continue
        if id(value) in seen:
            copy = Value(
                f"{value.name}_for_{'_'.join(map(str, name[1]))}", aten.clone.default, (value,), {}, value.shape, value.dtype
            )
            tape.values.append(copy)
            tape.outputs[name] = copy
        seen.add(id(value))


def _join_uses(tape: Tape, whole: Value, parts: list[Value | None]) -> None:
    """`cat([slot 0, slot 1, ...])` along the first dimension, and `stack` of them, are reshapes of the whole."""
    for value in tape.values:
        if value.target not in (aten.cat.default, aten.stack.default):
            continue
        dim = value.args[1] if len(value.args) > 1 else 0
        if dim == 1 and len(value.args[0]) == len(parts) and all(a is b for a, b in zip(value.args[0], parts, strict=True)):
            value.target, value.args = aten.reshape.default, (whole, list(value.shape or ()))


def _join_gradients(tape: Tape, key: str, positions: tuple[int, ...], example: Value) -> None:
    names = [("grad", ("slot", p, key)) for p in positions]
    if not any(name in tape.outputs for name in names):
        return
    grads = [tape.outputs.pop(name, None) for name in names]
    joined: Value | None = None
    shape = example.shape or ()
    full = (shape[0], len(positions), *shape[1:])
    if any(grad is not None for grad in grads):
        source = _cut_from(grads, len(positions))
        if source is not None:
            joined = Value(
                f"grad_slots_{key}_{positions[0]}", aten.reshape.default, (source, list(full)), {}, full, example.dtype
            )
        else:
            parts = []
            for at, grad in enumerate(grads):
                if grad is None:
                    grad = Value(
                        f"no_grad_{key}_{positions[at]}",
                        aten.zeros.default,
                        (list(shape),),
                        {"dtype": example.dtype},
                        shape,
                        example.dtype,
                    )
                    tape.values.append(grad)
                parts.append(grad)
            joined = Value(f"grad_slots_{key}_{positions[0]}", aten.stack.default, (parts, 1), {}, full, example.dtype)
        tape.values.append(joined)
    tape.outputs["grad", ("slots", positions[0], key)] = joined


def _cut_from(grads: list[Value | None], count: int) -> Value | None:
    """The tensor that all slot gradients are consecutive equal slices of, if there is one."""
    first = grads[0]
    if first is None or first.target is not aten.slice.Tensor or first.args[1] != 1:
        return None
    source: Value = first.args[0]
    size = (source.shape or ())[1]
    if isinstance(size, Rows) or size % count:
        return None
    width = size // count
    for at, grad in enumerate(grads):
        if grad is None or grad.target is not aten.slice.Tensor or grad.args[0] is not source or grad.args[1] != 1:
            return None
        if grad.args[2] != at * width or min(grad.args[3], size) != (at + 1) * width or len(grad.args) > 4:
            return None
    return source
