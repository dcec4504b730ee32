"""Links that transfer slowly: far below their peak, or far below the links of similar groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case, cause, limit
from traceflops.findings.finding import MOST_ROWS, Cause, Finding, Row, as_loss, severity_of
from traceflops.findings.late_rank import clocks_apart_ns
from traceflops.findings.rules import cause_of
from traceflops.ranks.who_waits import RankReport
from traceflops.units import listed

SLOW_LINK: Final = "slow-link"
_MIB: Final = 2**20


def collective_name(kind: str, role: str | None) -> str:
    """Return words for a kind and role of collectives, such as "all-gather of dp"."""
    return " of ".join(filter(None, (kind.replace("_", "-"), role)))


def slow_collectives(case: Case, share: float) -> Iterator[Cause]:
    """Give a cause if large collectives run far below the peak of the links."""
    rule, ranks = "slow-collectives", case.ranks
    poor, good, least = (limit(case, rule, name) for name in ("poor", "good", "least_share"))
    if ranks.partial:
        return  # without all ranks, transfers contain waiting and look slow
    slow = [
        # The ns that a good rate would save: bytes / bandwidth is the time that calls take.
        (rate.count * rate.bytes / rate.algorithm * (1 - rate.of_peak / good), rate)
        for rate in ranks.rates()
        if rate.of_peak is not None and rate.of_peak < poor and not rate.slow  # rule slow-link
        if rate.bytes >= limit(case, rule, "least_mib") * _MIB
    ]
    slow.sort(key=lambda saved_and_rate: -saved_and_rate[0])
    lost_ns = sum(ns * len(rate.members) for ns, rate in slow)
    part = min(lost_ns / max(int(ranks.waits.transfer_ns.sum()), 1), 1.0)
    if not slow or part * share < least:
        return
    worst = slow[0][1]
    yield cause(
        case,
        rule,
        part * share,
        {
            "name": collective_name(worst.kind, worst.role),
            "mib": worst.bytes / _MIB,
            "rate": worst.bus,
            "reached": worst.of_peak or 0,
            "good": good,
        },
        rows=tuple(
            Row(collective_name(rate.kind, rate.role), round(ns), rate.count)
            for ns, rate in slow[:MOST_ROWS]
        ),
        edits=(f"communication*{1 - part:.4f}",),
    )


def slow_link_fact(ranks: RankReport) -> Fact | None:
    """Return which group transfers far slower than similar groups, None if that costs little."""
    claim = next((slow.claim for slow in _slow_links(ranks, frozenset())), None)
    if claim is None:
        return None
    values = {name: value for name, value in claim.values.items() if name != "share"}
    return Fact(claim.code, values)  # verdicts tell no share of it


def slow_link_findings(ranks: RankReport, program: frozenset[str]) -> Iterator[Finding]:
    """Give a finding if one group transfers far slower than similar groups."""
    yield from filter(None, map(as_loss, _slow_links(ranks, program)))


def slow_link(case: Case) -> Iterator[Cause]:
    """Give a cause if one group transfers far slower than similar groups."""
    yield from _slow_links(case.ranks, case.program)


def _slow_links(ranks: RankReport, program: frozenset[str]) -> Iterator[Cause]:
    """Yield at most one cause: the slow link by which ranks lose most."""
    slow = [rate for rate in ranks.rates() if rate.slow]
    if not slow:
        return
    lost: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for rate in slow:
        lost[tuple(sorted(rate.members))] += rate.lost_ns
    worst = max(lost, key=lambda members: (lost[members], members))
    share = lost[worst] / ranks.span_ns
    if severity_of(share) is None:
        return
    worst_rates = [rate for rate in slow if tuple(sorted(rate.members)) == worst]
    rate = max(worst_rates, key=lambda rate: rate.lost_ns)
    usual = rate.usual or rate.bus
    link = fact(f"{SLOW_LINK}.link")
    values: dict[str, Value] = {
        "group": fact(f"{SLOW_LINK}.group", role=rate.role) if rate.role else link,
        "ranks": listed(worst),
        "kind": rate.kind.replace("_", "-"),
        "rate": rate.bus,
        "usual": usual,
        "times": usual / rate.bus,
        "clocks_ns": clocks_apart_ns(ranks),
    }
    cost = fact(f"{SLOW_LINK}.cost", lost_ns=lost[worst])
    rows = (Row(f"{rate.kind} of ranks {listed(worst)}", lost[worst]),)
    yield cause_of(program, SLOW_LINK, share, values, (cost,), rows=rows)
