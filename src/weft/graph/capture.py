"""What a cell's code reaches besides its arguments: tensors are looked up at every call, plain settings are guarded.

A trace holds for as long as nothing that the code reads has changed. Tensors (parameters, buffers, attributes, closure and
global variables) become inputs of the trace and are fetched anew at each call. Numbers, flags and strings are compared; where
one differs, the cell is traced again.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from operator import attrgetter, call, is_, itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import TraceError
from weft.graph.writes import ASSIGNS

_INTERNAL = nn.Module().__dict__.keys() - {"training"} | {"_weft", "_weft_recorded"}
_LIBRARIES = frozenset({"torch", "numpy", "math", "typing", "collections", "functools", "itertools", "operator", "weft"})
MOST_OBJECTS = 10_000
"""So many objects and containers are looked into, the nearest first: one name may lead to all that a program has."""
_OPAQUE = ("logging", "threading")
"""What objects of these modules hold is large, changes often, and is nothing to compute with."""
_STANDARD = str(Path(os.__file__).parent) + os.sep
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
_CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class _Closure:
    """A closure variable, read like a dictionary entry."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __getitem__(self, _: str) -> Any:
        return self.cell.cell_contents


class _Slots:
    """The attributes of an object that are in no dictionary."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.holder, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.holder, name, value)


class _Members:
    """The members of a set, in the order in which it gives them."""

    def __init__(self, members: set[Any] | frozenset[Any]) -> None:
        self.members = members

    def __getitem__(self, at: int) -> Any:
        try:
            return next(islice(self.members, at, None))
        except StopIteration:
            raise IndexError(at) from None


class _Scripted:
    """The tensors of a scripted module, whose dictionaries are none of Python's."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getitem__(self, name: str) -> Any:
        found: Any = self.module
        for part in name.split("."):
            found = getattr(found, part)
        return found


Place = tuple[Any, Any]
"""A container and a key: `container[key]` is the current value."""


def fetch(place: Place) -> Any:
    container, key = place
    try:
        return container[key]
    except (KeyError, IndexError, ValueError):
        return None


@dataclass
class Surroundings:
    """Every place that the code of some modules and functions may read from."""

    tensors: list[Place] = field(default_factory=list)
    settings: list[Place] = field(default_factory=list)
    objects: list[Place] = field(default_factory=list)
    """Functions, modules and other objects: replacing one by another is a change."""
    sizes: list[Any] = field(default_factory=list)
    """Dictionaries, lists and sets to which nothing may be added."""
    modules: list[nn.Module] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    """Those of objects that are no modules."""
    roots: tuple[Any, ...] = ()
    _alive: list[Any] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _room: int = MOST_OBJECTS

    def add(self, *roots: Any) -> Surroundings:
        self.roots += roots
        pending = deque(roots)
        while pending:
            root = pending.popleft()
            if id(root) in self._seen:
                continue
            self._seen.add(id(root))
            self._alive.append(root)
            if isinstance(root, nn.Module):
                pending.extend(self._module(root))
            elif isinstance(root, types.FunctionType):
                pending.extend(self._function(root))
            elif isinstance(root, types.MethodType):
                pending.extend((root.__func__, root.__self__))
            elif not isinstance(root, type | types.ModuleType) and not _is_opaque(root) and self._room:
                self._room -= 1
                pending.extend(self._object(root))
        return self

    def place_of(self, tensor: Tensor) -> Place | None:
        return next((place for place in self.tensors if fetch(place) is tensor), None)

    def _module(self, module: nn.Module) -> Iterator[Any]:
        self.modules.append(module)
        if isinstance(module, torch.jit.ScriptModule):
            for name in (*dict(module.named_parameters()), *dict(module.named_buffers())):
                yield from self._place((_Scripted(module), name))
            return
        for container in (module._parameters, module._buffers, module._modules, module.__dict__):
            self.sizes.append(container)
            for key in container:
                if key not in _INTERNAL:
                    yield from self._place((container, key))
        yield from self._classes(type(module))

    def _classes(self, cls: type) -> Iterator[Any]:
        """What the code of an object reads of its class."""
        for each in cls.__mro__:
            if not each.__module__.startswith(("torch.", "builtins")):
                yield from _methods(each)
                members, own = vars(each), not _in_library(each.__module__)
                for key, value in members.items():
                    if _is_plain(value) and not key.startswith("__"):
                        self.settings.append((members, key))
                    elif own and _function_of(value) is not None:
                        self.objects.append((members, key))
                    elif own and isinstance(value, Tensor):
                        self.tensors.append((members, key))

    def _object(self, root: Any) -> Iterator[Any]:
        """What an object that is no module holds: members, what a partial function has been given, attributes."""
        is_container, own = isinstance(root, _CONTAINERS), not _in_library(type(root).__module__)
        if is_container:
            yield from self._container(root)
        elif isinstance(root, partial):
            yield from (root.func, root.args, root.keywords)
        if hasattr(root, "__dict__") and (own or not is_container):
            self.attributes.append(root.__dict__)
            yield root.__dict__
            yield from self._classes(type(root))
        for name in _slots(type(root)) if own else ():
            yield from self._place((_Slots(root), name))

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        names = set(_names(function.__code__))
        for cell in function.__closure__ or ():
            yield from self._place((_Closure(cell), ""))
            self._class(fetch((_Closure(cell), "")), names)
        for container in (function.__kwdefaults__ or {}, dict(enumerate(function.__defaults__ or ()))):
            for key in container:
                yield from self._place((container, key))
        home = str(function.__globals__.get("__name__"))  # a marked function bears the name of another module
        in_library = _in_library(home)
        for name in names:
            value = function.__globals__.get(name)
            if in_library and not isinstance(value, Tensor | nn.Module):
                continue  # what others gave it is in its closure; the library itself does not change
            if isinstance(value, types.ModuleType):
                if not _in_library(value.__name__):
                    for inner in names & value.__dict__.keys():
                        yield from self._place((value.__dict__, inner))
            elif name in function.__globals__:
                yield from self._place((function.__globals__, name))
                self._class(value, names)

    def _class(self, value: Any, names: set[str]) -> None:
        """What code reads of a class: `Settings.scale`."""
        if not isinstance(value, type) or _in_library(value.__module__):
            return
        for members in map(vars, value.__mro__):
            for key in sorted(names & members.keys()):
                if isinstance(members[key], Tensor):
                    self.tensors.append((members, key))
                elif _is_plain(members[key]):
                    self.settings.append((members, key))

    def _container(self, container: Any) -> Iterator[Any]:
        if not isinstance(container, tuple | frozenset):
            self.sizes.append(container)
        held = _Members(container) if isinstance(container, set | frozenset) else container
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            yield from self._place((held, key))

    def _place(self, place: Place) -> Iterator[Any]:
        value = fetch(place)
        if isinstance(value, Tensor):
            self.tensors.append(place)
        elif _is_plain(value):
            self.settings.append(place)
        elif not isinstance(value, types.ModuleType):
            self.objects.append(place)
            if not isinstance(value, type) and (isinstance(value, nn.Module) or not _is_opaque(value)):
                yield value


def holds_more(value: Any) -> bool:
    """Whether there may be tensors or settings in what is neither a tensor nor a setting itself."""
    if isinstance(value, (nn.Module, types.FunctionType, types.MethodType, partial, *_CONTAINERS)):
        return True
    if isinstance(value, type | types.ModuleType) or _is_plain(value) or _is_opaque(value):
        return False
    return hasattr(value, "__dict__") or any(True for _ in _slots(type(value)))


def _is_opaque(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _OPAQUE or _from_torch(value)


@cache
def _in_library(module: str) -> bool:
    """Whether a module, by its name, is one that does not change and knows of nothing that does: Python's own and those of
    installed packages are so, too."""
    if module.partition(".")[0] in _LIBRARIES or module in sys.builtin_module_names:
        return True
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return file.startswith(_STANDARD) or _INSTALLED.search(file) is not None


def _slots(cls: type) -> Iterator[str]:
    """The attributes that a class keeps in no dictionary."""
    for each in cls.__mro__:
        yield from [name for name, member in vars(each).items() if isinstance(member, types.MemberDescriptorType)]


def _methods(cls: type) -> Iterator[Any]:
    """The functions of a class."""
    for member in vars(cls).values():
        function = _function_of(member)
        if function is not None:
            yield function


_WRAPPED = ("fget", "__func__", "func")
"""Where properties, methods of classes, and cached properties keep their function."""


def _function_of(member: Any) -> types.FunctionType | None:
    """The function that a member of a class is, however it is wrapped."""
    function = next((found for name in _WRAPPED if (found := getattr(member, name, None)) is not None), member)
    return function if isinstance(function, types.FunctionType) and not _from_torch(function) else None


def _from_torch(value: Any) -> bool:
    return not isinstance(value, nn.Module) and str(getattr(value, "__module__", "")).startswith("torch")


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


class Disturbed(TraceError):
    """The code put a tensor into its module while it was only being looked at."""


@contextmanager
def undisturbed(surroundings: Surroundings) -> Iterator[None]:
    """Take back tensors that the code assigns to its objects while it runs on stand-ins, and say that it did."""
    watched = [d for module in surroundings.modules for d in (module.__dict__, module._buffers)]
    before = [(d, dict(d)) for d in (*watched, *surroundings.attributes)]
    try:
        yield
    finally:
        changed = [key for now, then in before for key in _take_back(now, then)]
    if changed:
        raise Disturbed(f"{ASSIGNS} ({changed[0]}); make it in __init__")


def _take_back(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    changed = [key for key, value in now.items() if isinstance(value, Tensor) and value is not then.get(key)]
    for key in changed:
        if key in then:
            now[key] = then[key]
        else:
            del now[key]
    return changed


_contents = attrgetter("cell_contents")


class Guards:
    """Settings and objects as they were at some time, compared at every call: one C call per dictionary that they live in."""

    def __init__(self, surroundings: Surroundings) -> None:
        places = [*surroundings.settings, *surroundings.objects]
        self._watch_classes({id(module): (module, type(module)) for module in surroundings.modules})
        self._watch([(place, fetch(place)) for place in places], [(sized, len(sized)) for sized in surroundings.sizes])
        first: dict[int, Place] = {}
        meetings = [(first.setdefault(id(fetch(place)), place), place) for place in surroundings.tensors]
        self.ties = [(one, other) for one, other in meetings if one is not other]
        """Places with one tensor in both: a trace knows only the first, so it holds for as long as they have it in common."""

    @staticmethod
    def together(guards: Sequence[Guards]) -> Guards:
        """What all of these guard, each place once."""
        made = Guards.__new__(Guards)
        made._watch([one for each in guards for one in each.known], [one for each in guards for one in each.known_sizes])
        made.ties = [tie for each in guards for tie in each.ties]
        classes = [pair for each in guards for pair in zip(each.modules, each.classes, strict=True)]
        made._watch_classes({id(pair[0]): pair for pair in classes})
        return made

    def _watch_classes(self, each: Mapping[int, tuple[nn.Module, type]]) -> None:
        self.modules, self.classes = [module for module, _ in each.values()], [cls for _, cls in each.values()]

    def _watch(self, known: Sequence[tuple[Place, Any]], sizes: Sequence[tuple[Any, int]]) -> None:
        self.known, self.known_sizes = known, sizes
        by_dict: dict[int, tuple[Mapping[Any, Any], dict[Any, Any]]] = {}
        others: dict[tuple[int, Any], tuple[Place, Any]] = {}
        cells: dict[int, tuple[types.CellType, Any]] = {}
        for (container, key), value in known:
            if isinstance(container, dict | types.MappingProxyType):
                by_dict.setdefault(id(container), (container, {}))[1][key] = value
            elif isinstance(container, _Closure):
                cells[id(container.cell)] = container.cell, value
            else:
                others[id(container), key] = (container, key), value
        self.others = list(others.values())
        self.cells = [cell for cell, _ in cells.values()]
        each = {id(sized): (sized, size) for sized, size in sizes}.values()
        self.sized, self.sizes = [sized for sized, _ in each], [size for _, size in each]
        self.containers = [container for container, _ in by_dict.values()]
        asked = [(*keys, *keys)[: max(len(keys), 2)] for _, keys in by_dict.values()]  # for two, the answer is a tuple
        self.getters: list[Callable[[Any], Any]] = [itemgetter(*keys) for keys in asked]
        self.expected = [keys[key] for (_, keys), mine in zip(by_dict.values(), asked, strict=True) for key in mine]
        self.expected += [value for _, value in cells.values()]

    def _now(self) -> Iterator[Any]:
        return chain(chain.from_iterable(map(call, self.getters, self.containers)), map(_contents, self.cells))

    def hold(self) -> bool:
        try:
            if not all(map(is_, self._now(), self.expected)) and not all(map(_same, self._now(), self.expected)):
                return False
        except (KeyError, ValueError):
            return False
        if list(map(len, self.sized)) != self.sizes or list(map(type, self.modules)) != self.classes:
            return False
        if self.ties and not all(fetch(one) is fetch(other) for one, other in self.ties):
            return False
        return not self.others or all(_same(fetch(place), expected) for place, expected in self.others)


def _same(first: Any, second: Any) -> bool:
    """The same object, or equal plain values, where NaN counts as equal to itself."""
    if first is second:
        return True
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    if not (isinstance(first, _PLAIN) and isinstance(second, _PLAIN)) or type(first) is not type(second):
        return False
    return bool(first == second or (first != first and second != second))
