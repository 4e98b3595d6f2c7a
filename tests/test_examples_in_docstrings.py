"""Every docstring example of the package is run by pytest, and everything public that users call has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import weft

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "weft"
MODULES = sorted(module.name for module in pkgutil.walk_packages(weft.__path__, "weft.") if module.name != "weft.__main__")
WITHOUT = {"FallbackWarning", "MissingKey", "RandomProgram", "ShapeError", "StructureError", "TraceError", "TypeMismatch"}
"""Errors and what `random_program` returns: nobody makes one."""
PARTS = {"TreeFCLeaf", "TreeFCNode", "TreeLSTMLeaf", "TreeLSTMNode"}
"""Types of the ready models, shown with these."""


def test_pytest_runs_the_examples_of_the_package() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in options["addopts"]
    assert "src/weft" in options["testpaths"]
    assert Path(weft.__file__).parent == PACKAGE, "the package under test is the one in this folder"


@pytest.mark.parametrize("name", ["weft", *MODULES])
def test_every_example_of_a_module_is_found(name: str) -> None:
    """An example in a comment, or in a docstring that Python does not keep, would never run."""
    module = importlib.import_module(name)
    source = Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8")
    found = sum(len(test.examples) for test in doctest.DocTestFinder().find(module, name))
    assert found == sum(line.lstrip().startswith(">>> ") for line in source.splitlines())


def public(module: ModuleType) -> set[str]:
    """Names that a package's `__init__.py` brings in from its own modules."""
    tree = ast.parse(Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weft")]
    return {alias.asname or alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("name", ["weft", "weft.nn", "weft.testing"])
def test_everything_public_shows_an_example(name: str) -> None:
    module = importlib.import_module(name)
    names = public(module)
    assert len(names) >= 4
    shown = {each for each in names if ">>> " in (inspect.getdoc(getattr(module, each)) or "")}
    assert names - shown <= WITHOUT | PARTS
