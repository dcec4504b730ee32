"""From which instant times are counted: one for all, or one per process where clocks differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from traceflops.table.columns import numbers

if TYPE_CHECKING:
    from traceflops.windows.prepared import Prepared

_UNALIGNED: Final = "clocks-not-aligned"
"""The note of a reader that cannot bring the clocks of files together."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The instant that is 0 for each process: its earliest activity, or that of all.

    `aligned` says that it is one and the same, so that times of different processes compare.
    """

    of_process: Mapping[int, int] = field(hash=False)
    of_device: Mapping[int, int] = field(hash=False)
    aligned: bool


def origins(prepared: Prepared) -> Origins:
    """Return the origins of all processes with device work.

    Clocks cannot be compared where a reader says so, and where the work of one device ended before
    that of another began.
    """
    process: list[int] = numbers(prepared.trace.devices["process"]).tolist()
    spans = {device: account.rows.span for device, account in prepared.accounts.items()}
    starts: dict[int, int] = {}
    for device, (low, _) in spans.items():
        starts[process[device]] = min(low, starts.get(process[device], low))
    if not starts:
        return Origins({}, {}, True)
    apart = max(low for low, _ in spans.values()) > min(high for _, high in spans.values())
    unaligned = any(note.code == _UNALIGNED for note in prepared.trace.notes)
    aligned = not (len(starts) > 1 and (unaligned or apart))
    if aligned:
        starts = dict.fromkeys(starts, min(starts.values()))
    return Origins(starts, {device: starts[process[device]] for device in spans}, aligned)
