"""What the reader of a report must know about the text of a JSON input: cuts, repairs, losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.parsers.io.inputs import GZIP_CUT, ByteSource
from traceflops.parsers.io.jsonfiles.mend import Damage
from traceflops.parsers.io.notes import NoteTable
from traceflops.table import Note
from traceflops.units import several

_NOTES: Final = NoteTable(
    assumed={
        "no-checksum": "The gzip stream has no checksum. The trace is complete, but cannot be "
        "verified.",
    },
    repaired={"json-repaired": "Damaged JSON: {what} ({count})."},
    dropped={
        "input-cut": "{cut}: later times may be missing and the last step may be incomplete.",
        "text-cut": "The file ends within its event list. Every complete event is used. {what}"
        "Later times and what is written last ({at_end}) are missing.",
        "json-dropped": "Damaged JSON: {what} could not be read ({where}).",
        "json-dropped none": "Damaged JSON: {where} without a complete {noun} skipped.",
        "second-trace": "The file seems to hold a second trace, which was not read: "
        "{size}. Split the file to see it.",
        "tail-cut": "The file ends early after the event list: {size} not read; {at_end} may be "
        "missing.",
        "tail-unread": "Extra text after the event list: {size} not read; {at_end} may be missing.",
    },
)


def event_text_notes(source: ByteSource, damage: Damage, at_end: str) -> Iterator[Note]:
    """Yield the notes on the text of a list of events; `at_end` is what the writer puts last."""
    if source.cut:
        yield input_cut(source.cut, damage)
    if damage.cut_bytes is not None:
        lost = _lost_at_end(damage.cut_bytes, damage.cut_events)
        yield _NOTES.note("text-cut", damage.cut_bytes, what=lost, at_end=at_end)
    yield from repairs_and_losses(damage, "event")
    if damage.another or damage.tail_cut or damage.tail_bytes:
        cut = "tail-cut" if damage.tail_cut else "tail-unread"
        events = f" ({several(damage.tail_events, 'event')})" if damage.tail_events else ""
        size = f"{several(damage.tail_bytes, 'byte')}{events}"
        code = "second-trace" if damage.another else cut
        yield _NOTES.note(code, damage.tail_bytes, size=size, at_end=at_end)


def input_cut(cut: str, damage: Damage) -> Note:
    """Return the note on an input that could not be read to its end."""
    if cut == GZIP_CUT and damage.array_closed and not damage.tail_cut:
        return _NOTES.note("no-checksum")
    return _NOTES.note("input-cut", cut=f"{cut[0].upper()}{cut[1:]}")


def repairs_and_losses(damage: Damage, noun: str) -> Iterator[Note]:
    """Yield the notes on what was repaired and what was left out; `noun` is what lists hold."""
    for what, count in sorted((+damage.repaired).items()):
        yield _NOTES.note("json-repaired", count, what=what)
    places = damage.dropped_places
    if places:
        where = f"{several(damage.dropped_bytes, 'byte')} in {several(places, 'place')}"
        what = several(damage.dropped_events, noun)
        key = "json-dropped" if damage.dropped_events else "json-dropped none"
        yield _NOTES.note(key, places, what=what, where=where, noun=noun)


def _lost_at_end(size: int, events: int) -> str:
    if events > 1:
        begun = f"The last {several(size, 'byte')}, in which {events:,} events begin, "
        return f"{begun}are unreadable. "
    return f"{several(size, 'byte')} of an incomplete event lost. " if size else ""
