"""`python -m tests.fuzz`: gives damaged traces to the command line and says what broke."""

from __future__ import annotations

import argparse
import heapq
import os
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.bench import Bench, Job, Result, lay_out
from tests.fuzz.cases import COMMANDS, Maker, Order
from tests.fuzz.hunt import hunt, reduced
from tests.fuzz.seeds import load_seeds

_SLOW_S = 2.0
_SLOWEST = 5
_EVERY_S = 30.0


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    count: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    failed: dict[str, list[Result]] = field(default_factory=dict)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    slow: int = 0
    peak: tuple[float, int] = (0.0, 0)

    def add(self, result: Result) -> bool:
        """Count a result; return whether it failed in a new way."""
        self.count += 1
        self.codes["failed" if result.problem else f"exit code {result.code}"] += 1
        self.slow += result.seconds > _SLOW_S
        heapq.heappush(self.slowest, (result.seconds, result.order.number))
        if len(self.slowest) > _SLOWEST:
            heapq.heappop(self.slowest)
        self.peak = max(self.peak, (result.peak_mb, result.order.number))
        if result.problem is None:
            return False
        alike = self.failed.setdefault(result.kind, [])
        alike.append(result)
        return len(alike) == 1

    def lines(self, seconds: float) -> list[str]:
        """Return the summary."""
        codes = ", ".join(f"{n:,} {what}" for what, n in sorted(self.codes.items()))
        slowest = ", ".join(f"{s:.2f} s (number {n})" for s, n in sorted(self.slowest)[::-1])
        lines = [
            f"{self.count:,} inputs in {seconds:.0f} s ({self.count / seconds:.0f}/s): {codes}",
            f"slowest: {slowest}; {self.slow:,} took over {_SLOW_S:g} s",
            f"most memory of a process: {self.peak[0]:.0f} MB, by number {self.peak[1]}",
        ]
        for results in self.failed.values():
            numbers = ", ".join(str(result.order.number) for result in results[:5])
            lines.append(f"FAILED {len(results)} times: {results[0].problem}\n  numbers {numbers}")
        return lines


def main() -> int:
    """Run what was asked for; return 1 where anything failed."""
    given = _parser().parse_args()
    shared = os.environ.get("TRACEFLOPS_SHARED")
    seeds = load_seeds(Path(shared) if shared else None)
    if given.replay is not None:
        return replay(given.replay, Maker(0, seeds), given.keep)
    job = Job(Maker(given.seed, seeds))
    with_shared = "with" if shared else "without"
    print(f"seed {given.seed}, {len(seeds)} traces ({with_shared} the shared ones)", flush=True)
    tally, began = Tally(), time.monotonic()
    said = began
    for result in hunt(job, range(given.first, given.first + given.count), given.jobs):
        new = tally.add(result)
        if new:
            print(f"number {result.order.number}: {result.problem}", flush=True)
            if given.keep is not None:
                keep(job, result, given.keep)
        if time.monotonic() - said > _EVERY_S:
            said = time.monotonic()
            print(f"{tally.count:,} inputs, {said - began:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(tally.lines(time.monotonic() - began)))
    return 1 if tally.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where failing inputs are kept")
    parser.add_argument(
        "--replay",
        metavar="SEED:NUMBER",
        help="try one input again, or give a file to every command; the numbers hold for the same "
        "traces, so with TRACEFLOPS_SHARED set or unset as it was",
    )
    return parser


def keep(job: Job, failed: Result, folder: Path) -> None:
    """Write a failing input, what was done to it, and a smaller one that fails alike."""
    place = folder / f"{job.maker.seed}-{failed.order.number}"
    small = reduced(job, failed)
    lines = [failed.problem or "", f"replay with --replay {job.maker.seed}:{failed.order.number}"]
    for name, order in (("whole", failed.order), ("small", small)):
        case = job.maker.make(order)
        (place / name).mkdir(parents=True, exist_ok=True)
        for file, data in case.files.items():
            (place / name / file).write_bytes(data)
        without = f", without the mutations {sorted(order.without)}" if order.without else ""
        lines += ["", f"{name}{without}: traceflops {' '.join(case.command)}", *case.steps]
    (place / "what.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"  kept in {place}", flush=True)


def replay(what: str, maker: Maker, folder: Path | None) -> int:
    """Try one input, or all commands on a file; say what was done to it and how it ended."""
    path = Path(what)
    if path.is_file():
        data = path.read_bytes()
        orders = [Order(0, data=data, alone=True, command=command) for _, command in COMMANDS]
    else:
        seed, _, number = what.partition(":")
        maker = Maker(int(seed), maker.seeds)
        orders = [Order(int(number))]
        print("\n".join(maker.make(orders[0]).steps))
        if folder is not None:
            lay_out(maker.make(orders[0]), folder / f"{seed}-{number}")
    failed = 0
    with closing(Bench(Job(maker))) as bench:
        for order in orders:
            result = bench.ask(order)
            words = " ".join(maker.make(order).command)
            ending = result.problem or f"exit code {result.code}"
            print(f"traceflops {words}: {ending} ({result.seconds:.2f} s)")
            failed += result.problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
