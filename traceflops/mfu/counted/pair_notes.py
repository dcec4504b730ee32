"""What to say of a paired recording itself: how it was read, and that it is of another device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from traceflops.devices.device_facts import shown
from traceflops.mfu.trace_peaks import DevicePeaks, device_peaks
from traceflops.table.trace import Note
from traceflops.windows.prepared import Prepared

_OF_TIMES: Final = frozenset(
    {
        *("no-timeline", "no-calls", "no-device-work", "no-steps", "process-unknown"),
        *("gpu-unknown", "rank-from-name", "rank-unknown"),
    }
)
"""What a paired recording is not asked for, so that it is no matter."""


def pair_notes(
    prepared: Prepared, devices: Sequence[DevicePeaks], pair: Prepared
) -> Iterator[Note]:
    """Yield the notes of a paired recording, marked as its own, and whether its device differs."""
    for note in pair.trace.notes:
        if note.code not in _OF_TIMES:
            yield replace(note, code=f"paired-{note.code}", text=f"Paired recording: {note.text}")
    ours = {arch: one.product for one in devices if (arch := _architecture(prepared, one))}
    others = device_peaks(pair.trace, range(pair.trace.devices.num_rows))
    theirs = {arch: one.product for one in others if (arch := _architecture(pair, one))}
    if ours and theirs and not ours.keys() & theirs.keys():
        text = (
            f"The paired recording is from another kind of GPU ({_listed(theirs)}) "
            f"than the timed run ({_listed(ours)}). Its kernels may do other work, "
            "and its counters may differ."
        )
        yield Note("assumed", "paired-other-device", text)


def _architecture(prepared: Prepared, one: DevicePeaks) -> str | None:
    """Return the architecture of a device, as the trace or else the table has it."""
    row = prepared.trace.devices.slice(one.device, 1).to_pylist()[0]
    own: str | None = row["architecture"]
    if own:
        return own.partition(":")[0]
    spec = one.match.spec
    return spec.arch if spec is not None and one.match.confirmed else None


def _listed(archs: dict[str, str]) -> str:
    words = (arch if product == "unknown GPU" else product for arch, product in archs.items())
    return ", ".join(shown(word) for word in dict.fromkeys(words))
