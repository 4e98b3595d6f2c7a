"""`VertexFunction`: what one vertex does, run on every vertex of a graph, batched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.api.collating import collated
from weft.api.graph import Graph
from weft.api.vertex import NO_INPUT, Vertex
from weft.data import Batch
from weft.data.collate import BOTH_PARTS
from weft.errors import TypeMismatch
from weft.graph.hooks import hooked
from weft.run.options import Options

if TYPE_CHECKING:
    from weft.api.vertexcall import VertexCall

StateShapes = Mapping[str, tuple[int, ...] | int]


class VertexFunction(nn.Module):
    """The network of one vertex, in plain PyTorch; call it with a graph and it runs on all vertices, batched.

    Subclasses give the shape of the state that vertices exchange and write `forward(self, v)` for one vertex.

    >>> import torch, weft
    >>> class Count(weft.VertexFunction):
    ...     def __init__(self):
    ...         super().__init__(state={"size": ()})
    ...     def forward(self, v):
    ...         size = v.gather().sum("size") + 1
    ...         v.scatter(size=size)
    ...         v.push(size)
    >>> Count()(weft.Graph.from_parents([2, 2, 3, -1]))
    tensor([1., 1., 3., 4.])
    """

    _weft_batches = True

    def __init__(self, state: StateShapes) -> None:
        super().__init__()
        if not isinstance(state, Mapping) or not state:
            raise TypeMismatch(f"state: expected a mapping from keys to shapes, as {{'h': (64,)}}, got {state!r}")
        self.state_shapes: dict[str, tuple[int, ...]] = {key: _shape(key, shape) for key, shape in state.items()}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("forward")
        if own is not None and not hasattr(own, "_one_vertex"):
            cls.forward = _dispatching(own)  # type: ignore[method-assign]  # the one place that wraps it

    def forward(self, v: Any, *args: Any, **kwargs: Any) -> Any:
        """What one vertex does. Override it."""
        raise TypeMismatch(f"{type(self).__name__} does not say what a vertex does; write forward(self, v)")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_weft"}

    def vertex_functions(self) -> list[tuple[str, VertexFunction]]:
        """The function of each vertex type, by name."""
        return [(type(self).__name__, self)]

    def hooked_functions(self, structure: Any) -> Sequence[VertexFunction]:
        """The functions inside this one that carry hooks and have vertices."""
        return ()

    def collate_examples(self, examples: Sequence[Any]) -> Any:
        """Graphs, or pairs of a graph and its `x`, as the content of one `weft.data.Batch`."""
        return collated(type(self).__name__, examples)


def _shape(key: Any, shape: Any) -> tuple[int, ...]:
    if not isinstance(key, str):
        raise TypeMismatch(f"state: expected string keys, got {key!r}")
    sizes = (shape,) if isinstance(shape, int) else shape
    if not isinstance(sizes, Sequence) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise TypeMismatch(f"state: {key!r}: expected a shape, as (64,), got {shape!r}")
    return tuple(sizes)


def _dispatching(forward: Callable[..., Any]) -> Callable[..., Any]:
    """With a vertex, the user's own code; with a graph, the whole computation. Module hooks thus fire once per call."""

    @functools.wraps(forward)
    def run(self: VertexFunction, v: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(v, Vertex):
            return forward(self, v, *args, **kwargs)
        if torch.compiler.is_dynamo_compiling():  # torch.compile runs a call as it is, and does not look inside
            return torch.compiler.disable(call)(self, v, *args, **kwargs)
        return call(self, v, *args, **kwargs)

    run._one_vertex = forward  # type: ignore[attr-defined]  # functions take attributes
    return run


def call(model: VertexFunction, structure: Any, x: Any = None, *, inside: Any = None, **keywords: Any) -> Any:
    """Run a vertex function on a graph, or what is to run inside its hooks."""
    if inside is not None:
        return inside(structure, x)
    if isinstance(structure, Batch) and x is None:
        return _collated(model, structure, keywords)
    hooked = model.hooked_functions(structure)
    return _inside(hooked, model, structure, x, keywords) if hooked else _run()(model, structure, x, keywords)


def _collated(model: VertexFunction, batch: Batch, keywords: dict[str, Any]) -> Any:
    graph, x = batch.content
    try:
        return call(model, graph, x, **keywords)
    except TypeMismatch as error:
        if x is None and NO_INPUT in str(error):
            error.add_note(f"the examples of this weft.data.Batch are graphs alone; {BOTH_PARTS} to weft.data.collate")
        raise


def _inside(hooked: Sequence[VertexFunction], model: VertexFunction, structure: Any, x: Any, keywords: dict[str, Any]) -> Any:
    """The call inside the hooks of these functions, the first ones outermost: each sees what the call is given and gives."""
    if not hooked:
        return _run()(model, structure, x, keywords)
    return hooked[0](structure, x, inside=lambda structure, x: _inside(hooked[1:], model, structure, x, keywords))


def prepared(
    model: VertexFunction,
    structure: Any,
    x: Any = None,
    *,
    edges: Any = None,
    rounds: int | None = None,
    init: Mapping[str, Tensor] | None = None,
    at: Any = None,
    **options: Any,
) -> VertexCall:
    """A call that is ready to be planned or run; `graph` is the name of an option. `at`: the vertices whose rows are wanted."""
    if isinstance(structure, Batch) and x is None:
        structure, x = structure.content
    if not isinstance(structure, Graph):
        raise TypeMismatch(f"{type(model).__name__}: expected a weft.Graph, got {type(structure).__name__}")
    from weft.api.vertexcall import VertexCall  # it needs this module, too

    return VertexCall(model, structure, x, edges, rounds, init, Options.of(options), at)


@functools.cache
def _run() -> Callable[..., Any]:
    """Looked up once: an import statement takes long where its memory is far away. It needs this module, too."""
    from weft.api.vertexcall import run

    return run


class Typed(VertexFunction):
    """Several kinds of vertices: one vertex function per type, all with the same state.

    The graph's `types=` are the names used here, or ids in the order of this mapping. Rows of types that do not push are zeros.

    >>> import torch, weft
    >>> class One(weft.VertexFunction):
    ...     def forward(self, v):
    ...         v.scatter(n=torch.ones(())); v.push(torch.ones(()))
    >>> class Double(weft.VertexFunction):
    ...     def forward(self, v):
    ...         n = 2 * v.gather().sum("n")
    ...         v.scatter(n=n); v.push(n)
    >>> model = weft.Typed({"leaf": One({"n": ()}), "node": Double({"n": ()})})
    >>> model(weft.Graph([[], [], [0, 1]], types=["leaf", "leaf", "node"]))
    tensor([1., 1., 4.])
    """

    def __init__(self, functions: Mapping[str, VertexFunction]) -> None:
        if not isinstance(functions, Mapping) or not functions:
            came = "{}" if isinstance(functions, Mapping) else type(functions).__name__
            raise TypeMismatch(f"Typed: expected a mapping from type names to vertex functions, got {came}")
        for name, function in functions.items():
            if not isinstance(name, str) or not name or "." in name or hasattr(nn.ModuleDict, name):
                raise TypeMismatch(f"Typed: {name!r} cannot be a type name: it becomes part of parameter names")
            if not isinstance(function, VertexFunction):
                raise TypeMismatch(f"Typed: expected a VertexFunction for {name!r}, got {type(function).__name__}")
        first_name, first = next(iter(functions.items()))
        for name, function in functions.items():
            if function.state_shapes != first.state_shapes:
                raise TypeMismatch(
                    f"Typed: all types share one state, but {first_name!r} has {first.state_shapes} and {name!r} has "
                    f"{function.state_shapes}"
                )
        super().__init__(first.state_shapes)
        self.functions = nn.ModuleDict(dict(functions))

    def forward(self, v: Any) -> Any:
        raise TypeMismatch("Typed runs on a graph: model(graph, x)")

    def vertex_functions(self) -> list[tuple[str, VertexFunction]]:
        functions: Any = self._modules["functions"]
        return [*functions._modules.items()]

    def hooked_functions(self, structure: Any) -> Sequence[VertexFunction]:
        functions: Any = self._modules["functions"]
        for one in functions._modules.values():
            if one._forward_pre_hooks or one._forward_hooks or one._backward_hooks or one._backward_pre_hooks:
                return self._used(functions._modules, structure)
        return ()

    @staticmethod
    def _used(functions: Mapping[str, VertexFunction], structure: Any) -> Sequence[VertexFunction]:
        """Those of the functions with hooks whose types occur, each once."""
        if not isinstance(structure, Graph):
            return ()
        used = list(functions)
        if structure.type_ids is not None:
            names = structure.type_names or used
            used = [names[number] for number in np.unique(structure.type_ids).tolist() if number < len(names)]
        carry = [one for name, one in functions.items() if name in used and hooked([one]) is not None]
        return list(dict.fromkeys(carry))
