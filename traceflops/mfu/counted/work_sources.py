"""The recordings that tell work of kernels: counters of the trace itself, and a paired run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.devices.counter_formulas import (
    MATRIX,
    counters_for,
    family_by_counters,
    family_of,
)
from traceflops.devices.peaks import find
from traceflops.errors import UsageError
from traceflops.mfu.counted.counted_kernels import CountedKernel, counted_kernels
from traceflops.mfu.counted.counted_launches import counted_launches
from traceflops.mfu.counted.counter_work import CounterWork, counter_work
from traceflops.mfu.counted.launch_work import LaunchWork
from traceflops.mfu.counted.paired_work import paired_work
from traceflops.mfu.trace_peaks import DevicePeaks
from traceflops.table.columns import names
from traceflops.table.trace import Trace
from traceflops.units.words import several
from traceflops.windows.prepared import Prepared

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Source:
    """A recording that tells work: what, the counters if that is what it is, and its file.

    `is_own` says that the timed run has them itself.
    """

    work: LaunchWork
    counters: CounterWork | None
    counted: tuple[CountedKernel, ...]
    file: str | None
    is_own: bool


def work_sources(
    prepared: Prepared, known: tuple[str, ...], pair: Prepared | None
) -> Iterator[Source]:
    """Yield the recordings, those that say most first: shapes tell what FLOPs were for."""
    file = _file_of(pair.trace) if pair is not None else None
    shapes = paired_work(pair) if pair is not None else None
    theirs = _counted(pair.trace, known, file) if pair is not None else None
    if pair is not None and shapes is None and theirs is None:
        raise _tells_nothing(pair.trace)
    if shapes is not None:
        yield Source(shapes, None, (), file, is_own=False)
    for one in (_counted(prepared.trace, known, None), theirs):
        if one is not None:
            yield one


def _tells_nothing(pair: Trace) -> UsageError:
    """Return why a paired recording tells no FLOPs."""
    shapes = pair.ops.num_rows - pair.ops["input_dims"].null_count
    if shapes and pair.calls.num_rows and pair.calls["kernel"].null_count == pair.calls.num_rows:
        return UsageError(
            f"the --pair recording has {several(shapes, 'operator')} with shapes, but "
            f"no kernels, and its launch calls name none: {_listed(pair)}",
            (
                "record it with GPU activity; HIP launch calls name kernels, CUDA launch "
                "calls do not"
            ),
        )
    return UsageError(
        f"the --pair recording has neither operator shapes nor kernel counters: {_listed(pair)}",
        "use a PyTorch trace with shapes, or counters (rocprofv3 --pmc, ncu --csv --page raw)",
    )


def _file_of(trace: Trace) -> str:
    files = trace.source.files
    return files[0].name if len(files) == 1 else f"{len(files)} files"


def _listed(trace: Trace) -> str:
    """Return the names of the files of a trace, the first few of them."""
    files = [file.name for file in trace.source.files]
    more = len(files) - _MOST_NAMED
    return ", ".join(files[:_MOST_NAMED]) + (
        f" and {several(more, 'more file')}" if more > 0 else ""
    )


def architectures(
    trace: Trace, devices: Sequence[DevicePeaks], device: str | None
) -> Iterator[str]:
    """Yield the architectures of the devices: as they say, else as the table has them."""
    given = find(device.strip().lower()) if device is not None else None
    if not devices and given is not None:
        yield given.arch
    own = trace.devices["architecture"].to_pylist()
    for one in devices:
        spec = one.match.spec
        told = own[one.device] or (spec.arch if spec is not None and one.match.confirmed else None)
        if told:
            yield told


def _counted(trace: Trace, timed: tuple[str, ...], file: str | None) -> Source | None:
    """Return what the counters of a trace tell, None where it has none.

    Counters of an unknown device are of the only architecture there is, in this run or the timed.
    """
    counted = counted_launches(trace)
    if counted is None:
        return None
    own = trace.devices["architecture"].to_pylist()
    named = tuple(dict.fromkeys(one for one in own if one)) or timed
    alone = family_of(named[0]) if len(named) == 1 else None
    default = alone or family_by_counters(names(trace.kernel_counters["counter"]))
    by_device = [family_of(one) if one else default for one in own]
    families = tuple(dict.fromkeys((*by_device, default)))
    place = np.array([families.index(one) for one in (*by_device, default)], dtype=np.int64)
    work = counter_work(counted, families, place[counted.device])  # -1 is the last: the default
    units = np.array([one or 0 for one in (*trace.devices["sm_count"].to_pylist(), 0)])
    return Source(
        work.launch_work(),
        work,
        counted_kernels(work, units.astype(np.int64)[counted.device]),
        file,
        is_own=file is None,
    )


def missing_counters(work: CounterWork) -> Iterator[str]:
    """Yield the counters that a total of matrix work would need, and that no launch has."""
    read = {name.removeprefix(MATRIX) for name, one in work.matrix.items() if (one >= 0).any()}
    for family in work.families:
        if family is not None:
            yield from counters_for(MATRIX, (d for d in family.matrix if d not in read), family)
