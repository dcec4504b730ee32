"""Makes traces of pages of Nsight Compute: counters of kernels, without times.

Several calls of ncu may each record some of the counters. Pages with different counters of the same
kernels are therefore passes of one run; pages with the same counters have more launches or other
processes of a pass. A binary report counts as one page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import isclose
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.errors import InputError
from traceflops.parsers.io.csv_text import text_notes
from traceflops.parsers.io.database_query import by_distinct
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable, read_each, with_set_aside
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.nsight.ncu_pages import NcuFile, NcuPage, read_ncu
from traceflops.parsers.nsight.ncu_report import MAGIC, read_report
from traceflops.parsers.shared import trace_builder
from traceflops.table.columns import ABSENT
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import Note, Source, SourceFile, Trace

_CUT: Final = "copy the file again in full, or profile again"
_AGAIN: Final = "export again with ncu --import FILE --csv --page raw"
_NOTES: Final = NoteTable(
    dropped={
        "input-cut": "The report is cut off or damaged: {count} [kernel|kernels] before that "
        "[is|are] used.",
        "rows-lost": "{count} [kernel|kernels] could not be read: the report is damaged there.",
        "names-lost": "{count} [metric|metrics] ignored: without a name in the report.",
        "bad-cells": "{count} [number|numbers] could not be read.",
        "instances-unread": "{count} [metric|metrics] ignored: a list of instances without a "
        "total.",
        "no-number": "{count} [value is a text|values are texts] and not used: only numbers are.",
        "unit-unknown": "{count} [value|values] ignored: without a known unit of bytes, time or "
        "rate.",
        "page-repeated": "{count} [page|pages] ignored: every value repeats an earlier page.",
    },
    assumed={
        "values-rounded": "Values are rounded to a few digits of a prefixed unit (Mbyte, us). ncu "
        "--import FILE --csv --page raw --print-units base writes them in full.",
        "decimal-commas": "Numbers use a decimal comma and points for thousands.",
        "marks-ambiguous": "The decimal mark is ambiguous: numbers such as {number} are read with "
        "a decimal point.",
        "pages-together": "{count} pages with different counters are treated as passes of one "
        "run. The n-th launch of a kernel is the same in each.",
    },
    missing={
        "not-available": "{count} [value|values] ignored: n/a (not counted on this GPU, or not "
        "used).",
        "raw-report": "Read from the profiler's own file{by}. Of each kernel only the totals are "
        "read, not the values of instructions and units{apart}, source lines and call stacks: ncu "
        "--import REPORT.ncu-rep --page source --csv shows them.",
        "ranges-unread": "{count} [result|results] of ranges of kernels not read: only ncu "
        "--import REPORT.ncu-rep --csv --page raw shows [it|them].",
        "no-timeline": (
            "Nsight Compute replays kernels one at a time with flushed caches and locked clocks, "
            "so its durations are not used and there is no timeline.",
            "Combine these counters with a timed run of the same program: traceflops report RUN "
            "--pair FILE.",
        ),
    },
)
_PRINTED: Final = 0.01
"""Pages print numbers with two decimals, the large ones of a prefixed unit."""
_RULE_KEY: Final = ("process", "dispatch", "section", "rule", "text")
"""Rules for which these are equal are the same, even on different pages."""
_FAILED: Final = re.compile(rb"^==ERROR== LaunchFailed\b", re.MULTILINE)
"""How ncu says that a kernel did not end as it should."""
_FIRST: Final = 1 << 16  # bytes of a console in which errors are searched
_NO_VALUES: Final = ("not-available", "instances-unread", "no-number")


def _why_none(source: ByteSource) -> str:
    """Return the hint to a file in which no metric has a value: what failed, if it was printed."""
    if _FAILED.search(source.head(_FIRST)):
        return (
            "a kernel failed under ncu (LaunchFailed): see that the program runs alone, and record "
            "a smaller problem or fewer metrics, without a time limit on kernels"
        )
    return "see what ncu printed as ==ERROR==; ncu --query-metrics lists what a GPU supports"


def read_pages(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return a trace per run; files that are passes of one run become one trace.

    A file that cannot be read becomes a note. Raises InputError if no file has a value.
    """

    def read(source: ByteSource) -> NcuFile:
        """Return the content of a file. Raises InputError, with the reason, if it has no value."""
        is_report = source.head(len(MAGIC)) == MAGIC
        file = read_report(source) if is_report else read_ncu(source)
        if any(page.table.count for page in file.pages):
            return file
        name = file.source.label
        rows = sum((page.rows for page in file.pages), Counter[str]())
        if rows["metrics"] or rows["kernels"]:
            raise InputError(f"no metric has a value: {name}", _why_none(source))
        if rows["rules"]:
            raise InputError(f"rules only, no metrics: {name}", _AGAIN)
        odd = sum((page.odd for page in file.pages), Counter[str]())
        if odd["ranges-unread"]:
            raise InputError(f"results of ranges only, no kernels: {name}", _AGAIN)
        if odd["input-cut"] or file.source.cut is not None:
            raise InputError(f"cut off or damaged before the end of its first kernel: {name}", _CUT)
        if file.damage.dropped_rows or file.damage.cut_bytes or odd["rows-lost"]:
            raise InputError(f"no readable row: {name}", _AGAIN)
        raise InputError(f"no rows: {name} (header only)", "no kernel was profiled; profile again")

    files, failed = read_each(sources, read, close=True)
    files.sort(key=_has_layout)  # reports first: their values are not rounded
    return with_set_aside([trace_of(run) for run in runs(files)], failed)


def _has_layout(file: NcuFile) -> bool:
    """Return whether a file is CSV: the page of a binary report has no layout."""
    return any(page.layout for page in file.pages)


class NcuRun(Struct):
    """One run of a program: its files and their pages; `repeated` counts pages with nothing new."""

    files: list[NcuFile] = field(default_factory=list)
    pages: list[NcuPage] = field(default_factory=list)
    passes: int = 1
    repeated: int = 0


def runs(files: Sequence[NcuFile]) -> list[NcuRun]:
    """Return the files grouped into runs of a program, in the order of the first file of each.

    A file joins a run of its folder and rank whose values it repeats, or to whose kernels it has
    other counters (another pass).
    """
    runs_by_origin: list[tuple[Hashable, NcuRun]] = []
    for file in files:
        origin = (file.source.folder, rank_in_name(file.source.name))
        counters, kernels = (_names(file.pages, column) for column in ("counter", "name"))
        for run_origin, run in runs_by_origin:
            if run_origin != origin:
                continue
            if all(any(_repeats(page, earlier) for earlier in run.pages) for page in file.pages):
                break
            are_others = _differ_both_ways(counters, _names(run.pages, "counter"))
            if are_others and not kernels.isdisjoint(_names(run.pages, "name")):
                break
        else:
            run = NcuRun()
            runs_by_origin.append((origin, run))
        run.files.append(file)
        for page in file.pages:
            _add(page, run)
    return [run for _, run in runs_by_origin]


def _names(pages: Iterable[NcuPage], column: str) -> set[str]:
    return {name for page in pages for name in page.table.names[column]}


def _differ_both_ways(counters: set[str], others: set[str]) -> bool:
    """Return whether each of two sets of counters has some that the other lacks."""
    return bool(counters - others) and bool(others - counters)


def _add(page: NcuPage, run: NcuRun) -> None:
    """Append a page to a run, and set its pass (`repetition`) and the numbers of its processes.

    A page with other counters is a new pass. A page with the same counters continues their pass,
    with more launches or processes; if it only repeats values, its rows are dropped.
    """
    with_values = [earlier for earlier in run.pages if earlier.table.count]
    counters = _names([page], "counter")
    same_pass = [p for p in with_values if not _differ_both_ways(counters, _names([p], "counter"))]
    if page.table.count and any(_repeats(page, earlier) for earlier in same_pass):
        run.repeated += 1
        page = NcuPage(page.source, page.layout, page.metrics, odd=page.odd)
    elif page.table.count and same_pass:
        # A process id that recurs is the same process unless both pages have the same launch of it.
        first_number = sum(len(earlier.processes) for earlier in same_pass)
        for number, pid in enumerate(_pids(page), first_number):
            page.processes[pid] = number
            for earlier in same_pass:
                if pid in earlier.processes and not _launches(page, pid) & _launches(earlier, pid):
                    page.processes[pid] = earlier.processes[pid]
        page.repetition = same_pass[0].repetition
    elif page.table.count:
        page.processes = {pid: number for number, pid in enumerate(_pids(page))}
        # `passes` starts at 1 for pass 0, that of the first page with values.
        page.repetition = run.passes if with_values else 0
        run.passes += bool(with_values)
    run.pages.append(page)


def _pids(page: NcuPage) -> list[int]:
    """Return the process ids of a page, in the order of the page."""
    column = np.concatenate([rows.column("process") for rows in (page.table, page.rules)])
    _, first = group_rows([column])
    return [int(pid) for pid in column[np.sort(first)]]


def _launches(page: NcuPage, pid: int) -> set[int]:
    table = page.table
    return set(distinct(table.column("dispatch")[table.column("process") == pid]).tolist())


def _repeats(page: NcuPage, other: NcuPage) -> bool:
    """Return whether `other` has most values of `page`, all of them equal but for rounding."""
    if not set(_pids(page)) <= set(_pids(other)):  # equal values of another process are no repeat
        return False
    values, other_values = _values(page), _values(other)
    shared = values.keys() & other_values.keys()
    # Pages of one layout print a value alike; other layouts round it.
    tolerance = 0.0 if page.layout == other.layout else _PRINTED
    return 2 * len(shared) > len(values) and all(
        isclose(values[key], other_values[key], rel_tol=tolerance, abs_tol=tolerance)
        for key in shared
    )


def _values(page: NcuPage) -> dict[tuple[int, int, str, str], float]:
    """Return the values of a page by process, launch, kernel and counter."""

    def texts(column: str) -> list[str]:
        distinct_texts = list(page.table.names[column])
        return [distinct_texts[code] for code in page.table.column(column).tolist()]

    ids = (page.table.column(name).tolist() for name in ("process", "dispatch"))
    keys = zip(*ids, texts("name"), texts("counter"), strict=True)
    return dict(zip(keys, page.table.column("value"), strict=True))


def trace_of(run: NcuRun) -> Trace:
    """Return the trace of a run. The pages' tables are moved into the trace, not copied."""
    builder = trace_builder.Gathered()
    launches: set[tuple[int, ...]] = set()
    counts: Counter[str] = Counter()
    for page in run.pages:
        counts += page.rows
        if page.table.count:
            _number(page, builder)
            process, dispatch = (page.table.column(name) for name in ("process", "dispatch"))
            _, first = group_rows([process, dispatch])
            launches |= set(zip(process[first].tolist(), dispatch[first].tolist(), strict=True))
            builder["kernel_counters"].absorb(page.table)
            builder["kernel_rules"].absorb(page.rules)
    rules = builder["kernel_rules"]
    if rules.count:  # pages may repeat a rule: keep its first row
        _, first = group_rows([rules.column(name) for name in _RULE_KEY])
        is_first = np.isin(np.arange(rules.count), first)
        builder.tables["kernel_rules"] = trace_builder.chosen(rules, is_first)
    counts["launches"] = len(launches)
    layouts = dict.fromkeys(page.layout for page in run.pages if page.layout)
    facts = {"page": ", ".join(layouts)} if layouts else {}
    sources = [file.source for file in run.files]
    source = Source(
        format="ncu CSV" if layouts else "ncu report",
        files=tuple(SourceFile(s.label, s.stored_bytes, s.text_bytes) for s in sources),
        tool="Nsight Compute (ncu)",
        facts={name: text for file in run.files for name, text in file.facts.items()} | facts,
        event_counts={name: count for name, count in sorted(counts.items()) if count},
        identities=tuple(host for file in run.files for host in file.hosts if host),
    )
    overflowed = trace_builder.overflow_notes(builder.tables.values(), sources[0].label)
    return Trace(source, builder.finish(), (*_notes(run), *overflowed))


def _number(page: NcuPage, builder: trace_builder.Gathered) -> None:
    """Replace process ids and device codes in a page by the trace's; fill in `repetition`."""

    def small_number(text: str) -> int | None:
        """Return a number of at most five digits, None for any other text."""
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None

    label = page.source.label
    processes = {
        pid: builder.process(
            number,
            trace_builder.ProcessFacts(
                label, rank_in_name(label), pid=None if pid == ABSENT else pid
            ),
        )
        for pid, number in page.processes.items()
    }
    devices = []
    for text in page.devices:
        facts = page.facts.get(text, {})
        sm_count = facts.get("device__attribute_multiprocessor_count", "").replace(",", "")
        gpu_number, _, capability = text.partition("|")
        major, minor = map(small_number, capability.strip().partition(".")[::2])
        if major is None or minor is None:  # half a version identifies nothing
            major = minor = None
        device = trace_builder.DeviceFacts(
            product=facts.get("device__attribute_display_name") or None,
            compute_major=major,
            compute_minor=minor,
            sm_count=small_number(sm_count),
            architecture=None if major is None else f"sm{major}{minor}",
        )
        # A device needs a process, and a page does not tell which ones use it: take the first.
        first_process = next(iter(processes.values()))
        number = small_number(gpu_number.strip()) or 0
        devices.append(builder.device(text, first_process, number, device))
    for table in (page.table, page.rules):
        process_of_row = by_distinct(table.column("process"), lambda pid, _: processes[pid])
        table.replace("process", process_of_row)
        table.replace("device", np.array(devices, np.int64)[table.column("device")])
    page.table.replace("repetition", np.full(page.table.count, page.repetition, np.int64))


def _notes(run: NcuRun) -> Iterator[Note]:
    """Yield the notes on each file of a run, then those on how the files were joined."""
    for file in run.files:
        notes = list[Note]()
        if _has_layout(file):
            notes += text_notes(file.damage, file.source.cut)
            bad_cells = Counter({"bad-cells": file.damage.bad_cells.total()})
            odd = sum((page.odd for page in file.pages), bad_cells)
            notes += _NOTES.counted(odd, "bad-cells", *_NO_VALUES, "unit-unknown", "values-rounded")
            if file.marks.comma:
                notes.append(_NOTES.note("decimal-commas"))
            if file.marks.is_open:
                notes.append(_NOTES.note("marks-ambiguous", number=file.marks.ambiguous))
        else:  # a binary report
            odd, counts = file.pages[0].odd, file.pages[0].rows
            version, unread_values = file.facts.get("tool_version"), odd["instances-apart"]
            by = f", written by Nsight Compute {version}" if version else ""
            apart = f" ({unread_values:,})" if unread_values else ""
            notes.append(_NOTES.note("raw-report", by=by, apart=apart))
            if odd["input-cut"] or file.source.cut is not None:
                notes.append(_NOTES.note("input-cut", counts["kernels"]))
            notes += _NOTES.counted(odd, "rows-lost", "names-lost", *_NO_VALUES, "ranges-unread")
        yield from (replace(note, file=file.source.label) for note in notes)
    name = run.files[0].source.label if len(run.files) == 1 else None
    if run.passes > 1:
        yield replace(_NOTES.note("pages-together", run.passes), file=name)
    if run.repeated:
        yield replace(_NOTES.note("page-repeated", run.repeated), file=name)
    yield replace(_NOTES.note("no-timeline"), file=name)
