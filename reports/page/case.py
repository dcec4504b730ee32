"""The first screen: what is wrong, how large, where, what to do, how sure, and what shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.facts import fact
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.findings.finding import WORTH_SAYING, Finding
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.unevenness import UNEVEN_STEPS, largest_part
from traceflops.memory.usage import Curve, memory_use
from traceflops.reports.page import evidence, overview
from traceflops.reports.page.steps import MOST_SMALL, drawn_bars, window_rows
from traceflops.reports.page.thumbnails import thumbnail
from traceflops.reports.view import step_split, wording
from traceflops.reports.view.figures import duration, percent, size
from traceflops.reports.view.findings import left_to_say, opening, title_finding
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import why_not
from traceflops.units import PART_NAMES
from traceflops.windows.device_records import PARTIAL

_MOST_CARDS: Final = 3
_POINTS: Final = 60
_WHOLE: Final = 100.0
_SPELLED: Final = {"MFU": "model FLOPs utilisation", "HFU": "hardware FLOPs utilisation"}
_LEVELS: Final = ("low", "medium", "high")


class Spark(Struct, frozen=True):
    """A drawing of 100 by 100: its text, an SVG path, and the path of what stands out."""

    text: str
    path: str
    marked: str = ""


class Tile(Struct, frozen=True):
    """One figure: its label, its value, a text beside it, the section it links to, a drawing.

    `spelled` follows the label where that is an abbreviation.
    """

    label: str
    value: str
    text: str
    link: str = ""
    spark: Spark | None = None
    spelled: str = ""

    @property
    def number(self) -> str:
        """Return the figure without its unit."""
        return self.value.rpartition(" ")[0] or self.value

    @property
    def unit(self) -> str:
        """Return its unit, "" for none."""
        return self.value.rpartition(" ")[2] if " " in self.value else ""


def case_values(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the first screen; without findings (`found`) none is its title."""
    found = evidence.findings_shown(analysis) if has_findings(analysis) else None
    opened = opening(analysis)
    heading, more = opened.heading()
    causes = list(found.causes.rows) if found else []
    best = title_finding(analysis) if found else None
    about = _component(analysis, best.finding) if best else ""
    parts = step_split.told_parts(analysis, best.finding if best else None, about)
    cards = []
    for cause in causes[:_MOST_CARDS]:
        finding = cause.words.finding
        component = _component(analysis, finding)
        card = {
            "shown": cause,
            "drawing": thumbnail(analysis, finding, component),
            "marks": _LEVELS.index(finding.confidence.level) + 1 if finding.confidence else 0,
            "component": component,
        }
        cards.append(card)
    return {
        "title": heading,
        "rest": " ".join(filter(None, (more, opened.rest))),
        "doubts": wording.doubts(analysis),
        "chip": analysis.measured.figure or "",
        "no_mfu": bool(why_not(analysis.measured)) and bool(analysis.devices),
        "best": best,
        "left": left_to_say(best.finding, opened) if best else "",
        "left_names_it": opened.tells is not None,
        "parts": parts,
        "step": duration(sum(part.ns for part in parts)),
        "tiles": list(tiles(analysis, parts)),
        "cards": cards,
        "more": causes[_MOST_CARDS:],
        # The title already tells of the best finding, if it is of a counted kernel.
        "others": [
            (finding, places)
            for finding, places in (found.others if found else ())
            if best is None or finding != best.finding or finding.rule != COUNTED_KERNEL
        ],
        "hidden": found.causes.hidden if found else 0,
        "is_judged": found is not None,
        "is_no_trace": analysis.source.format in SIDE_FORMATS,
        "provenance": wording.provenance(analysis, most_files=1),
        "basis": wording.basis(analysis),
        "scope": step_split.scope(analysis),
        "outside": "" if step_split.begins_late(analysis) else step_split.outside(analysis),
    }


def is_judged(analysis: Analysis) -> bool:
    """Return whether findings were possible, or if recorded in part, any has a confidence."""
    unjudged = analysis.on_host or analysis.recorded in overview.UNRECORDED
    if analysis.recorded in PARTIAL:
        unjudged = all(finding.confidence is None for finding in analysis.findings)
    return bool(analysis.components.window_ns) and not unjudged


def has_findings(analysis: Analysis) -> bool:
    """Return whether to show findings: some were possible, or some are of counted kernels."""
    return is_judged(analysis) or any(f.rule == COUNTED_KERNEL for f in analysis.findings)


def _component(analysis: Analysis, finding: Finding) -> str:
    """Return the component that a finding is about.

    For uneven steps it is the one that is most above its usual time in the longest step. Else it is
    told by the name of the rule, a section of the evidence, or the kernels with the most time.
    """
    if finding.rule == UNEVEN_STEPS and analysis.spread is not None:
        return largest_part(analysis.spread)[0]
    of_section = {"communication": "communication", "ranks": "communication", "idle": "idle"}
    if "memory" in finding.rule or "copies" in finding.rule:
        return "memory"
    kernels, times = evidence.kernels_by_row(analysis), Counter({"compute": 0})
    for row in finding.rows:
        named = [kernels[row.name]] if row.name in kernels else []
        if finding.rule == MAIN_KERNEL:  # the row has what the names of its variants share
            named = [kernel for name, kernel in kernels.items() if row.name in name]
        if named:
            top = named[0]["top"]
            times[top if top in LINE_LOOKS else "other"] += row.time_ns
    largest = max(times, key=lambda top: times[top])
    return next((of_section[name] for name in finding.evidence if name in of_section), largest)


def tiles(analysis: Analysis, parts: Sequence[step_split.StepPart]) -> Iterator[Tile]:
    """Yield at most four tiles; a figure that is zero or unknown gets none."""
    if not analysis.components.window_ns:
        return
    measured, steps = analysis.measured, analysis.steps
    if (share := measured.mfu_range or measured.hfu_range) is not None:
        name = "HFU" if measured.mfu_range is None else "MFU"
        value = words(fact("utilisation.tile", share=(share.least, share.most)))
        yield Tile(name, value, measured.basis, "peak", spelled=f" ({_SPELLED[name]})")
    if steps.typical_ns is None:
        mean = analysis.mean_ns(analysis.components.window_ns)
        yield Tile("Window", duration(mean), "no steps found", "steps")
    else:
        median = f"median of {wording.steps_counted(analysis)}"
        used = median if len(steps.seen) > 1 else "the only step"
        text = "; ".join(filter(None, (used, ", ".join(wording.step_times(analysis)))))
        spark = _step_spark(analysis)
        yield Tile("Step time", duration(steps.typical_ns), text, "steps", spark)
    yield from _largest_loss(analysis, parts)
    uses = memory_use(analysis.prepared) if analysis.prepared is not None else ()
    on_devices = [use for use in uses if not use.on_host and use.allocated.peak]
    if on_devices:
        most = max(on_devices, key=lambda use: use.allocated.peak)
        capacity = f"allocated, of {size(most.device_bytes, binary=True)}"
        known = capacity if most.device_bytes else "allocated"
        # Without what was allocated before the recording, no total is known.
        text = known if most.is_total else "change since recording start"
        spark = _curve(most.allocated.curve, most.allocated.peak)
        yield Tile("Peak memory", size(most.allocated.peak, binary=True), text, "memory", spark)


def _step_spark(analysis: Analysis) -> Spark | None:
    """Return the steps as bars, the longest step used marked; None if there are fewer than two."""
    bars = drawn_bars(window_rows(analysis.devices), MOST_SMALL)
    longest = max((bar.components.window_ns for bar in bars), default=0)
    if len(bars) < 2 or not longest:
        return None
    width = _WHOLE / len(bars)
    heights = [_WHOLE * bar.components.window_ns / longest for bar in bars]
    used = [number for number, bar in enumerate(bars) if bar.used]
    marked = max(used, key=lambda number: heights[number], default=None)
    paths = [  # each bar: from the bottom edge up, right by 80 % of its room, and down
        f"M{number * width:.2f} 100v{-height:.1f}h{width * 0.8:.2f}v{height:.1f}z"
        for number, height in enumerate(heights)
    ]
    times = sorted(bar.components.window_ns for bar in bars)
    text = f"Steps: {duration(times[0])} to {duration(times[-1])}"
    plain = "".join(path for number, path in enumerate(paths) if number != marked)
    return Spark(text, plain, paths[marked] if marked is not None else "")


def _largest_loss(analysis: Analysis, parts: Sequence[step_split.StepPart]) -> Iterator[Tile]:
    """Yield the largest loss of a step, if it is worth saying.

    Idle time of a partial recording may be work that was not recorded: nothing is said of it.
    Memory work is a loss only where FLOPs have a peak; else it may be the GPU's purpose. All idle
    time is one loss if that is the largest, but a class larger than any other loss is named alone.
    """
    if analysis.recorded in PARTIAL:
        return
    measured = analysis.measured
    has_peak = measured.mfu_range is not None or measured.hfu_range is not None
    losses = [
        part
        for part in parts
        if part.is_loss
        # Running operators and the host code between them (culprits) is what a CPU is for: it only
        # loses the idle time that has no known cause.
        and (part.name == "idle" or not analysis.on_host)
        and (part.name != "memory" or has_peak)
    ]
    largest = max(losses, key=lambda part: part.ns, default=None)
    idle = [loss for loss in losses if loss.name in ("idle", step_split.CULPRIT)]
    if largest is not None and largest not in idle and sum(one.ns for one in idle) > largest.ns:
        # As in the verdict.
        idle_ns, idle_share = sum(one.ns for one in idle), sum(one.share for one in idle)
        largest = step_split.StepPart("idle", PART_NAMES["idle"], idle_ns, idle_share)
    if largest is not None and largest.share >= WORTH_SAYING:
        text = f"{percent(largest.share)} of the {wording.window(analysis)}"
        label = f"Largest loss: {largest.label}"
        yield Tile(label, duration(largest.ns), text, largest.sections[0])


def _curve(curve: Curve, peak: int) -> Spark | None:
    """Return a curve as a filled path of columns of highest values, None without a length."""
    length = int(curve.time_ns[-1] - curve.time_ns[0])
    if length <= 0:
        return None
    column = (curve.time_ns - curve.time_ns[0]) * (_POINTS - 1) // length
    tops = np.zeros(_POINTS, dtype=np.int64)
    np.maximum.at(tops, column, curve.value)
    has_value = np.zeros(_POINTS, dtype=bool)
    has_value[column] = True
    # Per column the last one up to it that has a value; the first column always has one.
    source = np.maximum.accumulate(np.where(has_value, np.arange(_POINTS), 0))
    heights = _WHOLE - _WHOLE * tops[source] / peak  # SVG counts from the top
    steps = "".join(f"V{y:.1f}H{(at + 1) * _WHOLE / _POINTS:.1f}" for at, y in enumerate(heights))
    return Spark("Allocated memory over time", f"M0 100{steps}V100Z")
