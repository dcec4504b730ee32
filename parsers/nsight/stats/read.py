"""Reads one file of reports of `nsys stats`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from traceflops.parsers.io import TEXT_BLOCK_BYTES, ByteSource, CsvText, Damage
from traceflops.parsers.nsight.stats.console import Console
from traceflops.parsers.nsight.stats.layouts import report_named
from traceflops.parsers.nsight.stats.plans import STATS_TABLES, Table
from traceflops.parsers.nsight.stats.profiles import profiles
from traceflops.parsers.nsight.stats.rows import Part, add_rows
from traceflops.parsers.nsight.stats.sections import Section, sections
from traceflops.parsers.shared import Cut


@dataclass(slots=True)
class StatsFile:
    """What a file says of one profile; `profile` names it where the file has several of them.

    `unread` are titles of tables that are not known here, or whose header was lost.
    """

    source: ByteSource
    profile: str = ""
    parts: list[Part] = field(default_factory=list)
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
    parts: list[Part] = []
    for section in sections(source, STATS_TABLES, console):
        parts += _read(section, damage, block_bytes)
    damage.repeated_headers = 0  # each header begins a table of its own
    files = [
        StatsFile(source, name, mine, Damage(), is_further=place > 0)
        for place, (name, mine) in enumerate(profiles(parts).items())
    ] or [StatsFile(source)]
    files[0].damage, files[0].unread = damage, console.unread
    return files


def _read(section: Section, damage: Damage, block_bytes: int) -> list[Part]:
    """Return the tables of a section; a header without rows is one, too."""
    text = CsvText(section.source, STATS_TABLES, block_bytes, damage)
    parts: list[Part] = []
    plan = None
    for block in text:
        table: Table = block.plan.what
        if block.plan is not plan:
            plan = block.plan
            parts.append(Part(report_named(table.report, section.report), section.profile))
        add_rows(Cut(block.rows, block.columns), table, parts[-1])
    if not parts and text.plan is not None:
        parts.append(Part(report_named(text.plan.what.report, section.report), section.profile))
    return parts
