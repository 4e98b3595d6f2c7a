"""Looking at code that writes into tensors of the user's: what it changed is put back, and it is told that it did.

Copies are made of what is written and when, not of all that the code can reach: a table of words may be large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITES = "it changes a parameter, buffer or outside tensor in place"
"""How the reason begins why such a cell is not batched: one row sees what those before it wrote."""

ASSIGNS = "it assigns a tensor to its module while it runs"
"""How it begins where a row sees a tensor that those before it put there."""

_set_versions: Any = torch._C._autograd._unsafe_set_version_counter


class Written(TorchDispatchMode):
    """Which memory is written inside it, and by what."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.by: dict[int, str] = {}
        self._alive: list[Any] = []
        """That memory: an address stands for one tensor only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for at, memory in _memories([*_written(func, args, kwargs or {})]).items():
            self.by.setdefault(at, _name(func))
            self._alive.append(memory)
        return func(*args, **kwargs or {})

    def into(self, tensors: Iterable[Tensor]) -> str | None:
        """What wrote into one of these."""
        return next((self.by[at] for at in _memories(list(tensors)) if at in self.by), None)


class Assigned:
    """The tensors that modules have, and their memory; what was replaced can be put back."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        places = [d for module in modules for d in (module.__dict__, module._buffers, module._parameters)]
        self.before: list[tuple[dict[str, Any], dict[str, Tensor]]] = [
            (d, {key: value for key, value in d.items() if isinstance(value, Tensor)}) for d in places
        ]
        self.memory = [(tensor, tensor.detach()) for _, then in self.before for tensor in then.values()]

    def put_back(self) -> None:
        for now, then in self.before:
            now.update({key: value for key, value in then.items() if now.get(key) is not value})
        for tensor, before in self.memory:
            if _memories(tensor).keys() != _memories(before).keys():
                tensor.data = before


class Unwritten(TorchDispatchMode):
    """After it all tensors, and those that modules have, are as they were; `found` names what wrote into one, if any."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.found: str | None = None
        self._assigned = Assigned(modules)
        self._saved: list[tuple[Tensor, Tensor, int | None]] = []
        self._seen: set[int] = set()
        self._made: list[Any] = []
        """Memory that came into being inside, kept alive: an address stands for one tensor only."""
        self._made_at: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            self._save(func, tensor)
        result = func(*args, **kwargs)
        given = {} if func is torch.ops.aten.lift_fresh.default else _memories((args, kwargs))  # which hands on what is new
        fresh = {at: memory for at, memory in _memories(result).items() if at not in given}
        self._made.extend(fresh.values())
        self._made_at.update(fresh)
        return result

    def _save(self, func: Any, tensor: Tensor) -> None:
        if id(tensor) in self._seen or not self._made_at.isdisjoint(_memories(tensor)):
            return
        self._seen.add(id(tensor))
        self.found = self.found or _name(func)
        self._saved.append((tensor, tensor.detach().clone(), None if tensor.is_inference() else tensor._version))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own
        with torch.no_grad():
            for tensor, before, version in reversed(self._saved):
                tensor.detach().copy_(before)
                if version is not None:
                    _set_versions((tensor,), (version,))
        self._assigned.put_back()


def _name(func: Any) -> str:
    return str(func.overloadpacket).rpartition(".")[2]


def _memories(nest: Any) -> dict[int, Any]:
    """The memory of the tensors of a nest, by address. Sparse tensors, and those that stand for others, have none."""
    found: dict[int, Any] = {}
    for tensor in tree_leaves(nest):
        if isinstance(tensor, Tensor):
            with suppress(NotImplementedError, RuntimeError):
                memory = tensor.untyped_storage()
                found[memory._cdata] = memory
    return found


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments whose numbers it changes; some only change how they are seen."""
    if torch.Tag.inplace_view in func.tags:
        return
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (leaf for leaf in tree_leaves(given.get(argument.name)) if isinstance(leaf, Tensor))
    # These say that they change nothing, and do.
    name = func._schema.name
    if "batch_norm" in name and "backward" not in name and given.get("training", True):
        yield from (given[name] for name in ("running_mean", "running_var") if isinstance(given.get(name), Tensor))
