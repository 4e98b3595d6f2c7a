"""`v`: what a vertex function sees of the one vertex it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, overload

import torch
from torch import Tensor

from weft.api.children import Children, check_key
from weft.errors import MissingKey, ShapeError, StructureError, TypeMismatch
from weft.graph.rows import Rows, Spec
from weft.graph.tape import Name

NO_INPUT = "v.pull() was called, but the call has no input"


class SlotState(Mapping[str, Tensor]):
    """The state of one child slot; zeros, or the default, where the slot is empty."""

    def __init__(
        self, rows: Rows, position: int, keys: tuple[str, ...], default: Mapping[str, Any] | None = None, slot: int = 0
    ) -> None:
        self._rows, self._position, self._keys, self._default, self._slot = rows, position, keys, default, slot

    def __getitem__(self, key: str) -> Tensor:
        check_key(key, self._keys)
        value = self._rows.slot(self._position, key)
        if self._default is None or key not in self._default:
            return value
        default = torch.as_tensor(self._default[key], dtype=value.dtype, device=value.device)
        if default.dim() and default.shape != value.shape:
            raise ShapeError(
                f"v.gather({self._slot}, default=...): state key {key!r}: expected shape {list(value.shape)}, "
                f"got {list(default.shape)}"
            )
        return torch.where(self._rows.slot_filled(self._position), value, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class Vertex:
    """One vertex: pull its input, gather its children, scatter its state, push its result."""

    def __init__(self, rows: Rows, spec: Spec, type_id: int | None, has_state: bool) -> None:
        self._rows, self._spec, self._type, self._has_own = rows, spec, type_id, has_state
        self._keys = tuple(key for key, _ in spec.state)
        self._scattered: dict[str, Tensor] = {}
        self._pushed: Any = None
        self._did_push = False
        self.type_was_read = False

    @property
    def type(self) -> int:
        """The vertex's type id; 0 in a graph without types."""
        self.type_was_read = True
        return 0 if self._type is None else self._type

    def pull(self) -> Any:
        """This vertex's own row of the input `x`."""
        row = self._rows.feed("x")
        if row is None:
            raise TypeMismatch(f"{NO_INPUT}; pass model(graph, x)")
        return row

    @overload
    def gather(self) -> Children: ...
    @overload
    def gather(self, slot: int, *, default: Any = None) -> SlotState: ...
    def gather(self, slot: int | None = None, *, default: Any = None) -> Children | SlotState:
        """The state of one child slot, or of all children."""
        if slot is None:
            if default is not None:
                raise TypeMismatch("v.gather: default= is for one child slot; pass v.gather(slot, default=...)")
            return Children(self._rows, self._keys)
        return SlotState(self._rows, self._position("v.gather", slot), self._keys, self._defaults(default), slot)

    def _position(self, caller: str, slot: Any) -> int:
        """The argument position of a child slot."""
        if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
            came = "a tensor" if isinstance(slot, Tensor) else repr(slot)
            raise TypeMismatch(f"{caller}: expected a child slot 0, 1, 2, ..., got {came}")
        return self._spec.first_child + slot

    def _defaults(self, default: Any) -> Mapping[str, Any] | None:
        if default is None or isinstance(default, Mapping):
            for key in default or ():
                check_key(key, self._keys)
            return default
        if len(self._keys) != 1:
            raise MissingKey(f"default: which state key? the state has {', '.join(map(repr, self._keys))}; pass a mapping")
        return {self._keys[0]: default}

    def edge(self, slot: int) -> Any:
        """The row of `edges=` that belongs to a child slot; zeros where it is empty."""
        row = self._rows.slot_edge(self._position("v.edge", slot))
        if row is None:
            raise TypeMismatch("v.edge() was called, but the call has no edges=; pass model(graph, x, edges=...)")
        return row

    @property
    def state(self) -> SlotState:
        """The vertex's own state of the round before."""
        if not self._has_own:
            raise StructureError("v.state is the state of the round before, and exists only with rounds=")
        return SlotState(self._rows, 0, self._keys)

    def scatter(self, /, **state: Tensor) -> None:
        """Set this vertex's state, which its parents will gather."""
        specs = dict(self._spec.state)
        for key, value in state.items():
            check_key(key, self._keys)
            if key in self._scattered:
                raise StructureError(f"state key {key!r} was scattered twice; each vertex scatters every key exactly once")
            if not isinstance(value, Tensor):
                raise TypeMismatch(f"scatter({key}=...): expected a tensor, got {type(value).__name__}")
            spec = specs[key]
            if tuple(value.shape) != spec.shape:
                raise ShapeError(f"scatter({key}=...): expected shape {list(spec.shape)}, got {list(value.shape)}")
            if value.dtype != spec.dtype:
                if not (torch.is_autocast_enabled(value.device.type) and value.is_floating_point()):
                    raise ShapeError(f"scatter({key}=...): expected {spec.dtype}, got {value.dtype}")
                value = value.to(spec.dtype)
            self._scattered[key] = value

    def push(self, result: Any) -> None:
        """Give the caller this vertex's result: a tensor or a nest of tensors."""
        if self._did_push:
            raise StructureError("a vertex pushed twice; each vertex pushes at most once")
        self._did_push, self._pushed = True, result

    def results(self) -> tuple[dict[Name, Tensor], Any]:
        """Named outputs for the engine, and the structure of what was pushed (None: nothing)."""
        missing = [key for key in self._keys if key not in self._scattered]
        if missing:
            what = f"state key {missing[0]!r} was" if len(missing) == 1 else f"state keys {', '.join(map(repr, missing))} were"
            raise StructureError(f"{what} not scattered; each vertex scatters every key exactly once")
        outputs: dict[Name, Tensor] = {(0, key): value for key, value in self._scattered.items()}
        if not self._did_push:
            return outputs, None
        leaves, tree = torch.utils._pytree.tree_flatten(self._pushed)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                raise TypeMismatch(f"push: expected a tensor or a nest of tensors, got {type(leaf).__name__}")
            outputs["push", i] = leaf
        return outputs, tree
