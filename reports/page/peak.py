"""What the page shows of utilisation: where the peak went, the ledger, kernels and operators.

Chosen and counted here; the words are those of `reports.view`, the markup is a template.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from traceflops.reports.view.figures import UNKNOWN, duration, flops
from traceflops.reports.view.ledger import (
    LedgerCells,
    is_unsplit,
    ledger_cells,
    ledger_rows,
    mean_ledger,
)
from traceflops.reports.view.utilisation import (
    Fact,
    UtilisationPart,
    bounds_sentence,
    facts,
    parts,
    why_not,
)
from traceflops.reports.view.wording import unit
from traceflops.units import several

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.flops.mfu_waterfall import Waterfall

_ONE_TYPE: Final = "FLOP"


@dataclass(frozen=True, slots=True)
class LineShown:
    """One line of the waterfall: its share, what that is in time and, at the peak, in FLOPs."""

    part: UtilisationPart
    mean_ns: float
    flops: str


@dataclass(frozen=True, slots=True)
class PeakPage:
    """The section; what is not known is empty."""

    figure: str
    basis: str
    whole: str
    bounds: str
    why_not: list[str]
    lines: list[LineShown]
    budget: str
    facts: list[Fact]
    ledger: LedgerCells | None
    window: str


def peak_page(analysis: Analysis) -> PeakPage:
    """Return what the section shows."""
    measured, fall = analysis.measured, analysis.measured.waterfall
    ledger = mean_ledger(analysis)
    rows = ledger_rows(ledger)
    return PeakPage(
        figure=measured.figure or "",
        basis=measured.basis if fall is not None else "",
        whole=_whole(analysis),
        bounds=bounds_sentence(measured),
        why_not=why_not(measured),
        lines=list(_lines(analysis, fall)) if fall is not None else [],
        budget=_mean_amount(analysis, fall, fall.budget) if fall is not None else "",
        facts=list(facts(analysis)),
        ledger=ledger_cells(rows) if rows and not is_unsplit(ledger) else None,
        window=f"{'step' if analysis.steps.used else 'window'} and {unit(analysis)}",
    )


def _whole(analysis: Analysis) -> str:
    devices, ns = len(analysis.devices_used), analysis.components.window_ns
    total = " total" if devices > 1 else ""
    return f"peak of {several(devices, unit(analysis))} over {duration(ns)}{total}"


def _lines(analysis: Analysis, fall: Waterfall) -> Iterator[LineShown]:
    window_ns = analysis.components.window_ns
    for part in parts(fall):
        mean_ns = analysis.mean_ns(round(part.share * window_ns))
        yield LineShown(part, mean_ns, _mean_amount(analysis, fall, fall.amount(part.name)))


def _mean_amount(analysis: Analysis, fall: Waterfall, amount: int) -> str:
    """Return an amount in FLOPs per window and device, where one data type makes it one."""
    if fall.unit != _ONE_TYPE:
        return UNKNOWN
    return flops(Fraction(amount, max(analysis.windows_used, 1)))
