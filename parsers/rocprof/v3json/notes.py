"""What the reader of a report must know about how rocprofv3's JSON was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from traceflops.parsers.io import ByteSource, ListStream, input_cut, repairs_and_losses
from traceflops.parsers.rocprof.notes import (
    COUNTED_WHILE_TIMED,
    COUNTERS_ONLY,
    instance_notes,
    link_notes,
)
from traceflops.parsers.rocprof.v3json.places import ProcessRecords
from traceflops.parsers.rocprof.v3json.tables import Odd
from traceflops.parsers.shared import overflow_notes, span_notes
from traceflops.table import Note, NoteKind, counted_note, of_noun
from traceflops.units import several

_ODD: Final[Mapping[str, tuple[NoteKind, str, str]]] = {
    "no-value": ("dropped", "counter", "without a value skipped"),
    "host-copies": ("dropped", "copy record", "within CPU memory skipped: no GPU involved"),
    "kernel-clash": (
        "assumed",
        "launch",
        "of kernels whose number has two names: the later name is shown",
    ),
}
_NO_WORK: Final = (
    "The file has no GPU operations; rocprofv3 --kernel-trace --memory-copy-trace records them."
)


def file_notes(source: ByteSource, stream: ListStream, records: ProcessRecords) -> Iterator[Note]:
    """Give what is to be said of one file, whose records are added up."""
    for note in (*_text_notes(source, stream), *_record_notes(records)):
        yield Note(note.kind, note.code, note.text, note.count, source.label)


def _text_notes(source: ByteSource, stream: ListStream) -> Iterator[Note]:
    damage = stream.damage
    if source.cut:
        yield input_cut(source.cut, damage)
    if stream.cut_in is not None:
        yield Note("dropped", "text-cut", _cut(stream), damage.cut_bytes)
    yield from repairs_and_losses(damage, "record")
    if damage.tail_bytes:
        code = "second-trace" if damage.another else "tail-unread"
        text = f"{several(damage.tail_bytes, 'byte')} after the end of the document not read."
        yield Note("dropped", code, text, damage.tail_bytes)


def _cut(stream: ListStream) -> str:
    place = str(stream.cut_in[-1]) if stream.cut_in else "the document"
    where = "".join(c if c.isprintable() else "?" for c in place[:40])
    return (
        f"The file ends early (in {where}). Every complete record is used; the rest is missing "
        f"({several(stream.damage.cut_bytes or 0, 'byte')} of an incomplete record lost)."
    )


def _record_notes(records: ProcessRecords) -> Iterator[Note]:
    for what, count in sorted(records.mended.items()):
        yield Note("repaired", "json-repaired", f"Damaged JSON: {what} ({count:,}).", count)
    unreadable = +records.unreadable
    if unreadable:
        listed = ", ".join(f"{name} ({count:,})" for name, count in sorted(unreadable.items()))
        text = f"Records in an unknown form were skipped: {listed}."
        yield Note("dropped", "json-dropped", text, unreadable.total())


def run_notes(
    odd: Odd,
    tables: Mapping[str, pa.Table],
    overflowed: list[str],
    name: str,
) -> Iterator[Note]:
    """Give the notes of a run as a whole."""
    found = [
        *span_notes(odd.counts),
        *_odd_notes(odd),
        *_content_notes(tables),
    ]
    for note in found:
        yield replace(note, file=name)
    yield from overflow_notes(overflowed, name)


def launcher_notes(count: int, name: str) -> Iterator[Note]:
    """Say how many processes left nothing but what the machine has."""
    if count:
        wording = of_noun("launcher", "left no records: not shown.")
        yield counted_note("dropped", "launcher", wording, count, name)


def _odd_notes(odd: Odd) -> Iterator[Note]:
    for code, (kind, noun, text) in _ODD.items():
        if odd.counts[code]:
            yield counted_note(kind, code, of_noun(noun, f"{text}."), odd.counts[code])
    yield from instance_notes(odd.counts["instances"])
    if odd.unknown_kernels:
        count = len(odd.unknown_kernels)
        wording = of_noun("kernel", "without a name in the file, shown by number.")
        yield counted_note("missing", "kernels-unnamed", wording, count)
    if odd.unlisted_agents:
        count = len(odd.unlisted_agents)
        wording = of_noun(
            "device",
            "missing from the file's list of agents: model unknown.",
        )
        yield counted_note("missing", "agents-missing", wording, count)


def _content_notes(tables: Mapping[str, pa.Table]) -> Iterator[Note]:
    worked, counted = tables["activities"].num_rows, tables["kernel_counters"].num_rows
    if not worked:
        yield COUNTERS_ONLY if counted else Note("missing", "no-device-work", _NO_WORK)
        return
    yield from link_notes(tables)
    if counted:
        yield COUNTED_WHILE_TIMED
