"""The critical path: what decided the time of the chosen windows, as tables, a line and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
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

_MOST: Final = 5
_NAMED: Final = 3
_HARDLY_IDLE, _APART = 0.15, 0.1
"""Up to such a share of idle time, so much more time of the host on the path contradicts it."""
_WORDS: Final = {
    **CLASSES,
    BESIDE: "untraced host time beside GPU work",
    CALLS_BESIDE: "driver calls beside GPU work",
    "unexplained": "not explained",
}
_LISTS: Final = ("components", "kernels", "host", "ranks")


def path_word(component: str) -> str:
    """Return what to call a component of a critical path."""
    return _WORDS.get(component, component.replace("_", " "))


def sums_by_component(parts: Iterable[PathPart]) -> list[tuple[str, int]]:
    """Return the time of each component, the largest first."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums[part.component] += part.ns
    return sums.most_common()


def _told(analysis: Analysis) -> Replay | None:
    """Return the replay whose path is told, None where none is known or it would mislead."""
    replay, _ = analysis.replay_or_reason
    if replay is None or not replay.before_ns:
        return None
    # Beside a GPU that is hardly idle, a path through the host is only a little longer than the
    # GPU's own work: what it names holds up nothing.
    idle = sum(analysis.components.share(name) or 0.0 for name in ("idle", "start_up"))
    of_work = sum(part.ns for part in replay.critical if part.component in WORK) / replay.before_ns
    return None if idle <= _HARDLY_IDLE and 1 - of_work - idle > _APART else replay


def critical_sentence(analysis: Analysis) -> str:
    """Return the largest components of the path, "" where it is not told."""
    replay = _told(analysis)
    if replay is None:
        return ""
    largest = sums_by_component(replay.critical)[:_NAMED]
    parts = (f"{path_word(name)} {percent(ns / replay.before_ns)}" for name, ns in largest)
    return f"Critical path: {', '.join(parts)}."


def critical_tables(analysis: Analysis) -> Iterator[ReportTable]:
    """Yield the path by component, by rank if there are several, and by its largest parts."""
    replay = _told(analysis)
    if replay is None:
        return
    windows, path_ns = max(replay.windows, 1), replay.before_ns
    named = [part for part in replay.critical if part.name]
    # By the head of its first column the rows of a table: a name, and its ns in all windows.
    tables: dict[str, list[tuple[Cell, int]]] = {
        "Component": [(path_word(name), ns) for name, ns in sums_by_component(replay.critical)],
        "Rank": [(str(rank), ns) for rank, ns in replay.by_rank.items()],
        "Largest parts": [
            (
                (path_word(part.component), Name(without_return_type(part.name), part.name)),
                part.ns,
            )
            for part in named
        ],
    }
    for head, rows in tables.items():
        columns = (
            Column(head, lambda row: row[0]),
            Column.number("Mean", lambda row: duration(row[1] / windows)),
            Column.number("Share", lambda row: Share(row[1] / path_ns)),
        )
        if head != "Rank" or len(rows) > 1:
            yield table_of(columns, rows[:_MOST], len(rows))


def critical_object(analysis: Analysis) -> dict[str, Any]:
    """Return the path as JSON: sums over the chosen windows; null and why, if it is unknown."""
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
