"""Gates: limits for a recording. One table says what each limits, and which side of it is bad.

A gate passes, fails, or cannot be judged: unknown is not passed. A value may be known by its bounds
only; it can be judged if both bounds lie on the same side of the limit.
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
    from traceflops.analysis.result import Analysis
    from traceflops.comparison.result import Comparison
    from traceflops.findings.finding import Finding

Verdict = Literal["failed", "unknown", "passed"]
Bounds = tuple[Fraction, Fraction]
_LEVELS: Final = ("high", "medium", "low")  # priorities of findings, the highest first
Answer = tuple[Verdict, str]
"""The verdict on a gate, and the value or the reason as text."""
Check = tuple[str, Callable[["Analysis"], Answer]]
"""A gate as it was typed, and the function that judges an analysis by it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A kind of limit: its name, how a limit is parsed and printed, and the value that it limits.

    `value` returns the least and the most that the value of an analysis can be, or a text that says
    why it is unknown. `is_least`: the limit is a minimum.
    """

    subject: str
    parse: Callable[[str, str], Fraction]
    shown: Callable[[Fraction], str]
    value: Callable[[Analysis], Bounds | str]
    is_least: bool = False

    def check(self, option: str, text: str, written: str | None = None) -> Check:
        """Return the check of a limit, printed as `written` or as the option. Raises UsageError."""
        return written or f"{option} {text}", partial(self._judged, self.parse(option, text))

    def _judged(self, limit: Fraction, analysis: Analysis) -> Answer:
        """Return the verdict on a value by its bounds: unknown if the limit lies between them."""
        if isinstance(bounds := self.value(analysis), str):
            return "unknown", bounds
        texts = []
        for bound in bounds:
            text = self.shown(bound)
            if bound != limit and text == self.shown(limit):  # both print alike
                text += f", just {'below' if bound < limit else 'above'} the limit"
            texts.append(text)
        value_text = f"{self.subject} {' to '.join(dict.fromkeys(texts))}"
        is_bad = [bound < limit if self.is_least else bound > limit for bound in bounds]
        if any(is_bad) and not all(is_bad):
            return "unknown", f"{value_text}: the limit lies between"
        return "failed" if any(is_bad) else "passed", value_text


def _time(option: str, text: str) -> Fraction:
    from traceflops.windows.selection import parse_duration

    return Fraction(parse_duration(option, text))


def _bytes(value: Fraction) -> str:
    from traceflops.reports.view.figures import size

    return size(int(value))


def _mfu(analysis: Analysis) -> Bounds | str:
    measured = analysis.measured
    if (mfu := measured.mfu_range) is not None:
        return mfu.least, mfu.most
    return f"no MFU: {listed([lack.problem for lack in measured.lacks], between='; ')}"


def _step(analysis: Analysis) -> Bounds | str:
    """Return the mean time of the used steps in ns."""
    used = [window for device in analysis.devices for window in device.windows if window.used]
    if any(window.step is None for window in used):
        return "no steps were found"
    mean = Fraction(analysis.components.window_ns, len(used))
    return mean, mean


def _share(component: str, analysis: Analysis) -> Bounds | str:
    """Return the share of a component; idle time may be less if work was not recorded."""
    if analysis.only_launches:
        return "GPU records are missing"
    total_ns, most_ns = analysis.components.window_ns, analysis.components.parts()[component]
    least_ns = most_ns
    if component == "idle" and not analysis.total.knows_idle:
        least_ns -= analysis.total.idle_causes.unrecorded_ns
    return Fraction(least_ns, total_ns), Fraction(most_ns, total_ns)


def _memory(analysis: Analysis) -> Bounds | str:
    from traceflops.memory.usage import fullest_gpu, memory_use

    fullest = fullest_gpu(memory_use(analysis.prepared))
    if fullest is None:
        return "no memory of a GPU was recorded"
    return Fraction(fullest.allocated.peak), Fraction(fullest.allocated.peak)


def _of_share(name: str, component: str) -> Gate:
    return Gate(name, parse_limit, exact_percent, partial(_share, component))


GATES: Final[Mapping[str, Gate]] = {
    "--min-mfu": Gate("MFU", parse_limit, exact_percent, _mfu, is_least=True),
    "--max-step-time": Gate("mean step", _time, lambda ns: duration(float(ns)), _step),
    "--max-exposed-communication": _of_share("exposed communication", "communication"),
    "--max-memory": Gate("peak memory", parse_bytes, _bytes, _memory),
}


def checks(given: Mapping[str, Any]) -> list[Check]:
    """Return the checks that options ask for, but the baseline's. Raises UsageError."""
    asked = [
        gate.check(name, given[name]) for name, gate in GATES.items() if given[name] is not None
    ]
    for text in given["--max-share"] or ():
        from traceflops.timeline.records import COMPONENTS

        name, _, limit = (part.strip() for part in text.partition("="))
        if name not in COMPONENTS:
            hint = f"write PART=SHARE with one of {', '.join(COMPONENTS)}"
            raise UsageError(f"--max-share is no share of a component: {text[:60]!r}", hint)
        gate = _of_share(PART_NAMES[name], name)
        try:
            asked.append(gate.check("--max-share", limit, f"--max-share {text}"))
        except UsageError as error:
            hint = (error.hint or "").replace("--max-share ", f"--max-share {name}=")
            raise UsageError(error.message, hint) from None
    if (level := given["--no-finding"]) is not None:
        if level not in _LEVELS:
            hint = f"give one of {', '.join(_LEVELS)}"
            raise UsageError(f"--no-finding is no priority: {level[:60]!r}", hint)
        asked.append((f"--no-finding {level}", partial(_findings, level)))
    return asked


def unfit(analysis: Analysis) -> str:
    """Return why no gate can judge a recording, "" if gates can."""
    from traceflops.windows.device_records import ENOUGH

    if analysis.of_no_job:
        return "the files are of several jobs: choose one with --job"
    if not analysis.windows_used or not analysis.components.window_ns:
        return "no GPU time in the selected windows"
    if analysis.recorded == "serialized":
        return "kernels ran one by one, since counters were read"
    if analysis.recorded not in ENOUGH:
        return "GPU records are incomplete or missing"
    return ""


def _findings(level: str, analysis: Analysis) -> Answer:
    """Return the verdict on the causes of lost time: it fails if one has priority `level` or above.

    A cause whose gain is unknown has no priority: if its severity is as high, it cannot be judged.
    """
    if analysis.on_host:
        return "unknown", "causes are not looked for on the CPU alone"
    bad_levels = _LEVELS[: _LEVELS.index(level) + 1]
    # Findings without a confidence only state something: they are no causes.
    causes = [finding for finding in analysis.findings if finding.confidence is not None]
    failed = [cause for cause in causes if cause.gain is not None and cause.priority in bad_levels]
    doubtful = [cause for cause in causes if cause.gain is None and cause.severity in bad_levels]

    def named(finding: Finding) -> str:
        priority = f", priority {finding.priority}" if finding.gain is not None else ""
        return f"{finding.title or finding.rule} ({finding.rule}{priority})"

    if failed:
        return "failed", listed(failed, named, "; ")
    if doubtful:
        return "unknown", f"gain not known: {listed(doubtful, named, '; ')}"
    return "passed", "none"


def against(comparison: Comparison, tolerance: Fraction, *, strict: bool) -> Answer:
    """Return the verdict on the difference of the mean step from that of the baseline.

    It fails if the lower end of the difference's interval exceeds `tolerance`, a share of the
    baseline's mean; with `strict`, if the difference itself does.
    """
    from traceflops.reports.view.texts import words

    if comparison.obstacle:
        return "unknown", words(comparison.obstacle)
    if comparison.before.lacks_records:  # `unfit` looks at those of the recording itself
        return "unknown", "GPU records of the baseline are incomplete"
    if unlike := comparison.unjudged:
        changes = listed(unlike, lambda u: f"{u.what} {u.before} became {u.after}", "; ")
        return "unknown", f"the baseline is of other work, update it: {changes}"
    # Without an interval and a difference, a recording is compared with itself: it passes.
    interval, difference_ns = comparison.interval, comparison.difference_ns
    if interval is None and difference_ns and not strict:
        return "unknown", "one step on a side: no interval (--strict-tolerance judges the point)"
    judged_ns = difference_ns if strict or interval is None else interval.low_ns
    is_bad = judged_ns > tolerance * comparison.before.mean_ns
    return "failed" if is_bad else "passed", comparison.sentence


def promised(comparison: Comparison) -> Answer:
    """Return the verdict on the gain that a finding of the baseline promised; more passes."""
    from traceflops.reports.view.texts import words

    if comparison.obstacle:
        return "unknown", words(comparison.obstacle)
    promise = comparison.promise
    if promise is None:
        return "unknown", "the baseline must be another recording"
    if promise.outcome == "not-judged":
        return "unknown", words(promise.fact)
    is_kept = promise.outcome in ("as-promised", "more")
    return "passed" if is_kept else "failed", words(promise.fact)
