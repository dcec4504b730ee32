"""Rule `slow-link`: which pair or group of ranks transfers slower than its like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.facts import Fact, Value, fact
from traceflops.findings.finding import Cause, Finding, Row, as_loss, severity_of
from traceflops.findings.late_rank import clocks_apart_ns
from traceflops.findings.rules import cause_of
from traceflops.units import listed

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.ranks.link_rates import LinkRate
    from traceflops.ranks.who_waits import RankReport

RULE: Final = "slow-link"


def slow_link_fact(ranks: RankReport | None) -> Fact | None:
    """Return which group transfers how much slower than its like, None where that costs little."""
    worst = _worst(ranks)
    return Fact(f"{RULE}.claim", _values(worst[0], ranks)) if worst is not None else None


def slow_link_findings(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Finding]:
    """Give a finding where the transfers of one group cost much more than those of its like."""
    yield from filter(None, map(as_loss, _causes(ranks, program)))


def slow_link(case: Case) -> Iterator[Cause]:
    """Give a cause where the transfers of one group cost much more than those of its like."""
    yield from _causes(case.ranks, case.program)


def _causes(ranks: RankReport | None, program: frozenset[str]) -> Iterator[Cause]:
    worst = _worst(ranks)
    if worst is not None:
        rate, lost_ns, share = worst
        yield cause_of(
            program,
            RULE,
            share,
            _values(rate, ranks),
            (fact(f"{RULE}.cost", lost_ns=lost_ns),),
            rows=(Row(f"{rate.kind} of ranks {listed(sorted(rate.members))}", lost_ns),),
        )


def _worst(ranks: RankReport | None) -> tuple[LinkRate, int, float] | None:
    """Return what costs most of the slowest group, what all of it costs, and how much that is."""
    slow = [rate for rate in ranks.rates() if rate.slow] if ranks is not None else []
    if ranks is None or not slow:
        return None
    lost: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for rate in slow:
        lost[tuple(sorted(rate.members))] += rate.lost_ns
    worst = max(lost, key=lambda members: (lost[members], members))
    share = lost[worst] / ranks.span_ns
    mine = [rate for rate in slow if tuple(sorted(rate.members)) == worst]
    rate = max(mine, key=lambda rate: rate.lost_ns)
    return (rate, lost[worst], share) if severity_of(share) is not None else None


def _values(rate: LinkRate, ranks: RankReport | None) -> dict[str, Value]:
    usual = rate.usual or rate.bus
    return {
        "group": fact(f"{RULE}.group", role=rate.role) if rate.role else fact(f"{RULE}.link"),
        "ranks": listed(sorted(rate.members)),
        "kind": rate.kind.replace("_", "-"),
        "rate": rate.bus,
        "usual": usual,
        "times": usual / rate.bus,
        "clocks_ns": clocks_apart_ns(ranks),
    }
