"""Traces as a pack: one small file that every command reads in the place of the recording."""

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
from traceflops.table.columns import Names, is_one_of, with_column
from traceflops.table.grouping import without_unused
from traceflops.table.packed import PARTS, parts_of
from traceflops.table.schema import empty_table
from traceflops.table.trace import EVERYWHERE, Note, Trace
from traceflops.windows.chosen_runs import restrict
from traceflops.windows.selection import HIDDEN

_STACKS, _HOST = "python-stacks", "host"
LEAVABLE: Final = (_STACKS, _HOST)  # what may be left out of a pack
_HOST_TABLES: Final = ("calls", "ops")


def write_pack(traces: Iterable[Trace], target: Path, *, include_environment: bool = False) -> int:
    """Write traces, one by one, into a file that is whole or not there; return how many.

    Host and user names and folders are left out unless the environment is included.
    """
    hosts, salt, count = Names(), secrets.token_bytes(16), 0

    def digest(place: str) -> str:
        """Return what stands for a device's place; of a host (guessable) in this pack alone."""
        if not place.startswith(EVERYWHERE):
            return place
        # A host and its slot have a blank between them, a GPU's own id has none.
        own = b"" if " " not in place.removeprefix(EVERYWHERE) else salt
        return EVERYWHERE + hashlib.sha256(own + place.encode()).hexdigest()[:16]

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
    """Yield the bytes of a pack, one batch at a time, so that it is never in memory as a whole."""
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
    """Return a pack of what an analysis is of: the chosen rows, names as they are shown.

    None where it was not kept, has more than `most_rows`, or its steps were chosen by a name that
    is hidden: a pack could not find them again.
    """
    prepared = analysis.prepared
    if prepared is None or prepared.selection.step_mark == HIDDEN:
        return None
    rows = sum(table.num_rows for table in prepared.trace.tables.values())
    if most_rows is not None and rows > most_rows:
        return None
    # The tables are those of the chosen job already. Places of devices may name a host.
    shown = restrict(prepared.trace, replace(prepared.selection, job=None))
    return b"".join(_pieces([replace(redacted(shown), places=())]))


def with_hashes(trace: Trace, hashes: Mapping[str, str]) -> Trace:
    """Return a trace whose files have the hashes that are known by their names."""
    files = tuple(
        replace(file, sha256=file.sha256 or hashes.get(file.name)) for file in trace.source.files
    )
    return replace(trace, source=replace(trace.source, files=files))


def left_out(trace: Trace, names: Iterable[str]) -> Trace:
    """Return a trace without Python stacks (frames, allocations) or host events; note it."""
    tables, notes = dict(trace.tables), list(trace.notes)
    for name in dict.fromkeys(names):
        if name == _STACKS:
            marks = trace.marks
            frames = is_one_of(marks["kind"], "python")
            tables["marks"] = without_unused(marks.filter(pa.array(~frames)))
            whole = trace.counters
            none = pa.nulls(whole.num_rows, whole.schema.field("stack").type)
            tables["counters"] = with_column(whole, "stack", none)
        else:
            tables |= {table: empty_table(table) for table in _HOST_TABLES}
        text = f"Packed without {name.replace('-', ' ')}."
        notes.append(Note("missing", f"packed-without-{name}", text))
    return replace(trace, tables=tables, notes=tuple(notes))


def parse_left_out(text: str | None) -> tuple[str, ...]:
    """Return what a list leaves out. Raises UsageError for what cannot be left out."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    unknown = [name for name in names if name not in LEAVABLE]
    if unknown:
        raise UsageError(f"cannot pack without: {unknown[0]}", f"choose from {', '.join(LEAVABLE)}")
    return names
