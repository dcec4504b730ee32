"""The section on ranks: their own time against the median of all, and who is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.ranks import (
    FloatArray,
    OwnTimes,
    Straggler,
    most_and_least,
    own_ns,
    own_times,
    straggler,
)
from traceflops.reports.page.heatmap import HeatMap, heat_map, signed
from traceflops.reports.view import count, duration, percent, short_labels, shorten_middle
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.windows import DeviceReport

MOST_DEVICES: Final = 32
_MOST_BARS: Final = 80
_WORST_STEPS: Final = 3
_WIDTH, _HEIGHT = 320, 44
_LABEL: Final = 14


@dataclass(frozen=True, slots=True)
class StepOfRank:
    """The own time of a device in one step against the median of the step."""

    step: int
    ns: int
    relative: str


@dataclass(frozen=True, slots=True)
class RankShown:
    """A row of the table and what unfolds: own time by step, a line for the medians, the worst.

    `link` is what follows # in a link to it; `each` is how many steps share a bar.
    """

    device: DeviceReport
    label: str
    own_ns: int
    link: str
    bars: str
    line: str
    each: int
    steps: int
    median_ns: int | None
    worst: list[StepOfRank]


@dataclass(frozen=True, slots=True)
class RanksPage:
    """The devices shown of `total`, the map of all of them, and a sentence on a straggler."""

    rows: list[RankShown]
    total: int
    straggler: str
    heat: HeatMap | None
    farthest: list[tuple[str, int, str]]

    @property
    def most(self) -> int:
        """Return how many devices are shown because they have most own time, 0 if all are."""
        return (len(self.rows) + 1) // 2 if self.total > len(self.rows) else 0


def ranks_page(analysis: Analysis) -> RanksPage:
    """Return what the section shows."""
    devices = analysis.devices
    times = own_times(devices)
    slow = straggler(devices)
    chosen = most_and_least(devices, MOST_DEVICES)
    seen: set[int] = set()
    medians = times.medians
    rows = [_shown(devices[place], times, medians, place, seen) for place in chosen]
    labels = short_labels([one.rank_text or one.label for one in devices], _LABEL)
    return RanksPage(
        rows=rows,
        total=len(devices),
        straggler=_sentence(slow) if slow is not None else "",
        heat=heat_map(times, labels),
        farthest=_farthest(times, labels),
    )


def _shown(
    device: DeviceReport, times: OwnTimes, medians: FloatArray, place: int, seen: set[int]
) -> RankShown:
    own = times.ns[place]
    known = np.flatnonzero(~np.isnan(own))
    bars, line, each = _bars(own[known], medians[known], float(np.nanmax(times.ns, initial=1)))
    link = "" if device.rank is None or device.rank in seen else f"rank={device.rank}"
    if device.rank is not None:
        seen.add(device.rank)
    return RankShown(
        device=device,
        label=device.label,
        own_ns=own_ns(device.chosen.components),
        link=link,
        bars=bars,
        line=line,
        each=each,
        steps=len(known),
        median_ns=round(float(np.median(own[known]))) if len(known) else None,
        worst=_worst(own, medians, times.steps),
    )


def _worst(own: FloatArray, medians: FloatArray, steps: Sequence[int]) -> list[StepOfRank]:
    """Return the steps that took the most longer than the median, at most three."""
    more = np.where(np.isnan(own) | (medians <= 0), -1, own - medians)
    order = np.argsort(-more, kind="stable")[:_WORST_STEPS].tolist()
    return [
        StepOfRank(steps[at], int(own[at]), signed(float(own[at] / medians[at] - 1)))
        for at in order
        if more[at] > 0
    ]


def _bars(own: FloatArray, medians: FloatArray, most: float) -> tuple[str, str, int]:
    """Return the paths of the bars and of the medians' line, and how many steps share a bar."""
    each = max(1, -(-len(own) // _MOST_BARS))
    shown = [at + int(own[at : at + each].argmax()) for at in range(0, len(own), each)]
    if not shown:
        return "", "", 1
    wide = _WIDTH / len(shown)
    gap = 1 if wide > 3 else 0
    bars: list[str] = []
    line: list[str] = []
    for place, at in enumerate(shown):
        left, high = place * wide, float(own[at]) / most * (_HEIGHT - 2)
        usual = _HEIGHT - float(medians[at]) / most * (_HEIGHT - 2)
        bars.append(f"M{left:.1f} {_HEIGHT}v{-high:.1f}h{wide - gap:.1f}v{high:.1f}z")
        line.append(f"{'L' if line else 'M'}{left:.1f} {usual:.1f}h{wide:.1f}")
    return "".join(bars), "".join(line), each


def _farthest(times: OwnTimes, labels: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return the cells of the map that are farthest from the median, at most three."""
    off = times.relative() - 1
    far = np.where(np.isnan(off), 0, np.abs(off)).ravel()
    order = np.argsort(-far, kind="stable")[:_WORST_STEPS].tolist()
    places = [divmod(at, len(times.steps)) for at in order if far[at] > 0]
    return [
        (labels[row], times.steps[column], signed(float(off[row, column])))
        for row, column in places
    ]


def _sentence(slow: Straggler) -> str:
    label = shorten_middle(slow.device.label, 40)
    more = f"{duration(slow.more_ns)} ({percent(slow.more_ns / slow.step_ns)} of a step)"
    text = (
        f"{label[:1].upper()}{label[1:]} is the slowest: {duration(slow.own_ns)} own time per "
        f"step, {more} above the median of the others; slowest in {count(slow.slowest_in)} of "
        f"{several(slow.steps, 'step')}."
    )
    if not slow.others_wait:
        return text
    return (
        f"{text} The others wait: {duration(slow.waited_ns)} more exposed communication per step."
    )
