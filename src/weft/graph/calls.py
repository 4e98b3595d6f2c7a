"""Calls: the general form in which front ends hand work to the engine.

A *call type* is a static function of one example's tensors: some come from other calls (`args`), some are data of this call
(`feeds`), and a call type with `many` takes any number of further arguments of one kind, to be reduced. A *library* numbers
call types by a key, so that calls of equal keys batch together wherever they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.graph.cell import Body, Signature, discover
from weft.graph.rows import Rows, Spec, TensorSpec
from weft.graph.tape import Name
from weft.graph.tracing import tracing

KEY = ""
"""Arguments of a general call carry one tensor each: the only state key."""


@dataclass(frozen=True, eq=False)
class CallType:
    """What is computed by a kind of call.

    `body(*args, *feeds)` gets one example's tensors and returns a flat sequence of tensors; with `many` it gets one thing more,
    the `Rows` that answer for the further arguments (`rows.child_map`, `rows.reduce_sum`, ..., their only state key is "").
    `owners` are the modules and functions whose parameters, closures and settings the body may use.
    """

    name: str
    body: Callable[..., Sequence[Tensor]]
    args: tuple[TensorSpec, ...] = ()
    feeds: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    many: TensorSpec | None = None
    owners: tuple[object, ...] = ()
    random: bool = False
    """Draws random numbers: equal calls are never computed once."""
    device: str = "cpu"
    hands_on: bool = False
    """Gives the one tensor that it is fed as it is."""

    @property
    def spec(self) -> Spec:
        state = () if self.many is None else ((KEY, self.many),)
        return Spec((("data", self.feeds),), None, state, len(self.args), device=self.device, slots=self.args)

    @property
    def asked(self) -> dict[Name, TensorSpec]:
        """What the engine is asked for at every call: arguments, then data."""
        slots: dict[Name, TensorSpec] = {("slot", at, KEY): spec for at, spec in enumerate(self.args)}
        return slots | {("feed", "data", number): spec for number, spec in enumerate(self.feeds)}

    @property
    def signature(self) -> Signature | None:
        """What the body takes and gives, where that is known without running it."""
        results = {(number, KEY): spec for number, spec in enumerate(self.outputs)}
        return None if self.many is not None else Signature(self.asked, (), results)

    def engine_body(self) -> Body:
        """The body as the engine asks for it: arguments are slots, data is fed."""

        def body(rows: Rows) -> dict[Name, Tensor]:
            args = [rows.slot(position, KEY) for position in range(len(self.args))]
            further = () if self.many is None else (rows,)
            results = self.body(*args, *(rows.feed("data") or ()), *further)
            return {(number, KEY): result for number, result in enumerate(results)}

        return body


def call_type(
    name: str,
    body: Callable[..., Sequence[Tensor]],
    args: Sequence[TensorSpec] = (),
    feeds: Sequence[TensorSpec] = (),
    many: TensorSpec | None = None,
    owners: Sequence[object] = (),
    random: bool = False,
    device: str = "cpu",
) -> CallType:
    """A call type whose outputs are found by running the body once on fake tensors.

    >>> import torch
    >>> spec = TensorSpec((3,), torch.float32)
    >>> call_type("double", lambda x: [x * 2, x.sum()], [spec]).outputs[1]
    TensorSpec(shape=(), dtype=torch.float32)
    """
    made = CallType(name, body, tuple(args), tuple(feeds), (), many, tuple(owners), random, device)
    with tracing:
        found = discover(made.engine_body(), made.spec).outputs
    outputs = tuple(found[number, KEY] for number in range(len(found)))
    return CallType(name, body, made.args, made.feeds, outputs, many, made.owners, random, device)


@dataclass(eq=False)
class Library:
    """Call types by number, and by the key that says what they compute.

    >>> library = Library(lambda key: CallType(str(key), lambda x: [x]))
    >>> library.number("a"), library.number("b"), library.number("a")
    (0, 1, 0)
    """

    make: Callable[[Any], CallType]
    """From a key to its call type; keys that can be pickled let programs travel between processes."""
    types: list[CallType] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What the engine keeps with these call types."""

    def number(self, key: Hashable) -> int:
        found = self.numbers.get(key)
        return self._add(key) if found is None else found

    def _add(self, key: Hashable) -> int:
        with tracing:
            if key not in self.numbers:  # another thread may have been first
                made, number = self.make(key), len(self.numbers)
                self.types[number:], self.keys[number:] = [made], [key]  # an interrupt may have left something there
                self.numbers[key] = number
            return self.numbers[key]
