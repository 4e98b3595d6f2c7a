"""The base of all blocks."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from weft.blocks.checks import check_name
from weft.blocks.inference import check_classes, inferring, set_type, wake
from weft.blocks.modules import SharedModule
from weft.blocks.pickling import DEEPEST, flat, refilled
from weft.blocks.show import described, tree_of
from weft.blocks.types import ResultType, map_dtypes
from weft.errors import TypeMismatch

ANY: tuple[type[ResultType], ...] = (ResultType,)


class _Construction(type):
    """Making a block ends with inferring what can be known of its types, and notes the arguments for `repr`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with inferring():
            block = super().__call__(*args, **kwargs)
            if isinstance(block, cls):
                block.__dict__.setdefault("_constructed", (args, kwargs))
                wake(block)
        return block


class Block(SharedModule, metaclass=_Construction):
    """A function from one kind of thing to another, made of tensor code, Python code and other blocks.

    `a >> b` is a block that applies `a`, then `b`. Dictionaries, lists and tuples become a `Record`, modules a `Function`, and
    tensors and arrays, also on the left, a `FromTensor`.

    >>> import weft.blocks as wb
    >>> (wb.GetItem("x") >> wb.Scalar() >> wb.Function(torch.neg)).eval_one({"x": 2})
    tensor(-2.)
    """

    __array_ufunc__ = None
    """So that `array >> block` comes to the block."""
    _input_classes = ANY
    _output_classes = ANY
    training: bool

    def __init__(self, parts: Any = (), *, name: str | None = None) -> None:
        super().__init__()
        if name is not None:
            check_name(type(self).__name__, name)
        self._given_name = name
        self._types: dict[str, ResultType | None] = {"input": None, "output": None}
        self._classes = {"input": self._input_classes, "output": self._output_classes}
        self._parents: list[weakref.ref[Block]] = []
        self._watchers: list[weakref.ref[Block]] = []
        self._subblocks: tuple[Block, ...] = ()
        self._kept: dict[str, Any] = {}
        self._changes = 0
        for part in parts:
            self._adopt(part)

    def _adopt(self, part: Any) -> Block:
        """Take a block as a part."""
        block = convert_to_block(part)
        self._subblocks = (*self._subblocks, block)
        block._parents = [*(alive for alive in block._parents if alive() is not None), weakref.ref(self)]
        wake(self)
        return block

    @property
    def name(self) -> str:
        return self._given_name or type(self).__name__

    @property
    def subblocks(self) -> tuple[Block, ...]:
        """The blocks of which this one is made."""
        return self._subblocks

    @property
    def input_type(self) -> ResultType | None:
        """The type of what it takes; None while unknown."""
        return self._types["input"]

    @property
    def output_type(self) -> ResultType | None:
        """The type of what it gives; None while unknown."""
        return self._types["output"]

    def set_input_type(self, type: Any) -> Self:
        """Say what it takes; None says nothing."""
        with inferring():
            if type is not None:
                set_type(self, "input", type)
        return self

    def set_output_type(self, type: Any) -> Self:
        """Say what it gives; None says nothing."""
        with inferring():
            if type is not None:
                set_type(self, "output", type)
        return self

    def set_input_type_classes(self, *classes: type[ResultType]) -> Self:
        """Allow only these classes of types as input."""
        return self._narrow("input", classes)

    def set_output_type_classes(self, *classes: type[ResultType]) -> Self:
        """Allow only these classes of types as output."""
        return self._narrow("output", classes)

    def _narrow(self, side: str, classes: tuple[type[ResultType], ...]) -> Self:
        known = self._types[side]
        if known is not None:
            check_classes(self, side, known, classes)
        self._classes[side] = classes
        return self

    def set_io_types(self, other: Block) -> Self:
        """Let input and output types be those of another block, whichever is known."""
        with inferring():
            for one, two in ((self, other), (other, self)):
                for side, type in two._types.items():
                    if type is not None:
                        set_type(one, side, type)
        return self

    def set_constructor_name(self, name: str) -> Self:
        """The name of the constructor that `repr` shows."""
        if not isinstance(name, str):
            raise TypeMismatch(f"{self._path()}: constructor name: expected a string, got {name!r}")
        self.__dict__["_constructor_name"] = name
        return self

    def set_constructor_args(self, *args: Any) -> Self:
        """The arguments that `repr` shows."""
        self.__dict__["_constructed"] = (args, {})
        return self

    def set_constructor_name_args(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        self.__dict__["_constructed"] = (tuple(args), dict(kwargs))
        return self.set_constructor_name(name)

    def _known(self, side: str) -> ResultType:
        type = self._types[side]
        if type is None:
            raise TypeMismatch(f"Cannot determine {side} type for {self._path()}; {self._how_to_say(side)}")
        return type

    def _how_to_say(self, side: str) -> str:
        """What to do where a type cannot be found."""
        return f"say it with set_{side}_type"

    def _guess(self) -> None:
        """Before the code is written: set a type that follows from nothing, but that there is only one good choice for."""

    def _differs(self, side: str, ours: ResultType, theirs: ResultType) -> TypeMismatch:
        """Types that disagree: what the block takes and what comes in, or what it gives and what is needed of it."""
        is_, wanted = (theirs, ours) if side == "input" else (ours, theirs)
        return TypeMismatch(f"Type mismatch between {side} type {is_!r} and expected {side} type {wanted!r} in {self._path()}")

    def _check_whole(self) -> None:
        """Look for what is wrong whatever the types are, before any code is written."""

    def _update(self) -> None:
        """Set what follows from the types known so far."""

    def _holders(self) -> Iterator[Block]:
        """The blocks that want to know of this one's types: those of which it is a part, and references to it."""
        for reference in (*self._parents, *self._watchers):
            holder = reference()
            if holder is not None:
                yield holder

    def _emit(self, e: Any, x: Any) -> Any:
        """Write code: from the value of the input to the value of the output (`weft.blocks.emit`)."""
        raise NotImplementedError

    def _passed_on(self) -> Iterable[Block]:
        """The parts that get this block's own input, as it is."""
        return ()

    def _looks_at_values(self) -> bool:
        """Whether what it does depends on the values of tensors."""
        return False

    def _explain(self, error: Exception, value: Any) -> Exception | None:
        """What an error of Python means here, in the user's words; None where it is the user's own."""
        return None

    def _mismatch(self, text: str) -> TypeMismatch:
        return TypeMismatch(f"{self._path()}: {text}")

    def _path(self) -> str:
        """This block's place in the block that holds it all."""
        steps: list[str] = []
        block: Block = self
        seen = {id(self)}
        while (parent := next((p for p in (r() for r in block._parents) if p is not None), None)) and id(parent) not in seen:
            seen.add(id(parent))
            label = next((label for label, part in parent._labels() if part is block), "?")
            steps.append(f"{parent.name}[{label}]")
            block = parent
        return "/".join([*reversed(steps), described(self)])

    def _labels(self) -> Iterator[tuple[str, Block]]:
        """How error messages call the parts."""
        yield from self._named()

    def _named(self) -> list[tuple[str, Block]]:
        taken: set[str] = set()
        found = []
        for place, part in enumerate(self._subblocks):
            name = part._given_name or str(place)
            name = f"{name}_{place}" if name in taken else name
            taken.add(name)
            found.append((name, part))
        return found

    def _parts(self) -> Mapping[str, nn.Module]:
        return dict(self._named())

    def _applied(self, change: Callable[[torch.dtype], torch.dtype]) -> None:
        """Types follow the parameters from one floating dtype to another."""
        self._types = {side: None if type is None else map_dtypes(type, change) for side, type in self._types.items()}
        self._changes += 1
        self._kept.clear()

    def __getattr__(self, name: str) -> Any:
        for known, part in self._parts().items() if "_subblocks" in self.__dict__ else ():
            if known == name:
                return part
        return super().__getattr__(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """All blocks that this one reaches are made first and filled afterwards, however deep they are nested."""
        reached = [part for _, part in self._reach() if isinstance(part, Block) and id(part) not in memo]
        for part in reached:
            memo[id(part)] = type(part).__new__(type(part))
        for part in reached:
            memo[id(part)].__setstate__(copy.deepcopy(part.__getstate__(), memo))
        made: Self = memo[id(self)]
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        reached = list(self._reach())
        if max(path.count(".") for path, _ in reached) <= DEEPEST:
            return super().__reduce_ex__(protocol)
        return refilled, flat([part for _, part in reached if isinstance(part, Block)])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_parents"], state["_watchers"], state["_kept"] = [], [], {}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        parents, watchers = self.__dict__.get("_parents", []), self.__dict__.get("_watchers", [])
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._parents, self._watchers = parents, watchers
        for part in self._subblocks:
            part.__dict__.setdefault("_parents", []).append(weakref.ref(self))

    def __rshift__(self, other: Any) -> Block:
        from weft.blocks.compose import Pipe

        return Pipe(self, other) if can_become_block(other) or not _has_its_own_way(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Block:
        from weft.blocks.compose import Pipe

        return Pipe(other, self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`tensor >> block` comes to the block; no torch function takes blocks."""
        return NotImplemented

    def reads(self, *others: Any) -> Self:
        """Inside `composition.scope()`: take the outputs of these as input."""
        from weft.blocks.wiring import current

        current(f"{self._path()}: reads").connect(others[0] if len(others) == 1 else others, self)
        return self

    def __getitem__(self, key: Any) -> Any:
        """One item of a tuple that this block gives, to be read inside a composition."""
        from weft.blocks.wiring import Item, current

        if isinstance(key, slice):
            from weft.blocks.indexing import GetItem

            current(f"{self._path()}: [...]")
            return GetItem(key).reads(self)
        return Item(self, int(key) if isinstance(key, np.integer) else key)

    def __iter__(self) -> Iterator[Any]:
        raise TypeMismatch(f"{self._path()}: a block cannot be looped over; read its items as block[0], block[1]")

    def __repr__(self) -> str:
        return described(self)

    def __str__(self) -> str:
        return tree_of(self)

    def eval_one(self, x: Any, tolist: bool = False) -> Any:
        """Evaluate one example, one operation after the other, without batching. `tolist` turns tensors into lists."""
        from weft.blocks.evaluate import eval_one

        return eval_one(self, x, tolist)

    def forward(self, x: Any) -> Any:
        return self.eval_one(x)

    def max_depth(self, x: Any) -> int:
        """The largest number of operations of which each needs the one before."""
        from weft.blocks.evaluate import max_depth

        return max_depth(self, x)

    def trace(self, x: Any) -> Any:
        """Block path, type and value of every step for one example."""
        from weft.blocks.diagnose import trace

        return trace(self, x)

    @property
    def metrics(self) -> dict[str, Tensor]:
        """What `Metric` blocks saw in the last call, by name, with gradient."""
        found: dict[str, Tensor] = self._kept.get("metrics", {})
        return found

    @property
    def metric_labels(self) -> dict[str, list[Any]]:
        """The labels that came with it."""
        found: dict[str, list[Any]] = self._kept.get("metric_labels", {})
        return found

    def __weft_batched__(self, **options: Any) -> nn.Module:
        from weft.blocks.compiled import batched

        return batched(self, **options)


def can_become_block(x: Any) -> bool:
    return isinstance(x, Block | nn.Module | Tensor | np.ndarray | np.generic | dict | list | tuple)


def convert_to_block(x: Any) -> Block:
    """A block from a block, a module (`Function`), a tensor or array (`FromTensor`), or a dict, list or tuple (`Record`).

    >>> import torch, weft.blocks as wb
    >>> wb.convert_to_block({"a": wb.Scalar() >> torch.nn.Tanh()})
    <wb.Record a>
    """
    from weft.blocks.compose import Record
    from weft.blocks.functions import Function
    from weft.blocks.leaves import FromTensor

    if isinstance(x, Block):
        return x
    if isinstance(x, nn.Module):
        return Function(x)
    if isinstance(x, Tensor | np.ndarray | np.generic):
        return FromTensor(x)
    if isinstance(x, dict | list | tuple):
        return Record(x)
    got = re.sub(r" at 0x\w+", "", repr(x))
    raise TypeMismatch(f"expected a block, module, tensor, dict, list or tuple, got {got}{_way_out(x)}")


def _has_its_own_way(x: Any) -> bool:
    """Whether something may know by itself what to do right of an arrow. All else is told what it should be."""
    return hasattr(x, "__rrshift__") and not isinstance(x, int)


def _way_out(x: Any) -> str:
    from weft.blocks.declare import ForwardDeclaration

    if isinstance(x, ForwardDeclaration):
        return "; call it for a block that stands for it: declaration()"
    if isinstance(x, type):
        return f"; make one: {x.__name__}(...)"
    return "; wrap it: Function(fn)" if callable(x) else ""
