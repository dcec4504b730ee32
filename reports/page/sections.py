"""The sections of the page, in their order.

    Analysis -> sections() -> Section: name, group, values for its template, figures, scripts, data

To add a section, write its template and add a `yield` here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from traceflops.analysis.result import Analysis
from traceflops.reports.page import case, kernels, memory, overview, ranks, roofline, steps, work
from traceflops.reports.page.icicle import icicles
from traceflops.reports.page.overview import Few
from traceflops.reports.page.section import Section, link_to
from traceflops.reports.page.timeline import SCRIPTS, gap_links, timeline_content
from traceflops.reports.view import wording
from traceflops.reports.view.chapters import post_mortem
from traceflops.reports.view.counted import SAYS, counted_table, rules_said, speeds_table
from traceflops.reports.view.critical import critical_tables
from traceflops.reports.view.culprits import gap_culprits, pace_sentence, waits
from traceflops.reports.view.figures import duration, percent
from traceflops.reports.view.gpu_samples import gpu_samples_table
from traceflops.reports.view.host import host_tables
from traceflops.reports.view.owners import OWNER_WORDS, attribution_sentence, owner_tables
from traceflops.reports.view.pipelines import pipeline_tables
from traceflops.reports.view.serving import serving_table
from traceflops.reports.view.tables import sums_by_kind, synchronisations_table
from traceflops.units import capitalized
from traceflops.windows.step_times import most_and_least

_TABLES: Final = ("tables.js", "drill.js")
"""Scripts that make tables sort, filter and unfold, and follow links into them."""
_MOST_COUNTED: Final = 30
_MOST_OWNERS, _MOST_SHAPES = 40, 100
_BY_SHAPE: Final = capitalized(OWNER_WORDS["shape"].owners)
_MOST_HOST: Final = 100
CASE, TIMELINE, TREE, RANKS, KERNELS, METHOD = GROUPS = (
    *("Case", "Timeline", "Tree", "Ranks", "Kernels"),
    "Method and notes",
)
"""The entries of the navigation; the sections of the last one are folded away."""


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the sections that have something to show."""
    yield Section("case", CASE, case.case_values(analysis))
    if analysis.of_no_job:
        jobs = analysis.jobs[: overview.MOST_JOBS]
        rows = [(job, wording.job_files(job), wording.job_size(job)) for job in jobs]
        yield Section("jobs", CASE, {"jobs": Few(rows, len(analysis.jobs))})
    if (timeline := timeline_content(analysis)) is not None:
        values, boxes = timeline
        yield Section("timeline", TIMELINE, values, SCRIPTS, {"timeline-data": boxes})
    yield from _tree(analysis)
    yield from _ranks(analysis)
    yield from _kernels(analysis)
    yield from _method(analysis)


def _tree(analysis: Analysis) -> Iterator[Section]:
    """Yield the time as trees with tables by owner, and the roofline of the kernels."""
    trees = icicles(analysis)
    tables = [table for table in owner_tables(analysis, _MOST_OWNERS) if table[0] != _BY_SHAPE]
    if tables or trees:
        values = {
            "icicles": trees,
            "tables": tables,
            "basis": wording.basis(analysis),
            "attributed": attribution_sentence(analysis),
        }
        yield Section("attribution", TREE, values, scripts=_TABLES)
    plot = roofline.roofline_plot(analysis.measured)
    reach = roofline.reach_plot(analysis, roofline.WIDTH + roofline.MARGIN, roofline.MARGIN)
    kernel_rows = kernels.kernel_places(analysis.kernels)  # dots link to the rows of kernels
    if kernel_rows and (plot is not None or reach is not None):
        roofs = {
            "plot": plot,
            "narrow": roofline.roofline_plot(analysis.measured, roofline.NARROW),
            "reaches": [reach, roofline.reach_plot(analysis, roofline.NARROW)],
            "links": {name: link_to("kernel", name) for name in kernel_rows},
            "drawn": roofline.drawn_sentence(analysis) if plot else "",
            "by_counters": work.counted_at(analysis.measured),
        }
        yield Section("roofline", TREE, roofs, scripts=_TABLES)


def _ranks(analysis: Analysis) -> Iterator[Section]:
    """Yield ranks (of several devices), steps, passes of a serving engine, memory and clocks."""
    values: dict[str, Any]
    if len(analysis.devices) > 1:
        values = {
            "ranks": ranks.ranks_page(analysis),
            "present": [name for name, ns in analysis.components.parts().items() if ns],
            "pipelines": list(pipeline_tables(analysis)),
        }
        yield Section("ranks", RANKS, values, scripts=(*_TABLES, "ranks.js"))
    if analysis.devices:
        rows = steps.window_rows(analysis.devices)
        bars = steps.drawn_bars(rows) if any(row.dur_ns for row in rows) else []
        values = {
            "rows": rows,
            "bars": bars,
            # Bars are drawn as shares of the longest, so it is never 0.
            "longest_ns": max((bar.components.window_ns for bar in bars), default=0) or 1,
            "pale": [bar.label for bar in bars if not bar.used],
            "steps": steps.steps_page(analysis, rows),
            "steps_sentence": overview.steps_sentence(analysis),
            "longest_step": wording.longest_step(analysis),
        }
        are_many = len(bars) > steps.MOST_LISTED
        values["chart"] = steps.columns_of(bars) if are_many else None
        yield Section("steps", RANKS, values, (*_TABLES, "steps.js") if are_many else _TABLES)
    passes = serving_table(analysis)
    if passes.rows:
        yield Section("serving", RANKS, {"passes": passes})
    if (memory_values := memory.memory_page(analysis)) is not None:
        yield Section("memory", RANKS, {"memory": memory_values, **memory.EDGES})
    sampled = gpu_samples_table(analysis)
    if sampled.rows:
        yield Section("clocks", RANKS, {"sampled": sampled})


def _kernels(analysis: Analysis) -> Iterator[Section]:
    """Yield kernels, operators, collectives, counted work, idle time and the critical path."""
    if analysis.devices:
        yield Section("kernels", KERNELS, {"kernels": kernels.kernels_page(analysis)}, _TABLES)
        operators = work.operators_page(analysis)
        if operators is not None:
            tables = owner_tables(analysis, _MOST_SHAPES)
            by_shape = [table for title, table in tables if title == _BY_SHAPE]
            values = {"operators": operators, "by_shape": by_shape}
            yield Section("operators", KERNELS, values, scripts=_TABLES)
    if analysis.collectives:
        yield _communication(analysis)
    speeds = speeds_table(analysis.measured, _MOST_COUNTED)
    if speeds.rows:
        said = rules_said(analysis.measured, _MOST_COUNTED)
        yield Section("speed-of-light", KERNELS, {"table": speeds, "said": said, "says": SAYS})
    if analysis.untimed is not None:
        yield Section("untimed", KERNELS, {"untimed_parts": sums_by_kind(analysis.untimed)})
    counted = counted_table(analysis.measured, _MOST_COUNTED)
    if counted.rows:
        yield Section("counters", KERNELS, {"table": counted})
    if analysis.devices:
        yield _idle(analysis)
    paths = list(critical_tables(analysis))
    if paths:
        yield Section("critical", KERNELS, {"tables": paths})


def _communication(analysis: Analysis) -> Section:
    """Return the section on collectives, each with its share of the window, and hidden time."""
    window_ns = analysis.components.window_ns
    shares = [row.sum_ns / window_ns if window_ns else None for row in analysis.collectives]
    rows = list(zip(analysis.collectives, shares, strict=True))
    exposed_ns = analysis.components.communication_ns
    hidden_ns = analysis.total.hidden_communication_ns
    sentence = ""
    if exposed_ns or hidden_ns:
        exposed, hidden = (duration(analysis.mean_ns(ns)) for ns in (exposed_ns, hidden_ns))
        share = percent(hidden_ns / (exposed_ns + hidden_ns))
        sentence = f"{exposed} exposed, {hidden} hidden ({share})."
    few = Few(rows[: overview.MOST_COLLECTIVES], len(rows))
    return Section("communication", KERNELS, {"collectives": few, "hidden": sentence}, _TABLES)


def _idle(analysis: Analysis) -> Section:
    """Return the section on idle time: longest gaps with culprits, waits, the launch lead."""
    clocks = overview.clocks(analysis)
    gaps = analysis.gaps(overview.MOST_GAPS)
    starts_ns = [gap.start_ns - clocks.of_device[gap.device] for gap in gaps]
    label_of = {device.device: device.label for device in analysis.devices}
    labels = [label_of[gap.device] for gap in gaps]
    culprits = gap_culprits(gaps)
    values = {
        "gaps": list(zip(gaps, labels, starts_ns, culprits, gap_links(analysis), strict=True)),
        "devices": labels,
        "names": [  # all names in the table: shortened together, they stay different
            name
            for gap, (_, culprit) in zip(gaps, culprits, strict=True)
            for name in (gap.after, gap.before, gap.op or gap.call, gap.waited_for, culprit)
        ],
        "counts_from": overview.counts_from(clocks, on_host=analysis.on_host),
        "waits": waits(analysis),
        "pace": pace_sentence(analysis),
        "synchronisations": synchronisations_table(analysis),
        "basis": wording.basis(analysis),
    }
    return Section("idle", KERNELS, values)


def _method(analysis: Analysis) -> Iterator[Section]:
    """Yield the folded sections: peak, categories, host, post-mortem, recording, notes, method."""
    devices, other_share = analysis.devices, overview.other_share(analysis.categories)
    if devices:
        yield Section("peak", METHOD, {"peak": work.peak_page(analysis)})
        rows = analysis.categories.to_pylist()
        links = [kernels.category_link(row["top"], row["sub"], rows) for row in rows]
        values = {"categories": rows, "category_links": links, "other_share": other_share}
        yield Section("categories", METHOD, values, scripts=_TABLES)
        tables = [table for table in host_tables(analysis, _MOST_HOST) if table[1].rows]
        if tables:
            yield Section("host", METHOD, {"tables": tables})
    if case.is_judged(analysis):
        yield Section("post-mortem", METHOD, {"chapters": post_mortem(analysis)})
    shown = [devices[index] for index in most_and_least(devices, overview.MOST_DEVICES)]
    units = {peaks.device: peaks.match.seen.counted_units() for peaks in analysis.measured.devices}
    recorded = {"devices": Few(shown, len(devices)), "counted_units": units}
    yield Section("recording", METHOD, recorded)
    notes = wording.notes_by_weight(analysis)[: overview.MOST_NOTES]
    yield Section("notes", METHOD, {"notes": Few(notes, len(analysis.notes))})
    method = {
        "steps_sentence": overview.steps_sentence(analysis) if devices else "",
        "timed": bool(devices),
        "on_host": analysis.on_host,
        "other_share": other_share,
    }
    yield Section("method", METHOD, method)
