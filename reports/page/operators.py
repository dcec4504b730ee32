"""The table of operators: device time of what they launched, and their counted work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traceflops.attribution.operator_table import operators
from traceflops.reports.page.deeplinks import Links
from traceflops.reports.page.work import (
    WorkColumns,
    WorkShown,
    op_work,
    rates_sentence,
    work_columns,
)
from traceflops.reports.view.short_names import Label, labels

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis

MOST_OPERATORS: Final = 100


@dataclass(frozen=True, slots=True)
class OperatorShown:
    """A row of the table; `link` is what follows # in a link to it."""

    row: Mapping[str, Any]
    label: Label
    link: str
    work: WorkShown | None


@dataclass(frozen=True, slots=True)
class OperatorsPage:
    """The operators that are shown, what is not, and the time of which no operator is known.

    `rest` are those of which other operators launched all that they are for: no time is their own.
    Shares of operators are of the device time; `unknown_share` is of the kernels' time, `all_ns`.
    """

    rows: list[OperatorShown]
    rest: list[OperatorShown]
    hidden: int
    hidden_ns: int
    unknown_activities: int
    unknown_ns: int
    unknown_share: float | None
    all_ns: int
    rates: str
    counted: WorkColumns
    counted_of_rest: WorkColumns
    has_host: bool


def operators_page(analysis: Analysis) -> OperatorsPage | None:
    """Return the operators with the most device time, None where the trace has none."""
    if analysis.prepared is None:
        return None
    found = operators(analysis.prepared)
    table = found.table.slice(0, MOST_OPERATORS)
    if not table.num_rows:
        return None
    rows, links = table.to_pylist(), Links("op")
    work = op_work(analysis.measured, [row["name"] for row in rows])
    all_ns = sum(found.table["sum_ns"].to_pylist()) + found.left_ns + found.unknown_ns
    named = labels([row["name"] for row in rows])
    shown = [
        OperatorShown(row, label, links.of(row["name"]), work.get(row["name"]))
        for row, label in zip(rows, named, strict=True)
    ]
    own = [one for one in shown if one.row["sum_ns"]] or shown
    rest = shown[len(own) :] if own[-1] is not shown[-1] else []
    counted = work_columns(one.work for one in own)
    return OperatorsPage(
        rows=own,
        rest=rest,
        hidden=found.table.num_rows - len(rows) + found.left,
        hidden_ns=all_ns - found.unknown_ns - sum(row["sum_ns"] for row in rows),
        unknown_activities=found.unknown_activities,
        unknown_ns=found.unknown_ns,
        unknown_share=found.unknown_ns / all_ns if all_ns else None,
        all_ns=all_ns,
        rates=rates_sentence(analysis.measured) if counted else "",
        counted=counted,
        counted_of_rest=work_columns(one.work for one in rest),
        has_host=any(row["host_ns"] is not None for row in rows),
    )
