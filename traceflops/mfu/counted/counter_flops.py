"""Work of kernels whose operator's shapes do not tell it: from launches, counters or a paired run.

Counters of a run and its times are two recordings, because reading counters makes kernels run one
at a time. So the launches of the timed run get FLOPs and bytes from those of another run of the
same program (see `joins.match`); times are always those of the timed run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traceflops.attribution.op_kernels import Attribution
from traceflops.devices.counter_formulas import MATRIX, counters_for, family_by_counters, family_of
from traceflops.devices.peaks import find
from traceflops.errors import UsageError
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.counted.counted_launches import counted_launches
from traceflops.mfu.counted.counter_notes import (
    FABRIC,
    MEMORY,
    SAME_RUN,
    architecture_of,
    check_notes,
    counter_notes,
    first_few,
    join_notes,
    pair_notes,
    without_impossible_bytes,
)
from traceflops.mfu.counted.counter_work import (
    CountedKernel,
    CounterWork,
    counted_kernels,
    counter_work,
)
from traceflops.mfu.counted.joins import (
    CrossCheck,
    Join,
    Matched,
    MeasuredWork,
    by_own_shapes,
    cross_check,
    join_of,
    match,
)
from traceflops.mfu.counted.kernel_speeds import KernelSpeed, kernel_speeds, rules_by_launch
from traceflops.mfu.counted.launches import (
    ORIGINS,
    UNKNOWN,
    LaunchWork,
    Origin,
    exact_flops,
    launches_of,
)
from traceflops.mfu.counted.same_launches import joined
from traceflops.mfu.counted.serving_kernels import of_passes, own_work, paired_work, serving_notes
from traceflops.mfu.traced.coverage import chosen_activities, compute_kernels
from traceflops.table.columns import ABSENT, IntArray, names, numbers
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace
from traceflops.units import several
from traceflops.windows.prepared import Prepared


def measured_work(
    prepared: Prepared,
    attribution: Attribution,
    devices: Sequence[DevicePeaks],
    pair: Prepared | None = None,
    device: str | None = None,
) -> MeasuredWork | None:
    """Return what else tells of the kernels of a trace: launches, counters or a paired run.

    `device` is an id of the device table that the user gave, for counters of which nothing tells
    the device. Raises UsageError for a paired run that tells nothing.
    """
    known = tuple(dict.fromkeys(architectures(prepared.trace, devices, device)))
    own = own_work(prepared, attribution)
    of_launches = () if own is None else (Source(own, None, (), None, is_own=True),)
    sources = (*of_launches, *work_sources(prepared, known, pair))
    if not sources:
        return None
    work = _Joiner(prepared, attribution, sources).work()
    if pair is not None:
        work = replace(work, notes=(*work.notes, *pair_notes(prepared, devices, pair)))
    return without_impossible_bytes(prepared, devices, work)


class _Joiner:
    """Puts together what several recordings tell of the launches of one."""

    def __init__(
        self, prepared: Prepared, attribution: Attribution, sources: tuple[Source, ...]
    ) -> None:
        self.prepared, self.attribution, self.sources = prepared, attribution, sources
        self.launches = launches_of(prepared)
        self.matched = [
            of_passes(prepared, self.launches, self._matched(source)) for source in sources
        ]

    def work(self) -> MeasuredWork:
        """Return what all of them tell, of each launch the first that tells something."""
        rows, count = self.launches.row, self.launches.count
        column_names = ("kind", "size", "vector", "how", "origin")
        by_launch = {name: np.full(count, -1, dtype=np.int64) for name in column_names}
        before = 0
        for source, matched in zip(self.sources, self.matched, strict=True):
            open_rows = by_launch["kind"] < 0
            new = open_rows & (matched.kind >= 0)
            by_launch["kind"][new] = matched.kind[new] + before
            before += len(matched.kinds)
            # Of several reasons why nothing is known the first in HOW says most.
            better = new | (open_rows & ((by_launch["how"] < 0) | (matched.how < by_launch["how"])))
            by_launch["how"][better] = matched.how[better]
            is_known = (matched.kind >= 0) | (matched.size >= 0) | (matched.vector >= 0)
            first = new | (is_known & (by_launch["origin"] < 0))
            by_launch["origin"][first] = ORIGINS.index(source.work.origin)
            for name, values in (("size", matched.size), ("vector", matched.vector)):
                by_launch[name] = np.where(by_launch[name] >= 0, by_launch[name], values)
        columns = {
            name: np.full(self.prepared.trace.activities.num_rows, -1, dtype=np.int64)
            for name in column_names
        }
        for name, values in by_launch.items():
            columns[name][rows] = values
        owned = self.attribution.owner >= 0  # an op's shapes tell what these did
        for column in columns.values():
            column[owned] = -1
        rows = self.launches.row
        wanted = (chosen_activities(self.prepared) & compute_kernels(self.prepared))[rows]
        dur = numbers(self.prepared.trace.activities["dur_ns"])[rows]
        joins = []
        for source, matched in zip(self.sources, self.matched, strict=True):
            if source.work.origin != "shapes":
                asked = wanted & ~owned[rows] if source.work.origin == "pair" else wanted
                joins.append(join_of(source.work.origin, source.file, matched, asked, dur))
        check = self._check()
        counters = [source.counters for source in self.sources if source.counters is not None]
        missing = (lack for counter in counters for lack in missing_counters(counter))
        return MeasuredWork(
            **columns,
            kinds=tuple(kind for matched in self.matched for kind in matched.kinds),
            joins=tuple(joins),
            counted=tuple(row for source in self.sources for row in source.counted),
            speeds=tuple(row for source in self.sources for row in source.speeds),
            families=tuple(dict.fromkeys(f for counter in counters for f in counter.families)),
            missing=tuple(dict.fromkeys(missing)),
            check=check,
            notes=tuple(self._notes(joins, check)),
        )

    def _matched(self, source: Source) -> Matched:
        """Return what each launch did; of its own operators' shapes no other launch tells it."""
        work = source.work
        if work.origin != "shapes":
            return match(self.launches, work, self._same(source), is_own=source.is_own)
        return Matched(np.full_like(work.kind, -1), work.kind, work.kinds, work.size, work.vector)

    def _same(self, source: Source) -> IntArray | None:
        """Return, per launch, the one there that is the same, None for another run.

        That is its capture, or has its correlation, as no other launch of the process, and its
        name.
        """
        if source.captured is not None:
            captured = source.captured[self.launches.row]
            rows = source.work.launches.row
            place = np.full(int(rows.max()) + 1, -1, dtype=np.int64)
            place[rows] = np.arange(len(rows))
            return taken(place, captured)
        if not source.is_own or source.counters is None:
            return None
        counted, target = source.counters.counted, self.launches
        table = self.prepared.trace.kernel_counters
        processes = (target.process, numbers(table["process"])[counted.launches.row])
        correlation = numbers(self.prepared.trace.activities["correlation"], ABSENT)[target.row]
        label = {name: at for at, name in enumerate(target.names)}
        name = np.array([label.get(known, -2) for known in counted.launches.names], dtype=np.int64)
        pair = joined(processes, (correlation, counted.correlation))
        sides = (pair.ours, pair.theirs)
        alone = np.logical_and(*(np.bincount(side, minlength=pair.count) == 1 for side in sides))
        row = np.full(pair.count, -1, dtype=np.int64)
        row[pair.theirs] = np.arange(len(pair.theirs))
        same = np.where(alone[pair.ours] & (correlation != ABSENT), row[pair.ours], -1)
        return np.where(taken(name[counted.launches.name], same, -2) == target.name, same, -1)

    def _check(self) -> CrossCheck | None:
        """Return how counters compare with shapes: of the trace itself, else of the paired one."""
        by_counters = self._flops("counters")
        if by_counters is None:
            return None
        if len(self.attribution.executed):
            shapes = by_own_shapes(self.prepared, self.attribution, by_counters)
        elif (paired := self._flops("pair")) is not None:
            shapes = (paired, paired)
        else:
            return None
        return cross_check(self.prepared, shapes, by_counters)

    def _flops(self, origin: Origin) -> IntArray | None:
        """Return the FLOPs of each activity by one origin where they are exact, else -1."""
        matched = zip(self.sources, self.matched, strict=True)
        by_origin = [each for source, each in matched if source.work.origin == origin]
        flops = np.full(self.prepared.trace.activities.num_rows, UNKNOWN, dtype=np.int64)
        for each in reversed(by_origin):
            values, rows = exact_flops(each.kinds, each.kind), self.launches.row
            flops[rows] = np.where(values >= 0, values, flops[rows])
        return flops if by_origin else None

    def _notes(self, joins: Sequence[Join], check: CrossCheck | None) -> Iterator[Note]:
        """Yield what the kinds rest on, then what each join and its counters lack, then bytes."""
        for source, matched in zip(self.sources, self.matched, strict=True):
            if source.work.origin != "counters":
                own = source.work.origin == "shapes"
                yield from serving_notes(source.work, matched.kind if own else None)
        is_noted = any(note.code == SAME_RUN.code for note in self.prepared.trace.notes)
        others = (source for source in self.sources if source.work.origin != "shapes")
        tools, with_bytes = set(), False
        for source, join in zip(others, joins, strict=True):
            yield from join_notes(join, source.work.launches.count)
            if join.count("dispatch") and not is_noted:
                yield SAME_RUN
            if source.counters is not None:
                yield from counter_notes(source.counters)
                if (source.work.size >= 0).any():
                    with_bytes = True
                    tools |= {f.tool for f in source.counters.families if f is not None}
            yield from source.notes
        if with_bytes and tools != {"ncu"}:
            yield FABRIC
        if "ncu" in tools:
            yield MEMORY
        yield from check_notes(check)


FOUND_PAIR: Final = Note(
    "assumed",
    "found",
    "The capture of the graphs was found beside the trace; --pair takes another.",
)
"""A note of a pair that nobody named: where it tells nothing, there is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """A recording that tells work: what, the counters if that is what it is, and its file.

    `is_own` says that the timed run has them itself, `captured` which of its launches are captured.
    `speeds` are what its counters say of limits, `notes` what is odd about that.
    """

    work: LaunchWork
    counters: CounterWork | None
    counted: tuple[CountedKernel, ...]
    file: str | None
    is_own: bool
    captured: IntArray | None = None
    speeds: tuple[KernelSpeed, ...] = ()
    notes: tuple[Note, ...] = ()


def work_sources(
    prepared: Prepared, known: tuple[str, ...], pair: Prepared | None
) -> Iterator[Source]:
    """Yield the recordings, those that say most first: shapes tell what FLOPs were for."""
    theirs = None
    if pair is not None:
        files = [file.name for file in pair.trace.source.files]
        name = files[0] if len(files) == 1 else f"{len(files)} files"
        shapes, theirs = paired_work(pair), _counted(pair.trace, known, name)
        is_guess = FOUND_PAIR.code in {note.code for note in pair.trace.notes}
        if shapes is None and theirs is None and not is_guess:
            raise _tells_nothing(pair.trace, first_few(files, "more file"))
        if shapes is not None:
            captured = prepared.replays.captured if prepared.replays is not None else None
            yield Source(shapes, None, (), name, is_own=False, captured=captured)
    own = _counted(prepared.trace, known, None)
    yield from (source for source in (own, theirs) if source is not None)


def _tells_nothing(pair: Trace, files: str) -> UsageError:
    """Return why a recording given as a pair is of no use; `files` are the names of its files."""
    shapes = pair.ops.num_rows - pair.ops["input_dims"].null_count
    if shapes and pair.calls.num_rows and pair.calls["kernel"].null_count == pair.calls.num_rows:
        return UsageError(
            f"the --pair recording has {several(shapes, 'operator')} with shapes, but "
            f"no kernels, and its launch calls name none: {files}",
            "record it with GPU activity; HIP launch calls name kernels, CUDA launch calls do not",
        )
    return UsageError(
        f"the --pair recording has neither operator shapes nor kernel counters: {files}",
        "use a PyTorch trace with shapes, or counters (rocprofv3 --pmc, ncu --csv --page raw)",
    )


def architectures(
    trace: Trace, devices: Sequence[DevicePeaks], device: str | None
) -> Iterator[str]:
    """Yield the architectures of the devices; without any, that of the device the user gave."""
    given = find(device.strip().lower()) if device is not None else None
    if not devices and given is not None:
        yield given.arch
    yield from filter(None, (architecture_of(trace, peaks) for peaks in devices))


def _counted(trace: Trace, timed: tuple[str, ...], file: str | None) -> Source | None:
    """Return what the counters of a trace tell, None where it has none.

    Counters of an unknown device are of the only architecture there is, in this run or the timed.
    """
    counted = counted_launches(trace)
    if counted is None:
        return None
    own = trace.devices["architecture"].to_pylist()
    named = tuple(dict.fromkeys(arch for arch in own if arch)) or timed
    alone = family_of(named[0]) if len(named) == 1 else None
    default = alone or family_by_counters(names(trace.kernel_counters["counter"]))
    by_device = [family_of(arch) if arch else default for arch in own]
    families = tuple(dict.fromkeys((*by_device, default)))
    place = np.array([families.index(family) for family in (*by_device, default)], dtype=np.int64)
    family = place[counted.device]  # -1 is the last: the default
    work = counter_work(counted, families, family)
    units = np.array([units_of or 0 for units_of in (*trace.devices["sm_count"].to_pylist(), 0)])
    own_units = units.astype(np.int64)[counted.device]
    rules = rules_by_launch(trace, counted)
    speeds, notes = kernel_speeds(counted, families, family, own_units, rules)
    return Source(
        work.launch_work(),
        work,
        counted_kernels(work, own_units),
        file,
        is_own=file is None,
        speeds=speeds,
        notes=notes,
    )


def missing_counters(work: CounterWork) -> Iterator[str]:
    """Yield the counters that a total of matrix work would need, and that no launch has."""
    read = {name.removeprefix(MATRIX) for name, flops in work.matrix.items() if (flops >= 0).any()}
    for family in work.families:
        if family is not None:
            yield from counters_for(MATRIX, (d for d in family.matrix if d not in read), family)
