"""Faces of rooms: a folder offers names of its files, each of which is loaded when it is asked for.

A face is the `__init__.py` of a folder. It lists what it offers as imports that only type checkers
run, under `if TYPE_CHECKING:`, and its `__getattr__` is `lazy(__name__, __file__)`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path


def lazy(package: str, file: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a package: it loads a name from where `file` imports it."""

    @cache
    def homes() -> dict[str, str]:
        return dict(_offered(ast.parse(Path(file).read_text(encoding="utf-8"))))

    def load(name: str) -> object:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def _offered(face: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a face offers, each with the module that defines it."""
    for block in face.body:
        if isinstance(block, ast.If):
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module is not None:
                    yield from ((alias.name, line.module) for alias in line.names)
