"""Which files belong to one job, and which job is chosen: figures never add up several jobs.

Files belong to one job unless they contradict each other: by other tools or world sizes, by the
same rank, by ranks in only some of them, or by recordings one after the other. Sums and counters
without a timeline must also share tool, GPU or kernels with a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress, islice, starmap
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices import merging
from traceflops.devices.side_records import MEMORY_SNAPSHOT
from traceflops.errors import UsageError
from traceflops.facts import fact
from traceflops.remedies import family
from traceflops.table.columns import codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Job, Trace, counted_note, note_of
from traceflops.timeline.records import Account
from traceflops.units import several

_RANKS_DIFFER_NS: Final = 3_600 * 10**9
"""Pause between ranks of one job: they may be recorded in turn, or with wrong clocks."""
_TIMED: Final = ("activities", "calls", "ops")
_WHY: Final = ("model", "run", "tool", "world", "unranked", "rank", "time", "unrelated", "memory")
"""Reasons why files belong to several jobs, in the order in which a note names them."""


class JobReport(Struct, frozen=True):
    """One of several jobs that the files belong to: names of its files, its known ranks.

    `chosen` is whether the report is about this job. If it is about none of the jobs, `devices` is
    the number of GPUs that worked, `total` their account, and `verdict` a sentence; else None.
    """

    number: int
    format: str
    files: tuple[str, ...]
    ranks: tuple[int, ...]
    chosen: bool
    devices: int | None = None
    total: Account | None = None
    verdict: str | None = None


def merge_jobs(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all files; `Trace.jobs` has the jobs if there are several."""
    jobs, reasons = split(traces)
    if len(jobs) == 1:
        return _of_one_job(traces)
    numbered = tuple(Job(number, tuple(members)) for number, members in enumerate(jobs, 1))
    trace = merging.merge(traces)
    # Notes on times, clocks and ranks that do not fit together mean nothing for several jobs.
    of_one_job = {"clocks-not-aligned", "files-of-different-times", "rank-clash"}
    of_one_job |= {"rank-unknown", "ranks-missing"}
    notes = (note for note in trace.notes if note.code not in of_one_job)
    why = tuple(fact(f"jobs-apart.{reason}") for reason in _WHY if reason in reasons)
    several_jobs = note_of("assumed", "several-jobs", count=len(jobs), why=why)
    return replace(trace, notes=(several_jobs, *notes), jobs=numbered)


def _of_one_job(traces: Sequence[Trace]) -> Trace:
    """Return the trace of the files of one job, with a note if that is only assumed."""
    trace = merging.merge(traces)
    # Files without a timeline are only added to a job with which they share something.
    timed = [member for member in starmap(_Member, enumerate(traces)) if member.is_timed]
    if len(timed) < 2 or _are_linked(timed):
        return trace
    note = counted_note(
        "assumed",
        "one-job-assumed",
        "Jobs may be mixed: that these {n} files are of one is assumed, not known. If they are "
        "not, give them separately.",
        len(timed),
    )
    return replace(trace, notes=(*trace.notes, replace(note, share=1.0)))  # on all figures


def _are_linked(members: Sequence[_Member]) -> bool:
    """Return whether each file is known to be of one job with another, and so with all."""
    newest, *rest = members
    frontier = [newest]
    while frontier and rest:
        newest = frontier.pop()
        is_known = [newest.is_known_same_job(m) and not newest.may_be_another_run(m) for m in rest]
        frontier += compress(rest, is_known)
        rest = [member for member, known in zip(rest, is_known, strict=True) if not known]
    return not rest


def of_job(trace: Trace, number: int | None) -> Trace:
    """Return the trace of a job, or `trace` if `number` is None. Raises UsageError without it."""
    if number is None or number == trace.job:
        return trace
    count = max(1, len(trace.jobs))
    if number > count:
        problem = f"there is no job {number}: the files belong to {several(count, 'job')}"
        raise UsageError(problem, "traceflops info lists the jobs")
    if not trace.jobs:
        return trace
    job = trace.jobs[number - 1]
    return replace(_of_one_job(job.traces), jobs=trace.jobs, job=job.number)


def of_no_job(trace: Trace) -> Trace:
    """Return a trace of several jobs without their data: only its source and notes."""
    return replace(trace, tables={}, places=(), clocks=(), runs=(), jobs=())


def is_undecided(trace: Trace) -> bool:
    """Return whether a trace is of several jobs, none of which is chosen."""
    return len(trace.jobs) > 1 and trace.job is None


def check_decided(trace: Trace, what: str) -> None:
    """Raise UsageError if a trace is of several jobs; `what` names what needs a single one."""
    if is_undecided(trace):
        problem = f"{what} works on one job, but the files belong to {len(trace.jobs)}"
        raise UsageError(problem, "choose one with --job N; traceflops info lists the jobs")


def split(traces: Sequence[Trace]) -> tuple[list[list[Trace]], set[str]]:
    """Return the traces of each job, and the reasons (of _WHY) why there are several jobs."""
    jobs: list[_Members] = []
    reasons: set[str] = set()
    members = starmap(_Member, enumerate(traces))
    for member in sorted(members, key=lambda member: member.order):
        misfits = [member.misfit(job) for job in jobs]
        fitting = [job for job, why in zip(jobs, misfits, strict=True) if why is None]
        if not fitting:
            fitting = [_Members()]
            jobs += fitting
            reasons |= {why for why in misfits if why is not None}
        if len(fitting) > 1:  # choose the job with the file that has most in common
            fitting.sort(key=lambda job: max(map(member.closeness, job.all)), reverse=True)
        fitting[0].add(member)
    jobs.sort(key=lambda job: min(member.name for member in job.all))
    in_order = (sorted(job.all, key=lambda member: member.number) for job in jobs)
    return [[member.trace for member in job] for job in in_order], reasons


class _Members:
    """The members of one job; also by claims and by rank, since there may be thousands."""

    def __init__(self) -> None:
        self.all: list[_Member] = []
        self._by_rank: defaultdict[object, list[_Member]] = defaultdict(list)
        self._by_claims: defaultdict[object, list[_Member]] = defaultdict(list)

    def add(self, member: _Member) -> None:
        """Add a member to this job."""
        self.all.append(member)
        # What `contradiction` compares besides ranks and times; equal in most files of a job.
        claims = (member.is_timed, member.is_apart, bool(member.ranks), member.world)
        self._by_claims[*claims, member.trace.source.format, member.models].append(member)
        for rank in member.ranks:
            self._by_rank[rank].append(member)

    def comparable(self, member: _Member) -> Iterator[_Member]:
        """Yield members that may contradict one: all of its ranks, and one per distinct claims."""
        for equal in self._by_claims.values():
            yield from islice((m for m in equal if not m.devices & member.devices), 1)
        for rank in member.ranks:
            yield from self._by_rank.get(rank, ())


class _Member:
    """A trace, and comparisons with other traces that tell whether they belong to one job."""

    def __init__(self, number: int, trace: Trace) -> None:
        """Read what tells jobs apart; `number` is the index of the trace among those given.

        `is_timed` is whether it has a timeline, `is_apart` whether its file has several runs.
        """
        self.number, self.trace = number, trace
        self.name = min(file.name for file in trace.source.files)
        self.is_timed = bool(trace.activities.num_rows or trace.ops.num_rows)
        self.is_apart = any(note.code in ("several-profiles", "runs-apart") for note in trace.notes)
        self.devices = frozenset(filter(None, merging.identities(trace)))
        self.models = merging.models_of(trace)
        processes = trace.processes
        self.ranks = frozenset(processes["rank"].to_pylist()) - {None}
        self.world = frozenset(processes["world_size"].to_pylist()) - {None}
        self.hosts = frozenset(processes["host"].to_pylist()) - {None}

    @cached_property
    def span_ns(self) -> tuple[int, int] | None:
        """The start and the end of the records in ns since 1970; None if unknown."""
        origin = self.trace.source.origin_unix_ns
        tables = [table for name in _TIMED if (table := self.trace.table(name)).num_rows]
        if origin is None or not tables:
            return None
        starts = [numbers(table["start_ns"]) for table in tables]
        lengths = [np.maximum(numbers(table["dur_ns"]), 0) for table in tables]  # < 0: unknown
        ends = [int((s + d).max()) for s, d in zip(starts, lengths, strict=True)]
        return origin + min(int(start.min()) for start in starts), origin + max(ends)

    @cached_property
    def kernels(self) -> list[str]:
        """The names of the kernels in its tables."""
        used = set(names(self.trace.kernel_counters["name"]))
        for table in (self.trace.activities, self.trace.totals):
            labels, is_kernel = names(table["name"]), is_one_of(table["kind"], "kernel")
            code = distinct(codes(table["name"])[is_kernel])
            used |= {labels[number] for number in code[code >= 0].tolist()}  # -1: without a name
        return sorted(used)

    @cached_property
    def order(self) -> tuple[bool, bool, int, str]:
        """The sort key: traces with a timeline, with kernels, others; each by start, then name."""
        begin = self.span_ns[0] if self.span_ns else 0
        return not self.is_timed, not (self.is_timed or self.kernels), begin, self.name

    def misfit(self, job: _Members) -> str | None:
        """Return why the trace does not belong to a job, None if it may."""
        for other in job.comparable(self):
            if why := self.contradiction(other):
                return why
        if all(map(self.is_before_or_after, job.all)):
            return "time"
        # A trace without a timeline must have something in common with a file of the job.
        own_family = family(self.trace.source.format)
        for other in job.all:
            if (self.is_timed and other.is_timed) or self.devices & other.devices:
                return None
            is_of_family = own_family == family(other.trace.source.format)
            if is_of_family or self.has_kernels_of(other):
                return None
        formats = {member.trace.source.format for member in (self, *job.all)}
        return "memory" if MEMORY_SNAPSHOT in formats else "unrelated"

    def is_before_or_after(self, other: _Member) -> bool:
        """Return whether it was recorded too long before or after another to be of its job."""
        pause = self.pause_ns(other)
        # Runs on one GPU belong to one job; --run chooses one of them.
        if pause is None or self.devices & other.devices:
            return False
        if not (self.is_timed and other.is_timed):
            return False
        # Different ranks of one world size.
        if max(self.world & other.world, default=1) > 1 and not self.ranks & other.ranks:
            return pause > _RANKS_DIFFER_NS
        # Ranks and machines may each have their own clock.
        has_own_clock = (self.ranks and other.ranks) or self.is_elsewhere(other)
        return pause > (merging.CLOCKS_DIFFER_NS if has_own_clock else 0)

    def has_kernels_of(self, other: _Member) -> bool:
        """Return whether most kernels of the trace with fewer kernels are also in the other."""
        from traceflops.categories.kernel_names import same_kernels

        # Codes are equal for the same kernel, also if tools spell it differently.
        own, others = (set(code.tolist()) for code in same_kernels(self.kernels, other.kernels))
        return 2 * len(own & others) > min(len(own), len(others))

    def contradiction(self, other: _Member) -> str | None:
        """Return why two traces cannot be of one job, whatever their times; None if they can."""
        if self.devices & other.devices:
            return None  # runs one after the other on one GPU: --run chooses one
        if not (self.is_timed and other.is_timed):
            return "model" if merging.are_of_other_models(self.models, other.models) else None
        both_ranked = bool(self.ranks and other.ranks)
        # One has a rank and a world size, the other has no rank.
        only_one_ranked = not both_ranked and any(m.ranks and m.world for m in (self, other))
        # Machines that work at the same time may each number their ranks from 0.
        on_two_hosts = self.is_elsewhere(other) and self.pause_ns(other) == 0
        # A file of several runs needs ranks to be of one job with another file.
        reasons = {
            "run": (self.is_apart or other.is_apart) and not both_ranked,
            "tool": self.trace.source.format != other.trace.source.format,
            "world": bool(self.world and other.world and not self.world & other.world),
            "unranked": only_one_ranked,
            "rank": bool(self.ranks & other.ranks) and not on_two_hosts,
        }
        return next((why for why, holds in reasons.items() if holds), None)

    def is_elsewhere(self, other: _Member) -> bool:
        """Return whether both traces name machines, and no common one."""
        return bool(self.hosts and other.hosts and not self.hosts & other.hosts)

    def pause_ns(self, other: _Member) -> int | None:
        """Return the time between two recordings, 0 if they overlap, None if unknown."""
        if self.span_ns is None or other.span_ns is None:
            return None
        (begin, end), (other_begin, other_end) = self.span_ns, other.span_ns
        return max(0, max(begin, other_begin) - min(end, other_end))

    def closeness(self, other: _Member) -> tuple[bool, ...]:
        """Return the evidence that two traces are of one job as flags, the strongest first."""
        return (
            bool(self.devices & other.devices),
            self.name.rpartition("/")[0] == other.name.rpartition("/")[0],
            self.is_known_same_job(other),
            not self.is_timed and self.has_kernels_of(other),
        )

    def may_be_another_run(self, other: _Member) -> bool:
        """Return whether two traces without ranks have the name that the program gives each run."""
        own, others = (PurePath(member.name) for member in (self, other))
        return own.name == others.name and own != others and not self.ranks | other.ranks

    def is_known_same_job(self, other: _Member) -> bool:
        """Return whether two traces share a GPU, a clock or time, or both have ranks."""
        clock = self.trace.source.clock
        return (
            bool(self.devices & other.devices or (self.ranks and other.ranks))
            or (clock is not None and clock == other.trace.source.clock)
            or self.pause_ns(other) == 0
        )
