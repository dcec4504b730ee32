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
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import PureWindowsPath
from typing import Final

import numpy as np

from traceflops.parsers.io import TEXT_BLOCK_BYTES, ByteSource, CsvText, Cut, Damage, Plan
from traceflops.parsers.nsight.stats_layouts import STATS_TABLES, report_named
from traceflops.parsers.nsight.stats_rows import ReportPart, add_rows
from traceflops.parsers.nsight.stats_text import (
    Console,
    Filtered,
    is_row,
    plain_tables,
    whole_lines,
)
from traceflops.table import IntArray, TableBuilder

_RECORDS: Final = ("activities", "calls", "marks")
_FIGURES: Final = {"totals": ("count", "total_ns", "bytes")}
_SAID: Final = re.compile(
    rb"^(?:Processing \[([^\]\r\n]{1,4096})\] with \[([^\]\r\n]{0,4096})\]"
    rb"|Running \[([^\]\r\n]{1,4096}\.py)\s++([^\]\r\n]{1,4096})\])[^\r\n]*",
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


@dataclass(frozen=True, slots=True)
class _Said:
    """What a line before tables says of them; empty where nothing names them."""

    number: int
    profile: str = ""
    report: str = ""


def read_stats(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> list[StatsFile]:
    """Return what a file says by profile; no part where it holds no report after all."""
    damage, console = Damage(), Console(STATS_TABLES)
    parts: list[ReportPart] = []
    for said, section in _sections(source, console):
        parts += _read(said, CsvText(section, STATS_TABLES, block_bytes, damage))
    damage.repeated_headers = 0  # each header begins a table of its own
    files = [
        StatsFile(source, name, mine, Damage(), is_further=place > 0)
        for place, (name, mine) in enumerate(_profiles(parts).items())
    ] or [StatsFile(source)]
    files[0].damage, files[0].unread = damage, console.unread
    return files


def _read(said: _Said, text: CsvText) -> Iterator[ReportPart]:
    """Yield the tables of a section; a header without rows is one, too."""

    def begun(plan: Plan) -> ReportPart:
        return ReportPart(report_named(plan.what.report, said.report), said.profile)

    part, plan = None, None
    for block in text:
        if part is None or block.plan is not plan:
            plan, part = block.plan, begun(block.plan)
            yield part
        add_rows(Cut(block.rows, block.columns), block.plan.what, part)
    if part is None and text.plan is not None:
        yield begun(text.plan)


def _sections(source: ByteSource, console: Console) -> Iterator[tuple[_Said, ByteSource]]:
    """Yield the sections of a source, each of one profile and to be read before the next."""
    for said, blocks in groupby(_said(source), key=itemgetter(0)):
        console.begin(said.report)
        texts = (text for _, text in blocks)
        yield said, Filtered(source, partial(plain_tables, texts, console))
    console.begin("")


def _said(source: ByteSource) -> Iterator[tuple[_Said, bytes]]:
    """Yield the content, each part behind what the line before it says."""
    said = _Said(0)
    for place, block in enumerate(whole_lines(source)):
        if not place:
            block = block.removeprefix(b"\xef\xbb\xbf")
        at = 0
        if any(word in block for word in _BEGINNINGS):
            for match in _SAID.finditer(block):
                if said.number >= _MOST or is_row(match[0]):
                    continue
                if match.start() > at:
                    yield said, block[at : match.start()]
                profile, script = (match[1], match[2]) if match[1] else (match[4], match[3])
                report = PureWindowsPath(_text(script)).name.partition(".py")[0]
                said = _Said(said.number + 1, _text(profile), report)
                at = match.end()
        yield said, block[at:]


def _text(text: bytes) -> str:
    return text.decode(errors="replace").strip()


@dataclass(slots=True)
class _Profile:
    name: str
    tables: dict[str, ReportPart] = field(default_factory=dict)

    def takes(self, part: ReportPart) -> bool:
        """Add a table; return False where it must be of another profile."""
        held = self.tables.setdefault(part.report.name, part)
        if held is part:
            return True
        if not any(table.count for table in part.tables.values()):
            held.odd.update(part.odd)
        elif _figures(held) == _figures(part):
            held.odd["table-repeated"] += 1
        elif _goes_on(held, part):
            held.absorb(part)
        else:
            return False
        return True


def _goes_on(held: ReportPart, part: ReportPart) -> bool:
    """Return whether a table is the rest: later records, or sums of further names."""
    before, starts = _starts(held), _starts(part)
    if before is not None and starts is not None:
        return bool(np.min(starts) >= np.max(before))
    return not _names_in(held) & _names_in(part)


def _profiles(parts: Sequence[ReportPart]) -> dict[str, list[ReportPart]]:
    """Return the tables of a file by profile, whose name is empty where there is only one.

    A table that stands there again, number by number, counts once. One that goes on where another
    of its kind ends is a part of that; any other with rows of the same report is of a profile of
    its own.
    """
    named = dict.fromkeys(part.profile for part in parts if part.profile)
    only = next(iter(named)) if len(named) == 1 else ""
    separate: list[_Profile] = []
    current: dict[str, _Profile] = {}
    for part in parts:
        name = part.profile or only
        if name not in current or not current[name].takes(part):
            current[name] = _Profile(name)
            current[name].takes(part)
            separate.append(current[name])
    return {
        name: list(one.tables.values())
        for name, one in zip(_names(separate), separate, strict=True)
    }


def _names(profiles: Sequence[_Profile]) -> list[str]:
    """Return a name for each profile that no other has."""
    if len(profiles) < 2:
        return [""] * len(profiles)
    names = [PureWindowsPath(profile.name).name for profile in profiles]
    times, used = Counter(names), Counter[str]()
    unique = []
    for name in names:
        used[name] += 1
        unique.append(f"{name} {used[name]}".strip() if times[name] > 1 or not name else name)
    return unique


def _figures(part: ReportPart) -> list[tuple[str, bytes]]:
    """Return the figures of a table, which are the same in every report of the same records."""
    return [
        (name, table.column(column).tobytes())
        for name, table in sorted(part.tables.items())
        for column in _FIGURES.get(name, ("start_ns", "dur_ns"))
    ]


def _starts(part: ReportPart) -> IntArray | None:
    """Return when the records of a table begin, None where it has none."""
    table = next((part.tables[n] for n in _RECORDS if n in part.tables), None)
    return table.column("start_ns") if table is not None and table.count else None


def _names_in(part: ReportPart) -> set[tuple[str, str]]:
    return set(labels_of(part.tables["totals"])) if "totals" in part.tables else set()


def labels_of(totals: TableBuilder) -> list[tuple[str, str]]:
    """Return the kind and the name of each sum."""
    kinds, names = list(totals.names["kind"]), list(totals.names["name"])
    codes = zip(totals.column("kind").tolist(), totals.column("name").tolist(), strict=True)
    return [(kinds[kind], names[name]) for kind, name in codes]
