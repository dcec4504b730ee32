"""The peaks that the devices of a trace are held against, by data type."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from traceflops.attribution import UNKNOWN_TYPE
from traceflops.devices import (
    DTYPES,
    PER_TERA,
    REFERENCE,
    Match,
    SeenDevice,
    chosen,
    find,
    rate_doubt,
    rate_text,
)
from traceflops.flops import TF32_OR_FP32
from traceflops.mfu.budget import FP6_OR_FP4, peaks_of
from traceflops.table import Note, Trace
from traceflops.units import decimal, exact_percent

_CLOCKS_AGREE: Final = Fraction(5, 100)
"""By so much less a device may clock than the table has it, without a word."""

_BOOST: Final = Fraction(30, 100)
"""By so much its highest clock may exceed the one of the stated rates: up to 23 % are known."""


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
    def host_bandwidth(self) -> Fraction | None:
        """Return the bytes per ns of the link to the host, in one direction; None if unknown."""
        link = self.match.host_link
        return link.bandwidth if link is not None else None

    @property
    def product(self) -> str:
        """Return what the device is called in the table, or in the trace."""
        spec = self.match.spec
        return spec.product if spec is not None else self.match.seen.name or "unknown GPU"

    def doubt(self, dtypes: Collection[str]) -> str | None:
        """Return why a given rate may be the wrong one for what was counted, None if it is not."""
        row = find(self.match.spec.id) if self.match.spec is not None and self.given else None
        rate = next(iter(self.rates.values()), None)
        return rate_doubt(row, rate, dtypes) if row is not None and rate is not None else None

    @property
    def clock_note(self) -> Note | None:
        """Return that units x clock x FLOP per clock, as the device says, is not its peak.

        None where it is, or where it cannot be told. The table's rate stands all the same. Rates
        are stated for a clock that devices hold; those that name the highest they can boost to,
        as NVIDIA's do, come out above, and that says nothing.
        """
        rate = self.match.by_clock
        spec, seen = self.match.spec, self.match.seen
        if rate is None or spec is None or self.given or seen.clock_hz is None:
            return None
        dtype = next(one for one in REFERENCE if spec.peak(one))
        peak = spec.peak(dtype) or 1
        apart = rate / peak - 1
        if -_CLOCKS_AGREE <= apart <= _BOOST:
            return None
        text = (
            f"{seen.counted_units()} x {decimal(Fraction(seen.clock_hz, 10**9), 3)} "
            f"GHz (recorded clock of {spec.product}) x {spec.flops_per_clock:,} FLOP "
            f"per clock make {decimal(rate / PER_TERA, 1)} TFLOP/s ({dtype}), "
            f"{exact_percent(abs(apart))} {'more' if apart > 0 else 'less'} than the "
            f"{rate_text(peak)} in the table, which MFU uses."
        )
        return Note("assumed", "peak-by-clock-differs", text)


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
    return dict.fromkeys((*DTYPES, FP6_OR_FP4, TF32_OR_FP32, UNKNOWN_TYPE), rate)
