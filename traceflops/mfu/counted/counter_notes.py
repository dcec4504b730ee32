"""What to say of counters and of how they and paired runs were joined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from traceflops.devices.device_facts import shown
from traceflops.mfu.budget import DevicePeaks, device_peaks
from traceflops.mfu.counted.counter_work import CounterWork
from traceflops.mfu.counted.joins import KNOWN, CrossCheck, Join, MeasuredWork
from traceflops.mfu.counted.launches import ORIGINS, UNKNOWN
from traceflops.mfu.traced.coverage import How
from traceflops.table.columns import codes, numbers
from traceflops.table.trace import Note, Trace
from traceflops.units import exact_percent, several, uncapitalized
from traceflops.windows.prepared import Prepared

_BY_HOW: Final[dict[How, str]] = {
    "dispatch": "by dispatch",
    "replay": "as captured",
    "order": "by launch order",
    "step": "by order within the step",
    "alike": "by name and size (all did equal work)",
    "between": "by name and size (bounded by the smallest and largest)",
}
_SEVERAL: Final = re.compile(r"[\d,]+ files")
"""What stands for the name of a recording of several files."""

_TEXTS: Final = {
    "counters-partial": "{counted} without the counters of some data types of matrix work: FLOPs "
    "unknown.",
    "counters-without-device": "Counters of {launches} come from an unknown GPU, so their matrix "
    "counters may be incomplete and FLOPs are unknown. Name it with --device (see traceflops "
    "devices), or add the list of agents that the profiler wrote.",
    "counters-rounded": "Counters of {launches} are averages over passes with decimals; FLOPs are "
    "rounded.",
    "counters-disagree": "Passes disagree on the matrix work of {launches}, so the program did not "
    "repeat itself. Their FLOPs are unknown.",
    "passes-uneven": "Passes of the counted run launch {uneven} differently often or in other "
    "sizes. Only the counters of the first pass count.",
    "counters-without-xf32": "The kernels of {launches} compute in XF32 by name, but the counter "
    "(SQ_INSTS_VALU_MFMA_MOPS_XF32) is missing. Their FLOPs are unknown.",
}

_MOST_NAMED: Final = 3

_ASSUMED: Final = ("counters-rounded", "passes-uneven")

SAME_RUN: Final = Note(
    "assumed",
    "counted-while-timed",
    "Counters were read in the timed run, which serializes kernels. Idle time and "
    "overlap differ from a normal run.",
)
"""What readers say themselves where they see it; of a trace without notes its ids tell it."""

FABRIC: Final = Note(
    "assumed",
    "fabric-bytes",
    "Kernel bytes were counted at the fabric. A cache behind it (Infinity Cache) may "
    "have served some of them, so they can exceed the memory traffic.",
)

MEMORY: Final = Note(
    "assumed",
    "memory-bytes",
    "Kernel bytes are memory reads and writes. Nsight Compute flushes the caches "
    "before each kernel, so the timed run may have moved fewer.",
)

_OF_TIMES: Final = frozenset(
    {
        *("no-timeline", "no-calls", "no-device-work", "no-steps", "process-unknown"),
        *("gpu-unknown", "rank-from-name", "rank-unknown"),
    }
)
"""What a paired recording is not asked for, so that it is no matter."""


def counter_notes(work: CounterWork) -> Iterator[Note]:
    """Yield what is missing or assumed in the counters themselves."""
    uneven = work.counted.uneven
    kernels = first_few([shown(name) for name in uneven], "more kernel")
    counts = {
        "counters-partial": work.partial.sum(),
        "counters-without-device": work.homeless.sum(),
        "counters-rounded": work.rounded.sum(),
        "counters-disagree": work.disputed.sum(),
        "passes-uneven": len(uneven),
        "counters-without-xf32": work.uncounted.sum(),
    }
    for code, count in ((code, int(count)) for code, count in counts.items() if count):
        text = _TEXTS[code].format(
            launches=_launches(count), counted=several(count, "counted launch"), uneven=kernels
        )
        yield Note("assumed" if code in _ASSUMED else "missing", code, text, count)


def join_notes(join: Join, launches: int) -> Iterator[Note]:
    """Yield how launches got their FLOPs; `launches` are those of the other recording."""
    if join.file is not None and join.is_doubtful:
        text = (
            f"{_which(join)} does not match: {exact_percent(Fraction(join.found))} of its launches "
            "are in the timed run, by name and size. It may be of another program."
        )
        yield Note("assumed", f"{join.origin}-unlike", text, share=1.0)
    if not join.launches:
        return
    which = _which(join)
    ways = ", ".join(
        f"{part.launches:,} {_BY_HOW[part.how]}" for part in join.parts if part.how in KNOWN
    )
    share = exact_percent(join.share) if join.share is not None else "none"
    how = f": {ways}" if ways else ""
    text = (
        f"{which} gives the FLOPs of {join.known:,} of {_launches(join.launches)} of compute "
        f"kernels ({share} of their time){how}. Times come from the timed run."
    )
    yield Note("assumed", f"{join.origin}-joined", text, join.known)
    if count := join.count("ambiguous"):
        text = (
            f"FLOPs of {_launches(count)} are unknown: launches with the same name and size did "
            f"different work in {uncapitalized(which)}, in another order or only in part."
        )
        yield Note("missing", f"{join.origin}-ambiguous", text, count)
    if count := join.count("absent"):
        text = (
            f"{_launches(count)} of compute kernels {'has' if count == 1 else 'have'} no match by "
            f"name and size among the {_launches(launches)} of {uncapitalized(which)}."
        )
        yield Note("missing", f"{join.origin}-absent", text, count)


def _which(join: Join) -> str:
    what = "The paired trace" if join.origin == "pair" else "The counted run"
    if not join.file:
        return what
    return f"{what} {'of ' if _SEVERAL.fullmatch(join.file) else ''}{shown(join.file)}"


def _launches(count: int) -> str:
    return several(count, "launch")


def check_notes(check: CrossCheck | None) -> Iterator[Note]:
    """Yield that counters and shapes differ, where they do by more than 2 %."""
    if check is None or check.agree:
        return
    more, why = (
        ("more", "counters include partial tiles in full, and work that is not an operator")
        if check.difference > 0
        else ("less", "a kernel may use another algorithm (Winograd), or the two runs differ")
    )
    text = (
        f"Counters give {exact_percent(abs(check.difference))} {more} FLOPs than shapes, "
        f"over {_launches(check.launches)} known from both ({why}). The largest "
        f"difference is in {shown(check.kernel)}. Ledger and MFU use shapes."
    )
    yield Note("assumed", "counters-differ-from-shapes", text, check.launches)


def without_impossible_bytes(
    prepared: Prepared, devices: Sequence[DevicePeaks], work: MeasuredWork
) -> MeasuredWork:
    """Return work without the bytes of memory that exceed what it can move, and a note of them.

    All launches of a name on a device count together. Bytes that AMD's devices count may be served
    by a cache behind the fabric: they can be more.
    """
    if {family.tool for family in work.families if family is not None} != {"ncu"}:
        return work
    activities = prepared.trace.activities
    name, device = codes(activities["name"]), numbers(activities["device"])
    dur = numbers(activities["dur_ns"]).astype(np.float64)
    counted = (work.origin == ORIGINS.index("counters")) & (work.size != UNKNOWN) & (dur > 0)
    beyond = np.zeros(len(counted), dtype=np.bool_)
    for peaks in devices:
        if peaks.bandwidth is None:
            continue
        rows = np.flatnonzero((device == peaks.device) & counted)
        moved, time = (
            np.bincount(name[rows], weights=column[rows].astype(np.float64), minlength=1)
            for column in (work.size, dur)
        )
        beyond[rows] = (moved > peaks.bandwidth * time)[name[rows]]
    if not beyond.any():
        return work
    text = (
        f"The counted bytes of {several(len(np.unique(name[beyond])), 'kernel')} exceed what the "
        "memory can move in their time: caches served them in the timed run, or the "
        "counters belong to other work. They are ignored."
    )
    note = Note("dropped", "bytes-beyond-bandwidth", text, int(np.count_nonzero(beyond)))
    return replace(work, size=np.where(beyond, UNKNOWN, work.size), notes=(*work.notes, note))


def pair_notes(
    prepared: Prepared, devices: Sequence[DevicePeaks], pair: Prepared
) -> Iterator[Note]:
    """Yield the notes of a paired recording, marked as its own, and whether its device differs."""
    for note in pair.trace.notes:
        if note.code not in _OF_TIMES:
            statement = f"Paired recording: {note.statement}"
            yield replace(note, code=f"paired-{note.code}", statement=statement)
    others = device_peaks(pair.trace, range(pair.trace.devices.num_rows))
    ours, theirs = (
        {arch: peaks.product for peaks in peaks_of if (arch := architecture_of(trace, peaks))}
        for trace, peaks_of in ((prepared.trace, devices), (pair.trace, others))
    )
    if ours and theirs and not ours.keys() & theirs.keys():
        own, other = (
            [arch if product == "unknown GPU" else product for arch, product in peaks_of.items()]
            for peaks_of in (ours, theirs)
        )
        text = (
            f"The paired recording is from another kind of GPU ({_shown(other)}) "
            f"than the timed run ({_shown(own)}). Its kernels may do other work, "
            "and its counters may differ."
        )
        yield Note("assumed", "paired-other-device", text, share=1.0)


def _shown(products: Sequence[str]) -> str:
    return ", ".join(shown(product) for product in dict.fromkeys(products))


def architecture_of(trace: Trace, device: DevicePeaks) -> str | None:
    """Return the architecture of a device, as the trace or else the table has it."""
    own: str | None = trace.devices["architecture"][device.device].as_py()
    if own:
        return own.partition(":")[0]
    spec = device.match.spec
    return spec.arch if spec is not None and device.match.confirmed else None


def first_few(names: Sequence[str], more: str) -> str:
    """Return the first few of some names, and of how many more they are (`more` of what)."""
    beyond = len(names) - _MOST_NAMED
    some = ", ".join(names[:_MOST_NAMED])
    return f"{some} and {several(beyond, more)}" if beyond > 0 else some
