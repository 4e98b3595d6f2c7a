"""A cell: a static function of one vertex's tensors, traced once per signature, batched and differentiated once.

`trace` runs the code twice over: once with single fake tensors, to see which inputs it asks for, which outside tensors it
uses and what it returns; then, for two pairs of row counts, as the vector-Jacobian product of the vmapped code. The two graphs
become one `Tape` with inputs and outputs by name:

    inputs    ("capture", i) ("feed", i) ("slot", position, key) ("filled", position) ("slot_edge", position, i) ("count",)
              ("sum", key) ("edge", key) ("edge_feed", i) ("seg",) ("ct", output name)
    outputs   ("out", name) ("grad", input name)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from weft.errors import FROM_OUTSIDE, TraceError, WeftError
from weft.graph.capture import Disturbed, Guards, Place, Surroundings, fetch, undisturbed
from weft.graph.hooks import hooked, kind_of_hooks, unhooked
from weft.graph.lowering import TENSOR_HOOKS, CellMode, ChangesOutside
from weft.graph.placed import is_on, placed
from weft.graph.plain import Plain, Run, quietly, row_by_row, wary
from weft.graph.ports import PER_EDGE, ports_of
from weft.graph.program import Port
from weft.graph.rows import ManyRows, OneRow, Spec, TensorSpec
from weft.graph.simplify import simplify
from weft.graph.slots import join_slots, separate_states
from weft.graph.stored import is_as_stored
from weft.graph.tape import Name, Rows, Shape, Tape, Value
from weft.graph.twin import Sizes, twin_trace
from weft.graph.undo import undone
from weft.graph.writes import ASSIGNS, WRITES, Assigned, Unwritten, Written

Body = Callable[[Any], Mapping[Name, Tensor]]
"""A cell's code: from what it can ask for (`weft.graph.rows.Rows`) to its named outputs."""


@dataclass(frozen=True)
class Signature:
    """What the code asks for and gives, found by running it once on single fake tensors."""

    asked: dict[Name, TensorSpec]
    captures: tuple[Tensor, ...]
    outputs: dict[Name, TensorSpec]


_HOOKS = "a module in it carries hooks"


@dataclass(frozen=True)
class Trace:
    """A traced cell. Valid while `holds()`; `captured()` fetches the outside tensors in the order of the tape's inputs."""

    name: str
    tape: Tape
    ports: tuple[Port, ...]
    outputs: dict[Name, TensorSpec]
    places: tuple[Place, ...]
    tensor_kinds: tuple[tuple[Any, ...], ...]
    guards: Guards
    modules: list[nn.Module]
    fallback: str | None = None
    """Why the cell runs by slower batching, if it does."""
    hooks: str | None = None
    """The kind of hooks that modules in it carry."""
    writes: bool = False
    """Whether it changes tensors of the user's: then the order of rows makes a difference."""

    def captured(self) -> list[Tensor]:
        return [fetch(place) for place in self.places]

    def holds(self) -> bool:
        for place, kind in zip(self.places, self.tensor_kinds, strict=True):
            if _kind(fetch(place)) != kind:
                return False
        if not self.guards.hold():
            return False
        return kind_of_hooks(self.modules) == self.hooks


def _kind(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, Tensor):
        return ()
    return (tensor.shape, tensor.dtype, tensor.requires_grad, tensor.device, tensor.is_neg(), tensor.is_conj())


class Sample(Protocol):
    """Some of the tensors of one row, by name."""

    def get(self, name: Name, /) -> Tensor | None: ...


@undone
def discover(body: Body, spec: Spec, sample: Sample | None = None, refuse_writes: bool = False) -> Signature:
    """Run the code once on single tensors: fake or, where its path depends on values, a sample, and zeros for the rest."""
    asked: dict[Name, TensorSpec] = {}
    inputs: dict[Name, Tensor] = {}
    captures: list[Tensor] = []
    stand_ins: dict[int, Tensor] = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def ask(name: Name, wanted: TensorSpec) -> Tensor:
        if name not in inputs:
            asked[name] = wanted
            known = None if sample is None else sample.get(name)
            inputs[name] = torch.zeros(wanted.shape, dtype=wanted.dtype, device=spec.device) if known is None else known.clone()
        return inputs[name]

    def stand_in(tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        if id(tensor) not in stand_ins:
            captures.append(tensor)
            stand_ins[id(tensor)] = mode.from_tensor(tensor.detach(), static_shapes=True)
        return stand_ins[id(tensor)]

    written = Written()
    watched = written if refuse_writes else nullcontext()
    if sample is None:
        with _quiet(), mode, watched, torch.no_grad(), placed(spec.device), CellMode(stand_in):
            outputs = dict(body(OneRow(spec, ask)))
        if (found := written.into(stand_ins.values())) is not None:
            raise ChangesOutside(found)
        outputs = {name: stand_in(value) for name, value in outputs.items()}
    else:
        with torch.no_grad(), undrawn(spec.device), placed(spec.device):
            outputs = dict(body(OneRow(spec, ask)))
    for value in outputs.values():
        if not is_on(value, spec.device):
            raise TraceError(
                f"a tensor on {value.device} in a batched call whose tensors are on {spec.device}; move one of them"
            )
    specs = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in outputs.items()}
    return Signature(asked, tuple(captures), specs)


def undrawn(device: str) -> AbstractContextManager[None]:
    """What is drawn inside is put back: looking at code draws no random numbers."""
    return torch.random.fork_rng([] if device == "cpu" else [torch.device(device)])


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs pages about an operation that fails on fake tensors; the exception says it all."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@undone
def trace(
    name: str, body: Body, spec: Spec, surroundings: Surroundings, groups: Sequence[Sequence[int]] | None = None
) -> Trace:
    """Trace a cell; raises `TraceError` with the reason if it cannot be. `groups`: slots that are gathered together."""
    hooking = hooked(_inner(surroundings))
    if hooking is not None:
        raise TraceError(f"{_HOOKS} ({type(hooking).__name__})")
    try:
        signature, surroundings = _discovered(body, spec, surroundings)
        _check_dense(signature.captures)
        places = tuple(_place(surroundings, tensor) for tensor in signature.captures)
        with _quiet(), undisturbed(surroundings), placed(spec.device):
            tape = _tape(body, spec, signature)
        _check_gradients_dense(tape)
    except (WeftError, *FROM_OUTSIDE):
        raise
    except Exception as error:
        raise TraceError(_reason(error)) from error
    return _finished(name, tape, spec, signature.asked, signature.outputs, places, surroundings, None, groups)


def _check_dense(captures: Iterable[Tensor]) -> None:
    """What is traced is taken to read memory row by row."""
    for tensor in captures:
        if tensor.layout is not torch.strided:
            raise TraceError(f"it uses a tensor of shape {list(tensor.shape)} and layout {tensor.layout}")


def _check_gradients_dense(tape: Tape) -> None:
    sparse = next((value for value in tape.values if "sparse_coo" in str(value.target)), None)
    if sparse is not None:
        raise TraceError(f"a tensor of shape {list(sparse.shape or ())} gets a sparse gradient, as with Embedding(sparse=True)")


def hand_on(name: str, spec: Spec, signature: Signature) -> Trace:
    """The trace of code that gives what it is fed, as if it had run."""
    ((asked, fed),), ((given, _),) = signature.asked.items(), signature.outputs.items()
    shape: Shape = (Rows("n"), *fed.shape)
    value = Value("fed", None, shape=shape, dtype=fed.dtype)
    tape = Tape({asked: value}, [], {("out", given): value})
    if differentiable(fed):
        tape.inputs["ct", given] = tape.outputs["grad", asked] = Value("ct", None, shape=shape, dtype=fed.dtype)
    return _finished(name, tape, spec, signature.asked, signature.outputs, (), Surroundings(), None, ())


def _discovered(body: Body, spec: Spec, surroundings: Surroundings) -> tuple[Signature, Surroundings]:
    """Look at the code with fake tensors; where it keeps one that it makes on first use, let it make a real one first."""
    try:
        with undisturbed(surroundings):
            return discover(body, spec, refuse_writes=True), surroundings
    except Disturbed:
        before = Assigned(surroundings.modules)
        with Unwritten():
            discover(body, spec, {})
    surroundings = Surroundings().add(*surroundings.roots)
    try:
        with undisturbed(surroundings):
            return discover(body, spec, refuse_writes=True), surroundings
    except Disturbed:  # it does so every time
        before.put_back()
        raise


def _inner(surroundings: Surroundings) -> list[nn.Module]:
    """The modules that the code calls. A module whose own code it is has hooks that fire once per call anyway."""
    own = bool(surroundings.roots) and isinstance(surroundings.roots[0], nn.Module)
    return surroundings.modules[int(own) :]


@undone
def trace_plainly(
    name: str,
    body: Body,
    spec: Spec,
    surroundings: Surroundings,
    reason: str,
    foreseen: Mapping[Name, TensorSpec],
    groups: Sequence[Sequence[int]] | None = None,
    signature: Signature | None = None,
    sample: Sample | None = None,
) -> Trace:
    """The slower way for a cell that cannot be traced: batched by vmap as it is, else row by row.

    Without a `signature` the code runs once to find it: on the tensors of a row, `sample`, and zeros where that has none.
    """
    writes = reason.startswith((WRITES, ASSIGNS))
    if signature is None:
        with Unwritten(surroundings.modules if writes else ()) as unwritten:
            signature = discover(body, spec, {} if sample is None else sample)
        if unwritten.found is not None and not writes:
            writes, reason = True, f"{WRITES} ({unwritten.found})"
    asked = {**signature.asked, **foreseen}
    found = {id(fetch(place)): place for place in reversed(surroundings.tensors) if fetch(place).requires_grad}
    places = tuple(reversed(found.values()))
    kind, device = spec.device.split(":")[0], spec.device
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    names = tuple(n for n in asked if n != ("edge_number",)) + ((("seg",),) if ("edge_number",) in asked else ())
    specs = {**asked, ("seg",): TensorSpec((), torch.int64)}
    whole = Signature(asked, (), signature.outputs)

    def batched(inputs: dict[Name, Tensor], n: int) -> dict[Name, Tensor]:
        return _batched(body, spec, whole, inputs, n)

    run, way, hooks = quietly(batched), "by plain vmap", kind_of_hooks(_inner(surroundings))
    diff = tuple(n for n in asked if n in names and differentiable(asked[n]) and n[0] != "count")
    try:
        if reason == TENSOR_HOOKS or hooks == "backward":
            raise TraceError(_HOOKS)  # which vmap would not call
        if writes:
            raise TraceError(WRITES)
        given = {n: torch.zeros((2, *specs[n].shape), dtype=specs[n].dtype, device=device) for n in names}
        with Unwritten() as unwritten, unhooked(surroundings.modules), unhooked(surroundings.modules):
            _try(given, run, diff, device)
        if unwritten.found is not None:
            raise TraceError(WRITES)
    except FROM_OUTSIDE:
        raise
    except Exception:
        run, way = row_by_row(name, body, spec), "row by row"
    else:
        run = run if hooks is None else wary(name, run, row_by_row(name, body, spec))
    plain = Plain(
        name,
        run,
        names,
        tuple(signature.outputs),
        diff,
        lambda: [fetch(place) for place in places],
        lambda: torch.autocast(kind, dtype=dtype, enabled=dtype is not None),
    )
    tape = plain.tape(specs, signature.outputs, lambda n: n[0] in PER_EDGE or n == ("seg",))
    fallback = f"{reason}; it runs {way}"
    return _finished(name, tape, spec, asked, signature.outputs, places, surroundings, fallback, groups, writes)


def _try(given: dict[Name, Tensor], run: Run, diff: Sequence[Name], device: str) -> None:
    """Run two rows there and back: some code can be batched, but not differentiated then."""
    training = not torch.is_inference_mode_enabled()
    with torch.set_grad_enabled(training), undrawn(device):
        leaves = [given[name].requires_grad_(training) for name in diff]
        results = [result for result in run(given, 2).values() if result.requires_grad]
        if results and leaves:
            torch.autograd.grad(results, leaves, [torch.zeros_like(result) for result in results], allow_unused=True)


def _finished(
    name: str,
    tape: Tape,
    spec: Spec,
    asked: Mapping[Name, TensorSpec],
    outputs: dict[Name, TensorSpec],
    places: tuple[Place, ...],
    surroundings: Surroundings,
    fallback: str | None,
    groups: Sequence[Sequence[int]] | None,
    writes: bool = False,
) -> Trace:
    ports = ports_of(asked, spec.first_child, groups)
    separate_states(tape)
    for port in ports:
        if port.kind == "slots":
            join_slots(tape, port.positions)
    kinds = tuple(_kind(fetch(place)) for place in places)
    inner, watched = _inner(surroundings), Guards(surroundings)
    return Trace(name, tape, ports, outputs, places, kinds, watched, inner, fallback, kind_of_hooks(inner), writes)


def _place(surroundings: Surroundings, tensor: Tensor) -> Place:
    place = surroundings.place_of(tensor)
    if place is None:
        raise TraceError(
            f"it uses a tensor of shape {list(tensor.shape)} that is no parameter, buffer, attribute, closure or global "
            "variable; register it with register_buffer"
        )
    if not is_as_stored(tensor):
        raise TraceError(f"it uses a tensor of shape {list(tensor.shape)} that is negated or conjugated when read; clone it")
    return place


def _reason(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    if "vmap" in text and "batching rule" in text:
        return f"an operation in it has no batching rule ({text[:160]})"
    if "data-dependent" in text.lower() or "DataDependent" in type(error).__name__ or ".item()" in text:
        return f"what it does depends on the values of tensors ({text[:160]})"
    return f"{type(error).__name__}: {text[:200]}"


def differentiable(spec: TensorSpec) -> bool:
    return spec.dtype.is_floating_point or spec.dtype.is_complex


def _tape(body: Body, spec: Spec, signature: Signature) -> Tape:
    asked = {name: wanted for name, wanted in signature.asked.items() if name != ("edge_number",)}
    has_edges = ("edge_number",) in signature.asked
    names: list[Name] = [("capture", i) for i in range(len(signature.captures))] + list(asked)
    seg = ("seg",)
    if has_edges:
        names.append(seg)
    cotangents = [name for name, out in signature.outputs.items() if differentiable(out)]
    diff = [("capture", i) for i, t in enumerate(signature.captures) if t.requires_grad]
    diff += [name for name, wanted in asked.items() if differentiable(wanted) and name[0] != "count"]

    def example(sizes: Sizes) -> list[Tensor]:
        made = [t.detach() for t in signature.captures]
        for name, wanted in asked.items():
            rows = sizes["e" if name[0] in PER_EDGE else "n"]
            made.append(torch.zeros((rows, *wanted.shape), dtype=wanted.dtype, device=spec.device))
        if has_edges:
            made.append(torch.zeros(sizes["e"], dtype=torch.int64, device=spec.device))
        for out in cotangents:
            made.append(
                torch.zeros((sizes["n"], *signature.outputs[out].shape), dtype=signature.outputs[out].dtype, device=spec.device)
            )
        return made

    def joint(sizes: Sizes, *tensors: Tensor) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=False))
        ct = tensors[len(names) :]

        def forward(*variables: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            inputs = {**given, **dict(zip(diff, variables, strict=True))}
            results = _batched(body, spec, signature, inputs, sizes["n"])
            rest = tuple(value for name, value in results.items() if name not in cotangents)
            return tuple(results[name] for name in cotangents), rest

        if not cotangents or not diff:
            main, rest = forward(*(given[name] for name in diff))
            return [*main, *rest]
        vjp: Any = torch.func.vjp
        main, pull, rest = vjp(forward, *(given[name] for name in diff), has_aux=True)
        return [*main, *rest, *pull(tuple(ct))]

    outputs: list[Name] = [("out", name) for name in cotangents]
    outputs += [("out", name) for name in signature.outputs if name not in cotangents]
    if cotangents and diff:
        outputs += [("grad", name) for name in diff]
    tape = twin_trace(joint, example, [*names, *(("ct", out) for out in cotangents)], lambda: outputs)
    simplify(tape)
    return tape


def _batched(body: Body, spec: Spec, signature: Signature, inputs: dict[Name, Tensor], rows: int) -> dict[Name, Tensor]:
    """The code for all vertices at once: vmap over the vertices' inputs, with stand-ins for the outside tensors."""
    stand_ins = {id(t): inputs[("capture", i)] for i, t in enumerate(signature.captures)}
    per_vertex = {name: inputs[name] for name in signature.asked if name[0] not in PER_EDGE}
    per_edge = {name: inputs[name] for name in inputs if name[0] in ("edge", "edge_feed")}

    def one(number: Tensor, mine: dict[Name, Tensor]) -> dict[Name, Tensor]:
        level = torch._C._functorch.maybe_get_level(number)
        # A copy, so that code which writes into what it was given changes nothing outside; it costs nothing once traced.
        answers = ManyRows(spec, lambda name, _: mine[name].clone(), per_edge, inputs.get(("seg",)), rows, level)
        return {name: stand_ins.get(id(value), value) for name, value in body(answers).items()}

    number = torch.zeros(rows, device=spec.device)
    with CellMode(lambda tensor: stand_ins.get(id(tensor), tensor)):
        return torch.vmap(one, randomness="different")(number, per_vertex)
