"""weft: write the network for one example, in plain PyTorch; run it batched, on any structure, with the same numbers."""

from importlib import import_module
from typing import Any

from weft.api.function import Typed as Typed
from weft.api.function import VertexFunction as VertexFunction
from weft.api.graph import Graph as Graph
from weft.errors import FallbackWarning as FallbackWarning
from weft.errors import MissingKey as MissingKey
from weft.errors import ShapeError as ShapeError
from weft.errors import StructureError as StructureError
from weft.errors import TraceError as TraceError
from weft.errors import TypeMismatch as TypeMismatch
from weft.errors import WeftError as WeftError
from weft.lazy.cells import cell as cell
from weft.lazy.entry import batched as batched
from weft.lazy.entry import is_tensor as is_tensor
from weft.lazy.entry import sync as sync
from weft.lazy.entry import value as value
from weft.lazy.ragged import ragged as ragged
from weft.lazy.scope import batching as batching
from weft.lazy.value import Value as Value
from weft.tools.planned import plan as plan


def __getattr__(name: str) -> Any:
    """`weft.blocks` and other parts are there without an import of their own, and cost nothing until used."""
    if name in ("blocks", "data", "nn", "testing"):
        return import_module(f"weft.{name}")
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
