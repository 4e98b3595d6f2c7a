"""What belongs to a function that is run batched, from call to call: its call types, and what was learned of its operations.

A *world* holds for one set of shapes and dtypes of the model's tensors, one ambient autocast and one default dtype: inside a
world, kinds of arguments decide kinds of results. Inside a world there is a table for each *setting* in which calls are
recorded (gradients off in a `no_grad` block, another autocast).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from operator import getitem, is_
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from weft.graph.calls import CallType, Library
from weft.graph.capture import Guards, Place, Surroundings, fetch
from weft.lazy.blame import Site, name_cell, name_site
from weft.lazy.identity import frozen, identity
from weft.lazy.kinds import Kind
from weft.lazy.ops import Op, Setting, Window
from weft.locks import lock


class Entry:
    """What recording a call of one signature at one place appends and returns."""

    __slots__ = ("number", "op", "single")

    def __init__(self, number: int, op: Op) -> None:
        self.number, self.op = number, op
        plain = op.structure is None and len(op.outs) == 1
        self.single: Kind | None = op.outs[0] if plain else None


class Tables:
    """Entries of one setting, by signature and place."""

    def __init__(self) -> None:
        self.fast: dict[Any, tuple[int, Kind]] = {}
        self.calls: dict[Any, Entry] = {}
        self.quick: dict[Any, Any] = {}
        self.ones: dict[nn.Module, bool] = {}
        """Modules whose calls are recorded as one."""


class World:
    """Everything learned while the tensors of the model that matter look the same."""

    def __init__(self) -> None:
        self.tables: dict[Setting, Tables] = {}
        self.ops: dict[Any, Op] = {}
        self.forms: dict[Any, Op] = {}
        """For each signature without sizes one operation of that form."""
        self.valued: set[Any] = set()
        """Signatures of operations that need the values of their arguments."""
        self.numbers: dict[Any, set[Any]] = {}
        """Numbers that operations at one place were called with, as long as they are few."""
        self.sizes: dict[Any, set[Any]] = {}
        """Sizes of the data that calls at one place were fed, as long as they are few."""
        self.relied: dict[Op, list[tuple[int, Any]]] = {}
        """Where each operation takes the model's tensors from."""
        self.captured: dict[int, frozenset[int]] = {}
        """For recorded types the tensors of the model that they use, by identity."""
        self._watched: dict[Op, Guards] = {}
        """What the modules that operations call are made of."""
        self._guards: Guards | None = None
        """The same of all operations together."""
        self._places: dict[tuple[int, Any], tuple[Place, Any]] = {}
        self._tensors: list[Any] = []
        """What lay in these places when the last recording began, or when it came to them."""
        self._containers: list[Any] = []
        self._names: list[Any] = []
        """The same places, for a look at all of them at once."""

    def rely_on(self, op: Op) -> None:
        """What was found out about an operation holds while its tensors look as they do now."""
        given = [owner for owner in op.owners if not isinstance(owner, Window)]
        called = Surroundings().add(*[owner for owner in given if isinstance(owner, nn.Module) or owner is not op.func])
        if called.roots:
            modules = [module for owner in given if isinstance(owner, nn.Module) for module in owner.modules()]
            signed = {(id(module.__dict__), "training") for module in modules}  # which is part of signatures
            called.settings = [place for place in called.settings if (id(place[0]), place[1]) not in signed]
            self._watched[op], self._guards = Guards(called), None
        for place in (*called.tensors, *[owner.place for owner in op.owners if isinstance(owner, Window)]):
            key = (id(place[0]), place[1])
            if key not in self._places:
                self._tensors.append(fetch(place))
                self._containers.append(place[0])
                self._names.append(place[1])
            self._places[key] = (place, _look(fetch(place)))
            self.relied.setdefault(op, []).append(key)

    def _gives_the_same(self) -> bool:
        """Whether modules that are made of something else now still give the same kinds of results."""
        changed = [op for op, guards in self._watched.items() if not guards.hold()]
        if not all(op.gives_the_same() for op in changed):
            return False
        for op in changed:
            self.relied.pop(op, None)
            op.__dict__.pop("around", None)
            self.rely_on(op)
        self.captured.clear()
        return True

    def replaced(self) -> dict[tuple[int, Any], tuple[Place, Tensor]]:
        """Places where something else lies now than when the recording began, and what it was."""
        with suppress(KeyError, IndexError, ValueError):
            if all(map(is_, map(getitem, self._containers, self._names), self._tensors)):
                return {}
        tensors = [fetch(place) for place, _ in self._places.values()]
        known = zip(self._places.items(), tensors, self._tensors, strict=True)
        return {key: (place, before) for (key, (place, _)), now, before in known if now is not before}

    def holds(self) -> bool:
        """Whether tensors and results still look the same; where a tensor is another object, calls go the long way once."""
        if self._guards is None:
            self._guards = Guards.together(list(self._watched.values()))
        if not self._guards.hold() and not self._gives_the_same():
            return False
        try:
            tensors: list[Any] = list(map(getitem, self._containers, self._names))
            looks = [(tensor.shape, tensor.dtype) for tensor in tensors]
        except (KeyError, IndexError, ValueError, AttributeError):  # some are no tensors any more
            tensors = [fetch(place) for place, _ in self._places.values()]
            looks = list(map(_look, tensors))
        if looks != [look for _, look in self._places.values()]:
            return False
        if not all(map(is_, tensors, self._tensors)):
            self._tensors = tensors
            self.captured.clear()
            for tables in self.tables.values():
                tables.quick.clear()
                tables.fast.clear()
        return True


def _look(tensor: Any) -> Any:
    return (tensor.shape, tensor.dtype) if isinstance(tensor, Tensor) else None


MOST_TYPES = 1024
"""How many recorded types a state may have before the next call starts anew, so that what never comes again does not stay."""
SOON, MOST_DOUBLED = 32, 8
"""A state that was full after that few calls is followed by one with room for twice as many, up to this many times as many."""


class State:
    """What a batched function keeps. Copies and pickles of the function start anew."""

    def __init__(self, fn: Callable[..., Any] | None, room: int = 1) -> None:
        self.roots = () if fn is None else (fn,)
        self.room, self.calls = room, 0
        self.library = Library(_call_type)
        self.worlds: dict[Hashable, list[World]] = {}
        self.fines: list[Op] = []
        """The operation of each recorded type; one operation at two places is two types."""
        self.sites: dict[int, Site | None] = {}
        """Where each of them was recorded, if they are told apart by that."""
        self._widths: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] = np.zeros(0, np.int64), np.zeros(0, bool)
        self._eager: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self.lock = lock()
        self.kept: dict[Hashable, Any] = {}
        self._surroundings: Surroundings | None = None
        self._places: dict[int, Place] = {}

    def is_full(self) -> bool:
        return len(self.fines) > MOST_TYPES * self.room

    def followed(self) -> State:
        """An empty state in the place of this one, which has grown too large."""
        more = self.room * 2 if self.calls <= SOON and self.room < MOST_DOUBLED else self.room
        return State(self.roots[0] if self.roots else None, more)

    def __deepcopy__(self, memo: Any) -> State:
        return State(None)

    def __reduce__(self) -> Any:
        return State, (None,)

    def fine(self, op: Op, site: Site | None) -> int:
        """A new recorded type."""
        with self.lock:
            self.sites[len(self.fines)] = site
            self.fines.append(op)
            return len(self.fines) - 1

    def blame(self, error: BaseException, number: int) -> None:
        """Say in notes which cell a call of this type is of, if it is of one, and which line had recorded it."""
        op = self.fines[number]
        if op.is_cell:
            name_cell(error, op.name, op.func, next(iter(self.roots), None))
        name_site(error, self.sites[number])

    def widths(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """How many arguments each recorded type has, and whether there are further ones."""
        if len(self._widths[0]) != len(self.fines):
            fines = list(self.fines)
            self._widths = (
                np.array([len(op.args) for op in fines], np.int64),
                np.array([op.many is not None for op in fines], bool),
            )
        return self._widths

    def eager(self) -> npt.NDArray[np.bool_]:
        """For each recorded type whether it runs in the first flush after it was recorded; the others wait for the last one."""
        if len(self._eager) < len(self.fines):
            self._eager = np.append(self._eager, np.zeros(len(self.fines) - len(self._eager), bool))
        return self._eager

    def surroundings(self) -> Surroundings:
        if self._surroundings is None:
            self._surroundings = Surroundings().add(*self.roots)
            self._places = {id(fetch(place)): place for place in reversed(self._surroundings.tensors) if _is_own(place)}
            self._held = [fetch(place) for place in self._places.values()]  # so that no other tensor gets their ids
        return self._surroundings

    def look_again(self) -> Surroundings:
        """The same, after modules or tensors of the model were replaced."""
        self._surroundings = None
        return self.surroundings()

    def world(self, ambient: Hashable) -> World:
        """The world that holds now."""
        known = self.worlds.setdefault((ambient, torch.get_default_dtype()), [])
        for world in reversed(known):
            if world.holds():
                return world
        known.append(World())
        return known[-1]

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where the model keeps this tensor, if it does."""
        self.surroundings()
        place = self._places.get(id(tensor))
        if place is not None and fetch(place) is tensor:
            return place
        if not isinstance(tensor, nn.Parameter):
            return None
        # Only parameters may join later: what code assigns to its module while it runs is an example's own.
        for fresh in reversed(Surroundings().add(*self.roots).tensors):
            if isinstance(fetch(fresh), nn.Parameter):
                self._places[id(fetch(fresh))] = fresh
                self._held.append(fetch(fresh))
        place = self._places.get(id(tensor))
        if place is None or fetch(place) is not tensor:
            place = self._places[id(tensor)] = ([tensor], 0)
        return place


def _is_own(place: Place) -> bool:
    """Tensors kept by name; those in lists and dictionaries are data, unless they are trained."""
    if not isinstance(place[1], str):
        return isinstance(fetch(place), Tensor) and fetch(place).requires_grad
    return True


def _call_type(key: Any) -> CallType:
    made: CallType = key.call_type()
    return made


_without_dict: dict[Any, State] = {}
_lock = lock()
MOST_WITHOUT = 16
"""Of so many functions without attributes the states are kept, and with them what they hold."""


def state_of(fn: Any, is_own: bool = False) -> State:
    """The state of a function or module; it lives and dies with it.

    Functions that are made anew in every call of the code around them, and do the same, have one state, which lives with a
    module that they use. `is_own`: not so what is kept of examples, since global variables may change from one to the next.
    """
    if isinstance(fn, MethodType):
        return _in(fn.__self__, ("method", fn.__func__), fn, State)
    may_share = isinstance(fn, FunctionType) and "<l" in fn.__qualname__ and "own" not in fn.__dict__.get("_weft_recorded", ())
    return _in(fn, "alike", fn, _state_of_alike) if may_share and not is_own else _in(fn, "own", fn, State)


def _state_of_alike(fn: FunctionType) -> State:
    """The state of functions like this one, if there is a module to keep it."""
    key = identity(fn, numbers=False)  # every call reads them anew
    module = None if key is fn else _module_of(fn)
    if module is None:
        return State(fn)
    kept = _kept_in(module.__dict__, module)
    found = kept.pop(key, None)
    kept[key] = found = State(frozen(fn)) if found is None or not found.roots or found.is_full() else found
    alike = [name for name in kept if isinstance(name, tuple) and name[0] is FunctionType]
    for name in alike[:-MOST_ALIKE]:
        del kept[name]
    return found


MOST_ALIKE = 8
"""For so many functions that are made anew again and again a module keeps their states."""


def _module_of(fn: FunctionType) -> nn.Module | None:
    """The first module among a function's variables."""
    variables = [cell.cell_contents for cell in fn.__closure__ or ()]
    variables += [fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__]
    return next((each for each in variables if isinstance(each, nn.Module)), None)


def _in(holder: Any, name: Hashable, fn: Any, new: Callable[[Any], State]) -> State:
    attributes = getattr(holder, "__dict__", None)
    if not isinstance(attributes, dict):
        return _without(holder, name, fn)
    kept = _kept_in(attributes, holder)
    found: State | None = kept.get(name)
    if found is None or not found.roots:
        found = kept[name] = new(fn)
    elif found.is_full():
        found = kept[name] = found.followed()
    return found


def _without(holder: Any, name: Hashable, fn: Any) -> State:
    """The state of something that has no attributes to keep it in: those that were used last are kept here."""
    with _lock:
        try:
            found = _without_dict.pop((holder, name), None)
        except TypeError:
            return State(fn)
        found = State(fn) if found is None else found.followed() if found.is_full() else found
        _without_dict[holder, name] = found
        if len(_without_dict) > MOST_WITHOUT:
            del _without_dict[next(iter(_without_dict))]
        return found


def _kept_in(attributes: dict[str, Any], holder: Any) -> _Kept:
    kept = attributes.get("_weft_recorded")
    if not isinstance(kept, _Kept) or kept.holder is not holder:
        kept = attributes["_weft_recorded"] = _Kept()
        kept.holder = holder
    return kept


class _Kept(dict[Any, State]):
    """States by name; a copy of the function, or a wrapper that took over its attributes, starts without any."""

    holder: Any = None

    def __deepcopy__(self, memo: Any) -> _Kept:
        return _Kept()

    def __reduce__(self) -> Any:
        return _Kept, ()
