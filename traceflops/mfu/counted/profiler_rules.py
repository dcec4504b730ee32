"""What the profiler's own rules say of counted launches, in its words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
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
    rules: dict[tuple[object, ...], list[KernelRule]] = defaultdict(list)
    for row in trace.kernel_rules.to_pylist():
        share = row["speedup_share"]
        rule = KernelRule(
            **{name: row[name] for name in ("rule", "section", "kind", "speedup_kind")},
            text=row["text"] or "",
            launches=1,
            speedup_share=share if share is not None and isfinite(share) and share > 0 else None,
        )
        rules[row["process"], row["dispatch"], row["name"]].append(rule)
    rows = trace.kernel_counters.take(counted.launches.row)
    keys = zip(*(rows[name].to_pylist() for name in ("process", "dispatch", "name")), strict=True)
    return [tuple(rules.get(key, ())) for key in keys]


def rules_together(
    of_launch: Sequence[tuple[KernelRule, ...]], group: IntArray, count: int
) -> list[tuple[KernelRule, ...]]:
    """Return what is said of each group of launches, each message of a rule once.

    Those come first that estimate a part of the kernel's time, the largest before others. A rule
    may say several things of one launch: the n-th of each launch are one.
    """
    of_group: list[dict[tuple[object, ...], KernelRule]] = [{} for _ in range(count)]
    for place, rules in zip(group.tolist() if of_launch else (), of_launch, strict=True):
        seen: Counter[tuple[object, ...]] = Counter()
        for rule in rules:
            subject = (rule.section, rule.rule, rule.kind)
            key = (*subject, seen[subject])
            seen[subject] += 1
            known = of_group[place].get(key, replace(rule, launches=0))
            largest = max(known, rule, key=_estimate)
            of_group[place][key] = replace(largest, launches=known.launches + 1)
    return [tuple(sorted(known.values(), key=_estimate, reverse=True)) for known in of_group]


def _estimate(rule: KernelRule) -> tuple[bool, float]:
    """Return what rules are compared by: a part of the kernel's time counts before others."""
    return rule.speedup_kind == "global", rule.speedup_share or 0.0
