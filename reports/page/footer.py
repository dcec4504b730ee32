"""The end of the page: what made it, and the numbers behind it to take along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceflops._version import __version__
from traceflops.reports.json import SCHEMA, render_json
from traceflops.reports.page.scripts import packed_bytes
from traceflops.reports.page.section import Content, Filled, Section
from traceflops.reports.view import size
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

PAGE_BYTES: Final = 3_000_000
"""The most that a page may have."""

DATA: Final = "report-data"
_MOST_ROWS: Final = 20_000
"""Rows of the report that are worth writing out to see whether they fit."""
_REDACTED: Final = "redacted"


def closing(
    analysis: Analysis, command: str | None, page_bytes: int, *, cuts_texts: bool = False
) -> Filled:
    """Return the end of a page that has `page_bytes` without it.

    `cuts_texts` says that texts are shorter than usual so that it has no more than PAGE_BYTES.
    """
    data, left_out = _data(analysis, PAGE_BYTES - page_bytes)
    values = {
        "command": command,
        "version": __version__,
        "schema": SCHEMA,
        "data": DATA if data is not None else None,
        "data_size": size(len(data)) if data is not None else None,
        "left_out": left_out,
        "cuts_texts": cuts_texts,
        "redacted": any(note.code == _REDACTED for note in analysis.notes),
    }
    content = Content(
        values,
        scripts=("data.js",) if data is not None else (),
        data={DATA: data} if data is not None else {},
    )
    return Filled(Section("closing", None, lambda _: content), content)


def _data(analysis: Analysis, room: int) -> tuple[bytes | None, str]:
    """Return the report as JSON, or None and why it is left out."""
    rows = _rows(analysis)
    if rows > _MOST_ROWS:
        return None, f"about {several(rows, 'row')}"
    text = render_json(analysis).encode() + b"\n"
    taken = packed_bytes(text, room)
    if taken > room:
        return None, f"{size(len(text))}, at least {size(taken)} compressed"
    return text, ""


def _rows(analysis: Analysis) -> int:
    """Return about how many rows the report has as JSON."""
    per_device = sum(len(device.windows) + len(device.gaps) for device in analysis.devices)
    measured = analysis.measured
    tables = int(analysis.kernels.num_rows) + len(measured.kernels) + len(measured.ops)
    untimed = int(analysis.untimed.rows.num_rows) if analysis.untimed is not None else 0
    return per_device + tables + untimed + len(analysis.notes) + len(analysis.source.event_counts)
