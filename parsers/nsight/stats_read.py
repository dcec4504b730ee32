"""Reads one file of `nsys stats` reports: its tables, and the profile that each belongs to.

A profile is one recorded run or rank. A file may have the reports of several profiles, which are
never added up. Unless nsys stats ran with --quiet, a line (heading) before each table names its
profile and report; several profiles may have the same name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import PureWindowsPath
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from traceflops.parsers.io.csv_lines import Damage
from traceflops.parsers.io.csv_text import TEXT_BLOCK_BYTES, CsvText, Plan
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.nsight import stats_text
from traceflops.parsers.nsight.stats_layouts import STATS_TABLES, report_named
from traceflops.parsers.nsight.stats_rows import ReportPart, add_rows
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import IntArray

_RECORDS: Final = ("activities", "calls", "marks")
_FIGURES: Final = {"totals": ("count", "total_ns", "bytes")}
"""Columns by which two tables of a report are compared; in other tables, the times."""
_HEADING: Final = re.compile(
    rb"^(?:Processing \[([^\]\r\n]{1,4096})\] with \[([^\]\r\n]{0,4096})\]"
    rb"|Running \[([^\]\r\n]{1,4096}\.py)\s++([^\]\r\n]{1,4096})\]"
    rb"|(?:\[\d{1,4}/\d{1,4}\] )?Executing '([^'\r\n]{1,200})' stats report)[^\r\n]*"
    rb"|^(CUDA|NVTX|Operating System) [\w -]{1,40} Statistics \(\w{1,20}\)[ \r]{0,9}$",
    re.M,
)
_STARTS: Final = (b"Processing [", b"Running [", b"Executing '", b" Statistics (")


class StatsFile(Struct):
    """The reports (`parts`) of one profile in a file; `profile` is its name if there are several.

    `unread` are titles of unknown tables. `is_further`: the file has a profile before this one.
    """

    source: ByteSource
    profile: str = ""
    parts: list[ReportPart] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)
    unread: Sequence[str] = ()
    is_further: bool = False

    @property
    def name(self) -> str:
        """The file's name, with the profile if the file has several."""
        return f"{self.source.label} ({self.profile})" if self.profile else self.source.label


class _Heading(NamedTuple):
    """The line before some tables; profile and report are "" if no line names them."""

    number: int = 0
    profile: str = ""
    report: str = ""


def read_stats(source: ByteSource, block_bytes: int = TEXT_BLOCK_BYTES) -> list[StatsFile]:
    """Return the profiles in a file; a file without any report gets one without parts."""
    damage, console = Damage(), stats_text.Console(STATS_TABLES)
    parts: list[ReportPart] = []

    def begin(plan: Plan, heading: _Heading) -> None:
        parts.append(ReportPart(report_named(plan.what.report, heading.report), heading.profile))

    for heading, pieces in groupby(_headed_pieces(stats_text.as_csv(source)), key=itemgetter(0)):
        console.begin(heading.report)
        lines = (piece for _, piece in pieces)
        # The tables below one heading are read like a file of their own.
        section = stats_text.Filtered(source, partial(stats_text.plain_tables, lines, console))
        text, plan = CsvText(section, STATS_TABLES, block_bytes, damage), None
        for block in text:
            if block.plan is not plan:
                plan = block.plan
                begin(plan, heading)
            add_rows(block.cells, block.plan.what, parts[-1])
        if plan is None and text.plan is not None:  # a header without rows is a report, too
            begin(text.plan, heading)
    console.begin("")
    damage.repeated_headers = 0  # each header begins a table of its own
    files = [
        StatsFile(source, name, tables, is_further=number > 0)
        for number, (name, tables) in enumerate(_profiles(parts).items())
    ] or [StatsFile(source)]
    files[0].damage, files[0].unread = damage, console.unread
    return files


def _headed_pieces(source: ByteSource) -> Iterator[tuple[_Heading, bytes]]:
    """Yield the content of a file in pieces of whole lines, each with the heading above it."""
    heading = _Heading()
    for number, block in enumerate(stats_text.whole_lines(source)):
        if number == 0:
            block = block.removeprefix(b"\xef\xbb\xbf")
        begin = 0
        if any(start in block for start in _STARTS):
            for match in _HEADING.finditer(block):
                # A row may have a name that looks like a heading. A limit stops hostile files.
                if heading.number >= 500 or stats_text.is_row(match[0]):
                    continue
                if match.start() > begin:
                    yield heading, block[begin : match.start()]
                begin = match.start()
                if match[6]:  # a title of 2019; its unit is read with the table
                    report = "osrt_sum" if match[6] == b"Operating System" else ""
                    heading = _Heading(heading.number + 1, heading.profile, report)
                    continue
                # `Processing [profile] with [script]`, `Running [script profile]`, or of nsys
                # profile --stats=true `[3/8] Executing 'report' stats report`
                groups = (match[1] or match[4] or b"", match[2] or match[3] or match[5] or b"")
                profile, script = (text.decode(errors="replace").strip() for text in groups)
                report = PureWindowsPath(script).name.partition(".py")[0]
                heading = _Heading(heading.number + 1, profile, report)
                begin = match.end()
        yield heading, block[begin:]


def _takes(reports: dict[str, ReportPart], part: ReportPart) -> bool:
    """Add a table to a profile's reports; return False if it must be of another profile.

    A second table of a report must be equal, to be dropped, or have later records, to be appended.
    """
    earlier = reports.setdefault(part.report.name, part)
    if earlier is part:
        return True
    if not any(table.count for table in part.tables.values()):  # no rows: contradicts nothing
        earlier.odd.update(part.odd)
        return True
    is_equal = _figures(earlier) == _figures(part)
    earlier.odd["table-repeated"] += is_equal
    start_ns, later_ns = _starts(earlier), _starts(part)
    goes_on = len(start_ns) > 0 and len(later_ns) > 0 and bool(later_ns.min() >= start_ns.max())
    if goes_on and not is_equal:
        earlier.absorb(part)
    return goes_on or is_equal


def _figures(part: ReportPart) -> list[tuple[str, bytes]]:
    """Return the numbers of a report, by which two tables of it are compared."""
    return [
        (name, table.column(column).tobytes())
        for name, table in sorted(part.tables.items())
        for column in _FIGURES.get(name, ("start_ns", "dur_ns"))
    ]


def _starts(part: ReportPart) -> IntArray:
    """Return the start times of a report's records, empty if it has none."""
    records = next((part.tables[name] for name in _RECORDS if name in part.tables), None)
    return np.empty(0, np.int64) if records is None else records.column("start_ns")


def _profiles(parts: Sequence[ReportPart]) -> dict[str, list[ReportPart]]:
    """Return the tables of a file by the name of their profile, "" if the file has only one.

    A table that does not fit its profile (`_takes`) begins another, with a number in the name.
    """
    names = {part.profile for part in parts} - {""}
    only_name = names.pop() if len(names) == 1 else ""
    profiles: list[tuple[str, dict[str, ReportPart]]] = []
    current: dict[str, dict[str, ReportPart]] = {}
    for part in parts:
        name = part.profile or only_name
        if name not in current or not _takes(current[name], part):
            current[name] = {part.report.name: part}
            profiles.append((PureWindowsPath(name).name, current[name]))
    if len(profiles) < 2:
        return {"": list(profiles[0][1].values())} if profiles else {}
    counts, numbers = Counter(base for base, _ in profiles), Counter[str]()
    by_name = {}
    for base, tables in profiles:
        numbers[base] += 1
        is_unique = base and counts[base] == 1
        by_name[base if is_unique else f"{base} {numbers[base]}".strip()] = list(tables.values())
    return by_name


def labels_of(totals: TableBuilder) -> list[tuple[str, str]]:
    """Return (kind, name) of each row of a table of totals."""
    kinds, names = list(totals.names["kind"]), list(totals.names["name"])
    codes = zip(totals.column("kind").tolist(), totals.column("name").tolist(), strict=True)
    return [(kinds[kind], names[name]) for kind, name in codes]
