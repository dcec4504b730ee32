"""Measure and write docs/trust.md.

    python -m tests.trust FOLDER... [--peers PYTHON] [--only PART]

Each file or folder in a FOLDER is one public recording; TRACEFLOPS_SHARED has the truths. Without
--peers the comparison with other analysers stays as it is.
"""

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.benchmarks import peers, programs
from tests.benchmarks.cost import best
from tests.benchmarks.ratios import kept_ratios
from tests.benchmarks.tile import write
from tests.findings.scoreboard import scoreboard
from tests.fuzz.bench import Job
from tests.fuzz.cases import Maker
from tests.fuzz.hunt import hunt
from tests.fuzz.seeds import load_seeds
from tests.trust.page import head, put, row
from tests.trust.recordings import first_statements, proofs, statements

_PARTS: Final = ("statements", "proofs", "faults", "speed", "peers", "damage")
_PEERS_MB: Final = 60
_DAMAGED: Final = 5_000


def main() -> None:
    """Write the parts asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="*")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has other analysers")
    parser.add_argument("--only", choices=_PARTS, action="append", help="may be repeated")
    asked = parser.parse_args()
    parts = set(asked.only or _PARTS)
    said = list(statements(asked.folder)) if parts & {"statements", "proofs"} else []
    if said and "statements" in parts:
        put("statements", first_statements(said))
    if "proofs" in parts:
        put("proofs", proofs(said or None))
    if "faults" in parts:
        put("faults", scoreboard())
    if "speed" in parts:
        put("speed", _speed())
    if "peers" in parts and asked.peers:
        put("peers", _peers(asked.peers))
    if "damage" in parts:
        put("damage", _damage())


def _speed() -> Iterator[str]:
    yield from head("command", "CPU time, of the floor")
    yield from (row(name, f"{ratio:.2f}") for name, ratio in kept_ratios().items())


def _peers(python: str) -> Iterator[str]:
    """Yield the CPU time of other analysers beside ours, on one trace."""
    yield from head("program", "CPU s", "of `summary`", "peak MB")
    with tempfile.TemporaryDirectory() as folder:
        trace = write(Path(folder) / "trace.json", _PEERS_MB).path
        commands = {
            "`traceflops summary`, with findings": programs.summary(trace, 1),
            "`traceflops report`": programs.report(trace, 1),
            **{
                f"{peer.name}, {peer.asked}": peers.words(peer, python, trace)
                for peer in peers.PEERS
                if peers.is_installed(peer, python)
            },
        }
        costs = {name: best(words, 2) for name, words in commands.items()}
        ours = next(iter(costs.values())).cpu_s
        for name, cost in costs.items():
            cells = (f"{cost.cpu_s:.1f}", f"{cost.cpu_s / ours:.1f}", f"{cost.peak_mb:,.0f}")
            yield row(name, *cells)


def _damage() -> Iterator[str]:
    """Yield what became of damaged recordings."""
    shared = os.environ.get("TRACEFLOPS_SHARED")
    seeds = load_seeds(Path(shared) if shared else None)
    results = Counter[str]()
    for result in hunt(Job(Maker(1, seeds)), range(_DAMAGED), programs.cores()):
        if result.problem:
            results["failed"] += 1
        else:
            results["refused with a reason" if result.code == 3 else "answered"] += 1
    counts = ", ".join(f"{count:,} {what}" for what, count in results.most_common())
    yield f"{_DAMAGED:,} damaged inputs from {len(seeds)} recordings: {counts}."


if __name__ == "__main__":
    main()
