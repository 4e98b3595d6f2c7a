"""The Python around one call: memory for its results, and the numbers that C is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from weft.run.gpu.onecall.blocks import Block, Storage, same, strides_of
from weft.run.gpu.onecall.later import Later
from weft.run.gpu.onecall.note import Noted
from weft.run.gpu.onecall.numbers import ALIGNED, Size
from weft.run.gpu.onecall.record import PerStep, Stretches
from weft.run.told import PLAN, Told

LISTS = {"t": "tensors", "c": "chosen", "s": "saved", "g": "grads", "q": "constants"}
"""Names of given tensors start so."""


def wrapper_text(noted: Noted, variables: list[str], texts: Mapping[str, Told]) -> str:
    """The source of `run`. `texts`: facts that are told by the plan's numbers, by name; the others are given."""
    kinds = noted.facts
    together = noted.together
    starts = {storage: f"k{at}" for at, storage in enumerate(together)}
    apart = {storage: sizes for storage, sizes in noted.brought.items() if storage not in together}
    memory = [f"{storage.name} = {_fresh(sizes, storage)}" for storage, sizes in apart.items()]
    memory += _parts({storage: noted.brought[storage] for storage in together})
    values = ", ".join([*(PLAN[2:] if texts else ["0"] * len(PLAN[2:])), *(_value(name, noted) for name in variables)])
    body = [
        *memory,
        "bind()",
        f"given = numbers(stream, counter(device, stream).data_ptr(), table, {values})",
        "bytes = room(given)",
        "if bytes < 0: return None",
        "working = fresh((bytes & ~1,), (1,), torch.uint8)",
        "done(given, working.data_ptr(), blas() if bytes & 1 else 0)",
        f"return {_results(noted, starts)}",
    ]
    names = sorted(set(re.findall(r"\b[tcsgfq]\d+(?:_rows)?\b", "\n".join(body))), key=lambda name: name.endswith("_rows"))
    given = [name for name in kinds if name not in texts]
    heads = [*PLAN] * bool(texts) + given
    opening = [f"({', '.join(heads)},) = facts"] * bool(heads)
    if noted.saved_as_one:
        opening += [f"({_each(f's{at}{what}' for at in range(noted.saved))}) = saved.{of}" for what, of in SAVED.items()]
        names = [name for name in names if not name.startswith("s")]
    opening += [f"{name} = {_given(name, texts)}" for name in names if name not in given]
    lines = "".join(f"    {line}\n" for line in [*opening, *body])
    return f"def run(facts, tensors, chosen, saved, grads, owned, stream, fresh):\n{lines}"


SAVED = {"_at": "offsets", "_rows": "rows"}
"""What is told of each part of what was kept in one piece."""


def views_text(blocks: Sequence[Block]) -> str:
    """The source of `views`: parts of memory as tensors."""
    each = [
        f"kept.as_strided({_tuple([f'rows[{at}]', *block.shape[1:]])}, {_tuple(block.strides)}, offsets[{at}])"
        for at, block in enumerate(blocks)
    ]
    return f"def views(kept, offsets, rows):\n    return ({_each(each)})\n"


def _parts(parts: Mapping[Storage, Sequence[Size]]) -> list[str]:
    """Lines that make memory for all of these, one behind the other, each from a multiple of 16 bytes on."""
    starts = ["k0 = 0"] * bool(parts)
    for at, (storage, sizes) in enumerate(parts.items()):
        step, count = ALIGNED // storage.dtype.itemsize, prod(sizes)
        starts.append(f"k{at + 1} = k{at} - (-({count}) // {step}) * {step}")
    return [*starts, *[f"kept = fresh((k{len(parts)},), (1,), {storage.dtype})" for storage in [*parts][:1]]]


def _given(name: str, texts: Mapping[str, Told]) -> str:
    """A given tensor, or how many rows it has; or what the plan's numbers tell."""
    base = name.removesuffix("_rows")
    if base in texts:
        return texts[base].rows or "" if name.endswith("_rows") else texts[base].text
    if name.endswith("_rows"):
        return f"{base}.numel()" if base.startswith("f") else f"{LISTS[base[0]]}[{base[1:]}].shape[0]"
    found = f"{LISTS[name[0]]}[{name[1:]}]"
    return f"{found}.contiguous()" if name.startswith("g") else found


def _value(name: str, noted: Noted) -> str:
    """What C is given for a variable."""
    base = re.sub(r"_(rows|n|hi|at)$", "", name)
    kind = noted.facts.get(base)
    if kind is Stretches:
        return f"{base}[{('', '_hi', '_n').index(name.removeprefix(base))}]"
    if kind in (PerStep, int) or name.endswith(("_rows", "_at")) or name == "owned" or re.fullmatch(r"k\d+", name):
        return name
    return f"{'saved.memory' if name == 'kept' and noted.saved_as_one else name}.data_ptr()"


def _fresh(sizes: Sequence[Size], storage: Storage) -> str:
    return f"fresh({_tuple(sizes)}, {_tuple(strides_of(sizes))}, {storage.dtype})"


def _each(items: Any) -> str:
    return "".join(f"{item}, " for item in items)


def _tuple(items: Sequence[Any]) -> str:
    return f"({_each(items)})"


def _results(noted: Noted, starts: Mapping[Storage, str]) -> str:
    """Results as text; `starts`: where memory begins that is part of what is kept."""
    if noted.recorder.later.lines:
        now = [None if isinstance(one, Later) else one for one in noted.results]
        rest = _rendered(noted.recorder.later.blocks, noted.brought, starts)
        return f"Unfinished({_rendered(now, noted.brought, starts)}, {rest}, finish)"
    if not noted.kept_as_one:
        return _rendered(noted.results, noted.brought, starts)
    outputs, kept = noted.results
    offsets = _each(f"{starts[block.storage]} + {block.offset}" for block in kept)
    rows = _each(block.shape[0] for block in kept)
    return f"{_rendered(outputs, noted.brought, starts)}, Kept(kept, ({offsets}), ({rows}), views)"


def _rendered(results: Any, brought: Mapping[Storage, Sequence[Size]], starts: Mapping[Storage, str]) -> str:
    if results is None:
        return "None"
    if isinstance(results, list | tuple):
        inner = "".join(f"{_rendered(one, brought, starts)}, " for one in results)
        return f"[{inner}]" if isinstance(results, list) else f"({inner})"
    block: Block = results
    storage = block.storage
    if storage not in starts and same(block.shape, brought[storage]) and same((block.offset,), (0,)):
        return storage.name
    memory, first = ("kept", f"{starts[storage]} + ") if storage in starts else (storage.name, "")
    return f"{memory}.as_strided({_tuple(block.shape)}, {_tuple(block.strides)}, {first}{block.offset})"
