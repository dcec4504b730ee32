"""What the reader of a report must know about how pages of Nsight Compute were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traceflops.parsers.csvfiles.notes import text_notes
from traceflops.parsers.nsight.ncu.read import NcuFile
from traceflops.parsers.nsight.ncu.runs import Run
from traceflops.trace import Note, NoteKind
from traceflops.words import several

_ODD: Final[tuple[tuple[str, NoteKind, str, str, str], ...]] = (
    ("none", "missing", "not-available", "value", "n/a: not counted on this device, or not used"),
    ("instances", "dropped", "instances-unread", "metric", "a list of instances without a total"),
    ("text", "dropped", "no-number", "value", "a word and no number"),
    (
        *("unit", "dropped", "unit-unknown", "value"),
        "in no unit, or in one that is not known, of bytes, times or rates",
    ),
)


def run_notes(run: Run) -> Iterator[Note]:
    """Give the notes of the files of a run, and those of how they were put together."""
    for file in run.files:
        for note in _notes(file):
            yield replace(note, file=file.source.label)
    name = run.files[0].source.label if len(run.files) == 1 else None
    if run.passes > 1:
        text = (
            f"{run.passes} pages with other counters each are taken for passes of one run: the "
            "n-th launch of a kernel in one is that in the others."
        )
        yield Note("assumed", "pages-together", text, run.passes, name)
    if run.repeated:
        text = f"{several(run.repeated, 'page')} left out: the same as one before, value by value."
        yield Note("dropped", "page-repeated", text, run.repeated, name)
    yield Note("missing", "no-timeline", _NO_TIMES, None, name)


def _notes(file: NcuFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd = sum((page.odd for page in file.pages), Counter[str]())
    bad = sum(file.damage.bad_cells.values())
    if bad:
        text = f"{several(bad, 'number')} could not be read and are left out."
        yield Note("dropped", "bad-cells", text, bad)
    for what, kind, code, noun, sentence in _ODD:
        count = odd[what]
        if count:
            verb = "is" if count == 1 else "are"
            text = f"{several(count, noun)} {verb} {sentence}: left out."
            yield Note(kind, code, text, count)
    if odd["scaled"]:
        yield Note("assumed", "values-rounded", _ROUNDED, odd["scaled"])
    if file.marks.comma:
        yield Note("assumed", "decimal-commas", _COMMAS)
    if file.marks.is_open:
        text = (
            f"Nothing in the file tells which mark of its numbers is that of decimals: "
            f"{file.marks.ambiguous} and the like are read with a decimal point."
        )
        yield Note("assumed", "marks-ambiguous", text)


_ROUNDED: Final = (
    "Values stand in the file in units with a prefix (Mbyte, us) and a few digits, so they are as "
    "exact as that; ncu --import FILE --csv --page raw --print-units base writes them whole."
)
_COMMAS: Final = "Numbers were printed with a decimal comma: the point is the mark of thousands."
_NO_TIMES: Final = (
    "Nsight Compute runs kernels one at a time, repeatedly, with emptied caches and mostly locked "
    "clocks: its durations are not used, and there is no timeline. Give these counters to a timed "
    "run of the same program: traceflops report RUN --pair FILE."
)
