"""The report as Markdown for a ticket or a pull request: what GitHub renders, and plain text reads.

Whatever comes from a trace stands in code spans or has its signs written as entities, so that it
is neither markup nor a mention, an issue, an emoji or a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from traceflops._version import __version__
from traceflops.reports.markdown.text import code, first_of_line, longest_run, plain
from traceflops.reports.page import findings_shown, memory_page, provenance
from traceflops.reports.view import (
    CAUSE_LABELS,
    NOTHING,
    Authored,
    Block,
    basis,
    bounds_sentence,
    category_label,
    collective_label,
    collective_rate,
    component_label,
    count,
    duration,
    facts,
    gap_place,
    job_files,
    job_size,
    mean_message,
    parts,
    percent,
    short_labels,
    size,
    untimed_parts,
    visible,
    why_not,
)
from traceflops.timeline import COMPONENTS
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis

SIGN: Final = "<!-- traceflops.report/1 -->"
"""The first line, by which a file is known to be one of these."""

_KERNELS: Final = 10
_CATEGORIES: Final = 12
_COLLECTIVES: Final = 8
_GAPS: Final = 5
_DEVICES: Final = 32
_NOTES: Final = 20
_NAME: Final = 90
_RIGHT: Final = "--:"
_LEFT: Final = "---"


def render_markdown(
    analysis: Analysis, command: str | None = None, authored: Authored = NOTHING
) -> str:
    """Return the report; `command` is the command line that made it, paths as base names."""
    sections = (
        _head(analysis, authored.title),
        _authored(authored.blocks),
        _untimed(analysis),
        _jobs(analysis),
        _components(analysis),
        _findings(analysis),
        _waterfall(analysis),
        _details("Figures behind it", _facts(analysis)),
        _details(f"Top {_work(analysis).lower()}", _kernels(analysis)),
        _details("Categories", _categories(analysis)),
        _details("Communication", _communication(analysis)),
        _details("Idle time by cause", _idle(analysis)),
        _details("Longest gaps", _gaps(analysis)),
        _details("Processes" if analysis.on_host else "GPUs", _devices(analysis)),
        _details("Memory", _memory(analysis)),
        _details("Notes", _notes(analysis)),
        _foot(command),
    )
    texts = ("\n".join(lines) for lines in map(list, sections) if lines)
    return "\n\n".join(texts) + "\n"


def _work(analysis: Analysis) -> str:
    """Return what the rows of the table of kernels are."""
    return "Operators" if analysis.on_host else "Kernels and copies"


def _head(analysis: Analysis, title: str | None) -> Iterator[str]:
    yield SIGN
    if title is not None:
        yield f"# {plain(title)}"
        yield ""
    yield f"## {plain(analysis.verdict.sentence)}"
    yield ""
    yield " · ".join(plain(part) for part in provenance(analysis))
    if analysis.devices:
        for sentence in why_not(analysis.measured)[:1]:
            yield ""
            yield plain(sentence)


def _authored(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the author's notes as a quote."""
    for number, block in enumerate(blocks):
        if number:
            yield ">"
        if block.kind == "code":
            fence = "`" * (max(map(longest_run, block.lines), default=0) + 3)
            yield f"> {fence}text"
            yield from (f"> {visible(line)}" for line in block.lines)
            yield f"> {fence}"
        elif block.kind == "list":
            yield from (f"> - {first_of_line(plain(line))}" for line in block.lines)
        elif block.kind == "heading":
            yield f"> **{plain(block.lines[0])}**"
        else:
            yield f"> {first_of_line(plain(block.lines[0]))}"


def _jobs(analysis: Analysis) -> Iterator[str]:
    """Yield the jobs that the files are of, where none of them is chosen."""
    jobs = analysis.jobs[:_DEVICES] if analysis.of_no_job else ()
    shown = [
        (str(job.number), code(job_files(job)), plain(job_size(job)), plain(job.verdict or ""))
        for job in jobs
    ]
    if shown:
        yield from _table(("Job", "Files", "Work", "Result"), shown, numbers=(0,))
        yield from _more(len(analysis.jobs) - len(shown))


def _untimed(analysis: Analysis) -> Iterator[str]:
    """Yield what a trace without a timeline says, and how to record one."""
    found = analysis.untimed
    if found is None:
        return
    for part in untimed_parts(found):
        rows = [
            (
                name,
                plain((row["sub"] or "").replace("_", " ")),
                duration(row["sum_ns"]),
                percent(row["share"]),
                count(row["count"]),
            )
            for row, name in _named(part.rows[:_KERNELS])
        ]
        heads = (part.title, "Category", "Total time", "Share", "Count")
        yield from _table(heads, rows, numbers=(2, 3, 4))
        yield from _more(part.total - len(rows))
        yield ""
    if found.counted.num_rows:
        counted = found.counted.slice(0, _KERNELS).to_pylist()
        shown = [(name, count(row["launches"])) for row, name in _named(counted)]
        yield from _table(("Kernel", "Counted launches"), shown, numbers=(1,))
        yield from _more(found.counted.num_rows - len(shown))
        yield ""
    if found.record is not None:
        yield f"To record a timeline: {code(found.record)}"


def _components(analysis: Analysis) -> Iterator[str]:
    if not analysis.components.window_ns:
        return
    shares = analysis.components
    shown = [
        (
            component_label(name, analysis.total),
            duration(analysis.mean_ns(ns)),
            percent(shares.share(name)),
        )
        for name, ns in shares.parts().items()
        if ns or name in ("compute", "idle")
    ]
    yield from _table(("Component", "Time", "Share"), shown, numbers=(1, 2))
    yield ""
    yield f"{plain(basis(analysis))}."


def _findings(analysis: Analysis) -> Iterator[str]:
    for found in findings_shown(analysis):
        gain = f" {plain(found.gain)}." if found.gain else ""
        yield f"- **{plain(found.severity)}**: {plain(found.sentence)}{gain}"


def _waterfall(analysis: Analysis) -> Iterator[str]:
    measured = analysis.measured
    if measured.waterfall is None:
        return
    yield f"**{measured.figure}** ({plain(measured.basis)})"
    yield ""
    shown = [(part.label, part.percent, part.text) for part in parts(measured.waterfall)]
    yield from _table(("Where the peak went", "Share", "Meaning"), shown, numbers=(1,))
    bounds = bounds_sentence(measured)
    if bounds:
        yield ""
        yield plain(bounds)


def _facts(analysis: Analysis) -> Iterator[str]:
    shown = [
        (plain(fact.label), plain(fact.value), plain(fact.remark))
        for fact in facts(analysis.measured)
    ]
    if shown:
        yield from _table(("Figure", "Value", "Remark"), shown, numbers=(1,))


def _kernels(analysis: Analysis) -> Iterator[str]:
    rows = analysis.kernels.slice(0, _KERNELS).to_pylist()
    shown = [
        (
            name,
            plain(row["sub"].replace("_", " ")),
            duration(row["sum_ns"]),
            percent(row["share"]),
            count(row["count"]),
        )
        for row, name in _named(rows)
    ]
    if shown:
        heads = ("Name", "Category", "Total time", "Share", "Count")
        yield from _table(heads, shown, numbers=(2, 3, 4))
        yield from _more(analysis.kernels.num_rows - len(shown))


def _categories(analysis: Analysis) -> Iterator[str]:
    rows = analysis.categories.to_pylist()
    shown = [
        (
            category_label(row["top"]),
            plain(row["sub"].replace("_", " ")),
            duration(row["sum_ns"]),
            percent(row["share"]),
        )
        for row in rows[:_CATEGORIES]
    ]
    if shown:
        yield from _table(("Part", "Category", "Total time", "Share"), shown, numbers=(2, 3))
        yield from _more(len(rows) - len(shown))


def _communication(analysis: Analysis) -> Iterator[str]:
    rows = analysis.collectives
    shown = [
        (
            plain(collective_label(row)),
            count(row.count),
            mean_message(row),
            size(row.bytes),
            duration(row.sum_ns),
            duration(row.exposed_ns),
            collective_rate(row),
        )
        for row in rows[:_COLLECTIVES]
    ]
    if shown:
        heads = ("Collective", "Count", "Mean message", "Bytes", "Total time", "Exposed", "Rate")
        yield from _table(heads, shown, numbers=range(1, len(heads)))
        yield from _more(len(rows) - len(shown))
        yield ""
        yield "Exposed: nothing else ran on the GPU."


def _idle(analysis: Analysis) -> Iterator[str]:
    idle = analysis.total.idle_causes
    shown = [
        (CAUSE_LABELS[cause], duration(analysis.mean_ns(ns)), plain(percent(ns / idle.idle_ns)))
        for cause, ns in idle.detailed().items()
        if ns
    ]
    if shown and not analysis.on_host:
        yield from _table(("Cause", "Time", "Of idle time"), shown, numbers=(1, 2))
        yield ""
        yield f"{plain(basis(analysis))}."


def _gaps(analysis: Analysis) -> Iterator[str]:
    labels = {device.device: device.label for device in analysis.devices}
    shown = []
    gaps = analysis.gaps(_GAPS)
    names = [gap.op or gap.before for gap in gaps]
    short = short_labels([*names, *(gap.waited_for for gap in gaps)], _NAME)
    for gap, name, waited_for in zip(gaps, short, short[len(gaps) :], strict=False):
        waited = f" for {code(waited_for)}" if gap.waited_for else ""
        cause = f"{CAUSE_LABELS[gap.causes.largest]}{waited}"
        device = plain(labels[gap.device])
        shown.append((duration(gap.dur_ns), gap_place(gap), device, cause, code(name)))
    if shown:
        heads = ("Duration", "Where", "GPU", "Cause", "Until")
        yield from _table(heads, shown, numbers=(0,))


def _devices(analysis: Analysis) -> Iterator[str]:
    if len(analysis.devices) < 2:
        return
    shown = [
        (
            plain(device.label),
            duration(device.chosen.components.window_ns),
            *(percent(device.chosen.components.share(name)) for name in COMPONENTS),
        )
        for device in analysis.devices[:_DEVICES]
    ]
    heads = (
        "Process" if analysis.on_host else "GPU",
        "Window",
        *(component_label(name, analysis.total) for name in COMPONENTS),
    )
    yield from _table(heads, shown, numbers=range(1, len(heads)))
    yield from _more(len(analysis.devices) - len(shown))


def _memory(analysis: Analysis) -> Iterator[str]:
    page = memory_page(analysis)
    if page is None:
        return
    shown = [
        (
            plain(row.label if row.is_total else f"{row.label} (change since start)"),
            size(row.peak, binary=True),
            plain(row.when),
            size(row.reserved, binary=True),
            row.share,
            plain(row.growth),
        )
        for row in page.rows
    ]
    heads = ("Location", "Peak", "Peak at", "Reserved", "Peak use", "Growth over used steps")
    yield from _table(heads, shown, numbers=(1, 3, 4))
    yield from _more(page.total - len(shown))


def _notes(analysis: Analysis) -> Iterator[str]:
    for note in analysis.notes[:_NOTES]:
        yield f"- **{note.kind}**: {plain(note.text)}"
    yield from _more(len(analysis.notes) - _NOTES)


def _foot(command: str | None) -> Iterator[str]:
    made = f" · {code(command)}" if command else ""
    yield f"<sub>traceflops {__version__}{made}</sub>"


def _details(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines folded away under a title; nothing where there are none."""
    found = list(lines)
    if found:
        yield from (f"<details><summary>{title}</summary>", "", *found, "", "</details>")


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int]
) -> Iterator[str]:
    right = set(numbers)
    rule = [_RIGHT if place in right else _LEFT for place in range(len(heads))]
    for row in (heads, rule, *rows):
        yield f"| {' | '.join(row)} |"


def _named(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows of a table and the cells with their names."""
    labels = short_labels([row["name"] for row in rows], _NAME)
    yield from zip(rows, map(code, labels), strict=True)


def _more(number: int) -> Iterator[str]:
    if number > 0:
        yield ""
        yield f"{several(number, 'more row')} in the HTML or JSON report."
