"""Rules on totals by name: many kernels as short as a launch, and much elementwise work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from traceflops.attribution.kernels import kind_of
from traceflops.facts import Value, fact
from traceflops.findings.case import Case, limit
from traceflops.findings.finding import Finding, Row, row_name
from traceflops.findings.rules import advice_of, statement

_TINY, _ELEMENTWISE = "tiny-kernels", "elementwise-kernels"
_MOST_ROWS, _MOST_KINDS, _PART = 3, 2, 0.1
_KERNEL, _UNKNOWN = "kernel", "other"


def many_kernels(case: Case) -> Iterator[Finding]:
    """Give kernels that take as long as launching them, else elementwise ones with much time.

    `share` is of the time of all work on GPUs, counts are of launches.
    """
    rows = case.untimed.rows.to_pylist() if case.untimed is not None else []
    # Totals of some tools lack shares or counts.
    rows = [row for row in rows if row["kind"] == _KERNEL and row["share"] and row["count"]]
    count = sum(row["count"] for row in rows)
    tiny = [row for row in rows if row["mean_ns"] < limit(case, _TINY, "most_ns")]
    tiny_count, share = sum(row["count"] for row in tiny), sum(row["share"] for row in tiny)
    least = max(limit(case, _TINY, "least_count"), limit(case, _TINY, "least_of_all") * count)
    if tiny_count >= least and share >= limit(case, _TINY, "least_share"):
        yield _found(case, _TINY, tiny, tiny_count / count)
        return
    alike = [row for row in rows if row["sub"] == "elementwise"]
    many = sum(row["count"] for row in alike) >= limit(case, _ELEMENTWISE, "least_count")
    share = sum(row["share"] for row in alike)
    if many and share >= limit(case, _ELEMENTWISE, "least_share"):
        yield _found(case, _ELEMENTWISE, alike, None)


def _found(case: Case, rule: str, rows: list[dict[str, Any]], of_count: float | None) -> Finding:
    """Return a finding on some kernels; `of_count` is their share of all launches."""
    share, count = (sum(row[name] for row in rows) for name in ("share", "count"))
    kinds = Counter[str]()
    for row in rows:
        kinds[row["sub"]] += row["share"]
    main = kinds.most_common(_MOST_KINDS)
    large = [kind for kind, part in main if part >= _PART * share and kind != _UNKNOWN]
    large = large if 2 * sum(kinds[kind] for kind in large) >= share else []  # else not mostly
    values: dict[str, Value] = {
        "count": count,
        "of_count": of_count,
        "mean_ns": sum(row["sum_ns"] for row in rows) // count,
        "kinds": tuple(
            fact("tiny-kernels.kind", kind=kind_of(kind), share=kinds[kind]) for kind in large
        )
        or None,
    }
    knows = {"products"} if 2 * kinds["gemm"] >= share else set()
    first = sorted(rows, key=lambda row: -row["sum_ns"])[:_MOST_ROWS]
    return statement(
        rule,
        share,
        values,
        advice=advice_of(rule, case.program | knows),
        rows=tuple(Row(row_name(row["name"]), row["sum_ns"], row["count"]) for row in first),
    )
