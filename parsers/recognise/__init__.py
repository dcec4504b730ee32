"""Which reader reads an input: it is known by its first bytes, a database by its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.recognise.known_formats import recognise
else:
    __getattr__ = lazy(__name__, __file__)
