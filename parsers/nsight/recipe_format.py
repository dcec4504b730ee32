"""Parquet files of Nsight Systems, told apart by their columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

if TYPE_CHECKING:
    from traceflops.parsers.nsight.recipe import Opened


def _recipes(files: Sequence[Opened]) -> Sequence[Trace]:
    from traceflops.parsers.nsight.recipe import read_recipes

    return read_recipes(files)


def _tables(files: Sequence[Opened]) -> Sequence[Trace]:
    from traceflops.parsers.nsight.nsys.table_files import read_parquet_tables

    return read_parquet_tables(files)


def _is_table(file: Opened) -> bool:
    from traceflops.parsers.nsight.nsys.table_files import table_of

    return table_of(file.source.name, file.columns) is not None


KINDS: Final[tuple[tuple[Callable[[Opened], bool], Callable[..., Sequence[Trace]]], ...]] = (
    (lambda file: file.has_ranges or file.has_devices, _recipes),
    (_is_table, _tables),
)
"""By what a Parquet file is known, and what reads all files of that kind."""


def read_parquet(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    """Return the traces in Parquet files. Raises InputError where none is known."""
    from traceflops.parsers.nsight.recipe import opened
    from traceflops.parsers.nsight.unreadable_files import Failed, with_set_aside

    kinds: list[list[Opened]] = [[] for _ in KINDS]
    failed: list[Failed] = []
    for source in sources:
        try:
            file = opened(source)
        except InputError as error:
            failed.append((source.label, error))
            continue
        place = next((at for at, (knows, _) in enumerate(KINDS) if knows(file)), None)
        if place is None:
            failed.append((source.label, _unknown(file)))
        else:
            kinds[place].append(file)
    traces: list[Trace] = []
    for files, (_, reader) in zip(kinds, KINDS, strict=True):
        if not files:
            continue
        try:
            traces += reader(files)
        except InputError as error:
            failed += [(file.source.label, error) for file in files]
    return with_set_aside(traces, failed)


def _unknown(file: Opened) -> NotATrace:
    listed = ", ".join(_printable(name) for name in file.columns[:5])
    return NotATrace(
        f"{file.source.path or file.source.label} is an unknown Parquet file (columns: {listed})",
        "give the SQLite export of the report (nsys export --type sqlite), or trace.parquet of "
        "the recipe nvtx_gpu_proj_trace",
    )


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:30])


NSYS_PARQUET: Final = Format(
    "Parquet", lambda head: head.startswith(b"PAR1"), read_parquet, gathers=True
)
