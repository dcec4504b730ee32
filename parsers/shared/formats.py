"""What a reader of a format is to the rest: how it knows its inputs and how it reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.table.trace import Trace


class Reading(Struct, frozen=True):
    """How inputs are read: by which processes, and whether with Python frames (None: if small)."""

    pool: WorkerPool
    python_stacks: bool | None = None


class Format(Struct, frozen=True):
    """One family of files.

    `recognises` takes the first bytes of an input and returns whether it is of this format. `read`
    takes inputs of this format and returns their traces. It gets one input at a time, unless the
    format `gathers`: then a run is a set of files, `read` gets all inputs at once, and decides
    which belong together. It raises InputError if nothing can be read; if only some inputs of a
    set cannot be read, it adds a note. `is_checked`: `plausible` has checked the traces already.
    """

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Sequence[ByteSource], Reading], Sequence[Trace]]
    gathers: bool = False
    is_checked: bool = False
