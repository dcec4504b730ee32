"""Where the evidence of a finding stands: the row, step, rank or stretch of time that shows it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct

from traceflops.analysis.result import Analysis
from traceflops.drawing.timeline import drawn_devices
from traceflops.findings.finding import Finding, Row, row_name
from traceflops.findings.losses import LOSS
from traceflops.findings.unevenness import UNEVEN_STEPS
from traceflops.reports.page.kernels import MOST_KERNELS
from traceflops.reports.page.overview import MOST_GAPS, Few
from traceflops.reports.page.ranks import MOST_DEVICES
from traceflops.reports.page.section import link_to
from traceflops.reports.page.steps import chosen_rows, window_rows
from traceflops.reports.page.timeline import gap_links
from traceflops.reports.view.figures import duration, shorten_middle
from traceflops.reports.view.findings import FindingWords, causes, other_findings
from traceflops.reports.view.utilisation import roof
from traceflops.reports.view.wording import gap_place
from traceflops.timeline.records import COMPONENTS
from traceflops.windows.prepared import most_exposed
from traceflops.windows.records import chosen_time
from traceflops.windows.step_times import StepTime, late_after

_DEVICE: Final = 30
_MOST_CAUSES: Final = 10
_LONGEST_LINK: Final = 2_000  # characters of a link; rows with longer names may have none


class Place(Struct, frozen=True):
    """A place: what follows # in its link, its text and kernel `name`; a live one needs scripts."""

    link: str
    text: str
    name: str = ""
    is_live: bool = False


def step_rows(analysis: Analysis) -> set[str]:
    """Return the numbers of the steps that have a row on the page."""
    rows = chosen_rows(window_rows(analysis.devices))
    return {row.label for row in rows if row.role == "step"}


def places(analysis: Analysis, finding: Finding, steps: Container[str]) -> Iterator[Place]:
    """Yield the places that show a finding, the best first; `steps` have a row on the page."""
    what = finding.rule.removeprefix(LOSS)  # of a loss this is the component that is lost
    spread, devices = analysis.spread, analysis.devices
    if finding.rule == UNEVEN_STEPS and spread is not None:
        text = f"step {spread.longest.step}: {duration(spread.longest.ns)}"
        yield from _step(analysis, steps, spread.longest, text)
    elif what == "idle":
        for gap, link in zip(analysis.gaps(1), gap_links(analysis), strict=False):
            if link:
                where = f", {gap_place(gap)}" if analysis.steps.seen else ""
                yield Place(link.removeprefix("#"), f"longest gap: {duration(gap.dur_ns)}{where}")
    elif what == "inefficiency":
        yield from _kernel_most_above_peak(analysis)
    elif what in COMPONENTS:
        yield from _longest_stretch(analysis, what)
        yield from _largest_kernel(analysis, what)
    if what not in COMPONENTS:
        return
    # The used step with most of it; idle time may be more before a late step.
    if spread is not None and len(spread.used) > 1:
        worst = max(spread.used, key=lambda step: step.components.parts()[what])
        ns, where = worst.components.parts()[what], f"in step {worst.step}"
        late = late_after(devices, worst.step, ns) if what == "idle" else None
        if late is not None:
            next_step, ns = late
            where = f"before step {next_step}"
        yield from _step(analysis, steps, worst, f"most {where}: {duration(ns)}")
    # The rank with most of it, if each device has a rank and a row of its own.
    ranks = {device.rank for device in devices if device.rank is not None}
    if 1 < len(devices) <= MOST_DEVICES and len(ranks) == len(devices):
        parts = {device.rank: device.chosen.components.parts()[what] for device in devices}
        rank = max(parts, key=parts.__getitem__)
        yield Place(f"rank={rank}", f"most on rank {rank}: {duration(parts[rank])} total")


def _kernel_most_above_peak(analysis: Analysis) -> Iterator[Place]:
    """Yield the kernel that took the most time beyond that of its FLOPs at the peak."""
    measured = analysis.measured
    beyond: dict[str, Fraction] = {}  # ns by kernel
    for row in measured.kernels:
        peak, _ = roof(measured, row.dtypes)
        if peak and row.measured.flops:
            more = row.measured.time_ns - Fraction(row.measured.flops, peak)
            beyond[row.name] = max(more, beyond.get(row.name, more))
    if beyond:
        worst = max(beyond, key=lambda name: beyond[name])
        # Others have no row on the page to link to.
        if worst in analysis.kernels.slice(0, MOST_KERNELS)["name"].to_pylist():
            yield from _kernel(worst, f"{duration(float(beyond[worst]))} total beyond peak in")


def _longest_stretch(analysis: Analysis, component: str) -> Iterator[Place]:
    """Yield the longest interval of a component on the devices that the timeline draws."""
    prepared = analysis.prepared
    if prepared is None or not prepared.accounts:
        return
    best = (0, 0, 0)  # length, start, device
    for device in drawn_devices(prepared, analysis.gaps()).devices:
        times = prepared.accounts[device].timeline.parts[component]
        inside = times.intersect(chosen_time(prepared.windows[device]))
        if len(inside):
            at = int((inside.end_ns - inside.start_ns).argmax())
            start, end = int(inside.start_ns[at]), int(inside.end_ns[at])
            best = max(best, (end - start, start, device))
    length, start, device = best
    if length:
        labels = {device.device: device.label for device in analysis.devices}
        where = f" on {shorten_middle(labels[device], _DEVICE)}" if len(labels) > 1 else ""
        text = f"longest interval: {duration(length)}{where}"
        yield Place(f"t={start}-{start + length},{device}", text, is_live=True)


def _largest_kernel(analysis: Analysis, component: str) -> Iterator[Place]:
    """Yield the kernel with most exposed time of a component, if it has a row to link to."""
    if analysis.prepared is None:
        return
    rows = analysis.kernels.slice(0, MOST_KERNELS).to_pylist()
    names = {row["name"] for row in rows if row["top"] == component}
    largest = most_exposed(analysis.prepared, component, names)
    if largest is not None:
        name, ns = largest
        yield from _kernel(name, f"largest part: {duration(ns)} total in")


def _kernel(name: str, words: str) -> Iterator[Place]:
    """Yield the row of a kernel of the table, unless its link is too long."""
    link = link_to("kernel", name)
    if name and len(link) < _LONGEST_LINK:
        yield Place(link, words, name)


def _step(analysis: Analysis, steps: Container[str], step: StepTime, text: str) -> Iterator[Place]:
    """Yield the row of a step if the page shows it; on several devices its times are means."""
    if str(step.step) in steps:
        mean = " per GPU" if len(analysis.devices_used) > 1 else ""
        yield Place(f"step={step.step}", f"{text}{mean}")


class CauseShown(Struct, frozen=True):
    """A cause: its words, its rows of evidence with the link of each, and where it shows best."""

    words: FindingWords
    rows: tuple[tuple[Row, str], ...]
    places: tuple[Place, ...]


class FindingsShown(Struct, frozen=True):
    """The causes that are shown, of how many; and the other findings, each with its places."""

    causes: Few[CauseShown]
    others: list[tuple[Finding, tuple[Place, ...]]]


def findings_shown(analysis: Analysis) -> FindingsShown:
    """Return causes and other findings, the best first, each with its places, best first."""
    steps, found = step_rows(analysis), causes(analysis)
    kernels = kernels_by_row(analysis)

    def link(row: Row) -> str:
        """Return the link to the row of a kernel that is shown, "" for none."""
        link = link_to("kernel", kernels[row.name]["name"]) if row.name in kernels else ""
        return link if len(link) < _LONGEST_LINK else ""

    shown = [
        CauseShown(
            cause,
            tuple((row, link(row)) for row in cause.finding.rows),
            (*places(analysis, cause.finding, steps), *_of_cause(analysis, cause.finding)),
        )
        for cause in found[:_MOST_CAUSES]
    ]
    others = [(one, tuple(places(analysis, one, steps))) for one in other_findings(analysis)]
    return FindingsShown(Few(shown, len(found)), others)


def kernels_by_row(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """Return the kernels that are shown by their names in rows of findings."""
    shown = analysis.kernels.slice(0, MOST_KERNELS).to_pylist()
    return {row_name(kernel["name"]): kernel for kernel in shown}


def _of_cause(analysis: Analysis, finding: Finding) -> Iterator[Place]:
    """Yield the gap (the longest of several) and the rank that a cause points to, if shown."""
    for gap, link in zip(analysis.gaps(MOST_GAPS), gap_links(analysis), strict=False):
        if link and finding.where.start_ns == gap.start_ns:
            where = f", {gap_place(gap)}" if analysis.steps.seen else ""
            idle_ns = gap.dur_ns - gap.start_up_ns
            yield Place(link.removeprefix("#"), f"longest: {duration(idle_ns)}{where}")
            break
    rank = finding.where.rank
    if rank is not None and 1 < len(analysis.devices) <= MOST_DEVICES:
        yield Place(f"rank={rank}", f"rank {rank}")
