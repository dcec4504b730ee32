"""The peaks that the devices of a trace are held against, by data type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from traceflops.mfu.budget import peaks_of
from traceflops.mfu.executed import UNKNOWN_TYPE
from traceflops.mfu.matching import Match, chosen
from traceflops.mfu.ops.types import TF32_OR_FP32
from traceflops.mfu.peaks import DTYPES
from traceflops.mfu.seen import SeenDevice
from traceflops.trace import Trace


@dataclass(frozen=True, slots=True)
class PeakOptions:
    """What the user says of the devices, each None if nothing.

    `device` is an id of the table, `tflops` a dense rate that holds for every data type.
    """

    device: str | None = None
    tflops: float | None = None


FROM_THE_TRACE: Final = PeakOptions()


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """One device of a trace: `rates` in FLOP per ns by data type, `bandwidth` in bytes per ns.

    `rates` is empty where the device is not known for sure; `match` says why.
    """

    device: int
    match: Match
    rates: Mapping[str, int] = field(hash=False)
    bandwidth: int | None
    given: bool

    @property
    def product(self) -> str:
        """Return what the device is called in the table, or in the trace."""
        spec = self.match.spec
        return spec.product if spec is not None else self.match.seen.name or "unknown device"


def device_peaks(
    trace: Trace, devices: Iterable[int], options: PeakOptions = FROM_THE_TRACE
) -> tuple[DevicePeaks, ...]:
    """Return the peaks of some devices of a trace, rows of its devices table.

    Raises UsageError for an id that the table lacks and a rate that cannot be meant.
    """
    rows = trace.devices.to_pylist()
    matches: dict[SeenDevice, Match] = {}  # of thousands of devices most are alike
    found = []
    for device in devices:
        seen = SeenDevice.of(rows[device])
        if seen not in matches:
            matches[seen] = chosen(options.device, options.tflops, seen)
        match = matches[seen]
        given = options.tflops is not None
        found.append(DevicePeaks(device, match, _rates(match, given=given), match.bandwidth, given))
    return tuple(found)


def _rates(match: Match, *, given: bool) -> dict[str, int]:
    if not given:
        return peaks_of(match)
    rate = next(rate for dtype in DTYPES if (rate := match.peak(dtype)) is not None)
    return dict.fromkeys((*DTYPES, TF32_OR_FP32, UNKNOWN_TYPE), rate)
