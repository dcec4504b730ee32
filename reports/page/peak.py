"""What the page shows of utilisation: where the peak went, the ledger, kernels and operators.

Chosen and counted here; the words are those of `reports.view`, the markup is a template.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from traceflops.analysis.result import Analysis
from traceflops.reports.view.figures import UNKNOWN, duration, flops
from traceflops.reports.view.ledger import is_unsplit, ledger_cells, ledger_rows, mean_ledger
from traceflops.reports.view.utilisation import bounds_sentence, facts, parts, why_not
from traceflops.reports.view.wording import unit, window
from traceflops.units import several

_ONE_TYPE: Final = "FLOP"


def peak_page(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the section's template; what is unknown is empty.

    `lines` are the parts of the waterfall, each with its mean time and that time in FLOPs.
    """
    measured, fall = analysis.measured, analysis.measured.waterfall
    window_ns, windows = analysis.components.window_ns, max(analysis.windows_used, 1)

    def mean_flops(amount: int) -> str:
        """Return FLOPs per window and device; unknown if the peaks of several types are mixed."""
        is_one = fall is not None and fall.unit == _ONE_TYPE
        return flops(Fraction(amount, windows)) if is_one else UNKNOWN

    ledger = mean_ledger(analysis)
    rows = ledger_rows(ledger)
    total = " total" if len(analysis.devices_used) > 1 else ""
    lines = (
        []
        if fall is None
        else [
            (
                part,
                analysis.mean_ns(round(part.share * window_ns)),
                mean_flops(fall.amount(part.name)),
            )
            for part in parts(fall)
        ]
    )
    devices = several(len(analysis.devices_used), unit(analysis))
    return {
        "figure": measured.figure or "",
        "basis": measured.basis if fall is not None else "",
        "whole": f"peak of {devices} over {duration(window_ns)}{total}",
        "bounds": bounds_sentence(measured),
        "why_not": why_not(measured),
        "lines": lines,
        "budget": mean_flops(fall.budget) if fall is not None else "",
        "facts": list(facts(analysis)),
        "ledger": ledger_cells(rows) if rows and not is_unsplit(ledger) else None,
        "window": f"{window(analysis)} and {unit(analysis)}",
    }
