"""Writes the committed simulated samples: `python -m sample_traces.make [folder]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import KinetoOptions, write_pytorch
from sample_traces.simulate import simulate

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Sample:
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


def make(folder: Path = HERE) -> Iterator[Path]:
    """Write all samples under the folder and yield their paths."""
    for sample in SAMPLES:
        yield from write_pytorch(simulate(sample.config), folder, sample.options, sample.stem)


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE):
        print(f"{path}: {path.stat().st_size:,} bytes")
