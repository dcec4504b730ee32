"""What the GPUs wait on: idle time by class of culprit, with the names that take most of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from traceflops.analysis import Analysis
from traceflops.attribution import CLASSES, Culprit

WORTH_SHOWING: Final = 0.03
"""Share of the idle time from which a class is shown, and of the window from which any is."""
_NAMES: Final = 2


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """Idle time of one class of culprits; `share` is of all idle time, `names` the largest.

    `gaps` is how many there are, None where several names may share some.
    """

    kind: str
    words: str
    idle_ns: int
    share: float
    names: tuple[str, ...]
    gaps: int | None


def waited_for(analysis: Analysis) -> list[WaitedFor]:
    """Return what the GPUs wait on, the largest first; nothing where idle time hardly matters."""
    idle_ns = analysis.components.idle_ns
    if (analysis.components.share("idle") or 0) < WORTH_SHOWING or analysis.on_host:
        return []
    by_kind: defaultdict[str, list[Culprit]] = defaultdict(list)
    for culprit in analysis.idle.culprits:
        by_kind[culprit.kind].append(culprit)
    rows = [_row(kind, culprits, idle_ns) for kind, culprits in by_kind.items()]
    rows = [row for row in rows if row.share >= WORTH_SHOWING]
    return sorted(rows, key=lambda row: row.idle_ns, reverse=True)


def _row(kind: str, culprits: list[Culprit], idle_ns: int) -> WaitedFor:
    mine = sum(culprit.idle_ns for culprit in culprits)
    named = [culprit.label for culprit in culprits if culprit.label]
    names = named[:1] if 2 * culprits[0].idle_ns >= mine else named[:_NAMES]
    gaps = culprits[0].gaps if len(culprits) == 1 else None
    return WaitedFor(kind, CLASSES[kind], mine, mine / idle_ns, tuple(names), gaps)
