"""The Python around one call: memory for its results, and the numbers that C is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from weft.run.gpu.onecall.blocks import Block, Storage, same, strides_of
from weft.run.gpu.onecall.note import Noted, kept_whole
from weft.run.gpu.onecall.numbers import ALIGNED, Size
from weft.run.gpu.onecall.record import PerStep, Stretches
from weft.run.told import Told

LISTS = {"t": "tensors", "s": "saved", "g": "grads"}
"""Names of given tensors start so."""


def wrapper_text(noted: Noted, variables: list[str], texts: Mapping[str, Told]) -> str:
    """The source of `run`. `texts`: facts that are told by the plan's numbers, by name; the others are given."""
    kinds = noted.facts
    guards = noted.recorder.example.guards
    together = _together(noted)
    starts = {storage: f"k{at}" for at, storage in enumerate(together)}
    results = f"return {_rendered(noted.results, noted.brought, starts)}"
    apart = {storage: sizes for storage, sizes in noted.brought.items() if storage not in together}
    memory = [f"{storage.name} = {_fresh(sizes, storage)}" for storage, sizes in apart.items()]
    memory += _parts({storage: noted.brought[storage] for storage in together})
    values = ", ".join(_value(name, kinds, texts) for name in variables)
    later = [
        f"given = numbers(stream, blas(), counter(device, stream).data_ptr(), table, {values})",
        "bytes = room(given)",
        "if bytes < 0: return None",
        "working = fresh((bytes,), (1,), torch.uint8)",
        "done(given, working.data_ptr())",
        results,
    ]
    checks = [f"if not ({' and '.join(f'({guard})' for guard in guards)}): return None"] if guards else []
    body = [*checks, *memory, *later]
    names = sorted(set(re.findall(r"\b[tsgf]\d+(?:_rows)?\b", "\n".join(body))), key=lambda name: name.endswith("_rows"))
    given = [name for name in kinds if name not in texts]
    heads = ["n", "b", "base", "back", "host"] * bool(texts) + given
    opening = [f"({', '.join(heads)},) = facts"] * bool(heads)
    opening += [f"{name} = {_given(name, texts)}" for name in names if name not in given]
    lines = "".join(f"    {line}\n" for line in [*opening, *body])
    return f"def run(facts, tensors, saved, grads, owned, stream, fresh):\n{lines}"


def _together(noted: Noted) -> list[Storage]:
    """What forward keeps for backward, in one piece of memory: there, what was read makes room for something larger."""
    if not isinstance(noted.results, tuple):
        return []
    kept = [*kept_whole(noted.results).values()]
    return [storage for storage in kept if storage.dtype is kept[0].dtype]


def _parts(parts: Mapping[Storage, Sequence[Size]]) -> list[str]:
    """Lines that make memory for all of these, one behind the other, each from a multiple of 16 bytes on."""
    starts, made = ["k0 = 0"] * bool(parts), list[str]()
    for at, (storage, sizes) in enumerate(parts.items()):
        step, count = ALIGNED // storage.dtype.itemsize, prod(sizes)
        starts.append(f"k{at + 1} = k{at} - (-({count}) // {step}) * {step}")
        made.append(f"{storage.name} = kept.as_strided({_tuple(sizes)}, {_tuple(strides_of(sizes))}, k{at})")
    whole = [f"kept = fresh((k{len(parts)},), (1,), {storage.dtype})" for storage in [*parts][:1]]
    return [*starts, *whole, *made]


def _given(name: str, texts: Mapping[str, Told]) -> str:
    """A given tensor, or how many rows it has; or what the plan's numbers tell."""
    base = name.removesuffix("_rows")
    if base in texts:
        return texts[base].rows or "" if name.endswith("_rows") else texts[base].text
    if name.endswith("_rows"):
        return f"{base}.numel()" if base.startswith("f") else f"{LISTS[base[0]]}[{base[1:]}].shape[0]"
    found = f"{LISTS[name[0]]}[{name[1:]}]"
    return f"{found}.contiguous()" if name.startswith("g") else found


def _value(name: str, kinds: dict[str, type], texts: Mapping[str, Told]) -> str:
    """What C is given for a variable."""
    base = re.sub(r"_(rows|n|hi)$", "", name)
    kind = kinds.get(base)
    if kind is Stretches:
        return f"{base}[{('', '_hi', '_n').index(name.removeprefix(base))}]"
    if kind in (PerStep, int) or name.endswith("_rows") or name in texts or name == "owned":
        return name
    return f"{name}.data_ptr()"


def _fresh(sizes: Sequence[Size], storage: Storage) -> str:
    return f"fresh({_tuple(sizes)}, {_tuple(strides_of(sizes))}, {storage.dtype})"


def _tuple(items: Sequence[Size]) -> str:
    return f"({', '.join(map(str, items))}{',' * (len(items) == 1)})"


def _rendered(results: Any, brought: Mapping[Storage, Sequence[Size]], starts: Mapping[Storage, str]) -> str:
    """Results as text; `starts`: where memory begins that is part of what is kept."""
    if results is None:
        return "None"
    if isinstance(results, list | tuple):
        inner = "".join(f"{_rendered(one, brought, starts)}, " for one in results)
        return f"[{inner}]" if isinstance(results, list) else f"({inner})"
    block: Block = results
    storage = block.storage
    if same(block.shape, brought[storage]) and same((block.offset,), (0,)):
        return storage.name
    offset = f"{starts[storage]} + {block.offset}" if storage in starts else str(block.offset)
    return f"{storage.name}.as_strided({_tuple(block.shape)}, {_tuple(block.strides)}, {offset})"
