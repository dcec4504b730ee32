"""A comparison as tables: the two sides, causes that sum to the difference, what else differs.

A part is a kernel, group of kernels or culprit whose time changed; a cause sums up parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, attrgetter
from typing import Final

from traceflops.attribution.idle_classes import CLASSES
from traceflops.comparison.difference import Cause, Part
from traceflops.comparison.reasons import share_of, short, sureness
from traceflops.comparison.result import Comparison
from traceflops.comparison.side import Side
from traceflops.comparison.spread import Interval
from traceflops.reports.view.counted import counted_change
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
from traceflops.reports.view.tables import Column, Name, ReportTable, spaced, table_of
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
"""The end of the first cell, by kind of part, if a kernel has several rows."""
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


def interval_ends(interval: Interval | None) -> str:
    """Return the ends of an interval with their signs, a dash for None."""
    if interval is None:
        return UNKNOWN
    return " to ".join(signed_duration(round(end)) for end in interval)


def cause_label(cause: Cause) -> str:
    """Return the label of a cause: "gemm: time per call", "idle: loading data"."""
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


def _names(labels: Mapping[str, str], part: Part) -> tuple[str, ...]:
    """Return texts that name a part: the first kernel of each side, a culprit, or the subject."""
    old, new = part.names
    sides = [old, new] if old and new and set(old) != set(new) else [new or old]
    if not any(map(any, sides)):
        return (CLASSES.get(part.subject) or PART_NAMES.get(part.subject, part.subject),)
    # The keys are what is printed: sides that look alike are printed once.
    shown = {
        (labels.get(names[0]) or short(names[0], _WIDEST), len(names) - 1): ", ".join(names)
        for names in sides
    }
    texts = [f"{CLASSES.get(part.subject, part.subject)}:"] if part.kind == "idle" else []
    for number, ((name, more), whole) in enumerate(shown.items()):
        if number:
            texts.append("→")
        texts.append(Name(name, whole))
        if more:
            texts.append(f"and {more} more")
    return tuple(texts)


def _launch_detail(field: str, part: Part) -> str:
    """Return a field of the first kernel's launch in words, "" if it differs between the sides."""
    values = {getattr(kernel, field) or "" for side in part.work for kernel in side[:1]}
    return shape_words(min(values), _SHAPES) if len(values) == 1 else ""


_DETAILS: Final[tuple[Callable[[Part], str], ...]] = (
    lambda part: spaced(part.subject),
    lambda part: Name(short(part.scopes[0], _SHAPES), part.scopes[0]) if part.scopes else "",
    partial(_launch_detail, "op"),
    partial(_launch_detail, "shapes"),
    partial(_launch_detail, "group"),
)
"""Details that distinguish rows with the same names, tried in this order."""


def _first_cells(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Return the first cell of each row; rows that look alike get longer names, then details."""
    # A kernel whose number of calls changed has one row for the calls and one for their time.
    ends: list[tuple[str, ...]] = []
    for part in parts:
        calls_changed = part.calls and all(part.calls) and part.calls[0] != part.calls[1]
        ends.append(_OF_CALLS.get(part.kind, ()) if calls_changed else ())
    heads = [_names({}, part) for part in parts]
    for alike in _alike(heads, ends):
        # Print the first names of these rows so that they differ; a single name cannot.
        sides = (names for row in alike for names in parts[row].names if names)
        first_names = list(dict.fromkeys(names[0] for names in sides))
        if len(first_names) > 1:
            labels = dict(zip(first_names, short_labels(first_names, _WIDEST), strict=True))
            for row in alike:
                heads[row] = _names(labels, parts[row])
    for detail_of in _DETAILS:
        for alike in _alike(heads, ends):
            details = [detail_of(parts[row]) for row in alike]
            if len(set(details)) > 1:  # else all have the same detail, which distinguishes none
                for row, detail in zip(alike, details, strict=True):
                    heads[row] += (detail,) if detail else ()
    return list(map(add, heads, ends))


def _alike(heads: Sequence[tuple[str, ...]], ends: Sequence[tuple[str, ...]]) -> list[list[int]]:
    """Return groups of rows (by index) that have the same text, which is a head and an end."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, (head, end) in enumerate(zip(heads, ends, strict=True)):
        rows[" ".join((*head, *end))].append(row)
    return [alike for alike in rows.values() if len(alike) > 1]


_PART: Final = (
    Column("What changed most", lambda row: row["head"]),
    Column.number("Calls", lambda row: row["calls"]),
    Column.number("Before", lambda row: duration(float(row["part"].before_ns))),
    Column.number("After", lambda row: duration(float(row["part"].after_ns))),
    Column.number("Change", lambda row: signed_duration(row["part"].ns)),
    Column("Matched by", lambda row: row["way"]),
)


def compared(comparisons: Sequence[Comparison]) -> list[Side]:
    """Return the baseline and the sides that can be compared with it, none if no side can be."""
    sides = [comparison.after for comparison in comparisons if not comparison.obstacle]
    return [comparisons[0].before, *sides] if sides else []


def sides_table(sides: Iterable[Side]) -> ReportTable:
    """Return a row per recording: its step time and what is known and not 0 on any side."""
    shown = [side for side in sides if side.windows]
    empty = (UNKNOWN, duration(0))
    used = [column for column in _SIDE if any(column.cell(side) not in empty for side in shown)]
    head = "Mean step" if all(side.steps for side in shown) else "Mean window"
    mean = Column.number(head, lambda side: duration(float(side.mean_ns)))
    return table_of((Column("Recording", lambda side: Name(side.name)), mean, *used), shown)


def changed_causes(comparison: Comparison) -> list[Cause]:
    """Return the causes that are not 0, largest first."""
    return sorted(filter(attrgetter("ns"), comparison.causes), key=lambda cause: -abs(cause.ns))


def changed_parts(comparison: Comparison) -> list[Part]:
    """Return the parts that are not 0, largest first."""
    parts = (part for cause in comparison.causes for part in cause.parts if part.ns)
    return sorted(parts, key=lambda part: -abs(part.ns))


def causes_table(comparison: Comparison) -> ReportTable:
    """Return the causes, largest first; then the sum of those not shown, and the sum of all."""
    causes = changed_causes(comparison)
    table = table_of(_CAUSE, causes[:_CAUSES])
    others_ns = sum(cause.ns for cause in causes[_CAUSES:])
    rows = [*table.rows]
    if len(causes) > _CAUSES:
        label = f"{len(causes) - _CAUSES} others"
        rows.append([label, "", signed_duration(others_ns), UNKNOWN, ""])
    if rows:
        ends = interval_ends(comparison.interval)
        rows.append(["all", "", signed_duration(comparison.difference_ns), ends, ""])
    return ReportTable(table.columns, rows, len(rows))


def parts_table(comparison: Comparison, most: int = _PARTS) -> ReportTable:
    """Return the kernels and culprits that changed most, at most `most` rows."""
    parts = changed_parts(comparison)
    rows = []
    for part, head in zip(parts, _first_cells(parts[:most]), strict=False):
        calls = dict.fromkeys(significant(number, 3) for number in part.calls or ())  # equal: once
        way = part.way or ("one side only" if 0 in (part.before_ns, part.after_ns) else UNKNOWN)
        rows.append({"head": head, "calls": " → ".join(calls) or UNKNOWN, "part": part, "way": way})
    return table_of(_PART, rows, len(parts))


def unlike_table(comparison: Comparison) -> ReportTable:
    """Return what else differs between the two recordings, such as their settings."""
    columns = (
        Column("Not alike", lambda unlike: unlike.what),
        Column(comparison.before.name, lambda unlike: unlike.before),
        Column(comparison.after.name, lambda unlike: unlike.after),
    )
    return table_of(columns, comparison.unlike)


def mfu_sentence(comparison: Comparison) -> str:
    """Return a sentence on the MFU before and after, and what changed it, "" if it is unknown."""
    mfu = comparison.mfu
    if mfu is None or comparison.is_same:
        return ""
    causes = {"FLOPs": mfu.flops, "time": mfu.time, "the peak": mfu.peak}
    parts = [
        f"{with_sign(significant(abs(share) * 100, 3, zeros=True), share)} points by {name}"
        for name, share in causes.items()
        if share
    ]
    why = f" ({', '.join(parts)})" if parts else ""
    return f"MFU {exact_percent(mfu.before)} → {exact_percent(mfu.after)}{why}."


def more_sentences(comparison: Comparison) -> list[str]:
    """Return sentences on promises, MFU, the time per sample or token, and memory.

    Times per unit are told if the number of units per step changed.
    """
    promise = comparison.promise
    # That no finding went, and the time changed, is what the comparison itself says.
    is_told = promise is not None and (promise.findings or promise.outcome != "other")
    sentences = [words(promise.fact) if promise and is_told else "", mfu_sentence(comparison)]
    # Of units whose time changed by the same share, such as samples and tokens, only the first is
    # told: the last one that sets the key.
    per_unit = {
        unit.share: f"per {spaced(unit.unit)}: "
        f"{times_between((unit.before_ns, unit.after_ns), ' → ')} ({signed_percent(unit.share)})"
        for unit in reversed(comparison.per_unit)
        if unit.before_count != unit.after_count
    }
    if per_unit:
        sentences.append(capitalized(f"{'; '.join(reversed(per_unit.values()))}."))
    sentences.append(_memory_sentence(comparison))
    return list(filter(None, sentences))


def _memory_sentence(comparison: Comparison) -> str:
    """Return the change of peak memory and its largest holders, "" if it did not change."""
    memory = comparison.memory
    if memory is None or not memory.difference_bytes:
        return ""
    least, holders = abs(memory.parts[0].bytes) / 10, []
    for part in memory.parts[:_HOLDERS]:
        if part.kind == "untold" or abs(part.bytes) < least:  # "untold" has no holder to name
            continue
        holder = f"by {part.op or 'unknown operators'}"
        if part.scope:
            holder += f" under {short(part.scope)}"
        if part.kind == "earlier":
            holder = "held since before the recording"
        holders.append(f"{size(abs(part.bytes))} {'more' if part.bytes > 0 else 'less'} {holder}")
    sizes = f"{size(memory.before_bytes)} → {size(memory.after_bytes)}"
    why = f": {'; '.join(holders)}" if holders else ""
    return f"Peak memory {sizes} ({change_of_size(memory.difference_bytes)}){why}."


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
    """Return who allocated the memory that is held at the peak; the last row sums up all others."""
    parts = comparison.memory.parts if comparison.memory is not None else ()
    table = table_of(_MEMORY, parts[:_PARTS])
    if len(parts) <= _PARTS:
        return table
    others = change_of_size(sum(part.bytes for part in parts[_PARTS:]))
    rows = [*table.rows, [f"{len(parts) - _PARTS} others", "", "", "", others]]
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
    """Return a row per recording that can be compared with the first one."""

    def how_sure(run: Comparison) -> str:
        if run.is_same:
            return "the same recording"
        if run.interval is not None and run.interval.holds_zero:
            return "within the spread"
        return words(sureness(run.interval, run.before, run.after))

    columns = (
        Column("Recording", lambda run: Name(run.after.name)),
        Column.number("Step", lambda run: duration(float(run.after.mean_ns))),
        Column.number("Change", lambda run: signed_duration(run.difference_ns)),
        Column.number("Share", share_words),
        Column("How sure", how_sure),
        Column(
            "Largest cause",
            lambda run: next((cause_label(cause) for cause in run.causes if cause.ns), UNKNOWN),
        ),
    )
    return table_of(columns, [comparison for comparison in comparisons if not comparison.obstacle])
