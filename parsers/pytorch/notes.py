"""What the reader of a report must know about how a trace was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from traceflops.parsers.io import INVALID_UTF8, ByteSource, EventStream, event_text_notes
from traceflops.parsers.pytorch.events import KNOWN_CATEGORIES, PYTHON_CATEGORIES
from traceflops.parsers.pytorch.metadata import Metadata
from traceflops.table import Note, NoteKind, counted_note, of_noun, rank_from_name
from traceflops.units import several

_AT_END: Final = "rank and world size"
_UNCATEGORISED = "phase "
_NO_PHASE = "phase None"
_ODD_EVENTS: Final[dict[str, tuple[NoteKind, str, str]]] = {
    "no-time": ("dropped", "event", "skipped: no valid time"),
    "bad-arguments": ("dropped", "event", "with unreadable arguments"),
    "no-duration": ("repaired", "event", "without a valid duration: counted as 0 ns"),
    "negative-duration": ("repaired", "event", "with negative duration: counted as 0 ns"),
    "negative-size": ("dropped", "negative number", "of bytes ignored"),
    "arguments-repaired": ("repaired", "list", f"of arguments repaired: {INVALID_UTF8}"),
}


def reading_notes(
    source: ByteSource,
    stream: EventStream[Any],
    counts: Mapping[str, int],
    odd: Mapping[str, int],
    metadata: Metadata,
    tables: Mapping[str, pa.Table],
    devices: Sequence[int],
    *,
    python_stacks: bool,
) -> tuple[Note, ...]:
    """Return the notes of one file: what was repaired, dropped, assumed or is missing."""
    notes = [
        *event_text_notes(source, stream.damage, _AT_END),
        *_event_notes(counts, odd, python_stacks),
        *_content_notes(tables, metadata, devices, _is_lossy(source, stream, odd)),
    ]
    return tuple(Note(n.kind, n.code, n.text, n.count, source.label) for n in notes)


def printable(name: str) -> str:
    """Return the beginning of a name that is safe in a message of one line."""
    return "".join(c if c.isprintable() else "?" for c in name[:40])


def _event_notes(
    counts: Mapping[str, int], odd: Mapping[str, int], python_stacks: bool
) -> Iterator[Note]:
    unknown = {
        category: count
        for category, count in sorted(counts.items())
        if category not in KNOWN_CATEGORIES and not category.startswith(_UNCATEGORISED)
    }
    if unknown:
        listed = ", ".join(f"{printable(n)} ({count:,})" for n, count in list(unknown.items())[:6])
        yield Note(
            "dropped",
            "unknown-category",
            f"Events of unknown categories were skipped: {listed}.",
            sum(unknown.values()),
        )
    frames = sum(counts.get(category, 0) for category in PYTHON_CATEGORIES)
    if frames and not python_stacks:
        yield Note(
            "dropped",
            "python-stacks-left-out",
            f"{frames:,} Python frames were skipped to save memory; --python-stacks keeps them.",
            frames,
        )
    if counts.get(_NO_PHASE):
        text = f"{several(counts[_NO_PHASE], 'object')} without a phase skipped: not events."
        yield Note("dropped", "no-phase", text, counts[_NO_PHASE])
    for code, (kind, noun, text) in _ODD_EVENTS.items():
        if odd[code]:
            yield counted_note(kind, code, of_noun(noun, f"{text}."), odd[code])


def _content_notes(
    tables: Mapping[str, pa.Table], metadata: Metadata, devices: Sequence[int], lost: bool
) -> Iterator[Note]:
    if not tables["activities"].num_rows:
        ops = tables["ops"].num_rows
        yield _lost(ops) if lost else _no_activities(tables["calls"].num_rows, ops)
    elif not tables["calls"].num_rows:
        yield Note(
            "missing",
            "no-calls",
            "The file has no runtime calls, so what launched the GPU operations is unknown.",
        )
    ops = tables["ops"]
    if ops.num_rows and ops["input_dims"].null_count == ops.num_rows:
        yield Note(
            "missing",
            "no-shapes",
            "Operators have no shapes, so their FLOPs cannot be counted. Record with "
            "record_shapes=True.",
        )
    if metadata.described.problem:
        text = f"Run description in the trace: {metadata.described.problem}."
        yield Note("dropped", "description-left-out", text)
    if metadata.rank_from_name and metadata.rank is not None:
        yield rank_from_name([metadata.rank])
    open_devices = [d for d in devices if metadata.by_id and metadata.facts_of(d) is None]
    if open_devices:
        listed = ", ".join(map(str, open_devices[:8])) + (", …" if len(open_devices) > 8 else "")
        yield Note(
            "missing",
            "device-ambiguous",
            f"Unknown GPU model for device {listed}: the listed GPUs differ and none clearly "
            "matches.",
        )


_SHOWN_INSTEAD = "; CPU operators are shown if no file has any"


def _lost(ops: int) -> Note:
    return Note(
        "missing",
        "no-device-work",
        "The readable part of the file has no GPU operations. They may be in the part that was "
        f"lost (see the other notes){_SHOWN_INSTEAD if ops else ''}.",
    )


def _is_lossy(source: ByteSource, stream: EventStream[Any], odd: Mapping[str, int]) -> bool:
    damage = stream.damage
    cut = source.cut is not None or damage.cut_bytes is not None
    return cut or damage.dropped_places > 0 or odd["no-time"] > 0


def _no_activities(calls: int, ops: int) -> Note:
    if calls:
        return Note(
            "missing",
            "no-device-work",
            f"The file has {several(calls, 'runtime call')} and no GPU operations: the "
            "profiler lost the "
            "GPU records or could not make them.",
        )
    return Note(
        "missing",
        "no-device-work",
        f"The file has no GPU operations{_SHOWN_INSTEAD if ops else ''}. To record them use "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )
