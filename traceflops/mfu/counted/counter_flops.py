"""Work of kernels whose operator's shapes do not tell it: from grids, counters or a paired run.

Reading counters makes kernels run one at a time, so counters and times are recorded in separate
runs. Launches of the timed run get the FLOPs and bytes of the same launches in the other run (see
`joins.match`); times are always those of the timed run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.attribution.op_kernels import Attribution
from traceflops.devices.counter_formulas import (
    MATRIX,
    Family,
    family_by_counters,
    family_of,
    formulas_of,
)
from traceflops.devices.device_facts import shown
from traceflops.devices.peaks import find
from traceflops.errors import UsageError
from traceflops.mfu.budget import DevicePeaks, device_peaks
from traceflops.mfu.counted import counter_notes, counter_work, joins
from traceflops.mfu.counted.joins import CrossCheck, Join, Matched, MeasuredWork
from traceflops.mfu.counted.kernel_speeds import KernelSpeed, kernel_speeds
from traceflops.mfu.counted.launches import (
    ORIGINS,
    UNKNOWN,
    Launches,
    LaunchWork,
    Origin,
    exact_flops,
    launches_of,
)
from traceflops.mfu.counted.same_launches import counted_launches, joined
from traceflops.mfu.counted.serving_kernels import of_passes, own_work, paired_work, serving_notes
from traceflops.mfu.traced.coverage import HOW, chosen_activities, compute_kernels
from traceflops.table.columns import ABSENT, BoolArray, IntArray, names, numbers
from traceflops.table.grouping import distinct, exact_sum, first_rows
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace, note_of
from traceflops.units import several
from traceflops.windows.prepared import Prepared

FOUND_PAIR: Final = Note(
    "assumed",
    "found",
    "The capture of the graphs was found beside the trace; --pair takes another.",
)
"""The note of a pair that the user did not name: such a pair may be useless without an error."""
_AGREE: Final = Fraction(2, 100)
"""FLOPs by counters and by shapes agree if they are at most this share apart."""
_COLUMNS: Final = ("kind", "size", "vector", "how", "origin")
"""The columns of MeasuredWork that have a row per activity."""


class Source(Struct, frozen=True):
    """A recording that tells the work of launches; `file` is its name, None for the timed run.

    `counters` and `counted` are its counters, if any; `speeds` compares kernels with the limits of
    their device. `is_own` is whether the recording is the timed run itself. `captured` has, per
    activity of the timed run, the row of the captured launch that a graph replays, or -1.
    """

    work: LaunchWork
    counters: counter_work.CounterWork | None
    counted: tuple[counter_work.CountedKernel, ...]
    file: str | None
    is_own: bool
    captured: IntArray | None = None
    speeds: tuple[KernelSpeed, ...] = ()
    notes: tuple[Note, ...] = ()


Answers = Sequence[tuple[Source, Matched]]
"""Each source, with the work that it tells for the launches of the timed run."""


def measured_work(
    prepared: Prepared,
    attribution: Attribution,
    devices: Sequence[DevicePeaks],
    pair: Prepared | None,
    device: str | None,
) -> MeasuredWork | None:
    """Return the work of kernels by launch grids, counters or a paired run; None if unknown.

    `device` is the user's id of the table of devices, for counters without a known device. Raises
    UsageError for a paired run that tells nothing.
    """
    trace, launches = prepared.trace, launches_of(prepared)
    # A trace without devices has only counters: then the user's device tells the architecture.
    given = find(device.strip().lower()) if device is not None and not devices else None
    recorded = [counter_notes.architecture_of(trace, peaks) for peaks in devices]
    recorded = [given.arch, *recorded] if given is not None else recorded
    architectures = tuple(dict.fromkeys(arch for arch in recorded if arch))
    answers: list[tuple[Source, Matched]] = []
    for source in _sources(prepared, attribution, architectures, pair):
        work = source.work
        if work.origin == "shapes":  # of the timed run's own launches: there is nothing to join
            how = np.full_like(work.kind, UNKNOWN)
            matched = Matched(how, work.kind, work.kinds, work.size, work.vector)
        else:
            same = _same_launch(prepared, launches, source)
            matched = joins.match(launches, work, same, is_own=source.is_own)
        answers.append((source, of_passes(prepared, launches, matched)))
    if not answers:
        return None
    # The shapes of an op tell the work of its launches: drop other answers.
    is_owned = attribution.owner >= 0
    columns = _first_answers(launches, answers, trace.activities.num_rows)
    for column in columns.values():
        column[is_owned] = UNKNOWN
    all_joins = _joins(prepared, launches, answers, is_owned)
    check = _cross_checked(prepared, attribution, launches, answers)
    notes = [*_notes(trace, answers, all_joins, check)]
    if pair is not None:
        notes += counter_notes.pair_notes(trace, devices, pair.trace)
    counters = [source.counters for source, _ in answers if source.counters is not None]
    measured = MeasuredWork(
        **columns,
        kinds=tuple(kind for _, matched in answers for kind in matched.kinds),
        joins=tuple(all_joins),
        counted=tuple(row for source, _ in answers for row in source.counted),
        speeds=tuple(row for source, _ in answers for row in source.speeds),
        families=tuple(dict.fromkeys(family for c in counters for family in c.families)),
        missing=tuple(dict.fromkeys(name for c in counters for name in _missing_counters(c))),
        check=check,
        bandwidth=given.bandwidth if given is not None else _common_bandwidth(trace, devices),
        notes=tuple(notes),
    )
    return counter_notes.without_impossible_bytes(prepared, devices, measured)


def _common_bandwidth(trace: Trace, devices: Sequence[DevicePeaks]) -> int | None:
    """Return the memory bandwidth of all devices, None if they differ; of counted ones if none."""
    if not devices:
        counted = distinct(numbers(trace.kernel_counters["device"]))
        devices = device_peaks(trace, counted[counted >= 0].tolist())
    bandwidths = {peaks.bandwidth for peaks in devices}
    return bandwidths.pop() if len(bandwidths) == 1 else None


def _joins(
    prepared: Prepared, launches: Launches, answers: Answers, is_owned: BoolArray
) -> list[Join]:
    """Return how the chosen compute kernels were joined with each further recording.

    A join with counters has all of these kernels, a join with a paired trace only those that no op
    of this trace owns (`is_owned`, by activity): an op's own shapes tell more. What this trace
    tells itself (origin "shapes") needs no join.
    """
    rows = launches.row
    is_wanted = (chosen_activities(prepared) & compute_kernels(prepared))[rows]
    dur_ns = numbers(prepared.trace.activities["dur_ns"])[rows]
    all_joins = []
    for source, matched in answers:
        origin = source.work.origin
        if origin == "shapes":
            continue
        is_asked = is_wanted & ~is_owned[rows] if origin == "pair" else is_wanted
        parts = []
        for number, how in enumerate(HOW):
            joined_ns = dur_ns[is_asked & (matched.how == number)]
            if len(joined_ns):
                parts.append(joins.JoinedPart(how, len(joined_ns), exact_sum(joined_ns)))
        all_joins.append(Join(origin, source.file, tuple(parts), matched.found))
    return all_joins


def _sources(
    prepared: Prepared, attribution: Attribution, timed: tuple[str, ...], pair: Prepared | None
) -> Iterator[Source]:
    """Yield the sources of work, shapes before counters. Raises UsageError for a useless pair."""
    own = own_work(prepared, attribution)
    if own is not None:
        yield Source(own, counters=None, counted=(), file=None, is_own=True)
    counters = [_counted(prepared.trace, timed, None)]
    if pair is not None:
        files = [file.name for file in pair.trace.source.files]
        name = files[0] if len(files) == 1 else f"{len(files)} files"
        shapes = paired_work(pair)
        counters.append(_counted(pair.trace, timed, name))
        is_guess = FOUND_PAIR.code in {note.code for note in pair.trace.notes}
        if shapes is not None:
            # If this trace replays graphs, the pair recorded their capture.
            captured = prepared.replays.captured if prepared.replays is not None else None
            yield Source(shapes, None, counted=(), file=name, is_own=False, captured=captured)
        elif counters[-1] is None and not is_guess:  # only a pair that the user gave is an error
            raise _useless_pair(pair.trace, counter_notes.first_few(files, "more file"))
    yield from filter(None, counters)


def _useless_pair(pair: Trace, files: str) -> UsageError:
    """Return the error for a pair that tells nothing; `files` names its files."""
    with_shapes = pair.ops.num_rows - pair.ops["input_dims"].null_count
    calls = pair.calls.num_rows
    if with_shapes and calls and pair.calls["kernel"].null_count == calls:
        operators = several(with_shapes, "operator")
        no_kernels = f"but no kernels, and its launch calls name none: {files}"
        problem = f"the --pair recording has {operators} with shapes, {no_kernels}"
        hint = (
            "record it with GPU activity; HIP launch calls name kernels, CUDA launch calls do not"
        )
        return UsageError(problem, hint)
    problem = f"the --pair recording has neither operator shapes nor kernel counters: {files}"
    hint = "use a PyTorch trace with shapes, or counters (rocprofv3 --pmc, ncu), or swap the two"
    return UsageError(problem, hint)


def _first_answers(launches: Launches, answers: Answers, activities: int) -> dict[str, IntArray]:
    """Return the columns of MeasuredWork, by name: per activity, the first known answer.

    `how` is how the source of `kind` was joined; if none knows `kind`, it is the reason that comes
    first in HOW, the most specific. `origin` is the source of `kind`, else of any other column.
    """
    column = {name: np.full(launches.count, UNKNOWN, dtype=np.int64) for name in _COLUMNS}
    kinds_before = 0
    for source, matched in answers:
        lacks_kind = column["kind"] < 0
        is_new = lacks_kind & (matched.kind >= 0)
        column["kind"][is_new] = matched.kind[is_new] + kinds_before
        kinds_before += len(matched.kinds)
        is_more_specific = (column["how"] < 0) | (matched.how < column["how"])
        takes_how = is_new | (lacks_kind & is_more_specific)
        column["how"][takes_how] = matched.how[takes_how]
        is_known = (matched.kind >= 0) | (matched.size >= 0) | (matched.vector >= 0)
        is_first = is_new | (is_known & (column["origin"] < 0))
        column["origin"][is_first] = ORIGINS.index(source.work.origin)
        for name, values in (("size", matched.size), ("vector", matched.vector)):
            column[name] = np.where(column[name] >= 0, column[name], values)
    by_activity = {name: np.full(activities, UNKNOWN, dtype=np.int64) for name in _COLUMNS}
    for name, values in column.items():
        by_activity[name][launches.row] = values
    return by_activity


def _same_launch(prepared: Prepared, launches: Launches, source: Source) -> IntArray | None:
    """Return, per launch, the row of the source that records the same launch, or -1.

    1. If graphs replay the source, it is the captured launch that the graph replays.
    2. If the source is the timed run's own counters, it is the counted launch of the process with
       equal correlation and name. A correlation that is not unique in both joins nothing.
    3. Else the source is another run: None.
    """
    if source.captured is not None:
        # captured rows [4 6] -> launch of activity 0, 1, ...: [-1 -1 -1 -1 0 -1 1]
        captured = source.work.launches.row
        launch_of_activity = first_rows(captured, int(captured.max()) + 1)
        return taken(launch_of_activity, source.captured[launches.row])
    if not source.is_own or source.counters is None:
        return None
    counted = source.counters.counted
    table, activities = prepared.trace.kernel_counters, prepared.trace.activities
    processes = (launches.process, numbers(table["process"])[counted.launches.row])
    correlation = numbers(activities["correlation"], ABSENT)[launches.row]
    # A key is a process and a correlation.
    # keys timed [0 1 1], counted [1 0] -> only key 0 is unique in both: same launch [1 -1 -1]
    keys = joined(processes, (correlation, counted.correlation))
    has_one = np.bincount(keys.ours, minlength=keys.count) == 1
    has_one &= np.bincount(keys.theirs, minlength=keys.count) == 1
    same = first_rows(keys.theirs, keys.count)[keys.ours]
    same[~has_one[keys.ours] | (correlation == ABSENT)] = -1
    # The names of the counted launches as codes of the timed ones, -2 if these lack the name.
    code_of = {label: code for code, label in enumerate(launches.names)}
    name = np.array([code_of.get(label, -2) for label in counted.launches.names], dtype=np.int64)
    return np.where(taken(name[counted.launches.name], same, -2) == launches.name, same, -1)


def _cross_checked(
    prepared: Prepared, attribution: Attribution, launches: Launches, answers: Answers
) -> CrossCheck | None:
    """Return how FLOPs by counters and by shapes compare; None if one of them is missing.

    The shapes are those of executed ops of the trace; if it has none, those of the pair.
    """

    def flops_by(origin: Origin) -> IntArray | None:
        """Return the exact FLOPs of each activity by one origin, -1 if unknown; None without it."""
        of_origin = [matched for source, matched in answers if source.work.origin == origin]
        flops = np.full(prepared.trace.activities.num_rows, UNKNOWN, dtype=np.int64)
        for matched in reversed(of_origin):  # the first answer is written last, and stays
            values = exact_flops(matched.kinds, matched.kind)
            flops[launches.row] = np.where(values >= 0, values, flops[launches.row])
        return flops if of_origin else None

    by_counters, by_pair = flops_by("counters"), flops_by("pair")
    if by_counters is None:
        return None
    if len(attribution.executed):
        most, least = joins.by_own_shapes(prepared, attribution, by_counters)
    elif by_pair is not None:
        most = least = by_pair
    else:
        return None
    return joins.cross_check(prepared, (most, least), by_counters)


def _notes(
    trace: Trace, answers: Answers, all_joins: Sequence[Join], check: CrossCheck | None
) -> Iterator[Note]:
    """Yield notes on serving kernels, on each join and its counters, and on bytes."""
    for source, matched in answers:
        if source.work.origin == "shapes":
            yield from serving_notes(source.work, matched.kind)
        elif source.work.origin == "pair":
            yield from serving_notes(source.work, None)
    same_run = counter_notes.SAME_RUN
    is_noted = any(note.code == same_run for note in trace.notes)  # by the reader
    # Only other recordings and counters have a join: see `_joins`.
    joined_sources = [source for source, _ in answers if source.work.origin != "shapes"]
    of_bytes: set[Family | None] = set()
    for source, join in zip(joined_sources, all_joins, strict=True):
        yield from counter_notes.join_notes(join, source.work.launches.count)
        if join.count("dispatch") and not is_noted:
            yield note_of("assumed", same_run)
        if (counters := source.counters) is not None:
            yield from counter_notes.counter_notes(counters)
            if (source.work.size >= 0).any():
                of_bytes |= {*filter(None, counters.families)} or {None}
        yield from source.notes
    # ncu counts bytes at the memory itself, AMD's profilers at the fabric before it.
    if not all(one is not None and one.counts_memory for one in of_bytes):
        yield note_of("assumed", "fabric-bytes")
    if any(one is not None and one.tool == "ncu" for one in of_bytes):
        yield note_of("assumed", "memory-bytes")
    if check is not None and abs(check.difference) > _AGREE:
        code = f"counters-differ-from-shapes{'' if check.difference > 0 else '.less'}"
        apart, kernel = abs(check.difference), shown(check.kernel)
        yield note_of("assumed", code, count=check.launches, apart=apart, kernel=kernel)


def _counted(trace: Trace, timed: tuple[str, ...], file: str | None) -> Source | None:
    """Return the source made of the counters of a trace, None if it has none.

    `timed` are the architectures of the timed run, `file` the name of another recording. The family
    of a launch, whose formulas read its counters, is the first of these:

    1. That of its device's architecture, if the trace states it.
    2. That of the trace, if its devices have one architecture ("gfx942" twice is one).
    3. That of the timed run, if the trace names none and the timed run has one.
    4. The only family whose counters have these names, or count at all.
    """
    counted = counted_launches(trace)
    if counted is None:
        return None
    architectures = trace.devices["architecture"].to_pylist()
    known = tuple(dict.fromkeys(arch for arch in architectures if arch)) or timed
    default = family_of(known[0]) if len(known) == 1 else None
    if default is None:
        above_0 = [name for name, value in counted.values.items() if (value > 0).any()]
        default = family_by_counters(names(trace.kernel_counters["counter"]), above_0)
    # Per device; the last element is for launches without a device (-1).
    device_families = [*(family_of(arch) if arch else default for arch in architectures), default]
    device_units = [*(units or 0 for units in trace.devices["sm_count"].to_pylist()), 0]
    families = tuple(dict.fromkeys(device_families))
    indices = [families.index(one) for one in device_families]
    # Per launch: the index of its family, and the number of SMs or CUs.
    family = np.array(indices, dtype=np.int64)[counted.device]
    units = np.array(device_units, dtype=np.int64)[counted.device]
    work = counter_work.counter_work(counted, families, family)
    rules = counter_notes.rules_by_launch(trace, counted)
    speeds, notes = kernel_speeds(counted, families, family, units, rules)
    kernels, is_own = counter_work.counted_kernels(work, units), file is None
    return Source(work.launch_work(), work, kernels, file, is_own, speeds=speeds, notes=notes)


def _missing_counters(work: counter_work.CounterWork) -> Iterator[str]:
    """Yield the counters that a total of matrix FLOPs needs and that no launch has."""
    read = {name.removeprefix(MATRIX) for name, flops in work.matrix.items() if (flops >= 0).any()}
    for family in filter(None, work.families):
        for dtype in (dtype for dtype in family.matrix if dtype not in read):
            for preferred in formulas_of(f"{MATRIX}{dtype}", family)[:1]:
                yield from preferred.terms
