"""The sum of many summaries of ranks, of which few are in memory at a time: it is a summary, too.

load ─► moved ─► RunningSum ─► RankSummary of all devices, without work and culprits by step
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.rank_summary import RankSummary, summed
from traceflops.attribution.culprits import joined_culprits
from traceflops.attribution.kernels import joined_totals
from traceflops.attribution.launch_lead import Launches
from traceflops.flops.mfu_waterfall import added_budgets
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.roof_times import RoofTimes
from traceflops.mfu.traced.executed import Outside
from traceflops.ranks.collectives import Collective
from traceflops.ranks.comm_records import chained
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Note, Trace
from traceflops.windows.records import DeviceReport

_AT_ONCE: Final = 64  # values that are collected before they are added up
NOTHING, CPUS, GPUS = range(3)
Shared = dict[tuple[object, ...], pa.ChunkedArray]
"""Columns of tables by their content, so that equal ones are stored once."""
T = TypeVar("T")


class HeldSummary(Struct, frozen=True):
    """The part of a summary that is needed before all are added up; `load` returns all of it.

    `kind` is GPUS if it has reports of GPUs, else CPUS or NOTHING. In the sum its times are
    `shift_ns` later, and its devices and processes are numbered after those of the summaries before
    it, of which there are `devices_before` and `processes_before`.
    """

    trace: Trace
    notes: tuple[Note, ...]
    codes: tuple[str, ...]
    kind: int
    load: Callable[[], RankSummary]
    shift_ns: int = 0
    devices_before: int = 0
    processes_before: int = 0

    @classmethod
    def of(
        cls, summary: RankSummary, shared: Shared, load: Callable[[], RankSummary] | None = None
    ) -> HeldSummary:
        """Return what to hold of a summary, with `shared` columns; without `load`, all of it."""
        types = {device.type for device in summary.reports}
        kind = GPUS if types - {"cpu"} else CPUS if types else NOTHING
        tables = {}
        for name, table in summary.trace.tables.items():
            # The tables have few rows, but each column takes 1 kB or more: equal ones are shared.
            schema = arrow_schema(name)
            keys = [(name, field.name, *table[field.name].to_pylist()) for field in schema]
            columns = [shared.setdefault(*pair) for pair in zip(keys, table.columns, strict=True)]
            tables[name] = pa.Table.from_arrays(columns, schema=schema)
        trace = replace(summary.trace, tables=tables)
        return cls(trace, summary.notes, summary.codes, kind, load or (lambda: summary))


class RunningSum(Generic[T]):
    """The sum of values that are added one by one; `add_up` returns the sum of several."""

    def __init__(self, add_up: Callable[[Sequence[T]], T]) -> None:
        self._add_up = add_up
        # A value of each further level is the sum of _AT_ONCE values of the level before.
        self._levels: list[list[T]] = []

    def add(self, value: T) -> None:
        """Add a value."""
        for held in self._levels:
            held.append(value)
            if len(held) < _AT_ONCE:
                return
            value = self._add_up(held)
            held.clear()
        self._levels.append([value])

    def total(self) -> T:
        """Return the sum of all values."""
        return self._add_up([value for held in reversed(self._levels) for value in held])


def placed(ordered: Sequence[HeldSummary]) -> list[HeldSummary]:
    """Return the summaries with their shifts of times and numbers; the first dated clock counts."""
    origins = [part.trace.source.origin_unix_ns for part in ordered]
    common = next((origin for origin in origins if origin is not None), None)
    parts, devices, processes = [], 0, 0
    for part, origin in zip(ordered, origins, strict=True):
        shift_ns = origin - common if origin is not None and common is not None else 0
        before = {"devices_before": devices, "processes_before": processes}
        parts.append(replace(part, shift_ns=shift_ns, **before))
        devices += part.trace.devices.num_rows
        processes += part.trace.processes.num_rows
    return parts


def sum_of(parts: Iterable[HeldSummary]) -> RankSummary:
    """Return the sum of placed summaries, without work and culprits by step."""
    whole: RunningSum[RankSummary] = RunningSum(_added)
    for part in parts:
        whole.add(_moved(part))
    return whole.total()


def _moved(part: HeldSummary) -> RankSummary:
    """Return a summary with the clock and numbers of the sum, without work and culprits by step."""
    summary, before = part.load(), part.devices_before

    def renumbered(rows: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(replace(row, device=row.device + before) for row in rows)  # type: ignore

    launches = summary.launches
    if launches is not None:
        by_device = {number + before: sums for number, sums in launches.devices.items()}
        launches = replace(launches, devices=by_device)
    return replace(
        summary,
        reports=tuple(_shifted(report, part) for report in summary.reports),
        records=summary.records.moved(part.shift_ns, before),
        peaks=renumbered(summary.peaks),
        cells=renumbered(summary.cells),
        times=renumbered(summary.times),
        launches=launches,
        idle_of=(),
        work=(),
    )


def _shifted(report: DeviceReport, part: HeldSummary) -> DeviceReport:
    """Return the report of a device of `part`, on the clock and with the numbers of the sum."""
    shift_ns, device = part.shift_ns, report.device + part.devices_before

    def later(span: Any) -> Any:
        return replace(span, start_ns=span.start_ns + shift_ns, end_ns=span.end_ns + shift_ns)

    return replace(
        report,
        device=device,
        process=report.process + part.processes_before,
        whole=later(report.whole),
        windows=tuple(map(later, report.windows)),
        gaps=tuple(
            replace(gap, start_ns=gap.start_ns + shift_ns, device=gap.device + part.devices_before)
            for gap in report.gaps
        ),
    )


def _added(parts: Sequence[RankSummary]) -> RankSummary:
    """Return one summary of the devices of several summaries, in order."""

    def all_of(name: str) -> Iterator[Any]:
        return chain.from_iterable(getattr(part, name) for part in parts)

    # The sum has budgets only if each part has them: else it tells what a part without budgets
    # lacks. What a part with budgets lacks concerns MFU only.
    lacks = next((part.lacks for part in parts if part.lacks and not part.budgets), ())
    launches = [part.launches for part in parts if part.launches is not None]
    steps = [set(part.long_steps) for part in parts]
    moved = Counter[str]()
    for part in parts:
        moved.update(part.moved)
    choices = [part.choice for part in parts]
    # A measured range is kept only if all parts measured the same one. If not, the text is that of
    # a part without a measured range, where there is one.
    ranges = {choice.measured for choice in choices}
    choice = next((choice for choice in choices if choice.measured is None), choices[0])
    return replace(
        parts[0],
        choice=replace(
            choice,
            seen=tuple(sorted({step for choice in choices for step in choice.seen})),
            used=tuple(sorted({step for choice in choices for step in choice.used})),
            measured=choice.measured if len(ranges) == 1 else None,
        ),
        launch_records=reduce(add, (part.launch_records for part in parts)),
        reports=tuple(all_of("reports")),
        kernels=joined_totals([part.kernels for part in parts]),
        moved=dict(moved),
        idle=joined_culprits([part.idle for part in parts], most=None),
        long_steps=tuple(sorted(set.intersection(*steps))),
        records=chained([part.records for part in parts]),
        peaks=_shared(all_of("peaks")),
        budgets=() if lacks else added_budgets(all_of("budgets")),
        lacks=lacks,
        cells=tuple(all_of("cells")),
        times=tuple(all_of("times")),
        outside=_outside([part.outside for part in parts]),
        kernel_rows=summed(all_of("kernel_rows"), "name", "category", "path"),
        op_rows=summed(all_of("op_rows"), "name", "path"),
        roofs=RoofTimes(
            reduce(add, (part.roofs.memory for part in parts)),
            reduce(add, (part.roofs.compute for part in parts)),
        ),
        collectives=_collectives(all_of("collectives")),
        launches=Launches.joined(launches) if launches else None,
        host_operators=summed(all_of("host_operators"), "name"),
        synchronisations=summed(all_of("synchronisations"), "call", "site"),
    )


def _shared(peaks: Iterable[DevicePeaks]) -> tuple[DevicePeaks, ...]:
    """Return equal peaks in which consecutive equal devices share their values in memory."""
    shared: list[DevicePeaks] = []
    for peak in peaks:
        like_last = replace(shared[-1], device=peak.device) if shared else peak
        shared.append(like_last if like_last == peak else peak)
    return tuple(shared)


def _outside(parts: Sequence[Outside]) -> Outside:
    vector = [part.vector_flops for part in parts if part.vector_flops is not None]
    unattributed = summed((row for part in parts for row in part.unattributed), "kernel", "why")
    return Outside(
        summed((row for part in parts for row in part.not_counted), "why", "op"),
        unattributed,
        sum(vector) if len(vector) == len(parts) else None,  # unknown if one part is
    )


def _collectives(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """Return the collectives of all ranks; bytes are the sum of known sizes, None without any."""
    sums = summed((replace(row, bytes=row.bytes or 0) for row in rows), "collective", "ranks")
    sized = (replace(row, bytes=row.bytes if row.sized else None) for row in sums)
    return tuple(sorted(sized, key=lambda row: (-row.sum_ns, row.collective or "", row.ranks or 0)))
