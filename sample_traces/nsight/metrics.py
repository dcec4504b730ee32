"""Metrics of a kernel by Nsight Compute, such as follow from what the simulator knows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sample_traces.config import Dtype
from sample_traces.records import Work

SPEED: Final = "GPU Speed Of Light Throughput"
OWN: Final = "Command line profiler metrics"
LAUNCH: Final = "Launch Statistics"
_TENSOR: Final = {"bf16": "bf16_dst_fp32", "fp16": "fp16_dst_fp32"}
_PATHS: Final = ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32", "tf32_dst_fp32", "fp64", "fp8")
_SASS: Final = ("fadd", "fmul", "ffma", "hadd", "hmul", "hfma", "dadd", "dmul", "dfma")
SM_HZ: Final = 1_200_000_000
"""The clock that Nsight Compute locks, below that of a run by itself."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with its base unit. On the details page it may have a label, in a section."""

    name: str
    unit: str
    value: int
    section: str = OWN
    label: str = ""


def metrics_of(work: Work, dtype: Dtype) -> list[Metric]:
    """Return operations of tensor cores or of threads, and bytes; durations are of locked clocks.

    Products of fp32 go by FFMA as their kernels' names say, all others by tensor cores.
    """
    paths = dict.fromkeys(_PATHS, 0)
    threads = dict.fromkeys(_SASS, 0)
    if dtype == "fp32":
        threads["ffma"] = work.flops // 2
    else:
        paths[_TENSOR[dtype]] = work.flops
    written = work.bytes // 3
    slowed_ns = 2 * work.dur_ns + 1_000
    return [
        Metric("gpu__time_duration.sum", "ns", slowed_ns, SPEED, "Duration"),
        Metric("smsp__cycles_elapsed.avg.per_second", "hz", SM_HZ, SPEED, "SM Frequency"),
        Metric("dram__bytes_read.sum", "byte", work.bytes - written),
        Metric("dram__bytes_write.sum", "byte", written),
        *(Metric(f"sm__ops_path_tensor_src_{path}.sum", "", n) for path, n in paths.items()),
        *(
            Metric(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum", "inst", n)
            for op, n in threads.items()
        ),
        Metric("launch__registers_per_thread", "register/thread", work.registers, LAUNCH),
    ]
