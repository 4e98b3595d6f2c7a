"""The Python around one call: memory for its results, and the numbers that C is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.run.gpu.onecall.blocks import Block, Storage, same, strides_of
from weft.run.gpu.onecall.note import Noted
from weft.run.gpu.onecall.numbers import Size
from weft.run.gpu.onecall.record import PerStep, Stretches
from weft.run.told import Told

LISTS = {"t": "tensors", "s": "saved", "g": "grads"}
"""Names of given tensors start so."""


def wrapper_text(noted: Noted, variables: list[str], texts: Mapping[str, Told]) -> str:
    """The source of `run`. `texts`: facts that are told by the plan's numbers, by name; the others are given."""
    kinds = noted.facts
    guards = noted.recorder.example.guards
    results = f"return {_rendered(noted.results, noted.brought)}"
    memory = [f"{storage.name} = {_fresh(sizes, storage)}" for storage, sizes in noted.brought.items()]
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


def _rendered(results: Any, brought: Mapping[Storage, Sequence[Size]]) -> str:
    if results is None:
        return "None"
    if isinstance(results, list | tuple):
        inner = "".join(f"{_rendered(one, brought)}, " for one in results)
        return f"[{inner}]" if isinstance(results, list) else f"({inner})"
    block: Block = results
    if same(block.shape, brought[block.storage]) and same((block.offset,), (0,)):
        return block.storage.name
    return f"{block.storage.name}.as_strided({_tuple(block.shape)}, {_tuple(block.strides)}, {block.offset})"
