"""Puts the reports of one profile together: one trace, and what to say of how it was made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.io import Lookup, NoteTable, by_distinct, rank_in_name, text_notes
from traceflops.parsers.nsight.stats_read import StatsFile, labels_of
from traceflops.parsers.nsight.stats_rows import ReportPart
from traceflops.parsers.shared import DeviceFacts, Gathered, ProcessFacts, chosen, overflow_notes
from traceflops.remedies import NSYS
from traceflops.table import (
    ABSENT,
    Note,
    Source,
    SourceFile,
    TableBuilder,
    Trace,
    compact,
    distinct,
    group_rows,
    rank_from_name,
)

FORMAT: Final = "nsys stats"
_DEVICE: Final = re.compile(r"^(.*?)\((\d{1,9})\)$")
_RECORDS: Final = ("activities", "calls", "marks")
_PROJECTED: Final = "projected marks"
_TIMELINES: Final = {
    **dict.fromkeys(("kernel", "memcpy", "memset"), "activities"),
    "call": "calls",
    "mark": "marks",
    "gpu_mark": _PROJECTED,
}
"""The table with the records whose totals are of each kind."""
_ORDER: Final = (
    *("cuda_gpu_trace", "cuda_api_trace", "cuda_kern_exec_trace"),
    *("nvtx_pushpop_trace", "nvtx_startend_trace", "nvtx_gpu_proj_trace"),
    *("cuda_gpu_kern_gb_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum"),
    *("nvtx_sum", "nvtx_pushpop_sum", "nvtx_startend_sum"),
    *("cuda_api_gpu_sum", "cuda_kern_exec_sum", "nvtx_gpu_proj_sum", "cuda_gpu_mem_size_sum"),
)
"""Reports that say most first: of each kind of record one of them counts."""
_SIBLINGS: Final = frozenset({"nvtx_pushpop_sum", "nvtx_startend_sum"})
"""Reports of one kind that tell of different records."""
_MOST_RANKS: Final = 2**31
_PLACES: Final = {name: place for place, name in enumerate(_ORDER)}

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
        "nested-sums": (
            "{count} [row|rows] of kernels by NVTX range ignored: nested ranges repeat a kernel."
        ),
        "tables-unread": (
            "{count} [table|tables] skipped: unknown report or damaged header ({titles})."
        ),
        "table-repeated": "{count} [table|tables] ignored: every number repeats an earlier table.",
        "report-repeated": "{reports} [repeats|repeat] another report: ignored.",
        "file-not-read": "{name} could not be read: {reason}.",
    },
    assumed={
        "several-profiles": (
            "The file holds reports of several profiles. Each is treated as a separate run or rank."
        ),
        "unit-assumed": "The time columns name no unit: read as ns, as older releases write them.",
        "sizes-rounded": (
            "Copy sizes are rounded to three decimals of a large unit. Those printed as 0 are "
            "unknown."
        ),
    },
    missing={
        "sizes-without-unit": (
            "The size columns name no unit, and it differs between releases: copy sizes are "
            "unknown."
        ),
        "process-unknown": (
            "The GPU trace does not say which of {count} processes ran its work, and their "
            "correlation ids repeat. The work is shown as a separate process without links to "
            "calls; give the SQLite export (nsys export --type sqlite)."
        ),
        "no-calls": (
            "The report has no API calls, so launch calls and idle causes are unknown. Give "
            "cuda_api_trace beside it, or the SQLite export (nsys export --type sqlite)."
        ),
        "no-timeline": (
            "The file holds only totals by name: shares of kernels, but no timeline, idle time, "
            "overlap, steps or MFU. Give the SQLite export (nsys export --type sqlite) or the "
            "report cuda_gpu_trace."
        ),
        "no-device-work": (
            f"The reports have no GPU operations. Give cuda_gpu_trace, or record with {NSYS}."
        ),
        "no-rows": "The file has no records.",
    },
)


class Assembly:
    """Makes the trace of a profile."""

    def __init__(self, files: Sequence[StatsFile]) -> None:
        self.files = files
        self.gathered = Gathered()
        parts = [part for file in files for part in file.parts]
        self._parts = sorted(
            parts, key=lambda a_part: _PLACES.get(a_part.report.name, len(_PLACES))
        )
        self._pids = sorted({pid for part in parts for pid in _pids(part) if pid != ABSENT})
        named = (rank_in_name(file.profile or file.source.name) for file in files)
        self._rank = next((rank for rank in named if rank is not None), None)
        self._ranks = _ranks(parts)
        self._resolution_ns = 1
        self._repeated: list[str] = []
        self._is_of_nobody = False

    def trace(self) -> Trace | None:
        """Return the trace; None where there is no record in the files."""
        for pid in self._pids:
            self._process(pid)
        taken: dict[str, str] = {}
        for part in self._parts:
            self._add_records(part, taken)
        for part in self._parts:
            self._add_totals(part, taken)
        if not any(table.count for table in self.gathered.tables.values()):
            return None
        overflowed = self.gathered.overflowed
        tables = self.gathered.finish()
        return Trace(self._source(), tables, tuple(self._notes(tables, overflowed)))

    def _process(self, pid: int | None) -> int:
        rank = self._ranks.get(ABSENT if pid is None else pid, self._rank)
        facts = ProcessFacts(self.files[0].name, rank, None, None, pid)
        return self.gathered.process(pid, facts)

    def _add_records(self, part: ReportPart, taken: dict[str, str]) -> None:
        """Add the records of a report, of tables that no better report has filled."""
        if "activities" in taken and "calls" not in taken and part.report.records == "launches":
            kernels = part.tables.pop("activities", None)
            if kernels is not None and "calls" in part.tables:
                _give_ids(part.tables["calls"], kernels, self.gathered["activities"])
        wanted = [name for name in _RECORDS if name in part.tables and part.tables[name].count]
        fresh = [name for name in wanted if name == "marks" or name not in taken]
        if wanted and not fresh:
            self._repeated.append(part.report.name)
        for name in fresh:
            table = part.tables.pop(name)
            self._place_processes(table)
            if name == "activities":
                self._place_devices(list(part.devices), table)
                self._resolution_ns = part.resolution_ns or 1
            self.gathered[name].absorb(table)
        is_projected = part.report.name == "nvtx_gpu_proj_trace"
        taken |= {_PROJECTED if is_projected else name: part.report.name for name in fresh}

    def _place_processes(self, table: TableBuilder) -> None:
        """Put the numbers of processes in the place of their ids."""
        for _, columns in table.pieces:
            pids = np.atleast_1d(columns.get("process", ABSENT))
            columns["process"] = compact(by_distinct(pids, lambda pid, _: self._number(pid)))

    def _number(self, pid: int) -> int:
        """Return the number of a process; without an id that of the only one there is."""
        if pid == ABSENT and len(self._pids) == 1:
            return self._process(self._pids[0])
        self._is_of_nobody |= pid == ABSENT
        return self._process(None if pid == ABSENT else pid)

    def _place_devices(self, texts: Sequence[str], table: TableBuilder) -> None:
        process = self._number(ABSENT)
        known = {text: _device(text) for text in texts}
        for text in sorted(texts, key=lambda a_text: (known[a_text][0], a_text)):
            self.gathered.device(text, process, *known[text])
        codes = np.array([self.gathered.device(text, process, 0) for text in texts], np.int64)
        for _, columns in table.pieces:
            columns["device"] = codes[columns["device"]]

    def _add_totals(self, part: ReportPart, taken: dict[str, str]) -> None:
        """Add the sums of what no record and no better report tells; sizes to sums of times."""
        table = part.tables.get("totals")
        if table is None or not table.count:
            return
        if part.report.records == "sizes":
            table = _with_sizes(self.gathered["totals"], table)
        kinds = list(table.names["kind"])
        wanted = [not self._is_told(kind, part.report.name, taken) for kind in kinds]
        used = np.unique(table.column("kind")).tolist()
        if used and not any(wanted[code] for code in used):
            self._repeated.append(part.report.name)
            return
        table = chosen(table, np.array(wanted, np.bool_)[table.column("kind")])
        for _, columns in table.pieces:
            columns["process"] = self._number(ABSENT)
        taken |= {kinds[code]: part.report.name for code in used if wanted[code]}
        self.gathered["totals"].absorb(table)

    def _is_told(self, kind: str, report: str, taken: Mapping[str, str]) -> bool:
        """Return whether a better report has the records of a kind, or their sums."""
        other = taken.get(kind)
        return _TIMELINES[kind] in taken or not (other is None or {other, report} <= _SIBLINGS)

    def _source(self) -> Source:
        events = {part.report.name: part.rows for part in self._parts}
        return Source(
            format=FORMAT,
            files=tuple(
                SourceFile(f.name, None, None)
                if f.is_further
                else SourceFile(f.name, f.source.stored_bytes, f.source.text_bytes)
                for f in self.files
            ),
            tool="Nsight Systems (nsys stats)",
            facts={"reports": ", ".join(events)},
            event_counts={name: count for name, count in sorted(events.items()) if count},
            resolution_ns=self._resolution_ns,
        )

    def _notes(self, tables: Mapping[str, pa.Table], overflowed: Sequence[str]) -> Iterator[Note]:
        """Give the notes of a profile: those of its files, then those of the whole."""
        for file in self.files:
            yield from (replace(note, file=file.name) for note in _file_notes(file))
        name = self.files[0].name if len(self.files) == 1 else None
        yield from overflow_notes(overflowed, self.files[0].name)
        if self._rank is not None:
            yield rank_from_name([self._rank], name)
        yield from (replace(note, file=name) for note in self._content_notes(tables))

    def _content_notes(self, tables: Mapping[str, pa.Table]) -> Iterator[Note]:
        if self._repeated:
            reports = ", ".join(self._repeated)
            yield NOTES.note("report-repeated", len(self._repeated), reports=reports)
        has_calls = tables["calls"].num_rows > 0
        if not tables["activities"].num_rows:
            is_summed = tables["totals"].num_rows and not has_calls
            yield NOTES.note("no-timeline" if is_summed else "no-device-work")
        elif self._is_of_nobody and len(self._pids) > 1:
            yield NOTES.note("process-unknown", len(self._pids))
        elif not has_calls:
            yield NOTES.note("no-calls")


def _file_notes(file: StatsFile) -> Iterator[Note]:
    yield from text_notes(file.damage, file.source.cut)
    odd = file.damage.with_bad_cells(part.odd for part in file.parts)
    yield from NOTES.counted(
        odd,
        *("bad-cells", "no-time", "no-duration", "negative-duration", "other-calls", "beyond"),
        "nested-sums",
    )
    if file.profile:
        yield NOTES.note("several-profiles")
    if file.unread:
        yield NOTES.note("tables-unread", len(file.unread), titles=_listed(file.unread))
    yield from NOTES.counted(odd, "table-repeated")
    if odd["no-unit"]:
        yield NOTES.note("unit-assumed")
    yield from NOTES.counted(odd, "sizes-without-unit", "sizes-rounded")


def _listed(titles: Sequence[str]) -> str:
    some = "; ".join("".join(c if c.isprintable() else "?" for c in text) for text in titles[:3])
    return f"{some}, ..." if len(titles) > 3 else some


def _pids(part: ReportPart) -> set[int]:
    tables = [part.tables[name] for name in _RECORDS if name in part.tables]
    return {pid for table in tables for pid in distinct(table.column("process")).tolist()}


def _ranks(parts: Iterable[ReportPart]) -> dict[int, int]:
    """Return the rank of each process id that is said to be of one only."""
    pairs = {pair for part in parts for pair in part.ranks}
    times = Counter(pid for pid, _ in pairs)
    return {pid: rank for pid, rank in pairs if times[pid] == 1 and 0 <= rank < _MOST_RANKS}


def _device(text: str) -> tuple[int, DeviceFacts]:
    """Return the number and the facts of a device that is called `NVIDIA H100 (0)`, or `0`."""
    match = _DEVICE.match(text)
    name, number = (match[1].strip(), match[2]) if match else (text.strip(), text)
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    product = name if name and not name.isdecimal() else None
    return int(number) if is_number else 0, DeviceFacts(product=product)


def _give_ids(calls: TableBuilder, kernels: TableBuilder, activities: TableBuilder) -> None:
    """Give calls the ids of the kernels they launched, as another report has these.

    `kernels` are those of the report with the calls, which numbers them itself. A kernel is known
    again by its times, where only one of each report has them; other calls get no id.
    """
    group, first = group_rows(
        [
            np.concatenate([table.column(name) for table in (activities, kernels)])
            for name in ("start_ns", "dur_ns")
        ]
    )
    there, here = group[: activities.count], group[activities.count :]
    alone = [np.bincount(side, minlength=len(first)) == 1 for side in (there, here)]
    id_of = np.full(len(first), ABSENT, np.int64)
    id_of[there] = activities.column("correlation")
    known = (alone[0] & alone[1])[here] & (id_of[here] != ABSENT)
    launched = Lookup(kernels.column("correlation")[known], id_of[here][known])
    calls.replace("correlation", launched(calls.column("correlation")))


def _with_sizes(totals: TableBuilder, sizes: TableBuilder) -> TableBuilder:
    """Put sizes of copies to the sums of their times; return those of other copies."""
    place = {label: row for row, label in enumerate(labels_of(totals))}
    rows = np.array([place.get(label, -1) for label in labels_of(sizes)], np.int64)
    values = totals.column("bytes").copy()
    values[rows[rows >= 0]] = sizes.column("bytes")[rows >= 0]
    totals.replace("bytes", values)
    return chosen(sizes, rows < 0)
