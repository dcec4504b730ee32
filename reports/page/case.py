"""The first screen: what is wrong, how large, where, what to do, how sure, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct

from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.facts import fact
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.findings.finding import WORTH_SAYING
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.unevenness import UNEVEN_STEPS, largest_part
from traceflops.memory.usage import memory_use
from traceflops.reports.page import evidence, overview
from traceflops.reports.page.steps import small_bars
from traceflops.reports.page.thumbnails import thumbnail
from traceflops.reports.view import wording
from traceflops.reports.view.figures import duration, percent, size
from traceflops.reports.view.findings import left_to_say, opening, title_finding
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.step_split import (
    CULPRIT,
    StepPart,
    outside,
    scope,
    step_after,
    told_parts,
)
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import why_not
from traceflops.reports.view.wording import provenance, step_times, steps_counted
from traceflops.units import PART_NAMES
from traceflops.windows.device_records import PARTIAL

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.findings.finding import Finding
    from traceflops.memory.usage import Curve

_MOST_CARDS: Final = 3
_POINTS: Final = 60
_WHOLE: Final = 100.0
_LEVELS: Final = ("low", "medium", "high")


class Spark(Struct, frozen=True):
    """A small drawing of 100 by 100: a path and the path of what stands out; what it says."""

    text: str
    path: str
    marked: str = ""


class Tile(Struct, frozen=True):
    """One figure with its name, what belongs beside it, and a drawing of it."""

    label: str
    value: str
    text: str
    link: str = ""
    spark: Spark | None = None

    @property
    def number(self) -> str:
        """Return the figure without its unit."""
        return self.value.rpartition(" ")[0] or self.value

    @property
    def unit(self) -> str:
        """Return its unit, "" for none."""
        return self.value.rpartition(" ")[2] if " " in self.value else ""


def case_values(analysis: Analysis) -> dict[str, Any]:
    """Return what the first screen shows."""
    found = evidence.findings_shown(analysis) if has_findings(analysis) else None
    opened = opening(analysis)
    causes = list(found.causes.rows) if found else []
    best = title_finding(analysis) if found else None
    about = _component(analysis, best.finding) if best else ""
    parts = told_parts(analysis, best.finding if best else None, about)
    after: dict[str, Any] | None = None
    if best is not None and (bounds := step_after(analysis, best.finding)) is not None:
        # The step as a thin bar and, below it, what a remedy makes of it, in percent of now.
        least, most = (_WHOLE * ns / bounds.now_ns for ns in (bounds.least_ns, bounds.most_ns))
        ends = dict.fromkeys(map(duration, (bounds.least_ns, bounds.most_ns)))
        after = {"now": duration(bounds.now_ns), "fixed": " to ".join(ends)}
        after |= {"least": round(least, 2), "open": round(most - least, 2)}
    cards = []
    for shown in causes[:_MOST_CARDS]:
        component = _component(analysis, shown.words.finding)
        drawing = thumbnail(analysis, shown.words.finding, component)
        sure = shown.words.finding.confidence
        marks = _LEVELS.index(sure.level) + 1 if sure else 0  # of three
        cards.append({"shown": shown, "drawing": drawing, "marks": marks, "component": component})
    return {
        "title": opened.title,
        "rest": opened.rest,
        "doubts": wording.doubts(analysis),
        "chip": analysis.measured.figure or "",
        "no_mfu": bool(why_not(analysis.measured)) and bool(analysis.devices),
        "best": best,
        "left": left_to_say(best.finding, opened) if best else "",
        "left_names_it": opened.tells is not None,
        "after": after,
        "parts": parts,
        "step": duration(sum(part.ns for part in parts)),
        "tiles": list(tiles(analysis, parts)),
        "cards": cards,
        "more": causes[_MOST_CARDS:],
        "others": [
            one
            for one in (found.others if found else ())
            if best is None or one[0] != best.finding or one[0].rule != COUNTED_KERNEL
        ],
        "hidden": found.causes.hidden if found else 0,
        "is_judged": found is not None,
        "is_no_trace": analysis.source.format in SIDE_FORMATS,
        "provenance": provenance(analysis, most_files=1),
        "basis": wording.basis(analysis),
        "scope": scope(analysis),
        "outside": outside(analysis),
    }


def is_judged(analysis: Analysis) -> bool:
    """Return whether there is anything that findings could be about: of a part, what they are."""
    unjudged = analysis.on_host or analysis.recorded in overview.UNRECORDED
    if analysis.recorded in PARTIAL:
        unjudged = all(finding.confidence is None for finding in analysis.findings)
    return bool(analysis.components.window_ns) and not unjudged


def has_findings(analysis: Analysis) -> bool:
    """Return whether findings are shown: where any could be, or of counted kernels."""
    return is_judged(analysis) or any(f.rule == COUNTED_KERNEL for f in analysis.findings)


def _component(analysis: Analysis, finding: Finding) -> str:
    """Return the component that a finding is about: of its section, else of its largest kernels.

    Of uneven steps that of which the longest has most more than usual.
    """
    if finding.rule == UNEVEN_STEPS and analysis.spread is not None:
        return largest_part(analysis.spread)[0]
    of_section = {"communication": "communication", "ranks": "communication", "idle": "idle"}
    if "memory" in finding.rule or "copies" in finding.rule:
        return "memory"
    kernels, times = evidence.kernels_by_row(analysis), Counter({"compute": 0})
    for row in finding.rows:
        named = [kernels[row.name]] if row.name in kernels else []
        if finding.rule == MAIN_KERNEL:  # of several variants: what their names have in common
            named = [kernel for name, kernel in kernels.items() if row.name in name]
        for top in (kernel["top"] for kernel in named[:1]):
            times[top if top in LINE_LOOKS else "other"] += row.time_ns
    largest = max(times, key=lambda top: times[top])
    return next((of_section[one] for one in finding.evidence if one in of_section), largest)


def tiles(analysis: Analysis, parts: Sequence[StepPart]) -> Iterator[Tile]:
    """Yield at most four figures; none is zero or unknown."""
    if not analysis.components.window_ns:
        return
    measured = analysis.measured
    if (share := measured.mfu_range or measured.hfu_range) is not None:
        name = "HFU" if measured.mfu_range is None else "MFU"
        value = words(fact("utilisation.tile", share=(share.least, share.most)))
        yield Tile(name, value, measured.basis, "peak")
    steps = analysis.steps
    if steps.typical_ns is None:
        mean = analysis.mean_ns(analysis.components.window_ns)
        yield Tile("Window", duration(mean), "no steps found", "steps")
    else:
        used = f"median of {steps_counted(analysis)}" if len(steps.seen) > 1 else "the only step"
        text = "; ".join(filter(None, (used, ", ".join(step_times(analysis)))))
        spark = _step_spark(analysis)
        yield Tile("Step time", duration(steps.typical_ns), text, "steps", spark)
    yield from _largest_loss(analysis, parts)
    # The memory of the device that allocated most, where that is recorded in full.
    every = memory_use(analysis.prepared) if analysis.prepared is not None else ()
    on_devices = [use for use in every if not use.on_host and use.allocated.peak]
    if on_devices:
        most = max(on_devices, key=lambda use: use.allocated.peak)
        capacity = f"allocated, of {size(most.device_bytes, binary=True)}"
        known = capacity if most.device_bytes else "allocated"
        text = known if most.is_total else "change since recording start"
        spark = _curve(most.allocated.curve, most.allocated.peak)
        yield Tile("Peak memory", size(most.allocated.peak, binary=True), text, "memory", spark)


def _step_spark(analysis: Analysis) -> Spark | None:
    """Return the steps as bars, the longest of those used marked."""
    bars = small_bars(analysis.devices)
    longest = max((bar.components.window_ns for bar in bars), default=0)
    if len(bars) < 2 or not longest:
        return None
    width = _WHOLE / len(bars)
    heights = [_WHOLE * bar.components.window_ns / longest for bar in bars]
    used = [at for at, bar in enumerate(bars) if bar.used]
    marked = max(used, key=lambda at: heights[at], default=-1)
    paths = [
        f"M{at * width:.2f} 100v{-height:.1f}h{width * 0.8:.2f}v{height:.1f}z"
        for at, height in enumerate(heights)
    ]
    times = sorted(bar.components.window_ns for bar in bars)
    text = f"Steps: {duration(times[0])} to {duration(times[-1])}"
    plain = "".join(path for at, path in enumerate(paths) if at != marked)
    return Spark(text, plain, paths[marked] if marked >= 0 else "")


def _largest_loss(analysis: Analysis, parts: Sequence[StepPart]) -> Iterator[Tile]:
    """Yield the largest loss of a step, if there is any.

    Memory work is lost beside a peak of FLOPs; else it may be what the GPU is for.
    """
    measured = analysis.measured
    has_peak = measured.mfu_range is not None or measured.hfu_range is not None
    losses = [
        part
        for part in parts
        if part.is_loss
        and (part.name == "idle" or not analysis.on_host)
        and (part.name != "memory" or has_peak)
    ]
    largest = max(losses, key=lambda part: part.ns, default=None)
    idle = [loss for loss in losses if loss.name in ("idle", CULPRIT)]
    if largest is not None and largest not in idle and sum(one.ns for one in idle) > largest.ns:
        # As in the verdict, which splits it no further.
        sums = sum(one.ns for one in idle), sum(one.share for one in idle)
        largest = StepPart("idle", PART_NAMES["idle"], *sums)
    if largest is None or largest.share < WORTH_SAYING:
        return
    if analysis.recorded not in PARTIAL:
        text = f"{percent(largest.share)} of the {'step' if analysis.steps.used else 'window'}"
        label = f"Largest loss: {largest.label}"
        yield Tile(label, duration(largest.ns), text, largest.sections[0])


def _curve(curve: Curve, peak: int) -> Spark | None:
    """Return a curve as a filled path: of each of some stretches of time its highest value."""
    length = int(curve.time_ns[-1] - curve.time_ns[0])
    if length <= 0:
        return None
    column = (curve.time_ns - curve.time_ns[0]) * (_POINTS - 1) // length
    tops = np.zeros(_POINTS, dtype=np.int64)
    np.maximum.at(tops, column, curve.value)
    known = np.zeros(_POINTS, dtype=bool)
    known[column] = True
    last = np.maximum.accumulate(np.where(known, np.arange(_POINTS), 0))
    heights = _WHOLE - _WHOLE * tops[last] / peak
    steps = "".join(f"V{y:.1f}H{(at + 1) * _WHOLE / _POINTS:.1f}" for at, y in enumerate(heights))
    return Spark("Allocated memory over time", f"M0 100{steps}V100Z")
