"""Modules that may be shared and may refer to each other in circles, as `nn.Module`s.

PyTorch walks modules as a tree: one that hangs in two places is visited twice, and a circle never ends. Here every method that
walks does so over the modules that can be reached, each once, under the first path that leads to it, and without recursion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class SharedModule(nn.Module):
    """An `nn.Module` whose parts, given by `_parts()`, may be shared and circular."""

    def _parts(self) -> Mapping[str, nn.Module]:
        """Submodules by name. They are kept outside `_modules`, where PyTorch would walk them as a tree."""
        return {}

    def _reach(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module that is one of these or is not, once, with its first path; what lies inside others is theirs to walk."""
        seen: set[int] = set()
        pending: list[tuple[str, nn.Module]] = [("", self)]
        while pending:
            path, module = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            if isinstance(module, SharedModule):
                dot = f"{path}." if path else ""
                pending += [(f"{dot}{name}", part) for name, part in reversed([*module._parts().items()])]

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._parts().items()

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        memo = set() if memo is None else memo
        for path, module in self._reach():
            whole = ".".join(part for part in (prefix, path) if part)
            if isinstance(module, SharedModule):
                if module not in memo:
                    memo.add(module)
                    yield whole, module
            else:
                yield from module.named_modules(memo, whole, remove_duplicate)

    def _each(self) -> Iterator[nn.Module]:
        return (module for _, module in self._reach())

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        for module in self._each():
            if isinstance(module, SharedModule):
                fn(module)
            else:
                module.apply(fn)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """As PyTorch's. But of what blocks hold and take, integers and flags stay what they are: they index and count."""

        def changed(tensor: Tensor) -> Tensor:
            made: Tensor = fn(tensor)
            is_number = tensor.is_floating_point() or tensor.is_complex()
            return made if is_number or made.dtype == tensor.dtype else tensor.to(made.device)

        for module in self._each() if recurse else (self,):
            if isinstance(module, SharedModule):
                nn.Module._apply(module, changed, recurse=False)
                module._applied(lambda dtype: changed(torch.zeros((), dtype=dtype, device="cpu")).dtype)
            else:
                module._apply(fn)
        return self

    def _applied(self, change: Callable[[torch.dtype], torch.dtype]) -> None:
        """Told how parameters of each dtype have changed."""

    def train(self, mode: bool = True) -> Self:
        for module in self._each():
            if isinstance(module, SharedModule):
                module.training = mode
            else:
                module.train(mode)
        return self

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Every parameter and buffer once, under its first path."""
        if args:
            destination, prefix, keep_vars = [*args, *[destination, prefix, keep_vars][len(args) :]]
        if destination is None:
            destination = OrderedDict()
        seen: set[int] = set()
        for key, tensor in self._all_state(prefix).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                destination[key] = tensor.detach() if isinstance(tensor, Tensor) and not keep_vars else tensor
        return destination

    def _all_state(self, prefix: str) -> dict[str, Any]:
        """State by every path of every module, so that tied parameters appear more than once."""
        found: dict[str, Any] = {}
        for path, module in self._reach():
            start = f"{prefix}{path}." if path else prefix
            if isinstance(module, SharedModule):
                module._save_to_state_dict(found, start, True)
            else:
                module.state_dict(destination=found, prefix=start, keep_vars=True)
        return found

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if local_metadata.get("assign_to_params_buffers"):
            self._tie(state_dict, prefix)
        for path, module in list(self.named_modules()):
            start = f"{prefix}{path}." if path else prefix
            known = {**local_metadata, "version": module._version}
            load = nn.Module._load_from_state_dict if isinstance(module, SharedModule) else type(module)._load_from_state_dict
            load(module, state_dict, start, known, False, missing_keys, unexpected_keys, error_msgs)
        if strict:
            every = self._all_state(prefix)
            missing_keys += [key for key in self.state_dict(prefix=prefix) if key not in state_dict]
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in every]

    def _tie(self, state_dict: Any, prefix: str) -> None:
        """Let what is one tensor under several paths stay one where tensors are not copied into but replaced."""
        paths: dict[int, list[str]] = {}
        every = self._all_state(prefix)
        for key, tensor in every.items():
            paths.setdefault(id(tensor), []).append(key)
        for keys in paths.values():
            given = next((state_dict[key] for key in keys if key in state_dict), None)
            if len(keys) > 1 and isinstance(given, Tensor):
                like = every[keys[0]]
                if isinstance(like, nn.Parameter) and not isinstance(given, nn.Parameter):
                    given = nn.Parameter(given, like.requires_grad)
                state_dict.update(dict.fromkeys(keys, given))
