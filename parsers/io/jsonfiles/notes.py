"""What the reader of a report must know about the text of a JSON input: cuts, repairs, losses."""

from __future__ import annotations

from collections.abc import Iterator

from traceflops.parsers.io.inputs import GZIP_CUT, ByteSource
from traceflops.parsers.io.jsonfiles.mend import Damage
from traceflops.table import Note
from traceflops.units import several


def event_text_notes(source: ByteSource, damage: Damage, at_end: str) -> Iterator[Note]:
    """Yield the notes on the text of a list of events; `at_end` is what the writer puts last."""
    if source.cut:
        yield input_cut(source.cut, damage)
    if damage.cut_bytes is not None:
        yield _text_cut(damage.cut_bytes, damage.cut_events, at_end)
    yield from repairs_and_losses(damage, "event")
    if damage.another:
        yield Note(
            "dropped",
            "second-trace",
            "The file seems to hold a second trace, which was not read: "
            f"{several(damage.tail_bytes, 'byte')}{_events_in(damage.tail_events)}. Split the "
            "file to see it.",
            damage.tail_bytes,
        )
    elif damage.tail_cut or damage.tail_bytes:
        yield Note(
            "dropped",
            "tail-cut" if damage.tail_cut else "tail-unread",
            f"{'The file ends early' if damage.tail_cut else 'Extra text'} after the event list: "
            f"{several(damage.tail_bytes, 'byte')}{_events_in(damage.tail_events)} not read; "
            f"{at_end} may be missing.",
            damage.tail_bytes,
        )


def input_cut(cut: str, damage: Damage) -> Note:
    """Return the note on an input that could not be read to its end."""
    if cut == GZIP_CUT and damage.array_closed and not damage.tail_cut:
        return Note(
            "assumed",
            "no-checksum",
            "The gzip stream has no checksum. The trace is complete, but cannot be verified.",
        )
    return Note(
        "dropped",
        "input-cut",
        f"{cut[0].upper()}{cut[1:]}: later times may be missing and the last step may be "
        "incomplete.",
    )


def repairs_and_losses(damage: Damage, noun: str) -> Iterator[Note]:
    """Yield the notes on what was repaired and what was left out; `noun` is what lists hold."""
    for what, count in sorted(damage.repaired.items()):
        if count:
            yield Note("repaired", "json-repaired", f"Damaged JSON: {what} ({count:,}).", count)
    if not damage.dropped_places:
        return
    events = damage.dropped_events
    where = f"{several(damage.dropped_bytes, 'byte')} in {several(damage.dropped_places, 'place')}"
    if events:
        what = f"{several(events, noun)} could not be read ({where})"
    else:
        what = f"{where} without a complete {noun} skipped"
    yield Note("dropped", "json-dropped", f"Damaged JSON: {what}.", damage.dropped_places)


def _events_in(number: int) -> str:
    return f" ({several(number, 'event')})" if number else ""


def _text_cut(lost_bytes: int, lost_events: int, at_end: str) -> Note:
    if lost_events > 1:
        what = f"The last {several(lost_bytes, 'byte')}, in which {lost_events:,} events begin, "
        what += "are unreadable. "
    elif lost_bytes:
        what = f"{several(lost_bytes, 'byte')} of an incomplete event lost. "
    else:
        what = ""
    return Note(
        "dropped",
        "text-cut",
        f"The file ends within its event list. Every complete event is used. {what}Later times "
        f"and what is written last ({at_end}) are missing.",
        lost_bytes,
    )
