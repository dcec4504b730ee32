"""Puts the reports of one profile together: one trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.parsers.io import rank_in_name
from traceflops.parsers.nsight.stats.notes import ProfileOddities, profile_notes
from traceflops.parsers.nsight.stats.read import StatsFile
from traceflops.parsers.nsight.stats.rows import ReportPart
from traceflops.parsers.shared import DeviceFacts, Gathered, ProcessFacts, chosen
from traceflops.table import ABSENT, IntArray, Source, SourceFile, TableBuilder, Trace, group_rows

FORMAT: Final = "nsys stats"
_DEVICE: Final = re.compile(r"^(.*?)\s*\((\d{1,9})\)$")
_RECORDS: Final = ("activities", "calls", "marks")
_PROJECTED: Final = "projected marks"
_TIMELINES: Final = {
    "kernel": "activities",
    "memcpy": "activities",
    "memset": "activities",
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


class Assembly:
    """Makes the trace of a profile."""

    def __init__(self, files: Sequence[StatsFile]) -> None:
        self.files = files
        self.gathered = Gathered()
        self.oddities = ProfileOddities()
        self._pids: list[int] = []
        self._rank: int | None = None
        self._resolution_ns = 1
        self._ranks: dict[int, int] = {}

    def trace(self) -> Trace | None:
        """Return the trace; None where there is no record in the files."""
        last = len(_PLACES)
        parts = sorted(self._parts(), key=lambda one: _PLACES.get(one[1].report.name, last))
        self._pids = sorted({pid for _, part in parts for pid in _pids(part) if pid != ABSENT})
        self._rank = self._rank_in_names()
        self._ranks = _ranks(part for _, part in parts)
        for pid in self._pids:
            self._process(pid)
        taken: dict[str, str] = {}
        for _, part in parts:
            self._add_records(part, taken)
        for _, part in parts:
            self._add_totals(part, taken)
        if not any(table.count for table in self.gathered.tables.values()):
            return None
        events = Counter({part.report.name: part.rows for _, part in parts})
        self.oddities.overflowed = tuple(self.gathered.overflowed)
        tables = self.gathered.finish()
        notes = tuple(profile_notes(self.files, tables, self.oddities))
        return Trace(self._source(events), tables, notes)

    def _parts(self) -> Iterator[tuple[StatsFile, ReportPart]]:
        for file in self.files:
            for part in file.parts:
                yield file, part

    def _rank_in_names(self) -> int | None:
        found = (rank_in_name(file.profile or file.source.name) for file in self.files)
        rank = next((one for one in found if one is not None), None)
        self.oddities.rank = rank
        return rank

    def _process(self, pid: int | None) -> int:
        rank = self._ranks.get(ABSENT if pid is None else pid, self._rank)
        facts = ProcessFacts(self.files[0].name, rank, None, None, pid)
        return self.gathered.process(pid, facts)

    def _add_records(self, part: ReportPart, taken: dict[str, str]) -> None:
        """Add the records of a report, of tables that no better report has filled."""
        if "activities" in taken and "calls" not in taken and part.report.records == "launches":
            kernels = part.tables.pop("activities", None)
            if kernels is not None and "calls" in part.tables:
                give_ids(part.tables["calls"], kernels, self.gathered["activities"])
        wanted = [name for name in _RECORDS if name in part.tables and part.tables[name].count]
        fresh = [name for name in wanted if name == "marks" or name not in taken]
        if wanted and not fresh:
            self.oddities.repeated.append(part.report.name)
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
            pids = np.asarray(columns.get("process", ABSENT))
            if pids.ndim == 0:
                columns["process"] = self._number(int(pids))
                continue
            distinct, place = np.unique(pids, return_inverse=True)
            columns["process"] = np.array([self._number(p) for p in distinct.tolist()])[place]

    def _number(self, pid: int) -> int:
        """Return the number of a process; without an id that of the only one there is."""
        if pid != ABSENT:
            return self._process(pid)
        if len(self._pids) == 1:
            return self._process(self._pids[0])
        self.oddities.processes = len(self._pids)
        return self._process(None)

    def _place_devices(self, texts: Sequence[str], table: TableBuilder) -> None:
        numbers: dict[str, int] = {}
        for text in sorted(texts, key=lambda one: (_local_id(one), one)):
            product, local = _DEVICE.match(text), _local_id(text)
            name = (product[1] if product else text).strip()
            facts = DeviceFacts(product=name if name and not name.isdecimal() else None)
            numbers[text] = self.gathered.device(text, self._first_process(), local, facts)
        codes = np.array([numbers[text] for text in texts], np.int64)
        for _, columns in table.pieces:
            columns["device"] = codes[columns["device"]]

    def _first_process(self) -> int:
        return self._number(ABSENT) if len(self._pids) != 1 else self._process(self._pids[0])

    def _add_totals(self, part: ReportPart, taken: dict[str, str]) -> None:
        """Add the sums of what no record and no better report tells; sizes to sums of times."""
        table = part.tables.get("totals")
        if table is None or not table.count:
            return
        if part.report.records == "sizes":
            table = with_sizes(self.gathered["totals"], table)
        kinds = list(table.names["kind"])
        wanted = [not self._is_told(kind, part.report.name, taken) for kind in kinds]
        used = np.unique(table.column("kind")).tolist()
        if used and not any(wanted[code] for code in used):
            self.oddities.repeated.append(part.report.name)
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

    def _source(self, events: Counter[str]) -> Source:
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


def _pids(part: ReportPart) -> list[int]:
    found: list[IntArray] = [
        np.unique(part.tables[name].column("process")) for name in _RECORDS if name in part.tables
    ]
    return np.concatenate(found).tolist() if found else []


def _ranks(parts: Iterable[ReportPart]) -> dict[int, int]:
    """Return the rank of each process id that is said to be of one only."""
    found: dict[int, set[int]] = {}
    for part in parts:
        for pid, ranks in part.ranks.items():
            found.setdefault(pid, set()).update(ranks)
    return {pid: min(r) for pid, r in found.items() if len(r) == 1 and 0 <= min(r) < _MOST_RANKS}


def _local_id(text: str) -> int:
    found = _DEVICE.match(text)
    if found is not None:
        return int(found[2])
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


# What one report says of the records of another: calls of kernels, sizes of copies.


def give_ids(calls: TableBuilder, kernels: TableBuilder, activities: TableBuilder) -> None:
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
    launch, one = np.unique(kernels.column("correlation")[known], return_index=True)
    calls.replace(
        "correlation", _looked_up(calls.column("correlation"), launch, id_of[here][known][one])
    )


def _looked_up(values: IntArray, keys: IntArray, found: IntArray) -> IntArray:
    """Return what stands for each value by sorted keys; ABSENT for others."""
    if not len(keys):
        return np.full(len(values), ABSENT, np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.where(keys[at] == values, found[at], ABSENT)


def with_sizes(totals: TableBuilder, sizes: TableBuilder) -> TableBuilder:
    """Put sizes of copies to the sums of their times; return those of other copies."""
    kinds, names = ([*totals.names[c]] for c in ("kind", "name"))
    own = zip(totals.column("kind").tolist(), totals.column("name").tolist(), strict=True)
    place = {(kinds[kind], names[name]): row for row, (kind, name) in enumerate(own)}
    kinds, names = ([*sizes.names[c]] for c in ("kind", "name"))
    theirs = zip(sizes.column("kind").tolist(), sizes.column("name").tolist(), strict=True)
    rows = np.array([place.get((kinds[k], names[n]), -1) for k, n in theirs], np.int64)
    values = totals.column("bytes").copy()
    values[rows[rows >= 0]] = sizes.column("bytes")[rows >= 0]
    totals.replace("bytes", values)
    return chosen(sizes, rows < 0)
