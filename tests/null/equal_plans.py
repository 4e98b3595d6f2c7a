"""Where two plans differ."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np

from weft.plan.plan import Plan


def differences(one: object, other: object, where: str) -> list[str]:
    """Where two values differ, looked at field by field, item by item, array by array."""
    if type(one) is not type(other) and not (isinstance(one, Plan) and isinstance(other, Plan)):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return [] if one.dtype == other.dtype and np.array_equal(one, other) else [f"{where}: {one} and {other}"]
    if is_dataclass(one):
        names = [field.name for field in fields(one) if field.name not in ("program", "seconds", "_derived")]
        return [text for name in names for text in differences(getattr(one, name), getattr(other, name), f"{where}.{name}")]
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return [f"{where}: keys {list(one)} and {list(other)}"]
        return [text for key in one for text in differences(one[key], other[key], f"{where}[{key}]")]
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return [text for i, pair in enumerate(zip(one, other, strict=True)) for text in differences(*pair, f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]
