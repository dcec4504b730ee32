"""The sections of the page, in the order in which they are read.

Adding a section means its template, a function that says what it shows, and a row in SECTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from traceflops.reports.page import case, kernels, memory, overview, peak, ranks, steps, work
from traceflops.reports.page.icicle import icicles
from traceflops.reports.page.roofline import (
    MARGIN,
    NARROW,
    WIDTH,
    drawn_sentence,
    reach_plot,
    roofline_plot,
)
from traceflops.reports.page.section import Content, Filled, Section, link_to
from traceflops.reports.page.timeline import gap_links, timeline_content
from traceflops.reports.view import wording
from traceflops.reports.view.chapters import post_mortem
from traceflops.reports.view.counted import counted_table, speeds_table
from traceflops.reports.view.critical import critical_tables
from traceflops.reports.view.culprits import gap_culprits, pace_sentence, waits
from traceflops.reports.view.gpu_samples import gpu_samples_table
from traceflops.reports.view.host import host_tables
from traceflops.reports.view.owners import OWNER_WORDS, attribution_sentence, owner_tables
from traceflops.reports.view.pipelines import pipeline_tables
from traceflops.reports.view.profiler_rules import SAYS, rules_said
from traceflops.reports.view.serving import serving_table
from traceflops.reports.view.tables import sums_by_kind, synchronisations_table
from traceflops.reports.view.wording import notes_by_weight
from traceflops.units import capitalized

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis

_TABLES: Final = ("tables.js", "drill.js")
"""What makes tables sort, filter and unfold, and follows links into them."""
_MOST_COUNTED: Final = 30
_MOST_OWNERS, _MOST_SHAPES = 40, 100
_BY_SHAPE: Final = capitalized(OWNER_WORDS["shape"].owners)
_MOST_HOST: Final = 100


def filled(analysis: Analysis) -> Iterator[Filled]:
    """Give the sections that have something to show."""
    for section in SECTIONS:
        content = section.content(analysis)
        if content is not None:
            yield Filled(section, content)


def _jobs(analysis: Analysis) -> Content | None:
    if not analysis.of_no_job:
        return None
    jobs = analysis.jobs[: overview.MOST_JOBS]
    rows = [(job, wording.job_files(job), wording.job_size(job)) for job in jobs]
    return Content({"jobs": overview.Few(rows, len(analysis.jobs))})


def _steps(analysis: Analysis) -> Content:
    """Return the section on steps: their table, and as a figure the bars of many steps."""
    rows = steps.window_rows(analysis.devices)
    bars = steps.drawn_bars(rows) if any(row.dur_ns for row in rows) else []
    axis = "step" if analysis.steps.seen else "window"
    values = {
        "rows": rows,
        "bars": bars,
        "longest_ns": max((bar.components.window_ns for bar in bars), default=0) or 1,
        "pale": [bar.label for bar in bars if not bar.used],
        "steps": steps.steps_page(analysis, rows),
        "steps_sentence": overview.steps_sentence(analysis),
        "longest_step": wording.longest_step(analysis),
    }
    chart = {"steps": partial(steps.step_bars, bars, axis)}
    return Content(values, chart if len(bars) > steps.MOST_STILL else {}, _TABLES)


def _categories(analysis: Analysis) -> Content:
    rows = analysis.categories.to_pylist()
    return Content(
        {
            "categories": rows,
            "category_links": [kernels.category_link(row["top"], row["sub"], rows) for row in rows],
            "other_share": overview.other_share(analysis.categories),
        },
        scripts=_TABLES,
    )


def _critical(analysis: Analysis) -> Content | None:
    tables = list(critical_tables(analysis))
    return Content({"tables": tables}) if tables else None


def _serving(analysis: Analysis) -> Content | None:
    passes = serving_table(analysis)
    return Content({"passes": passes}) if passes.rows else None


def _clocks(analysis: Analysis) -> Content | None:
    table = gpu_samples_table(analysis)
    return Content({"sampled": table}) if table.rows else None


def _attribution(analysis: Analysis) -> Content | None:
    drawn = icicles(analysis)
    tables = [one for one in owner_tables(analysis, _MOST_OWNERS) if one[0] != _BY_SHAPE]
    attributed = attribution_sentence(analysis)
    values = {
        "icicles": drawn,
        "tables": tables,
        "attributed": attributed,
        "basis": wording.basis(analysis),
    }
    return Content(values, scripts=_TABLES) if tables or drawn else None


def _communication(analysis: Analysis) -> Content | None:
    if not analysis.collectives:
        return None
    window_ns = analysis.components.window_ns
    shares = [row.sum_ns / window_ns if window_ns else None for row in analysis.collectives]
    rows = list(zip(analysis.collectives, shares, strict=True))
    shown = overview.Few(rows[: overview.MOST_COLLECTIVES], len(rows))
    values = {"collectives": shown, "hidden": overview.hidden_sentence(analysis)}
    return Content(values, scripts=_TABLES)


def _operators(analysis: Analysis) -> Content | None:
    page = work.operators_page(analysis)
    by_shape = [
        table for title, table in owner_tables(analysis, _MOST_SHAPES) if title == _BY_SHAPE
    ]
    values = {"operators": page, "by_shape": by_shape}
    return Content(values, scripts=_TABLES) if page is not None else None


def _roofline(analysis: Analysis) -> Content | None:
    """Return the rooflines, None where there is nothing to draw or the table has no kernels."""
    plot, reach = roofline_plot(analysis.measured), reach_plot(analysis, WIDTH + MARGIN, MARGIN)
    shown = kernels.kernel_places(analysis.kernels)
    if not shown or (plot is None and reach is None):
        return None
    return Content(
        {
            "plot": plot,
            "narrow": roofline_plot(analysis.measured, NARROW),
            "reaches": [reach, reach_plot(analysis, NARROW)],
            "links": {name: link_to("kernel", name) for name in shown},
            "drawn": drawn_sentence(analysis) if plot else "",
            "by_counters": work.counted_at(analysis.measured),
        },
        scripts=_TABLES,
    )


def _ranks(analysis: Analysis) -> Content | None:
    if len(analysis.devices) < 2:
        return None
    present = [name for name, ns in analysis.components.parts().items() if ns]
    pipelines = list(pipeline_tables(analysis))
    return Content(
        {"ranks": ranks.ranks_page(analysis), "present": present, "pipelines": pipelines},
        scripts=(*_TABLES, "ranks.js"),
    )


def _idle(analysis: Analysis) -> Content:
    """Return the section on idle time: the longest gaps with their culprits, waits, the lead."""
    clocks = overview.clocks(analysis)
    gaps = analysis.gaps(overview.MOST_GAPS)
    starts = [gap.start_ns - clocks.of_device[gap.device] for gap in gaps]
    of_device = {device.device: device.label for device in analysis.devices}
    labels = [of_device[gap.device] for gap in gaps]
    due = gap_culprits(gaps)
    return Content(
        {
            "gaps": list(zip(gaps, labels, starts, due, gap_links(analysis), strict=True)),
            "devices": labels,
            "names": [
                name
                for gap, (_, culprit) in zip(gaps, due, strict=True)
                for name in (gap.after, gap.before, gap.op or gap.call, gap.waited_for, culprit)
            ],
            "counts_from": overview.counts_from(clocks, on_host=analysis.on_host),
            "waits": waits(analysis),
            "pace": pace_sentence(analysis),
            "synchronisations": synchronisations_table(analysis),
            "basis": wording.basis(analysis),
        }
    )


def _host(analysis: Analysis) -> Content | None:
    tables = [(title, table) for title, table in host_tables(analysis, _MOST_HOST) if table.rows]
    return Content({"tables": tables}) if tables else None


def _memory(analysis: Analysis) -> Content | None:
    page = memory.memory_page(analysis)
    return Content({"memory": page, **memory.EDGES}) if page is not None else None


def _untimed(analysis: Analysis) -> Content | None:
    if analysis.untimed is None:
        return None
    return Content({"untimed_parts": sums_by_kind(analysis.untimed)})


def _counters(analysis: Analysis) -> Content | None:
    table = counted_table(analysis.measured, _MOST_COUNTED)
    return Content({"table": table}) if table.rows else None


def _speeds(analysis: Analysis) -> Content | None:
    table = speeds_table(analysis.measured, _MOST_COUNTED)
    said = rules_said(analysis.measured, _MOST_COUNTED)
    return Content({"table": table, "said": said, "says": SAYS}) if table.rows else None


def _recording(analysis: Analysis) -> Content:
    units = {one.device: one.match.seen.counted_units() for one in analysis.measured.devices}
    return Content({"devices": overview.shown_devices(analysis), "counted_units": units})


def _post_mortem(analysis: Analysis) -> Content | None:
    return Content({"chapters": post_mortem(analysis)}) if case.is_judged(analysis) else None


def _notes(analysis: Analysis) -> Content:
    notes = overview.Few(notes_by_weight(analysis)[: overview.MOST_NOTES], len(analysis.notes))
    return Content({"notes": notes})


def _method(analysis: Analysis) -> Content:
    return Content(
        {
            "steps_sentence": overview.steps_sentence(analysis) if analysis.devices else "",
            "timed": bool(analysis.devices),
            "on_host": analysis.on_host,
            "other_share": overview.other_share(analysis.categories),
        }
    )


def _with_devices(content: Callable[[Analysis], Content | None]) -> Callable[..., Content | None]:
    return lambda analysis: content(analysis) if analysis.devices else None


CASE, TIMELINE, TREE, RANKS, KERNELS, METHOD = GROUPS = (
    *("Case", "Timeline", "Tree", "Ranks", "Kernels"),
    "Method and notes",
)
"""The entries of the navigation; what is in the last is folded away."""
SECTIONS: Final = (
    Section("case", CASE, case.case_content),
    Section("jobs", CASE, _jobs),
    Section("timeline", TIMELINE, timeline_content),
    Section("attribution", TREE, _attribution),
    Section("roofline", TREE, _roofline),
    Section("ranks", RANKS, _ranks),
    Section("steps", RANKS, _with_devices(_steps)),
    Section("serving", RANKS, _serving),
    Section("memory", RANKS, _memory),
    Section("clocks", RANKS, _clocks),
    Section(
        "kernels",
        KERNELS,
        _with_devices(lambda one: Content({"kernels": kernels.kernels_page(one)}, scripts=_TABLES)),
    ),
    Section("operators", KERNELS, _with_devices(_operators)),
    Section("communication", KERNELS, _communication),
    Section("speed-of-light", KERNELS, _speeds),
    Section("untimed", KERNELS, _untimed),
    Section("counters", KERNELS, _counters),
    Section("idle", KERNELS, _with_devices(_idle)),
    Section("critical", KERNELS, _critical),
    Section("peak", METHOD, _with_devices(lambda one: Content({"peak": peak.peak_page(one)}))),
    Section("categories", METHOD, _with_devices(_categories)),
    Section("host", METHOD, _with_devices(_host)),
    Section("post-mortem", METHOD, _post_mortem),
    Section("recording", METHOD, _recording),
    Section("notes", METHOD, _notes),
    Section("method", METHOD, _method),
)
