"""`python -m tests.benchmarks`: a table of what reading and reporting cost on this machine."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.tile import write
from tests.conftest import ROOT

_FLOOR = """
import sys, msgspec
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
class Trace(msgspec.Struct):
    traceEvents: list[Event]
msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Trace)
"""
_GUNZIP = """
import sys, zlib
member = zlib.decompressobj(wbits=31)
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 20):
        member.decompress(block)
"""
_READ = "import sys, traceflops; print(traceflops.read(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took: wall and CPU seconds, and the peak memory in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def run(words: list[str]) -> Cost:
    """Run a Python command at the root of the repository to its end and return its cost."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(words)[:80]} ended with {child.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def best(words: list[str], runs: int) -> Cost:
    """Return the run with the least wall time."""
    return min((run(words) for _ in range(runs)), key=lambda cost: cost.wall_s)


def rows(folder: Path, megabytes: float, runs: int) -> list[str]:
    """Return the lines of the table."""
    pretty = write(folder / "pretty.json", megabytes)
    compact = write(folder / "compact.json", megabytes, "compact")
    packed = write(folder / "packed.json.gz", megabytes)
    size = pretty.stat().st_size / 1e6
    floor = best(["-c", _FLOOR, str(pretty)], runs)
    start = best(["-c", "import traceflops.parsers"], runs)
    table = [
        "| case | MB | wall s | CPU s | MB/s wall | MB/s CPU | of the decode floor | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def row(case: str, mb: float, cost: Cost) -> None:
        share = (floor.cpu_s / size) / (cost.cpu_s / mb)
        table.append(
            f"| {case} | {mb:.0f} | {cost.wall_s:.2f} | {cost.cpu_s:.2f} | {mb / cost.wall_s:.0f} "
            f"| {mb / cost.cpu_s:.0f} | {share:.0%} | {cost.peak_mb:.0f} |"
        )

    row("decode only (the floor)", size, floor)
    row("gunzip only", size, best(["-c", _GUNZIP, str(packed)], runs))
    row("read into Arrow, pretty", size, best(["-c", _READ, str(pretty)], runs))
    compact_size = compact.stat().st_size / 1e6
    row("read into Arrow, compact", compact_size, best(["-c", _READ, str(compact)], runs))
    row("summary", size, best(["-m", "traceflops", "summary", str(pretty)], runs))
    row("summary, gzip", size, best(["-m", "traceflops", "summary", str(packed)], runs))
    report = ["-m", "traceflops", "report", "-q", "-f", "-o", str(folder / "o.html"), str(pretty)]
    row("report", size, best(report, runs))
    table.append(f"\nStarting Python and importing the readers takes {start.wall_s:.2f} s of each.")
    return table


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--mb", type=float, default=200, help="size of the trace, million bytes")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; the best counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(rows(Path(folder), given.mb, given.runs)))


if __name__ == "__main__":
    main()
