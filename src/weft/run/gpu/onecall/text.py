"""A list of operations as C: one function says how much memory they need beside their results, one does them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from weft.run.gpu.launch import Kernel
from weft.run.gpu.onecall.blocks import COUNTER, Block, Either, Storage
from weft.run.gpu.onecall.note import Noted
from weft.run.gpu.onecall.numbers import NotLowered, Size
from weft.run.gpu.onecall.operations import Copy, Fill, Launch, Operation, Product, Turns, storages_of
from weft.run.gpu.onecall.placing import SOURCE as PLACING
from weft.run.gpu.sweep import Walk
from weft.run.gpu.table import MOST_STRETCHES, WIDTHS
from weft.run.told import Told

ROOM = 256
"""Bytes: blocks of working memory start at multiples of this, so that the last bit of how many there are can tell whether the
library multiplies."""

FIRST_KERNEL = 8
"""Before it, the table of functions holds those of the driver and of the library."""
OF_KERNEL = 4
"""What the table says of a kernel: the function, programs, threads, shared memory."""
FIRST_VARIABLE = 8
"""Before it are the stream, the barrier's counter, the table, and what is told of a plan."""

PRELUDE = f"""#define FIRST_KERNEL {FIRST_KERNEL}
#define OF_KERNEL {OF_KERNEL}
#define APART {WIDTHS.index("apart")}
#define MOST_STRETCHES {MOST_STRETCHES}
{PLACING}""" + Path(__file__).with_name("onecall.c").read_text(encoding="utf-8")

KINDS = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}
"""As the library numbers them."""
IN_SINGLE = 68
"""How the library is told to add up in 32 bits."""

_NAME = re.compile(r"\b[a-z]\w*\b")
_NUMBER = re.compile(r"[ftcgs]\d+(_rows|_n|_hi|_at)?|k\d+|owned")


Entry = tuple[Kernel | tuple[Walk, str], tuple[object, ...], Sequence[torch.dtype | None], bool]
"""Which kernel, its constants, the kinds of its arguments, whether all pointers are aligned."""


@dataclass(eq=False)
class Text:
    """What a lowered recipe is made of."""

    source: str = ""
    variables: list[str] = field(default_factory=list)
    """What the C functions are given after the first few numbers, in this order."""
    kernels: list[Entry] = field(default_factory=list)
    """Kernels of the table."""


class Writer:
    """Writes the C of what a recipe does."""

    def __init__(self, noted: Noted, told: Mapping[str, Told]) -> None:
        """`told`: facts that the plan's numbers tell, by name."""
        self.operations, self.results, self.inside = noted.operations, noted.brought, noted.recorder.inside
        self.noted, self.spent, self.told = noted, noted.spent, told
        self.text = Text()
        self.pointers: dict[str, bool] = {}
        """What is given; True for what may start anywhere."""
        self.sizes: dict[str, int] = {}
        """Bytes of one of its numbers."""
        self.arrays: dict[str, None] = {}
        self.working = self._working()
        self.lines: list[str] = []

    def _working(self) -> dict[Storage, tuple[int, int]]:
        """Working memory, and the first and last operation that uses it."""
        return {one: when for one, when in self._uses().items() if one.count is not None and one not in self.results}

    def _uses(self) -> dict[Storage, tuple[int, int]]:
        found: dict[Storage, tuple[int, int]] = {}
        for at, operation in enumerate(self.operations):
            for storage in storages_of(operation):
                found[storage] = found.get(storage, (at, at))[0], at
        return found

    def _spares(self) -> list[str]:
        """Memory of results before they are written; and what forward kept, if nobody else has it, after it was read."""
        uses, end = self._uses(), len(self.operations)
        by_name = {storage.name: last for storage, (_, last) in uses.items()}
        found = []
        for storage in self.results:
            if uses.get(storage, (0, 0))[0] > 0:
                size = f"({storage.count}) * {storage.dtype.itemsize}"
                found.append(f"{{{storage.name}, {size}, 0, {uses[storage][0] - 1}}}")
        for block, names in self.spent:
            name, size = block.storage.name, f"({block.numel()}) * {block.dtype.itemsize}"
            self.pointers.setdefault(name, block.storage.anywhere)
            self.sizes[name] = block.dtype.itemsize
            after = max(by_name.get(one, -1) for one in names) + 1
            found.append(f"{{{name}, owned ? {size} : 0, {after}, {end}}}")
        return found

    def write(self) -> Text:
        for operation in self.operations:
            self._operation(operation)
        placing, guards = self._placing(), " && ".join(f"({guard})" for guard in self.noted.recorder.example.guards) or "1"
        guards = re.sub(r"\bnot \(", "!(", guards)
        body = "\n".join(self.lines)
        self.arrays |= dict.fromkeys(re.findall(r"\b(f\d+)\[at\]", body))
        declared = "\n".join(f"    {line}" for line in self._declarations(f"{body} {placing} {guards}"))
        checked = " | ".join(f"(int64_t){name}" for name, anywhere in self.pointers.items() if not anywhere) or "0"
        self.text.source = f"""{PRELUDE}
static int64_t placed(const int64_t *a, char *room, char **at) {{
{declared}
{placing}
}}

int64_t weft_room(const int64_t *a) {{
{declared}
    const int64_t *h = (const int64_t *)a[2];
    char *at[{len(self.working) + 1}];
    if ((({checked}) & 15) || !({guards})) return -1;
{self._missing()}
    return placed(a, 0, at) + ({self._multiplied()});
}}

int64_t weft_call(const int64_t *a, char *room, void *blas) {{
{declared}
    void *stream = (void *)a[0];
    const int64_t *h = (const int64_t *)a[2];
    uint64_t {COUNTER} = a[1], nothing = 0;
    char *w[{len(self.working) + 1}];
    int64_t failed = 0;
    placed(a, room, w);
{body}
    return failed;
}}
"""
        return self.text

    def _declarations(self, text: str) -> list[str]:
        """Lines that give names their values: of what is given, of what the plan's numbers tell, and of parts of memory."""
        used = set(_NAME.findall(text)) | {*self.pointers}
        parts = {name: where for name, where in self._parts().items() if name in used}
        used |= {name for where in parts.values() for name in _NAME.findall(where)}
        pointers = [name for name in (*self.pointers, "kept") if name in used and name not in parts]
        arrays = [name for name in self.arrays if name in used]
        numbers = sorted(name for name in used if _NUMBER.fullmatch(name) and name not in (*pointers, *arrays, *parts))
        told = {name: found for name in (*pointers, *arrays, *numbers) if (found := self._told(name)) is not None}
        self.text.variables = [name for name in (*pointers, *arrays, *numbers) if name not in told]
        given = {name: f"a[{FIRST_VARIABLE + at}]" for at, name in enumerate(self.text.variables)}
        lines = ["const int32_t *n = (const int32_t *)a[3], *b = (const int32_t *)a[4]; (void)n; (void)b;"]
        lines.append("const int64_t base = a[5], back = a[6], host = a[7]; (void)base; (void)back; (void)host;")
        for name, value in {**told, **given, **parts}.items():
            kind = "const int32_t *" if name in arrays else "const int64_t " if name in numbers else "char *"
            lines.append(f"{kind}{name} = ({kind.removesuffix(' ')})({value}); (void){name};")
        return lines

    def _told(self, name: str) -> str | None:
        """What the plan's numbers tell, which are 32 bits each."""
        base, _, which = name.partition("_")
        if (told := self.told.get(base)) is None:
            return None
        text = told.rows if which == "rows" else told.parts[("", "hi", "n").index(which)] if told.parts else told.text
        return re.sub(r"\b([nb]\[)", r"(int64_t)\1", text or "")

    def _parts(self) -> dict[str, str]:
        """Memory that is part of what is kept in one piece."""
        found = {one.name: f"kept + {one.dtype.itemsize} * k{at}" for at, one in enumerate(self.noted.together)}
        if self.noted.saved_as_one:
            for name in self.pointers:
                if name.startswith("s"):
                    found[name] = f"kept + {self.sizes[name]} * {name}_at"
        return found

    def _placing(self) -> str:
        count = len(self.working)
        lines = [f"    int64_t bytes[{count + 1}];"]
        for at, storage in enumerate(self.working):
            size = f"((({storage.count}) * {storage.dtype.itemsize} + {ROOM - 1}) / {ROOM} * {ROOM})"
            turns = self.inside.get(storage)
            if turns is None:
                lines.append(f"    bytes[{at}] = {size};")
            else:
                lines.append(f"    {{ const int64_t lo = 0, hi = widest({self._steps(turns)}); bytes[{at}] = {size}; }}")
        born = ", ".join(str(first) for first, _ in self.working.values()) or "0"
        dead = ", ".join(str(last) for _, last in self.working.values()) or "0"
        lines.append(f"    static const int born[] = {{{born}}}, dead[] = {{{dead}}};")
        spares = self._spares()
        lines.append(f"    const struct spare spare[] = {{{', '.join(spares) or '{0, 0, 0, 0}'}}};")
        lines.append(f"    return place({count}, bytes, born, dead, {len(spares)}, spare, room, at);")
        return "\n".join(lines)

    def _missing(self) -> str:
        """Kernels for steps of some width are compiled when such steps first come."""
        lines = []
        for operation in self.operations:
            if isinstance(operation, Turns):
                first = self._sweep(operation)
                there = f"h[{FIRST_KERNEL} + {OF_KERNEL} * ({first} + t.width)]"
                lines += self._each_stretch(operation, "    ")
                lines.append(f"        if (t.width != APART && !{there}) return -2 - ({first} + t.width);")
                lines.append("    }")
        return "\n".join(lines)

    def _multiplied(self) -> str:
        """Whether the library multiplies; to ask for its handle takes as long as a launch."""
        found = ["0"]
        for operation in self.operations:
            if isinstance(operation, Product):
                found.append("1")
            elif isinstance(operation, Turns) and any(isinstance(one, Product) for one in operation.apart):
                found.append(f"widest({self._steps(operation)})")
        return " || ".join(dict.fromkeys(found))

    # Operations.

    def _operation(self, operation: Operation, indent: str = "    ") -> None:
        if isinstance(operation, Launch):
            self._launch(operation, indent)
        elif isinstance(operation, Product):
            self._product(operation, indent)
        elif isinstance(operation, Fill | Copy):
            out = operation.out
            place, size = f"(uint64_t){self._address(out)}", f"({out.numel()}) * {out.dtype.itemsize}"
            fill = f"((fill_function)h[4])({place}, 0, {size}, stream)"
            if isinstance(operation, Copy):
                fill = f"((copy_function)h[5])({place}, (uint64_t){self._address(operation.one)}, {size}, stream)"
            self.lines.append(f"{indent}failed |= {fill};")
        else:
            self._turns(operation, indent)

    def _address(self, block: Block) -> str:
        storage = block.storage
        if isinstance(storage, Either):
            assert storage.one is not None and storage.other is not None
            start = f"({storage.number} >= 0 ? {self._address(storage.one)} : {self._address(storage.other)})"
        elif storage in self.working:
            start = f"w[{list(self.working).index(storage)}]"
        else:
            start = storage.name
            if storage.name != COUNTER:
                self.pointers[storage.name], self.sizes[storage.name] = storage.anywhere, storage.dtype.itemsize
        offset = block.offset
        if isinstance(offset, int) and offset == 0:
            return start
        return f"({start} + ({offset}) * {block.dtype.itemsize})"

    def _arguments(self, arguments: Sequence[Size | Block], indent: str, more: Sequence[str] = ()) -> None:
        names = []
        for at, one in enumerate(arguments):
            kind, text = ("uint64_t", f"(uint64_t){self._address(one)}") if isinstance(one, Block) else ("int32_t", f"{one}")
            self.lines.append(f"{indent}{kind} v{at} = {text};")
            names.append(f"&v{at}")
        for at, name in enumerate(more, start=1):
            names.insert(at, name)
        self.lines.append(f"{indent}void *v[] = {{{', '.join([*names, '&nothing', '&nothing'])}}};")

    def _kernel(self, kernel: Kernel, constants: tuple[object, ...], arguments: Sequence[Size | Block]) -> int:
        kinds = [one.dtype if isinstance(one, Block) else None for one in arguments]
        aligned = all(one.aligned for one in arguments if isinstance(one, Block))
        self.text.kernels.append((kernel, constants, kinds, aligned))
        return len(self.text.kernels) - 1

    def _launch(self, launch: Launch, indent: str) -> None:
        number = self._kernel(launch.kernel, launch.constants, launch.arguments)
        self.lines.append(f"{indent}{'' if launch.only is None else f'if ({launch.only} < 0) '}{{")
        self._arguments(launch.arguments, indent + "    ")
        self.lines.append(f"{indent}    failed |= launch(h, {number}, {launch.programs}, stream, v);")
        self.lines.append(f"{indent}}}")

    def _product(self, product: Product, indent: str) -> None:
        one, other, out = product.one, product.other, product.out
        rows, inner, columns = one.shape[0], one.shape[1], other.shape[1]
        (how_one, apart_one), (how_other, apart_other) = _layout(one), _layout(other)
        a, b, c = self._address(other), self._address(one), self._address(out)
        shape = f"{how_other}, {how_one}, {columns}, {rows}, {inner}"
        self.lines.append(f"{indent}{{ const float one = 1, before = {int(product.adds)};")
        if out.dtype is torch.float32:
            call = f"((single_product)h[2])(blas, {shape}, &one, {a}, {apart_other}, {b}, {apart_one}, &before, {c}, {columns})"
        elif out.dtype in (torch.float16, torch.bfloat16):
            kind = KINDS[out.dtype]
            call = (
                f"((mixed_product)h[3])(blas, {shape}, &one, {a}, {kind}, {apart_other}, {b}, {kind}, {apart_one}, "
                f"&before, {c}, {kind}, {columns}, {IN_SINGLE}, 99)"
            )
        else:
            raise NotLowered(f"a product of {out.dtype}")
        self.lines.append(f"{indent}  failed |= {call}; }}")

    def _sweep(self, turns: Turns) -> int:
        """The first of a sweep's kernels in the table, one for each width."""
        for at, (kernel, _, _, _) in enumerate(self.text.kernels):
            if kernel == (turns.walk, WIDTHS[0]):
                return at
        kinds = [one.dtype if isinstance(one, Block) else None for one in turns.arguments]
        aligned = all(one.aligned for one in turns.arguments if isinstance(one, Block))
        first = len(self.text.kernels)
        self.text.kernels += [((turns.walk, width), (), kinds, aligned) for width in WIDTHS[:-1]]
        return first

    def _steps(self, turns: Turns) -> str:
        """The steps of a group in C, in terms of given arrays."""
        name, limits = turns.turns, turns.limits
        self.arrays |= {name: None, f"{name}_hi": None}
        rows = ", ".join(str(rows) for rows, _ in limits) or "0"
        widths = ", ".join(str(WIDTHS.index(width)) for width in ("narrow", *(width for _, width in limits)))
        arrays = f"(const int32_t[]){{{rows}}}, (const int32_t[]){{{widths}}}"
        return f"steps_of({name}, {name}_hi, {turns.first}, {name}_n, {len(limits)}, {arrays})"

    def _each_stretch(self, turns: Turns, indent: str) -> list[str]:
        """The head of a loop over stretches `t`."""
        name = f"{turns.turns}_steps"
        start, backward = f"{{{name}.count, {name}.first}}", int(turns.walk.backward)
        head = f"for (struct stretch t = {start}; next_stretch(&{name}, {backward}, &t);) {{"
        return [f"{indent}const struct steps {name} = {self._steps(turns)};", f"{indent}{head}"]

    def _turns(self, turns: Turns, indent: str) -> None:
        name, first, deeper = turns.turns, self._sweep(turns), indent + "        "
        self.lines += self._each_stretch(turns, indent)
        self.lines.append(f"{indent}    int32_t begin = t.begin, end = t.end;")
        self.lines.append(f"{indent}    if (t.width != APART) {{")
        self._arguments(turns.arguments, deeper, ("&begin", "&end", f"&{COUNTER}"))
        self.lines.append(f"{deeper}failed |= launch_together(h, {first} + t.width, stream, v);")
        self.lines.append(f"{indent}    }}")
        if turns.apart:
            order = "at = end - 1; at >= begin; at--" if turns.walk.backward else "at = begin; at < end; at++"
            self.lines.append(f"{indent}    else for (int64_t {order}) {{")
            self.lines.append(f"{deeper}const int64_t lo = {name}[at], hi = {name}_hi[at];")
            for operation in turns.apart:
                self._operation(operation, deeper)
            self.lines.append(f"{indent}    }}")
        self.lines.append(f"{indent}}}")


def _layout(block: Block) -> tuple[int, Size]:
    """Whether the library sees a matrix as it is (0) or transposed (1), and how far its rows are apart."""
    (rows, columns), (down, across) = block.shape, block.strides
    if type(across) is int and across == 1:
        return 0, columns if type(rows) is int and rows == 1 else down
    if type(down) is int and down == 1:
        return 1, across
    raise NotLowered("a matrix that is strided both ways")
