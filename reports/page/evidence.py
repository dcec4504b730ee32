"""Links to the evidence of a finding: the row, step, rank or interval that shows it."""

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
    """A place on the page: its link (without #), its text and the name of its kernel, if any.

    A live place is in the timeline, which needs scripts.
    """

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
    subject = finding.rule.removeprefix(LOSS)  # of a loss: the component that is lost
    spread = analysis.spread
    if finding.rule == UNEVEN_STEPS and spread is not None:
        text = f"step {spread.longest.step}: {duration(spread.longest.ns)}"
        yield from _step(analysis, steps, spread.longest, text)
    elif subject == "idle":
        for gap, link in zip(analysis.gaps(1), gap_links(analysis), strict=False):
            if link:
                where = f", {gap_place(gap)}" if analysis.steps.seen else ""
                yield Place(link.removeprefix("#"), f"longest gap: {duration(gap.dur_ns)}{where}")
    elif subject == "inefficiency":
        yield from _kernel_most_above_peak(analysis)
    elif subject in COMPONENTS:
        yield from _longest_interval(analysis, subject)
        yield from _largest_kernel(analysis, subject)
    if subject in COMPONENTS:
        yield from _most_of_component(analysis, subject, steps)


def _most_of_component(
    analysis: Analysis, component: str, steps: Container[str]
) -> Iterator[Place]:
    """Yield the used step and the rank that have the most time of a component."""
    spread, devices = analysis.spread, analysis.devices
    if spread is not None and len(spread.used) > 1:
        worst = max(spread.used, key=lambda step: step.components.parts()[component])
        ns, where = worst.components.parts()[component], f"in step {worst.step}"
        late = late_after(devices, worst.step, ns) if component == "idle" else None
        if late is not None:  # most of the idle time delays the next step
            next_step, ns = late
            where = f"before step {next_step}"
        yield from _step(analysis, steps, worst, f"most {where}: {duration(ns)}")
    # Ranks can be named if each device has a rank and a row of its own.
    ranks = {device.rank for device in devices if device.rank is not None}
    if 1 < len(devices) <= MOST_DEVICES and len(ranks) == len(devices):
        ns_of = {device.rank: device.chosen.components.parts()[component] for device in devices}
        rank = max(ns_of, key=ns_of.__getitem__)
        yield Place(f"rank={rank}", f"most on rank {rank}: {duration(ns_of[rank])} total")


def _kernel_most_above_peak(analysis: Analysis) -> Iterator[Place]:
    """Yield the kernel that takes the most time beyond that of its FLOPs at the peak."""
    measured = analysis.measured
    beyond_ns: dict[str, Fraction] = {}  # by kernel
    for row in measured.kernels:
        peak, _ = roof(measured, row.dtypes)
        if peak and row.measured.flops:
            ns = row.measured.time_ns - Fraction(row.measured.flops, peak)
            beyond_ns[row.name] = max(ns, beyond_ns.get(row.name, ns))
    if beyond_ns:
        worst = max(beyond_ns, key=lambda name: beyond_ns[name])
        # Only the first kernels have a row to link to.
        if worst in analysis.kernels.slice(0, MOST_KERNELS)["name"].to_pylist():
            yield from _kernel(worst, f"{duration(float(beyond_ns[worst]))} total beyond peak in")


def _longest_interval(analysis: Analysis, component: str) -> Iterator[Place]:
    """Yield the longest interval of a component on the devices that the timeline draws."""
    prepared = analysis.prepared
    if not prepared.accounts:
        return
    longest = (0, 0, 0)  # length and start in ns, device
    for device in drawn_devices(prepared, analysis.gaps()).devices:
        intervals = prepared.accounts[device].timeline.parts[component]
        inside = intervals.intersect(chosen_time(prepared.windows[device]))
        if len(inside):
            lengths_ns = inside.end_ns - inside.start_ns
            place = int(lengths_ns.argmax())
            interval = int(lengths_ns[place]), int(inside.start_ns[place]), device
            longest = max(longest, interval)
    length_ns, start_ns, device = longest
    if length_ns:
        labels = {device.device: device.label for device in analysis.devices}
        where = f" on {shorten_middle(labels[device], _DEVICE)}" if len(labels) > 1 else ""
        text = f"longest interval: {duration(length_ns)}{where}"
        yield Place(f"t={start_ns}-{start_ns + length_ns},{device}", text, is_live=True)


def _largest_kernel(analysis: Analysis, component: str) -> Iterator[Place]:
    """Yield the kernel with most exposed time of a component, if one has a row to link to."""
    rows = analysis.kernels.slice(0, MOST_KERNELS).to_pylist()
    names = {row["name"] for row in rows if row["top"] == component}
    largest = most_exposed(analysis.prepared, component, names)
    if largest is not None:
        name, ns = largest
        yield from _kernel(name, f"largest part: {duration(ns)} total in")


def _kernel(name: str, words: str) -> Iterator[Place]:
    """Yield the row of a kernel in the table of kernels, unless its link is too long."""
    link = link_to("kernel", name)
    if name and len(link) < _LONGEST_LINK:
        yield Place(link, words, name)


def _step(analysis: Analysis, steps: Container[str], step: StepTime, text: str) -> Iterator[Place]:
    """Yield the row of a step if the page shows it; times of several devices are means."""
    if str(step.step) in steps:
        mean = " per GPU" if len(analysis.devices_used) > 1 else ""
        yield Place(f"step={step.step}", f"{text}{mean}")


class CauseShown(Struct, frozen=True):
    """A cause: its words, its rows of evidence with their links, and the places that show it."""

    words: FindingWords
    rows: tuple[tuple[Row, str], ...]
    places: tuple[Place, ...]


class FindingsShown(Struct, frozen=True):
    """The causes, and the other findings with their places."""

    causes: Few[CauseShown]
    others: list[tuple[Finding, tuple[Place, ...]]]


def findings_shown(analysis: Analysis) -> FindingsShown:
    """Return causes and other findings, each with the places that show it; the best come first."""
    steps, all_causes = step_rows(analysis), causes(analysis)
    kernels = kernels_by_row(analysis)

    def link(row: Row) -> str:
        """Return the link to the kernel that a row of evidence is about, "" for none."""
        target = link_to("kernel", kernels[row.name]["name"]) if row.name in kernels else ""
        return target if len(target) < _LONGEST_LINK else ""

    shown = [
        CauseShown(
            cause,
            tuple((row, link(row)) for row in cause.finding.rows),
            (*places(analysis, cause.finding, steps), *_of_cause(analysis, cause.finding)),
        )
        for cause in all_causes[:_MOST_CAUSES]
    ]
    others = [(other, tuple(places(analysis, other, steps))) for other in other_findings(analysis)]
    return FindingsShown(Few(shown, len(all_causes)), others)


def kernels_by_row(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """Return the rows of the first kernels, by the name that rows of findings give them."""
    shown = analysis.kernels.slice(0, MOST_KERNELS).to_pylist()
    return {row_name(kernel["name"]): kernel for kernel in shown}


def _of_cause(analysis: Analysis, finding: Finding) -> Iterator[Place]:
    """Yield the gap and the rank that a cause points to, if the page shows them."""
    for gap, link in zip(analysis.gaps(MOST_GAPS), gap_links(analysis), strict=False):
        if link and finding.where.start_ns == gap.start_ns:
            where = f", {gap_place(gap)}" if analysis.steps.seen else ""
            idle_ns = gap.dur_ns - gap.start_up_ns
            yield Place(link.removeprefix("#"), f"longest: {duration(idle_ns)}{where}")
            break
    rank = finding.where.rank
    if rank is not None and 1 < len(analysis.devices) <= MOST_DEVICES:
        yield Place(f"rank={rank}", f"rank {rank}")
