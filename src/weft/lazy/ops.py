"""Operations: what one recorded call computes, found once per signature.

An operation is a function with its arguments written as a template: some are results of other calls (`Arg`), some are data of
the call (`Feed`), some are tensors of the model that are looked up at every run (`Captured`), the rest are constants. Running
it once on fake tensors tells what comes out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode

from weft.errors import FROM_OUTSIDE, TraceError, WeftError
from weft.graph.calls import CallType
from weft.graph.capture import Place, Surroundings, fetch
from weft.graph.cell import discover
from weft.graph.hooks import hooked, unhooked
from weft.graph.lowering import ChangesOutside
from weft.graph.tracing import tracing
from weft.lazy.kinds import Kind, kind_of
from weft.lazy.nests import Structure, flatten
from weft.lazy.value import LOW, picked, row_of_model


@dataclass(frozen=True)
class Arg:
    """The result of another call."""

    at: int


@dataclass(frozen=True)
class Feed:
    """Data of this call."""

    at: int


@dataclass(frozen=True, eq=False)
class Captured:
    """A tensor of the model, at the place where it is looked up."""

    place: Place


@dataclass(frozen=True, eq=False)
class Closing:
    """A function that closes over results of other calls, which are its first argument."""

    function: Callable[..., Any]
    values: tuple[Any, ...]


class Window(dict[Any, Any]):
    """One entry of a container, and nothing else of it: `window[key]` is what the container holds there now."""

    def __init__(self, place: Place) -> None:
        super().__init__({place[1]: None})
        self.place = place

    def __getitem__(self, key: Any) -> Any:
        return fetch(self.place)


@dataclass(frozen=True)
class Setting:
    """How calls were recorded, where it differs from how the whole runs."""

    detached: bool = False
    autocast: tuple[str, torch.dtype, bool] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        grad = torch.is_grad_enabled() and not self.detached
        if self.autocast is None:
            with torch.set_grad_enabled(grad):
                yield
        else:
            kind, dtype, enabled = self.autocast
            with torch.set_grad_enabled(grad), torch.autocast(kind, dtype=dtype, enabled=enabled):
                yield

    @property
    def is_plain(self) -> bool:
        return not self.detached and self.autocast is None


PLAIN = Setting()


def fill(template: Any, args: Sequence[Any], feeds: Sequence[Any]) -> Any:
    """The template with tensors in place."""
    cls = template.__class__
    if cls is Arg:
        return args[template.at]
    if cls is Feed:
        return feeds[template.at]
    if cls is Captured:
        return fetch(template.place)
    if cls is Closing:
        return partial(template.function, fill(template.values, args, feeds))
    if cls is tuple or cls is list:
        return cls(fill(part, args, feeds) for part in template)
    if cls is slice:
        return slice(*(fill(part, args, feeds) for part in (template.start, template.stop, template.step)))
    if isinstance(template, dict):
        return {key: fill(part, args, feeds) for key, part in template.items()}
    if isinstance(template, tuple) and hasattr(cls, "_make"):
        return cls._make(fill(part, args, feeds) for part in template)
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        fields = {f.name: fill(getattr(template, f.name), args, feeds) for f in dataclasses.fields(template)}
        return dataclasses.replace(template, **fields)
    return template


class Body:
    """The body of a call type. The engine watches what bodies reach; of this one it sees the owners of its call type alone."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __call__(self, *given: Any) -> Any:
        return self.run(*given)


VIEWS = frozenset(
    "getitem view view_as reshape t transpose narrow select squeeze unsqueeze expand expand_as permute unbind chunk split "
    "detach flatten unflatten diagonal movedim swapaxes swapdims tensor_split unfold".split()
)


UNCHECKED = frozenset("softmax softmin sort argsort slice_scatter diagonal_scatter bucketize heaviside celu".split())
"""Functions that take any dimension, or any shape, of fake tensors; what is wrong with them shows on real ones."""


RENORMALISES = (
    "writes into its weight whenever it is called, which cannot be batched; leave max_norm= out, and set the weight to "
    "torch.renorm(weight, 2, 0, max_norm) after every step of the optimiser"
)
IN_TURN = (
    "takes its numbers from there one example after the other, which cannot be batched; leave generator= out, which "
    "torch.manual_seed decides, or draw the numbers before the call and pass them in"
)
ONCE = (
    "which would be done once for a batch, and not for every example; return what changes as a result, and change the tensor "
    "before or after the batched call"
)
"""What is wrong with max_norm= of embeddings, with generators and with cells that change their tensors, and what to do."""


FEW_NUMBERS = 1 << 18
"""With so many numbers most operations take less time than to be looked at with fake tensors."""


class NeedsValue(Exception):
    """What comes out depends on values: how long it is, or a Python number."""


class NeedsRow(Exception):
    """Fake tensors do not tell what comes out; the tensors of one call do."""


class Op:
    """One signature of a function. `outs` are the kinds of the tensors that it gives; `shape` says in what nest they come."""

    views_model = False
    """Whether what comes out is a view of a tensor of the model."""
    operations = 1
    """Of torch, in one call."""
    _modules: Sequence[nn.Module] = ()
    """Modules that a cell calls, whose hooks did not run when it was looked at."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        template: Any,
        args: Sequence[Kind],
        feeds: Sequence[Kind],
        setting: Setting = PLAIN,
        owners: Sequence[object] = (),
        device: str = "cpu",
        is_cell: bool = False,
        row: Sequence[Tensor] | None = None,
        like: Op | None = None,
    ) -> None:
        """`row`: the tensors of one call, arguments first, to try where fake ones do not tell; none: zeros.

        `like`: the same call with tensors of other sizes.
        """
        self.name, self.func, self.template, self.setting, self.device = name, func, template, setting, device
        self.args, self.feeds, self.owners, self.is_cell = tuple(args), tuple(feeds), tuple(owners), is_cell
        self.many: Kind | None = None
        self.outs: tuple[Kind, ...] = ()
        self.structure: Structure = None
        self.constants: tuple[Any, ...] = ()
        self.random = False
        self.views: tuple[int, ...] = ()
        """For each output the argument that it is a view of, or -1."""
        is_view = (name in VIEWS and not args) or func is row_of_model
        self.views_model = is_view and any(isinstance(part, Captured) for part in template[0])
        self._found: tuple[Any, ...] | None = None
        self._row = None if row is None else tuple(tensor.detach().clone() for tensor in row)
        if like is None or not self._explore_as(like):
            self._explore()

    def run(self, args: Sequence[Tensor], feeds: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that come out, in a flat list."""
        positional, keywords = fill(self.template, args, feeds)
        if self.setting.is_plain:
            result = self.func(*positional, **keywords)
        else:
            with self.setting():
                result = self.func(*positional, **keywords)
        if self._modules and self._found is not None and hooked(self._modules) is not None:
            self._check_hooked(result)
        if result.__class__ is Tensor and self._found is not None and not self.setting.detached:
            return [result]
        leaves: list[Any] = []
        structure = flatten(result, leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self.setting.detached:
            tensors = [tensor.detach() for tensor in tensors]  # a view taken without gradients still has its base
        constants = tuple(_HOLE if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        self._check(structure, constants, leaves, tensors, args)
        return tensors

    def _check(
        self, structure: Structure, constants: tuple[Any, ...], leaves: list[Any], tensors: list[Tensor], args: Any
    ) -> None:
        if self._found is None:
            for tensor in tensors:
                self._check_rows(tensor)
            self._found = (structure, constants)
            self.structure, self.constants = structure, constants
            self.views = (0,) if self.func is picked else tuple(_base(tensor, args) for tensor in tensors)
        elif structure != self.structure:
            raise TraceError(f"{self.name} gives another structure than at its first call with these shapes; use one structure")

    def _check_hooked(self, result: Any) -> None:
        """What was found without hooks still comes out with them."""
        leaves: list[Any] = []
        structure = flatten(result, leaves)
        found = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
        expected = [tuple(kind.shape) for kind in self.outs]
        if structure != self.structure or found != expected:
            raise TraceError(
                f"{self.name}: a hook in it changes what comes out, from {_shown(expected)} to {_shown(found)}; hooks of "
                "modules in a cell may change numbers, not shapes: let the code of the cell do that"
            )

    def _check_rows(self, tensor: Tensor) -> None:
        """Refuse tensors that cannot be rows of one tensor."""
        if tensor.layout is not torch.strided:
            raise TraceError(
                f"{self.name} gives a tensor of layout {tensor.layout}, which cannot be one of a batch; put the call, "
                "and what makes an ordinary tensor of its result, into one weft.cell"
            )

    def body(self, *given: Any) -> list[Tensor]:
        count = len(self.args)
        return self.run(given[:count], given[count:])

    def _explore(self) -> None:
        """Find out what comes out, on fake tensors if they tell."""
        probe = CallType(self.name, self.body, self._specs(self.args), self._specs(self.feeds), device=self.device)
        watch = _Watch(self.name)

        def body(rows: Any) -> Any:
            with watch:
                return probe.engine_body()(rows)

        modules = Surroundings().add(*self.owners).modules if self.is_cell else []
        with tracing, unhooked(modules), unhooked(modules):
            try:
                found = None if self.name in UNCHECKED else discover(body, probe.spec).outputs
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                if not self.is_cell:
                    raise NeedsValue from error
                found = None
            except ChangesOutside as error:
                raise TraceError(f"{self.name}: {error}, {ONCE}") from None
            except (WeftError, *FROM_OUTSIDE):
                raise
            except Exception:  # of real tensors torch speaks in its own words, if it is an error there, too
                found = None
            if found is None:
                if self._row is None and self.name not in UNCHECKED:
                    raise NeedsRow
                self._found = None
                sample = dict(zip(probe.asked, self._row or (), strict=False))
                found = discover(probe.engine_body(), probe.spec, sample).outputs
        self.random, self._modules, self.operations = watch.random, modules, watch.operations
        self.outs = tuple(kind_of(spec.shape, spec.dtype) for spec in found.values())
        if len(self.outs) > LOW:
            raise TraceError(
                f"{self.name} gives {len(self.outs)} tensors, and a recorded call gives {LOW} at most; loop over the Value, "
                "which takes one after the other, or cut it into larger pieces"
            )

    def _explore_as(self, like: Op) -> bool:
        """Find out what comes out of other sizes on zeros, in far less time, where nothing but that can differ."""
        given = (*self.args, *self.feeds)
        if like.random or not 0 < sum(kind.count for kind in given) < FEW_NUMBERS:
            return False
        if self.is_cell and not _is_of_torch(self.func):
            return False
        zeros = [torch.zeros(kind.shape, dtype=kind.dtype, device=self.device) for kind in given]
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                tensors = self.body(*zeros)
        except FROM_OUTSIDE:
            raise
        except Exception:  # fake tensors may tell, or the error comes up there in the user's words
            self._found = None
            return False
        self.outs = tuple(kind_of(tensor.shape, tensor.dtype) for tensor in tensors)
        self._modules, self.operations = like._modules, like.operations
        if self.structure == like.structure and all(tensor.device == torch.device(self.device) for tensor in tensors):
            return True
        self._found = None
        return False

    def gives_the_same(self) -> bool:
        """Look at the function again, which may have changed: whether the same kinds of tensors come out in the same nest."""
        now = Op.__new__(Op)
        now.__dict__.update(self.__dict__, _found=None)
        try:
            with _settings_kept(Surroundings().add(*self.owners).modules):
                now._explore()
        except FROM_OUTSIDE:
            raise
        except Exception:  # whoever calls the function next hears of it
            return False
        return all(getattr(now, name) == getattr(self, name) for name in ("outs", "structure", "constants", "views", "random"))

    @staticmethod
    def _specs(kinds: Sequence[Kind]) -> tuple[Any, ...]:
        return tuple(kind.spec for kind in kinds)

    def call_type(self) -> CallType:
        """The operation as the engine takes it."""
        many = None if self.many is None else self.many.spec
        args, feeds, outs = self._specs(self.args), self._specs(self.feeds), self._specs(self.outs)
        return CallType(self.name, Body(self.body), args, feeds, outs, many, self.owners, self.random, self.device)

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(map(repr, (*self.args, *self.feeds)))} -> {', '.join(map(repr, self.outs))}>"


@contextmanager
def _settings_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """What code writes into its modules while it is looked at, a count of its calls for one, is taken back."""
    before = [(module.__dict__, dict(module.__dict__)) for module in modules]
    try:
        yield
    finally:
        for now, then in before:
            now.update({name: value for name, value in then.items() if now.get(name) is not value})
            for name in now.keys() - then.keys():
                del now[name]


def _is_of_torch(func: Any) -> bool:
    """Whether it is a layer of torch, of which nothing but its result is seen."""
    if not isinstance(func, nn.Module) or hooked(list(func.modules())) is not None:
        return False
    return all(type(part).__module__.startswith("torch.nn.modules.") for part in func.modules())


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(f"a tensor of shape {list(shape)}" for shape in shapes) or "no tensor"


class _Hole:
    """Where a tensor stands in a nest of results."""


_HOLE = _Hole()


def holes_filled(op: Op, tensors: Sequence[Any]) -> Iterator[Any]:
    """The leaves of the operation's result: tensors where it gives tensors, constants elsewhere."""
    left = iter(tensors)
    for constant in op.constants:
        yield next(left) if constant is _HOLE else constant


def _base(tensor: Tensor, args: Sequence[Any]) -> int:
    storage = tensor.untyped_storage()._cdata
    for position, given in enumerate(args):
        if isinstance(given, Tensor) and given.untyped_storage()._cdata == storage:
            return position
    return -1


class _Watch(TorchDispatchMode):
    """Sees whether random numbers are drawn, whether embeddings write into their weights, and how much there is to do."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, self.random, self.operations = name, False, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random = True
        if kwargs and kwargs.get("generator") is not None:
            raise TraceError(f"{self.name} with generator= {IN_TURN}")
        if func is torch.ops.aten.embedding_renorm_.default:
            raise TraceError(f"{self.name}: an embedding with max_norm= {RENORMALISES}")
        return func(*args, **(kwargs or {}))
