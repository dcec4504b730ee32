"""The table of pages: what writing one costs on top of the analysis, its size, how fast it draws.

`python -m tests.benchmarks.pages CASE` measures one of them in a process of its own.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import traceflops as tf
from tests.benchmarks.cost import run
from tests.benchmarks.table import Table, legend
from tests.conftest import SAMPLES
from tests.reports.bigtraces import big_trace
from tests.reports.conftest import chromium

_SAMPLE: Final = "the sample of 4 ranks"
CASES: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "66,000 kernels": (1, 30, 2_200, 3),
    "a million kernels": (1, 100, 10_000, 3),
    "512 ranks of 100 steps": (512, 100, 20, 3),
    "10,000 steps": (1, 10_000, 100, 3),
    "a million kernels, no ops": (1, 100, 10_000, 0),
}
"""Ranks, steps, kernels of each of these, and how deep the ops around each kernel are."""

PAGES: Final = (_SAMPLE, *CASES)
_HEADS = (
    *("page", "events", "analyze CPU s", "page CPU s", "MB", "analyze peak MB", "page peak MB"),
    *("paint ms", "paint CPU ms", "frame CPU ms"),
)
_TRACED = ["disabled-by-default-devtools.timeline", "loading", "blink.user_timing"]
_MOVES, _PAUSE_MS = 40, 30


@dataclass(frozen=True, slots=True)
class PageCost:
    """What a page costs: CPU seconds, and the most memory of the process up to then."""

    events: int
    analyze_s: float
    page_s: float
    mb: float
    analyze_peak_mb: float
    page_peak_mb: float
    paint_ms: float
    paint_cpu_ms: float
    frame_cpu_ms: float


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
            *(f"{ms:.0f}" for ms in (best.paint_ms, best.paint_cpu_ms, best.frame_cpu_ms)),
        )
    legend(
        [
            "page: making the HTML of an analysis in a fresh process, with all imports it needs.",
            "paint: until the first content shows. frame: 95 % of the frames while zooming and",
            "selecting in the timeline take at most this; CPU is of the page's main thread.",
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
    page_s, page_peak_mb = time.process_time() - analyzed, _peak_mb()
    return PageCost(
        events=sum(trace.table(name).num_rows for name in ("activities", "calls", "ops", "marks")),
        analyze_s=analyzed - began,
        page_s=page_s,
        mb=len(page.encode()) / 1e6,
        analyze_peak_mb=peak_mb,
        page_peak_mb=page_peak_mb,
        **_drawn(page),
    )


def _drawn(page: str) -> dict[str, float]:
    """Return what drawing a page costs; nothing is known where there is no browser."""
    try:
        return _drawing(page)
    except FileNotFoundError:
        return dict.fromkeys(("paint_ms", "paint_cpu_ms", "frame_cpu_ms"), math.nan)


def _drawing(page: str) -> dict[str, float]:
    """Return what a browser needs to show a page, and for each frame while one works in it."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        view = browser.new_page(viewport={"width": 1280, "height": 900})
        browser.start_tracing(page=view, categories=_TRACED)
        view.goto(path.as_uri())
        view.wait_for_timeout(3_000)
        paint_ms = view.evaluate("performance.getEntriesByType('paint').at(-1).startTime")
        view.locator("#timeline-view").scroll_into_view_if_needed()
        box = view.locator("#timeline-view").bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] / 2
        view.mouse.move(middle, box["y"] + 100)
        view.evaluate("performance.mark('worked')")
        view.keyboard.down("Control")
        for move in range(_MOVES):
            view.mouse.wheel(0, 60 if 2 * move >= _MOVES else -60)
            view.wait_for_timeout(_PAUSE_MS)
        view.keyboard.up("Control")
        view.mouse.down()
        for move in range(_MOVES):
            view.mouse.move(middle - 8 * move, box["y"] + 100)
            view.wait_for_timeout(_PAUSE_MS)
        view.mouse.up()
        events = json.loads(browser.stop_tracing())["traceEvents"]
    return {"paint_ms": paint_ms, **_of_main_thread(events)}


def _of_main_thread(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return CPU time until the first content, and of the frames when the page is worked in."""
    at = {one["name"]: one for one in events if one["name"] in ("firstContentfulPaint", "worked")}
    thread = [at["firstContentfulPaint"][name] for name in ("pid", "tid")]
    mine = [one for one in events if [one["pid"], one["tid"]] == thread]
    frames = sorted(one["ts"] for one in mine if one["name"] == "Commit")
    tasks = [one for one in mine if one["name"] == "RunTask" and "tdur" in one]
    first = sum(one["tdur"] for one in tasks if one["ts"] < at["firstContentfulPaint"]["ts"])
    of_frame: Counter[int] = Counter()
    for one in tasks:
        if one["ts"] > at["worked"]["ts"]:
            of_frame[bisect(frames, one["ts"])] += one["tdur"]
    times = sorted(of_frame.values())
    return {"paint_cpu_ms": first / 1e3, "frame_cpu_ms": times[len(times) * 95 // 100] / 1e3}


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
