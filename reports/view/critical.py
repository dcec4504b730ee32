"""The critical path, the chain of work and waits that decided the time of the chosen windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from traceflops.analysis.result import Analysis
from traceflops.attribution.culprits import BESIDE, CALLS_BESIDE
from traceflops.attribution.idle_classes import CLASSES
from traceflops.categories.kernel_names import without_return_type
from traceflops.replay.critical_path import PathPart
from traceflops.replay.what_if import Replay
from traceflops.reports.view.figures import duration, percent
from traceflops.reports.view.tables import Cell, Column, Name, ReportTable, Share, table_of
from traceflops.reports.view.texts import words
from traceflops.timeline.records import WORK
from traceflops.units import several

_MOST: Final = 5
_NAMED: Final = 3
_HARDLY_IDLE, _APART = 0.15, 0.1
"""With at most the first share of idle time, host work on the path may exceed that by the second:
a path with more of it names work that holds up nothing."""
_WORDS: Final = {
    **CLASSES,
    BESIDE: "untraced host time beside GPU work",
    CALLS_BESIDE: "driver calls beside GPU work",
    "unexplained": "not explained",
}
_LISTS: Final = ("components", "kernels", "host", "ranks")


def path_word(component: str) -> str:
    """Return the name of a component of a critical path."""
    return _WORDS.get(component, component.replace("_", " "))


def sums_by_component(parts: Iterable[PathPart]) -> list[tuple[str, int]]:
    """Return each component and its ns on the path, the largest first."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums[part.component] += part.ns
    return sums.most_common()


def _usable_replay(analysis: Analysis) -> Replay | None:
    """Return the replay that has the critical path, None if it is unknown or would mislead."""
    replay, _ = analysis.replay_or_reason
    if replay is None or not replay.before_ns:
        return None
    # If the GPU is hardly idle, a path through the host is only a little longer than the GPU's own
    # work, and shortening the host work on it would gain next to nothing.
    idle_share = sum(analysis.components.share(name) or 0.0 for name in ("idle", "start_up"))
    work_ns = sum(part.ns for part in replay.critical if part.component in WORK)
    host_share = 1 - work_ns / replay.before_ns
    is_misleading = idle_share <= _HARDLY_IDLE and host_share - idle_share > _APART
    return None if is_misleading else replay


def critical_sentence(analysis: Analysis) -> str:
    """Return a sentence on the largest components of the path, "" without a usable path."""
    replay = _usable_replay(analysis)
    if replay is None:
        return ""
    largest = sums_by_component(replay.critical)[:_NAMED]
    parts = (f"{path_word(name)} {percent(ns / replay.before_ns)}" for name, ns in largest)
    return f"Critical path: {', '.join(parts)}."


def critical_tables(analysis: Analysis) -> Iterator[ReportTable]:
    """Yield the path by component, by rank if there are several, and by its largest parts."""
    replay = _usable_replay(analysis)
    if replay is None:
        return
    windows, path_ns = max(replay.windows, 1), replay.before_ns
    by_component = [(path_word(name), ns) for name, ns in sums_by_component(replay.critical)]
    by_rank = [(str(rank), ns) for rank, ns in replay.by_rank.items()]
    by_part: list[tuple[Cell, int]] = []
    for part in replay.critical:
        if part.name:
            name = Name(without_return_type(part.name), part.name)
            by_part.append(((path_word(part.component), name), part.ns))

    # A row is a name and its ns in all windows.
    def table(head: str, rows: Sequence[tuple[Cell, int]]) -> ReportTable:
        columns = (
            Column(head, lambda row: row[0]),
            Column.number("Mean", lambda row: duration(row[1] / windows)),
            Column.number("Share", lambda row: Share(row[1] / path_ns)),
        )
        others = rows[_MOST:]
        rest = (several(len(others), "other"), sum(ns for _, ns in others))
        return table_of(columns, [*rows[:_MOST], *([rest] if others else [])])

    yield table("Component", by_component)
    if len(by_rank) > 1:
        yield table("Rank", by_rank)
    yield table("Largest parts", by_part)


def critical_object(analysis: Analysis) -> dict[str, Any]:
    """Return the path as JSON, summed over the chosen windows; if unknown, nulls and the reason."""
    replay, reason = analysis.replay_or_reason
    if replay is None:
        return {"total_ns": None, **dict.fromkeys(_LISTS), "reason": words(reason)}
    total_ns = replay.before_ns  # the windows as recorded, before any edit of what-if

    def row(ns: int, **about: str | int | None) -> dict[str, Any]:
        return {**about, "ns": ns, "share": ns / total_ns if total_ns else None}

    named = [part for part in replay.critical if part.name]
    work = [part for part in named if part.component in WORK]
    host = [part for part in named if part.component not in WORK]
    components = sums_by_component(replay.critical)
    return {
        "total_ns": total_ns,
        "components": [row(ns, component=component) for component, ns in components],
        "kernels": [row(part.ns, component=part.component, name=part.name) for part in work],
        "host": [row(part.ns, **{"class": part.component, "label": part.name}) for part in host],
        "ranks": [row(ns, rank=rank) for rank, ns in replay.by_rank.items()],
        "reason": None,
    }
