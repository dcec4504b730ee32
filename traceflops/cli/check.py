"""`traceflops check`: whether a recording stays within limits, for CI.

A gate passes, fails, or cannot be judged: unknown is not passed. A value may be known by its bounds
only; it can be judged if both bounds lie on the same side of the limit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple
from xml.etree import ElementTree

import typer

from traceflops.cli.common import EXIT_GATE, path_of, say, spare_inputs
from traceflops.cli.compare import read_side
from traceflops.cli.options import AnalysisOptions, Force, Text, Traces, flag, option, typed
from traceflops.errors import UsageError
from traceflops.units import (
    PART_NAMES,
    duration,
    exact_percent,
    listed,
    parse_bytes,
    parse_limit,
    several,
)

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.comparison.result import Comparison
    from traceflops.findings.finding import Finding

EXAMPLES = (
    "traceflops check trace.json.gz --min-mfu 0.35 --max-share idle=0.10",
    "traceflops check trace.json.gz --baseline base.json --update-baseline",
    "traceflops check ranks/ --no-finding high --junit gates.xml --github",
)
_TOLERANCE: Final = "3%"
_TITLE: Final = "traceflops check"
_ORDER: Final = ("failed", "unknown", "passed")
_JUNIT_KINDS: Final = {"failed": "failure", "unknown": "error"}
_IN_TITLE: Final = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})
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

    fullest = fullest_gpu(memory_use(analysis.recording))
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
    from traceflops.comparison.likeness import OF_WORK
    from traceflops.reports.view.texts import words

    if comparison.obstacle:
        return "unknown", words(comparison.obstacle)
    if comparison.before.lacks_records:  # `unfit` looks at those of the recording itself
        return "unknown", "GPU records of the baseline are incomplete"
    if unlike := [other for other in comparison.unlike if other.what in (*OF_WORK, "GPUs")]:
        changes = listed(unlike, lambda u: f"{u.what} {u.before} became {u.after}", "; ")
        return "unknown", f"the baseline is of other work, update it: {changes}"
    # Without an interval and a difference, a recording is compared with itself: it passes.
    interval, difference_ns = comparison.interval, comparison.difference_ns
    if interval is None and difference_ns and not strict:
        return "unknown", "one step on a side: no interval (--strict-tolerance judges the point)"
    judged_ns = difference_ns if strict or interval is None else interval.low_ns
    is_bad = judged_ns > tolerance * comparison.before.mean_ns
    return "failed" if is_bad else "passed", comparison.sentence


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits as texts, as given."""

    HEADING: ClassVar = "Gates"
    min_mfu: Text = option("SHARE", "Least MFU, e.g. 0.35 or 35%.")
    max_step_time: Text = option("TIME", "Longest mean step, e.g. 410ms.")
    max_share: list[str] | None = option(
        "PART=SHARE", "Largest share of a component, e.g. idle=0.10. May be repeated."
    )
    max_exposed_communication: Text = option(
        "SHARE", "Largest share of exposed communication, e.g. 0.15."
    )
    max_memory: Text = option("SIZE", "Most allocated on a GPU, e.g. 70GB.")
    no_finding: Text = option(
        "PRIORITY", "No finding of this priority or above: high, medium, low."
    )
    baseline: Text = option("FILE", "Steps must not be longer than in this report (JSON) or trace.")
    tolerance: Text = option("SHARE", f"How much longer they may be. Default: {_TOLERANCE}.")
    strict_tolerance: bool = flag("Judge the difference itself, not the lower end.")


class Row(NamedTuple):
    """A gate as text, its verdict, and the value or the reason."""

    gate: str
    verdict: Verdict
    text: str


def check(
    traces: Traces,
    *,
    gates: Gates,
    update_baseline: bool = flag("Write TRACE as the baseline if all other gates pass."),
    junit: Text = option("FILE", "Also write the result as JUnit XML."),
    github: bool = flag("Also print annotations, and append to $GITHUB_STEP_SUMMARY."),
    force: Force = False,
    asked: AnalysisOptions,
) -> None:
    """Check a recording against limits, for CI.

    Ends with exit code 4 where one is not kept or cannot be judged.
    """
    from traceflops.reports.files import check_replaced
    from traceflops.reports.write import save

    limits = checks(typed(gates))
    percent = _TOLERANCE if gates.tolerance is None else gates.tolerance
    tolerance = parse_limit("--tolerance", percent)
    if not limits and gates.baseline is None and not update_baseline:
        raise UsageError("no gate to check", "give one, e.g. --max-share idle=0.10")
    baseline = path_of(gates.baseline) if gates.baseline is not None else None
    result = path_of(junit) if junit is not None else None
    new_baseline, old_baseline = (baseline, None) if update_baseline else (None, baseline)
    if update_baseline and baseline is None:
        raise UsageError("--update-baseline needs --baseline", "say which file to write")
    if old_baseline is not None and not old_baseline.exists():
        raise UsageError(f"no such baseline: {old_baseline}", "write it with --update-baseline")
    for path, suffix in ((result, ".xml"), (new_baseline, ".json")):
        if path is not None:
            if path.suffix.lower() != suffix:
                raise UsageError(f"does not end in {suffix}: {path}", "choose another name")
            check_replaced(path, force=force)
            spare_inputs([path], traces)

    old = read_side(str(old_baseline), asked) if old_baseline is not None else None
    analysis, comparison = asked.analyze(traces), None
    if old is not None:
        from traceflops.comparison.result import compare

        comparison = compare(old, analysis, ("baseline", "now"))
        answer = against(comparison, tolerance, strict=gates.strict_tolerance)
        how = "--strict-tolerance " * gates.strict_tolerance + f"--tolerance {percent}"
        limits.append((f"--baseline {gates.baseline} {how}", lambda _: answer))
    reason = unfit(analysis)
    unknown: Answer = ("unknown", reason)
    rows = [Row(gate, *(unknown if reason else judge(analysis))) for gate, judge in limits]
    if new_baseline is not None:
        if not reason and any(row.verdict != "passed" for row in rows):
            reason = "not written, because another gate did not pass"
        if not reason:
            save(analysis, new_baseline, force=True)
        verdict: Verdict = "unknown" if reason else "passed"
        rows.append(Row("--update-baseline", verdict, reason or f"wrote {new_baseline}"))
    _warn(analysis)
    _publish(rows, result, comparison, github=github)


def _warn(analysis: Analysis) -> None:
    """Print what the input lacks, which no gate tells: only a part of it was judged."""
    from traceflops.parsers.reading import LOSSES
    from traceflops.reports.view.figures import visible

    partly = LOSSES | {"not-a-trace", "ranks-missing"}
    for note in analysis.notes:
        if note.share >= 1 or note.code in partly:
            say(f"warning: {visible(note.text)}", to_stderr=True)


def _publish(
    rows: Sequence[Row], junit: Path | None, comparison: Comparison | None, *, github: bool
) -> None:
    """Print a line per gate, write what is asked for, and exit with 4 unless all gates pass."""
    from traceflops.reports.view.figures import visible

    rows = [Row(visible(row.gate), row.verdict, visible(row.text)) for row in rows]
    rows.sort(key=lambda row: _ORDER.index(row.verdict))
    bad = [row for row in rows if row.verdict != "passed"]
    if junit is not None:
        from traceflops.reports.files import write_pieces

        write_pieces(junit, [_junit(rows)])
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if github else None
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(_markdown(rows, len(bad), comparison))
    try:
        say("\n".join(f"{row.verdict:<7} {row.gate}: {row.text}" for row in rows))
        for row in bad if github else ():
            gate = row.gate.translate(_IN_TITLE)
            say(f"::error title=traceflops {gate}::{row.text.replace('%', '%25')}")
    finally:  # also if stdout is closed: the gates did not pass
        if bad:
            raise typer.Exit(EXIT_GATE)


def _junit(rows: Sequence[Row]) -> bytes:
    """Return the gates as test cases of JUnit XML; a gate that cannot be judged is an error."""
    counts = Counter(_JUNIT_KINDS.get(row.verdict) for row in rows)
    sizes = {"tests": len(rows), "failures": counts["failure"], "errors": counts["error"]}
    root = ElementTree.Element("testsuites", name=_TITLE)
    of_suite = {"name": _TITLE} | {name: str(count) for name, count in sizes.items()}
    suite = ElementTree.SubElement(root, "testsuite", of_suite)
    for row in rows:
        case = ElementTree.SubElement(
            suite, "testcase", name=row.gate, classname="traceflops.check"
        )
        if kind := _JUNIT_KINDS.get(row.verdict):
            ElementTree.SubElement(case, kind, message=row.text)
    return ElementTree.tostring(root)


def _markdown(rows: Sequence[Row], bad: int, comparison: Comparison | None) -> str:
    """Return the gates as a table, and the comparison with the baseline."""
    from traceflops.reports.markdown import plain, render_comparison

    title = f"{bad} of {several(len(rows), 'gate')} not passed" if bad else "all gates passed"
    cells = [f"| {row.verdict} | {plain(row.gate)} | {plain(row.text)} |" for row in rows]
    table = "\n".join(["| | Gate | Found |", "|---|---|---|", *cells])
    change = f"\n{render_comparison(comparison)}" if comparison is not None else ""
    return f"### {_TITLE}: {title}\n\n{table}\n{change}"
