"""What `traceflops mfu TRACE --json` prints, schema traceflops.utilisation/1.

`utilisation` is what the trace says, as in a report; `described` what a description says of it
(see utilisation.schema.json and docs/mfu.md).
"""

from __future__ import annotations

from typing import Any, Final

from traceflops.analysis import Analysis
from traceflops.flops import Explanation
from traceflops.mfu import Diagnosis, Recomputation, Reconciliation
from traceflops.reports.json.measured import measured_object, waterfall_object
from traceflops.reports.json.mfu import mfu_object
from traceflops.reports.json.report import report_head
from traceflops.reports.view import as_float, fields, flop_count

SCHEMA: Final = "traceflops.utilisation/1"
NEAREST: Final = 10
"""So many changes that were tried and do not fit are told."""


def utilisation_object(
    analysis: Analysis, found: Reconciliation | None = None, explained: Explanation | None = None
) -> dict[str, Any]:
    """Return the utilisation of a trace; `described` is null without a description."""
    return {
        **report_head(analysis, SCHEMA),
        "utilisation": measured_object(analysis.measured),
        "described": described_object(found, explained) if found is not None else None,
    }


def described_object(found: Reconciliation, explained: Explanation | None = None) -> dict[str, Any]:
    """Return a description held against a trace: its own object, and how the two compare."""
    own = mfu_object(found.described, explained)
    own = {name: value for name, value in own.items() if name not in _OF_AN_OBJECT}
    return {
        **own,
        "lacks": [fields(lack, "problem", "remedy") for lack in found.lacks],
        **_job(found),
        **_comparison(found),
        "waterfall": waterfall_object(found.waterfall) if found.waterfall is not None else None,
    }


_OF_AN_OBJECT: Final = ("schema", "traceflops_version")


def _job(found: Reconciliation) -> dict[str, Any]:
    job = found.job
    return {
        "devices_told_by": job.told_by,
        "devices_shown": job.shown,
        "step_windows": job.windows,
        "window_ns": job.window_ns,
        "host_ns": job.host_ns,
        "host_mfu": as_float(found.host_mfu),
    }


def _comparison(found: Reconciliation) -> dict[str, Any]:
    counts = found.counts
    return {
        **flop_count("needed_flops", found.needed),
        **flop_count("expected_flops", counts.expected if counts is not None else None),
        **flop_count("counted_flops", counts.counted if counts is not None else None),
        **flop_count("counted_flops_at_least", counts.least if counts is not None else None),
        **flop_count("counted_flops_at_most", counts.most if counts is not None else None),
        "residual": as_float(found.residual),
        "agree": found.agree,
        "difference_of_mfu": as_float(found.gap),
        "sentence": found.sentence or None,
        "diagnoses": [_diagnosis(diagnosis) for diagnosis in _worth_telling(found)],
        "recomputation": _recomputation(found.recomputation),
        "padding_taken_out": found.is_padded and bool(found.measured.executed.padding_flops),
    }


def _recomputation(found: Recomputation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "checkpointing": found.checkpoint.name,
        **flop_count("described_flops", found.described),
        **flop_count("counted_flops", found.counted),
        **flop_count("counted_flops_at_least", found.least),
        **flop_count("counted_flops_at_most", found.most),
        "agree": found.finding is None,
    }


def _worth_telling(found: Reconciliation) -> tuple[Diagnosis, ...]:
    """Return what fits, and the nearest of what does not."""
    others = tuple(one for one in found.diagnoses if not one.fits)
    return (*found.findings, *others[:NEAREST])


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        **fields(diagnosis, "code", "words", "remedy"),
        **flop_count("expected_flops", diagnosis.expected),
        **fields(diagnosis, "residual", "distance", "supposes", "fits"),
    }
