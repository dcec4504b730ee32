"""MFU and HFU of a trace: what was executed, as a share of what its devices could do meanwhile.

Both are shares of devices x window x peak (docs/mfu.md). MFU counts the model FLOPs that the trace
shows: the executed ones without recomputation, masked pairs, and what algorithms compute twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal

from msgspec import Struct

from traceflops.attribution.datatypes import UNKNOWN_TYPE
from traceflops.attribution.op_kernels import Attribution, attribute
from traceflops.categories.programs import of_ml
from traceflops.devices import missing_input
from traceflops.devices.counter_formulas import family_of
from traceflops.devices.device_facts import shown
from traceflops.devices.missing_input import MissingInput
from traceflops.devices.peaks import PER_TERA
from traceflops.facts import Fact, fact, in_words, quoted
from traceflops.flops.mfu_waterfall import UNSPLIT, Waterfall, waterfall
from traceflops.flops.ops.arguments import TF32_OR_FP32
from traceflops.mfu import budget
from traceflops.mfu.budget import FROM_THE_TRACE, DevicePeaks, PeakOptions, ShareRange
from traceflops.mfu.counted.counter_flops import measured_work
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.mfu.inference import Inference, inference
from traceflops.mfu.roof_times import NO_ROOFS, RoofTimes, moved_bytes, roof_times
from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.traced.executed import REPLAYED, Executed, allocates_on_gpu, executed, too_fast
from traceflops.mfu.traced.work_tables import KernelRow, OpRow, kernel_rows, op_rows
from traceflops.remedies import GPUS_LISTED, NSIGHT, ROCPROF, XLA, advice, family, remedy
from traceflops.table import patterns
from traceflops.table.columns import names, numbers
from traceflops.table.grouping import used_names
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.device_span import is_top
from traceflops.units import decimal
from traceflops.windows.prepared import Prepared

Source = Literal["trace", "the paired trace", "counters"]
"""The source of FLOPs: shapes of the trace itself, shapes of a paired one, or counters."""
_SERVING: Final = re.compile("(?:paged|unified)_attention|varlen_fwd|::fwd|moe_forward")
"""Operators of serving engines; counted/serving_kernels.py tells the work of some."""
_SOURCES: Final[dict[str, Source]] = {"counters": "counters", "pair": "the paired trace"}
_UNTOLD_TYPES: Final = {
    TF32_OR_FP32: MissingInput(fact("missing.tf32-or-fp32"), missing_input.GIVE_PEAK),
    UNKNOWN_TYPE: MissingInput(fact("missing.unknown-type"), missing_input.GIVE_PEAK),
}
_FEW_LAUNCHES: Final = 50
"""So few launches fill no buffer of a profiler: if all lack records, no kernel had ended."""
_TOOLS: Final = {ROCPROF: "rocprof", NSIGHT: "Nsight", XLA: "XLA's profiler", "nvprof": "nvprof"}
"""Tools that record no operators, by family or format."""


class Measurement(Struct, frozen=True, dict=True):
    """The utilisation of a trace in its chosen windows.

    `waterfall` splits the budget of the devices; if it is None, `lacks` says why. If the purpose of
    the FLOPs is unknown, there is HFU and no MFU, and `lacks` says so. `executed` has the ledger of
    FLOPs. `inference` is None for training. `roofs` is the time that FLOPs and bytes need.
    `memory_peak` is the bandwidth of the devices in bytes/ns, also without a timeline.
    """

    executed: Executed
    devices: tuple[DevicePeaks, ...]
    waterfall: Waterfall | None
    lacks: tuple[MissingInput, ...]
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    inference: Inference | None = None
    roofs: RoofTimes = NO_ROOFS
    memory_peak: int | None = None

    @property
    def rates(self) -> dict[int, Mapping[str, int]]:
        """Return the peaks by device and data type, in FLOP per ns."""
        return {device.device: device.rates for device in self.devices}

    @property
    def mfu(self) -> Fraction | None:
        """Return counted model FLOPs as a share of the budget; None if their purpose is unknown."""
        has_purpose = self.executed.model_flops > 0 or not self.executed.unsplit_flops
        return self.waterfall.mfu if self.waterfall is not None and has_purpose else None

    @property
    def hfu(self) -> Fraction | None:
        """Return counted executed FLOPs as a share of the budget."""
        return self.waterfall.hfu if self.waterfall is not None else None

    @cached_property
    def mfu_range(self) -> ShareRange | None:
        """Return the least and the most that MFU can be: see `_range`."""
        fall = self.waterfall
        return self._range(self.mfu, "model", fall.share(UNSPLIT) if fall is not None else None)

    @cached_property
    def hfu_range(self) -> ShareRange | None:
        """Return the least and the most that HFU can be."""
        return self._range(self.hfu, "")

    @property
    def busy_range(self) -> ShareRange | None:
        """Return the least and the most that busy MFU can be."""
        mfu, busy = self.mfu_range, self.busy_mfu
        if mfu is None or not busy or not self.mfu:
            return None
        factor = busy / self.mfu
        return ShareRange(mfu.least * factor, mfu.most * factor)

    def _range(
        self, share: Fraction | None, family: str, open_share: Fraction | None = None
    ) -> ShareRange | None:
        """Return the range of the budget's `share` that the lines of a family have.

        `family` is the first word of the lines ("" for all). `open_share` may belong to the family
        or not, so it counts only in the most. So does the compute time of unknown FLOPs, as if
        spent at the peak, unless at least 95 % of all FLOPs are known (`Waterfall.known_share`).
        """
        fall = self.waterfall
        if share is None or fall is None:
            return None
        cells = [c for c in self.executed.used_cells if family in ("", c.line.split(".")[0])]
        less_factor, more_factor = budget.count_bounds(cells, fall, self.rates)
        is_enough = fall.known_share >= ENOUGH
        unknown = Fraction(0) if is_enough else fall.share("unattributed") or Fraction(0)
        most = min(share * more_factor + unknown + (open_share or 0), Fraction(1))
        return ShareRange(share * less_factor, max(share, most))

    @property
    def is_exact(self) -> bool:
        """Return whether no count in the chosen windows lies between two bounds."""
        return all(cell.flops == cell.at_least for cell in self.executed.used_cells)

    @property
    def utilisation(self) -> Fact | None:
        """Return the range of MFU as a fact; of HFU if it is not known what FLOPs were for."""
        if (mfu := self.mfu_range) is not None:
            return fact("utilisation.mfu", share=(mfu.least, mfu.most))
        if (hfu := self.hfu_range) is not None:
            return fact("utilisation.hfu", share=(hfu.least, hfu.most))
        return None

    @property
    def figure(self) -> str | None:
        """Return the utilisation as text: "MFU 38.2 %", "HFU 6.86 % to 27.4 %"."""
        return in_words(self.utilisation) or None

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what is assumed in the counts and the peaks, and what is missing for them."""
        counts = self.executed.notes if self.executed.executed_flops else ()
        work = self.executed.work.notes if self.executed.work is not None else ()
        missing: list[Note] = []
        coverage, fall = self.executed.coverage, self.waterfall
        # Unknown FLOPs make the figure a range: name the kernel with most of them.
        if fall is not None and coverage is not None and fall.known_share < ENOUGH:
            unknown, most = 1 - coverage, 1 - fall.known_share
            code, largest = "flops-unknown", _largest_unknown(self.executed)
            missing = [note_of("missing", code, unknown=unknown, most=most, largest=largest)]
        return (*counts, *missing, *work, *budget.peak_notes(self.executed, self.devices))

    @property
    def speeds(self) -> tuple[KernelSpeed, ...]:
        """Return how near counted kernels come to the limits of the GPU, () without counters."""
        return self.executed.work.speeds if self.executed.work is not None else ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the sources of kernels' FLOPs, in the order in which they are preferred."""
        work = self.executed.work
        origins = dict.fromkeys(join.origin for join in work.joins if join.known) if work else {}
        own: tuple[Source, ...] = ("trace",) if len(self.executed.attribution.executed) else ()
        return (*own, *(_SOURCES[origin] for origin in origins)) or ("trace",)

    @property
    def busy_mfu(self) -> Fraction | None:
        """Return model FLOPs as a share of the budget without idle time; None if unknown."""
        fall = self.waterfall
        if fall is None or self.mfu is None or fall.budget == fall.amount("idle"):
            return None
        return Fraction(fall.amount("useful"), fall.budget - fall.amount("idle"))

    @property
    def basis(self) -> str:
        """Return source and peak of the figures: "from trace, bf16 dense 989.4"."""
        dtypes = self.waterfall.dtypes if self.waterfall is not None else ()
        rates = {device.rates.get(dtype) for device in self.devices for dtype in dtypes}
        if len(dtypes) != 1 or len(rates) != 1 or None in rates:
            peak = fact("utilisation.each-peak", dtypes=tuple(dtypes))
        else:
            rate = decimal(Fraction(rates.pop() or 0, PER_TERA), 1)
            peak = fact("utilisation.dense-peak", dtype=dtypes[0], rate=rate)
            if any(device.given for device in self.devices):
                peak = fact("utilisation.given-peak", rate=rate)
        return in_words(fact("utilisation.basis", sources=self.sources, peak=peak))


def measure(
    prepared: Prepared, options: PeakOptions = FROM_THE_TRACE, pair: Prepared | None = None
) -> Measurement:
    """Return the utilisation of a prepared trace.

    `pair` is another recording of the same program; its shapes or counters tell the FLOPs of
    kernels. Raises UsageError for an unknown device, an impossible rate, or a useless pair.
    """
    devices = budget.device_peaks(prepared.trace, prepared.accounts, options)
    trace = prepared.trace
    serves = any(_SERVING.search(name) for name in names(trace.ops["name"]))
    attribution, work = attribute(prepared.linked), None
    if serves or pair is not None or trace.kernel_counters.num_rows > 0:
        work = measured_work(prepared, attribution, devices, pair, options.device)
    done = executed(prepared, attribution, work)
    lacks = tuple(why_no_figure(prepared, done, devices))
    fall = None
    if not lacks:
        rates = {device.device: device.rates for device in devices}
        budgets = budget.device_budgets(prepared, done, rates)
        fall = waterfall(budgets) if any(device.window_ns for device in budgets) else None
    if fall is not None and fall.errors:
        lacks, fall = (impossible(fall, devices),), None
    if fall is not None and done.unsplit_flops:  # the budget has a split, but MFU is unknown
        lacks = (missing_input.NOT_SPLIT,)
    moved = moved_bytes(prepared, attribution)
    of_kernels = moved.with_work(work)
    bandwidths = {device.device: device.bandwidth for device in devices}
    return Measurement(
        executed=done,
        devices=devices,
        waterfall=fall,
        lacks=lacks,
        kernels=kernel_rows(prepared, moved, work),
        ops=op_rows(prepared, moved),
        inference=inference(prepared, of_kernels, bandwidths, work),
        roofs=roof_times(prepared, of_kernels, devices, work),
        memory_peak=budget.memory_peak(trace, options),
    )


def _without_device_work(trace: Trace, attribution: Attribution) -> MissingInput:
    """Return why a trace without device work has no utilisation."""
    operators = used_names(trace.ops["name"])
    if patterns.operator_of_mps(operators) is not None:
        return missing_input.ON_MPS
    if (operator := patterns.operator_of_cpus(operators)) is not None:
        what = fact("missing.on-cpu", operator=operator)
        return MissingInput(what, missing_input.TO_GPU)
    used_gpu = patterns.operator_of_gpus(operators) or allocates_on_gpu(trace)
    if used_gpu or too_fast(trace, attribution):  # but its work was not recorded
        return missing_input.unrecorded(trace)
    # The profiler listed no GPU: the operators ran on the CPU.
    if trace.source.facts.get(GPUS_LISTED) == "0" and trace.ops.num_rows:
        return MissingInput(fact("missing.no-gpu-listed"))
    return missing_input.without_times(trace, advice(trace, "device work"))


def why_no_figure(
    prepared: Prepared, done: Executed, devices: tuple[DevicePeaks, ...]
) -> Iterator[MissingInput]:
    """Yield why a trace has no utilisation, the most important reason first."""
    trace, records = prepared.trace, prepared.launch_records
    kinds = trace.devices["type"].to_pylist()
    if all(kinds[device.device] == "cpu" for device in devices):
        counted = sum(row.launches for row in done.work.counted) if done.work is not None else 0
        if counted and not trace.activities.num_rows and not trace.totals.num_rows:
            record_times = fact("missing.record-times", how=remedy(trace, "timeline") or "")
            yield MissingInput(fact("missing.counters-alone", launches=counted), record_times)
        elif patterns.launches_nothing(trace.calls):
            yield missing_input.NOTHING_LAUNCHED
        else:
            yield _without_device_work(trace, done.attribution)
    elif records.state == "capture":
        yield MissingInput(fact("missing.captured"), fact("missing.pair-with-launching"))
    elif (timed := records.timed).lack():
        what = fact("missing.no-durations", unknown=timed.lost, operations=timed.calls)
        yield MissingInput(what)
    elif records.state == "missing" or records.kernel.lack() or not prepared.knows_replays:
        # If only kernels of graphs are missing, these must be requested. Else the buffers were
        # full, or the recording ended before the few kernels did.
        how = "" if records.kernel.lost else advice(trace, "kernels of graphs")
        how = how or advice(trace, "all device records")
        request = quoted(how) if how else None
        is_ended = records.lacks_all_kernels and records.kernel.calls <= _FEW_LAUNCHES
        lost = "no-graph-records" if records.is_judged else "records-incomplete"
        next_time = fact("missing.wait-at-end") if is_ended else request
        yield MissingInput(fact(f"missing.{lost}"), next_time)
    elif not done.executed_flops:
        yield _nothing_counted(prepared, done, is_ml=of_ml(trace))
    elif done.coverage is None or done.coverage < TOO_LITTLE:
        too_little = fact("missing.known-too-little", known=done.coverage or Fraction(0))
        yield _without_capture(done) or MissingInput(too_little, _largest_unknown(done))
    else:
        lacks: dict[MissingInput, None] = {}
        for device in devices:
            for dtype in sorted(done.dtypes - device.rates.keys()):
                # A device without rates is unknown: that matters more than an ambiguous type.
                ambiguous = _UNTOLD_TYPES.get(dtype) if device.rates else None
                match = device.match
                lacks[ambiguous or match.why_no_peak(dtype) or match.lack] = None
        yield from lacks


def impossible(fall: Waterfall, devices: tuple[DevicePeaks, ...]) -> MissingInput:
    """Return why the figures of a waterfall are impossible: a wrong device or wrong FLOPs."""
    against = next(filter(None, (device.match.contradicts for device in devices)), None)
    what = fact("missing.inconsistent", against=against, error=fall.errors[0])
    return MissingInput(what, fact("missing.likely"))


def _nothing_counted(prepared: Prepared, done: Executed, *, is_ml: bool) -> MissingInput:
    """Return why no FLOPs are known, and what would tell them.

    `is_ml` is whether this is a machine learning program: only such a model can be described.
    """
    ops, work = prepared.trace.ops, done.work
    none_known = MissingInput(fact("missing.none-known"), _largest_unknown(done))
    if work is not None and work.joins:  # with a pair or counters
        has_pair = any(join.origin == "pair" for join in work.joins)
        has_total = any(row.flops is not None for row in work.counted)
        parts = [flops for row in work.counted for flops in row.by_type.values()]
        if any(join.known for join in work.joins):  # the FLOPs of these kernels are 0
            return missing_input.NO_MATRIX_WORK
        if has_pair or has_total or not work.counted:
            return none_known
        if any(flops is not None for flops in parts):
            return missing_input.counters_incomplete(work.families, work.missing)
        return missing_input.other_counters(work.families) if is_ml else missing_input.NOT_ML
    if not ops.num_rows:
        if not is_ml:
            return missing_input.NOT_ML
        if not _took_time(prepared, "compute"):  # no kernel is known to multiply matrices
            is_unknown = _took_time(prepared, "other")
            return missing_input.NONE_KNOWN if is_unknown else missing_input.NO_MODEL
        source = prepared.trace.source
        own_tool = source.tool if source.format == "rpd" else None  # many tools write rpd
        tool = own_tool or _TOOLS.get(source.format) or _TOOLS.get(family(source.format))
        if tool is not None:  # it records no operators
            families = [*map(family_of, prepared.trace.devices["architecture"].to_pylist())]
            is_xla = family(source.format) == XLA
            return missing_input.without_shapes(tool, families, is_xla=is_xla)
    elif (lack := _without_capture(done)) is not None:
        return lack
    if ops["input_dims"].null_count == ops.num_rows:  # no shapes at all
        how = advice(prepared.trace, "shapes")
        what = fact("missing.no-shapes" if ops.num_rows else "missing.no-operators")
        return MissingInput(what, fact(missing_input.NEXT_TIME, how=how) if how else None)
    if done.outside.unattributed:  # kernels computed, but none of known shapes
        return none_known
    has_other_steps = len(prepared.plan.choice.seen) > len(prepared.plan.choice.used)
    next_step = fact("missing.other-steps") if has_other_steps else missing_input.PAIR
    return MissingInput(fact("missing.no-matrix-operator"), next_step)


def _took_time(prepared: Prepared, top: str) -> bool:
    """Return whether any activity of a top category took time.

    "compute" has GEMMs, convolutions and attention; "other" has kernels of unknown category.
    """
    dur_ns = numbers(prepared.trace.activities["dur_ns"])
    return bool(dur_ns[is_top(prepared.linked.categorised, top)].any())


def _without_capture(done: Executed) -> MissingInput | None:
    """Return what is missing if replayed graphs hide most of the unknown FLOPs, else None."""
    unknown = done.outside.unattributed
    replayed_ns = sum(kernels.sum_ns for kernels in unknown if kernels.why == REPLAYED)
    if 2 * replayed_ns <= sum(kernels.sum_ns for kernels in unknown):
        return None
    total_ns = sum(time.kernels_ns for time in done.times if time.used)
    coverage = done.coverage or Fraction(0)
    replayed = min(Fraction(replayed_ns, total_ns), 1 - coverage)
    what = fact("missing.replayed-all", replayed=replayed)
    if coverage:
        what = fact("missing.replayed", known=coverage, replayed=replayed)
    return MissingInput(what, fact("missing.pair-capture"))


def _largest_unknown(done: Executed) -> Fact:
    """Return a fact on the uncounted kernel that took most time, else the advice to pair a run."""
    for kernels in done.outside.unattributed[:1]:
        why = fact(f"uncounted.{kernels.why}")
        return fact("missing.largest-unknown", kernel=shown(kernels.kernel), reason=why)
    return missing_input.PAIR
