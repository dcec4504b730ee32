"""What the first finding says of simulated runs with planted faults: a part of docs/trust.md.

`python -m tests.findings.scoreboard` prints it; with `--seed N` of `--count` other runs.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from random import Random
from statistics import median
from typing import Final

from tests.findings.faults import FAULTS, PAIRS
from tests.findings.scenarios import (
    HEALTHY,
    Score,
    is_loud,
    scenario,
    scores,
    table,
    unfit,
)

_HEAD: Final = (
    "| planted fault | faults | named first | interval contains the gain | median width "
    "| true gain, of a step | promise kept |",
    "|---|---|---|---|---|---|---|",
)
Rows = Iterable[tuple[int, tuple[str, ...]]]


def main() -> None:
    """Print the scoreboard, or that of other runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    if asked.seed is None:
        print("\n".join(scoreboard()))
    else:
        print("\n".join(_lines(_unseen(asked.seed, asked.count), asked.count // 2, asked.seed)))


def scoreboard() -> Iterator[str]:
    """Yield the lines of the scoreboard."""
    return _lines(table(), HEALTHY, 0)


def _unseen(seed: int, count: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    random = Random(seed)
    kinds = [one for one in [*((fault,) for fault in FAULTS), *PAIRS] if not unfit(one)]
    for _ in range(count):
        yield random.randrange(10**9), random.choice(kinds)


def _lines(rows: Rows, count: int, seed: int) -> Iterator[str]:
    known, unknown = [], set[str]()
    for number, faults in rows:
        reason = unfit(faults)
        unknown |= {reason} if reason else set()
        known += [] if reason else _scored(number, faults)
    by_fault = defaultdict(list)
    for one in known:
        by_fault[one.fault].append(one)
    yield from _HEAD
    yield from (_line(fault, mine) for fault, mine in by_fault.items())
    yield _line("all", known)
    loud = [number for number in range(seed, seed + count) if is_loud(number)]
    yield f"\nHealthy runs: {count}, of which {len(loud)} have a finding of high priority."
    missed = [_miss(one) for one in known if not one.is_held or (one.is_largest and one.is_missed)]
    yield f"\nMissed: {'; '.join(missed) or 'none'}."
    if unknown:
        yield f"\nNot tried: {'; '.join(sorted(unknown))}."


def _scored(number: int, faults: tuple[str, ...]) -> list[Score]:
    found = list(scores(scenario(number, *faults)))
    for one in found:
        if not one.is_held or (one.is_largest and one.is_missed):
            print(_miss(one), flush=True)
    return found


def _line(fault: str, found: list[Score]) -> str:
    largest = [one for one in found if one.is_largest]
    widths = [one.width for one in found if one.width is not None]
    gains = [one.gained_ns / one.step_ns for one in found]
    promises = [one.promise for one in found if one.promise is not None]
    cells = (
        fault,
        str(len(found)),
        f"{sum(not one.is_missed for one in largest)} of {len(largest)}",
        f"{sum(one.is_held for one in found)} of {len(found)}",
        f"{100 * median(widths):.1f} %" if widths else "",
        f"{100 * min(gains):.0f} to {100 * max(gains):.0f} %" if gains else "",
        f"{promises.count('as-promised')} of {len(promises)}" if promises else "",
    )
    return f"| {' | '.join(cells)} |"


def _miss(one: Score) -> str:
    ends = (one.gain.low_ns, one.gain.high_ns) if one.gain else ()
    told = [f"{100 * ns / one.step_ns:.1f}" for ns in ends]
    return (
        f"{one.scenario.name} ({one.scenario.tool}): {one.fault} gains "
        f"{100 * one.gained_ns / one.step_ns:.1f} %, told {' to '.join(told) or 'nothing'}; first "
        f"{one.first}"
    )


if __name__ == "__main__":
    main()
