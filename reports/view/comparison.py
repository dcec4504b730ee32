"""A comparison as tables: the sides, causes that sum to the difference, what differs besides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import add
from typing import Final

from traceflops.attribution.idle_classes import CLASSES
from traceflops.comparison.difference import Cause, Part
from traceflops.comparison.reasons import share_of, short, sureness
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval
from traceflops.reports.view.compared_kernels import counted_change
from traceflops.reports.view.figures import (
    UNKNOWN,
    duration,
    signed_duration,
    signed_percent,
    significant,
    size,
    times_between,
    with_sign,
)
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.recorded_shapes import shape_words
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, spaced, table_of
from traceflops.reports.view.texts import words
from traceflops.units import PART_NAMES, capitalized, exact_percent

_CAUSES: Final = 12
_PARTS: Final = 15
_WIDEST: Final = 90
_SHAPES: Final = 30
_KINDS: Final = {
    "pace": "time per call",
    "calls": "number of calls",
    "replaced": "other kernels",
    "new": "new kernels",
    "gone": "kernels gone",
    "wait": "waiting for ranks",
    "untold": "not told apart",
}
_OF_CALLS: Final = {"calls": ("calls",), "pace": ("per call",), "wait": ("waiting",)}
"""What tells rows of one kernel apart."""
_HOLDERS: Final = 3
_HELD: Final = {
    "allocated": "unknown operators",
    "earlier": "before the recording",
    "untold": "not told apart",
}
_COMPONENTS: Final = {
    "compute": "Compute",
    "memory": "Memory",
    "other": "Uncategorized",
    "graph": "Graphs",
    "communication": "Exposed comm",
    "start_up": "Start-up",
    "idle": "Idle",
}


def share_words(comparison: Comparison) -> str:
    """Return the difference as a share of the mean window before: "+8.1 %"."""
    return signed_percent(share_of(comparison.difference_ns, comparison.before))


def interval_ends(found: Interval | None) -> str:
    """Return the ends of an interval with their signs, a dash for None."""
    return (
        " to ".join(signed_duration(round(end)) for end in found) if found is not None else UNKNOWN
    )


def cause_label(cause: Cause) -> str:
    """Return what a cause is about: "gemm: time per call", "idle: loading data"."""
    if cause.kind == "idle":
        return f"idle: {CLASSES.get(cause.subject, cause.subject)}"
    return f"{spaced(cause.subject)}: {_KINDS[cause.kind]}"


_CAUSE: Final = (
    Column("Cause", cause_label),
    Column("Component", lambda cause: LOOKS[cause.component].label),
    Column.number("Change", lambda cause: signed_duration(cause.ns)),
    Column.number("95 % interval", lambda cause: interval_ends(cause.interval)),
    Column("", lambda cause: "within the spread" if cause.is_noise else ""),
)


def _mean(component: str, side: Side) -> str:
    return duration(float(side.per_window(side.components.parts()[component])))


_SIDE: Final = (
    Column.number("Steps", lambda side: str(len(side.steps)) if side.steps else UNKNOWN),
    *(Column.number(head, partial(_mean, name)) for name, head in _COMPONENTS.items()),
    Column.number("MFU", lambda side: exact_percent(side.mfu) if side.mfu is not None else UNKNOWN),
    Column.number("Peak bytes", lambda side: size(side.memory_bytes)),
)


def _calls(part: Part) -> str:
    """Return the calls per window, before and after if they differ."""
    if part.calls is None:
        return UNKNOWN
    old, new = (significant(calls, 3) for calls in part.calls)
    return old if old == new else f"{old} → {new}"


def _labels(parts: Iterable[Part]) -> dict[str, str]:
    """Return labels for the first names of parts that look alike, by name; they differ."""
    names = list({names[0]: None for part in parts for names in part.names if names})
    if len(names) == 1:  # there is nothing to tell it from
        return {names[0]: short(names[0], _WIDEST)}
    return dict(zip(names, short_labels(names, _WIDEST), strict=True))


def _names(labels: Mapping[str, str], part: Part) -> tuple[str, ...]:
    """Return the pieces of text that name a part: its kernels or culprit, else its subject.

    Of several kernels the first is named, by its label if there is one. If the sides have different
    kernels, both are told.
    """
    old, new = part.names
    sides = [old, new] if old and new and set(old) != set(new) else [new or old]
    if not any(map(any, sides)):
        return (CLASSES.get(part.subject) or PART_NAMES.get(part.subject, part.subject),)
    # By what is shown, so that sides that look alike are told once.
    shown = {
        (labels.get(names[0]) or short(names[0], _WIDEST), len(names) - 1): ", ".join(names)
        for names in sides
    }
    pieces: list[str] = []
    if part.kind == "idle":
        pieces.append(f"{CLASSES.get(part.subject, part.subject)}:")
    for number, ((name, more), whole) in enumerate(shown.items()):
        if number:
            pieces.append("→")
        pieces.append(Name(name, whole))
        if more:
            pieces.append(f"and {more} more")
    return tuple(pieces)


def _of_calls(part: Part) -> tuple[str, ...]:
    """Return the word that tells the rows of one kernel apart, () if it has only one row."""
    # A kernel has a row for the number of calls besides that for their time if the number changed.
    has_other = part.calls is not None and part.calls[0] != part.calls[1] and all(part.calls)
    return _OF_CALLS.get(part.kind, ()) if has_other else ()


def _launched(column: str, part: Part) -> str:
    """Return a column of the launch of the first kernel, "" if it differs between the sides."""
    values = {getattr(kernel, column) or "" for side in part.work for kernel in side[:1]}
    return shape_words(min(values), _SHAPES) if len(values) == 1 else ""


_DETAILS: Final[tuple[Callable[[Part], str], ...]] = (
    lambda part: spaced(part.subject),
    lambda part: Name(short(part.scopes[0], _SHAPES), part.scopes[0]) if part.scopes else "",
    partial(_launched, "op"),
    partial(_launched, "shapes"),
    partial(_launched, "group"),
)
"""What tells rows apart that have the same names, the first that does."""


def _heads(parts: Sequence[Part]) -> list[Cell]:
    """Return the first cell of each row of one table: what the part is, in words that differ.

    Rows that look alike get longer names, then one detail after the other until they differ.
    """
    ends = list(map(_of_calls, parts))
    heads = [_names({}, part) for part in parts]
    for places in _alike(heads, ends):
        labels = _labels(parts[place] for place in places)
        for place in places:
            heads[place] = _names(labels, parts[place])
    for detail in _DETAILS:
        for places in _alike(heads, ends):
            details = [detail(parts[place]) for place in places]
            if len(set(details)) > 1:  # else it tells none of them apart
                for place, text in zip(places, details, strict=True):
                    heads[place] += (text,) if text else ()
    return list(map(add, heads, ends))


def _alike(heads: Sequence[tuple[str, ...]], ends: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """Return groups of rows that have the same text, if several have it; a row is a head + end."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for place, (head, end) in enumerate(zip(heads, ends, strict=True)):
        rows[" ".join((*head, *end))].append(place)
    return [places for places in rows.values() if len(places) > 1]


_PART: Final = (
    Column("What changed most", lambda row: row[0]),
    Column.number("Calls", lambda row: _calls(row[1])),
    Column.number("Before", lambda row: duration(float(row[1].before_ns))),
    Column.number("After", lambda row: duration(float(row[1].after_ns))),
    Column.number("Change", lambda row: signed_duration(row[1].ns)),
    Column(
        "Matched by",
        lambda row: (
            row[1].way or ("one side only" if 0 in (row[1].before_ns, row[1].after_ns) else UNKNOWN)
        ),
    ),
)


def compared(comparisons: Sequence[Comparison]) -> list[Side]:
    """Return the baseline and the sides that are compared with it; none if no side can be.

    Figures of recordings that cannot be compared do not stand beside each other.
    """
    sides = [one.after for one in comparisons if not one.obstacle]
    return [comparisons[0].before, *sides] if sides else []


def sides_table(sides: Iterable[Side]) -> ReportTable:
    """Return a row per recording: its step time and where that goes.

    Columns that are unknown or 0 on all sides are left out.
    """
    shown = [side for side in sides if side.windows]
    nothing = (UNKNOWN, duration(0))
    known = [one for one in _SIDE if any(one.cell(side) not in nothing for side in shown)]
    head = "Mean step" if all(side.steps for side in shown) else "Mean window"
    mean = Column.number(head, lambda side: duration(float(side.mean_ns)))
    return table_of((Column("Recording", lambda side: Name(side.name)), mean, *known), shown)


def changed_causes(comparison: Comparison) -> list[Cause]:
    """Return the causes that are not 0, largest first."""
    changed = (cause for cause in comparison.causes if cause.ns)
    return sorted(changed, key=lambda cause: -abs(cause.ns))


def changed_parts(comparison: Comparison) -> list[Part]:
    """Return the parts that are not 0, largest first."""
    parts = (part for cause in comparison.causes for part in cause.parts if part.ns)
    return sorted(parts, key=lambda part: -abs(part.ns))


def causes_table(comparison: Comparison) -> ReportTable:
    """Return the causes, largest first; what is not shown is one row, and all is the last one."""
    ordered = changed_causes(comparison)
    table = table_of(_CAUSE, ordered[:_CAUSES])
    rest = sum(cause.ns for cause in ordered[_CAUSES:])
    rows = [*table.rows]
    if len(ordered) > _CAUSES:
        rows.append([f"{len(ordered) - _CAUSES} others", "", signed_duration(rest), UNKNOWN, ""])
    if rows:
        ends = interval_ends(comparison.interval)
        rows.append(["all", "", signed_duration(comparison.difference_ns), ends, ""])
    return ReportTable(table.columns, rows, len(rows))


def parts_table(comparison: Comparison, most: int = _PARTS) -> ReportTable:
    """Return the kernels and culprits that changed most."""
    parts = changed_parts(comparison)
    shown = parts[:most]
    return table_of(_PART, list(zip(_heads(shown), shown, strict=True)), len(parts))


def unlike_table(comparison: Comparison) -> ReportTable:
    """Return what else differs between the two."""
    columns = (
        Column("Not alike", lambda one: one.what),
        Column(comparison.before.name, lambda one: one.before),
        Column(comparison.after.name, lambda one: one.after),
    )
    return table_of(columns, comparison.unlike)


def mfu_sentence(comparison: Comparison) -> str:
    """Return the MFU before and after, and what changed it.

    "" if that is unknown, or both sides are the same recording.
    """
    found = comparison.mfu
    if found is None or comparison.is_same:
        return ""
    causes = {"FLOPs": found.flops, "time": found.time, "the peak": found.peak}
    parts = [
        f"{with_sign(significant(abs(share) * 100, 3, zeros=True), share)} points by {name}"
        for name, share in causes.items()
        if share
    ]
    why = f" ({', '.join(parts)})" if parts else ""
    return f"MFU {exact_percent(found.before)} → {exact_percent(found.after)}{why}."


def more_sentences(comparison: Comparison) -> list[str]:
    """Return sentences on the change of MFU, of the time per sample or token, and of memory."""
    sentences = (mfu_sentence(comparison), _per_unit(comparison), _peak_memory(comparison))
    return [sentence for sentence in sentences if sentence]


def _per_unit(comparison: Comparison) -> str:
    """Return the times per unit, such as a token, if steps have not as many as before; else ""."""
    # By the change: of units that change alike only the first is told.
    shown = {
        one.share: f"per {spaced(one.unit)}: {times_between((one.before_ns, one.after_ns), ' → ')} "
        f"({signed_percent(one.share)})"
        for one in reversed(comparison.per_unit)
        if one.before_count != one.after_count
    }
    return capitalized(f"{'; '.join(reversed(shown.values()))}.") if shown else ""


def _peak_memory(comparison: Comparison) -> str:
    """Return the peak before and after, and who holds more or less of it; "" if it is the same.

    Holders are named if they make at least a tenth of the largest change.
    """
    found = comparison.memory
    if found is None or not found.difference_bytes:
        return ""
    least, held = abs(found.parts[0].bytes) / 10, []
    for part in found.parts[:_HOLDERS]:
        amount = f"{size(abs(part.bytes))} {'more' if part.bytes > 0 else 'less'}"
        under = f" under {short(part.scope)}" if part.scope else ""
        who = f"by {part.op or 'unknown operators'}{under}"
        if part.kind == "earlier":
            who = "held since before the recording"
        # What is not told apart has no holder to name.
        if part.kind != "untold" and abs(part.bytes) >= least:
            held.append(f"{amount} {who}")
    ends = f"{size(found.before_bytes)} → {size(found.after_bytes)}"
    why = f": {'; '.join(held)}" if held else ""
    return f"Peak memory {ends} ({change_of_size(found.difference_bytes)}){why}."


def change_of_size(number: int) -> str:
    """Return a difference in bytes with its sign."""
    return with_sign(size(abs(number)), number)


_MEMORY: Final = (
    Column("At the peak of memory", lambda part: Name(part.op) if part.op else _HELD[part.kind]),
    Column("In", lambda part: Name(short(part.scope), part.scope) if part.scope else UNKNOWN),
    Column.number("Before", lambda part: size(part.before_bytes)),
    Column.number("After", lambda part: size(part.after_bytes)),
    Column.number("Change", lambda part: change_of_size(part.bytes)),
)


def memory_table(comparison: Comparison) -> ReportTable:
    """Return who allocated what is held at the peak; rows beyond _PARTS are summed in the last."""
    found = comparison.memory
    parts = found.parts if found is not None else ()
    table = table_of(_MEMORY, parts[:_PARTS])
    if len(parts) <= _PARTS:
        return table
    rest = change_of_size(sum(part.bytes for part in parts[_PARTS:]))
    rows = [*table.rows, [f"{len(parts) - _PARTS} others", "", "", "", rest]]
    return ReportTable(table.columns, rows, len(rows))


def comparison_tables(comparison: Comparison) -> Iterator[tuple[str, ReportTable]]:
    """Yield the tables of a comparison, each after its title."""
    yield "Recordings", sides_table(compared([comparison]))
    yield "Not alike", unlike_table(comparison)
    yield "From the old step time to the new one", causes_table(comparison)
    yield "What changed most", parts_table(comparison)
    yield "Kernels by counters", counted_change(comparison)
    yield "Peak memory", memory_table(comparison)


def runs_table(comparisons: Sequence[Comparison]) -> ReportTable:
    """Return a row per recording against the first side, which all have in common.

    A recording that cannot be compared (`obstacle`) has no row.
    """
    columns = (
        Column("Recording", lambda one: Name(one.after.name)),
        Column.number("Step", lambda one: duration(float(one.after.mean_ns))),
        Column.number("Change", lambda one: signed_duration(one.difference_ns)),
        Column.number("Share", share_words),
        Column("How sure", _how_sure),
        Column(
            "Largest cause",
            lambda one: next((cause_label(cause) for cause in one.causes if cause.ns), UNKNOWN),
        ),
    )
    return table_of(columns, [comparison for comparison in comparisons if not comparison.obstacle])


def _how_sure(comparison: Comparison) -> str:
    """Return whether the change is beyond the spread between steps, with its interval."""
    found = comparison.interval
    if comparison.is_same:
        return "the same recording"
    if found is not None and found.holds_zero:
        return "within the spread"
    return words(sureness(found, comparison.before, comparison.after))
