"""The table of many ranks: what `summary` costs by ranks and processes, and how that scales."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import kineto_text
from sample_traces.simulate import simulate
from tests.benchmarks import programs
from tests.benchmarks.cost import MEMORY, best
from tests.benchmarks.table import Table, legend

_SIMULATED: Final = 8
_HEADS = ("ranks", "text MB", "packed MB", "processes", "wall s", "CPU s", "speed-up", "peak MB")


@dataclass(frozen=True, slots=True)
class Job:
    """How many ranks there are, how many steps each has, and whether these are short."""

    ranks: int
    steps: int
    short: bool = False


JOBS: Final = (Job(64, 18), Job(512, 18), Job(512, 3), Job(512, 100, short=True))
"""5 MB of text a rank; about 33 MB of compressed files in all; 100 steps of a graph each."""


def print_ranks(folder: Path, jobs: Iterable[Job], scale: float, runs: int, most: int) -> None:
    """Measure and print the table with up to so many processes; `scale` is that of the ranks."""
    table = Table(*_HEADS)
    for job in jobs:
        ranks = max(_SIMULATED, round(job.ranks * scale))
        place = folder / f"{ranks}_ranks_{job.steps}_steps"
        text_bytes = sum(write_ranks(place, replace(job, ranks=ranks)))
        packed_bytes = sum(file.stat().st_size for file in place.iterdir())
        alone_s = 0.0
        for processes in dict.fromkeys((1, most)):
            cost = best(programs.summary(place, processes), runs)
            alone_s = alone_s or cost.wall_s
            table.print(
                str(ranks),
                f"{text_bytes / 1e6:.0f}",
                f"{packed_bytes / 1e6:.0f}",
                str(processes),
                f"{cost.wall_s:.2f}",
                f"{cost.cpu_s:.2f}",
                f"{alone_s / cost.wall_s:.2f}",
                f"{cost.peak_mb:.0f}",
            )
    legend(
        [
            f"Ranks of one data-parallel job: {_SIMULATED} are simulated, the others repeat them.",
            "speed-up: wall time with 1 process over this one.",
            f"peak MB: {MEMORY}, in the first run.",
            f"Times are the best of {runs} runs.",
        ]
    )


def write_ranks(folder: Path, job: Job) -> Iterator[int]:
    """Write a compressed trace per rank and yield the bytes of its text."""
    folder.mkdir()
    config = RunConfig(
        seed=4,
        ranks=_SIMULATED,
        steps=job.steps,
        layers=1 if job.short else 2,
        cuda_graph=job.short,
        first_step=20,
        vocab=16_384,
        gradient_buckets=5,
        sync_each_step=True,
        jitter_permille=20,
        exit_jitter_ns=2_000,
    )
    run = simulate(config)
    few, every = (str(list(range(count))) for count in (_SIMULATED, job.ranks))
    for simulated in range(_SIMULATED):
        text = kineto_text(run, simulated).replace(few, every)
        size = rf'"(world_size|pg_size|Group size)": {_SIMULATED}'
        text = re.sub(size, rf'"\1": {job.ranks}', text)
        for rank in range(simulated, job.ranks, _SIMULATED):
            own = text.replace(f'"rank": {simulated},', f'"rank": {rank},', 1).encode()
            (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(own, 6, mtime=0))
            yield len(own)
