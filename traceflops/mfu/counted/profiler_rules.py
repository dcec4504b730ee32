"""What the profiler's own rules say of counted launches, in its words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from traceflops.mfu.counted.counted_launches import CountedLaunches
from traceflops.table import IntArray, Trace


@dataclass(frozen=True, slots=True)
class KernelRule:
    """What a rule of the profiler says of launches, in the profiler's words.

    Of several launches it is what is said of that with the largest estimate. `speedup_share` is 0
    to 1: for the kind global the reduction of the kernel's time, for local the gain of efficiency
    in that part of the device alone.
    """

    rule: str | None
    section: str | None
    kind: str | None
    text: str
    launches: int
    speedup_share: float | None
    speedup_kind: str | None


def rules_by_launch(trace: Trace, counted: CountedLaunches) -> list[tuple[KernelRule, ...]]:
    """Return what is said of each counted launch, as of one launch each."""
    if not trace.kernel_rules.num_rows:
        return [()] * counted.launches.count
    said: dict[tuple[object, ...], list[KernelRule]] = defaultdict(list)
    for row in trace.kernel_rules.to_pylist():
        key = (row["process"], row["dispatch"], row["name"])
        share = row["speedup_share"]
        words = {name: row[name] for name in ("rule", "section", "kind", "speedup_kind")}
        is_estimate = share is not None and isfinite(share) and share > 0
        one = KernelRule(
            **words,
            text=row["text"] or "",
            launches=1,
            speedup_share=share if is_estimate else None,
        )
        said[key].append(one)
    rows = trace.kernel_counters.take(counted.launches.row)
    keys = zip(*(rows[name].to_pylist() for name in ("process", "dispatch", "name")), strict=True)
    return [tuple(said.get(key, ())) for key in keys]


def rules_together(
    said: Sequence[tuple[KernelRule, ...]], group: IntArray, count: int
) -> list[tuple[KernelRule, ...]]:
    """Return what is said of each group of launches: each rule once."""
    of_group: list[list[tuple[KernelRule, ...]]] = [[] for _ in range(count)]
    for place, mine in zip(group.tolist() if said else (), said, strict=True):
        of_group[place].append(mine)
    return [tuple(_once(mine)) for mine in of_group]


def _once(launches: Iterable[tuple[KernelRule, ...]]) -> Iterator[KernelRule]:
    """Yield each message of a rule once: by estimates, those of the kernel's time first.

    A rule may say several things of one launch: the n-th of each launch are one.
    """
    found: dict[tuple[object, ...], KernelRule] = {}
    for mine in launches:
        times: dict[tuple[object, ...], int] = defaultdict(int)
        for one in mine:
            what = (one.section, one.rule, one.kind)
            key = (*what, times[what])
            times[what] += 1
            own = found.get(key, replace(one, launches=0))
            best = max(own, one, key=_estimate)
            found[key] = replace(best, launches=own.launches + 1)
    yield from sorted(found.values(), key=_estimate, reverse=True)


def _estimate(rule: KernelRule) -> tuple[bool, float]:
    """Return what rules are compared by: a part of the kernel's time counts before others."""
    return rule.speedup_kind == "global", rule.speedup_share or 0.0
