"""Reads the `nsys stats` reports of all given files: one trace per profile (a recorded run)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.csv_text import text_notes
from traceflops.parsers.io.database_query import by_distinct
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable, not_read, printable, read_each, with_notes
from traceflops.parsers.io.places import rank_in_name
from traceflops.parsers.nsight.stats_layouts import REPORTS, report_named
from traceflops.parsers.nsight.stats_read import StatsFile, labels_of, read_stats
from traceflops.parsers.nsight.stats_rows import ReportPart
from traceflops.parsers.shared import trace_builder
from traceflops.remedies import NSYS
from traceflops.table.builder import TableBuilder, compact
from traceflops.table.columns import ABSENT
from traceflops.table.grouping import distinct, group_rows
from traceflops.table.trace import Note, Source, SourceFile, Trace, rank_from_name
from traceflops.units import several

FORMAT: Final = "nsys stats"
_OLD_NAMES: Final = (
    *("gpukernsum", "gpukerngbsum", "gputrace", "cudaapisum", "cudaapitrace", "gpumemtimesum"),
    *("gpumemsizesum", "apigpusum", "gpusum", "kernexecsum", "kernexectrace", "nvtxsum"),
    *("nvtxpptrace", "nvtxppsum", "nvtxkernsum", "nvtxgpuproj", "pushpopsum", "pushpoptrace"),
    *("cuda_gpu_sum", "nvtx_pushpop_sum", "nvtx_startend_sum", "osrt_sum", "nvtxsssum"),
)
_ENDINGS: Final = re.compile(r"(?:\.(?:csv|tsv|txt|log|gz|zst))*$", re.IGNORECASE)
_NAMES: Final = sorted({*_OLD_NAMES, *(report.name for report in REPORTS)}, key=len, reverse=True)
_REPORT: Final = re.compile(
    rf"(?:^|(?<=[_.-]))({'|'.join(_NAMES)})(?:_base|_mangled|_nvtx[-_]name)?$"
)
_DEVICE: Final = re.compile(r"^(.*?)\((\d{1,9})\)$")
_RECORDS: Final = ("activities", "calls", "marks")
_PROJECTED: Final = "projected marks"
"""Stands for the table of marks where only ranges that are projected on the GPU count."""
_TIMELINES: Final = {
    **dict.fromkeys(("kernel", "memcpy", "memset"), "activities"),
    "call": "calls",
    "mark": "marks",
    "gpu_mark": _PROJECTED,
}
"""The table with the records that a total of each kind sums up."""
_ORDER: Final = (
    *("cuda_gpu_trace", "cuda_api_trace", "cuda_kern_exec_trace"),
    *("nvtx_pushpop_trace", "nvtx_startend_trace", "nvtx_gpu_proj_trace"),
    *("cuda_gpu_kern_gb_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum"),
    *("nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum"),
    *("cuda_api_gpu_sum", "cuda_kern_exec_sum", "nvtx_gpu_proj_sum", "cuda_gpu_mem_size_sum"),
)
"""Reports, those with most information first: of each kind of record only one report is used."""
_PRIORITY: Final = {name: priority for priority, name in enumerate(_ORDER)}
_SIBLINGS: Final = frozenset({"nvtx_pushpop_sum", "nvtx_startend_sum"})
"""Reports of the same kind of records, but of different ones: both are used."""
_MOST_NAMED: Final = 3
_OF_ROWS: Final = (
    *("bad-cells", "no-time", "no-duration", "negative-duration", "other-calls", "beyond"),
    "nested-sums",
)
"""Codes of notes on rows."""
_NESTED: Final = "kernel times by NVTX range, where nested ranges repeat a kernel"
_SUMS: Final = "give cuda_gpu_kern_sum or cuda_gpu_trace of the same profile"
_TRACES: Final = "give cuda_gpu_trace and cuda_api_trace of the same profile"
_NO_CUDA: Final = b" does not contain CUDA trace data"
"""A part of the message where nsys stats finds no CUDA calls."""
_UNCHANGED: Final = "give the file exactly as nsys stats wrote it"
_USELESS: Final[tuple[tuple[str, type[InputError], str, str], ...]] = (
    ("nested-sums", NotATrace, _NESTED, _SUMS),
    ("other-calls", NotATrace, "a report of API calls, but not CUDA's", _TRACES),
    ("no-time", InputError, "no row has a valid time", _UNCHANGED),
)
"""The errors for files without usable rows, by what is odd in them; the first that is counts."""
NOTES: Final = NoteTable(
    repaired={
        "no-duration": "{n} [record|records] without a duration: counted as 0 ns.",
        "negative-duration": "{n} [record|records] with negative duration: counted as 0 ns.",
    },
    dropped={
        "bad-cells": "{count} [number|numbers] could not be read.",
        "no-time": "{n} [record|records] skipped: no valid start time.",
        "other-calls": "{n} [call|calls] skipped: operating system, not CUDA.",
        "beyond": "{n} [number|numbers] too large for 64 bits: unknown.",
        "nested-sums": "{count} [row|rows] of kernels by NVTX range ignored: nested ranges repeat "
        "a kernel.",
        "tables-unread": "{count} [table|tables] skipped: unknown report or damaged header "
        "({titles}).",
        "table-repeated": "{count} [table|tables] ignored: every number repeats an earlier table.",
        "report-repeated": "{reports} [repeats|repeat] another report: ignored.",
    },
    assumed={
        "several-profiles": "The file holds reports of several profiles. Each is treated as a "
        "separate run or rank.",
        "unit-assumed": "The time columns name no unit: read as ns, as older releases write them.",
        "sizes-rounded": "Copy sizes are rounded to three decimals of a large unit. Those printed "
        "as 0 are unknown.",
    },
    missing={
        "sizes-without-unit": "The size columns name no unit, and it differs between releases: "
        "copy sizes are unknown.",
        "process-unknown": "The GPU trace does not say which of {count} processes ran its work, "
        "and their correlation ids repeat. The work is shown as a separate process without links "
        "to calls; give the SQLite export (nsys export --type sqlite).",
        "calls-unlinked": "{count} [call|calls] of {reports} not used: no kernel of the other "
        "report is known to be the same.",
        "no-calls": (
            "The report has no API calls, so launch calls and idle causes are unknown.",
            "Give cuda_api_trace beside it, or the SQLite export (nsys export --type sqlite).",
        ),
        "no-timeline": (
            "The file holds only totals by name: shares of kernels, but no timeline, idle time, "
            "overlap, steps or MFU.",
            "Give the SQLite export (nsys export --type sqlite) or the report cuda_gpu_trace.",
        ),
        "no-device-work": (
            "The reports have no GPU operations.",
            f"Give cuda_gpu_trace, or record with {NSYS}.",
        ),
        "no-rows": "The file has no records.",
    },
)


def read_reports(sources: Sequence[ByteSource]) -> list[Trace]:
    """Return a trace per profile.

    Files in a folder are of the same profile if their names differ only in the name of a report.
    A file that cannot be read becomes a note. Raises InputError if no file has a usable row.
    """
    files_read, failed = read_each(sources, read_stats, close=True)
    profiles: defaultdict[tuple[str, str, str], list[StatsFile]] = defaultdict(list)
    for file in chain.from_iterable(files_read):
        stem = _ENDINGS.sub("", file.source.name)
        report = _REPORT.search(stem)
        if report is not None:
            stem = stem[: report.start()]
            if len(file.parts) == 1:  # with several tables, the file's name is that of one of them
                file.parts[0].report = report_named(file.parts[0].report, report[1])
        profiles[file.source.folder, stem.strip("_.-"), file.profile].append(file)
    traces: list[Trace] = []
    empty: list[StatsFile] = []
    for files in profiles.values():
        trace = Assembly(files).trace()
        if trace is None:
            empty += files
        else:
            traces.append(trace)
    if not traces:
        raise _no_rows(empty)
    notes = not_read(failed)
    notes += [replace(NOTES.note("no-rows"), file=file.source.label) for file in empty]
    return with_notes(traces, notes)


def _no_rows(empty: Sequence[StatsFile]) -> InputError:
    """Return the error for files without any usable row, with the most likely reason."""
    name = empty[0].source.label
    odd = {code for file in empty for part in file.parts for code, n in part.odd.items() if n}
    for code, error_type, text, hint in _USELESS:
        if code in odd:
            if code == "other-calls" and any(_NO_CUDA in file.source.head() for file in empty):
                text, hint = "the profile has no CUDA data", f"record again with {NSYS}"
            return error_type(f"{text}: {name}", hint)
    if any(file.damage.dropped_rows or file.damage.cut_bytes for file in empty):
        return InputError(f"no readable row: {name}", "copy the file again or rerun nsys stats")
    if rows := sum(part.rows for file in empty for part in file.parts):
        return InputError(f"no row can be used: {name} ({several(rows, 'row')})", _UNCHANGED)
    hint = f"nothing was launched while recording; record again with {NSYS}"
    return InputError(f"no rows: {name} (header only)", hint)


class Assembly:
    """Makes the trace of one profile from its reports, whose rows are moved, not copied."""

    def __init__(self, files: Sequence[StatsFile]) -> None:
        """Sort the reports of the files by priority; collect process ids and ranks."""
        self.files = files
        self.builder = trace_builder.Gathered()
        parts = [part for file in files for part in file.parts]
        self._parts = sorted(parts, key=lambda p: _PRIORITY.get(p.report.name, len(_PRIORITY)))
        records = [part.tables[name] for part in parts for name in _RECORDS if name in part.tables]
        pids = {pid for table in records for pid in distinct(table.column("process")).tolist()}
        self._pids = sorted(pids - {ABSENT})
        ranks_in_names = (rank_in_name(file.profile or file.source.name) for file in files)
        self._rank = next((rank for rank in ranks_in_names if rank is not None), None)
        # A process with several ranks has an unknown one.
        pairs = {pair for part in parts for pair in part.ranks}
        counts = Counter(pid for pid, _ in pairs)
        self._ranks = {pid: rank for pid, rank in pairs if counts[pid] == 1 and 0 <= rank < 2**31}
        self._resolution_ns = 1
        self._repeated: list[str] = []
        self._unlinked: Counter[str] = Counter()  # calls by report
        self._ordinals: dict[int, int] = {}  # by device
        self._has_unknown_process = False

    def trace(self) -> Trace | None:
        """Return the trace, None if the files have no record."""
        for pid in self._pids:
            self._process(pid)
        used: dict[str, str] = {}  # by table of records, or kind of totals: the report used for it
        for part in self._parts:
            self._add_records(part, used)
        for part in self._parts:
            self._add_totals(part, used)
        if not any(table.count for table in self.builder.tables.values()):
            return None
        tables = self.builder.finish()
        events = {part.report.name: part.rows for part in self._parts}
        # The bytes of a file with several profiles count for the first of them.
        sizes = [
            (None, None) if file.is_further else (file.source.stored_bytes, file.source.text_bytes)
            for file in self.files
        ]
        source = Source(
            format=FORMAT,
            files=tuple(SourceFile(f.name, *s) for f, s in zip(self.files, sizes, strict=True)),
            tool="Nsight Systems (nsys stats)",
            facts={"reports": ", ".join(events)},
            event_counts={name: count for name, count in sorted(events.items()) if count},
            resolution_ns=self._resolution_ns,
        )
        return Trace(source, tables, tuple(self._notes(tables)))

    def _process(self, pid: int) -> int:
        """Return the trace's number of a process; an unknown one (ABSENT) is the only known one."""
        is_assigned = pid == ABSENT and len(self._pids) == 1
        likely_pid = self._pids[0] if is_assigned else pid
        self._has_unknown_process |= likely_pid == ABSENT
        known_pid = None if likely_pid == ABSENT else likely_pid
        rank = self._ranks.get(likely_pid, self._rank)
        facts = trace_builder.ProcessFacts(self.files[0].name, rank, None, None, known_pid)
        return self.builder.process(known_pid, facts)

    def _add_records(self, part: ReportPart, used: dict[str, str]) -> None:
        """Add a report's records to tables that no better report has filled; update `used`."""
        if part.report.records == "launches" and "activities" in used and "calls" in part.tables:
            count = part.tables["calls"].count
            self._link(part)
            if count and not part.tables["calls"].count:
                self._unlinked[part.report.name] = count
                return
        filled = [name for name in _RECORDS if name in part.tables and part.tables[name].count]
        # Each report of marks has other marks: all are used.
        new = [name for name in filled if name == "marks" or name not in used]
        if filled and not new:
            self._repeated.append(part.report.name)
        for name in new:
            table = part.tables.pop(name)
            for _, columns in table.pieces:
                pids = np.atleast_1d(columns.get("process", ABSENT))
                columns["process"] = compact(by_distinct(pids, lambda pid, _: self._process(pid)))
            if name == "activities":
                self._number_devices(list(part.devices), table)
                self._resolution_ns = part.resolution_ns or 1
            self.builder[name].absorb(table)
        # Marks on the GPU replace only sums of such marks (see `_TIMELINES`).
        is_projected = part.report.name == "nvtx_gpu_proj_trace"
        used |= {_PROJECTED if is_projected else name: part.report.name for name in new}

    def _link(self, part: ReportPart) -> None:
        """Link the calls of a report to the same kernels of a better one; drop the other calls.

        Kernels are the same that begin and end together on one GPU, if no other work does.
        """
        held, own, calls = (
            self.builder["activities"],
            part.tables["activities"],
            part.tables["calls"],
        )
        self._number_devices(list(part.devices), own)
        both = [np.append(held.column(c), own.column(c)) for c in ("start_ns", "dur_ns", "device")]
        both[2] = by_distinct(both[2], lambda device, _: self._ordinals.get(device, ABSENT))
        kinds = held.names["kind"]
        own_kind = kinds.codes(own.names["kind"])[own.column("kind")]
        group, _ = group_rows([*both, np.append(held.column("kind"), own_kind)])
        of_held, of_own = np.split(group, [held.count])
        counts = (np.bincount(some, minlength=len(group))[of_own] for some in (of_held, of_own))
        is_same = np.all([count == 1 for count in counts], axis=0)
        row_of_group = np.full(len(group), -1)
        row_of_group[of_held] = np.arange(held.count)
        number, call = own.column("correlation"), calls.column("correlation")
        order = np.argsort(number)
        launched = order[np.minimum(np.searchsorted(number[order], call), len(order) - 1)]
        is_linked = (number[launched] == call) & is_same[launched]
        calls.replace("correlation", held.column("correlation")[row_of_group[of_own[launched]]])
        part.tables["calls"] = trace_builder.chosen(calls, is_linked)

    def _number_devices(self, texts: Sequence[str], table: TableBuilder) -> None:
        """Replace codes of device texts by device numbers in the column `device`, in place."""
        process = self._process(ABSENT)
        devices: dict[str, tuple[int, trace_builder.DeviceFacts]] = {}
        for text in texts:  # `NVIDIA H100 (0)`, or `0`
            match = _DEVICE.match(text)
            name, ordinal = (match[1].strip(), match[2]) if match else (text.strip(), text)
            is_number = ordinal.isascii() and ordinal.isdecimal() and len(ordinal) < 10
            product = name if name and not name.isdecimal() else None
            facts = trace_builder.DeviceFacts(product=product)
            devices[text] = (int(ordinal) if is_number else 0, facts)
        for text in sorted(texts, key=lambda text: (devices[text][0], text)):
            self.builder.device(text, process, *devices[text])
        # For a known text, `device` returns the number given above, whatever the ordinal.
        numbers = np.array([self.builder.device(text, process, 0) for text in texts], np.int64)
        ordinals = (devices[text][0] for text in texts)
        self._ordinals |= dict(zip(numbers.tolist(), ordinals, strict=True))
        for _, columns in table.pieces:
            columns["device"] = numbers[columns["device"]]

    def _add_totals(self, part: ReportPart, used: dict[str, str]) -> None:
        """Add a report's totals of kinds without records and without a better report.

        Sizes first fill in the bytes of times with the same kind and name. Updates `used`.
        """
        table, report = part.tables.get("totals"), part.report.name
        if table is None or not table.count:
            return
        if part.report.records == "sizes":
            times = self.builder["totals"]
            row_of_label = {label: row for row, label in enumerate(labels_of(times))}
            rows = np.array([row_of_label.get(label, -1) for label in labels_of(table)], np.int64)
            bytes_ = times.column("bytes").copy()
            bytes_[rows[rows >= 0]] = table.column("bytes")[rows >= 0]
            times.replace("bytes", bytes_)
            table = trace_builder.chosen(table, rows < 0)
        kinds = list(table.names["kind"])
        is_wanted = []
        for kind in kinds:
            other = used.get(kind)
            is_first = other is None or {other, report} <= _SIBLINGS  # siblings complete each other
            is_wanted.append(is_first and _TIMELINES[kind] not in used)
        codes = distinct(table.column("kind")).tolist()
        if codes and not any(is_wanted[code] for code in codes):
            self._repeated.append(report)
            return
        table = trace_builder.chosen(table, np.array(is_wanted, np.bool_)[table.column("kind")])
        for _, columns in table.pieces:
            columns["process"] = self._process(ABSENT)
        used |= {kinds[code]: report for code in codes if is_wanted[code]}
        self.builder["totals"].absorb(table)

    def _notes(self, tables: Mapping[str, pa.Table]) -> Iterator[Note]:
        """Yield the notes of a profile: on each of its files, then on the whole."""
        for file in self.files:
            bad_cells = Counter({"bad-cells": file.damage.bad_cells.total()})
            odd = sum((part.odd for part in file.parts), bad_cells)
            notes = [*text_notes(file.damage, file.source.cut), *NOTES.counted(odd, *_OF_ROWS)]
            if file.profile:  # named only if the file has several
                notes.append(NOTES.note("several-profiles"))
            if file.unread:
                titles = [printable(title, len(title)) for title in file.unread[:_MOST_NAMED]]
                listed = "; ".join(titles) + (", ..." if len(file.unread) > _MOST_NAMED else "")
                notes.append(NOTES.note("tables-unread", len(file.unread), titles=listed))
            notes += NOTES.counted(odd, "table-repeated")
            if odd["no-unit"]:
                notes.append(NOTES.note("unit-assumed"))
            notes += NOTES.counted(odd, "sizes-without-unit", "sizes-rounded")
            yield from (replace(note, file=file.name) for note in notes)
        name = self.files[0].name if len(self.files) == 1 else None
        yield from trace_builder.overflow_notes(self.builder.tables.values(), self.files[0].name)
        if self._rank is not None:
            yield rank_from_name([self._rank], name)
        notes = list[Note]()
        if self._repeated:
            reports = ", ".join(self._repeated)
            notes.append(NOTES.note("report-repeated", len(self._repeated), reports=reports))
        if self._unlinked:
            reports, count = ", ".join(self._unlinked), self._unlinked.total()
            notes.append(NOTES.note("calls-unlinked", count, reports=reports))
        has_calls = tables["calls"].num_rows > 0
        if not tables["activities"].num_rows:
            # With calls there is a timeline, but not of the GPU.
            has_only_totals = tables["totals"].num_rows and not has_calls
            notes.append(NOTES.note("no-timeline" if has_only_totals else "no-device-work"))
        elif self._has_unknown_process and len(self._pids) > 1:  # the GPU trace has no process ids
            notes.append(NOTES.note("process-unknown", len(self._pids)))
        elif not has_calls and not self._unlinked:
            notes.append(NOTES.note("no-calls"))
        yield from (replace(note, file=name) for note in notes)
