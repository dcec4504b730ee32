"""`traceflops check`: whether a recording stays within limits, for CI."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple
from xml.etree import ElementTree

import typer

from traceflops.cli.common import EXIT_GATE, path_of, say, spare_inputs
from traceflops.cli.compare import read_side
from traceflops.cli.gates import Answer, Check, Verdict, against, checks, promised, unfit
from traceflops.cli.options import AnalysisOptions, Force, Text, Traces, flag, option, typed
from traceflops.errors import UsageError
from traceflops.units import parse_limit, several

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.comparison.result import Comparison

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
    promised: Text = option(
        "RULE", "The gain since the baseline is what this finding of it promised, e.g. data-input."
    )


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
    baseline = path_of(gates.baseline) if gates.baseline is not None else None
    result = path_of(junit) if junit is not None else None
    new_baseline, old_baseline = (baseline, None) if update_baseline else (None, baseline)
    if gates.promised is not None and old_baseline is None:
        raise UsageError("--promised needs --baseline", "give what was recorded before the fix")
    if not limits and gates.baseline is None and not update_baseline:
        raise UsageError("no gate to check", "give one, e.g. --max-share idle=0.10")
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

        comparison = compare(old, analysis, ("baseline", "now"), gates.promised)
        limits += _of_baseline(gates, comparison, percent, tolerance)
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


def _of_baseline(
    gates: Gates, comparison: Comparison, percent: str, tolerance: Fraction
) -> Iterator[Check]:
    """Yield the gates that need a baseline; `percent` is the tolerance as it was written."""
    answer = against(comparison, tolerance, strict=gates.strict_tolerance)
    how = "--strict-tolerance " * gates.strict_tolerance + f"--tolerance {percent}"
    yield f"--baseline {gates.baseline} {how}", lambda _: answer
    if gates.promised is not None:
        promise = promised(comparison)
        yield f"--promised {gates.promised}", lambda _: promise


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
