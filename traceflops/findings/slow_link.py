"""Rule `slow-link`: which pair or group of ranks transfers slower than its like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Candidate, Finding, Row, as_loss, severity_of
from traceflops.findings.late_rank import clocks_words
from traceflops.units import duration, listed, significant

if TYPE_CHECKING:
    from traceflops.findings.case import Case
    from traceflops.ranks import LinkRate, RankReport

RULE: Final = "slow-link"
SLOW_LINK_REMEDY: Final = (
    "Check whether only these ranks are on different nodes, and the state and errors of their "
    "links, adapters and cables."
)


def slow_link_sentence(ranks: RankReport | None) -> str:
    """Return which group transfers how much slower than its like, "" where that costs little."""
    worst = _worst(ranks)
    return _sentence(worst[0], ranks) if worst is not None else ""


def slow_link_findings(ranks: RankReport | None) -> Iterator[Finding]:
    """Give a finding where the transfers of one group cost much more than those of its like."""
    yield from filter(None, map(as_loss, _candidates(ranks)))


def slow_link(case: Case) -> Iterator[Candidate]:
    """Give a candidate where the transfers of one group cost much more than those of its like."""
    yield from _candidates(case.ranks)


def _candidates(ranks: RankReport | None) -> Iterator[Candidate]:
    worst = _worst(ranks)
    if worst is not None:
        rate, lost_ns, share = worst
        yield Candidate(
            rule=RULE,
            title="A link is slow",
            sentence=f"{_sentence(rate, ranks)} That costs {duration(lost_ns)}.",
            share=share,
            owner="cluster",
            remedy=SLOW_LINK_REMEDY,
            evidence=("ranks",),
            rows=(Row(f"{rate.kind} of ranks {listed(sorted(rate.members))}", lost_ns),),
            on_path=frozenset({"communication"}),
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
    rate = max(mine, key=lambda one: one.lost_ns)
    return (rate, lost[worst], share) if severity_of(share) is not None else None


def _sentence(rate: LinkRate, ranks: RankReport | None) -> str:
    usual = rate.usual or rate.bus
    clocks = clocks_words(ranks) if ranks is not None else ""
    who, what = f"{rate.role} group" if rate.role else "link", rate.kind.replace("_", "-")
    return (
        f"The {who} of ranks {listed(sorted(rate.members))} is slow: {what} runs at "
        f"{significant(rate.bus, 3)} GB/s, elsewhere at {significant(usual, 3)} GB/s "
        f"({significant(usual / rate.bus, 2)} times as fast){clocks}."
    )
