"""What a trace says of utilisation, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from traceflops.reports.terminal.mfu import conventions_table, run_lines
from traceflops.reports.terminal.reconciled import (
    beside_the_bar,
    described_facts,
    described_ledger,
    described_sentences,
    diagnoses_table,
)
from traceflops.reports.terminal.summary import (
    NARROWEST,
    Style,
    cut_to,
    fitted,
    labelled,
    provenance,
)
from traceflops.reports.view import (
    ABOVE,
    LEAST_NAME,
    LINE_LOOKS,
    UNKNOWN,
    UtilisationPart,
    apportioned,
    bound_word,
    bounds_sentence,
    cells,
    columns,
    count,
    counted_lines,
    duration,
    facts,
    heading,
    is_unsplit,
    ledger_table,
    mean_ledger,
    parts,
    rate_words,
    remarked,
    roof,
    unit,
    visible,
    why_not,
    wrapped,
)
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.flops import Waterfall
    from traceflops.mfu import KernelRow, Measurement, OpRow, Reconciliation

_LABEL, _VALUE, _SHARE = 26, 18, 9
_ROWS = 8
_NOTES = 6
_CELLS = {"time": 9, "TFLOP/s": 9, "of peak": 9, "GB/s": 8, "FLOP/B": 9, "bound": 9}
_LESS = ("FLOP/B", "GB/s", "bound", "TFLOP/s")
_WIDEST = 48
_BOUNDS = {"interconnect": "link"}
_BAR = 100


def render_measured(
    analysis: Analysis, style: Style | None = None, found: Reconciliation | None = None
) -> list[Text]:
    """Return the lines of `traceflops mfu TRACE`; `found` is what a description says of it."""
    style = style or Style()
    style = replace(style, width=max(style.width, NARROWEST))
    measured = analysis.measured
    lines = [
        *_head(analysis, style, found),
        *_waterfall(analysis, style, found),
        *_facts(measured, style, found),
        *_ledger(analysis, style, found),
        *(diagnoses_table(found, style) if found is not None else ()),
        *_kernels(analysis, style),
        *_ops(analysis, style),
        *counted_lines(measured, style.width),
        *_notes(analysis, style, found),
    ]
    return [fitted(line, style) for line in lines]


def render_measured_conventions(
    analysis: Analysis, style: Style, found: Reconciliation
) -> list[Text]:
    """Return the figures of all conventions over the device windows of a trace."""
    style = replace(style, width=max(style.width, NARROWEST))
    lines = [
        *_head(analysis, style, found),
        *conventions_table(found.described, style),
        *_notes(analysis, style, found),
    ]
    return [fitted(line, style) for line in lines]


def _head(analysis: Analysis, style: Style, found: Reconciliation | None) -> Iterator[Text]:
    measured = analysis.measured
    sentences = why_not(measured)
    if measured.figure is not None:
        missing = sentences if measured.mfu is None and found is None else []
        sentences = [f"{measured.figure} ({measured.basis})", *missing]
    if found is not None:
        sentences = [*sentences, *described_sentences(measured, found)]
    for sentence in sentences:
        for line in wrapped(visible(sentence), style.width):
            yield Text(line, "bold")
    yield from provenance(analysis, style)
    if found is not None:
        yield from run_lines(found.described, style)


def _waterfall(analysis: Analysis, style: Style, found: Reconciliation | None) -> Iterator[Text]:
    fall = analysis.measured.waterfall
    if fall is None and found is not None:
        fall = found.waterfall
    if fall is None:
        return
    yield from _bars(fall, style)
    if bounds := bounds_sentence(analysis.measured):
        yield from (Text(line, "dim") for line in wrapped(bounds, style.width))
    if found is not None:
        yield from beside_the_bar(found, style)
    window = analysis.components.window_ns
    devices = several(len(analysis.devices_used), unit(analysis))
    whole = f"100.0 %: {devices} at peak for {duration(window)}."
    yield Text(whole, "dim")


def _bars(fall: Waterfall, style: Style) -> Iterator[Text]:
    found = parts(fall)
    yield Text()
    yield _bar(found, style, min(style.width, _BAR))
    for part in found:
        line = Text()
        line.append_text(style.drawn(LINE_LOOKS[part.name]))
        line.append(f" {part.label:<{_LABEL}}").append(f"{part.percent:>{_SHARE}}  ", "bold")
        if cell_len(line.plain) + len(part.text) <= style.width:
            line.append(part.text, "dim")
        yield line


def _bar(found: list[UtilisationPart], style: Style, width: int) -> Text:
    bar = Text()
    cells = apportioned([part.thousandths for part in found], width)
    for part, number in zip(found, cells, strict=True):
        bar.append_text(style.drawn(LINE_LOOKS[part.name], number))
    return bar


def _facts(measured: Measurement, style: Style, found: Reconciliation | None) -> Iterator[Text]:
    yield Text()
    described = described_facts(found) if found is not None else ()
    for fact in (*facts(measured), *described):
        line = Text(f"{fact.label:<{_VALUE}}{fact.value:<{_VALUE - 1}} ")
        yield from remarked(line, visible(fact.remark), style.width)


def _ledger(analysis: Analysis, style: Style, found: Reconciliation | None) -> Iterator[Text]:
    """Yield the ledger as means per window; that of the description where the trace has none."""
    ledger = analysis.measured.executed.ledger()
    if not ledger.lines or is_unsplit(ledger):
        yield from described_ledger(found, style.width) if found is not None else ()
        return
    yield Text()
    window = "step" if analysis.steps.used else "window"
    yield from ledger_table(mean_ledger(analysis), window, style.width)
    bounds = "" if analysis.measured.is_exact else ", upper bounds of a range"
    yield Text(f"Averages per {window} and {unit(analysis)}{bounds}.", "dim")


def _kernels(analysis: Analysis, style: Style) -> Iterator[Text]:
    measured = analysis.measured
    rows = [row for row in measured.kernels if row.measured.flops or _is_counted(row)][:_ROWS]
    if not rows:
        return
    what = "FLOPs" if any(row.measured.flops for row in rows) else "bytes"
    yield from _table(f"Kernels with known {what}", rows, measured, style)


def _is_above_the_peak(row: KernelRow | OpRow, measured: Measurement) -> bool:
    peak, _ = roof(measured, row.dtypes)
    share = row.measured.share_of_peak(peak) if row.measured.flops_per_ns else None
    return share is not None and share > 1


def _is_counted(row: KernelRow) -> bool:
    """Return whether hardware counters tell bytes of a kernel, if not FLOPs."""
    return row.basis == "counters" and row.measured.min_bytes is not None


def _ops(analysis: Analysis, style: Style) -> Iterator[Text]:
    measured = analysis.measured
    rows = [row for row in measured.ops if row.measured.flops or row.measured.min_bytes][:_ROWS]
    if not rows:
        return
    yield from _table("Operators", rows, measured, style)


def _table(
    title: str, rows: Sequence[KernelRow | OpRow], measured: Measurement, style: Style
) -> Iterator[Text]:
    widths = columns(_CELLS, style.width - LEAST_NAME, _LESS)
    room = min(_WIDEST, style.width - sum(widths.values()))
    yield Text()
    yield from heading(title, room, widths)
    names = cut_to([row.name for row in rows], room - 1)
    for row, name in zip(rows, names, strict=True):
        yield Text(f"{name} {cells(_row(row, measured), widths)}")
    if any(_is_above_the_peak(row, measured) for row in rows):
        yield from (Text(line, "dim") for line in wrapped(ABOVE, style.width))


def _row(row: KernelRow | OpRow, measured: Measurement) -> dict[str, str]:
    work, bound = row.measured, bound_word(measured, row)
    peak, _ = roof(measured, row.dtypes)
    rate, share, intensity = rate_words(work, peak)
    used = work.bytes_per_ns
    texts = (
        duration(work.time_ns),
        rate,
        share,
        count(round(used)) if used is not None else UNKNOWN,
        intensity,
        _BOUNDS.get(bound, bound) or UNKNOWN,
    )
    return dict(zip(_CELLS, texts, strict=True))


def _notes(analysis: Analysis, style: Style, found: Reconciliation | None) -> Iterator[Text]:
    notes = [note.text for note in (*analysis.measured.notes, *analysis.notes)]
    described = found.described.notes if found is not None else ()
    shown = list(dict.fromkeys((*described, *notes)))
    if shown:
        yield Text()
    for note in shown[:_NOTES]:
        yield from labelled("note", note, style)
    if len(shown) > _NOTES:
        yield Text(f"note {several(len(shown) - _NOTES, 'more note')} in --json", "dim")
