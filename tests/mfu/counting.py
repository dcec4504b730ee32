"""Timed and counted runs made by hand: a product and an element-wise kernel, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from tests.build import trace_of
from traceflops.flops.mfu_waterfall import Ledger
from traceflops.mfu.traced.executed import Executed
from traceflops.table.trace import Source, SourceFile, Trace

GEMM = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
MOPS = "SQ_INSTS_VALU_MFMA_MOPS_"
TYPES = ("F16", "BF16", "F32", "F64", "F8")
"""What has to be counted of an MI300X, in the words of its counters."""

UNITS = 4_194_304
"""Counted of a product of 128 x 512 by 512 x 128, 128 times: 512 operations each."""
FLOPS = 2 * 128 * 512 * 128 * 128

GEMM_NS, ADD_NS, GAP_NS = 4_000, 1_000, 500
BF16 = 1_307_400
"""FLOP per ns of an MI300X: 1,307.4 TFLOP/s dense on AMD's data sheet."""

MI300X: dict[str, Any] = {
    "product": "AMD Instinct MI300X",
    "compute_major": 9,
    "compute_minor": 4,
    "sm_count": 304,
    "warp_size": 64,
    "memory_bytes": 205_822_885_888,
    "architecture": "gfx942",
    "clock_hz": 2_100_000_000,
    "dies": 8,
}


def timed(pairs: int, *, process: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return activities: a product, then an element-wise kernel, so many times."""
    rows: list[dict[str, Any]] = []
    at = 0
    for number in range(2 * pairs):
        product = number % 2 == 0
        rows.append(
            {
                "name": GEMM if product else ADD,
                "process": process,
                "device": process,
                "start_ns": at,
                "dur_ns": GEMM_NS if product else ADD_NS,
                "grid": [256 if product else 512, 1, 1],
                "block": [256, 1, 1],
                "correlation": number + 1,
                **more,
            }
        )
        at += rows[-1]["dur_ns"] + GAP_NS
    return rows


def launch(number: int, name: str, blocks: int, values: Mapping[str, float], **more: Any) -> Any:
    """Return the rows of one counted launch of blocks of 256 threads."""
    one = {"name": name, "dispatch": number, "threads": 256 * blocks, "block_threads": 256, **more}
    return [{**one, "counter": counter, "value": float(v)} for counter, v in values.items()]


def matrix(bf16: float = 0, types: Sequence[str] = TYPES) -> dict[str, float]:
    """Return counters of matrix work, all in bf16."""
    return {MOPS + name: bf16 if name == "BF16" else 0.0 for name in types}


def counted(
    pairs: int,
    units: Iterable[float] | None = None,
    *,
    types: Sequence[str] = TYPES,
    more: Mapping[str, float] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Return counters of the launches of `timed`; `units` are those of each product."""
    each = list(units) if units is not None else [UNITS] * pairs
    rows: list[dict[str, Any]] = []
    for number, value in enumerate(each):
        for name, blocks, done in ((GEMM, 256, value), (ADD, 512, 0.0)):
            values = {**matrix(done, types), **(more or {})}
            place = 2 * number + (1 if name == GEMM else 2)
            rows += launch(place, name, blocks, values, **columns)
    return rows


def rocprof(
    activities: Sequence[dict[str, Any]] = (),
    counters: Sequence[dict[str, Any]] = (),
    *,
    device: dict[str, Any] | None = None,
    file: str = "kernel_trace.csv",
    **tables: Any,
) -> Trace:
    """Return a trace of rocprof on one device, an MI300X unless it is named."""
    devices = [device or MI300X] if activities else []
    made = trace_of(
        activities=activities, kernel_counters=counters, **{"devices": devices, **tables}
    )
    return replace(made, source=Source("rocprof", (SourceFile(file, None, None),)))


def added(ledger: Ledger, depth: int) -> dict[str, int]:
    """Return the lines of a ledger, added up by the first words of their names."""
    sums = Counter[str]()
    for line in ledger.lines:
        sums[".".join(line.name.split(".")[:depth])] += int(line.flops)
    return dict(sums)


def part_of(
    executed: Executed, device: int | None = None, window: int | None = None, *, used: bool = True
) -> Executed:
    """Return what was executed on a device and in a window, chosen ones alone if `used`."""
    cells = (
        replace(cell, used=True)
        for cell in executed.cells
        if device in (None, cell.device) and window in (None, cell.window)
        if cell.used or not used
    )
    return replace(executed, cells=tuple(cells))
