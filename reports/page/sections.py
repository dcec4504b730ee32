"""The sections of the page, in the order in which they are read.

Adding a section means its template, a function that says what it shows, and a row in SECTIONS.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from traceflops.reports import wording
from traceflops.reports.page import findings, peak, series, shown, stepbars, untimed
from traceflops.reports.page.roofline import roofline_plot
from traceflops.reports.page.section import Content, Filled, Section
from traceflops.reports.palette import LOOKS

if TYPE_CHECKING:
    from traceflops.results import Analysis

MOST_STEP_ROWS: Final = 200


def filled(analysis: Analysis) -> Iterator[Filled]:
    """Give the sections that have something to show."""
    for section in SECTIONS:
        content = section.content(analysis)
        if content is not None:
            yield Filled(section, content)


def _head(analysis: Analysis) -> Content:
    present, absent = shown.used_components(analysis)
    parts = analysis.components.parts()
    return Content(
        {
            "provenance": shown.provenance(analysis),
            "basis": wording.basis(analysis),
            "present": present,
            "absent": absent,
            "part_means": {name: analysis.mean_ns(ns) for name, ns in parts.items()},
            "tiles": shown.tiles(analysis),
        }
    )


def _findings(analysis: Analysis) -> Content | None:
    if not analysis.components.window_ns:
        return None
    return Content({"findings": findings.findings_shown(analysis)})


def _peak(analysis: Analysis) -> Content | None:
    if not analysis.devices:
        return None
    return Content({"peak": peak.peak_page(analysis)})


def _steps(analysis: Analysis) -> Content | None:
    if not analysis.devices:
        return None
    rows = series.rows(analysis.devices)
    bars = series.drawn(rows)
    axis = "step" if analysis.steps.seen else "window"
    values = {
        "rows": rows,
        "bars": bars,
        "pale": [bar.label for bar in bars if not bar.used],
        "row_components": [
            name for name in LOOKS if any(row.components.parts()[name] for row in rows)
        ],
        "slowest": series.slowest(rows),
        "steps_sentence": shown.steps_sentence(analysis),
        "most_step_rows": MOST_STEP_ROWS,
    }
    figures = {"steps": partial(stepbars.step_bars, bars, axis)} if bars else {}
    return Content(values, "Steps" if analysis.steps.seen else "Window", figures)


def _categories(analysis: Analysis) -> Content | None:
    if not analysis.devices:
        return None
    return Content(
        {
            "categories": analysis.categories.to_pylist(),
            "other_share": shown.other_share(analysis.categories),
        }
    )


def _kernels(analysis: Analysis) -> Content | None:
    if not analysis.devices:
        return None
    return Content({"kernels": shown.kernels(analysis.kernels)}, scripts=("tables.js",))


def _work(analysis: Analysis) -> Content | None:
    values = peak.work_shown(analysis)
    return Content({"work": values}) if values.kernels or values.ops else None


def _roofline(analysis: Analysis) -> Content | None:
    plot = roofline_plot(analysis.measured)
    if plot is None:
        return None
    return Content({"plot": plot, "by_counters": peak.is_by_counters(analysis)})


def _ranks(analysis: Analysis) -> Content | None:
    if len(analysis.devices) < 2:
        return None
    present, _ = shown.used_components(analysis)
    return Content({"devices": shown.shown_devices(analysis), "present": present})


def _idle(analysis: Analysis) -> Content | None:
    if not analysis.devices:
        return None
    origin_ns = min(device.whole.start_ns for device in analysis.devices)
    return Content({"gaps": analysis.gaps(shown.MOST_GAPS), "origin_ns": origin_ns})


def _untimed(analysis: Analysis) -> Content | None:
    if analysis.untimed is None:
        return None
    return Content({"untimed_parts": untimed.untimed_parts(analysis.untimed)})


def _counters(analysis: Analysis) -> Content | None:
    values = peak.counted_shown(analysis)
    return Content({"counted": values}) if values.rows else None


def _recording(analysis: Analysis) -> Content:
    return Content({"devices": shown.shown_devices(analysis)})


def _notes(analysis: Analysis) -> Content:
    notes = shown.Few(analysis.notes[: shown.MOST_NOTES], len(analysis.notes))
    return Content({"notes": notes})


def _method(analysis: Analysis) -> Content:
    return Content(
        {
            "steps_sentence": shown.steps_sentence(analysis),
            "other_share": shown.other_share(analysis.categories),
        }
    )


SECTIONS: Final = (
    Section("head", None, _head),
    Section("findings", "Findings", _findings),
    Section("peak", "Peak", _peak),
    Section("steps", "Steps", _steps),
    Section("idle", "Idle", _idle),
    Section("categories", "Categories", _categories),
    Section("kernels", "Kernels", _kernels),
    Section("work", "Work", _work),
    Section("roofline", "Roofline", _roofline),
    Section("ranks", "Ranks", _ranks),
    Section("untimed", "Totals", _untimed),
    Section("counters", "Counters", _counters),
    Section("recording", "Recording", _recording),
    Section("notes", "Notes", _notes),
    Section("method", "Method", _method),
)
