"""The recordings that tell work of kernels: counters of the trace itself, and a paired run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.attribution import Attribution, Replays, attribute, replays, types_of_ops
from traceflops.devices import MATRIX, counters_for, family_by_counters, family_of, find
from traceflops.errors import UsageError
from traceflops.mfu.budget import DevicePeaks
from traceflops.mfu.counted.counted_launches import counted_launches
from traceflops.mfu.counted.counter_work import (
    CountedKernel,
    CounterWork,
    counted_kernels,
    counter_work,
)
from traceflops.mfu.counted.launches import (
    UNKNOWN,
    Kind,
    LaunchWork,
    WorkPart,
    launches_of,
)
from traceflops.mfu.counted.serving_kernels import serving_kinds
from traceflops.mfu.traced.executed import parts_of
from traceflops.mfu.traced.known_lengths import with_told_lengths
from traceflops.table import IntArray, Note, Trace, group_rows, names, taken
from traceflops.units import several
from traceflops.windows import Prepared

_MOST_NAMED: Final = 3

FOUND_PAIR: Final = Note(
    "assumed",
    "found",
    "The capture of the graphs was found beside the trace; --pair takes another.",
)
"""A note of a pair that nobody named: where it tells nothing, there is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """A recording that tells work: what, the counters if that is what it is, and its file.

    `is_own` says that the timed run has them itself, `replays` which of its launches are captured.
    """

    work: LaunchWork
    counters: CounterWork | None
    counted: tuple[CountedKernel, ...]
    file: str | None
    is_own: bool
    replays: Replays | None = None


def work_sources(
    prepared: Prepared, known: tuple[str, ...], pair: Prepared | None
) -> Iterator[Source]:
    """Yield the recordings, those that say most first: shapes tell what FLOPs were for."""
    file = _file_of(pair.trace) if pair is not None else None
    shapes = paired_work(pair) if pair is not None else None
    theirs = _counted(pair.trace, known, file) if pair is not None else None
    tells = shapes is not None or theirs is not None
    if pair is not None and not tells and FOUND_PAIR.code not in {n.code for n in pair.trace.notes}:
        raise _tells_nothing(pair.trace)
    if pair is not None and shapes is not None:
        replayed = replays(prepared.linked, pair.linked)
        yield Source(shapes, None, (), file, is_own=False, replays=replayed)
    for source in (_counted(prepared.trace, known, None), theirs):
        if source is not None:
            yield source


def _tells_nothing(pair: Trace) -> UsageError:
    """Return why a paired recording tells no FLOPs."""
    files = first_few([file.name for file in pair.source.files], "more file")
    shapes = pair.ops.num_rows - pair.ops["input_dims"].null_count
    if shapes and pair.calls.num_rows and pair.calls["kernel"].null_count == pair.calls.num_rows:
        return UsageError(
            f"the --pair recording has {several(shapes, 'operator')} with shapes, but "
            f"no kernels, and its launch calls name none: {files}",
            (
                "record it with GPU activity; HIP launch calls name kernels, CUDA launch "
                "calls do not"
            ),
        )
    return UsageError(
        f"the --pair recording has neither operator shapes nor kernel counters: {files}",
        "use a PyTorch trace with shapes, or counters (rocprofv3 --pmc, ncu --csv --page raw)",
    )


def _file_of(trace: Trace) -> str:
    files = trace.source.files
    return files[0].name if len(files) == 1 else f"{len(files)} files"


def first_few(names: Sequence[str], more: str) -> str:
    """Return the first few of some names, and of how many more they are (`more` of what)."""
    beyond = len(names) - _MOST_NAMED
    some = ", ".join(names[:_MOST_NAMED])
    return f"{some} and {several(beyond, more)}" if beyond > 0 else some


def architectures(
    trace: Trace, devices: Sequence[DevicePeaks], device: str | None
) -> Iterator[str]:
    """Yield the architectures of the devices: as they say, else as the table has them."""
    given = find(device.strip().lower()) if device is not None else None
    if not devices and given is not None:
        yield given.arch
    own = trace.devices["architecture"].to_pylist()
    for peaks in devices:
        spec = peaks.match.spec
        architecture = own[peaks.device] or (
            spec.arch if spec is not None and peaks.match.confirmed else None
        )
        if architecture:
            yield architecture


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
    work = counter_work(counted, families, place[counted.device])  # -1 is the last: the default
    units = np.array([units_of or 0 for units_of in (*trace.devices["sm_count"].to_pylist(), 0)])
    return Source(
        work.launch_work(),
        work,
        counted_kernels(work, units.astype(np.int64)[counted.device]),
        file,
        is_own=file is None,
    )


def missing_counters(work: CounterWork) -> Iterator[str]:
    """Yield the counters that a total of matrix work would need, and that no launch has."""
    read = {name.removeprefix(MATRIX) for name, flops in work.matrix.items() if (flops >= 0).any()}
    for family in work.families:
        if family is not None:
            yield from counters_for(MATRIX, (d for d in family.matrix if d not in read), family)


# What each launch of a paired trace did by the shapes of its operators.
#
# The FLOPs of an operator belong to its main kernel; the kernels that help it do none themselves.


def paired_work(pair: Prepared) -> LaunchWork | None:
    """Return what the launches of a trace with shapes did, None where it tells no FLOPs."""
    attribution, _ = with_told_lengths(pair, attribute(pair.linked))
    launches = launches_of(pair)
    if not len(attribution.executed) or not launches.count:
        return None
    op = _main_of(attribution, pair.trace.activities.num_rows)[launches.row]
    helps = (attribution.owner[launches.row] >= 0) & (op < 0)
    of_op, kinds = _kinds(pair, attribution)
    nothing = len(kinds)
    kind = np.where(helps, nothing, taken(of_op, op, UNKNOWN))
    size = taken(attribution.work.of_ops(attribution.work.min_bytes), op, UNKNOWN)
    told = {at: one for at, one in serving_kinds(pair, launches).items() if kind[at] < 0}
    kind[list(told)] = nothing + 1 + np.arange(len(told))
    return LaunchWork(
        "pair",
        launches,
        kind,
        (*kinds, (), *told.values()),
        np.where(helps, 0, size),
        np.full(launches.count, UNKNOWN, dtype=np.int64),
    )


def _main_of(attribution: Attribution, count: int) -> IntArray:
    """Return, per activity, the op whose main kernel it is, -1 for none."""
    main_of = np.full(count, -1, dtype=np.int64)
    ops = attribution.executed[attribution.main[attribution.executed] >= 0]
    main_of[attribution.main[ops]] = ops
    return main_of


def _kinds(pair: Prepared, attribution: Attribution) -> tuple[IntArray, tuple[Kind, ...]]:
    """Return the kind of each op, and what the kinds are."""
    parts, _ = parts_of(pair, attribution)
    dtype, labels = types_of_ops(pair, attribution)
    rows = attribution.executed
    group, first = group_rows([parts.case, dtype[rows]])
    done: dict[int, list[WorkPart]] = {op: [] for op in rows[first].tolist()}
    for row in np.flatnonzero(np.isin(parts.op, rows[first])).tolist():
        op, line = int(parts.op[row]), parts.lines[int(parts.line[row])]
        flops, at_least = int(parts.flops[row]), int(parts.at_least[row])
        done[op].append(WorkPart(line, labels[int(dtype[op])], flops, at_least))
    kinds = [tuple(done[op]) for op in rows[first].tolist()]
    places = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    of_op = np.full(pair.trace.ops.num_rows, UNKNOWN, dtype=np.int64)
    of_op[rows] = np.array([places[kind] for kind in kinds], dtype=np.int64)[group]
    return of_op, tuple(places)
