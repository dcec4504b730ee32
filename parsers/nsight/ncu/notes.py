"""What the reader of a report must know about how pages of Nsight Compute were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traceflops.parsers.io.csvfiles.notes import text_notes
from traceflops.parsers.nsight.ncu.read import NcuFile
from traceflops.parsers.nsight.ncu.runs import Run
from traceflops.table.trace import Note, NoteKind
from traceflops.units.words import several

_ODD: Final[tuple[tuple[str, NoteKind, str, str, str], ...]] = (
    ("none", "missing", "not-available", "value", "n/a (not counted on this GPU, or not used)"),
    ("instances", "dropped", "instances-unread", "metric", "a list of instances without a total"),
    ("text", "dropped", "no-number", "value", "text instead of a number"),
    (
        *("unit", "dropped", "unit-unknown", "value"),
        "without a known unit of bytes, time or rate",
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
            f"{run.passes} pages with different counters are treated as passes of one run. The "
            "n-th launch of a kernel is the same in each."
        )
        yield Note("assumed", "pages-together", text, run.passes, name)
    if run.repeated:
        text = f"{several(run.repeated, 'page')} ignored: every value repeats an earlier page."
        yield Note("dropped", "page-repeated", text, run.repeated, name)
    yield Note("missing", "no-timeline", _NO_TIMES, None, name)


def _notes(file: NcuFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd = sum((page.odd for page in file.pages), Counter[str]())
    bad = sum(file.damage.bad_cells.values())
    if bad:
        text = f"{several(bad, 'number')} could not be read."
        yield Note("dropped", "bad-cells", text, bad)
    for what, kind, code, noun, sentence in _ODD:
        count = odd[what]
        if count:
            text = f"{several(count, noun)} ignored: {sentence}."
            yield Note(kind, code, text, count)
    if odd["scaled"]:
        yield Note("assumed", "values-rounded", _ROUNDED, odd["scaled"])
    if file.marks.comma:
        yield Note("assumed", "decimal-commas", _COMMAS)
    if file.marks.is_open:
        text = (
            f"The decimal mark is ambiguous: numbers such as {file.marks.ambiguous} are read with "
            "a decimal point."
        )
        yield Note("assumed", "marks-ambiguous", text)


_ROUNDED: Final = (
    "Values are rounded to a few digits of a prefixed unit (Mbyte, us). ncu --import FILE --csv "
    "--page raw --print-units base writes them in full."
)
_COMMAS: Final = "Numbers use a decimal comma and points for thousands."
_NO_TIMES: Final = (
    "Nsight Compute replays kernels one at a time with flushed caches and locked clocks, so its "
    "durations are not used and there is no timeline. Combine these counters with a timed run of "
    "the same program: traceflops report RUN --pair FILE."
)
