"""The table of worst cases: what each costs, and how that grows from a tenth of its size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import programs
from tests.benchmarks.cost import MEMORY, Failed, best
from tests.benchmarks.table import Table, legend
from tests.benchmarks.worst import Case

_HEADS = (
    "case",
    "size",
    "events",
    "read s",
    "analyze s",
    "us per event",
    "growth",
    "peak MB",
    "summary s",
    "report s",
    "growth",
)


@dataclass(frozen=True, slots=True)
class _Costs:
    """What one size of a case costs."""

    events: int
    read_s: float
    analyze_s: float
    peak_mb: float
    summary_s: float
    report_s: float

    @property
    def us_per_event(self) -> float:
        """Return the time of reading and analysing."""
        return (self.read_s + self.analyze_s) * 1e6 / self.events

    @property
    def report_us_per_event(self) -> float:
        """Return the time of a report."""
        return self.report_s * 1e6 / self.events


def print_worst(folder: Path, cases: Iterable[Case], scale: float, runs: int, jobs: int) -> None:
    """Measure and print the table."""
    table = Table(*_HEADS)
    for case in cases:
        size = max(round(case.usual * scale), 1)
        try:
            small = _measure(folder, case, max(size // 10, 1), runs, jobs)
            _print_row(table, case, size, small, _measure(folder, case, size, runs, jobs))
        except Failed as failure:
            why = str(failure).strip().splitlines()[-1][:80]
            table.print(case.name, f"failed: {why}", *[""] * (len(_HEADS) - 2))
    legend(
        [
            "Seconds are of CPU time. analyze: with findings. us per event: reading and analysing. "
            "summary and report: the whole command, its start included.",
            "growth: the time per event, in analysing or in the report, over that at a tenth of "
            "the size. 1 or less is linear, 10 is quadratic.",
            f"peak MB: of reading and analysing; {MEMORY}.",
            f"Times are the best of {runs} runs.",
        ]
    )


def _measure(folder: Path, case: Case, size: int, runs: int, jobs: int) -> _Costs:
    trace = folder / ("ranks" if case.ranks else "worst.json")
    events = case.write(trace, size)
    both = best(programs.analyze(trace), runs)
    told = json.loads(both.output)
    costs = _Costs(
        events,
        told["read_s"],
        told["analyze_s"],
        both.peak_mb,
        best(programs.summary(trace, jobs), runs).cpu_s,
        best(programs.report(trace, jobs), runs).cpu_s,
    )
    shutil.rmtree(trace) if case.ranks else trace.unlink()
    return costs


def _print_row(table: Table, case: Case, size: int, small: _Costs, costs: _Costs) -> None:
    growth = costs.analyze_s / costs.events / (small.analyze_s / small.events)
    table.print(
        case.name,
        f"{size:,} {case.counts}",
        f"{costs.events:,}",
        f"{costs.read_s:.2f}",
        f"{costs.analyze_s:.2f}",
        f"{costs.us_per_event:.2f}",
        f"{growth:.1f}",
        f"{costs.peak_mb:.0f}",
        f"{costs.summary_s:.2f}",
        f"{costs.report_s:.2f}",
        f"{costs.report_us_per_event / small.report_us_per_event:.1f}",
    )
