"""The page of a comparison: what changed, by how much, for which causes, and how sure that is.

It is HTML and SVG; its only scripts are those of every page, for the theme and links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from traceflops._version import __version__
from traceflops.attribution.idle_classes import CLASSES
from traceflops.comparison.difference import Cause, Part, rounded
from traceflops.comparison.reasons import sureness, title_of
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.facts import fact
from traceflops.reports.page.comparison_drawings import bars, cause_words, outstanding, waterfall
from traceflops.reports.page.comparison_timeline import pair
from traceflops.reports.page.jinja import environment, style_sheet
from traceflops.reports.page.scripts import scripts_of
from traceflops.reports.view.comparison import (
    cause_label,
    changed_causes,
    changed_parts,
    compared,
    interval_ends,
    memory_table,
    mfu_sentence,
    more_sentences,
    parts_table,
    runs_table,
    share_words,
    sides_table,
    unlike_table,
)
from traceflops.reports.view.counted import counted_change
from traceflops.reports.view.figures import UNKNOWN, duration, signed_percent
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell
from traceflops.reports.view.texts import words
from traceflops.units import several

SCHEMA: Final = "traceflops.comparison/1"
_STYLES: Final = ("report.css", "tables.css", "timeline.css", "comparison.css")
_NAME: Final = 28
_MOST_ROWS: Final = 400  # rows of each table, of all comparisons of a page together
_MOST_PAIRS: Final = 8
_NAMED: Final = 3
_LEAST: Final = 0.02  # share of the largest cause from which another cause is named
_ENTRIES: Final = {
    "What changed": "case",
    "Part by part": "waterfall",
    "Timelines": "timelines",
    "Largest changes": "changes",
    "Memory": "memory",
    "Not alike": "alike",
    "Notes": "notes",
}
"""The entries of the navigation, and the section that each leads to."""


def render_comparison_page(comparisons: Sequence[Comparison]) -> str:
    """Return the HTML page of one comparison, or of several that share the baseline."""
    scripts = scripts_of(())
    sides = [comparisons[0].before, *(comparison.after for comparison in comparisons)]
    names = short_labels([side.name for side in sides], _NAME)
    is_single = len(comparisons) == 1
    shown = [
        _values(comparison, (names[0], name), "" if is_single else f"-{number}", len(comparisons))
        for number, (comparison, name) in enumerate(zip(comparisons, names[1:], strict=True), 1)
    ]
    overview: dict[str, Any] | None = None
    if is_single:
        figure = _figure(comparisons[0])
        title = f"{figure + ' · ' if figure else ''}{names[0]} → {names[1]}"
        # A section without content has no entry. The case has no value of its name: it is always
        # there.
        groups = [(entry, [name]) for entry, name in _ENTRIES.items() if shown[0].get(name, True)]
    else:  # a common overview comes first, and the navigation lists the recordings
        title = f"{names[0]} and {several(len(comparisons), 'other recording')}"
        groups = [("All", ["case"])]
        groups += [(name, [f"case-{number}"]) for number, name in enumerate(names[1:], 1)]
        overview = _overview(comparisons, sides, names)
    context = {
        "document_title": title,
        "several_runs": overview,
        "comparisons": shown,
        "groups": groups,
        **asdict(scripts),
        "css": style_sheet(_STYLES),
        "schema": SCHEMA,
        "version": __version__,
    }
    return environment().get_template("comparison.html.j2").render(context)


def _overview(
    comparisons: Sequence[Comparison], sides: Sequence[Side], names: Sequence[str]
) -> dict[str, Any]:
    """Return the overview of several comparisons; `sides` are the baseline and all others."""
    comparable = compared(comparisons)
    drawn = [
        index
        for index, side in enumerate(sides)
        if side.windows and any(side is other for other in comparable)
    ]
    return {
        "title": f"{several(len(comparisons), 'recording')} against {names[0]}.",
        "bars": bars([sides[i] for i in drawn], [names[i] for i in drawn]) if drawn else None,
        "runs": runs_table(comparisons),
        "sides": sides_table(comparable),
    }


def _values(comparison: Comparison, names: tuple[str, str], id_: str, many: int) -> dict[str, Any]:
    """Return the values of one of `many` comparisons; the ids of its elements end with `id_`."""
    sides = (comparison.before, comparison.after)
    shown = compared([comparison])
    has_times = bool(shown) and all(side.windows and side.components.window_ns for side in sides)
    is_comparable = has_times and not comparison.is_same
    about = []  # GPUs and numbers of steps, if known
    gpus, steps = [s.facts.get("GPUs", "") for s in sides], [len(s.steps) for s in sides]
    if any(gpus):
        about.append(" → ".join(dict.fromkeys(gpu or UNKNOWN for gpu in gpus)))
    if all(steps):
        after = several(steps[1], "step")
        about.append(f"{after} each" if steps[0] == steps[1] else f"{steps[0]} → {after}")
    lead, title = _clauses(comparison)
    interval = comparison.interval
    beside_title, memory = mfu_sentence(comparison), memory_table(comparison)
    timelines: dict[str, Any] | None = None
    if is_comparable and many <= _MOST_PAIRS:
        timelines = pair(sides, names)
    elif is_comparable:
        lacking = [f"A page has timelines of at most {_MOST_PAIRS} comparisons."]
        timelines = {"sides": [], "ticks": [], "lacking": lacking, "looks": set()}
    return {
        "id": id_,
        "names": names,
        "about": about,
        "is_comparable": is_comparable,
        "is_unsure": interval is not None and interval.holds_zero,
        "lead": lead,
        "title": title,
        "figure": _figure(comparison),
        "beside": list(_beside(comparison)),
        "sums": list(_sums(comparison)),
        "sure": list(_sure(comparison, names)),
        "bars": bars(sides, names, interval, is_joined=True) if has_times else None,
        "waterfall": waterfall(comparison, names),
        "timelines": timelines,
        "changes": _tables(comparison, id_, _MOST_ROWS // many),
        "more": [text for text in more_sentences(comparison) if text != beside_title],
        "memory": memory if memory.rows else None,
        "counted": counted_change(comparison),
        "sides": sides_table(shown),
        "alike": unlike_table(comparison) if comparison.unlike else None,
        "notes": comparison.notes,
        "difference_ns": comparison.difference_ns,
        "before_ns": rounded(sides[0].mean_ns) if has_times else None,
        "after_ns": rounded(sides[1].mean_ns) if has_times else None,
    }


def _clauses(comparison: Comparison) -> tuple[str, str]:
    """Return the caveats ("" for none), and the title: what changed and its first reason."""
    if comparison.obstacle or comparison.is_same:
        return "", comparison.sentence
    difference_ns, interval = comparison.difference_ns, comparison.interval
    if difference_ns and interval is not None and interval.holds_zero:
        title = fact("comparison.title-spread")  # steps differ as much as the two sides
    else:
        reasons = comparison.reasons if difference_ns else []
        title = title_of(comparison.before, comparison.after, difference_ns, reasons)
    return " ".join(map(words, comparison.caveats)), words(title)


def _figure(comparison: Comparison) -> str:
    """Return the change of the step time in percent, "" if the two cannot be compared."""
    if comparison.obstacle or comparison.is_same:
        return ""
    return share_words(comparison)


def _beside(comparison: Comparison) -> Iterator[str]:
    """Yield the lines below the figure: what it measures, its 95 % interval, the MFUs."""
    if not _figure(comparison):
        return
    yield "step time" if comparison.before.steps else "recording"
    interval, mean_ns = comparison.interval, float(comparison.before.mean_ns)
    if interval is None or interval.low_ns == interval.high_ns:
        yield words(sureness(interval, comparison.before, comparison.after))
    elif interval.holds_zero:
        ends = (signed_percent(end / mean_ns) for end in interval)
        yield f"95 % interval {' to '.join(ends)}"
    else:  # both ends have the same sign, which becomes a word
        low, high = sorted(100 * abs(end) / mean_ns for end in interval)
        more_or_less = "more" if interval.low_ns > 0 else "less"
        yield f"95 % interval {low:.1f} to {high:.1f} % {more_or_less}"
    if text := mfu_sentence(comparison):
        yield text


def _sums(comparison: Comparison) -> Iterator[tuple[str, int, list[tuple[int, str]]]]:
    """Yield the sum of the causes in the direction of the difference, then of those against it.

    The two add up to the difference. Each is a label, its ns, and its items: ns and text of the
    largest sure causes, of the other sure causes together, and of the noise.
    """
    if not comparison.difference_ns:
        return
    is_slower = comparison.difference_ns > 0
    signs = (("Lost", 1), ("Won back", -1)) if is_slower else (("Gained", -1), ("Given back", 1))
    for label, sign in signs:
        causes = [cause for cause in changed_causes(comparison) if cause.ns * sign > 0]
        if not causes:
            continue
        sure = [cause for cause in causes if not cause.is_noise]
        named = [cause for cause in sure[:_NAMED] if abs(cause.ns) >= _LEAST * abs(causes[0].ns)]
        texts = [(abs(cause.ns), cause_label(cause)) for cause in named]
        if others := sure[len(named) :]:
            others_ns = sum(abs(cause.ns) for cause in others)
            texts.append((others_ns, several(len(others), "other")))
        if noise_ns := sum(abs(cause.ns) for cause in causes if cause.is_noise):
            texts.append((noise_ns, "within the spread between steps"))
        yield label, abs(sum(cause.ns for cause in causes)), texts


def _sure(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """Yield how sure the difference is, if any, and the steps that stand out on each side."""
    if comparison.obstacle or comparison.is_same:
        return
    interval = comparison.interval
    if interval is None:
        yield "Unknown: the spread between steps needs two steps on each side."
        return
    change = "Slower" if comparison.difference_ns > 0 else "Faster"
    if interval.low_ns == interval.high_ns:
        yield "All steps of a side take the same time."
    elif interval.holds_zero:
        yield "Not sure: the interval holds 0, so there may be no difference."
    else:
        yield f"{change}: the interval excludes 0."
    for side, name in zip((comparison.before, comparison.after), names, strict=True):
        step_and_ns = outstanding(side)
        if step_and_ns is not None:
            step, ns = step_and_ns
            yield f"Step {step} of {name} stands out: {duration(ns)}."


def _tables(comparison: Comparison, id_: str, most: int) -> list[dict[str, Any]]:
    """Return the tables of causes and of parts, each with at most `most` of its `total` rows.

    A row has a cell per head of `heads`, its `share` of the largest change, and the `last` cell.
    """
    causes, parts = changed_causes(comparison), changed_parts(comparison)
    if not causes:
        return []
    cause_rows, part_rows = [], []
    for cause in causes[:most]:
        what, detail = cause_words(cause)
        times = (sum(p.before_ns for p in cause.parts), sum(p.after_ns for p in cause.parts))
        row = _row(cause, causes[0], what, detail, [duration(float(ns)) for ns in times])
        cause_rows.append(row | {"last": interval_ends(cause.interval), "is_noise": cause.is_noise})
    for part, cells in zip(parts, parts_table(comparison, most).rows, strict=False):
        name, *figures, _, matched_by = cells  # the change is drawn, not printed
        more = f" and {len(part.scopes) - 1} more" if len(part.scopes) > 1 else ""
        scope = f"{part.scopes[0]}{more}" if part.scopes else ""
        idle = f"idle, {CLASSES.get(part.subject, part.subject)}"
        row = _row(part, parts[0], name, idle if part.kind == "idle" else scope, figures)
        part_rows.append(row | {"last": matched_by, "is_noise": False})  # no interval tells noise
    return [
        {
            "name": f"causes{id_}",
            "label": "By cause",
            "heads": ("Before", "After"),
            "last": "95 % interval",
            "rows": cause_rows,
            "total": len(causes),
        },
        {
            "name": f"parts{id_}",
            "label": "By kernel and culprit",
            "heads": ("Calls", "Before", "After"),
            "last": "Matched by",
            "rows": part_rows,
            "total": len(parts),
        },
    ]


def _row(
    change: Cause | Part, largest: Cause | Part, what: Cell, detail: str, cells: Sequence[Cell]
) -> dict[str, Any]:
    """Return a row of either table without its last cell."""
    return {
        "look": change.component,
        "what": what,
        "detail": detail,
        "cells": cells,
        "ns": change.ns,
        "share": change.ns / abs(largest.ns),
    }
