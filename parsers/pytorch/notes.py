"""What the reader of a report must know about how a trace was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import (
    INVALID_UTF8,
    ByteSource,
    EventStream,
    NoteTable,
    event_text_notes,
)
from traceflops.parsers.pytorch.events import KNOWN_CATEGORIES, PYTHON_CATEGORIES
from traceflops.parsers.pytorch.metadata import Metadata
from traceflops.parsers.pytorch.values import printable
from traceflops.table import ABSENT, Note, numbers, of_noun, rank_from_name
from traceflops.units import several

_AT_END: Final = "rank and world size"
_UNCATEGORISED = "phase "
_NO_PHASE = "phase None"
_NOTES: Final = NoteTable(
    repaired={
        "no-duration": of_noun("event", "without a valid duration: counted as 0 ns."),
        "negative-duration": of_noun("event", "with negative duration: counted as 0 ns."),
        "arguments-repaired": of_noun("list", f"of arguments repaired: {INVALID_UTF8}."),
    },
    dropped={
        "unknown-category": "Events of unknown categories were skipped: {listed}.",
        "python-stacks-left-out": "{count} Python frames were skipped to save memory; "
        "--python-stacks keeps them.",
        "no-phase": "{count} [object|objects] without a phase skipped: not events.",
        "no-time": of_noun("event", "skipped: no valid time."),
        "bad-arguments": of_noun("event", "with unreadable arguments."),
        "negative-size": of_noun("negative number", "of bytes ignored."),
        "description-left-out": "Run description in the trace: {problem}.",
    },
    assumed={
        "repeated-launches": "{count} of {calls} [has|have] the correlation of another one: "
        "links to operators may be wrong. If the file holds several ranks, nothing tells them "
        "apart.",
        "merged-ranks": "The file holds {count} ranks. Their times are compared as they are in it.",
    },
    missing={
        "no-calls": "The file has no runtime calls, so what launched the GPU operations is "
        "unknown.",
        "no-shapes": "Operators have no shapes, so their FLOPs cannot be counted. Record with "
        "record_shapes=True.",
        "device-ambiguous": "Unknown GPU model for device {listed}: the listed GPUs differ and "
        "none clearly matches.",
        "no-device-work lost": "The readable part of the file has no GPU operations. They may be "
        "in the part that was lost (see the other notes){shown}.",
        "no-device-work calls": "The file has {calls} and no GPU operations: the profiler lost the "
        "GPU records or could not make them.",
        "no-device-work": "The file has no GPU operations{shown}. To record them use "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    },
)
_ODD: Final = (
    "no-time",
    "bad-arguments",
    "no-duration",
    "negative-duration",
    "negative-size",
    "arguments-repaired",
)
_SEVERAL: Final = 0.1
"""Fewer correlations than that are repeated by chance."""
_SHOWN_INSTEAD: Final = "; CPU operators are shown if no file has any"


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
    damage = stream.damage
    cut = source.cut is not None or damage.cut_bytes is not None
    is_lossy = cut or damage.dropped_places > 0 or odd["no-time"] > 0
    notes = [
        *event_text_notes(source, damage, _AT_END),
        *_event_notes(counts, python_stacks),
        *_NOTES.counted(odd, *_ODD),
        *_content_notes(tables, is_lossy),
        *_metadata_notes(metadata, devices, tables["processes"].num_rows),
    ]
    return tuple(Note(n.kind, n.code, n.text, n.count, source.label) for n in notes)


def _event_notes(counts: Mapping[str, int], python_stacks: bool) -> Iterator[Note]:
    unknown = {
        category: count
        for category, count in sorted(counts.items())
        if category not in KNOWN_CATEGORIES and not category.startswith(_UNCATEGORISED)
    }
    if unknown:
        listed = ", ".join(f"{printable(n)} ({count:,})" for n, count in list(unknown.items())[:6])
        yield _NOTES.note("unknown-category", sum(unknown.values()), listed=listed)
    frames = sum(counts.get(category, 0) for category in PYTHON_CATEGORIES)
    if frames and not python_stacks:
        yield _NOTES.note("python-stacks-left-out", frames)
    yield from _NOTES.counted({"no-phase": counts.get(_NO_PHASE, 0)}, "no-phase")


def _content_notes(tables: Mapping[str, pa.Table], is_lossy: bool) -> Iterator[Note]:
    calls, ops = tables["calls"].num_rows, tables["ops"]
    if not tables["activities"].num_rows:
        why = " lost" if is_lossy else " calls" if calls else ""
        shown = _SHOWN_INSTEAD if ops.num_rows else ""
        called = several(calls, "runtime call")
        yield _NOTES.note(f"no-device-work{why}", shown=shown, calls=called)
    elif not calls:
        yield _NOTES.note("no-calls")
    launched = numbers(tables["calls"]["correlation"], ABSENT)
    launched = launched[launched != ABSENT]
    repeated = len(launched) - len(np.unique(launched))
    if repeated > _SEVERAL * calls and tables["processes"].num_rows == 1:
        called = several(calls, "runtime call")
        yield _NOTES.note("repeated-launches", repeated, calls=called)
    if ops.num_rows and ops["input_dims"].null_count == ops.num_rows:
        yield _NOTES.note("no-shapes")


def _metadata_notes(metadata: Metadata, devices: Sequence[int], processes: int) -> Iterator[Note]:
    if metadata.described.problem:
        yield _NOTES.note("description-left-out", problem=metadata.described.problem)
    if processes > 1:
        yield _NOTES.note("merged-ranks", processes)
    elif metadata.rank_from_name and metadata.rank is not None:
        yield rank_from_name([metadata.rank])
    unknown = [d for d in dict.fromkeys(devices) if metadata.by_id and metadata.facts_of(d) is None]
    if unknown:
        listed = ", ".join(map(str, unknown[:8])) + (", …" if len(unknown) > 8 else "")
        yield _NOTES.note("device-ambiguous", listed=listed)
