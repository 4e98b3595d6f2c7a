"""One node type within a recipe: the variables that hold its values, written as `TypeRun` would find them."""

from __future__ import annotations

from typing import Any

import torch

from weft.graph.ports import port_of, slots_port
from weft.graph.segments import bag_sum
from weft.graph.tape import Name, Value
from weft.run.emit import Code
from weft.run.gpu.bind import Source, offsets_of
from weft.run.gpu.turn import turner
from weft.run.recipe import NoRecipe, Writer
from weft.run.typerun import TypeRun


class TypeText:
    """A type's values by name; each is the name of a variable."""

    def __init__(self, writer: Writer, run: TypeRun, arenas: dict[tuple[int, Name], str], inputs: dict[Any, int]) -> None:
        self.writer, self.arenas, self.inputs = writer, arenas, inputs
        self.type, self.code, self.kinds, self.ports = run.type, run.code, run.kinds, run.ports
        self.plan = run.indices.plan
        self.reads = {read.port: number for number, read in enumerate(self.plan.reads) if read.type == run.type}
        self.store: dict[str, str] = {}
        self.fed_on: dict[str, str] = {}
        """Inputs of a sweep that stores them, too: then the store has the place where they go."""
        self.in_class: dict[str, tuple[int, Name]] = {}
        self.parts: dict[tuple[int, Name], str] = {}
        type = run.type
        self.n = writer.fact(("rows", type), lambda indices: len(indices.plan.rows[type]))
        self.bag = None if run.bag is None else run.bag.port
        self.e = "0" if self.bag is None else self.fact("edges", lambda indices, read: len(read.index), self.bag)

    def fact(self, what: str, make: Any, port: int) -> str:
        """Something of what a port reads."""
        number = self.reads[port]
        return self.writer.fact((what, number), lambda indices: make(indices, indices.plan.reads[number]))

    def ask(self, what: str, question: Any, port: int) -> Any:
        number = self.reads[port]
        return self.writer.ask((what, number), lambda indices: question(indices, indices.plan.reads[number]))

    # Whole rows.

    def whole(self, value: Value) -> str:
        found = self.store.get(value.name)
        if found is None:
            found = self._from_class(value) if value.name in self.in_class else self.input(self.code.input_name[value.name])
            self.store[value.name] = found
        return found

    def has(self, value: Value) -> bool:
        return value.name in self.store or value.name in self.in_class

    def _from_class(self, value: Value) -> str:
        output, key = self.in_class[value.name]
        return self.writer.let(
            f"{self.arenas[self.plan.class_of[self.type, output], key]}.index_select(0, {self.class_rows(output)})"
        )

    def class_range(self, output: int) -> bool:
        """Whether the rows of a type are one range of their class."""
        type = self.type
        return self.writer.ask(
            ("class range", type, output), lambda indices: isinstance(indices.class_rows(type, output), tuple)
        )

    def class_rows(self, output: int) -> str:
        """An index where `class_range` is False."""
        type = self.type
        return self.writer.fact(("class rows", type, output), lambda indices: indices.class_rows(type, output))

    def class_part(self, output: int, key: Name) -> str:
        """The rows of a class arena that a type writes, where they are one range."""
        if (output, key) not in self.parts:
            arena = self.arenas[self.plan.class_of[self.type, output], key]
            self.parts[output, key] = self.writer.let(f"{arena}.narrow(0, {self.class_first(output)}, {self.n})")
        return self.parts[output, key]

    def class_first(self, output: int) -> str:
        """Where that range begins."""
        type = self.type
        return self.writer.fact(("class first", type, output), lambda indices: indices.class_rows(type, output)[0])

    def input(self, name: Any) -> str:
        port = port_of(self.kinds, name)
        if port is not None:
            return self._gather(port, name)
        if name[0] == "count":
            read = self.bag if self.bag is not None else next(p for p, read in self.ports.items() if read.kind == "sum")
            return self.writer.let(f"{self.bounds(read)}.diff().to({self.code.tape.inputs[name].dtype})")
        if name[0] == "seg":
            return self.writer.let(f"{self.owners()}.long()") if self._scatters() else self.owners()
        if name[0] == "filled":
            return self._filled(name[1])
        if name[0] == "feed":
            return self._fed(name)
        if name[0] == "capture":
            return f"tensors[{self.inputs[self.type, name]}]"
        raise NoRecipe(f"an input of kind {name[0]}")

    def _scatters(self) -> bool:
        """Whether a maximum is taken over edges: torch scatters by long integers only."""
        return any(value.target is torch.ops.aten.scatter_reduce.two for value in self.code.tape.values)

    def _gather(self, port: int, name: Any) -> str:
        read = self.ports[port]
        if read.value_class < 0:
            raise NoRecipe("a port that nobody feeds")
        arena = self.arenas[read.value_class, name[-1]]
        if read.kind == "sum":
            return self.writer.let(f"{self.writer.bind(bag_sum)}({arena}, {self.index(port)}, {self.bounds(port)})")
        tail = [size for size in (self.code.tape.inputs[name].shape or ())[1:] if isinstance(size, int)]
        shape = ", ".join(map(str, (self.e if read.kind == "edges" else self.n, *tail)))
        if self.ask("slice", lambda indices, read: indices.read(read).whole_slice is not None, port):
            first = self.fact("first", lambda indices, read: indices.read(read).whole_slice, port)
            many = self.fact("many", lambda indices, read: len(read.index), port)
            return self.writer.let(f"{arena}.narrow(0, {first}, {many}).view({shape})")
        return self.writer.let(f"{arena}.index_select(0, {self.index(port)}).view({shape})")

    def _filled(self, position: int) -> str:
        port = slots_port(self.kinds, position)
        read, column = self.ports[port], self.kinds[port].positions.index(position)
        if read.value_class < 0:
            raise NoRecipe("a port that nobody feeds")
        rows = self.fact("class rows", lambda indices, read: indices.plan.classes[read.value_class].rows, port)
        return self.writer.let(f"({self.index(port)}.view(-1, {read.width})[:, {column}] < {rows}).contiguous()")

    def _fed(self, name: Any) -> str:
        tensor = f"tensors[{self.inputs[self.type, name]}]"
        if self.in_order():
            return self.writer.let(f"{tensor} if {tensor}.shape[0] == {self.n} else {tensor}[:{self.n}]")
        return self.writer.let(f"{tensor}.index_select(0, {self.fed_rows()})")

    def feed_into(self, name: Any, place: str, take: str | None = None) -> None:
        """Write what is fed to the rows into memory that is there, by `take` or as torch does it."""
        tensor = f"tensors[{self.inputs[self.type, name]}]"
        if self.in_order():
            self.writer.say(f"{place}.copy_({tensor}[:{self.n}])")
        elif take is not None:
            self.writer.say(f"{take}({tensor}, {self.fed_rows()}, out={place})")
        else:
            self.writer.say(f"torch.index_select({tensor}, 0, {self.fed_rows()}, out={place})")

    def in_order(self) -> bool:
        """Whether the type's rows are fed the first rows in order."""
        type = self.type
        return self.writer.ask(("in order", type), lambda indices: indices.rows(type) is None, by_rows=self.is_fed())

    def is_fed(self) -> bool:
        """Whether the program says which row each node is fed: else it is the node's number."""
        return self.writer.ask("feed", lambda indices: indices.plan.program.feed is not None)

    def fed_rows(self) -> str:
        type = self.type
        return self.writer.fact(("fed rows", type), lambda indices: indices.rows(type))

    def all_nodes(self) -> bool:
        """Whether the type has all nodes, in order."""
        type = self.type
        if len(self.plan.present) > 1:
            return False
        return self.writer.ask(("all nodes", type), lambda indices: indices.nodes(type) is None)

    def nodes(self) -> str:
        """The node of each row."""
        type = self.type
        return self.writer.fact(("nodes", type), lambda indices: indices.nodes(type))

    def index(self, port: int) -> str:
        return self.fact("index", lambda indices, read: indices.tensor(read.index), port)

    def bounds(self, port: int) -> str:
        return self.fact("bounds", lambda indices, read: indices.tensor(offsets_of(read)), port)

    def owners(self) -> str:
        assert self.bag is not None
        return self.fact("owners", lambda indices, read: indices.owners(read), self.bag)

    def run_whole(self, code: Code, destinations: dict[str, str] | None = None) -> None:
        """Run a piece over all rows; what it returns joins the store. One that only hands on what it takes need not run."""
        if not code.stores and {value.name for value in code.returns} <= {value.name for value in code.takes}:
            for value in code.returns:
                self.whole(value)
            return
        into = [(destinations or {})[value.name] for value in code.stores]
        bounds = "None" if self.bag is None else self.bounds(self.bag)
        arguments = [*[self.whole(value) for value in code.takes], *into, self.n, self.e, bounds, "records"]
        results = [self.writer.fresh() for _ in code.returns]
        call = f"{self.writer.bind(code.run, 'piece')}({', '.join(arguments)})"
        self.writer.say(f"({', '.join(results)},) = {call}" if results else call)
        self.store |= {value.name: result for value, result in zip(code.returns, results, strict=True)}

    def empty(self, value: Value) -> str:
        """Fresh memory for a value over all rows."""
        return self.writer.empty(self.sizes(value), value.dtype)

    def sizes(self, value: Value) -> list[str | int]:
        rows = {"n": self.n, "e": self.e}
        return [size if isinstance(size, int) else f"{size.times} * {rows[size.kind]}" for size in value.shape or ()]

    # Arguments of kernels.

    def argument(self, source: Source) -> str:
        """The variable that holds a kernel's argument; gradients are not among them."""
        at, key, value = source.number, source.key, source.value
        if source.what in ("arena", "in_class"):
            number = self.ports[at].value_class if source.what == "arena" else self.plan.class_of[self.type, at]
            return self.arenas[number, key]
        if source.what == "index":
            return self.index(at)
        if source.what == "bounds":
            return self.bounds(at)
        if source.what == "owners":
            return self.owners()
        if source.what == "edge_bounds":
            assert self.bag is not None
            return self.bounds(self.bag)
        assert value is not None
        if source.what == "own":
            return self.store[value.name]
        found = self.fed_on.get(value.name) or self.whole(value)
        if source.what == "weight":
            return found
        if source.what == "turned":
            return self._turned(found, value)
        return self.writer.let(f"{found}{'.to(device)' * (value.rows is None)}.contiguous()")

    def _turned(self, matrix: str, value: Value) -> str:
        """As `turned` does it."""
        rows, columns = self.sizes(value)
        out = self.writer.empty([columns, rows], value.dtype)
        assert value.dtype is not None
        self.writer.say(f"{self.writer.bind(turner(value.dtype))}.go({rows}, {columns}, {matrix}, {out})")
        return out
