"""Readers of what profilers left behind: `read` takes files, gives one Trace. No analysis here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.parsers.reading import LOSSES, Paths, Watcher, file_hashes, read, read_apart
else:
    __getattr__ = lazy(__name__, __file__)
