"""What the summaries of the ranks of a job add up to: an `Analysis` without single events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add, attrgetter
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.judgement import VerdictFacts, judged
from traceflops.analysis.notes import is_said, notes_of
from traceflops.analysis.preparation import prepare
from traceflops.analysis.rank_summary import RankSummary, summed
from traceflops.analysis.recipe import analysis_of
from traceflops.analysis.result import Analysis
from traceflops.attribution.culprits import Culprit, IdleCulprits, joined_culprits
from traceflops.attribution.host_calls import most_important
from traceflops.attribution.launch_lead import Launches
from traceflops.devices.jobs import split
from traceflops.devices.merging import OF_RANKS, by_rank, join
from traceflops.devices.missing_input import NOT_SPLIT
from traceflops.errors import UsageError
from traceflops.findings.verdicts import cut_file
from traceflops.flops.mfu_waterfall import waterfall
from traceflops.mfu.measurement import Measurement, impossible
from traceflops.mfu.roof_times import RoofTimes
from traceflops.mfu.traced.uncounted import Outside
from traceflops.ranks.collectives import Collective
from traceflops.ranks.comm_records import joined
from traceflops.ranks.late_causes import KernelSums
from traceflops.ranks.link_rates import Links, links_of
from traceflops.ranks.who_waits import RankReport, report_of
from traceflops.table.trace import Note, Trace, counted_note, note_of, together
from traceflops.timeline.host_work import COPIES_MISSING
from traceflops.timeline.records import Window
from traceflops.windows.records import DeviceReport, told_apart

_NAMED: Final = 5
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
    ordered = sorted(summaries, key=lambda summary: by_rank(summary.trace))
    of_gpus = [any(device.type != "cpu" for device in part.reports) for part in ordered]
    for number, part in enumerate(ordered):
        if any(of_gpus) and not of_gpus[number]:  # operators on the CPU do not count beside GPUs
            trace = replace(part.trace, tables={"processes": part.trace.processes}, places=())
            ordered[number] = replace(part, trace=trace, reports=(), notes=())
    trace = _joined([summary.trace for summary in ordered])
    moved = list(_moved(ordered))
    parts = [part for part in moved if part.reports] or moved  # all if none has devices
    devices = told_apart(trace, [device for part in parts for device in part.reports])
    prepared = prepare(trace)
    empty = analysis_of(prepared)
    measured = _measured(parts, empty.measured)
    records = reduce(add, (part.launch_records for part in parts))
    choice = replace(
        parts[0].choice,
        seen=tuple(sorted({step for part in parts for step in part.choice.seen})),
        used=tuple(sorted({step for part in parts for step in part.choice.used})),
    )
    launches = [part.launches for part in parts if part.launches is not None]
    lacks_copies = is_said(trace, COPIES_MISSING)
    figures = judged(
        VerdictFacts(trace, "", cut_file(trace), records, None, choice, lacks_copies),
        devices,
        measured,
        kernels=[part.kernels for part in parts],
        moved=_added(part.moved for part in parts),
        idle=joined_culprits([part.idle for part in parts]),
        launches=Launches.joined(launches) if launches else None,
        ranks=_rank_report(parts, trace, links_of(prepared, measured.devices, link)),
        passes=empty.serving,
    )
    ranks = figures["ranks"]
    also = "pipelines, " if ranks is not None and ranks.records.lacks_work else ""
    text = _LEFT_OUT.replace("{also}", also)
    left_out = counted_note("missing", "from-summaries", text, len(trace.source.files))
    files = (*failed[:_NAMED], *["…"] * (len(failed) > _NAMED))
    unread = [note_of("dropped", "file-not-read", count=len(failed), files=files)] if failed else []
    notes = _notes(ordered, notes_of(prepared, devices, measured))
    operators = summed((row for part in parts for row in part.host_operators), "name")
    waits = summed((row for part in parts for row in part.synchronisations), "call", "site")
    return replace(
        empty,
        **figures,
        notes=(*unread, left_out, *notes),
        collectives=_collectives(row for part in parts for row in part.collectives),
        summed_operators=most_important(_largest(operators, "self_ns")),
        summed_synchronisations=_largest(waits, "blocked_ns"),
        has_events=False,
    )


def _joined(traces: Sequence[Trace]) -> Trace:
    """Return the trace of all, without events. Raises UsageError for those of several jobs."""
    jobs, _ = split(traces)
    if len(jobs) > 1:
        files = ", ".join(job[0].source.files[0].name for job in jobs[:_NAMED])
        raise UsageError(
            f"the summaries are of {len(jobs)} jobs, such as those of {files}",
            "give the summaries of one job",
        )
    if len(traces) > 1:  # what a trace says of its ranks is found again for all
        traces = [
            replace(trace, notes=tuple(note for note in trace.notes if note.code not in OF_RANKS))
            for trace in traces
        ]
    trace = join(traces)
    return replace(trace, tables={"processes": trace.processes, "devices": trace.devices})


def _notes(summaries: Sequence[RankSummary], again: Sequence[Note]) -> list[Note]:
    """Return all notes in the order in which recordings show them; `again` are those of all."""
    owned = [(number, note) for number, part in enumerate(summaries) for note in part.notes]
    codes = dict.fromkeys(code for part in summaries for code in part.codes)
    order = {code: number for number, code in enumerate(codes)}
    is_of_one = all(len(part.trace.source.files) == 1 for part in summaries)
    noun = "summary" if is_of_one else "file batch"
    notes = (*again, *together(owned, len(summaries), noun))
    return sorted(notes, key=lambda note: order.get(note.code, -1))  # new ones first


def _moved(ordered: Sequence[RankSummary]) -> Iterator[RankSummary]:
    """Yield the same on the clock of the first that has one, devices and processes renumbered."""
    origins = [part.trace.source.origin_unix_ns for part in ordered]
    common = next((origin for origin in origins if origin is not None), None)
    processes = devices = 0

    def renumbered(rows: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(replace(row, device=row.device + devices) for row in rows)  # type: ignore

    for part, origin in zip(ordered, origins, strict=True):
        shift = origin - common if origin is not None and common is not None else 0
        launches = part.launches
        if launches is not None:
            sums = {device + devices: each for device, each in launches.devices.items()}
            launches = replace(launches, devices=sums)
        yield replace(
            part,
            reports=tuple(_shifted(each, devices, processes, shift) for each in part.reports),
            records=part.records.moved(shift, devices),
            peaks=renumbered(part.peaks),
            cells=renumbered(part.cells),
            times=renumbered(part.times),
            launches=launches,
        )
        processes += part.trace.processes.num_rows
        devices += part.trace.devices.num_rows


def _shifted(device: DeviceReport, devices: int, processes: int, by_ns: int) -> DeviceReport:
    """Return a device with its numbers and times raised by so much."""

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


def _collectives(rows: Iterable[Collective]) -> tuple[Collective, ...]:
    """Return the collectives of all: bytes are of those whose size is known, on any rank."""
    sums = summed((replace(row, bytes=row.bytes or 0) for row in rows), "collective", "ranks")
    sized = (replace(row, bytes=row.bytes if row.sized else None) for row in sums)
    return tuple(sorted(sized, key=lambda row: (-row.sum_ns, row.collective or "", row.ranks or 0)))


def _largest(rows: Iterable[T], figure: str) -> tuple[T, ...]:
    return tuple(sorted(rows, key=attrgetter(figure), reverse=True))


def _added(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for sums in maps:
        total.update(sums)
    return dict(total)


def _measured(parts: Sequence[RankSummary], empty: Measurement) -> Measurement:
    """Return what the summaries say of utilisation.

    There is no waterfall if one of them says why it has no budget, or if their sum is impossible:
    `lacks` then says why.
    """
    outside = [part.outside for part in parts]
    vector = [each.vector_flops for each in outside if each.vector_flops is not None]
    unattributed = summed((row for each in outside for row in each.unattributed), "kernel", "why")
    executed = replace(
        empty.executed,
        cells=tuple(chain.from_iterable(part.cells for part in parts)),
        times=tuple(chain.from_iterable(part.times for part in parts)),
        outside=Outside(
            summed((row for each in outside for row in each.not_counted), "why", "op"),
            _largest(unattributed, "sum_ns"),
            sum(vector) if len(vector) == len(parts) else None,  # unknown if one part is
        ),
        notes=(),
    )
    devices = tuple(chain.from_iterable(part.peaks for part in parts))
    budgets = list(chain.from_iterable(part.budgets for part in parts))
    # A waterfall needs the budgets of all parts. A part with budgets may lack an MFU alone, which
    # is decided again for the sum.
    lacks = next((part.lacks for part in parts if part.lacks and not part.budgets), ())
    fall = waterfall(budgets) if budgets and not lacks else None
    if fall is not None and fall.errors:
        lacks, fall = (impossible(fall, devices),), None
    if fall is not None and executed.unsplit_flops:  # the budget has a split, but MFU is unknown
        lacks = (NOT_SPLIT,)
    memory, compute = (
        reduce(add, (getattr(part.roofs, name) for part in parts)) for name in ("memory", "compute")
    )
    kernel_rows = chain.from_iterable(part.kernel_rows for part in parts)
    kernels = summed(kernel_rows, "name", "category", "path")
    ops = summed(chain.from_iterable(part.op_rows for part in parts), "name", "path")
    by_name = attrgetter("name")
    return replace(
        empty,
        executed=executed,
        devices=devices,
        waterfall=fall,
        lacks=lacks,
        kernels=_largest(sorted(kernels, key=by_name), "sum_ns"),
        ops=_largest(sorted(ops, key=by_name), "measured.time_ns"),
        roofs=RoofTimes(memory, compute),
    )


class _SummedWork(Struct, frozen=True, dict=True):
    """The work of the devices in summaries: of all steps together, and of each long one."""

    parts: Sequence[RankSummary]
    trace: Trace

    @property
    def windows(self) -> Mapping[int, tuple[Window, ...]]:
        return {device.device: device.windows for part in self.parts for device in part.reports}

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        of_step = [KernelSums.joined(list(sums)) for sums in self._by_step(steps, "work")]
        return KernelSums.added(of_step).of(self._rows(devices))

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> list[tuple[Culprit, ...]]:
        """Return the culprits of the idle time of some devices in some steps, by device."""
        of_step = [list(chain.from_iterable(each)) for each in self._by_step(steps, "idle_of")]
        of_device = (
            [IdleCulprits(culprits[row], 0) for culprits in of_step] for row in self._rows(devices)
        )
        return [joined_culprits(several).culprits for several in of_device]

    def _rows(self, devices: Sequence[int]) -> list[int]:
        """Return the place of each device among those of all parts."""
        order = [device for part in self.parts for device in part.records.devices]
        return [order.index(device) for device in devices]

    def _by_step(self, steps: Sequence[int | None], name: str) -> Iterator[Iterator[Any]]:
        """Yield what the parts have of each step, or of all together if not all have each."""
        are_long = all(set(steps) <= set(part.long_steps) for part in self.parts)
        for step in dict.fromkeys(steps) if steps and are_long else (None,):
            yield (
                getattr(part, name)[part.long_steps.index(step) + 1 if step is not None else 0]
                for part in self.parts
            )


def _rank_report(parts: Sequence[RankSummary], trace: Trace, links: Links) -> RankReport | None:
    """Return how the ranks compare, None where no device is known."""
    spans = [device.whole for part in parts for device in part.reports]
    if not spans:
        return None
    records = joined([part.records for part in parts], trace)
    overlap = max(span.start_ns for span in spans) <= min(span.end_ns for span in spans)
    # Spans that lie apart are of clocks that have nothing in common.
    is_aligned = overlap and not is_said(trace, "clocks-not-aligned")
    return report_of(records, _SummedWork(parts, trace), is_aligned=is_aligned, links=links)
