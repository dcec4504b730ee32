"""The table of pages: what writing one costs on top of the analysis, and how large it is.

`python -m tests.benchmarks.pages CASE` measures one of them in a process of its own.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import traceflops as tf
from tests.benchmarks.cost import run
from tests.benchmarks.table import Table, legend
from tests.conftest import SAMPLES
from tests.reports.bigtraces import big_trace

_SAMPLE: Final = "the sample of 4 ranks"
CASES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "a million kernels": (1, 100, 10_000, 3),
    "512 ranks of 100 steps": (512, 100, 20, 3),
    "10,000 steps": (1, 10_000, 100, 3),
    "a million kernels, no ops": (1, 100, 10_000, 0),
}
"""Ranks, steps, kernels of each of these, and how deep the ops around each kernel are."""

PAGES: Final = (_SAMPLE, *CASES)
_HEADS = ("page", "events", "analyze CPU s", "page CPU s", "MB", "analyze peak MB", "page peak MB")


@dataclass(frozen=True, slots=True)
class PageCost:
    """What a page costs: CPU seconds, and the most memory of the process up to then."""

    events: int
    analyze_s: float
    page_s: float
    mb: float
    analyze_peak_mb: float
    page_peak_mb: float


def print_pages(pages: Iterable[str], scale: float, runs: int) -> None:
    """Measure and print the table; the cases that are made have steps by this scale."""
    table = Table(*_HEADS)
    for name in pages:
        words = [sys.executable, "-m", "tests.benchmarks.pages", name, str(scale)]
        costs = [PageCost(**json.loads(run(words, watched=False).output)) for _ in range(runs)]
        best = min(costs, key=lambda cost: cost.page_s)
        table.print(
            name,
            f"{best.events:,}",
            f"{best.analyze_s:.2f}",
            f"{best.page_s:.2f}",
            f"{best.mb:.2f}",
            f"{best.analyze_peak_mb:.0f}",
            f"{best.page_peak_mb:.0f}",
        )
    legend(
        [
            "page: making the HTML of an analysis in a fresh process, with all imports it needs.",
            "peak MB: the most that the process had resident up to then, the trace included.",
            f"Times are the best of {runs} runs.",
        ]
    )


def page_cost(trace: tf.Trace) -> PageCost:
    """Return what analysing a trace and making its page cost in this process."""
    began = time.process_time()
    analysis = tf.analyze(trace)
    analyzed, peak_mb = time.process_time(), _peak_mb()
    from traceflops.reports.page.html import render_html  # its import is part of the cost

    page = render_html(analysis)
    return PageCost(
        events=sum(trace.table(name).num_rows for name in ("activities", "calls", "ops", "marks")),
        analyze_s=analyzed - began,
        page_s=time.process_time() - analyzed,
        mb=len(page.encode()) / 1e6,
        analyze_peak_mb=peak_mb,
        page_peak_mb=_peak_mb(),
    )


def _peak_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _trace(name: str, scale: float) -> tf.Trace:
    if name == _SAMPLE:
        return tf.read(Path(SAMPLES, "gpt_ddp_4rank"))
    ranks, steps, kernels, depth = CASES[name]
    return big_trace(ranks, max(round(steps * scale), 1), kernels, depth=depth)


if __name__ == "__main__":
    print(json.dumps(asdict(page_cost(_trace(sys.argv[1], float(sys.argv[2]))))))
