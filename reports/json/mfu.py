"""What `traceflops mfu --json` prints: a utilisation, and that of a trace beside a description.

The schemas are traceflops.mfu/1 and traceflops.utilisation/1 (see mfu.schema.json,
utilisation.schema.json and docs/mfu.md). Of the latter, `utilisation` is what the trace says, as in
a report; `described` is what a description says of it.

Counts of FLOPs may exceed 64 bits and be fractions, so each is given twice: as a number and, with
`_text`, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.flops.analytic.explain_reported import Candidate, Explanation
from traceflops.flops.analytic.lengths import Lengths
from traceflops.flops.analytic.rates import TERA, DescribedWork, Rate
from traceflops.flops.analytic.run import Run
from traceflops.flops.analytic.run_utilisation import Entry, Utilisation
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.checked.passes import Recomputation
from traceflops.mfu.checked.reconciliation import Reconciliation
from traceflops.reports.json.measured import measured_object, waterfall_object
from traceflops.reports.json.report import report_head
from traceflops.reports.view.figures import as_float, fields, flop_count
from traceflops.reports.view.texts import words

SCHEMA: Final = "traceflops.mfu/1"
MODELS_SCHEMA: Final = "traceflops.models/1"
UTILISATION_SCHEMA: Final = "traceflops.utilisation/1"


def mfu_object(figures: Utilisation, explained: Explanation | None = None) -> dict[str, Any]:
    """Return a utilisation as plain dicts and lists. Shares are 0 to 1, unknown is null."""
    possible = figures.rate if figures.is_possible else None
    return {
        "schema": SCHEMA,
        "traceflops_version": __version__,
        "metric": possible.sentence if possible is not None else None,
        "convention": figures.work.ledger.convention,
        "unit": figures.unit,
        **_figures(figures.work, possible),
        "model": _model(figures.card),
        "run": _run(figures),
        "peak": _peak(figures),
        "lacks": [fields(lack, "problem", "remedy") for lack in figures.lacks],
        "ledger": [
            {"line": line.name, **flop_count("flops", line.flops)}
            for line in figures.work.ledger.lines
        ],
        "conventions": [_entry(entry) for entry in figures.entries],
        "reported": _explained(explained) if explained is not None else None,
        "notes": list(figures.notes),
    }


def models_object(models: Iterable[tuple[str, ModelCard]]) -> dict[str, Any]:
    """Return the presets as plain dicts and lists."""
    listed = [{"id": name, **_model(card)} for name, card in models]
    return {"schema": MODELS_SCHEMA, "models": listed}


def _figures(done: DescribedWork, rate: Rate | None) -> dict[str, Any]:
    """Return what a convention says: an executed one has no MFU."""
    is_model = not done.ledger.executed_only
    return {
        "mfu": float(rate.mfu) if rate is not None and is_model else None,
        "hfu": float(rate.hfu) if rate is not None and done.is_counted else None,
        "tflops_per_device": as_float(done.tflops_per_device),
        "flops_per_token": as_float(done.flops_per_token),
        **flop_count("model_flops", done.ledger.model if is_model else None),
        **flop_count("executed_flops", done.ledger.executed if done.is_counted else None),
    }


def _model(card: ModelCard) -> dict[str, Any]:
    known = card.complete
    return {
        **fields(card, "name", "source"),
        "parameters": card.total,
        "active_parameters": card.active if known else None,
        "weights_per_token": card.weights() if known else None,
        "lacks": list(card.lacks),
    }


def _run(figures: Utilisation) -> dict[str, Any]:
    run, done = figures.run, figures.work
    shape = run.shape(figures.card) if done.tokens is not None else None
    return {
        "devices": run.devices,
        "tokens": shape.slot_tokens if shape is not None else None,
        "real_tokens": shape.tokens if shape is not None else None,
        "sequences": _lengths(shape.slots) if shape is not None else None,
        "documents": _lengths(shape.documents) if shape is not None else None,
        "seconds": as_float(done.seconds),
        "tokens_per_s": as_float(done.tokens_per_s),
        "achieved_tflops_per_device": as_float(run.achieved / TERA if run.achieved else None),
        "achieved_convention": run.achieved_basis,
        **_training(figures, run),
    }


def _training(figures: Utilisation, run: Run) -> dict[str, Any]:
    lora, again = run.lora, run.checkpoint
    return {
        "forward_only": bool(run.forward_only),
        "frozen": ["all"] if run.is_frozen else sorted(run.frozen),
        "frozen_layers": run.frozen_layers,
        "lora_parameters": lora.parameters(figures.card) if lora is not None else None,
        "checkpointing": {
            "name": again.name,
            "matmul_share": float(again.linear),
            "attention_share": float(again.attention),
        },
        "attention_kernel": run.attention_kernel,
    }


def _lengths(lengths: Lengths | None) -> list[dict[str, int]] | None:
    if lengths is None:
        return None
    return [{"tokens": length, "count": number} for length, number in lengths]


def _peak(figures: Utilisation) -> dict[str, Any] | None:
    peak, spec = figures.choice.peak, figures.choice.spec
    if peak is None:
        return None
    from_table = spec is not None and not peak.label.endswith("given")
    return {
        "tflops": float(peak.flops_per_ns / 1000),
        "label": peak.label,
        "dtype": figures.choice.dtype,
        "device": spec.id if spec is not None else None,
        "product": spec.product if spec is not None else None,
        "source": spec.source if spec is not None and from_table else "--peak",
        "confidence": spec.confidence if spec is not None and from_table else "U",
    }


def _entry(one: Entry) -> dict[str, Any]:
    figures: dict[str, Any] = dict.fromkeys(
        (
            *("mfu", "hfu", "tflops_per_device", "flops_per_token"),
            *("model_flops", "model_flops_text", "executed_flops", "executed_flops_text"),
        )
    )
    problem = one.problem
    if one.work is not None:
        impossible = one.rate is not None and max(one.rate.mfu, one.rate.hfu) > 1
        problem = "more than the devices can do" if impossible else problem
        figures = _figures(one.work, None if impossible else one.rate)
    return {
        "id": one.convention.id,
        "is_hfu": one.convention.executed,
        "problem": problem or None,
        **figures,
        "counts": one.convention.words,
        "used_by": one.convention.used_by,
    }


def _explained(explained: Explanation) -> dict[str, Any]:
    return {
        "text": explained.reported.text,
        "share": float(explained.reported.value),
        "sentence": explained.sentence,
        "candidates": [_candidate(candidate) for candidate in explained.candidates],
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "conventions": list(one.conventions),
        "peak_label": one.peak.label,
        "peak_tflops": float(one.peak.flops_per_ns / 1000),
        "treatment": one.treatment,
        "share": float(one.value),
        **fields(one, "error", "reproduces"),
        "supposes": one.cost,
    }


def utilisation_object(
    analysis: Analysis, checked: Reconciliation | None = None, explained: Explanation | None = None
) -> dict[str, Any]:
    """Return the utilisation of a trace; `described` is null without a description."""
    return {
        **report_head(analysis, UTILISATION_SCHEMA),
        "utilisation": measured_object(analysis.measured),
        "described": _described_object(checked, explained) if checked is not None else None,
    }


def _described_object(
    checked: Reconciliation, explained: Explanation | None = None
) -> dict[str, Any]:
    """Return a description held against a trace: its own object, and how the two compare."""
    own = mfu_object(checked.described, explained)
    del own["schema"], own["traceflops_version"]
    job, waterfall = checked.job, checked.waterfall
    return {
        **own,
        "lacks": [fields(lack, "problem", "remedy") for lack in checked.lacks],
        "devices_told_by": job.told_by,
        "devices_shown": job.shown,
        "step_windows": job.windows,
        **fields(job, "window_ns", "host_ns"),
        "host_mfu": as_float(checked.host_mfu),
        **_comparison(checked),
        "waterfall": waterfall_object(waterfall) if waterfall is not None else None,
    }


def _comparison(checked: Reconciliation) -> dict[str, Any]:
    counts = checked.counts
    return {
        **flop_count("needed_flops", checked.needed),
        **flop_count("expected_flops", counts.expected if counts is not None else None),
        **flop_count("counted_flops", counts.counted if counts is not None else None),
        **flop_count("counted_flops_at_least", counts.least if counts is not None else None),
        **flop_count("counted_flops_at_most", counts.most if counts is not None else None),
        "residual": as_float(checked.residual),
        "agree": checked.agree,
        "difference_of_mfu": as_float(checked.gap),
        "sentence": checked.sentence or None,
        "recomputation": _recomputation(checked.recomputation),
        "padding_taken_out": checked.is_padded and bool(checked.measured.executed.padding_flops),
    }


def _recomputation(again: Recomputation | None) -> dict[str, Any] | None:
    if again is None:
        return None
    return {
        "checkpointing": again.checkpoint.name,
        **flop_count("described_flops", again.described),
        **flop_count("counted_flops", again.counted),
        **flop_count("counted_flops_at_least", again.least),
        **flop_count("counted_flops_at_most", again.most),
        "agree": again.mismatch is None,
        "mismatch": {
            "code": again.mismatch.code,
            "words": words(again.mismatch.what),
            "remedy": words(again.mismatch.option),
        }
        if again.mismatch is not None
        else None,
    }
