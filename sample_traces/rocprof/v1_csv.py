"""rocprof v1: `results.csv`, and `results.stats.csv` beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from sample_traces.kineto_text import Digits
from sample_traces.records import Run
from sample_traces.rocprof.capture import Capture, Dispatch, captures
from sample_traces.rocprof.names import Cell, cloned, line, save, table, written
from sample_traces.rocprof.options import NameForm, RocprofOptions

Columns = Literal["vgpr", "arch_vgpr"]

OBJECT: Final = 0x7F3A_C000_0000
WAVE: Final = 64
_BEFORE: Final = ("KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr")
_COLUMNS: Final[dict[Columns, tuple[str, ...]]] = {
    # To ROCm 5.2, and from 5.3 on.
    "vgpr": (*_BEFORE, "lds", "scr", "vgpr", "sgpr", "fbar", "sig", "obj"),
    "arch_vgpr": (
        *(*_BEFORE, "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr", "wave_size"),
        *("sig", "obj"),
    ),
}
TIMES: Final = ("DispatchNs", "BeginNs", "EndNs", "CompleteNs")


def write_v1_csv(
    run: Run,
    folder: Path,
    options: RocprofOptions,
    columns: Columns = "arch_vgpr",
    stats: bool = False,
) -> list[Path]:
    """Write one folder per rank; with `stats` as --stats does, with durations and sums by name."""
    paths = []
    for one in captures(run, options):
        rows = kernel_rows(one, options, columns)
        place = folder / f"rank{one.rank}"
        paths.append(save(place / "results.csv", _results(rows, stats)))
        if stats:
            paths.append(save(place / "results.stats.csv", _sums(rows)))
    return paths


def kernel_rows(
    capture: Capture, options: RocprofOptions, columns: Columns
) -> list[dict[str, Cell]]:
    """Return the cells of each kernel by column, in the order of dispatch."""
    placed: Counter[int] = Counter()
    rows = []
    for one in capture.in_order_of_dispatch():
        everything = _properties(capture, one, options.names, placed[one.queue])
        # Every kernel takes two packets of its queue.
        placed[one.queue] += 2
        row = {name: everything[name] for name in ("Index", *_COLUMNS[columns])}
        row |= {name: Digits(f"{value}.0000000000") for name, value in one.counters.items()}
        if options.times:
            row |= {name: everything[name] for name in TIMES}
        rows.append(row)
    return rows


def _properties(capture: Capture, one: Dispatch, form: NameForm, place: int) -> dict[str, Cell]:
    width, height, depth = one.workgroup
    across, down, deep = one.grid
    return {
        "Index": one.dispatch_id - 1,
        "KernelName": cloned(written(one.kernel.name, form)),
        "gpu-id": capture.node,
        "queue-id": one.queue - 1,
        "queue-index": place,
        "pid": capture.process,
        "tid": one.thread,
        "grd": across * down * deep,
        "wgr": width * height * depth,
        "lds": one.work.shared_bytes,
        "scr": 0,
        "vgpr": one.work.registers,
        "arch_vgpr": one.work.registers,
        "accum_vgpr": 0,
        "sgpr": 112,
        "wave_size": WAVE,
        "fbar": 0,
        "sig": Digits("0x0"),
        "obj": Digits(hex(OBJECT + 64 * one.kernel.kernel_id)),
        "DispatchNs": one.submitted_ns,
        "BeginNs": one.start_ns,
        "EndNs": one.end_ns,
        "CompleteNs": one.completed_ns,
    }


def _results(rows: list[dict[str, Cell]], stats: bool) -> str:
    if not stats:
        header = ",".join(rows[0]) + "\n"
        return header + "".join(line(row.values()) for row in rows)
    # Through a database: there every text is quoted, the hexadecimal numbers too.
    quoted = [
        {name: str(value) if name in ("sig", "obj") else value for name, value in row.items()}
        for row in rows
    ]
    timed = [row | {"DurationNs": duration(row)} for row in quoted]
    return table(list(timed[0]), (row.values() for row in timed))


def duration(row: dict[str, Cell]) -> int:
    """Return the duration of a kernel's row."""
    return int(row["EndNs"]) - int(row["BeginNs"])


def _sums(rows: Iterable[dict[str, Cell]]) -> str:
    """Return calls and time by name, the longest first."""
    calls: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in rows:
        calls[str(row["KernelName"])] += 1
        total[str(row["KernelName"])] += duration(row)
    everything = sum(total.values()) or 1
    ordered = sorted(total, key=lambda name: (-total[name], name))
    lines = (
        (
            name,
            calls[name],
            total[name],
            total[name] // calls[name],
            Digits(repr(total[name] * 100.0 / everything)),
        )
        for name in ordered
    )
    return table(("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"), lines)
