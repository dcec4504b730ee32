"""What ranks wait and which one is to blame, as the simulator knows it, in random jobs."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_options import KinetoOptions
from sample_traces.nsight.formats import WRITERS as NSIGHT
from sample_traces.nsight.options import NsightOptions
from sample_traces.records import Run
from sample_traces.rocprof.formats import WRITERS as ROCPROF
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate
from sample_traces.truth import planted, waits_of
from tests.conftest import by_night
from traceflops import read
from traceflops.analysis.preparation import prepare
from traceflops.ranks import RankReport, rank_report
from traceflops.windows import Selection

Write = Callable[[Run, Path], object]
_PYTORCH = KinetoOptions(python_functions=True, compression="none", flows=False)
WAYS: Final[Mapping[str, Write]] = {
    "pytorch": partial(write_pytorch, options=_PYTORCH),
    "nsys": lambda run, to: NSIGHT["nsys 2026"](run, to, NsightOptions(ops=True, markers="all")),
    "rocprof": lambda run, to: ROCPROF["v3 csv"](run, to, RocprofOptions(markers="all")),
}


def report_of(run: Run, way: str) -> RankReport:
    with TemporaryDirectory() as folder:
        WAYS[way](run, Path(folder))
        report = rank_report(prepare(read(folder), Selection()))
    assert report is not None
    return report


def planted_waits(run: Run) -> list[list[tuple[int, int]]]:
    """Return the wait and transfer of all collectives of each rank, in the order of its starts."""
    found: defaultdict[int, list[tuple[int, tuple[int, int]]]] = defaultdict(list)
    for meeting in run.meetings:
        waits = waits_of(meeting)
        for one in meeting.present:
            waited = waits[one.rank, one.correlation]
            found[one.rank].append((one.start_ns, (waited.wait_ns, waited.transfer_ns)))
    return [[pair for _, pair in sorted(found[rank])] for rank in sorted(found)]


def found_waits(report: RankReport) -> list[list[tuple[int, int]]]:
    """Return the same as it is reported, -1 where a collective has no match."""
    waits = [(-1, -1)] * len(report.records)
    found = report.waits
    rows = zip(found.row.tolist(), found.wait_ns.tolist(), found.transfer_ns.tolist(), strict=True)
    for row, *pair in rows:
        waits[row] = (pair[0], pair[1])
    places = report.records.place.tolist()
    return [
        [pair for pair, at in zip(waits, places, strict=True) if at == place]
        for place in sorted(set(places))
    ]


def random_config(seed: int, way: str) -> RunConfig:
    """Return a job of a few ranks: half of them healthy, clocks seldom right."""
    random = Random(seed)
    ranks, steps = random.randint(3, 5), random.randint(4, 6)
    slow = random.randrange(ranks)
    clocks: dict[int, dict[str, Any]] = {
        rank: {
            "clock_offset_ns": random.choice([0, 900, 50_000_000]),
            "clock_drift_ppb": random.choice([0, 0, 20_000]),
        }
        for rank in range(ranks)
    }
    clocks[random.randrange(ranks)] |= random.choice(
        [{}, {"clock_step_ns": random.choice([80_000, 20_000_000]), "clock_step_at_ns": 4_000_000}]
    )
    cause: dict[str, Any] = random.choice(
        [
            {},
            {"straggler_rank": slow, "straggler_percent": random.randint(108, 140)},
            {"batch": random.randint(5, 6)},
            {
                "data_stall_steps": tuple(range(steps)),
                "data_stall_ns": random.randint(1_500_000, 4_000_000),
            },
            {"plants": ("python",) * steps, "plant_ns": random.randint(300_000, 900_000)},
        ]
    )
    job = cause if "straggler_rank" in cause else {}
    own = {} if job else cause
    of_machine = on_mi300x if way == "rocprof" else RunConfig
    return of_machine(
        **job,
        seed=seed,
        ranks=ranks,
        steps=steps,
        layers=random.randint(1, 2),
        gradient_buckets=random.randint(1, 4),
        overlap=random.random() < 0.5,
        exit_jitter_ns=random.choice([0, 1_000, 4_000]),
        jitter_permille=random.choice([0, 5]),
        on_rank={rank: (own if rank == slow else {}) | clocks[rank] for rank in range(ranks)},
    )
