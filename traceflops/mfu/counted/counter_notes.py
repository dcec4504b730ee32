"""Notes on counters, messages of the profiler's rules, and notes on joined and paired runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Final

import numpy as np
from msgspec.structs import replace

from traceflops.devices.device_facts import shown
from traceflops.facts import fact
from traceflops.mfu.budget import DevicePeaks, device_peaks
from traceflops.mfu.counted.counter_work import CounterWork
from traceflops.mfu.counted.joins import KNOWN, Join, MeasuredWork
from traceflops.mfu.counted.launches import ORIGINS, UNKNOWN, KernelRule
from traceflops.mfu.counted.same_launches import CountedLaunches
from traceflops.table.columns import codes, numbers, take_rows
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, NoteKind, Trace, note_of
from traceflops.units import exact_percent, several
from traceflops.windows.prepared import Prepared

_SEVERAL: Final = re.compile(r"[\d,]+ files")
"""The name that a recording of several files gets."""
_MOST_NAMED: Final = 3
_LIKE: Final = 0.5
"""If two runs are of one program, at least this share of the launches of one is in the other."""
SAME_RUN: Final = "counted-while-timed"
"""The code of the note that counters were read while times were recorded; readers note it, too."""
_OF_TIMES: Final = (
    *("no-timeline", "no-calls", "no-device-work", "no-steps", "process-unknown"),
    *("gpu-unknown", "rank-from-name", "rank-unknown"),
)
"""Notes that do not matter in a paired recording: on what is not used of it."""


def counter_notes(work: CounterWork) -> Iterator[Note]:
    """Yield notes on what is missing or assumed in the counters themselves."""
    # Only the text of passes-uneven names the uneven kernels.
    uneven = work.counted.uneven
    kernels = first_few([shown(name) for name in uneven], "more kernel")
    kinds: dict[str, NoteKind] = {"counters-rounded": "assumed", "passes-uneven": "assumed"}
    counts = {
        "counters-partial": work.partial.sum(),
        "counters-without-device": work.homeless.sum(),
        "counters-rounded": work.rounded.sum(),
        "counters-disagree": work.disputed.sum(),
        "passes-uneven": len(uneven),
        "counters-without-xf32": work.uncounted.sum(),
    }
    for code, count in counts.items():
        if count:
            yield note_of(kinds.get(code, "missing"), code, count=int(count), uneven=kernels)


def join_notes(join: Join, launches: int) -> Iterator[Note]:
    """Yield notes on how kernels were joined with a recording of `launches` launches."""
    are_several = bool(join.file and _SEVERAL.fullmatch(join.file))
    file = shown(join.file) if join.file else None
    which = fact(f"work-from.{join.origin}{'-of' if are_several else ''}", file=file)
    notes = []
    # If most launches of each run are missing in the other, the recording may be of another
    # program. Then all of the time (share 1) is in doubt.
    is_unlike = join.found < _LIKE and join.count("absent") >= (1 - _LIKE) * join.launches
    if file and is_unlike:
        found = Fraction(join.found)
        notes.append(note_of("assumed", "unlike", share=1.0, which=which, found=found))
    if join.launches:
        known = [part for part in join.parts if part.how in KNOWN]
        joined = note_of(
            "assumed",
            "joined",
            count=join.known,
            which=which,
            all=join.launches,
            of_time=exact_percent(join.share) if join.share is not None else "none",
            ways=tuple(fact(f"work-from.{part.how}", count=part.launches) for part in known),
        )
        notes.append(joined)
    if count := join.count("ambiguous"):
        notes.append(note_of("missing", "ambiguous", count=count, which=which))
    if count := join.count("absent"):
        notes.append(note_of("missing", "absent", count=count, which=which, all=launches))
    for note in notes:
        yield replace(note, code=f"{join.origin}-{note.code}")


def without_impossible_bytes(
    prepared: Prepared, devices: Sequence[DevicePeaks], work: MeasuredWork
) -> MeasuredWork:
    """Return work without bytes beyond the memory's bandwidth; a note has the number dropped.

    All launches of one name on a device are judged together. On AMD's devices nothing is dropped: a
    cache behind the fabric may have served a part of the bytes.
    """
    if {family.tool for family in work.families if family is not None} != {"ncu"}:
        return work
    activities = prepared.trace.activities
    name, device = codes(activities["name"]), numbers(activities["device"])
    dur_ns = numbers(activities["dur_ns"]).astype(np.float64)
    by_counters = work.origin == ORIGINS.index("counters")
    is_counted = by_counters & (work.size != UNKNOWN) & (dur_ns > 0)
    is_beyond = np.zeros(len(is_counted), dtype=np.bool_)
    for peaks in devices:
        if peaks.bandwidth is None:
            continue
        rows = np.flatnonzero((device == peaks.device) & is_counted)
        # Sums by code of a name. 900 bytes in 2 ns at 400 bytes per ns: more than 800, impossible.
        moved = np.bincount(name[rows], work.size[rows].astype(np.float64), minlength=1)
        time_ns = np.bincount(name[rows], dur_ns[rows], minlength=1)
        is_beyond[rows] = (moved > peaks.bandwidth * time_ns)[name[rows]]
    if not is_beyond.any():
        return work
    count, kernels = int(np.count_nonzero(is_beyond)), len(distinct(name[is_beyond]))
    note = note_of("dropped", "bytes-beyond-bandwidth", count=count, kernels=kernels)
    return replace(work, size=np.where(is_beyond, UNKNOWN, work.size), notes=(*work.notes, note))


def pair_notes(trace: Trace, devices: Sequence[DevicePeaks], pair: Trace) -> Iterator[Note]:
    """Yield the notes of a paired recording, marked as such, and one if its device is another."""
    for note in pair.notes:
        if note.code not in _OF_TIMES:
            statement = f"Paired recording: {note.statement}"
            yield replace(note, code=f"paired-{note.code}", statement=statement)
    ours = _by_architecture(trace, devices)
    theirs = _by_architecture(pair, device_peaks(pair, range(pair.devices.num_rows)))
    if ours and theirs and ours.keys().isdisjoint(theirs.keys()):
        timed, paired = _products(ours), _products(theirs)
        yield note_of("assumed", "paired-other-device", share=1.0, paired=paired, timed=timed)


def _by_architecture(trace: Trace, devices: Sequence[DevicePeaks]) -> dict[str, str]:
    """Return the products of a trace's devices by architecture, without unknown architectures."""
    pairs = [(architecture_of(trace, device), device.product) for device in devices]
    return {arch: product for arch, product in pairs if arch}


def _products(product_of: Mapping[str, str]) -> str:
    """Return the products as text; an unknown product is called by its architecture."""
    called = (arch if name == "unknown GPU" else name for arch, name in product_of.items())
    return ", ".join(dict.fromkeys(map(shown, called)))


def architecture_of(trace: Trace, device: DevicePeaks) -> str | None:
    """Return the architecture of a device by the trace, else by the table of devices, else None."""
    own: str | None = trace.devices["architecture"][device.device].as_py()
    if own:
        return own.partition(":")[0]  # "gfx942:sramecc+" is gfx942
    spec = device.match.spec
    return spec.arch if spec is not None and device.match.confirmed else None


def first_few(names: Sequence[str], more: str) -> str:
    """Return the first names, and how many `more` there are: "a, b, c and 2 more files"."""
    beyond = len(names) - _MOST_NAMED
    some = ", ".join(names[:_MOST_NAMED])
    return f"{some} and {several(beyond, more)}" if beyond > 0 else some


def rules_by_launch(trace: Trace, counted: CountedLaunches) -> list[tuple[KernelRule, ...]]:
    """Return the messages of the profiler's rules on each counted launch."""
    if not trace.kernel_rules.num_rows:
        return [()] * counted.launches.count
    rules: dict[tuple[object, ...], list[KernelRule]] = defaultdict(list)
    for row in trace.kernel_rules.to_pylist():
        share = row["speedup_share"]
        rule = KernelRule(
            **{name: row[name] for name in ("rule", "section", "kind", "speedup_kind")},
            text=row["text"] or "",
            launches=1,
            # Only an estimated gain can be ranked.
            speedup_share=share if share is not None and isfinite(share) and share > 0 else None,
        )
        rules[row["process"], row["dispatch"], row["name"]].append(rule)
    rows = take_rows(trace.kernel_counters, counted.launches.row)
    keys = zip(*(rows[name].to_pylist() for name in ("process", "dispatch", "name")), strict=True)
    return [tuple(rules.get(key, ())) for key in keys]
