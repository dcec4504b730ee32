"""Rule `uneven-steps`: what steps take beyond the median, which they are, what they have more of.

Mending it gains at most all of that, for longer steps may have had more to do; not while idle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from traceflops.attribution import (
    CLASSES,
    REMEDIES,
    REST,
    GapParts,
    culprits_of,
    gap_parts,
    range_names,
)
from traceflops.characters import function_name, kernel_name
from traceflops.findings.case import is_torch
from traceflops.findings.finding import (
    Candidate,
    Finding,
    Gain,
    Owner,
    Row,
    Where,
    severity_of,
    short_name,
)
from traceflops.table import codes, groups, is_one_of, names, numbers
from traceflops.timeline import Intervals
from traceflops.units import PART_NAMES, capitalized, duration, listed, percent, some_of
from traceflops.windows import STANDS_OUT, chosen_time, late_after, median_of

if TYPE_CHECKING:
    from traceflops.attribution import Culprit
    from traceflops.findings.case import Case
    from traceflops.windows import DeviceReport, Prepared, StepSpread, StepTime

UNEVEN_STEPS: Final = "uneven-steps"
_LEAST_STEPS: Final = 3
"""Of two steps the median is their mean, and one is always longer."""
_HARDLY: Final = 0.1
"""What takes so little of its time in usual steps is what slow ones have more of."""
_IDLE: Final = "idle"
_SPANS: Final = ("annotation", "python", "overhead")
_OF_SPANS: Final = "Do it less often, or on another thread."
_UNKNOWN: Final = "Compare a slow step with a usual one in the timeline."
_OF_KERNELS: Final = "Look for larger inputs, or other work, in these steps."


@dataclass(frozen=True, slots=True)
class _Slowdown:
    """What slow steps have more of, by its name: a title, whose it is, and what to do."""

    named: str
    title: str
    owner: Owner
    remedy: str


_LOADER: Final = re.compile("[Dd]ata[Ll]oader")
_KINDS: Final = (
    _Slowdown(
        r"serialization\.py|\bsave(_(checkpoint|model|state)\w*)?$|^checkpoint\b",
        "Checkpoints hold up some steps",
        "yours",
        "Save with torch.distributed.checkpoint.async_save(), or more rarely.",
    ),
    _Slowdown(
        r"\b(gc|GC|collect)\b",
        "Garbage collection holds up some steps",
        "yours",
        "Call gc.freeze() after start-up and gc.disable(), then gc.collect() every N steps, on all "
        "ranks at once.",
    ),
    _Slowdown(
        r"\b(eval|evaluat(e|ion)|validat(e|ion))$",
        "Evaluation runs inside some steps",
        "yours",
        "Record evaluation apart from training.",
    ),
)
_SPORADIC: Final = dict.fromkeys(
    ("eager_overhead", "launch_latency"),
    "If these steps launch no more than others, look for other load on the CPU.",
)
"""What to do about classes of idle time that some steps have more of, where it is not the usual."""
_ANY: Final = _Slowdown("", "Some steps are slow", "yours", "")
_WARM_UP: Final = _Slowdown("", "Warm-up steps are chosen", "yours", "")


@dataclass(frozen=True, slots=True)
class _More:
    """What slow steps have more of: its name, by how much per step, and what to do about it.

    The remedy of a function or range is that of its _Slowdown.
    """

    name: str
    more_ns: int
    usual_ns: int
    remedy: str = ""

    @property
    def words(self) -> str:
        """Return what it does there and not in others."""
        if self.usual_ns:
            return f"{short_name(self.name)} takes {duration(self.more_ns)} longer there"
        return f"{short_name(self.name)} runs in no other step"


def uneven_findings(
    spread: StepSpread | None, devices: Sequence[DeviceReport]
) -> Iterator[Finding]:
    """Give a finding where the steps used take much more together than if each were the median."""
    if spread is None or len(spread.used) < _LEAST_STEPS:
        return
    whole_ns = sum(one.ns for one in spread.used)
    share = spread.beyond_median_ns / whole_ns if whole_ns else 0.0
    severity = severity_of(share)
    if severity is None:
        return
    yield Finding(
        rule=UNEVEN_STEPS,
        severity=severity,
        sentence=(
            f"Steps slower than the median cost {percent(share)} of the step time. "
            f"{_of_longest(spread, devices)}"
        ),
        share=share,
        mfu_without=None,
        evidence=("steps",),
    )


def uneven_steps(case: Case) -> Iterator[Candidate]:
    """Give the same as a candidate: which steps are slow, and what they have more of."""
    spread = case.spread
    found = next(uneven_findings(spread, case.devices), None)
    if spread is None or found is None:
        return
    usual_ns = spread.median_ns
    slow = [one for one in spread.used if one.ns > STANDS_OUT * usual_ns]
    more = _more(case, spread, slow) if slow else None
    if more is not None and _LOADER.search(more.name):
        return  # rule data-input tells it, with its gain
    kind = _kind(spread, slow, more)
    yield Candidate(
        rule=UNEVEN_STEPS,
        title=kind.title,
        sentence=f"{found.sentence}{_which(spread, slow, more)}",
        share=found.share,
        owner=kind.owner,
        remedy=_remedy(case, kind, spread, slow, more),
        evidence=found.evidence,
        rows=(Row(more.name, more.more_ns * len(slow), len(slow)),) if more else (),
        where=_where(case.devices, spread.longest.step),
        gain=None if kind is _WARM_UP else _gain(case, spread, slow),
        doubts=(
            "leaving steps out makes none faster"
            if kind is _WARM_UP
            else "a longer step may have more to do",
        ),
    )


def _gain(case: Case, spread: StepSpread, slow: Sequence[StepTime]) -> Gain:
    """Return what is gained if slow steps are as the median: at least half of their idle time."""
    usual_ns = spread.median_ns
    usual_idle_ns = median_of([one.components.idle_ns for one in spread.used])
    idle_ns = sum(
        max(min(one.components.idle_ns - usual_idle_ns, one.ns - usual_ns), 0) for one in slow
    )
    beyond_ns = sum(one.ns - usual_ns for one in slow) if slow else spread.beyond_median_ns
    idle_ns *= case.total.knows_idle  # else work that is not recorded may have run
    return Gain(idle_ns // 2 // len(spread.used), beyond_ns // len(spread.used), None)


def _kind(spread: StepSpread, slow: Sequence[StepTime], more: _More | None) -> _Slowdown:
    if slow and tuple(slow) == spread.used[: len(slow)] and largest_part(spread)[0] == _IDLE:
        return _WARM_UP
    name = more.name if more is not None and not more.remedy else ""
    return next((one for one in _KINDS if name and re.search(one.named, name)), _ANY)


def _which(spread: StepSpread, slow: Sequence[StepTime], more: _More | None) -> str:
    """Return which steps stand out, and what they have that others lack."""
    if not slow:
        return " No step takes 1.25 times the median."
    steps = listed([str(one.step) for one in slow])
    often = (
        f" {some_of(len(slow), len(spread.used), 'step', 'take')} over 1.25 times the median "
        f"({steps})"
    )
    return f"{often}: {more.words}." if more else f"{often}."


def _remedy(
    case: Case, kind: _Slowdown, spread: StepSpread, slow: Sequence[StepTime], more: _More | None
) -> str:
    """Return what to do, and how to look at the steps without the slow ones."""
    usual = (more.remedy or _OF_SPANS) if more else _UNKNOWN
    text = kind.remedy if kind.remedy and is_torch(case) else usual
    first, last = _longest_run(spread, slow)
    without = f"--steps {first}:{last} leaves them out." if slow and first < last else ""
    return without if kind is _WARM_UP and without else f"{text} {without}".strip()


def _longest_run(spread: StepSpread, slow: Sequence[StepTime]) -> tuple[int, int]:
    """Return the first and last of the most steps in a row that are not slow."""
    runs, steps = [list[int]()], {one.step for one in slow}
    for one in spread.used:
        runs.append([]) if one.step in steps else runs[-1].append(one.step)
    longest = max(runs, key=len)
    return (longest[0], longest[-1]) if longest else (0, 0)


def _where(devices: Sequence[DeviceReport], step: int) -> Where:
    windows = [one for device in devices for one in device.windows if one.used and one.step == step]
    longest = max(windows, key=lambda one: one.end_ns - one.start_ns)
    return Where(start_ns=longest.start_ns, end_ns=longest.end_ns)


def _more(case: Case, spread: StepSpread, slow: Sequence[StepTime]) -> _More | None:
    """Return what has more than half of what slow steps take longer: a span, culprit or kernel."""
    if case.prepared is None:
        return None
    found = _Slow.of(case.prepared, {one.step for one in slow})
    (part, _), usual_ns = largest_part(spread), spread.median_ns
    least_ns = sum(one.ns - usual_ns for one in slow) // (2 * len(slow))
    most = (found.most(*way) for way in _ways(case, case.prepared, found, part, least_ns))
    return next((one for one in most if one is not None and one.more_ns >= least_ns), None)


_When = Mapping[int, Intervals]
_Times = Mapping[tuple[str, str], int]
"""What took how much of some time of each device, by name and by what to do about it."""


@dataclass(frozen=True, slots=True)
class _Slow:
    """When slow and usual steps ran, by device, and how many windows there are of each."""

    when: tuple[_When, _When]
    counts: tuple[int, int]

    @classmethod
    def of(cls, prepared: Prepared, steps: set[int]) -> _Slow:
        """Return when these steps ran, and all others that are used."""
        slow, usual, counts = {}, {}, [0, 0]
        for device, windows in prepared.windows.items():
            mine = tuple(one for one in windows if one.used and one.step in steps)
            slow[device] = chosen_time(mine)
            usual[device] = chosen_time(windows).subtract(slow[device])
            counts[0] += len(mine)
            counts[1] += sum(one.used for one in windows) - len(mine)
        return cls((slow, usual), (max(counts[0], 1), max(counts[1], 1)))

    def most(self, times: Iterable[_Times], most_usual: float) -> _More | None:
        """Return what slow steps have most more of, if usual ones have so little of it."""
        slow, usual = times
        every = (
            _More(name, ns // self.counts[0] - before, before, remedy)
            for (name, remedy), ns in slow.items()
            if (before := usual.get((name, remedy), 0) // self.counts[1])
            <= most_usual * ns // self.counts[0]
        )
        return max((one for one in every if one.name), key=lambda one: one.more_ns, default=None)


def _ways(
    case: Case, prepared: Prepared, found: _Slow, part: str, least_ns: int
) -> Iterator[tuple[Iterable[_Times], float]]:
    """Yield what took how much of slow and of usual steps, and how much of it these may have."""
    yield map(_spans(prepared, least_ns), found.when), _HARDLY
    if part == _IDLE:
        culprits = _culprits(prepared, found.when[0])
        for name in (_label, lambda one: CLASSES[one.kind]):
            every, slow = (_by_name(some, name) for some in (case.idle.culprits, culprits))
            usual = {key: ns - slow[key] for key, ns in every.items()}
            yield ({key: slow[key] for key in usual}, usual), 1.0
    else:
        yield map(_kernels(prepared), found.when), 1.0


def _spans(prepared: Prepared, least_ns: int) -> Callable[[_When], _Times]:
    """Return the times of functions and ranges of which any is long."""
    marks, process_of = prepared.trace.marks, numbers(prepared.trace.devices["process"])
    label, is_host = codes(marks["name"]), is_one_of(marks["kind"], *_SPANS)
    start, dur, process = (numbers(marks[name]) for name in ("start_ns", "dur_ns", "process"))
    long = np.unique(label[is_host & (2 * dur >= least_ns)])
    rows = np.flatnonzero(is_host & np.isin(label, long))
    labels, called = names(marks["name"]), range_names(prepared.trace)

    def times(when: _When) -> _Times:
        found: Counter[tuple[str, str]] = Counter()
        for device, some in when.items():
            mine = rows[process[rows] == process_of[device]]
            inside_ns = some.length_within(start[mine], start[mine] + dur[mine])
            for one, at in groups(label[mine]):
                found[_span_name(labels[one], called), ""] += int(inside_ns[at].sum())
        return found

    return times


def _span_name(label: str, called: Callable[[str], str]) -> str:
    return label if function_name(label) != label else called(label)


def _culprits(prepared: Prepared, when: _When) -> tuple[Culprit, ...]:
    """Return what the host did in idle time."""
    parts = (gap_parts(prepared.accounts[device], some) for device, some in when.items())
    return culprits_of(GapParts.joined(parts), prepared.trace).culprits


def _label(culprit: Culprit) -> str:
    """Return the name of a culprit, "" for the sum of those that are not named."""
    return culprit.label if culprit.label != REST else ""


def _by_name(
    culprits: Sequence[Culprit], name: Callable[[Culprit], str]
) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for one in culprits:
        remedy = _SPORADIC.get(one.kind, f"{capitalized(REMEDIES[one.kind])}.")
        found[name(one), remedy] += one.idle_ns
    return found


def _kernels(prepared: Prepared) -> Callable[[_When], _Times]:
    """Return the times of kernels and copies."""
    column = prepared.trace.activities["name"]

    def times(when: _When) -> _Times:
        found: Counter[tuple[str, str]] = Counter()
        for device, some in when.items():
            rows = prepared.accounts[device].rows
            inside_ns = some.length_within(rows.start_ns, rows.end_ns)
            for one, at in groups(codes(column)[rows.row]):
                found[kernel_name(names(column)[one]), _OF_KERNELS] += int(inside_ns[at].sum())
        return found

    return times


def _of_longest(spread: StepSpread, devices: Sequence[DeviceReport]) -> str:
    """Return by how much the longest step is longer than the median, and what most of it is.

    Idle time at the end of its window is named after the next step, which came late.
    """
    longest = spread.longest
    more_ns = longest.ns - spread.median_ns
    text = f"Step {longest.step} took {duration(more_ns)} longer than the median"
    name, part_ns = largest_part(spread)
    if 2 * part_ns <= more_ns:
        return f"{text}."
    late = late_after(devices, longest.step, more_ns) if name == _IDLE else None
    where = f" before step {late[0]}" if late is not None else ""
    return f"{text}, mostly {PART_NAMES[name]}{where}."


def largest_part(spread: StepSpread) -> tuple[str, int]:
    """Return the component of which the longest step has most more than the median of it."""
    steps = [one.components.parts() for one in spread.used]
    own = spread.longest.components.parts()
    more = {name: ns - round(median(step[name] for step in steps)) for name, ns in own.items()}
    name = max(more, key=lambda item: more[item])
    return name, more[name]
