"""What `weft.batched` gives for a module: a module with the same parameters, buffers, modes and `state_dict`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from weft.lazy.batched import Batched


class BatchedModule(nn.Module):
    """A module over many examples. Parameters, modes and attributes are those of the module that it runs."""

    def __init__(self, fn: nn.Module, inner: Batched) -> None:
        object.__setattr__(self, "_fn", fn)
        object.__setattr__(self, "inner", inner)
        super().__init__()
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, shared, fn.__dict__[shared])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    @property
    def fn(self) -> nn.Module:
        """The module that is run for each example."""
        found: nn.Module = self.__dict__["_fn"]
        return found

    @property
    def training(self) -> bool:
        return self.fn.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_parameters" in self.__dict__:
            self.fn.training = mode

    def train(self, mode: bool = True) -> BatchedModule:
        self.fn.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BatchedModule:
        self.fn._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.load_state_dict(*args, **kwargs)

    def collate_examples(self, examples: Sequence[Any]) -> Any:
        """What a `weft.data.Batch` of these examples holds."""
        return self.inner.collate_examples(examples)

    def cache_clear(self) -> None:
        """Forget the recordings that `cache=` has kept."""
        self.inner.cache_clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_fn"], name)

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchedModule:
        return _again(copy.deepcopy(self.fn, memo), self.inner.settings())

    def __reduce__(self) -> Any:
        return _again, (self.fn, self.inner.settings())

    def _get_name(self) -> str:
        return f"batched {self.fn._get_name()}"


def _again(fn: nn.Module, settings: dict[str, Any]) -> BatchedModule:
    return BatchedModule(fn, Batched.of(fn, settings))
