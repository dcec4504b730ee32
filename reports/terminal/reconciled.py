"""A description held against a trace, as blocks of lines of `traceflops mfu TRACE`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from rich.text import Text

from traceflops.mfu import Diagnosis
from traceflops.reports.terminal.summary import Style
from traceflops.reports.view import (
    UNKNOWN,
    Fact,
    count,
    flops,
    ledger_table,
    remarked,
    significant,
    visible,
    wrapped,
)
from traceflops.units import exact_percent, several

if TYPE_CHECKING:
    from traceflops.mfu import Counts, JobSize, Measurement, Reconciliation

TINY: Final = Fraction(1, 10**6)
"""A difference of two MFUs below that is of rounding to whole FLOPs."""
DIAGNOSES_SHOWN: Final = 4
LESS_SIMPLE: Final = 3
"""Diagnoses that suppose so much more than the best one are left to --json."""

_LABEL, _SHARE, _LEAVES = 26, 9, 10
FROM_DESCRIPTION: Final = (
    "From the description: useful work. Compute below peak: the rest of the compute time."
)


def described_sentences(measured: Measurement, found: Reconciliation) -> Iterator[str]:
    """Yield the figure of the description, or why there is none, and how the two compare."""
    if found.rate is not None:
        yield found.rate.sentence
    told = {one.problem for one in measured.lacks}
    for lack in found.lacks:
        if lack.problem not in told:
            yield f"No MFU from the description: {lack.problem.rstrip('.')}; {lack.remedy}."
    if found.sentence:
        yield found.sentence


def beside_the_bar(found: Reconciliation, style: Style) -> Iterator[Text]:
    """Yield what the description counts and the trace does not, outside the bar."""
    if found.waterfall is not None:
        yield from (Text(line, "dim") for line in wrapped(FROM_DESCRIPTION, style.width))
    if found.gap is None or abs(found.gap) < TINY:
        return
    sign = "+" if found.gap > 0 else "-"
    line = Text(f"  {'described less shown':<{_LABEL}}")
    line.append(f"{sign + exact_percent(abs(found.gap)):>{_SHARE}}  ", "bold")
    bound = "" if found.measured.is_exact else " (at most)"
    what = f"outside the bar: {found.described.work.ledger.convention} - trace{bound}"
    yield from remarked(line, what, style.width)


def described_facts(found: Reconciliation) -> Iterator[Fact]:
    """Yield what the described figure is made of."""
    work, job = found.described.work, found.job
    rate, convention = found.rate, work.ledger.convention
    is_more = rate is not None and (rate.hfu != rate.mfu or found.measured_mfu is None)
    if rate is not None and is_more and not rate.is_hfu:
        yield Fact(
            "described HFU", exact_percent(rate.hfu), "with other executed FLOPs, as described"
        )
    if found.host_mfu is not None:
        remark = f"{convention}, over CPU step markers"
        yield Fact("MFU (host)", exact_percent(found.host_mfu), remark)
    elif found.host_ran_ahead:
        yield Fact("MFU (host)", UNKNOWN, "the CPU ran ahead: its step markers are not step times")
    if found.needed is not None:
        yield Fact("needed", flops(found.needed), f"{convention}, {_windows(job)}")
    if found.counts is not None:
        yield _shown(found, found.counts)
    if work.tokens_per_s is not None:
        yield Fact("tokens per s", significant(work.tokens_per_s), "whole job")


def _shown(found: Reconciliation, counts: Counts) -> Fact:
    """Return what the trace shows as model FLOPs."""
    what = "as model FLOPs, padding included" if found.is_padded else "as model FLOPs"
    if not counts.is_open:
        return Fact("trace shows", flops(counts.counted), what)
    most = f"at most {flops(counts.most)}" if counts.most is not None else "upper bound unknown"
    return Fact("trace shows", f"≥ {flops(counts.least)}", f"{what}; {most}")


def _windows(job: JobSize) -> str:
    """Return what the FLOPs are of: one window per step and device."""
    windows = several(job.windows, "window")
    return f"{windows}, {count(job.shown)} of {several(job.devices, 'device')}"


def described_ledger(found: Reconciliation, width: int) -> Iterator[Text]:
    """Yield the ledger of the description."""
    if not found.described.work.ledger.lines:
        return
    yield Text()
    yield from ledger_table(found.described.work.ledger, found.described.unit, width)
    yield Text("As described, for the whole job.", "dim")


def diagnoses_table(found: Reconciliation, style: Style) -> Iterator[Text]:
    """Yield what would make description and trace agree, the simplest first."""
    fitting = found.findings
    if not fitting:
        return
    rows = [one for one in fitting if one.score <= fitting[0].score + LESS_SIMPLE]
    yield Text()
    yield Text(f"{'leaves':>{_LEAVES - 2}}  what would make them agree, simplest first", "bold")
    for one in rows[:DIAGNOSES_SHOWN]:
        yield from _row(one, style)


def _row(one: Diagnosis, style: Style) -> Iterator[Text]:
    left = exact_percent(one.distance) if one.distance else "nothing"
    text = f"{one.words}: {one.remedy}"
    first, *more = wrapped(visible(text), style.width - _LEAVES)
    yield Text(f"{left:>{_LEAVES - 2}}  {first}")
    for line in more:
        yield Text(f"{'':{_LEAVES}}{line}")
