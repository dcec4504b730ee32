"""The table of steps: each component against its median over the steps used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.reports.page.step_rows import Row
from traceflops.reports.view import LOOKS, duration
from traceflops.windows import StepSpread, median_of, spread_of

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

MOST_ROWS: Final = 200
_FIRST: Final = 50
_TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class Part:
    """The time of a component in one step, and how much more that is than the median.

    `more` is empty where there is nothing to compare with.
    """

    ns: int
    more: str
    is_much: bool


@dataclass(frozen=True, slots=True)
class StepShown:
    """A row of the table; `link` is what follows # in a link to it."""

    row: Row
    link: str
    time: Part
    parts: list[Part]
    slowest: bool


@dataclass(frozen=True, slots=True)
class StepsPage:
    """The rows that are shown of `total`, the medians, and the components that any row has.

    `spread` is how the steps used differ, None for fewer than two.
    """

    rows: list[StepShown]
    total: int
    components: list[str]
    medians: dict[str, int]
    compared: int
    spread: StepSpread | None

    @property
    def first(self) -> int:
        """Return how many rows are shown because they are the first."""
        return _FIRST

    @property
    def worst(self) -> int:
        """Return how many rows are shown because they are the longest."""
        return len(self.rows) - _FIRST


def steps_page(analysis: Analysis, rows: Sequence[Row]) -> StepsPage:
    """Return the table of the windows of an analysis."""
    components = [name for name in LOOKS if any(row.components.parts()[name] for row in rows)]
    used = [row for row in rows if row.used and row.role == "step"]
    medians = _medians(used, components) if len(used) > 1 else {}
    spread = spread_of(analysis.devices) if len(used) > 1 else None
    slowest = str(spread.longest.step) if spread is not None else None
    shown = [
        _shown(row, components, medians, row.role == "step" and row.label == slowest)
        for row in chosen_rows(rows)
    ]
    return StepsPage(shown, len(rows), components, medians, len(used), spread)


def _medians(used: Sequence[Row], components: Sequence[str]) -> dict[str, int]:
    parts = [row.components.parts() for row in used]
    found = {name: median_of([one[name] for one in parts]) for name in components}
    return {_TIME: median_of([row.dur_ns for row in used])} | found


def chosen_rows(rows: Sequence[Row]) -> list[Row]:
    """Return all rows, or where there are too many the first and the longest, in order of time."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    later = sorted(range(_FIRST, len(rows)), key=lambda place: -rows[place].dur_ns)
    return [rows[place] for place in (*range(_FIRST), *sorted(later[: MOST_ROWS - _FIRST]))]


def _shown(
    row: Row, components: Sequence[str], medians: dict[str, int], slowest: bool
) -> StepShown:
    parts = row.components.parts()
    # The stretches before and after the steps are no steps: nothing of them is too long.
    compared = medians if row.role == "step" else {}
    whole = compared.get(_TIME, 0)
    return StepShown(
        row,
        f"step={row.label}" if row.role == "step" else "",
        _part(row.dur_ns, compared.get(_TIME), whole),
        [_part(parts[name], compared.get(name), whole) for name in components],
        slowest,
    )


def _part(ns: int, usual: int | None, whole_ns: int) -> Part:
    if usual is None:
        return Part(ns, "", False)
    if ns == usual:
        return Part(ns, "±0", False)
    sign = "+" if ns > usual else "\N{MINUS SIGN}"
    return Part(ns, f"{sign}{duration(abs(ns - usual))}", 20 * (ns - usual) > whole_ns)
