"""Pages of Nsight Compute, a row for each kernel (raw) or metric (details), and what is in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sample_traces.config import Dtype
from sample_traces.machines import MACHINES
from sample_traces.nsight.names import bare
from sample_traces.nsight.session import CONTEXT
from sample_traces.records import Activity, RankRun, Run, Triple, Work

SPEED: Final = "GPU Speed Of Light Throughput"
OWN: Final = "Command line profiler metrics"
LAUNCH: Final = "Launch Statistics"
_TENSOR: Final = {"bf16": "bf16_dst_fp32", "fp16": "fp16_dst_fp32"}
_PATHS: Final = ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32", "tf32_dst_fp32", "fp64", "fp8")
_SASS: Final = ("fadd", "fmul", "ffma", "hadd", "hmul", "hfma", "dadd", "dmul", "dfma")
SM_HZ: Final = 1_200_000_000
"""The clock that Nsight Compute locks, below that of a run by itself."""


class Metric(Struct, frozen=True):
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


Layout = Literal["2020", "2022", "rules", "full"]
Units = Literal["base", "auto"]

_RUN: Final = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name")
_PLACED: Final = (*_RUN, "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
_METRIC: Final = ("Metric Name", "Metric Unit", "Metric Value")
_RULE: Final = (
    *("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type"),
    "Estimated Speedup",
)
_HEADERS: Final[dict[Layout, tuple[str, ...]]] = {
    "2020": (*_RUN, "Kernel Time", "Context", "Stream", "Section Name", *_METRIC),
    "2022": (*_PLACED, "Section Name", *_METRIC),
    "rules": (*_PLACED, "Section Name", *_METRIC, *_RULE),
    "full": (*_PLACED, "Section Name", "Body Item Label", *_METRIC),
}
_SCALED: Final = {"byte": ("byte", "Kbyte", "Mbyte", "Gbyte"), "ns": ("ns", "us", "ms", "s")}
_SPELT: Final = {
    "ns": "nsecond",
    "us": "usecond",
    "ms": "msecond",
    "s": "second",
    "hz": "cycle/second",
}
"""Units as pages of 2020 spell them."""


class Launch(Struct, frozen=True):
    """One kernel that was counted."""

    number: int
    rank: RankRun
    activity: Activity

    @property
    def name(self) -> str:
        """Name of the kernel as the page has it."""
        return bare(self.activity.work.name)


def launches(run: Run, rank: int = 0) -> list[Launch]:
    """Return the kernels of a rank in the order in which they were launched."""
    record = run.ranks[rank]
    kernels = [one for one in record.activities if one.work.kind == "kernel"]
    kernels.sort(key=lambda one: (one.correlation, one.graph_node or 0))
    return [Launch(number, record, one) for number, one in enumerate(kernels)]


def write_raw(
    run: Run,
    path: Path,
    counted: Sequence[Launch] | None = None,
    units: Units = "base",
) -> Path:
    """Write a raw page of the launches that were counted; by default all of the first rank."""
    counted = launches(run) if counted is None else counted
    first = _metrics(run, counted[0])
    shown = [[_shown(one, units) for one in _metrics(run, launch)] for launch in counted]
    # One row holds the units of all: scaled where every kernel's value is scaled alike.
    same = [len({row[place][0] for row in shown}) == 1 for place in range(len(first))]
    cells = [
        [
            shown[at][place] if same[place] else _shown(metric, "base")
            for place, metric in enumerate(_metrics(run, launch))
        ]
        for at, launch in enumerate(counted)
    ]
    rows = [
        [*_PLACED, *(one.name for one in first)],
        [""] * len(_PLACED) + [unit for unit, _ in cells[0]],
        *(
            [*_placed(run, launch), *(value for _, value in row)]
            for launch, row in zip(counted, cells, strict=True)
        ),
    ]
    return _save(path, rows)


def write_details(
    run: Run,
    path: Path,
    counted: Sequence[Launch] | None = None,
    layout: Layout = "2022",
    units: Units = "auto",
) -> Path:
    """Write a page with a row for each metric; units are scaled row by row if not asked else."""
    rows = [list(_HEADERS[layout])]
    for launch in launches(run) if counted is None else counted:
        rows += _details(run, launch, layout, units)
    return _save(path, rows)


def _details(run: Run, launch: Launch, layout: Layout, units: Units) -> Iterator[list[str]]:
    head = _of_2020(launch) if layout == "2020" else _placed(run, launch)
    between = [""] if layout == "full" else []
    for metric in [*_metrics(run, launch), *(_sizes(launch) if layout == "2020" else ())]:
        unit, value = _shown(metric, units)
        if layout == "2020":
            unit = _SPELT.get(unit, unit)
        # With rules, rows of metrics are shorter than the header.
        short = [""] if layout == "rules" else []
        said = [metric.label or metric.name, unit, value]
        yield [*head, metric.section, *between, *said, *short]
    if layout == "rules":
        told = ['Memory "bound"', "OPT", "Kernels of this kind\nwait for memory, mostly.", "", ""]
        yield [*head, "Memory Workload Analysis", "", "", "", *told]


def _metrics(run: Run, launch: Launch) -> list[Metric]:
    return metrics_of(launch.activity.work, run.config.dtype)


def _sizes(launch: Launch) -> Iterator[Metric]:
    """Yield what pages of 2020 say of a launch's size, which later is in columns of its own."""
    work = launch.activity.work
    yield Metric("launch__grid_size", "", prod(work.grid), LAUNCH, "Grid Size")
    yield Metric("launch__block_size", "", prod(work.block), LAUNCH, "Block Size")


def _placed(run: Run, launch: Launch) -> list[str]:
    work, rank = launch.activity.work, launch.rank
    known = MACHINES[run.config.machine].properties
    return [
        *_who(launch),
        str(CONTEXT),
        str(launch.activity.stream),
        _triple(work.block),
        _triple(work.grid),
        str(rank.rank),
        f"{known['computeMajor']}.{known['computeMinor']}",
    ]


def _of_2020(launch: Launch) -> list[str]:
    return [*_who(launch), "2020-Nov-21 10:00:00", str(CONTEXT), str(launch.activity.stream)]


def _who(launch: Launch) -> list[str]:
    return [str(launch.number), str(launch.rank.process), "python3", "127.0.0.1", launch.name]


def _triple(size: Triple) -> str:
    return f"({', '.join(map(str, size))})"


def _shown(metric: Metric, units: Units) -> tuple[str, str]:
    """Return the unit and the value of a metric, scaled so that the number is short, or whole."""
    value, steps = Decimal(metric.value), _SCALED.get(metric.unit)
    if units == "base" or steps is None or metric.value < 1000:
        return metric.unit, f"{metric.value:,}"
    power = min((len(str(metric.value)) - 1) // 3, len(steps) - 1)
    return steps[power], f"{value.scaleb(-3 * power):,.2f}"


def _save(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """Write a page; every cell stands in quotes, and lines of the program come before it."""
    text = io.StringIO()
    text.write("==PROF== Connected to process 4100\n==PROF== Disconnected from process 4100\n")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.getvalue().encode())
    return path
