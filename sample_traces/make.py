"""Writes the simulated samples."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sample_traces.config import RunConfig, on_mi300x
from sample_traces.emit_pytorch import KinetoOptions, write_pytorch
from sample_traces.nsight.ncu import write_raw
from sample_traces.nsight.nsys import write_sqlite
from sample_traces.nsight.session import NsightOptions
from sample_traces.records import Run
from sample_traces.rocprof.formats import WRITERS, Writer, compressed
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.rocpd import write_rocpd
from sample_traces.simulate import simulate
from sample_traces.tutorials import make_pairs

HERE: Final = Path(__file__).parent


class Sample(Struct, frozen=True):
    """One committed sample: a run and how it is written. `stem` may name a folder."""

    stem: str
    config: RunConfig
    options: KinetoOptions


SAMPLES: Final = (
    Sample(
        "gpt_1rank",
        RunConfig(
            seed=1,
            steps=6,
            first_step=10,
            layers=3,
            vocab=16_384,
            host_op_ns=5_500,
            python_overhead_ns=14_000,
            data_stall_steps=(13,),
            data_stall_ns=4_200_000,
            sync_each_step=True,
            lead_in=True,
        ),
        KinetoOptions(python_functions=True, memory=True, cuda_sync=True),
    ),
    Sample(
        "gpt_ddp_4rank/rank{rank}",
        RunConfig(
            seed=4,
            ranks=4,
            steps=6,
            first_step=20,
            layers=2,
            hidden=2048,
            batch=2,
            sequence=2048,
            vocab=16_384,
            gradient_buckets=5,
            straggler_rank=2,
            straggler_percent=115,
            sync_each_step=True,
            copy_stream=True,
            lead_in=True,
            clock_skew_ns=1_750,
        ),
        KinetoOptions(),
    ),
)

_USUAL: Final = RocprofOptions()


class RocprofSample(Struct, frozen=True):
    """One committed sample of an AMD machine: a run, the format, and a folder for its files."""

    folder: str
    config: RunConfig
    write: Writer
    options: RocprofOptions = _USUAL
    compressed: bool = False


_SMALL: Final[dict[str, Any]] = {
    "layers": 1,
    "vocab": 8192,
    "steps": 4,
    "sync_each_step": True,
    "lead_in": True,
}
ROCPROF_SAMPLES: Final = (
    RocprofSample(
        "rocprof_v1",
        on_mi300x(seed=11, first_step=0, blit_copies=True, **_SMALL),
        WRITERS["v1 csv with sums"],
    ),
    RocprofSample(
        "rocprofv3_csv",
        on_mi300x(
            seed=12,
            first_step=5,
            host_op_ns=5_500,
            data_stall_steps=(7,),
            data_stall_ns=3_000_000,
            **_SMALL,
        ),
        WRITERS["v3 csv"],
    ),
    RocprofSample(
        "rocprofv3_json",
        on_mi300x(seed=13, ranks=2, straggler_rank=1, straggler_percent=115, **_SMALL),
        WRITERS["v3 json"],
        RocprofOptions(collectives=True),
        compressed=True,
    ),
    RocprofSample(
        "rocpd",
        on_mi300x(seed=14, ranks=1, cuda_graph=True, **_SMALL),
        # Small pages, or the many tables would fill most of the file.
        partial(write_rocpd, version="3.0.2", page_bytes=1024),
        RocprofOptions(markers="all"),
    ),
)

NSIGHT_FOLDER: Final = "nsight_h100"
NSIGHT_CONFIG: Final = RunConfig(
    seed=15, first_step=8, data_stall_steps=(10,), data_stall_ns=3_000_000, **_SMALL
)


def make(folder: Path = HERE) -> Iterator[Path]:
    """Write all samples under the folder and yield their paths."""
    for sample in SAMPLES:
        yield from write_pytorch(simulate(sample.config), folder, sample.options, sample.stem)
    for other in ROCPROF_SAMPLES:
        paths = other.write(simulate(other.config), folder / other.folder, other.options)
        yield from map(compressed, paths) if other.compressed else paths
    yield from _with_counters(simulate(NSIGHT_CONFIG), folder / NSIGHT_FOLDER)
    yield from make_pairs(folder)


def _with_counters(run: Run, folder: Path) -> Iterator[Path]:
    """Write a timed run as Nsight Systems does, and what Nsight Compute counts of it."""
    options = NsightOptions(markers="all")
    yield from write_sqlite(run, folder, options, together=True, page_bytes=1024)
    yield write_raw(run, folder / "kernels.ncu.csv")


def main(arguments: list[str] | None = None) -> None:
    """Write the samples to the folder that is given, and say what was written."""
    parser = ArgumentParser(prog="python -m sample_traces.make", description=__doc__)
    text = "folder to write to; default: the committed samples are written again"
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help=text)
    for path in make(parser.parse_args(arguments).folder):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
