"""Blocks as text: one line, or the tree of a block and its parts."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.blocks.block import Block


def described(block: Block) -> str:
    """Constructor, name and plain arguments: `<wb.GetItem 'age' key='age'>`."""
    args, kwargs = block.__dict__.get("_constructed", ((), {}))
    shown = [text for text in (_argument(arg) for arg in args) if text]
    shown += [f"{key}={text}" for key, text in sorted((key, _argument(value)) for key, value in kwargs.items()) if text]
    shown = [text for text in shown if not text.startswith("name=")]
    extra = [repr(block._given_name)] if block._given_name else []
    constructor = block.__dict__.get("_constructor_name", type(block).__name__)
    return f"<{' '.join([f'wb.{constructor}', *extra, *shown])}>"


def _argument(value: Any) -> str:
    """Plain values as they are, callables by name, keys of dicts; nothing for other blocks."""
    from weft.blocks.block import Block

    if isinstance(value, Block) or value is None:
        return ""
    if isinstance(value, functools.partial):
        return _argument(value.func)
    if isinstance(value, dict):
        return " ".join(str(key) for key in value)
    if isinstance(value, list | tuple) and any(isinstance(part, tuple | Block) for part in value):
        return " ".join(str(part[0]) for part in value if isinstance(part, tuple) and part and not isinstance(part[0], Block))
    if callable(value) and not hasattr(value, "state_dict"):
        return str(getattr(value, "__name__", type(value).__name__))
    text = text_of(value)
    text = type(value).__name__ if "\n" in text else text
    return text if len(text) <= 60 else f"{text[:57]}..."


def shortened(value: Any, limit: int) -> str:
    """`repr`, cut off after some characters. What comes after that is never looked at, however deep or wide it is."""
    pieces: list[str] = []
    length = 0
    pending: list[tuple[bool, Any]] = [(False, value)]
    while pending and length <= limit:
        ready, item = pending.pop()
        if not ready and type(item) in (list, tuple, dict):
            pending += reversed(_pieces_of(item, limit))
            continue
        text = item if ready else text_of(item)
        pieces.append(text)
        length += len(text)
    text = "".join(pieces)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _pieces_of(nest: Any, limit: int) -> list[tuple[bool, Any]]:
    """Text (True) and values (False) of a list, tuple or dict, of its first items only."""
    opening, closing = ("[", "]") if type(nest) is list else ("(", ")") if type(nest) is tuple else ("{", "}")
    found: list[tuple[bool, Any]] = [(True, opening)]
    for number, item in enumerate(itertools.islice(nest, limit)):
        found += [(True, ", ")] if number else []
        found += [(False, item), (True, ": "), (False, nest[item])] if type(nest) is dict else [(False, item)]
    return [*found, (True, f",{closing}" if type(nest) is tuple and len(nest) == 1 else closing)]


def text_of(value: Any) -> str:
    """`repr`, or the class where that fails: it may be the user's, and nested too deep, or of too many digits."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def tree_of(block: Block) -> str:
    """One line for each block, indented; a block that was shown before is only named."""
    numbers: dict[Block, int] = {}
    lines: list[str] = []
    pending: list[tuple[str, str, Block]] = [("", "", block)]
    while pending:
        indent, label, each = pending.pop()
        start = f"{indent}{label}: " if label else indent
        again = each in numbers and bool(each.subblocks)
        types = f"  {_short(each.input_type)} -> {_short(each.output_type)}"
        lines.append(f"{start}{described(each)}{'  (as above)' if again else types}")
        if not again:
            numbers[each] = len(lines)
            pending += [(f"{indent}  ", name, part) for name, part in reversed(list(each._labels()))]
    return "\n".join(lines)


def _short(type: Any) -> str:
    return "?" if type is None else short_type(type)


def short_type(type: Any) -> str:
    """A type in few characters: `float32[3]`, `(int64, object)`, `[float32[3]]` for a sequence."""
    from weft.blocks.types import BroadcastSequenceType, SequenceType, TensorType, TupleType, VoidType

    if isinstance(type, TensorType):
        shape = f"[{', '.join('?' if n is None else str(n) for n in type.shape)}]" if type.shape else ""
        return f"{str(type.dtype).removeprefix('torch.')}{shape}"
    if isinstance(type, TupleType):
        return f"({', '.join(map(short_type, type))})"
    if isinstance(type, SequenceType):
        return f"[{short_type(type.element_type)}{', ...' if isinstance(type, BroadcastSequenceType) else ''}]"
    return "nothing" if isinstance(type, VoidType) else "object"
