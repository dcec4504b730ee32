"""What the reader of a report must know about the text of a JSON input: cuts, repairs, losses."""

from __future__ import annotations

from collections.abc import Iterator

from traceflops.parsers.inputs import GZIP_CUT, ByteSource
from traceflops.parsers.jsonfiles.walk import Damage
from traceflops.trace import Note
from traceflops.words import several


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
            "Another trace seems to begin behind the one that was read, in the same file: "
            f"{several(damage.tail_bytes, 'byte')} were not read{_events_in(damage.tail_events)}. "
            "To see it, split the file there.",
            damage.tail_bytes,
        )
    elif damage.tail_cut or damage.tail_bytes:
        yield Note(
            "dropped",
            "tail-cut" if damage.tail_cut else "tail-unread",
            f"{'The file ends too early' if damage.tail_cut else 'Text'} after its list of events: "
            f"{several(damage.tail_bytes, 'byte')} there were not read"
            f"{_events_in(damage.tail_events)}, and {at_end} may be missing.",
            damage.tail_bytes,
        )


def input_cut(cut: str, damage: Damage) -> Note:
    """Return the note on an input that could not be read to its end."""
    if cut == GZIP_CUT and damage.array_closed and not damage.tail_cut:
        return Note(
            "assumed",
            "no-checksum",
            "The gzip stream ends without its checksum. The trace in it is whole; whether it is as "
            "it was written cannot be checked.",
        )
    return Note(
        "dropped",
        "input-cut",
        f"{cut[0].upper()}{cut[1:]}: later times may be missing and the last step incomplete.",
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
        what = f"{several(events, noun)} could not be read: left out {where}"
    else:
        what = f"left out {where}, in which no {noun} begins"
    yield Note("dropped", "json-dropped", f"Damaged JSON: {what}.", damage.dropped_places)


def _events_in(number: int) -> str:
    return f" ({several(number, 'event')} among them)" if number else ""


def _text_cut(lost_bytes: int, lost_events: int, at_end: str) -> Note:
    if lost_events > 1:
        what = f"The last {several(lost_bytes, 'byte')}, in which {lost_events:,} events begin, "
        what += "could not be read. "
    elif lost_bytes:
        what = f"{several(lost_bytes, 'byte')} of an unfinished one are lost. "
    else:
        what = ""
    return Note(
        "dropped",
        "text-cut",
        "The file ends before its list of events does. Every complete event before that is used. "
        f"{what}Later times are missing, and so is what the writer puts at the end ({at_end}).",
        lost_bytes,
    )
