"""The page: a single HTML file that shows an analysis and needs no network.

Everything essential is plain HTML and SVG; scripts add to it. A content security policy allows only
the page's own scripts, by their hash: nothing in a trace can run, and nothing can be fetched.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.reports.json.report import SCHEMA, render_json
from traceflops.reports.packs import pack_of
from traceflops.reports.page import overview
from traceflops.reports.page.jinja import environment, style_sheet
from traceflops.reports.page.scripts import Scripts, packed, packed_bytes, scripts_of
from traceflops.reports.page.section import Section
from traceflops.reports.page.sections import CASE, GROUPS, METHOD, RANKS, sections
from traceflops.reports.view.author_notes import NOTHING, Authored, base_names
from traceflops.reports.view.figures import size
from traceflops.reports.view.wording import each, time_shared, unit
from traceflops.table.packed import PAGE_PACK
from traceflops.units import plural, several

PAGE_BYTES: Final = 3_000_000  # the most that a page may have
_FRAME_BYTES: Final = 12_000
"""Bytes of a page without its sections, scripts, data and style sheet, rounded up."""
_NARROWER: Final = (1, 4, 16, 64)
"""Divisors of the room of texts, tried in turn until the page is small enough."""
_MOST_ROWS: Final = 20_000  # a report with more rows is not even encoded to see if it fits
_MOST_PACKED_ROWS: Final = 300_000  # the same for a recording
_DATA: Final = "report-data"
_STYLES: Final = ("report.css", "tables.css", "timeline.css", "memory.css")


class _PagePart(Struct, frozen=True):
    """A section as rendered HTML."""

    name: str
    group: str
    markup: str


def render_html(
    analysis: Analysis, command: str | None = None, authored: Authored = NOTHING
) -> str:
    """Return the page; `command` created it, `authored` has the author's title and notes."""
    shown = list(sections(analysis))
    if authored.blocks:
        shown.insert(1, Section("authored", CASE, {"blocks": authored.blocks}))
    scripts = scripts_of(shown)
    # Cut the trace's texts shorter until the page fits: a character may take five bytes escaped.
    for narrower in _NARROWER:
        parts = list(_parts(analysis, shown, narrower))
        if _bytes(parts, scripts) <= PAGE_BYTES:
            break
    # The closing section is made last, as it needs to know how many bytes are left for its data.
    base_command = base_names(command, analysis.source.files) if command else None
    last = closing(analysis, base_command, _bytes(parts, scripts), cuts_texts=narrower > 1)
    parts += _parts(analysis, [last])
    scripts = scripts_of([*shown, last])
    title = overview.document_title(analysis)
    names_of = {group: [part.name for part in parts if part.group == group] for group in GROUPS}
    context = {
        "document_title": f"{authored.title} · {title}" if authored.title else title,
        "title": authored.title,
        "recording": overview.recording(analysis),
        "parts": parts,
        "groups": [
            # Without a section on ranks, the group contains little but steps.
            ("Steps" if group == RANKS and "ranks" not in names else group, names)
            for group, names in names_of.items()
            if names and group != METHOD
        ],
        "method": METHOD,
        **asdict(scripts),
        "css": style_sheet(_STYLES),
        "schema": SCHEMA,
        "version": __version__,
    }
    return environment().get_template("report.html.j2").render(context)


def _bytes(parts: Sequence[_PagePart], scripts: Scripts) -> int:
    """Return an upper estimate of the bytes of a page of these parts and scripts."""
    texts = [*(part.markup for part in parts), *scripts.scripts, *scripts.data.values()]
    texts.append(style_sheet(_STYLES))
    return sum(len(text.encode()) for text in texts) + _FRAME_BYTES


def framed(analysis: Analysis) -> str:
    """Return the page in an iframe, for notebooks: its scripts and styles do not leave it."""
    page = html.escape(render_html(analysis))
    return (
        '<iframe title="traceflops report" sandbox="allow-scripts allow-downloads" '
        f'style="width: 100%; height: 85vh; border: 0" srcdoc="{page}"></iframe>'
    )


def _parts(analysis: Analysis, shown: Sequence[Section], narrower: int = 1) -> Iterator[_PagePart]:
    """Yield each section as HTML; texts of the trace get `1 / narrower` of their usual room."""
    templates = environment(narrower)
    common = {
        "analysis": analysis,
        "unit": unit(analysis),
        "units": plural(unit(analysis)),
        "per": each(analysis),
        "time_shared": time_shared(analysis),
        "sections": {section.name for section in shown},
    }
    for section in shown:
        template = templates.get_template(f"{section.name}.html.j2")
        yield _PagePart(section.name, section.group, template.render(common | dict(section.values)))


def closing(
    analysis: Analysis, command: str | None, page_bytes: int, *, cuts_texts: bool = False
) -> Section:
    """Return the last section: the command that created the page, and data to download.

    `page_bytes` is the size of the page without it. Data are the report as JSON and the recording
    as a pack; data that would exceed PAGE_BYTES are left out. `cuts_texts`: whether texts were cut
    shorter than usual to keep to PAGE_BYTES.
    """
    room, data, left_out = PAGE_BYTES - page_bytes, dict[str, bytes](), ""
    per_device = sum(len(device.windows) + len(device.gaps) for device in analysis.devices)
    measured = analysis.measured
    tables = int(analysis.kernels.num_rows) + len(measured.kernels) + len(measured.ops)
    untimed = int(analysis.untimed.rows.num_rows) if analysis.untimed is not None else 0
    rows = per_device + tables + untimed + len(analysis.notes) + len(analysis.source.event_counts)
    if rows > _MOST_ROWS:
        left_out = f"about {several(rows, 'row')}"
    else:
        report = render_json(analysis).encode() + b"\n"
        report_bytes = packed_bytes(report, room)
        if report_bytes > room:
            left_out = f"{size(len(report))}, at least {size(report_bytes)} compressed"
        else:
            data[_DATA] = report
    pack = pack_of(analysis, _MOST_PACKED_ROWS)
    used = sum(len(packed(content)) for content in data.values())
    if pack is not None and len(packed(pack)) <= room - used:
        data[PAGE_PACK] = pack
    values = {
        "command": command,
        "version": __version__,
        "schema": SCHEMA,
        "downloads": {id_: size(len(content)) for id_, content in data.items()},
        "left_out": left_out,
        "cuts_texts": cuts_texts,
        "redacted": any(note.code == "redacted" for note in analysis.notes),
    }
    return Section("closing", "", values, ("data.js",) if data else (), data)
