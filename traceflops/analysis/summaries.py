"""The sum of the summaries of the ranks of a job: an `Analysis` without single events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traceflops.analysis.judgement import VerdictFacts, judged
from traceflops.analysis.notes import is_said, notes_of
from traceflops.analysis.preparation import prepare
from traceflops.analysis.rank_summary import RankSummary
from traceflops.analysis.recipe import analysis_of
from traceflops.analysis.result import Analysis
from traceflops.analysis.summary_sums import GPUS, HeldSummary, RunningSum, placed, sum_of
from traceflops.attribution.culprits import Culprit, IdleCulprits, joined_culprits
from traceflops.attribution.host_calls import most_important
from traceflops.devices.jobs import split
from traceflops.devices.merging import OF_RANKS, by_rank, join
from traceflops.devices.missing_input import NOT_SPLIT
from traceflops.errors import UsageError
from traceflops.findings.verdicts import cut_file
from traceflops.flops.mfu_waterfall import waterfall
from traceflops.mfu.measurement import Measurement, impossible
from traceflops.ranks.comm_records import grouped
from traceflops.ranks.late_causes import KernelSums
from traceflops.ranks.link_rates import Links, links_of
from traceflops.ranks.who_waits import NO_RANKS, RankReport, report_of
from traceflops.table.merged_notes import together
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.host_work import COPIES_MISSING
from traceflops.windows.records import Windows, told_apart

_NAMED: Final = 5
_LEFT_OUT: Final = (
    "The report was made from summaries of {n} [file|files]. The timeline, memory over time, "
    "copies by direction, modules, {also}serving passes and sums without a timeline are not in "
    "them."
)
T = TypeVar("T")


def analysis_of_summaries(
    summaries: Iterable[HeldSummary], failed: Sequence[str] = (), link: float | None = None
) -> Analysis:
    """Return the analysis of several ranks of one job from their summaries. Raises UsageError."""
    ordered = sorted(summaries, key=lambda summary: by_rank(summary.trace))
    main_kind = max(part.kind for part in ordered)
    for number, part in enumerate(ordered):
        if part.kind < main_kind == GPUS:  # if some have GPUs, leave out those with CPUs only
            trace = replace(part.trace, tables={"processes": part.trace.processes}, places=())
            ordered[number] = replace(part, trace=trace, notes=())
    trace = _joined([summary.trace for summary in ordered])
    parts = [part for part in placed(ordered) if part.kind == main_kind]
    whole = sum_of(parts)
    devices = told_apart(trace, whole.reports)
    prepared = prepare(trace)
    empty = analysis_of(prepared)
    measured = _measured(whole, empty.measured)
    work = _SummedWork(parts, whole, trace)
    figures = judged(
        VerdictFacts(
            trace=trace,
            how="",
            cut=cut_file(trace),
            records=whole.launch_records,
            untimed=None,
            choice=whole.choice,
            lacks_copies=is_said(trace, COPIES_MISSING),
        ),
        devices,
        measured,
        kernels=[whole.kernels],
        moved=whole.moved,
        idle=joined_culprits([whole.idle]),
        launches=whole.launches,
        ranks=_rank_report(whole, work, links_of(prepared, measured.devices, link)),
        passes=empty.serving,
    )
    ranks = figures["ranks"]
    also = "pipelines, " if ranks.records.lacks_work else ""
    text = _LEFT_OUT.replace("{also}", also)
    left_out = counted_note("missing", "from-summaries", text, len(trace.source.files))
    files = (*failed[:_NAMED], *["…"] * (len(failed) > _NAMED))
    unread = [note_of("dropped", "file-not-read", count=len(failed), files=files)] if failed else []
    notes = _notes(ordered, notes_of(prepared, devices, measured))
    return replace(
        empty,
        **figures,
        notes=(*unread, left_out, *notes),
        collectives=whole.collectives,
        summed_operators=most_important(_largest(whole.host_operators, "self_ns")),
        summed_synchronisations=_largest(whole.synchronisations, "blocked_ns"),
        has_events=False,
    )


def _joined(traces: Sequence[Trace]) -> Trace:
    """Return one trace with the processes and devices of all. UsageError for several jobs."""
    jobs, _ = split(traces)
    if len(jobs) > 1:
        files = ", ".join(job[0].source.files[0].name for job in jobs[:_NAMED])
        raise UsageError(
            f"the summaries are of {len(jobs)} jobs, such as those of {files}",
            "give the summaries of one job",
        )
    if len(traces) > 1:  # `join` makes the notes on ranks anew, for all traces together
        traces = [
            replace(trace, notes=tuple(note for note in trace.notes if note.code not in OF_RANKS))
            for trace in traces
        ]
    trace = join(traces)
    return replace(trace, tables={"processes": trace.processes, "devices": trace.devices}, runs=())


def _notes(summaries: Sequence[HeldSummary], again: Sequence[Note]) -> list[Note]:
    """Return all notes in the order of the recordings' notes; `again` are those on the sum."""
    owned = [(number, note) for number, part in enumerate(summaries) for note in part.notes]
    codes = dict.fromkeys(code for part in summaries for code in part.codes)
    order = {code: number for number, code in enumerate(codes)}
    has_single_files = all(len(part.trace.source.files) == 1 for part in summaries)
    noun = "summary" if has_single_files else "file batch"
    notes = (*again, *together(owned, len(summaries), noun))
    return sorted(notes, key=lambda note: order.get(note.code, -1))  # new codes first


def _measured(whole: RankSummary, empty: Measurement) -> Measurement:
    """Return the utilisation of all ranks from the sum `whole` of their summaries.

    `empty` has the fields that a summary does not tell. The waterfall is None if a summary has no
    budget, or if the summed budgets are impossible: `lacks` says why.
    """
    outside = replace(whole.outside, unattributed=_largest(whole.outside.unattributed, "sum_ns"))
    executed = replace(
        empty.executed, cells=whole.cells, times=whole.times, outside=outside, notes=()
    )
    lacks = whole.lacks
    fall = waterfall(whole.budgets) if whole.budgets and not lacks else None
    if fall is not None and fall.errors:
        lacks, fall = (impossible(fall, whole.peaks),), None
    if fall is not None and executed.unsplit_flops:
        lacks = (NOT_SPLIT,)  # MFU is unknown, although there is a waterfall
    by_name = attrgetter("name")
    return replace(
        empty,
        executed=executed,
        devices=whole.peaks,
        waterfall=fall,
        lacks=lacks,
        kernels=_largest(sorted(whole.kernel_rows, key=by_name), "sum_ns"),
        ops=_largest(sorted(whole.op_rows, key=by_name), "measured.time_ns"),
        roofs=whole.roofs,
    )


def _largest(rows: Iterable[T], figure: str) -> tuple[T, ...]:
    return tuple(sorted(rows, key=attrgetter(figure), reverse=True))


class _SummedWork(Struct, frozen=True, dict=True):
    """The work of the devices in summaries: of all steps together, and of each long one.

    `whole` is the sum of the `parts`. These are loaded again when needed: all may not fit memory.
    """

    parts: Sequence[HeldSummary]
    whole: RankSummary
    trace: Trace

    @cached_property
    def windows(self) -> Windows:
        return {device.device: device.windows for device in self.whole.reports}

    def kernels(self, devices: Sequence[int], steps: Sequence[int | None]) -> KernelSums:
        sums: RunningSum[KernelSums] = RunningSum(KernelSums.joined)
        for part in self.parts:
            summary = part.load()
            sums.add(KernelSums.added([summary.work[i] for i in self._choices(summary, steps)]))
        row_of_device = {device: row for row, device in enumerate(self.whole.records.devices)}
        return sums.total().of([row_of_device[device] for device in devices])

    def idle(
        self, devices: Sequence[int], steps: Sequence[int | None]
    ) -> list[tuple[Culprit, ...]]:
        """Return the culprits of the idle time of some devices in some steps, by device."""
        by_device = []
        for device in devices:
            part = [part for part in self.parts if part.devices_before <= device][-1]
            summary = part.load()
            row = summary.records.devices.index(device - part.devices_before)
            several = [summary.idle_of[i][row] for i in self._choices(summary, steps)]
            by_device.append(
                joined_culprits([IdleCulprits(culprits, 0) for culprits in several]).culprits
            )
        return by_device

    def _choices(self, summary: RankSummary, steps: Sequence[int | None]) -> list[int]:
        """Return the indices of steps in `work` and `idle_of` of a summary.

        0 stands for all steps; so does the result unless all summaries have each of the steps.
        """
        if not steps or not set(steps) <= set(self.whole.long_steps):
            return [0]
        long = dict.fromkeys(step for step in steps if step is not None)
        return [1 + summary.long_steps.index(step) for step in long]


def _rank_report(whole: RankSummary, work: _SummedWork, links: Links) -> RankReport:
    """Return how the ranks compare, NO_RANKS without devices."""
    spans = [device.whole for device in whole.reports]
    if not spans:
        return NO_RANKS
    records = grouped(whole.records, work.trace)
    overlap = max(span.start_ns for span in spans) <= min(span.end_ns for span in spans)
    # If spans do not overlap, their clocks are unrelated.
    is_aligned = overlap and not is_said(work.trace, "clocks-not-aligned")
    return report_of(records, work, is_aligned=is_aligned, links=links)
