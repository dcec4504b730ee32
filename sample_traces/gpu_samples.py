"""Writes what nvidia-smi or amd-smi would have sampled of the GPUs of a run: clocks and power.

A GPU whose kernels take longer has a lower clock while it works. GPU n is that of rank n.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sample_traces.records import RankRun, Run

Layout = Literal["query", "query nounits", "dmon", "dmon csv", "amd-smi"]
MAX_CLOCK: Final = 1_980
IDLE_CLOCK: Final = 345
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_NS: Final = 10**9
_QUERY: Final = (
    ("timestamp", ""),
    ("index", ""),
    ("name", ""),
    ("clocks.current.sm", "MHz"),
    ("clocks.max.sm", "MHz"),
    ("power.draw", "W"),
    ("temperature.gpu", ""),
    ("utilization.gpu", "%"),
    ("memory.used", "MiB"),
    ("clocks_event_reasons.active", ""),
    ("clocks_event_reasons.hw_thermal_slowdown", ""),
)
_DMON: Final = ("Date", "Time", "gpu", "pwr", "gtemp", "mtemp", "sm", "mem", "mclk", "pclk")
_DMON_UNITS: Final = ("YYYYMMDD", "HH:MM:SS", "Idx", "W", "C", "C", "%", "%", "MHz", "MHz")
_AMD: Final = (
    *("timestamp", "gpu", "gfx_activity", "umc_activity", "vcn_activity"),
    *("socket_power", "throttle_status"),
    *("gfx_0_clk", "gfx_0_max_clk", "gfx_1_clk", "gfx_1_max_clk", "mem_0_clk"),
    *("edge", "hotspot", "mem"),
)
_LIST: Final = "\"['N/A', 0]\""
"""A cell of amd-smi for engines that a GPU has several of."""


class SamplingOptions(Struct, frozen=True):
    """How samples are taken: how often, how long before and after the run, in which zone.

    `gpus` more have no work. `reason` is the bit for which the slow rank has a lower clock.
    """

    layout: Layout = "query"
    every_ns: int = _SECOND_NS
    around_ns: int = 5 * _SECOND_NS
    zone_minutes: int = 0
    more_gpus: int = 0
    reason: int = 0x40


class _Sample(Struct, frozen=True):
    """One GPU at one time: when by its wall clock, busy in percent of the time since the last."""

    at: datetime
    gpu: int
    busy: int
    clock: int
    reason: int

    @property
    def power(self) -> int:
        return 80 + 6 * self.busy

    @property
    def temperature(self) -> int:
        return 90 if self.reason & 0x60 else 35 + self.busy // 3


def busy_ns(rank: RankRun, start_ns: int, end_ns: int) -> int:
    """Return how long a rank's GPU had work in a stretch of time."""
    total, reach = 0, start_ns
    for one in rank.activities:
        begin, end = max(one.start_ns, reach), min(one.end_ns, end_ns)
        total, reach = total + max(end - begin, 0), max(reach, end)
    return total


def write_gpu_samples(run: Run, path: Path, options: SamplingOptions | None = None) -> Path:
    """Write the samples of a run and return the path."""
    chosen = options or SamplingOptions()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in _lines(run, chosen)), encoding="utf-8")
    return path


def _samples(run: Run, options: SamplingOptions) -> Iterator[_Sample]:
    config, every = run.config, options.every_ns
    for at_ns in range(-options.around_ns, run.ranks[0].end_ns + options.around_ns, every):
        unix_ns = run.ranks[0].origin_unix_ns + at_ns
        at = _EPOCH + timedelta(microseconds=unix_ns // 1000, minutes=options.zone_minutes)
        for gpu in range(len(run.ranks) + options.more_gpus):
            of_run = gpu < len(run.ranks)
            busy = 100 * busy_ns(run.ranks[gpu], at_ns - every, at_ns) // every if of_run else 0
            slow = config.straggler_percent if gpu == config.straggler_rank else 100
            clock = MAX_CLOCK * 100 // slow if busy else IDLE_CLOCK
            yield _Sample(
                at, gpu, busy, clock, (options.reason if slow > 100 else 0) if busy else 1
            )


def _lines(run: Run, options: SamplingOptions) -> Iterator[str]:
    rows = list(_samples(run, options))
    if options.layout == "amd-smi":
        yield ",".join(_AMD)
        for one in rows:
            status = "THROTTLED" if one.reason > 1 else "UNTHROTTLED"
            at = int(one.at.timestamp()) - 60 * options.zone_minutes
            cells = (at, one.gpu, one.busy, 10, _LIST)
            clocks = (one.clock, MAX_CLOCK) * 2
            rest = (one.power, status, *clocks, 1_500, "N/A", one.temperature, 40)
            yield ",".join(map(str, (*cells, *rest)))
    elif options.layout.startswith("dmon"):
        yield from _dmon(rows, ", " if options.layout == "dmon csv" else "   ")
    else:
        yield ", ".join(f"{name} [{unit}]" if unit else name for name, unit in _QUERY)
        yield from (_queried(one, options.layout == "query") for one in rows)


def _queried(one: _Sample, has_units: bool) -> str:
    at = f"{one.at:%Y/%m/%d %H:%M:%S}.{one.at.microsecond // 1000:03}"
    hot = "Active" if one.reason & 0x40 else "Not Active"
    figures = (one.clock, MAX_CLOCK, f"{one.power}.00", one.temperature, one.busy, 40_000)
    cells = (at, one.gpu, "NVIDIA H100 80GB HBM3", *figures, f"0x{one.reason:016x}", hot)
    units = (f" {unit}" if unit and has_units else "" for _, unit in _QUERY)
    return ", ".join(f"{cell}{unit}" for cell, unit in zip(cells, units, strict=True))


def _dmon(rows: list[_Sample], between: str) -> Iterator[str]:
    for place, one in enumerate(rows):
        if place % 20 == 0:
            yield from (f"#{between.join(names)}" for names in (_DMON, _DMON_UNITS))
        when = (f"{one.at:%Y%m%d}", f"{one.at:%H:%M:%S}")
        figures = (one.gpu, one.power, one.temperature, "-", one.busy, 1, 2_619, one.clock)
        yield f" {between.join(map(str, (*when, *figures)))}"
