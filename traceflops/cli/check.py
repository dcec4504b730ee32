"""`traceflops check`: whether a recording stays within limits, for CI."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final
from xml.etree import ElementTree

import typer

from traceflops.cli.common import EXIT_GATE, failures, path_of, spare_inputs
from traceflops.cli.compare import read_side
from traceflops.cli.gates import Answer, against, checks, unfit
from traceflops.cli.options import Asked, Force, Text, Traces, flag, grouped, option, typed
from traceflops.cli.printing import say
from traceflops.cli.reading import read_and_analyze
from traceflops.errors import UsageError
from traceflops.units import parse_limit, several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.comparison import Comparison

EXAMPLES = (
    "traceflops check trace.json.gz --min-mfu 0.35 --max-share idle=0.10",
    "traceflops check trace.json.gz --baseline base.json --update-baseline",
    "traceflops check ranks/ --no-finding high --junit gates.xml --github",
)
_TOLERANCE: Final = "3%"
_TITLE: Final = "traceflops check"
_ORDER: Final = ("failed", "unknown", "passed")
_KINDS: Final = {"failed": "failure", "unknown": "error"}
"""What JUnit calls what did not pass."""
_IN_TITLE: Final = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits, as they are given."""

    HEADING: ClassVar = "Gates"

    min_mfu: Annotated[Text, option("SHARE", "Least MFU, e.g. 0.35 or 35%.")] = None
    max_step_time: Annotated[Text, option("TIME", "Longest mean step, e.g. 410ms.")] = None
    max_share: Annotated[
        list[str] | None,
        option("PART=SHARE", "Largest share of a component, e.g. idle=0.10. May be repeated."),
    ] = None
    max_exposed_communication: Annotated[
        Text, option("SHARE", "Largest share of exposed communication, e.g. 0.15.")
    ] = None
    max_memory: Annotated[Text, option("SIZE", "Most allocated on a GPU, e.g. 70GB.")] = None
    no_finding: Annotated[
        Text, option("PRIORITY", "No finding of this priority or above: high, medium, low.")
    ] = None
    baseline: Annotated[
        Text, option("FILE", "Steps must not be longer than in this report (JSON) or trace.")
    ] = None
    tolerance: Annotated[
        Text, option("SHARE", f"How much longer they may be. Default: {_TOLERANCE}.")
    ] = None
    strict_tolerance: Annotated[
        bool, flag("Judge the difference itself, not the lower end.", "--strict-tolerance")
    ] = False


@dataclass(frozen=True, slots=True)
class Row:
    """A gate as it is written, what became of it, and the value or the reason."""

    gate: str
    verdict: str
    said: str


@dataclass(frozen=True, slots=True)
class Where:
    """Where the result goes."""

    update_baseline: Annotated[
        bool, flag("Write TRACE as the baseline if all other gates pass.", "--update-baseline")
    ] = False
    junit: Annotated[Text, option("FILE", "Also write the result as JUnit XML.")] = None
    github: Annotated[
        bool, flag("Also print annotations, and append to $GITHUB_STEP_SUMMARY.", "--github")
    ] = False
    force: Force = False


@grouped
def check(
    traces: Traces,
    *,
    gates: Gates,
    where: Where,
    asked: Asked,
) -> None:
    """Check a recording against limits, for CI.

    Ends with exit code 4 where one is not kept or cannot be judged.
    """
    with failures(asked.reading, asked.privacy):
        given = typed(gates)
        limits, strict = checks(given), given["--strict-tolerance"]
        text = _TOLERANCE if given["--tolerance"] is None else given["--tolerance"]
        tolerance = parse_limit("--tolerance", text)
        if not limits and given["--baseline"] is None and not where.update_baseline:
            raise UsageError("no gate to check", "give one, e.g. --max-share idle=0.10")
        base, junit = _targets(given["--baseline"], where, traces)
        old = read_side(str(base), asked) if base and not where.update_baseline else None
        analysis, found = read_and_analyze(traces, asked), None
        if old is not None:
            from traceflops.comparison import compare

            found = compare(old, analysis, ("baseline", "now"))
            answer = against(found, tolerance, strict=strict)
            how = "--strict-tolerance " * strict + f"--tolerance {text}"
            limits.append((f"--baseline {given['--baseline']} {how}", lambda _: answer))
        reason = unfit(analysis)
        unknown: Answer = ("unknown", reason)
        rows = [Row(gate, *(unknown if reason else judge(analysis))) for gate, judge in limits]
        if base is not None and where.update_baseline:
            rows.append(Row("--update-baseline", *_updated(analysis, base, reason, rows)))
        _tell(rows, junit, found, github=where.github)


def _targets(
    baseline: str | None, where: Where, traces: Sequence[str]
) -> tuple[Path | None, Path | None]:
    """Return the baseline and where JUnit's XML goes. Raises UsageError for what cannot be."""
    from traceflops.reports.files import check_replaced

    base = path_of(baseline) if baseline is not None else None
    junit = path_of(where.junit) if where.junit is not None else None
    written = [(junit, ".xml")] if junit is not None else []
    if where.update_baseline:
        if base is None:
            raise UsageError("--update-baseline needs --baseline", "say which file to write")
        written.append((base, ".json"))
    elif base is not None and not base.exists():
        raise UsageError(f"no such baseline: {base}", "write it with --update-baseline")
    for path, suffix in written:
        if path.suffix.lower() != suffix:
            raise UsageError(f"does not end in {suffix}: {path}", "choose another name")
        check_replaced(path, force=where.force)
        spare_inputs([path], traces)
    return base, junit


def _updated(analysis: Analysis, base: Path, reason: str, rows: Sequence[Row]) -> Answer:
    """Write the baseline, whole or not at all, unless a gate keeps it from being one."""
    if reason or any(row.verdict != "passed" for row in rows):
        return "unknown", reason or "not written, because another gate did not pass"
    from traceflops.reports.write import save

    save(analysis, base, force=True)
    return "passed", f"wrote {base}"


def _tell(
    rows: Sequence[Row], junit: Path | None, found: Comparison | None, *, github: bool
) -> None:
    """Print a line per gate and write what is asked for; leave with 4 unless all gates pass."""
    from traceflops.reports.view import visible

    rows = [Row(visible(row.gate), row.verdict, visible(row.said)) for row in rows]
    rows.sort(key=lambda row: _ORDER.index(row.verdict))
    bad = [row for row in rows if row.verdict != "passed"]
    if junit is not None:
        from traceflops.reports.files import write_pieces

        write_pieces(junit, [_xml(rows)])
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if github else None
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(_markdown(rows, len(bad), found))
    try:
        say("\n".join(f"{row.verdict:<7} {row.gate}: {row.said}" for row in rows))
        for row in bad if github else ():
            gate = row.gate.translate(_IN_TITLE)
            say(f"::error title=traceflops {gate}::{row.said.replace('%', '%25')}")
    finally:  # a closed pipe passes no gate
        if bad:
            raise typer.Exit(EXIT_GATE)


def _xml(rows: Sequence[Row]) -> bytes:
    """Return the gates as test cases: what cannot be judged is an error."""
    counts = Counter(_KINDS.get(row.verdict) for row in rows)
    sizes = {"tests": len(rows), "failures": counts["failure"], "errors": counts["error"]}
    told = {"name": _TITLE} | {name: str(count) for name, count in sizes.items()}
    every = ElementTree.Element("testsuites", {"name": _TITLE})
    suite = ElementTree.SubElement(every, "testsuite", told)
    for row in rows:
        named = {"name": row.gate, "classname": "traceflops.check"}
        case = ElementTree.SubElement(suite, "testcase", named)
        if kind := _KINDS.get(row.verdict):
            ElementTree.SubElement(case, kind, {"message": row.said})
    return ElementTree.tostring(every)


def _markdown(rows: Sequence[Row], bad: int, found: Comparison | None) -> str:
    """Return the gates as a table, and the comparison with the baseline."""
    from traceflops.reports.markdown import plain, render_comparison

    title = f"{bad} of {several(len(rows), 'gate')} not passed" if bad else "all gates passed"
    cells = [f"| {row.verdict} | {plain(row.gate)} | {plain(row.said)} |" for row in rows]
    table = "\n".join(["| | Gate | Found |", "|---|---|---|", *cells])
    change = f"\n{render_comparison(found)}" if found is not None else ""
    return f"### {_TITLE}: {title}\n\n{table}\n{change}"
