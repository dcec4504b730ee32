"""What the summaries of the ranks of a job add up to: an `Analysis` without single events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, attrgetter
from typing import Any, Final, TypeVar

from traceflops.analysis.notes import is_said, notes_of
from traceflops.analysis.preparation import prepare
from traceflops.analysis.rank_summary import RankSummary, summed
from traceflops.analysis.recipe import Judged, analysis_of, judged
from traceflops.analysis.result import Analysis
from traceflops.attribution import (
    Culprit,
    IdleCulprits,
    Launches,
    joined_culprits,
    most_important,
)
from traceflops.devices import NOT_SPLIT, OF_RANKS, by_rank, join, split
from traceflops.errors import UsageError
from traceflops.findings import cut_file
from traceflops.flops import waterfall
from traceflops.mfu import (
    Measurement,
    Outside,
    RoofTimes,
    impossible,
)
from traceflops.ranks import (
    Collective,
    KernelSums,
    Links,
    RankReport,
    joined,
    links_of,
    report_of,
)
from traceflops.table import Note, Trace, counted_note, together
from traceflops.timeline import COPIES_MISSING, Window
from traceflops.units import several
from traceflops.windows import DeviceReport, LaunchRecords, StepChoice, told_apart

_NAMED: Final = 5
_ARE: Final = ("is", "are")
_LEFT_OUT: Final = (
    "The report was made from summaries of {n} [file|files]. The timeline, memory over time, "
    "copies by direction, modules, {also}serving passes and sums without a timeline are not in "
    "them."
)
T = TypeVar("T")


def analysis_of_summaries(
    summaries: Iterable[RankSummary], failed: Sequence[str] = (), link: float | None = None
) -> Analysis:
    """Return the analysis of several ranks of one job, added up from their summaries.

    `failed` are the names of files that have none, `link` is what is given for links, GB/s. Raises
    UsageError for the summaries of several jobs.
    """
    ordered = _without_host_work(sorted(summaries, key=_by_rank))
    trace = _joined(ordered)
    every = list(_moved(ordered))
    moved = [one for one in every if one.reports] or every
    devices = told_apart(trace, [device for one in moved for device in one.reports])
    prepared = prepare(trace)
    empty = analysis_of(prepared)
    measured = _measured(moved, empty.measured)
    choice, records = _choice([one.choice for one in moved]), _launch_records(moved)
    parts = [one.launches for one in moved if one.launches is not None]
    figures = judged(
        Judged(trace, "", cut_file(trace), records, None, choice, is_said(trace, COPIES_MISSING)),
        devices,
        measured,
        kernels=[one.kernels for one in moved],
        moved=_added(one.moved for one in moved),
        idle=joined_culprits([one.idle for one in moved]),
        launches=Launches.joined(parts) if parts else None,
        ranks=_who_waits(moved, trace, links_of(prepared, measured.devices, link)),
        passes=empty.serving,
    )
    ranks = figures["ranks"]
    also = "pipelines, " if ranks is not None and ranks.records.lacks_work else ""
    said = _LEFT_OUT.replace("{also}", also)
    left_out = counted_note("missing", "from-summaries", said, len(trace.source.files))
    notes = _notes(ordered, notes_of(prepared, devices, measured))
    return replace(
        empty,
        **figures,
        notes=(*_failed(failed), left_out, *notes),
        collectives=_collectives(row for one in moved for row in one.collectives),
        known_operators=most_important(_most(moved, "host_operators", "self_ns", "name")),
        known_synchronisations=_most(moved, "synchronisations", "blocked_ns", "call", "site"),
        prepared=None,
    )


def _without_host_work(summaries: Sequence[RankSummary]) -> list[RankSummary]:
    """Return summaries; of those of operators on the CPU only processes if others are of GPUs."""
    of_gpus = [any(device.type != "cpu" for device in one.reports) for one in summaries]
    return [
        one
        if is_of_gpus or not any(of_gpus)
        else replace(one, trace=_of_processes(one.trace), reports=(), notes=())
        for one, is_of_gpus in zip(summaries, of_gpus, strict=True)
    ]


def _joined(summaries: Sequence[RankSummary]) -> Trace:
    """Return the trace of all, without events. Raises UsageError for those of several jobs."""
    traces = [one.trace for one in summaries]
    jobs, _ = split(traces)
    if len(jobs) > 1:
        files = ", ".join(job[0].source.files[0].name for job in jobs[:_NAMED])
        raise UsageError(
            f"the summaries are of {len(jobs)} jobs, such as those of {files}",
            "give the summaries of one job",
        )
    trace = join(traces if len(traces) == 1 else [_without_rank_notes(one) for one in traces])
    return replace(trace, tables={"processes": trace.processes, "devices": trace.devices})


def _without_rank_notes(trace: Trace) -> Trace:
    return replace(trace, notes=tuple(note for note in trace.notes if note.code not in OF_RANKS))


def _of_processes(trace: Trace) -> Trace:
    return replace(trace, tables={"processes": trace.processes}, places=())


def _notes(summaries: Sequence[RankSummary], again: Sequence[Note]) -> list[Note]:
    """Return all notes in the order in which recordings show them."""
    owned = [(place, note) for place, one in enumerate(summaries) for note in one.notes]
    order = list(dict.fromkeys(code for one in summaries for code in one.codes))
    place = {code: at for at, code in enumerate(order)}
    is_of_one = all(len(one.trace.source.files) == 1 for one in summaries)
    noun = "summary" if is_of_one else "file batch"
    every = (*again, *together(owned, len(summaries), noun))
    return sorted(every, key=lambda note: place.get(note.code, -1))


def _failed(names: Sequence[str]) -> Iterator[Note]:
    if names:
        listed = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        text = f"{several(len(names), 'file')} could not be read and {_ARE[len(names) > 1]} missing"
        yield Note("dropped", "file-not-read", f"{text}: {listed}.", len(names))


def _by_rank(summary: RankSummary) -> tuple[int, str]:
    return by_rank(summary.trace)


def _moved(ordered: Sequence[RankSummary]) -> Iterator[RankSummary]:
    """Yield the same on the clock of the first that has one, devices and processes renumbered."""
    origins = [one.trace.source.origin_unix_ns for one in ordered]
    common = next((origin for origin in origins if origin is not None), None)
    processes = devices = 0
    for one, origin in zip(ordered, origins, strict=True):
        shift = origin - common if origin is not None and common is not None else 0
        launches = one.launches
        yield replace(
            one,
            reports=tuple(_shifted(each, devices, processes, shift) for each in one.reports),
            records=one.records.moved(shift, devices),
            peaks=_renumbered(one.peaks, devices),
            cells=_renumbered(one.cells, devices),
            times=_renumbered(one.times, devices),
            launches=launches
            and replace(
                launches, devices={at + devices: sums for at, sums in launches.devices.items()}
            ),
        )
        processes += one.trace.processes.num_rows
        devices += one.trace.devices.num_rows


def _renumbered(rows: tuple[T, ...], devices: int) -> tuple[T, ...]:
    return tuple(replace(row, device=row.device + devices) for row in rows)  # type: ignore


def _shifted(device: DeviceReport, devices: int, processes: int, by_ns: int) -> DeviceReport:
    def moved(row: Any) -> Any:
        return replace(row, start_ns=row.start_ns + by_ns, end_ns=row.end_ns + by_ns)

    gaps = (
        replace(gap, start_ns=gap.start_ns + by_ns, device=gap.device + devices)
        for gap in device.gaps
    )
    return replace(
        device,
        device=device.device + devices,
        process=device.process + processes,
        whole=moved(device.whole),
        windows=tuple(map(moved, device.windows)),
        gaps=tuple(gaps),
    )


def _choice(choices: Sequence[StepChoice]) -> StepChoice:
    seen, used = (
        tuple(sorted({step for one in choices for step in getattr(one, name)}))
        for name in ("seen", "used")
    )
    return replace(choices[0], seen=seen, used=used)


def _launch_records(parts: Sequence[RankSummary]) -> LaunchRecords:
    return reduce(add, (one.launch_records for one in parts))


def _collectives(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """Return the collectives of all: bytes are of those whose size is known, on any rank."""
    found = summed((replace(row, bytes=row.bytes or 0) for row in rows), "collective", "ranks")
    known = (replace(row, bytes=row.bytes if row.sized else None) for row in found)
    return tuple(sorted(known, key=lambda row: (-row.sum_ns, row.collective or "", row.ranks or 0)))


def _most(parts: Sequence[RankSummary], name: str, figure: str, *keys: str) -> tuple[Any, ...]:
    """Return the rows of a table of all, those with most of a figure first."""
    rows = summed((row for one in parts for row in getattr(one, name)), *keys)
    return tuple(sorted(rows, key=attrgetter(figure), reverse=True))


def _added(maps: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in maps:
        for name, value in one.items():
            found[name] = found.get(name, 0) + value
    return found


def _measured(parts: Sequence[RankSummary], empty: Measurement) -> Measurement:
    """Return what the summaries say of utilisation; nothing where one of them says why not."""
    done = replace(
        empty.executed,
        cells=tuple(cell for one in parts for cell in one.cells),
        times=tuple(time for one in parts for time in one.times),
        open_lines=_added(one.open_lines for one in parts),
        outside=_outside([one.outside for one in parts]),
        notes=(),
    )
    devices = tuple(device for one in parts for device in one.peaks)
    budgets = [budget for one in parts for budget in one.budgets]
    lacks = next((one.lacks for one in parts if one.lacks and not one.budgets), ())
    fall = waterfall(budgets) if budgets and not lacks else None
    if fall is not None and fall.errors:
        lacks, fall = (impossible(fall, devices),), None
    if fall is not None and done.unsplit_flops:
        lacks = (NOT_SPLIT,)
    roofs = RoofTimes(
        *(
            sum((getattr(one.roofs, name) for one in parts[1:]), getattr(parts[0].roofs, name))
            for name in ("memory", "compute")
        )
    )
    rows = (row for one in parts for row in one.kernel_rows)
    ops = (row for one in parts for row in one.op_rows)
    return replace(
        empty,
        executed=done,
        devices=devices,
        waterfall=fall,
        lacks=lacks,
        kernels=_longest(summed(rows, "name", "category", "path"), "sum_ns"),
        ops=_longest(summed(ops, "name", "path"), "measured.time_ns"),
        roofs=roofs,
    )


def _longest(rows: Iterable[T], figure: str) -> tuple[T, ...]:
    by_name = sorted(rows, key=attrgetter("name"))
    return tuple(sorted(by_name, key=attrgetter(figure), reverse=True))


def _outside(parts: Sequence[Outside]) -> Outside:
    vector = [one.vector_flops for one in parts if one.vector_flops is not None]
    unattributed = summed((row for one in parts for row in one.unattributed), "kernel", "why")
    return Outside(
        summed((row for one in parts for row in one.not_counted), "why", "op"),
        tuple(sorted(unattributed, key=attrgetter("sum_ns"), reverse=True)),
        sum(vector) if len(vector) == len(parts) else None,
    )


@dataclass(frozen=True)
class _Work:
    """The work of the devices that summaries tell: of all steps together, and of few of them."""

    trace: Trace
    parts: Sequence[RankSummary]

    @property
    def windows(self) -> Mapping[int, tuple[Window, ...]]:
        return {device.device: device.windows for one in self.parts for device in one.reports}

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        of_step = [KernelSums.joined(list(one)) for one in self._of(steps, "work")]
        rows = self._devices
        return KernelSums.added(of_step).of([rows.index(device) for device in devices])

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> list[tuple[Culprit, ...]]:
        every = [[mine for part in one for mine in part] for one in self._of(steps, "idle_of")]
        rows = [self._devices.index(device) for device in devices]
        several = [[IdleCulprits(one[row], 0) for one in every] for row in rows]
        return [joined_culprits(same).culprits for same in several]

    @property
    def _devices(self) -> list[int]:
        return [device for one in self.parts for device in one.records.devices]

    def _of(self, steps: Sequence[int | None], name: str) -> Iterator[Iterator[Any]]:
        """Yield what the parts have of each step, or of all together."""
        are_told = all(set(steps) <= set(one.long_steps) for one in self.parts)
        for step in dict.fromkeys(steps) if steps and are_told else (None,):
            yield (
                getattr(one, name)[one.long_steps.index(step) + 1 if step is not None else 0]
                for one in self.parts
            )


def _who_waits(parts: Sequence[RankSummary], trace: Trace, links: Links) -> RankReport | None:
    """Return how the ranks compare, None where no device is known."""
    records = joined([one.records for one in parts], trace)
    whole = [device.whole for one in parts for device in one.reports]
    if not whole:
        return None
    work = _Work(trace, parts)
    overlap = max(one.start_ns for one in whole) <= min(one.end_ns for one in whole)
    is_aligned = overlap and not is_said(trace, "clocks-not-aligned")
    return report_of(records, work, is_aligned=is_aligned, links=links)
