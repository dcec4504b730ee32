"""From a CSV page of Nsight Compute to its trace: counters of kernels, and no times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceflops.errors import InputError
from traceflops.parsers.io import ByteSource, NoteTable, rank_in_name, text_notes
from traceflops.parsers.nsight.ncu.read import NcuFile, NcuPage, read_ncu
from traceflops.parsers.nsight.ncu.runs import NcuRun, Placed, runs
from traceflops.parsers.nsight.unreadable_files import Failed, with_set_aside
from traceflops.parsers.shared import (
    DeviceFacts,
    Gathered,
    ProcessFacts,
    overflow_notes,
)
from traceflops.table import ABSENT, Note, Source, SourceFile, Trace

FORMAT: Final = "ncu CSV"


def read_pages(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return the traces of some files: one for each, or for files that are passes of one run.

    A file that cannot be read is a note as long as another can. Raises InputError where none has a
    value.
    """
    files: list[NcuFile] = []
    failed: list[Failed] = []
    for source in sources:
        try:
            files.append(with_values(read_ncu(source)))
        except InputError as error:
            failed.append((source.label, error))
        finally:
            source.close()
    return with_set_aside([trace_of(run) for run in runs(files)], failed)


def with_values(file: NcuFile) -> NcuFile:
    """Return a file that holds values. Raises InputError for any other."""
    if not any(page.table.count for page in file.pages):
        raise _nothing(file)
    return file


def trace_of(run: NcuRun) -> Trace:
    """Return the trace of one or several files of a run."""
    gathered = Gathered()
    launches: set[tuple[int, ...]] = set()
    counts: Counter[str] = Counter()
    for placed in run.pages:
        page = placed.page
        counts += page.rows
        if not page.table.count:
            continue
        _place(placed, gathered)
        launches |= _launches(page)
        gathered["kernel_counters"].absorb(page.table)
    counts["launches"] = len(launches)
    overflowed = gathered.overflowed
    layouts = dict.fromkeys(placed.page.page.layout for placed in run.pages)
    source = Source(
        format=FORMAT,
        files=tuple(
            SourceFile(f.source.label, f.source.stored_bytes, f.source.text_bytes)
            for f in run.files
        ),
        tool="Nsight Compute (ncu)",
        facts={"page": ", ".join(layouts)},
        event_counts={name: count for name, count in sorted(counts.items()) if count},
        identities=tuple(host for file in run.files for host in file.hosts if host),
    )
    notes = [
        *run_notes(run),
        *overflow_notes(overflowed, run.files[0].source.label),
    ]
    return Trace(source, gathered.finish(), tuple(notes))


def _place(placed: Placed, gathered: Gathered) -> None:
    """Put the numbers of processes and devices in the place of their ids."""
    page, table = placed.page, placed.page.table
    name = page.source.label
    processes = {
        pid: gathered.process(
            key, ProcessFacts(name, rank_in_name(name), None, None, None if pid == ABSENT else pid)
        )
        for pid, key in placed.processes.items()
    }
    first = next(iter(processes.values()))
    devices = np.array(
        [
            gathered.device((placed.device, text), first, *_device(text, page.facts.get(text, {})))
            for text in page.devices
        ],
        np.int64,
    )
    distinct, place = np.unique(table.column("process"), return_inverse=True)
    numbers = np.array([processes[pid] for pid in distinct.tolist()], np.int64)
    table.replace("process", numbers[place.reshape(-1)])
    table.replace("device", devices[table.column("device")])
    table.replace("repetition", np.full(table.count, placed.repetition, np.int64))


def _device(text: str, facts: Mapping[str, str]) -> tuple[int, DeviceFacts]:
    """Return the number of a device and what the page says of it: compute capability, product."""
    number, _, capability = text.partition("|")
    major, _, minor = capability.strip().partition(".")
    known = _is_small(major) and _is_small(minor)
    units = facts.get("device__attribute_multiprocessor_count", "").replace(",", "")
    return (
        int(number) if _is_small(number.strip()) else 0,
        DeviceFacts(
            product=facts.get("device__attribute_display_name") or None,
            compute_major=int(major) if known else None,
            compute_minor=int(minor) if known else None,
            sm_count=int(units) if _is_small(units) else None,
            architecture=f"sm{int(major)}{int(minor)}" if known else None,
        ),
    )


def _is_small(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 6


def _launches(page: NcuPage) -> set[tuple[int, ...]]:
    table = page.table
    keys = np.stack([table.column(name) for name in ("process", "dispatch")])
    return set(map(tuple, np.unique(keys, axis=1).T.tolist()))


def _nothing(file: NcuFile) -> InputError:
    name = file.source.label
    rows = sum((page.rows for page in file.pages), Counter[str]())
    if rows["metrics"] or rows["kernels"]:
        return InputError(
            f"no metric has a value: {name}",
            "profile again on a GPU that supports them (ncu --query-metrics)",
        )
    if rows["rules"]:
        return InputError(
            f"rules only, no metrics: {name}",
            "export again with ncu --import FILE --csv --page raw",
        )
    if file.damage.dropped_rows or file.damage.cut_bytes:
        return InputError(
            f"no readable row: {name}",
            "export again with ncu --import FILE --csv --page raw",
        )
    return InputError(f"no rows: {name} (header only)", "no kernel was profiled; profile again")


# What the reader of a report must know about how pages of Nsight Compute were read.


_NOTES: Final = NoteTable(
    dropped={
        "bad-cells": "{count} [number|numbers] could not be read.",
        "instances-unread": (
            "{count} [metric|metrics] ignored: a list of instances without a total."
        ),
        "no-number": "{count} [value|values] ignored: text instead of a number.",
        "unit-unknown": (
            "{count} [value|values] ignored: without a known unit of bytes, time or rate."
        ),
        "page-repeated": "{count} [page|pages] ignored: every value repeats an earlier page.",
    },
    assumed={
        "values-rounded": (
            "Values are rounded to a few digits of a prefixed unit (Mbyte, us). ncu --import FILE "
            "--csv --page raw --print-units base writes them in full."
        ),
        "decimal-commas": "Numbers use a decimal comma and points for thousands.",
        "marks-ambiguous": (
            "The decimal mark is ambiguous: numbers such as {number} are read with a decimal point."
        ),
        "pages-together": (
            "{count} pages with different counters are treated as passes of one run. The n-th "
            "launch of a kernel is the same in each."
        ),
    },
    missing={
        "not-available": (
            "{count} [value|values] ignored: n/a (not counted on this GPU, or not used)."
        ),
        "no-timeline": (
            "Nsight Compute replays kernels one at a time with flushed caches and locked clocks, "
            "so its durations are not used and there is no timeline. Combine these counters with a "
            "timed run of the same program: traceflops report RUN --pair FILE."
        ),
    },
)


def run_notes(run: NcuRun) -> Iterator[Note]:
    """Give the notes of the files of a run, and those of how they were put together."""
    for file in run.files:
        for note in _notes(file):
            yield replace(note, file=file.source.label)
    name = run.files[0].source.label if len(run.files) == 1 else None
    if run.passes > 1:
        yield replace(_NOTES.note("pages-together", run.passes), file=name)
    if run.repeated:
        yield replace(_NOTES.note("page-repeated", run.repeated), file=name)
    yield replace(_NOTES.note("no-timeline"), file=name)


def _notes(file: NcuFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd = sum((page.odd for page in file.pages), Counter[str]())
    odd["bad-cells"] = file.damage.bad_cells.total()
    yield from _NOTES.counted(
        odd,
        *("bad-cells", "not-available", "instances-unread", "no-number", "unit-unknown"),
        "values-rounded",
    )
    if file.marks.comma:
        yield _NOTES.note("decimal-commas")
    if file.marks.is_open:
        yield _NOTES.note("marks-ambiguous", number=file.marks.ambiguous)
