"""Names of a package that are loaded when they are first asked for: PEP 562.

lazy("traceflops", {"read": "traceflops.parsers.reading"})  ->  traceflops.__getattr__
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package; `homes` has the module of each name."""

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        # Keep it, so that the next look-up does not come here.
        setattr(sys.modules[package], name, value)
        return value

    return load
