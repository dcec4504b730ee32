"""What the summaries of the ranks of a job add up to: an `Analysis` without single events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, TypeVar

from traceflops.analysis.notes import added, is_said, notes_of
from traceflops.analysis.preparation import prepare
from traceflops.analysis.rank_summary import RankSummary, summed
from traceflops.analysis.recipe import (
    Judged,
    analysis_of,
    findings_of,
    known_idle,
    steps_of,
    verdict_of,
)
from traceflops.analysis.result import Analysis
from traceflops.attribution import (
    Culprit,
    IdleCulprits,
    Launches,
    category_table,
    host_bound,
    joined_culprits,
    kernel_table,
    most_important,
)
from traceflops.devices import NOT_SPLIT, by_rank, join, merge_jobs, split
from traceflops.errors import UsageError
from traceflops.findings import all_losses, basis_of, main_kernel_findings, waiting_words
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
from traceflops.timeline import COPIES_MISSING, EMPTY_ACCOUNT, Window
from traceflops.units import several
from traceflops.windows import DeviceReport, LaunchRecords, StepChoice

_NAMED: Final = 5
_ARE: Final = ("is", "are")
_LEFT_OUT: Final = (
    "The report was made from {n} [summary|summaries]. The timeline, memory over time, copies by "
    "direction, modules and pipelines are not in them."
)
T = TypeVar("T")


def analysis_of_summaries(
    summaries: Iterable[RankSummary], failed: Sequence[str] = (), link: float | None = None
) -> Analysis:
    """Return the analysis of several ranks of one job, added up from their summaries.

    `failed` are the names of files that have none, `link` is what is given for links, GB/s.
    """
    ordered = sorted(summaries, key=_by_rank)
    analysis, _ = _added_up(ordered, link)
    left_out = counted_note("missing", "from-summaries", _LEFT_OUT, len(ordered))
    return replace(analysis, notes=(*_failed(failed), left_out, *analysis.notes))


def same_as_recordings(
    summaries: Iterable[RankSummary], link: float | None = None
) -> Analysis | None:
    """Return the same where the summary in a terminal is that of the recordings, else None."""
    analysis, is_same = _added_up(sorted(summaries, key=_by_rank), link)
    return analysis if is_same else None


def _added_up(ordered: Sequence[RankSummary], link: float | None) -> tuple[Analysis, bool]:
    """Return the analysis of all, and whether it shows in a terminal what the recordings do."""
    trace, is_same = _merged(ordered)
    moved = list(_moved(ordered))
    devices = [device for one in moved for device in one.reports]
    total = sum((device.chosen for device in devices), EMPTY_ACCOUNT)
    prepared = prepare(trace)
    empty = analysis_of(prepared)
    measured = _measured(moved, empty.measured)
    window_ns = total.components.window_ns
    kernels = kernel_table([one.kernels for one in moved], window_ns)
    idle = joined_culprits([one.idle for one in moved])
    lacks_copies = is_said(trace, COPIES_MISSING)
    times = _added(one.moved for one in moved)
    who_waits = _who_waits(moved, trace, links_of(prepared, measured.devices, link))
    found = all_losses(
        total,
        measured,
        times,
        idle,
        lacks_copies=lacks_copies,
        waiting=waiting_words(who_waits),
    )
    choice = _choice([one.choice for one in moved])
    judged = Judged(trace.source.format, _launch_records(moved), None, choice)
    main = main_kernel_findings(kernels, total, found, empty.serving, basis_of(choice))
    parts = [one.launches for one in moved if one.launches is not None]
    launches = Launches.joined(parts) if parts else None
    said = added([one.notes for one in moved])
    analysis = replace(
        empty,
        verdict=verdict_of(judged, devices, total, measured, found, who_waits),
        steps=steps_of(choice, devices),
        devices=tuple(devices),
        total=total,
        kernels=kernels,
        categories=category_table(kernels, window_ns),
        notes=tuple(_notes(ordered, said, notes_of(prepared, devices, measured))),
        measured=measured,
        findings=findings_of(judged, devices, measured, found, who_waits, main),
        collectives=_collectives(row for one in moved for row in one.collectives),
        recorded=judged.records.state,
        idle=idle,
        host_bound=host_bound(launches, known_idle(judged, total, lacks_copies=lacks_copies)),
        launches=launches,
        known_operators=most_important(_most(moved, "host_operators", "self_ns", "name")),
        known_synchronisations=_most(moved, "synchronisations", "blocked_ns", "call", "site"),
        ranks=who_waits,
        prepared=None,
    )
    slow = who_waits.slow if who_waits is not None else None
    is_told = slow is None or _Work(trace, moved).told(slow.steps)
    return analysis, is_same and is_told and said is not None and _are_alike(ordered)


def _are_alike(summaries: Sequence[RankSummary]) -> bool:
    """Return whether what each says adds up to what there is to say of all."""
    kinds = {
        (
            replace(one.choice, typical_ns=None),
            one.lacks,
            one.launches and one.launches.short_ns,
            one.trace.source.format,
            one.trace.source.tool,
        )
        for one in summaries
    }
    return len(kinds) == 1 and all(one.is_plain for one in summaries)


def _merged(summaries: Sequence[RankSummary]) -> tuple[Trace, bool]:
    """Return the trace of all, without events, and whether it is as if all were read together.

    Raises UsageError for the summaries of several jobs.
    """
    parts = [part for one in summaries for part in one.parts]
    places = list(map(by_rank, parts))
    count = sum(one.trace.devices.num_rows for one in summaries)
    if all(one.is_plain for one in summaries) and places == sorted(places):
        trace = merge_jobs(parts)
        if not trace.jobs and trace.devices.num_rows == count:
            return _without_events(trace), True
    _refuse_several_jobs(summaries)
    return _without_events(join([one.trace for one in summaries])), False


def _refuse_several_jobs(summaries: Sequence[RankSummary]) -> None:
    """Raise UsageError for the summaries of several jobs."""
    jobs, _ = split([one.trace for one in summaries])
    if len(jobs) > 1:
        files = ", ".join(job[0].source.files[0].name for job in jobs[:_NAMED])
        raise UsageError(
            f"the summaries are of {len(jobs)} jobs, such as those of {files}",
            "give the summaries of one job",
        )


def _without_events(trace: Trace) -> Trace:
    return replace(trace, tables={"processes": trace.processes, "devices": trace.devices})


def _notes(
    summaries: Sequence[RankSummary], said: Sequence[Note] | None, again: Sequence[Note]
) -> list[Note]:
    """Return all notes in the order in which recordings show them."""
    if said is None:
        owned = [(place, note) for place, one in enumerate(summaries) for note in one.notes]
        said = together(owned, len(summaries), "recording")
    order = list(dict.fromkeys(code for one in summaries for code in one.codes))
    place = {code: at for at, code in enumerate(order)}
    return sorted((*again, *said), key=lambda note: place.get(note.code, -1))


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
    found = [one.launch_records for one in parts]
    calls, lost, captured = (
        sum(getattr(one, name) for one in found) for name in ("calls", "lost", "captured")
    )
    replays, has_devices = any(o.replays for o in found), any(o.has_devices for o in found)
    return LaunchRecords(calls, lost, captured, replays, has_devices)


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

    def told(self, steps: Sequence[int | None]) -> bool:
        """Return whether steps are told apart from others."""
        return all(set(steps) <= set(one.long_steps) for one in self.parts)

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
        for step in dict.fromkeys(steps) if steps and self.told(steps) else (None,):
            yield (
                getattr(one, name)[one.long_steps.index(step) + 1 if step is not None else 0]
                for one in self.parts
            )


def _who_waits(parts: Sequence[RankSummary], trace: Trace, links: Links) -> RankReport | None:
    records = joined([one.records for one in parts], trace)
    if len(records.ranks) < 2:
        return None
    reports = [device for one in parts for device in one.reports]
    work = _Work(trace, parts)
    starts, ends = zip(*((r.whole.start_ns, r.whole.end_ns) for r in reports), strict=True)
    is_aligned = max(starts) <= min(ends) and not is_said(trace, "clocks-not-aligned")
    return report_of(records, work, is_aligned=is_aligned, links=links)
