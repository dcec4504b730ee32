"""The first screen: what is wrong, how much it costs, where, the remedy, confidence, evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.devices.side_records import SIDE_FORMATS
from traceflops.facts import fact
from traceflops.findings.counted_estimates import COUNTED_KERNEL
from traceflops.findings.finding import WORTH_SAYING, Finding
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.memory.usage import Curve, memory_use
from traceflops.reports.page import evidence, overview
from traceflops.reports.page.steps import MOST_SMALL, drawn_bars, window_rows
from traceflops.reports.page.thumbnails import thumbnail
from traceflops.reports.view import step_split, wording
from traceflops.reports.view.figures import duration, percent, size
from traceflops.reports.view.findings import Opening, opening, title_finding
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.texts import sentences, words
from traceflops.reports.view.utilisation import figure_of, why_not
from traceflops.units import PART_NAMES
from traceflops.windows.device_records import PARTIAL

_MOST_CARDS: Final = 3
_POINTS: Final = 60
_BRIEF: Final = 20  # words of a remedy above the bar, if its first sentence has no more
_CLAUSE_END: Final = re.compile(r"[.:;](?: |$)")
_WHOLE: Final = 100.0
_SPELLED: Final = {"MFU": "model FLOPs utilisation", "HFU": "hardware FLOPs utilisation"}
_LEVELS: Final = ("low", "medium", "high")


class Spark(Struct, frozen=True):
    """A drawing of 100 by 100 units: its text, an SVG path, and the path of what is marked."""

    text: str
    path: str
    marked: str = ""


class Tile(Struct, frozen=True):
    """One figure: its label, its value, a text beside it, the section that it links to.

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
        """The figure without its unit."""
        return self.value.rpartition(" ")[0] or self.value

    @property
    def unit(self) -> str:
        """The unit of the figure, "" for none."""
        return self.value.rpartition(" ")[2] if " " in self.value else ""


def case_values(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the first screen; `best` is the finding that is its title, or None."""
    found = evidence.findings_shown(analysis) if has_findings(analysis) else None
    opened = opening(analysis)
    heading, more = opened.heading()
    said = opened.title.lower()
    causes = list(found.causes.rows) if found else []
    best = title_finding(analysis) if found else None
    best_component = _component(analysis, best.finding) if best else ""
    parts = step_split.told_parts(analysis, best.finding if best else None, best_component)
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
        # The notes have all of them.
        "doubts": [_CLAUSE_END.split(text, maxsplit=1)[0] for text in wording.doubts(analysis)],
        "chip": figure_of(analysis),
        # GPUs worked, and it is known why there is no MFU.
        "no_mfu": bool(analysis.devices) and why_not(analysis.measured),
        "best": best,
        "brief": _brief(best.finding.remedy) if best else "",
        "places": [name for name in best.where if name.lower() not in said] if best else [],
        "says_gain": opened.tells is None,
        # What the title is about, at least how long steps are.
        "title_sections": [
            *(best.finding.evidence if best else ()),
            *chain.from_iterable(part.sections for part in parts if part.is_told),
            "steps",
        ],
        "said": _said(best.finding, opened) if best else [],
        "parts": parts,
        "step": duration(sum(part.ns for part in parts)),
        "tiles": list(tiles(analysis, parts)),
        "cards": cards,
        "more": causes[_MOST_CARDS:],
        # The title already says everything about a counted kernel.
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
        "outside": "" if step_split.is_mostly_outside(analysis) else step_split.outside(analysis),
    }


def _said(best: Finding, opened: Opening) -> list[str]:
    """Return the sentences of the finding in the title: the claim only if the title lacks it."""
    details = " ".join(map(words, best.details))
    return sentences(details) if opened.tells is best else sentences(best.sentence)


def _brief(remedy: str) -> str:
    """Return the first sentences of a remedy: as many as are brief, at least one."""
    parts = sentences(remedy)
    lengths = accumulate(len(sentence.split()) for sentence in parts)
    return " ".join(parts[: max(sum(length <= _BRIEF for length in lengths), 1)])


def is_judged(analysis: Analysis) -> bool:
    """Return whether findings were possible; in a partial recording, whether any has a cause."""
    if not analysis.components.window_ns:
        return False
    if analysis.recorded in PARTIAL:
        return any(finding.confidence is not None for finding in analysis.findings)
    return not analysis.on_host and analysis.recorded not in overview.UNRECORDED


def has_findings(analysis: Analysis) -> bool:
    """Return whether to show findings: they were possible, or some are on counted kernels."""
    return is_judged(analysis) or any(f.rule == COUNTED_KERNEL for f in analysis.findings)


def _component(analysis: Analysis, finding: Finding) -> str:
    """Return the component that a finding is about.

    For uneven steps it is the one that exceeds its usual time most in the longest step. Otherwise
    the rule's name, a section of the evidence, or the category of most of its kernels decides.
    """
    if finding.rule == UNEVEN_STEPS and analysis.spread is not None:
        return analysis.spread.largest_part[0]
    if "memory" in finding.rule or "copies" in finding.rule:
        return "memory"
    of_section = {"communication": "communication", "ranks": "communication", "idle": "idle"}
    for section in finding.evidence:
        if section in of_section:
            return of_section[section]
    kernels, times_ns = evidence.kernels_by_row(analysis), Counter({"compute": 0})
    for row in finding.rows:
        kernel = kernels.get(row.name)
        if finding.rule == MAIN_KERNEL:  # the row has what the names of its variants share
            kernel = next((kernels[name] for name in kernels if row.name in name), None)
        if kernel is not None:
            top = kernel["top"]
            times_ns[top if top in LINE_LOOKS else "other"] += row.time_ns
    return max(times_ns, key=lambda top: times_ns[top])


def tiles(analysis: Analysis, parts: Sequence[step_split.StepPart]) -> Iterator[Tile]:
    """Yield at most four tiles: utilisation, step time, largest loss, peak memory, if known."""
    if not analysis.components.window_ns:
        return
    measured, steps = analysis.measured, analysis.steps
    if (share := measured.mfu_range or measured.hfu_range) is not None:
        name = "HFU" if measured.mfu_range is None else "MFU"
        value = words(fact("utilisation.tile", share=(share.least, share.most)))
        yield Tile(name, value, measured.basis, "peak", spelled=f" ({_SPELLED[name]})")
    elif analysis.devices and why_not(measured):
        yield Tile("MFU", "unknown", "why", "peak", spelled=f" ({_SPELLED['MFU']})")
    if steps.typical_ns is None:
        mean_ns = analysis.mean_ns(analysis.components.window_ns)
        yield Tile("Window", duration(mean_ns), "no steps found", "steps")
    else:
        is_single = len(steps.seen) <= 1
        used = "the only step" if is_single else f"median of {wording.steps_counted(analysis)}"
        text = "; ".join(filter(None, (used, ", ".join(wording.step_times(analysis)))))
        yield Tile("Step time", duration(steps.typical_ns), text, "steps", _step_spark(analysis))
    yield from _largest_loss(analysis, parts)
    uses = memory_use(analysis.prepared)
    on_devices = [use for use in uses if not use.on_host and use.allocated.peak]
    if on_devices:
        most = max(on_devices, key=lambda use: use.allocated.peak)
        text = "allocated"
        if not most.is_total:  # unknown how much was allocated before the recording
            text = "change since recording start"
        elif most.device_bytes:
            text = f"allocated, of {size(most.device_bytes, binary=True)}"
        spark = _curve(most.allocated.curve, most.allocated.peak)
        yield Tile("Peak memory", size(most.allocated.peak, binary=True), text, "memory", spark)


def _step_spark(analysis: Analysis) -> Spark | None:
    """Return the steps as bars, the longest used step marked; None if there are fewer than two."""
    bars = drawn_bars(window_rows(analysis.devices), MOST_SMALL)
    times_ns = [bar.components.window_ns for bar in bars]
    longest_ns = max(times_ns, default=0)
    if len(bars) < 2 or not longest_ns:
        return None
    width = _WHOLE / len(bars)
    heights = [_WHOLE * ns / longest_ns for ns in times_ns]
    used = [index for index, bar in enumerate(bars) if bar.used]
    marked = max(used, key=lambda index: heights[index], default=None)
    paths = [  # each bar: from the bottom edge up, right by 80 % of its room, and down
        f"M{index * width:.2f} 100v{-height:.1f}h{width * 0.8:.2f}v{height:.1f}z"
        for index, height in enumerate(heights)
    ]
    text = f"Steps: {duration(min(times_ns))} to {duration(longest_ns)}"
    plain = "".join(path for index, path in enumerate(paths) if index != marked)
    return Spark(text, plain, paths[marked] if marked is not None else "")


def _largest_loss(analysis: Analysis, parts: Sequence[step_split.StepPart]) -> Iterator[Tile]:
    """Yield a tile on the largest loss of a step, if it is worth saying.

    In a partial recording there is none: idle time may be work that was not recorded. As in the
    verdict, all idle time together is one loss; but a class of it that is larger than any other
    loss is named alone.
    """
    if analysis.recorded in PARTIAL:
        return
    losses = [part for part in parts if part.is_loss]
    if analysis.on_host:
        # Operators and the host code between them (culprits) are what a CPU is for: only idle time
        # without a known cause is lost.
        losses = [part for part in losses if part.name == "idle"]
    measured = analysis.measured
    if measured.mfu_range is None and measured.hfu_range is None:
        # Without known FLOPs, memory work may be what the GPU is used for.
        losses = [part for part in losses if part.name != "memory"]
    largest = max(losses, key=lambda part: part.ns, default=None)
    idle = [part for part in losses if part.name in ("idle", step_split.CULPRIT)]
    idle_ns, idle_share = sum(part.ns for part in idle), sum(part.share for part in idle)
    if largest is not None and largest not in idle and idle_ns > largest.ns:
        largest = step_split.StepPart("idle", PART_NAMES["idle"], idle_ns, idle_share)
    if largest is not None and largest.share >= WORTH_SAYING:
        text = f"{percent(largest.share)} of the {wording.window(analysis)}"
        label = f"Largest loss: {largest.label}"
        yield Tile(label, duration(largest.ns), text, largest.sections[0])


def _curve(curve: Curve, peak: int) -> Spark | None:
    """Return a curve as a filled path: the highest value in each of _POINTS columns of equal time.

    None if the curve has no length. `peak` is the value at the top of the drawing.
    """
    length_ns = int(curve.time_ns[-1] - curve.time_ns[0])
    if length_ns <= 0:
        return None
    column = (curve.time_ns - curve.time_ns[0]) * (_POINTS - 1) // length_ns
    highest = np.zeros(_POINTS, dtype=np.int64)
    np.maximum.at(highest, column, curve.value)
    has_value = np.zeros(_POINTS, dtype=bool)
    has_value[column] = True
    # A column without a value repeats the last one before it; the first column always has one.
    source = np.maximum.accumulate(np.where(has_value, np.arange(_POINTS), 0))
    tops = _WHOLE - _WHOLE * highest[source] / peak  # SVG counts from the top
    steps = "".join(f"V{y:.1f}H{number * _WHOLE / _POINTS:.1f}" for number, y in enumerate(tops, 1))
    return Spark("Allocated memory over time", f"M0 100{steps}V100Z")
