"""Puts the reports of one profile together: one trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.builder import TableBuilder
from traceflops.columns import IntArray
from traceflops.parsers.csvfiles.parts import chosen
from traceflops.parsers.filenames import rank_in_name
from traceflops.parsers.gathered import DeviceFacts, Gathered, ProcessFacts
from traceflops.parsers.nsight.stats.notes import Told, profile_notes
from traceflops.parsers.nsight.stats.read import StatsFile
from traceflops.parsers.nsight.stats.rows import Part
from traceflops.rows import ABSENT
from traceflops.trace import Source, SourceFile, Trace

FORMAT: Final = "nsys stats"
_DEVICE: Final = re.compile(r"^(.*?)\s*\((\d{1,9})\)$")
_RECORDS: Final = ("activities", "calls", "marks")
_TIMELINES: Final = {
    "kernel": "activities",
    "memcpy": "activities",
    "memset": "activities",
    "call": "calls",
    "mark": "marks",
}
"""The table with the records whose totals are of each kind."""
_ORDER: Final = (
    *("cuda_gpu_trace", "cuda_api_trace", "cuda_kern_exec_trace"),
    *("nvtx_pushpop_trace", "nvtx_startend_trace", "nvtx_gpu_proj_trace"),
    *("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_api_sum", "nvtx_sum"),
    *("cuda_api_gpu_sum", "cuda_kern_exec_sum", "nvtx_gpu_proj_sum", "cuda_gpu_mem_size_sum"),
)
"""Reports that say most first: of each kind of record one of them counts."""
_PLACES: Final = {name: place for place, name in enumerate(_ORDER)}


class Assembly:
    """Makes the trace of a profile."""

    def __init__(self, files: Sequence[StatsFile]) -> None:
        self.files = files
        self.gathered = Gathered()
        self.told = Told()
        self._pids: list[int] = []
        self._rank: int | None = None

    def trace(self) -> Trace | None:
        """Return the trace; None where there is no record in the files."""
        last = len(_PLACES)
        parts = sorted(self._parts(), key=lambda one: _PLACES.get(one[1].report.name, last))
        self._pids = sorted({pid for _, part in parts for pid in _pids(part) if pid != ABSENT})
        self._rank = self._rank_in_names()
        for pid in self._pids:
            self._process(pid)
        taken: set[str] = set()
        for file, part in parts:
            self._add_records(file, part, taken)
        for _, part in parts:
            self._add_totals(part, taken)
        if not any(table.count for table in self.gathered.tables.values()):
            return None
        events = Counter({part.report.name: part.rows for _, part in parts})
        self.told.overflowed = tuple(self.gathered.overflowed)
        tables = self.gathered.finish()
        notes = tuple(profile_notes(self.files, tables, self.told))
        return Trace(self._source(events), tables, notes)

    def _parts(self) -> Iterator[tuple[StatsFile, Part]]:
        for file in self.files:
            for part in file.parts.values():
                yield file, part

    def _rank_in_names(self) -> int | None:
        found = (rank_in_name(file.source.name) for file in self.files)
        rank = next((one for one in found if one is not None), None)
        self.told.rank = rank
        return rank

    def _process(self, pid: int | None) -> int:
        facts = ProcessFacts(self.files[0].source.name, self._rank, None, None, pid)
        return self.gathered.process(pid, facts)

    def _add_records(self, file: StatsFile, part: Part, taken: set[str]) -> None:
        """Add the records of a report, of tables that no better report has filled."""
        filled = set()
        for name in _RECORDS:
            table = part.tables.get(name)
            if table is None or not table.count:
                continue
            if name in taken and name != "marks":
                self.told.repeated.append(part.report.name)
                continue
            filled.add(name)
            self._place_processes(table)
            if name == "activities":
                self._place_devices(part)
            self.gathered[name].absorb(part.tables.pop(name))
        taken |= filled

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
        self.told.processes = len(self._pids)
        return self._process(None)

    def _place_devices(self, part: Part) -> None:
        numbers: dict[str, int] = {}
        texts = list(part.devices)
        for text in sorted(texts, key=lambda one: (_local_id(one), one)):
            product, local = _DEVICE.match(text), _local_id(text)
            name = (product[1] if product else text).strip()
            facts = DeviceFacts(product=name if name and not name.isdecimal() else None)
            numbers[text] = self.gathered.device(text, self._first_process(), local, facts)
        codes = np.array([numbers[text] for text in texts], np.int64)
        for _, columns in part.tables["activities"].pieces:
            columns["device"] = codes[columns["device"]]

    def _first_process(self) -> int:
        return self._number(ABSENT) if len(self._pids) != 1 else self._process(self._pids[0])

    def _add_totals(self, part: Part, taken: set[str]) -> None:
        """Add the sums of what no record and no better report tells."""
        table = part.tables.get("totals")
        if table is None or not table.count:
            return
        kinds = list(table.names["kind"])
        wanted = [_TIMELINES[kind] not in taken and kind not in taken for kind in kinds]
        used = np.unique(table.column("kind")).tolist()
        if not any(wanted[code] for code in used):
            return
        table = chosen(table, np.array(wanted, np.bool_)[table.column("kind")])
        for _, columns in table.pieces:
            columns["process"] = self._number(ABSENT)
        taken |= {kinds[code] for code in used}
        self.gathered["totals"].absorb(table)

    def _source(self, events: Counter[str]) -> Source:
        return Source(
            format=FORMAT,
            files=tuple(
                SourceFile(f.source.name, f.source.stored_bytes, f.source.text_bytes)
                for f in self.files
            ),
            tool="Nsight Systems (nsys stats)",
            facts={"reports": ", ".join(events)},
            event_counts={name: count for name, count in sorted(events.items()) if count},
        )


def _pids(part: Part) -> list[int]:
    found: list[IntArray] = [
        np.unique(part.tables[name].column("process")) for name in _RECORDS if name in part.tables
    ]
    return np.concatenate(found).tolist() if found else []


def _local_id(text: str) -> int:
    found = _DEVICE.match(text)
    if found is not None:
        return int(found[2])
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
