"""The table of growth: what a million events cost in traces of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import programs
from tests.benchmarks.cost import MEMORY, Cost, best
from tests.benchmarks.table import Table, legend
from tests.benchmarks.tile import write

_HEADS = (
    "case",
    "MB",
    "events",
    "wall s",
    "s per million events",
    "of the first",
    "peak MB",
    "MB per million events",
    "of the first",
)


def print_growth(folder: Path, sizes: Sequence[float], runs: int, jobs: int) -> None:
    """Measure and print the table; all cases of one size come before the next size."""
    table = Table(*_HEADS)
    firsts: dict[str, tuple[float, float]] = {}
    for size in sizes:
        trace = write(folder / "trace.json", size)
        for case, program in programs.CASES.items():
            for processes in dict.fromkeys((1, jobs)):
                name = f"{case}, {processes} process{'es' if processes > 1 else ''}"
                cost = best(program(trace.path, processes), runs)
                each = _per_million(cost, trace.events)
                first = firsts.setdefault(name, each)
                table.print(
                    name,
                    f"{trace.mb:.0f}",
                    f"{trace.events:,}",
                    f"{cost.wall_s:.2f}",
                    f"{each[0]:.2f}",
                    f"{each[0] / first[0]:.2f}",
                    f"{cost.peak_mb:.0f}",
                    f"{each[1]:.0f}",
                    f"{each[1] / first[1]:.2f}",
                )
    legend(
        [
            "of the first: what a million events take, over the same at the first size. 1 is "
            "linear; what every run takes whatever its size makes it smaller.",
            f"peak MB: {MEMORY}, in the first run.",
            f"Times are the best of {runs} runs.",
        ]
    )


def _per_million(cost: Cost, events: int) -> tuple[float, float]:
    return cost.wall_s * 1e6 / events, cost.peak_mb * 1e6 / events
