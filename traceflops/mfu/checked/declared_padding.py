"""Padding that a trace tells itself, by its description or marks, taken out of its figures."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from traceflops.mfu.checked.run_marks import is_ours
from traceflops.mfu.measurement import Measurement
from traceflops.table.columns import names
from traceflops.table.trace import Trace
from traceflops.windows.prepared import Prepared

if TYPE_CHECKING:
    from traceflops.mfu.checked.trace_description import SelfDescribed


def says_something(trace: Trace) -> bool:
    """Return whether a trace says anything of its own run."""
    return bool(trace.source.description) or any(map(is_ours, names(trace.marks["name"])))


def without_told_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding that the trace tells.

    A description counts if it agrees with what the trace shows; else marks that tell how many
    tokens are real, and how many are computed.
    """
    if not says_something(prepared.trace) or not measured.executed.executed_flops:
        return measured
    # Models are only needed for the few traces that describe themselves.
    from traceflops.mfu.checked.trace_description import SelfDescribed, self_described

    said = self_described(prepared)
    if isinstance(said, SelfDescribed):
        return _as_described(measured, prepared, said)
    return without_marked_padding(measured, prepared)


def _as_described(measured: Measurement, prepared: Prepared, said: SelfDescribed) -> Measurement:
    from traceflops.mfu.checked.counts import counts_of, of_job
    from traceflops.mfu.checked.job_size import job_size
    from traceflops.mfu.checked.padding import described_padding, without_padding

    job = job_size(prepared, said.run.devices if said.run.devices > 1 else None)
    run = of_job(said.run, job)
    counts = counts_of(measured, said.card, run, job)
    if counts is None or not counts.agree:
        return measured
    padding = described_padding(said.card, run, measured.executed)
    if padding is None:
        return measured
    return without_padding(measured, prepared, padding, "as described")


def without_marked_padding(measured: Measurement, prepared: Prepared) -> Measurement:
    """Return the measurement without the padding that marks alone tell."""
    from traceflops.mfu.checked.padding import padding_of_rows, without_padding
    from traceflops.mfu.checked.token_marks import told_by_marks

    told = told_by_marks(prepared)
    values = told.values if told is not None else {}
    real = values.get("seqlens.sum", values.get("tokens.real"))
    computed = values.get("tokens.padded")
    if real is None or computed is None or real >= computed:
        return measured
    padding = padding_of_rows(Fraction(real), Fraction(computed))
    return without_padding(measured, prepared, padding, "from annotations")
