"""Faces of rooms: a folder offers names of its files, each of which is loaded when it is asked for.

A face is the `__init__.py` of a folder. It lists what it offers as imports that only type checkers
run, under `if TYPE_CHECKING:`, and its `__getattr__` is `lazy(__name__, __file__)`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path


def lazy(package: str, file: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a package: it loads a name from where `file` imports it."""

    @cache
    def homes() -> dict[str, str]:
        """Return the module that defines each name."""
        face = ast.parse(Path(file).read_text(encoding="utf-8"))
        lines = (line for block in face.body if isinstance(block, ast.If) for line in block.body)
        return {
            alias.name: line.module
            for line in lines
            if isinstance(line, ast.ImportFrom) and line.module is not None
            for alias in line.names
        }

    def load(name: str) -> object:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
