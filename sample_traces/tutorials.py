"""Writes the recordings of the tutorials: each a run with a fault, and the run without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import KinetoOptions, write_pytorch
from sample_traces.nsight.ncu import launches, write_raw
from sample_traces.nsight.nsys import write_sqlite
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.rocprof.formats import WRITERS, compressed
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.simulate import simulate


class _Writer(Protocol):
    def __call__(self, run: Run, folder: Path, /) -> Iterator[Path]: ...


class Pair(Struct, frozen=True):
    """A run with a fault, what is otherwise without it, and how both are written."""

    folder: str
    faulty: RunConfig
    repair: dict[str, Any]
    write: _Writer


def _kineto(run: Run, folder: Path) -> Iterator[Path]:
    yield from write_pytorch(run, folder, KinetoOptions(python_functions=True), "trace")


def _rocprof(run: Run, folder: Path) -> Iterator[Path]:
    paths = WRITERS["v3 json"](run, folder, RocprofOptions(collectives=True))
    yield from map(compressed, paths)


def _nsight(run: Run, folder: Path) -> Iterator[Path]:
    yield from write_sqlite(run, folder, NsightOptions(), together=True, page_bytes=1024)
    counted = launches(run)
    yield write_raw(run, folder / "kernels.csv", counted[: len(counted) // run.config.steps])


PAIRS: Final = (
    Pair(
        "training",
        RunConfig(
            seed=21,
            layers=1,
            steps=6,
            hidden=2_048,
            vocab=16_384,
            python_overhead_ns=4_000,
            data_stall_steps=(1, 2, 3, 4, 5),
            data_stall_ns=1_800_000,
            sync_each_step=True,
        ),
        {"data_stall_steps": ()},
        _kineto,
    ),
    Pair(
        "serving",
        RunConfig(
            seed=22,
            engine="vLLM",
            passes=("decode",),
            steps=8,
            batch=16,
            sequence=512,
            vocab=16_384,
            layers=4,
            host_op_ns=6_000,
            python_overhead_ns=9_000,
            pass_gap_ns=120_000,
        ),
        {"cuda_graph": True},
        _kineto,
    ),
    Pair(
        "amd",
        on_mi300x(seed=23, ranks=2, straggler_rank=1, straggler_percent=125, layers=1, steps=4),
        {"straggler_percent": 100},
        _rocprof,
    ),
    Pair(
        "cuda",
        RunConfig(seed=24, layers=1, steps=4, slow_category="norm", slow_category_percent=900),
        {"slow_category_percent": 100},
        _nsight,
    ),
)


def make_pairs(folder: Path) -> Iterator[Path]:
    """Write all pairs into `tutorials` of the folder and yield their paths."""
    for pair in PAIRS:
        runs = {"before": pair.faulty, "after": replace(pair.faulty, **pair.repair)}
        for name, config in runs.items():
            yield from pair.write(simulate(config), folder / "tutorials" / pair.folder / name)
