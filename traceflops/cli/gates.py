"""Gates: limits for a recording. One table says what each limits and which side of it is bad.

A gate passes, fails, or cannot be judged: what is unknown has not passed. Where a value lies
between two bounds, only bounds on the same side of the limit judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from traceflops.errors import UsageError
from traceflops.units import PART_NAMES, duration, exact_percent, listed, parse_bytes, parse_limit

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.comparison import Comparison
    from traceflops.findings import Finding

Verdict = Literal["failed", "unknown", "passed"]
Bounds = tuple[Fraction, Fraction]
_LEVELS: Final = ("high", "medium", "low")
"""Priorities of findings, the highest first."""
Answer = tuple[Verdict, str]
"""What becomes of a gate, and the value or the reason."""
Check = tuple[str, Callable[["Analysis"], Answer]]
"""A gate as it is written, and what judges a recording by it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit: its subject, how it is read and printed, where the value lies, what is bad.

    The value is a text where it is unknown: why. `is_least` is set where less is bad.
    """

    subject: str
    parse: Callable[[str, str], Fraction]
    shown: Callable[[Fraction], str]
    value: Callable[[Analysis], Bounds | str]
    is_least: bool = False

    def check(self, option: str, text: str, written: str | None = None) -> Check:
        """Return the gate with its limit. Raises UsageError where that cannot be understood."""
        return written or f"{option} {text}", partial(self._judged, self.parse(option, text))

    def _judged(self, limit: Fraction, analysis: Analysis) -> Answer:
        if isinstance(found := self.value(analysis), str):
            return "unknown", found
        said = (
            f"{self.subject} {' to '.join(dict.fromkeys(self._told(one, limit) for one in found))}"
        )
        bad = {one < limit if self.is_least else one > limit for one in found}
        if len(bad) > 1:
            return "unknown", f"{said}: the limit lies between"
        return "failed" if True in bad else "passed", said

    def _told(self, value: Fraction, limit: Fraction) -> str:
        """Return a value, and on which side of the limit it is where both print alike."""
        shown = self.shown(value)
        if value == limit or shown != self.shown(limit):
            return shown
        return f"{shown}, just {'below' if value < limit else 'above'} the limit"


def _time(option: str, text: str) -> Fraction:
    from traceflops.windows import parse_duration

    return Fraction(parse_duration(option, text))


def _bytes(value: Fraction) -> str:
    from traceflops.reports.view import size

    return size(int(value))


def _mfu(analysis: Analysis) -> Bounds | str:
    measured = analysis.measured
    if (found := measured.mfu_range) is not None:
        return found.least, found.most
    return f"no MFU: {listed([one.problem for one in measured.lacks], between='; ')}"


def _step(analysis: Analysis) -> Bounds | str:
    used = [one for device in analysis.devices for one in device.windows if one.used]
    if any(one.step is None for one in used):
        return "no steps were found"
    mean = Fraction(analysis.components.window_ns, len(used))
    return mean, mean


def _share(component: str, analysis: Analysis) -> Bounds | str:
    total, parts = analysis.components.window_ns, analysis.components.parts()
    least = most = parts[component]
    if component == "idle" and not analysis.total.knows_idle:
        least -= analysis.total.idle_causes.unrecorded_ns
    return Fraction(least, total), Fraction(most, total)


def _memory(analysis: Analysis) -> Bounds | str:
    from traceflops.memory import fullest_gpu, memory_use

    most = fullest_gpu(memory_use(analysis.prepared) if analysis.prepared is not None else ())
    if most is None:
        return "no memory of a GPU was recorded"
    return Fraction(most.allocated.peak), Fraction(most.allocated.peak)


def _of_share(name: str, component: str) -> Gate:
    return Gate(name, parse_limit, exact_percent, partial(_share, component))


GATES: Final[Mapping[str, Gate]] = {
    "--min-mfu": Gate("MFU", parse_limit, exact_percent, _mfu, is_least=True),
    "--max-step-time": Gate("mean step", _time, lambda ns: duration(float(ns)), _step),
    "--max-exposed-communication": _of_share("exposed communication", "communication"),
    "--max-memory": Gate("peak memory", parse_bytes, _bytes, _memory),
}


def checks(given: Mapping[str, Any]) -> list[Check]:
    """Return the gates that options ask for, but that of the baseline. Raises UsageError."""
    found = [
        gate.check(name, given[name]) for name, gate in GATES.items() if given[name] is not None
    ]
    found += map(_share_check, given["--max-share"] or ())
    if (level := given["--no-finding"]) is not None:
        if level not in _LEVELS:
            hint = f"give one of {', '.join(_LEVELS)}"
            raise UsageError(f"--no-finding is no priority: {level[:60]!r}", hint)
        found.append((f"--no-finding {level}", partial(_findings, level)))
    return found


def _share_check(text: str) -> Check:
    from traceflops.timeline import COMPONENTS

    name, _, limit = (part.strip() for part in text.partition("="))
    if name not in COMPONENTS:
        known = f"write PART=SHARE with one of {', '.join(COMPONENTS)}"
        raise UsageError(f"--max-share is no share of a component: {text[:60]!r}", known)
    try:
        return _of_share(PART_NAMES[name], name).check("--max-share", limit, f"--max-share {text}")
    except UsageError as error:
        hint = (error.hint or "").replace("--max-share ", f"--max-share {name}=")
        raise UsageError(error.message, hint) from None


def unfit(analysis: Analysis) -> str:
    """Return why nothing can be judged of a recording, "" where it can."""
    from traceflops.windows import ENOUGH

    if analysis.of_no_job:
        return "the files are of several jobs: choose one with --job"
    if not analysis.windows_used or not analysis.components.window_ns:
        return "no GPU time in the selected windows"
    if analysis.recorded not in ENOUGH:
        return "launch calls have no record of what the GPU ran"
    return ""


def _findings(level: str, analysis: Analysis) -> Answer:
    """Judge by priority; a cause of that severity whose gain is not known may have any."""
    if analysis.on_host:
        return "unknown", "causes are not looked for on the CPU alone"
    bad = _LEVELS[: _LEVELS.index(level) + 1]
    causes = [one for one in analysis.findings if one.confidence is not None]
    failed = [one for one in causes if one.gain is not None and one.priority in bad]
    doubtful = [one for one in causes if one.gain is None and one.severity in bad]
    if failed:
        return "failed", listed(failed, _named, "; ")
    if doubtful:
        return "unknown", f"gain not known: {listed(doubtful, _named, '; ')}"
    return "passed", "none"


def _named(finding: Finding) -> str:
    known = f", priority {finding.priority}" if finding.gain is not None else ""
    return f"{finding.title or finding.rule} ({finding.rule}{known})"


def against(found: Comparison, tolerance: Fraction, *, strict: bool) -> Answer:
    """Judge a recording against its baseline: by the lower end of the interval, or the point."""
    from traceflops.comparison import OF_WORK

    if found.obstacle:
        return "unknown", found.obstacle
    if found.before.lacks_records:
        return "unknown", "GPU records of the baseline are incomplete"
    other = [one for one in found.unlike if one.what in (*OF_WORK, "GPUs")]
    if other:
        told = listed(other, lambda one: f"{one.what} {one.before} became {one.after}", "; ")
        return "unknown", f"the baseline is of other work, update it: {told}"
    if found.interval is None and found.difference_ns and not strict:
        return "unknown", "one step on a side: no interval (--strict-tolerance judges the point)"
    low = found.difference_ns if strict or found.interval is None else found.interval.low_ns
    is_bad = low > tolerance * found.before.mean_ns
    return "failed" if is_bad else "passed", found.sentence
