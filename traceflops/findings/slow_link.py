"""Rule `slow-link`: which pair or group of ranks transfers slower than its like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.findings.finding import Finding, severity_of
from traceflops.units import duration, listed, significant

if TYPE_CHECKING:
    from traceflops.ranks import LinkRate, RankReport

RULE: Final = "slow-link"
_CHECK: Final = (
    "Check whether only these ranks are on different nodes, and the state and errors of their "
    "links, adapters and cables."
)


def slow_link_findings(ranks: RankReport | None) -> Iterator[Finding]:
    """Give a finding where the transfers of one group cost much more than those of its like."""
    slow = [rate for rate in ranks.rates() if rate.slow] if ranks is not None else []
    if ranks is None or not slow:
        return
    lost: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for rate in slow:
        lost[tuple(sorted(rate.members))] += rate.lost_ns
    worst = max(lost, key=lambda members: (lost[members], members))
    share = lost[worst] / ranks.span_ns
    severity = severity_of(share)
    if severity is not None:
        mine = [rate for rate in slow if tuple(sorted(rate.members)) == worst]
        sentence = f"{_sentence(mine, lost[worst])} {_CHECK}"
        yield Finding(RULE, severity, sentence, share, None, ("ranks",))


def _sentence(slow: Sequence[LinkRate], lost_ns: int) -> str:
    """Return who is slow and by how much, by what of it costs most."""
    rate = max(slow, key=lambda one: one.lost_ns)
    usual = rate.usual or rate.bus
    what = rate.kind.replace("_", "-")
    return (
        f"The link of ranks {listed(sorted(rate.members))} is slow: {what} runs at "
        f"{significant(rate.bus, 3)} GB/s, elsewhere at {significant(usual, 3)} GB/s "
        f"({significant(usual / rate.bus, 2)} times as fast). That costs {duration(lost_ns)}."
    )
