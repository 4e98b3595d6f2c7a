"""Folders are the stages of one pipeline and imports point one way; files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "weft"
LONGEST_FILE, LONGEST_FUNCTION = 450, 60

# What each folder may import of weft, as prefixes of module names; itself, weft.errors and weft.locks always.
PUBLIC_NAMES = "public names of weft"  # `from weft import VertexFunction`, as users write it
BELOW_API = ("weft.graph", "weft.plan", "weft.run", "weft.data")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "graph": (),
    "plan": ("weft.graph.program", "weft.graph.verify", "weft.cc"),
    "run": ("weft.graph", "weft.plan", "weft.cc"),
    "data": ("weft.graph", "weft.plan"),
    "api": BELOW_API,
    "lazy": (*BELOW_API, "weft.api", "weft.cc"),
    "tools": (*BELOW_API, "weft.api", "weft.lazy"),
    "testing": (*BELOW_API, "weft.api", "weft.lazy", "weft.tools"),
    "nn": (*BELOW_API, "weft.api", PUBLIC_NAMES),
    "blocks": (*BELOW_API, "weft.api", "weft.nn"),
}
WITHOUT_TORCH = ("plan", "graph/program.py", "graph/verify.py", "errors.py", "locks.py", "cc.py")

FILES = sorted(PACKAGE.rglob("*.py"))
OTHERS = sorted(file for folder in ("tests", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py"))
OTHERS += sorted(PACKAGE.rglob("*.c"))


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Full names of everything a module imports, at the top or inside functions; `from a import b` counts as a.b."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports_of(file: Path) -> list[str]:
    relative = file.relative_to(PACKAGE.parent)
    is_package = file.name == "__init__.py"
    parts = relative.parent.parts if is_package else relative.with_suffix("").parts
    return list(imported_modules(file.read_text(encoding="utf-8"), ".".join(parts), is_package))


def forbidden(folder: str, names: list[str]) -> list[str]:
    allowed = (*MAY_IMPORT[folder], f"weft.{folder}", "weft.errors", "weft.locks")
    ours = [name for name in names if is_within(name, ("weft",)) and not is_within(name, allowed)]
    return [name for name in ours if not (PUBLIC_NAMES in allowed and is_public_name(name))]


def is_public_name(name: str) -> bool:
    """`weft` itself or a name that its `__init__` gives, not a module or folder of the package."""
    first = name.split(".")[1:2]
    return not first or not any((PACKAGE / f"{first[0]}{suffix}").exists() for suffix in ("", ".py"))


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", [file for file in FILES if file.parent != PACKAGE], ids=name_of)
def test_imports_point_one_way(file: Path) -> None:
    folder = file.relative_to(PACKAGE).parts[0]
    assert folder in MAY_IMPORT, f"say here what the new folder {folder} may import"
    assert forbidden(folder, imports_of(file)) == []


@pytest.mark.parametrize("file", [file for file in FILES if name_of(file).startswith(WITHOUT_TORCH)], ids=name_of)
def test_planning_needs_no_torch(file: Path) -> None:
    assert [name for name in imports_of(file) if is_within(name, ("torch",))] == []


@pytest.mark.parametrize("file", [*FILES, *OTHERS], ids=lambda file: file.relative_to(ROOT).as_posix())
def test_files_stay_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < LONGEST_FILE


def lines_of_code(function: ast.FunctionDef) -> int:
    docstring = ast.get_docstring(function, clean=False) or ""
    return (function.end_lineno or 0) - function.lineno + 1 - len(docstring.splitlines())


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_stay_short(file: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if lines_of_code(node) > LONGEST_FUNCTION] == []


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import weft.run.eager as e", ["weft.run.eager"]),
        ("from weft.graph.program import Program", ["weft.graph.program.Program"]),
        ("from weft import graph", ["weft.graph"]),
        ("from .steps import Step", ["weft.plan.steps.Step"]),
        ("from ..run import eager", ["weft.run.eager"]),
        ("from . import steps", ["weft.plan.steps"]),
        ("def f():\n    import torch", ["torch"]),
    ],
)
def test_the_scan_sees_every_form_of_import(line: str, names: list[str]) -> None:
    assert list(imported_modules(line, "weft.plan.layout", is_package=False)) == names


def test_the_scan_rejects_imports_against_the_direction() -> None:
    assert forbidden("plan", ["weft.graph.cell.Cell", "weft.graph.program.merge", "numpy"]) == ["weft.graph.cell.Cell"]
    assert forbidden("graph", ["weft.errors.TraceError", "weft.plan.steps", "weft"]) == ["weft.plan.steps", "weft"]
    assert forbidden("nn", ["weft.Graph", "weft.api.vertex", "weft.testing.assert_equivalent"]) == [
        "weft.testing.assert_equivalent"
    ]
