"""MFU and HFU of a trace: what was executed, as a share of what its devices could do meanwhile.

Both are shares of devices x window x peak (docs/mfu.md). MFU here is of the model FLOPs that the
trace shows: executed ones without recomputation, what algorithms compute twice, and what masks and
padding waste.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from traceflops.devices import DTYPES, NOT_SPLIT, PER_TERA, MissingInput
from traceflops.flops import TF32_OR_FP32, UNSPLIT, Waterfall, waterfall
from traceflops.mfu.budget import (
    FROM_THE_TRACE,
    DevicePeaks,
    PeakOptions,
    ShareRange,
    certain_part,
    device_budgets,
    device_peaks,
    slower_part,
)
from traceflops.mfu.inference import Inference, inference
from traceflops.mfu.mfu_unavailable import impossible, unknown_flops, why_no_figure
from traceflops.mfu.roof_times import NO_ROOFS, RoofTimes, moved_bytes, roof_times
from traceflops.mfu.traced.coverage import ENOUGH
from traceflops.mfu.traced.executed import Executed, executed
from traceflops.mfu.traced.work_tables import KernelRow, OpRow, kernel_rows, op_rows
from traceflops.table import Note
from traceflops.units import decimal, exact_percent
from traceflops.windows import Prepared

if TYPE_CHECKING:
    from traceflops.attribution import Attribution
    from traceflops.mfu.counted.counter_work import MeasuredWork

Source = Literal["trace", "the paired trace", "counters"]
"""What tells FLOPs: the trace itself by its shapes, another one by its shapes, or counters."""

_SOURCES: Final[dict[str, Source]] = {"counters": "counters", "pair": "the paired trace"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a trace says of utilisation, in its chosen windows.

    `waterfall` splits the budget of the devices; it is None where `lacks` says why. Where it does
    not tell what FLOPs were for, there is an HFU and no MFU, and `lacks` says so. The ledger in
    `executed` and the tables are there without it. `inference` is None for what is none. `roofs`
    say how much of the time FLOPs and bytes need.
    """

    executed: Executed
    devices: tuple[DevicePeaks, ...]
    waterfall: Waterfall | None
    lacks: tuple[MissingInput, ...]
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    inference: Inference | None = None
    roofs: RoofTimes = NO_ROOFS

    @property
    def rates(self) -> dict[int, Mapping[str, int]]:
        """Return the peaks by device and data type, in FLOP per ns."""
        return {device.device: device.rates for device in self.devices}

    @property
    def mfu(self) -> Fraction | None:
        """Return counted model FLOPs as a share of the budget; None if none are told apart."""
        return self.waterfall.mfu if self.waterfall is not None and self._splits else None

    @property
    def hfu(self) -> Fraction | None:
        """Return counted executed FLOPs as a share of the budget."""
        return self.waterfall.hfu if self.waterfall is not None else None

    @property
    def most(self) -> Fraction | None:
        """Return the most that MFU can be: with all compute time of unknown FLOPs at the peak.

        That is `mfu` itself where at least 95 % of the FLOPs are known (`Waterfall.known_share`).
        """
        return found.most if (found := self.mfu_range) is not None else None

    @property
    def least(self) -> Fraction | None:
        """Return the least that MFU can be: where counts lie between two bounds, by the lower."""
        return found.least if (found := self.mfu_range) is not None else None

    @property
    def _splits(self) -> bool:
        """Return whether anything that was executed is known to be of the model, or all not."""
        return self.executed.model_flops > 0 or not self.executed.unsplit_flops

    @property
    def mfu_range(self) -> ShareRange | None:
        """Return the least and the most that MFU can be."""
        fall = self.waterfall
        return self._range(self.mfu, "model", fall.share(UNSPLIT) if fall is not None else None)

    @property
    def hfu_range(self) -> ShareRange | None:
        """Return the least and the most that HFU can be."""
        return self._range(self.hfu, "")

    @property
    def busy_range(self) -> ShareRange | None:
        """Return the least and the most that busy MFU can be."""
        found, busy = self.mfu_range, self.busy_mfu
        return found.times(busy / self.mfu) if found and busy and self.mfu else None

    @property
    def is_exact(self) -> bool:
        """Return whether no count in the chosen windows lies between two bounds."""
        return all(cell.flops == cell.at_least for cell in self.executed.select())

    def _range(
        self, share: Fraction | None, family: str, open_share: Fraction | None = None
    ) -> ShareRange | None:
        """Return what a share of the lines of a family (all if "") can be.

        `open_share` may belong to the family or not.
        """
        fall = self.waterfall
        if share is None or fall is None:
            return None
        cells = [c for c in self.executed.select() if family in ("", c.line.split(".")[0])]
        rates = self.rates
        known = fall.known_share >= ENOUGH
        more = Fraction(0) if known else fall.share("unattributed") or Fraction(0)
        most = share * slower_part(cells, fall, rates) + more + (open_share or 0)
        most = max(share, min(most, Fraction(1)))
        return ShareRange(share * certain_part(cells, fall, rates), most)

    @property
    def figure(self) -> str | None:
        """Return MFU as text: "MFU 38.2 %", or from the least to the most that it can be.

        Where only what was executed is known, not what for, it is HFU.
        """
        if (found := self.mfu_range) is not None:
            return f"MFU {found.text}"
        return f"HFU {hfu.text}" if (hfu := self.hfu_range) is not None else None

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what is assumed in the counts and the peaks, and what is missing for them."""
        counts = self.executed.notes if self.executed.executed_flops else ()
        work = self.executed.work.notes if self.executed.work is not None else ()
        missing = unknown_flops(self.executed, self.waterfall)
        return (*counts, *missing, *work, *_doubtful_peaks(self.executed, self.devices))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return what tells FLOPs of kernels, in the order in which it counts."""
        work = self.executed.work
        told = dict.fromkeys(join.origin for join in work.joins if join.known) if work else {}
        own: tuple[Source, ...] = ("trace",) if len(self.executed.attribution.executed) else ()
        return (*own, *(_SOURCES[origin] for origin in told)) or ("trace",)

    @property
    def busy_mfu(self) -> Fraction | None:
        """Return model FLOPs as a share of what the devices could do while they were not idle."""
        found = self.waterfall
        if found is None or self.mfu is None or found.budget == found.amount("idle"):
            return None
        return Fraction(found.amount("useful"), found.budget - found.amount("idle"))

    @property
    def basis(self) -> str:
        """Return what the figures are of and held against: "from trace, bf16 dense 989.4"."""
        dtypes = self.waterfall.dtypes if self.waterfall is not None else ()
        origin = f"from {' and '.join(self.sources)}"
        rates = {device.rates.get(dtype) for device in self.devices for dtype in dtypes}
        if len(dtypes) != 1 or len(rates) != 1 or None in rates:
            return f"{origin}, {' and '.join(dtypes)} each at its dense peak"
        (rate,) = rates
        given = any(one.given for one in self.devices)
        kind = "given" if given else f"{dtypes[0]} dense"
        return f"{origin}, {kind} {decimal(Fraction(rate or 0, PER_TERA), 1)} TFLOP/s"


def measure(
    prepared: Prepared, options: PeakOptions = FROM_THE_TRACE, pair: Prepared | None = None
) -> Measurement:
    """Return what a prepared trace says of utilisation.

    `pair` is another recording of the same program, whose shapes or counters tell FLOPs of the
    kernels. Raises UsageError for an id of a device that is none, a rate that cannot be meant, and
    a pair that tells nothing.
    """
    devices = device_peaks(prepared.trace, prepared.accounts, options)
    asked = pair is not None or prepared.trace.kernel_counters.num_rows > 0

    def others(attribution: Attribution) -> MeasuredWork | None:
        from traceflops.mfu.counted.counter_flops import measured_work

        return measured_work(prepared, attribution, devices, pair, options.device)

    done = executed(prepared, others if asked else None)
    lacks = tuple(why_no_figure(prepared, done, devices))
    fall = None
    if not lacks:
        budgets = device_budgets(
            prepared, done, {device.device: device.rates for device in devices}
        )
        fall = waterfall(budgets) if any(budget.window_ns for budget in budgets) else None
    if fall is not None and fall.errors:
        lacks, fall = (impossible(fall, devices),), None
    if fall is not None and done.unsplit_flops:
        lacks = (NOT_SPLIT,)
    moved = moved_bytes(prepared, done.attribution)
    return Measurement(
        done,
        devices,
        fall,
        lacks,
        kernel_rows(prepared, moved, done.work),
        op_rows(prepared, moved),
        inference(prepared, moved, {device.device: device.bandwidth for device in devices}),
        roof_times(prepared, moved, devices, done.work),
    )


def _doubtful_peaks(done: Executed, devices: tuple[DevicePeaks, ...]) -> tuple[Note, ...]:
    """Return what is odd about rates that were given, and about those of the table, each once."""
    flops, counted = done.flops_by_type, done.dtypes
    dtypes = tuple(one for one in DTYPES if one in counted)
    doubts = dict.fromkeys(device.doubt(dtypes) for device in devices)
    found = (Note("assumed", "peak-in-doubt", f"{doubt}.") for doubt in doubts if doubt)
    # Where nothing was counted, nothing is held against a peak.
    by_clock = dict.fromkeys(one.clock_note for one in devices) if counted else {}
    unsure = _untold_float(Fraction(flops[TF32_OR_FP32], flops.total() or 1), devices)
    against = dict.fromkeys(one.match.contradicts for one in devices if one.match.contradicts)
    chosen = (Note("assumed", "device-contradicts-trace", f"{text}.") for text in against)
    return (*chosen, *found, *(note for note in by_clock if note is not None), *unsure)


def _untold_float(share: Fraction, devices: tuple[DevicePeaks, ...]) -> tuple[Note, ...]:
    """Return that products may have run at either of two peaks, if the devices have both."""
    if not share or any(device.given for device in devices):
        return ()
    text = (
        f"{exact_percent(share)} of the executed FLOPs ran as either TF32 or FP32; kernel names do "
        "not say. They count as TF32, whose peak is higher; the range covers FP32."
    )
    return (Note("assumed", "tf32-or-fp32", text),)
