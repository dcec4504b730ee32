"""MFU and HFU of a trace: what was executed, as a share of what its devices could do meanwhile.

Both are shares of devices x window x peak (docs/mfu.md). MFU here is of the model FLOPs that the
trace shows: executed ones without recomputation, what algorithms compute twice, and what masks and
padding waste.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from traceflops.mfu.budget import device_budgets
from traceflops.mfu.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.executed import UNKNOWN_TYPE, Executed, executed
from traceflops.mfu.figures import decimal, percent
from traceflops.mfu.inference import Inference, inference
from traceflops.mfu.lacks import Lack
from traceflops.mfu.ops.types import TF32_OR_FP32
from traceflops.mfu.peaks import PER_TERA
from traceflops.mfu.seen import shown
from traceflops.mfu.tracepeaks import FROM_THE_TRACE, DevicePeaks, PeakOptions, device_peaks
from traceflops.mfu.waterfall import Waterfall, waterfall
from traceflops.mfu.worktables import KernelRow, OpRow, kernel_rows, op_rows
from traceflops.prepare import Prepared
from traceflops.trace import Note

NEXT_TIME: Final = "record with record_shapes=True next time"
GIVE_PEAK: Final = (
    "--peak TFLOPS gives one for all data types, --device ID takes a row of the table"
)
_UNTOLD_TYPES: Final = {
    TF32_OR_FP32: "whether float products ran as TF32 or FP32 is not told",
    UNKNOWN_TYPE: "the data type of some products is not told",
}
WHY_UNKNOWN: Final = {
    "no-op": "no operator launched it",
    "no-modelled-op": "launched by an operator without a rule",
}
LIKELY: Final = (
    "likely: the peak of another device or partition (traceflops devices --trace FILE), of another "
    "data type, or clocks that count wrong"
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a trace says of utilisation, in its chosen windows.

    `waterfall` splits the budget of the devices; it is None where `lacks` says why. The ledger in
    `executed` and the tables are there without it. `inference` is None for what is none.
    """

    executed: Executed
    devices: tuple[DevicePeaks, ...]
    waterfall: Waterfall | None
    lacks: tuple[Lack, ...]
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    inference: Inference | None = None

    @property
    def mfu(self) -> Fraction | None:
        """Return counted model FLOPs as a share of the budget."""
        return self.waterfall.mfu if self.waterfall is not None else None

    @property
    def hfu(self) -> Fraction | None:
        """Return counted executed FLOPs as a share of the budget."""
        return self.waterfall.hfu if self.waterfall is not None else None

    @property
    def most(self) -> Fraction | None:
        """Return the most that MFU can be: with all compute time of unknown FLOPs at the peak.

        That is `mfu` itself where at least 95 % of the compute time has known FLOPs.
        """
        coverage = self.executed.coverage
        if self.waterfall is None or self.mfu is None or coverage is None or coverage >= ENOUGH:
            return self.mfu
        return self.mfu + (self.waterfall.share("unattributed") or 0)

    @property
    def least(self) -> Fraction | None:
        """Return the least that MFU can be: where counts lie between two bounds, by the lower."""
        found = self.waterfall
        if found is None or found.mfu is None:
            return None
        cells = [cell for cell in self.executed.select() if cell.line.split(".")[0] == "model"]
        if all(cell.flops == cell.at_least for cell in cells):
            return found.mfu
        rates = {one.device: one.rates for one in self.devices}
        # As in the waterfall: FLOPs of one type add up, those of several by their time at the peak.
        weights = [
            Fraction(1) if len(found.dtypes) == 1 else Fraction(1, rates[cell.device][cell.dtype])
            for cell in cells
        ]
        least, most = (
            sum(
                (weight * count for weight, count in zip(weights, counts, strict=True)), Fraction(0)
            )
            for counts in ([cell.at_least for cell in cells], [cell.flops for cell in cells])
        )
        return found.mfu * least / most

    @property
    def figure(self) -> str | None:
        """Return MFU as text: "MFU 38.2 %", or from the least to the most that it can be."""
        if self.least is None or self.most is None:
            return None
        least, most = percent(self.least), percent(self.most)
        return f"MFU {least}" if least == most else f"MFU {least} to {most}"

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what is assumed in the counts and what is missing for them."""
        return self.executed.notes if self.executed.executed_flops else ()

    @property
    def busy_mfu(self) -> Fraction | None:
        """Return model FLOPs as a share of what the devices could do while they were not idle."""
        found = self.waterfall
        if found is None or found.budget == found.amount("idle"):
            return None
        return Fraction(found.amount("useful"), found.budget - found.amount("idle"))

    @property
    def basis(self) -> str:
        """Return what the figures are of and held against: "from trace, bf16 dense 989.4"."""
        dtypes = self.waterfall.dtypes if self.waterfall is not None else ()
        rates = {one.rates.get(dtype) for one in self.devices for dtype in dtypes}
        if len(dtypes) != 1 or len(rates) != 1 or None in rates:
            return f"from trace, {' and '.join(dtypes)} each at its dense peak"
        (rate,) = rates
        given = any(one.given for one in self.devices)
        kind = "given" if given else f"{dtypes[0]} dense"
        return f"from trace, {kind} {decimal(Fraction(rate or 0, PER_TERA), 1)} TFLOP/s"


def measure(prepared: Prepared, options: PeakOptions = FROM_THE_TRACE) -> Measurement:
    """Return what a prepared trace says of utilisation.

    Raises UsageError for an id of a device that is none and a rate that cannot be meant.
    """
    done = executed(prepared)
    devices = device_peaks(prepared.trace, prepared.accounts, options)
    lacks = tuple(_lacks(prepared, done, devices))
    fall = None if lacks else _waterfall(prepared, done, devices)
    if fall is not None and fall.errors:
        lacks, fall = (_impossible(fall),), None
    attribution = done.attribution
    return Measurement(
        done,
        devices,
        fall,
        lacks,
        kernel_rows(prepared, attribution),
        op_rows(prepared, attribution),
        inference(prepared, attribution, {one.device: one.bandwidth for one in devices}),
    )


def _lacks(prepared: Prepared, done: Executed, devices: tuple[DevicePeaks, ...]) -> Iterator[Lack]:
    """Yield what keeps the figures back; the first says most."""
    if all(kind == "cpu" for kind in _types(prepared, devices)):
        yield Lack("the trace has no device work", "record with ProfilerActivity.CUDA")
        return
    if not done.executed_flops:
        yield _nothing_counted(prepared, done)
        return
    coverage = done.coverage
    if coverage is None or coverage < TOO_LITTLE:
        known = percent(coverage or Fraction(0))
        problem = f"only {known} of the compute time has known FLOPs, too little for an MFU"
        yield Lack(problem, _largest_unknown(done))
        return
    yield from _without_peak(done, devices)


def _types(prepared: Prepared, devices: tuple[DevicePeaks, ...]) -> list[str]:
    kinds = prepared.trace.devices["type"].to_pylist()
    return [kinds[one.device] for one in devices]


def _nothing_counted(prepared: Prepared, done: Executed) -> Lack:
    ops = prepared.trace.ops
    if not ops.num_rows:
        return Lack("the trace has no operators, so FLOPs cannot be counted", NEXT_TIME)
    if ops["input_dims"].null_count == ops.num_rows:
        return Lack("the operators carry no shapes, so FLOPs cannot be counted", NEXT_TIME)
    if done.outside.unattributed:
        return Lack("no compute kernel has known FLOPs", _largest_unknown(done))
    return Lack("no operator with matrix work was executed", "choose other steps with --steps")


def _largest_unknown(done: Executed) -> str:
    """Return of which kernels most time has no FLOPs."""
    largest = done.outside.unattributed[:1]
    return "".join(
        f"most of that time is {shown(one.kernel)} ({WHY_UNKNOWN.get(one.why, one.why)})"
        for one in largest
    )


def _without_peak(done: Executed, devices: tuple[DevicePeaks, ...]) -> Iterator[Lack]:
    """Yield a lack per device whose rate for a counted data type is not known, each once."""
    counted = {cell.dtype for cell in done.select() if cell.flops}
    problems = {}
    for one in devices:
        for dtype in sorted(counted - one.rates.keys()):
            problem = _UNTOLD_TYPES.get(dtype) if one.rates else None
            problems[problem or one.match.why_no_peak(dtype) or one.match.explanation] = GIVE_PEAK
    for problem, remedy in problems.items():
        yield Lack(problem, remedy)


def _waterfall(
    prepared: Prepared, done: Executed, devices: tuple[DevicePeaks, ...]
) -> Waterfall | None:
    peaks = {one.device: one.rates for one in devices}
    budgets = device_budgets(prepared, done, peaks)
    return waterfall(budgets) if any(budget.window_ns for budget in budgets) else None


def _impossible(fall: Waterfall) -> Lack:
    return Lack(f"the figures contradict each other: {fall.errors[0]}", LIKELY)
