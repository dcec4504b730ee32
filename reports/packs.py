"""Packs: one small file with traces, which every command reads instead of the recording."""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.errors import UsageError
from traceflops.privacy.environment import redacted
from traceflops.reports.files import write_pieces
from traceflops.table.columns import Names, flag_column, is_one_of, with_column
from traceflops.table.grouping import without_unused
from traceflops.table.packed import PARTS, parts_of
from traceflops.table.schema import empty_table
from traceflops.table.trace import EVERYWHERE, Note, Trace
from traceflops.windows.chosen_runs import restrict
from traceflops.windows.selection import HIDDEN

_STACKS, _HOST = "python-stacks", "host"
LEAVABLE: Final = (_STACKS, _HOST)  # parts that may be left out of a pack
_HOST_TABLES: Final = ("calls", "ops")


def write_pack(traces: Iterable[Trace], target: Path, *, include_environment: bool = False) -> int:
    """Write traces, one by one, into a file, atomically; return their number.

    Host and user names and folders are left out unless the environment is included.
    """
    hosts, salt, count = Names(), secrets.token_bytes(16), 0

    def digest(place: str) -> str:
        """Return a hash for the place of a device (a GPU's id, or "HOST SLOT"), if it may tell it.

        Host names can be guessed, so their hash has a salt and differs between packs.
        """
        if not place.startswith(EVERYWHERE):
            return place
        has_host = " " in place.removeprefix(EVERYWHERE)
        salted = salt + place.encode() if has_host else place.encode()
        return EVERYWHERE + hashlib.sha256(salted).hexdigest()[:16]

    def counted() -> Iterator[Trace]:
        nonlocal count
        for trace in traces:
            count += 1
            if not include_environment:
                places = tuple(place and digest(place) for place in trace.places)
                trace = replace(redacted(trace, hosts), places=places)
            yield trace

    write_pieces(target, _pieces(counted()))
    return count


def _pieces(traces: Iterable[Trace]) -> Iterator[bytes]:
    """Yield the bytes of a pack batch by batch, so that it is never in memory as a whole."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, PARTS) as writer:
        for trace in traces:
            for part in parts_of(trace):
                writer.write_batch(part.row)
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
    yield sink.getvalue()


def pack_of(analysis: Analysis, most_rows: int | None = None) -> bytes | None:
    """Return a pack of the analyzed part of a trace, with the names that reports show.

    None if the analysis did not keep the trace, if that has more than `most_rows`, or if its steps
    were chosen by a name that is redacted: a reader of the pack could not find them again.
    """
    prepared = analysis.prepared
    if not analysis.has_events or prepared.selection.step_mark == HIDDEN:
        return None
    rows = sum(table.num_rows for table in prepared.trace.tables.values())
    if most_rows is not None and rows > most_rows:
        return None
    # The tables are already those of the chosen job. Places of devices may name a host.
    shown = restrict(prepared.trace, replace(prepared.selection, job=None))
    return b"".join(_pieces([replace(redacted(shown), places=())]))


def with_hashes(trace: Trace, hashes: Mapping[str, str]) -> Trace:
    """Return a trace with the SHA-256 hashes of its files, which `hashes` has by file name."""
    files = tuple(
        replace(file, sha256=file.sha256 or hashes.get(file.name)) for file in trace.source.files
    )
    return replace(trace, source=replace(trace.source, files=files))


def left_out(trace: Trace, names: Iterable[str]) -> Trace:
    """Return a trace without the named parts (see LEAVABLE), with a note on each."""
    tables, notes = dict(trace.tables), list(trace.notes)
    for name in dict.fromkeys(names):
        if name == _STACKS:
            is_frame = is_one_of(trace.marks["kind"], "python")
            tables["marks"] = without_unused(trace.marks.filter(flag_column(~is_frame)))
            counters = trace.counters
            no_stacks = pa.nulls(counters.num_rows, counters.schema.field("stack").type)
            tables["counters"] = with_column(counters, "stack", no_stacks)
        else:
            tables |= {table: empty_table(table) for table in _HOST_TABLES}
        text = f"Packed without {name.replace('-', ' ')}."
        notes.append(Note("missing", f"packed-without-{name}", text))
    return replace(trace, tables=tables, notes=tuple(notes))


def parse_left_out(text: str | None) -> tuple[str, ...]:
    """Return the names in a comma-separated list. Raises UsageError for one not in LEAVABLE."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    unknown = [name for name in names if name not in LEAVABLE]
    if unknown:
        raise UsageError(f"cannot pack without: {unknown[0]}", f"choose from {', '.join(LEAVABLE)}")
    return names
