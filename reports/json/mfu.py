"""The JSON of `traceflops mfu --json` (fields: utilisation.toml).

traceflops.mfu/1 is the utilisation of a described run. traceflops.utilisation/1 is that of a trace:
`utilisation` as in a report, and `described` by a description of the run.

Counts of FLOPs may exceed 64 bits and be fractions, so each is given twice: as a number and, with
`_text`, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from traceflops._version import __version__
from traceflops.analysis.result import Analysis
from traceflops.facts import fact
from traceflops.flops.analytic.explain_reported import Explanation
from traceflops.flops.analytic.lengths import Lengths
from traceflops.flops.analytic.rates import TERA, DescribedWork, Rate
from traceflops.flops.analytic.run_utilisation import Entry, Utilisation
from traceflops.flops.model.card import ModelCard
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
    rate = figures.rate if figures.is_possible else None
    return {
        "schema": SCHEMA,
        "traceflops_version": __version__,
        "metric": rate.sentence if rate is not None else None,
        "convention": figures.work.ledger.convention,
        "unit": figures.unit,
        **_figures(figures.work, rate),
        "model": _model(figures.card),
        "run": _run(figures),
        "peak": _peak(figures),
        "lacks": [fields(lack, "problem", "remedy") for lack in figures.lacks],
        "ledger": [
            {"line": line.name, **flop_count("flops", line.flops)}
            for line in figures.work.ledger.lines
        ],
        "conventions": [_convention(entry) for entry in figures.entries],
        "reported": explained
        and {
            "text": explained.reported.text,
            "share": float(explained.reported.value),
            "sentence": explained.sentence,
            "candidates": [
                {
                    "conventions": list(candidate.conventions),
                    "peak_label": candidate.peak.label,
                    "peak_tflops": float(candidate.peak.flops_per_ns / 1000),
                    "treatment": candidate.treatment,
                    "share": float(candidate.value),
                    **fields(candidate, "error", "reproduces"),
                    "supposes": candidate.cost,
                }
                for candidate in explained.candidates
            ],
        },
        "notes": list(map(words, figures.notes)),
    }


def models_object(models: Iterable[tuple[str, ModelCard]]) -> dict[str, Any]:
    """Return the presets as plain dicts and lists."""
    listed = [{"id": name, **_model(card)} for name, card in models]
    return {"schema": MODELS_SCHEMA, "models": listed}


def _figures(work: DescribedWork | None, rate: Rate | None) -> dict[str, Any]:
    """Return MFU, HFU, rates and FLOPs by one convention; null for what it does not count."""
    ledger = work.ledger if work is not None else None
    model_ledger = ledger if ledger is not None and not ledger.executed_only else None
    counted_ledger = ledger if work is not None and work.is_counted else None
    return {
        "mfu": float(rate.mfu) if rate is not None and model_ledger is not None else None,
        "hfu": float(rate.hfu) if rate is not None and counted_ledger is not None else None,
        "tflops_per_device": as_float(work.tflops_per_device) if work is not None else None,
        "flops_per_token": as_float(work.flops_per_token) if work is not None else None,
        **flop_count("model_flops", model_ledger.model if model_ledger else None),
        **flop_count("executed_flops", counted_ledger.executed if counted_ledger else None),
    }


def _model(card: ModelCard) -> dict[str, Any]:
    """Return the model; an incomplete card only has the number of all parameters."""
    return {
        **fields(card, "name", "source"),
        "parameters": card.total,
        "active_parameters": card.active if card.complete else None,
        "weights_per_token": card.weights() if card.complete else None,
        "lacks": list(card.lacks),
    }


def _run(figures: Utilisation) -> dict[str, Any]:
    """Return what was run: its tokens, its time, which parameters were trained, recomputation."""
    run, work, policy = figures.run, figures.work, figures.run.checkpoint
    shape = run.shape(figures.card) if work.tokens is not None else None

    def lengths(slots: Lengths | None) -> list[dict[str, int]] | None:
        """Return how many sequences have each length."""
        if slots is None:
            return None
        return [{"tokens": length, "count": number} for length, number in slots]

    return {
        "devices": run.devices,
        "tokens": shape.slot_tokens if shape is not None else None,
        "real_tokens": shape.tokens if shape is not None else None,
        "sequences": shape and lengths(shape.slots),
        "documents": shape and lengths(shape.documents),
        "seconds": as_float(work.seconds),
        "tokens_per_s": as_float(work.tokens_per_s),
        "achieved_tflops_per_device": as_float(run.achieved / TERA if run.achieved else None),
        "achieved_convention": run.achieved_basis,
        "forward_only": bool(run.forward_only),
        "frozen": ["all"] if run.is_frozen else sorted(run.frozen),
        "frozen_layers": run.frozen_layers,
        "lora_parameters": run.lora.parameters(figures.card) if run.lora is not None else None,
        "checkpointing": {
            "name": policy.name,
            "matmul_share": float(policy.linear),
            "attention_share": float(policy.attention),
        },
        "attention_kernel": run.attention_kernel,
    }


def _peak(figures: Utilisation) -> dict[str, Any] | None:
    """Return the peak rate that MFU and HFU are shares of; None if it is unknown."""
    peak, spec = figures.choice.peak, figures.choice.spec
    if peak is None:
        return None
    # A peak that the user gave by --peak has a label that ends with "given". Any other peak is from
    # the row of the device in the table of known devices.
    row = None if peak.label.endswith("given") else spec
    return {
        "tflops": float(peak.flops_per_ns / 1000),
        "label": peak.label,
        "dtype": figures.choice.dtype,
        "device": spec.id if spec is not None else None,
        "product": spec.product if spec is not None else None,
        "source": row.source if row is not None else "--peak",
        "confidence": row.confidence if row is not None else "U",  # given by the user
    }


def _convention(entry: Entry) -> dict[str, Any]:
    """Return the figures of a run by a convention, without MFU and HFU if one exceeds 100 %."""
    rate = entry.rate
    is_impossible = entry.work is not None and rate is not None and max(rate.mfu, rate.hfu) > 1
    problem = "more than the devices can do" if is_impossible else entry.problem
    code = f"convention.{entry.convention.id}"
    return {
        "id": entry.convention.id,
        "is_hfu": entry.convention.executed,
        "problem": problem or None,
        **_figures(entry.work, None if is_impossible else rate),
        "counts": words(fact(f"{code}.counts")),
        "used_by": words(fact(f"{code}.used-by")),
    }


def utilisation_object(
    analysis: Analysis, checked: Reconciliation | None = None, explained: Explanation | None = None
) -> dict[str, Any]:
    """Return the utilisation of a trace; `described` is null if the user described no run."""
    return {
        **report_head(analysis, UTILISATION_SCHEMA),
        "utilisation": measured_object(analysis.measured),
        "described": _described(checked, explained) if checked is not None else None,
    }


def _described(checked: Reconciliation, explained: Explanation | None) -> dict[str, Any]:
    """Return the described run: the fields of `mfu_object`, and how it compares with the trace."""
    described = mfu_object(checked.described, explained)
    del described["schema"], described["traceflops_version"]
    job, counts, fall = checked.job, checked.counts, checked.waterfall
    recomputed = checked.recomputation
    return {
        **described,
        "lacks": [fields(lack, "problem", "remedy") for lack in checked.lacks],
        "devices_told_by": words(job.told_by),
        "devices_shown": job.shown,
        "step_windows": job.windows,
        **fields(job, "window_ns", "host_ns"),
        "host_mfu": as_float(checked.host_mfu),
        **flop_count("needed_flops", checked.needed),
        **flop_count("expected_flops", counts.expected if counts is not None else None),
        **flop_count("counted_flops", counts.counted if counts is not None else None),
        **flop_count("counted_flops_at_least", counts.least if counts is not None else None),
        **flop_count("counted_flops_at_most", counts.most if counts is not None else None),
        "residual": as_float(checked.residual),
        "agree": checked.agree,
        "difference_of_mfu": as_float(checked.gap),
        "sentence": checked.sentence or None,
        # None if recomputation in the trace cannot be compared with the described one.
        "recomputation": recomputed
        and {
            "checkpointing": recomputed.checkpoint.name,
            **flop_count("described_flops", recomputed.described),
            **flop_count("counted_flops", recomputed.counted),
            **flop_count("counted_flops_at_least", recomputed.least),
            **flop_count("counted_flops_at_most", recomputed.most),
            "agree": recomputed.mismatch is None,
            "mismatch": recomputed.mismatch
            and {"code": recomputed.mismatch.code, "words": words(recomputed.mismatch.what)},
        },
        "waterfall": waterfall_object(fall) if fall is not None else None,
    }
