"""What a reader of a format is to the rest: how it knows its inputs and how it reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.table.trace import Trace


class Reading(Struct, frozen=True):
    """How inputs are read.

    `pool` are the processes that read; `python_stacks` says whether Python frames are kept (None:
    unless the input is huge).
    """

    pool: WorkerPool
    python_stacks: bool | None = None


class Format(Struct, frozen=True):
    """One family of files: `recognises` says by the first bytes whether an input belongs to it.

    `read` takes inputs of this format and returns their traces. It is given one input at a time,
    or, of a format that `gathers`, all of them at once: then a run is a set of files, and which
    belong together is for the reader to say. It raises InputError where nothing can be read; an
    input that does not keep the others of a set from being read is a note. Of one that `is_checked`
    the traces were looked over when they were first read.
    """

    name: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Sequence[ByteSource], Reading], Sequence[Trace]]
    gathers: bool = False
    is_checked: bool = False
