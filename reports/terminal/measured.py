"""The utilisation of a trace in a terminal, and a comparison with a description of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.mfu.checked.reconciliation import Reconciliation
from traceflops.mfu.traced.work_tables import KernelRow, OpRow
from traceflops.reports.terminal.aggregates import counted_lines
from traceflops.reports.terminal.case import provenance
from traceflops.reports.terminal.lines import (
    Style,
    fact_lines,
    fitted,
    ledger_table,
    named_table,
    note_lines,
    paragraph,
    remarked,
)
from traceflops.reports.terminal.mfu import conventions_table, run_lines, what_counts
from traceflops.reports.view import utilisation
from traceflops.reports.view.figures import UNKNOWN, count, duration, flops, significant
from traceflops.reports.view.ledger import is_unsplit, mean_ledger
from traceflops.reports.view.palette import LINE_LOOKS
from traceflops.reports.view.texts import words
from traceflops.reports.view.wording import basis, doubts, each, unit, window
from traceflops.units import exact_percent, several

_LABEL, _SHARE = 26, 9
_ROWS: Final = 8
_NOTES: Final = 6
_CELLS: Final = {"time": 9, "TFLOP/s": 9, "of peak": 9, "GB/s": 8, "FLOP/B": 9, "bound": 9}
_LESS: Final = ("FLOP/B", "GB/s", "bound", "TFLOP/s")
_WIDEST: Final = 48
_BOUNDS: Final = {"interconnect": "link"}
_TINY: Final = Fraction(1, 10**6)
"""A smaller difference of two MFUs comes from rounding to whole FLOPs."""
_FROM_DESCRIPTION: Final = (
    "From the description: useful work. Compute below peak: the rest of the compute time."
)


def render_measured(
    analysis: Analysis, style: Style | None = None, checked: Reconciliation | None = None
) -> list[Text]:
    """Return the lines of `traceflops mfu TRACE`; `checked` compares it with a description.

    Kernels are listed if their FLOPs are known or their bytes counted, operators if either is
    known.
    """
    style, measured = (style or Style()).wide_enough(), analysis.measured
    kernels = [
        row
        for row in measured.kernels
        if row.measured.flops or (row.basis == "counters" and row.measured.min_bytes is not None)
    ][:_ROWS]
    ops = [row for row in measured.ops if row.measured.flops or row.measured.min_bytes][:_ROWS]
    if analysis.only_launches:  # their times are not those of the work
        kernels, ops = [], []
    known = "FLOPs" if any(row.measured.flops for row in kernels) else "bytes"
    figures = (
        *utilisation.facts(analysis),
        *(described_facts(checked) if checked is not None else ()),
    )
    lines = (
        *_head(analysis, style, checked),
        *_waterfall(analysis, style, checked),
        *([Text()] if figures else ()),
        *fact_lines(figures, style.width),
        *_ledger_lines(analysis, checked, style.width),
        *_table(f"Kernels with known {known}", kernels, analysis, style.width),
        *_table("Operators", ops, analysis, style.width),
        *counted_lines(measured, style.width),
        *_notes(analysis, style, checked),
    )
    return fitted(lines, style)


def _ledger_lines(analysis: Analysis, checked: Reconciliation | None, width: int) -> Iterator[Text]:
    """Yield the ledger of the trace; if the purpose of its FLOPs is unknown, the described one."""
    ledger = analysis.measured.executed.ledger()
    described = checked.described if checked is not None else None
    if ledger.lines and not is_unsplit(ledger):
        per, is_exact = window(analysis), analysis.measured.is_exact
        bounds = "" if is_exact else ", upper bounds of a range"
        yield from (Text(), *ledger_table(mean_ledger(analysis), per, width))
        yield Text(f"Averages per {per} and {unit(analysis)}{bounds}.", "dim")
    elif described is not None and described.work.ledger.lines:
        yield from (Text(), *ledger_table(described.work.ledger, described.unit, width))
        yield Text("As described, for the whole job.", "dim")


def render_measured_conventions(
    analysis: Analysis, style: Style, checked: Reconciliation
) -> list[Text]:
    """Return the figures by all conventions, over the device windows of a trace."""
    style = style.wide_enough()
    lines = (
        *_head(analysis, style, checked),
        *conventions_table(checked.described, style.width),
        *_notes(analysis, style, checked),
    )
    return fitted(lines, style)


def _head(analysis: Analysis, style: Style, checked: Reconciliation | None) -> Iterator[Text]:
    """Yield the figures of trace and description, or why there are none, the recording, the run."""
    measured, described = analysis.measured, list[str]()
    if checked is not None:  # the described figure, or why there is none, and how it compares
        if checked.rate is not None:
            described.append(checked.rate.sentence)
        lacks_of_trace = {lack.what for lack in measured.lacks}
        for lack in checked.lacks:
            if lack.what not in lacks_of_trace:
                line = fact("missing.line-described", what=lack.what, how=lack.how)
                described.append(words(line))
        if checked.sentence:
            described.append(checked.sentence)
    if measured.figure is not None:
        yield from paragraph(f"{measured.figure} ({measured.basis})", style.width, "bold")
    # Say why there is no MFU, unless the description says something.
    is_other_figure = measured.figure is not None and measured.mfu is None and checked is None
    if not described and (measured.figure is None or is_other_figure):
        for sentence in utilisation.why_not(measured, is_asked=True):
            yield from paragraph(sentence, style.width, "bold")
    for sentence in described:
        yield from paragraph(sentence, style.width, "bold")
    yield from provenance(analysis, style)
    if checked is not None:
        yield from run_lines(checked.described, style.width)


def _waterfall(analysis: Analysis, style: Style, checked: Reconciliation | None) -> Iterator[Text]:
    """Yield the MFU waterfall of the trace, else of the description, as a bar with its lines."""
    fall, width = analysis.measured.waterfall, style.width
    if fall is None and checked is not None:
        fall = checked.waterfall
    if fall is None:
        return
    shown = utilisation.parts(fall)
    yield Text()
    yield style.bar([(LINE_LOOKS[part.name], part.thousandths) for part in shown])
    for part in shown:
        line = Text().append_text(style.drawn(LINE_LOOKS[part.name]))
        line.append(f" {part.label:<{_LABEL}}").append(f"{part.percent:>{_SHARE}}  ", "bold")
        if cell_len(line.plain) + len(part.text) <= width:
            line.append(part.text, "dim")
        yield line
    yield from paragraph(utilisation.bounds_sentence(analysis.measured), width)
    if checked is not None and checked.waterfall is not None:
        yield from paragraph(_FROM_DESCRIPTION, width)
    # What the description counts but the trace does not is outside the bar.
    if checked is not None and checked.gap is not None and abs(checked.gap) >= _TINY:
        sign = "+" if checked.gap > 0 else "-"
        line = Text(f"  {'described less shown':<{_LABEL}}")
        line.append(f"{sign + exact_percent(abs(checked.gap)):>{_SHARE}}  ", "bold")
        bound = "" if checked.measured.is_exact else " (at most)"
        what = f"outside the bar: {checked.described.work.ledger.convention} - trace{bound}"
        yield from remarked(line, what, width)
    whole = duration(analysis.mean_ns(analysis.components.window_ns))
    yield from paragraph(f"{basis(analysis)}. 100 % is {whole}.", width)


def described_facts(checked: Reconciliation) -> Iterator[utilisation.Fact]:
    """Yield the figures behind the described one.

    The described HFU is one of them if it differs from MFU, or if the trace has no MFU to compare;
    but not if it is the described figure itself.
    """
    work, job = checked.described.work, checked.job
    rate, convention = checked.rate, work.ledger.convention
    is_other = rate is not None and (rate.hfu != rate.mfu or checked.measured.mfu is None)
    if rate is not None and is_other and not rate.is_hfu:
        remark = "with other executed FLOPs, as described"
        yield utilisation.Fact("described HFU", exact_percent(rate.hfu), remark)
    if checked.host_mfu is not None:
        remark = f"{convention}, over CPU step markers"
        yield utilisation.Fact("MFU (host)", exact_percent(checked.host_mfu), remark)
    elif checked.host_ran_ahead:
        remark = "the CPU ran ahead: its step markers are not step times"
        yield utilisation.Fact("MFU (host)", UNKNOWN, remark)
    if checked.needed is not None:
        windows = f"{several(job.windows, 'window')}, {count(job.shown)}"  # one per step and device
        remark = f"{convention}, {windows} of {several(job.devices, 'device')}"
        yield utilisation.Fact("needed", flops(checked.needed), remark)
    counts = checked.counts
    if counts is not None:
        remark = "as model FLOPs, padding included" if checked.is_padded else "as model FLOPs"
        value = flops(counts.counted)
        if counts.is_open:  # FLOPs of some work are not known
            value = f"≥ {flops(counts.least)}"
            most = f"at most {flops(counts.most)}" if counts.most is not None else ""
            remark = f"{remark}; {most or 'upper bound unknown'}"
        yield utilisation.Fact("trace shows", value, remark)
    if work.tokens_per_s is not None:
        label = f"{what_counts(checked.described)}s per s"
        yield utilisation.Fact(label, significant(work.tokens_per_s), "whole job")


def _table(
    title: str, rows: Sequence[KernelRow | OpRow], analysis: Analysis, width: int
) -> Iterator[Text]:
    """Yield kernels or operators with their time, rates and what bounds them."""
    if not rows:
        return
    measured, shown, is_above_peak = analysis.measured, [], False
    for row in rows:
        work, bound = row.measured, utilisation.bound_word(measured, row)
        peak, _ = utilisation.roof(measured, row.dtypes)
        if work.flops_per_ns and (work.share_of_peak(peak) or 0) > 1:
            is_above_peak = True
        time = duration(analysis.mean_ns(work.time_ns))
        rate, share, intensity = utilisation.rate_words(work, peak)
        bandwidth = significant(work.bytes_per_ns, zeros=True) if work.bytes_per_ns else UNKNOWN
        short_bound = _BOUNDS.get(bound, bound) or UNKNOWN
        cells = (time, rate, share, bandwidth, intensity, short_bound)  # the columns of _CELLS
        shown.append((row.name, cells))
    heading = ", ".join(filter(None, (title, each(analysis))))
    yield from named_table(heading, shown, _CELLS, _LESS, _WIDEST, width)
    if is_above_peak:
        yield from paragraph(utilisation.ABOVE, width)


def _notes(analysis: Analysis, style: Style, checked: Reconciliation | None) -> Iterator[Text]:
    """Yield the notes of the description and the analysis that were not printed as warnings."""
    notes = [note.text for note in (*analysis.measured.notes, *analysis.notes)]
    described = map(words, checked.described.notes) if checked is not None else ()
    warnings = doubts(analysis)
    shown = [text for text in dict.fromkeys((*described, *notes)) if text not in warnings]
    yield from note_lines(shown, _NOTES, "in --json", style.width)
