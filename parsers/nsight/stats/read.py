"""Reads one file of reports of `nsys stats`."""

from __future__ import annotations

from dataclasses import dataclass, field

from traceflops.parsers.csvfiles.parts import Cut
from traceflops.parsers.csvfiles.text import BLOCK_BYTES, CsvText, Damage
from traceflops.parsers.inputs import ByteSource
from traceflops.parsers.nsight.stats.plans import STATS_TABLES, Table
from traceflops.parsers.nsight.stats.rows import Part, add_rows
from traceflops.parsers.nsight.stats.text import plain_csv


@dataclass(slots=True)
class StatsFile:
    """What a file says: its reports by name, in the order of the file."""

    source: ByteSource
    parts: dict[str, Part] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)


def read_stats(source: ByteSource, block_bytes: int = BLOCK_BYTES) -> StatsFile:
    """Return what a file says; no part where it holds no report after all."""
    text = CsvText(plain_csv(source, STATS_TABLES), STATS_TABLES, block_bytes)
    file = StatsFile(source, damage=text.damage)
    for block in text:
        table: Table = block.plan.what
        part = file.parts.setdefault(table.report.name, Part(table.report))
        add_rows(Cut(block.rows, block.columns), table, part)
    if text.plan is not None:
        report = text.plan.what.report
        file.parts.setdefault(report.name, Part(report))
    return file
