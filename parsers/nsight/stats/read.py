"""Reads one file of reports of `nsys stats`: its sections, their tables, and whose they are.

A file may hold the reports of several profiles, one after the other: runs or ranks, which are
never added up. A line before each table names its profile and report, unless `nsys stats` was asked
to be quiet; and profiles of several folders are often called the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import PureWindowsPath
from typing import Final

import numpy as np

from traceflops.parsers.io import TEXT_BLOCK_BYTES, ByteSource, CsvText, Cut, Damage, Tables
from traceflops.parsers.nsight.stats.console import Console
from traceflops.parsers.nsight.stats.layouts import STATS_TABLES, StatsTable, report_named
from traceflops.parsers.nsight.stats.rows import ReportPart, add_rows
from traceflops.parsers.nsight.stats.text import Filter, Filtered, is_row, plain_tables, whole_lines
from traceflops.table import ABSENT, IntArray

_RECORDS: Final = ("activities", "calls", "marks")
_SAID: Final = re.compile(
    rb"^(?:Processing \[([^\]\r\n]{1,4096})\] with \[([^\]\r\n]{0,4096})\]"
    rb"|Running \[([^\]\r\n]{1,4096}\.py)\s+([^\]\r\n]{1,4096})\])[^\r\n]*",
    re.M,
)
_BEGINNINGS: Final = (b"Processing [", b"Running [")
_MOST: Final = 500


@dataclass(slots=True)
class StatsFile:
    """What a file says of one profile; `profile` names it where the file has several of them.

    `unread` are titles of tables that are not known here, or whose header was lost.
    """

    source: ByteSource
    profile: str = ""
    parts: list[ReportPart] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)
    unread: Sequence[str] = ()
    is_further: bool = False

    @property
    def name(self) -> str:
        """Return the file's name, and the profile of several."""
        return f"{self.source.label} ({self.profile})" if self.profile else self.source.label


def read_stats(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> list[StatsFile]:
    """Return what a file says by profile; no part where it holds no report after all."""
    damage, console = Damage(), Console(STATS_TABLES)
    parts: list[ReportPart] = []
    for section in sections(source, STATS_TABLES, console):
        parts += _read(section, damage, block_bytes)
    damage.repeated_headers = 0  # each header begins a table of its own
    files = [
        StatsFile(source, name, mine, Damage(), is_further=place > 0)
        for place, (name, mine) in enumerate(profiles(parts).items())
    ] or [StatsFile(source)]
    files[0].damage, files[0].unread = damage, console.unread
    return files


def _read(section: Section, damage: Damage, block_bytes: int) -> list[ReportPart]:
    """Return the tables of a section; a header without rows is one, too."""
    text = CsvText(section.source, STATS_TABLES, block_bytes, damage)
    parts: list[ReportPart] = []
    plan = None
    for block in text:
        table: StatsTable = block.plan.what
        if block.plan is not plan:
            plan = block.plan
            parts.append(ReportPart(report_named(table.report, section.report), section.profile))
        add_rows(Cut(block.rows, block.columns), table, parts[-1])
    if not parts and text.plan is not None:
        parts.append(
            ReportPart(report_named(text.plan.what.report, section.report), section.profile)
        )
    return parts


# The sections of a file, each of one profile.


@dataclass(frozen=True, slots=True)
class Section:
    """Some tables of one profile; `profile` and `report` are empty where nothing names them."""

    profile: str
    report: str
    source: ByteSource


@dataclass(frozen=True, slots=True)
class _Said:
    number: int
    profile: str = ""
    report: str = ""


def sections(source: ByteSource, tables: Tables, console: Console) -> Iterator[Section]:
    """Yield the sections of a source, each to be read before the next."""
    for said, blocks in groupby(_said(source), key=itemgetter(0)):
        console.begin(said.report)
        plain = plain_tables((text for _, text in blocks), tables, console)
        yield Section(said.profile, said.report, Filtered(source, _given(plain)))
    console.begin("")


def _given(blocks: Iterator[bytes]) -> Filter:
    """Return a filter that has its blocks already."""
    return lambda _: blocks


def _said(source: ByteSource) -> Iterator[tuple[_Said, bytes]]:
    """Yield the content, each part behind what the line before it says."""
    said = _Said(0)
    for place, block in enumerate(whole_lines(source)):
        if not place:
            block = block.removeprefix(b"\xef\xbb\xbf")
        at = 0
        if any(word in block for word in _BEGINNINGS):
            for found in _SAID.finditer(block):
                if said.number >= _MOST or is_row(found[0]):
                    continue
                if found.start() > at:
                    yield said, block[at : found.start()]
                profile, script = (found[1], found[2]) if found[1] else (found[4], found[3])
                said = _Said(said.number + 1, _text(profile), _report(_text(script)))
                at = found.end()
        yield said, block[at:]


def _text(text: bytes) -> str:
    return text.decode(errors="replace").strip()


def _report(script: str) -> str:
    """Return the report that a script writes, by its path: reports/cuda_gpu_trace.py."""
    return PureWindowsPath(script).name.partition(".py")[0]


def shown_profile(profile: str) -> str:
    """Return the name of a profile without the folders it lay in."""
    return PureWindowsPath(profile).name


# Which tables of a file are of one profile, and which of another.


@dataclass(slots=True)
class _Held:
    """A table of a profile, the latest start of its records and the names of its sums."""

    part: ReportPart
    last_ns: int = ABSENT
    names: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._cover(self.part)

    def is_again(self, part: ReportPart) -> bool:
        """Return whether a table has the same records with the same figures."""
        counts = [{n: t.count for n, t in each.tables.items()} for each in (self.part, part)]
        return counts[0] == counts[1] and _figures(self.part) == _figures(part)

    def goes_on(self, part: ReportPart) -> bool:
        """Return whether a table is the rest: later records, or sums of further names."""
        if self.last_ns != ABSENT and (starts := _starts(part)) is not None:
            return int(np.min(starts)) >= self.last_ns
        return not self.names & _names_in(part)

    def absorb(self, part: ReportPart) -> None:
        """Add the rest of the table."""
        self._cover(part)
        self.part.absorb(part)

    def _cover(self, part: ReportPart) -> None:
        starts = _starts(part)
        if starts is not None:
            self.last_ns = max(self.last_ns, int(np.max(starts)))
        self.names |= _names_in(part)


@dataclass(slots=True)
class _Profile:
    name: str
    tables: dict[str, _Held] = field(default_factory=dict)

    def takes(self, part: ReportPart) -> bool:
        """Add a table; return False where it must be of another profile."""
        held = self.tables.get(part.report.name)
        if held is None:
            self.tables[part.report.name] = _Held(part)
        elif not any(table.count for table in part.tables.values()):
            held.part.odd.update(part.odd)
        elif held.is_again(part):
            held.part.odd["table-repeated"] += 1
        elif held.goes_on(part):
            held.absorb(part)
        else:
            return False
        return True


def profiles(parts: Sequence[ReportPart]) -> dict[str, list[ReportPart]]:
    """Return the tables of a file by profile, whose name is empty where there is only one.

    A table that stands there again, number by number, counts once. One that goes on where another
    of its kind ends is a part of that; any other with rows of the same report is of a profile of
    its own.
    """
    named = dict.fromkeys(part.profile for part in parts if part.profile)
    only = next(iter(named)) if len(named) == 1 else ""
    found: list[_Profile] = []
    current: dict[str, _Profile] = {}
    for part in parts:
        name = part.profile or only
        if name not in current or not current[name].takes(part):
            current[name] = _Profile(name)
            current[name].takes(part)
            found.append(current[name])
    return {
        name: [held.part for held in one.tables.values()]
        for name, one in zip(_names(found), found, strict=True)
    }


def _names(found: Sequence[_Profile]) -> list[str]:
    """Return a name for each profile that no other has."""
    if len(found) < 2:
        return [""] * len(found)
    names = [shown_profile(one.name) for one in found]
    times, seen = Counter(names), Counter[str]()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} {seen[name]}".strip() if times[name] > 1 or not name else name)
    return unique


def _figures(part: ReportPart) -> list[bytes]:
    """Return the figures of a table, which are the same in every report of the same records."""
    return [
        table.column(column).tobytes()
        for name, table in sorted(part.tables.items())
        for column in (
            ("count", "total_ns", "bytes") if name == "totals" else ("start_ns", "dur_ns")
        )
    ]


def _starts(part: ReportPart) -> IntArray | None:
    """Return when the records of a table begin, None where it has none."""
    table = next((part.tables[n] for n in _RECORDS if n in part.tables), None)
    return table.column("start_ns") if table is not None and table.count else None


def _names_in(part: ReportPart) -> set[tuple[str, str]]:
    table = part.tables.get("totals")
    if table is None or not table.count:
        return set()
    kinds, names = list(table.names["kind"]), list(table.names["name"])
    pairs = np.unique(np.stack([table.column("kind"), table.column("name")]), axis=1).T
    return {(kinds[kind], names[name]) for kind, name in pairs.tolist()}
