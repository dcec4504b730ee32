"""FLOPs that a description expects and that a trace shows: of the model, and of recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from operator import mul
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.missing_input import GIVE_PEAK, MissingInput, without_times
from traceflops.facts import Fact, fact
from traceflops.flops.analytic.rates import Peak
from traceflops.flops.analytic.run import NO_CHECKPOINT, Checkpoint, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops, obstacle
from traceflops.flops.analytic.run_utilisation import PeakChoice, plain_dtype, unit_of
from traceflops.flops.mfu_waterfall import Peaks
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.traced.executed import Executed
from traceflops.remedies import advice
from traceflops.table.columns import numbers
from traceflops.table.grouping import distinct
from traceflops.units import decimal
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import find_marked_steps

NS_PER_S: Final = 10**9
NEARLY_ALL: Final = Fraction(95, 100)
"""A data type with at least this share of the counted FLOPs stands for all of them."""


class JobSize(Struct, frozen=True):
    """The devices of the whole job, and how much of it is in the chosen windows.

    `told_by` is the source of `devices`; `shown` of them are in the trace. `windows` is the number
    of step windows, one per device and step, and `window_ns` their total length; `host_ns` is the
    length of the host's markers of these steps, or None. `lack` is why a described step cannot be
    compared, None if the trace shows steps.
    """

    devices: int
    told_by: Fact
    shown: int
    windows: int
    window_ns: int
    host_ns: int | None
    lack: MissingInput | None

    @property
    def seconds(self) -> Fraction | None:
        """Return the mean length of a step's window on a device; None without steps."""
        if not self.windows or not self.window_ns:
            return None
        return Fraction(self.window_ns, self.windows * NS_PER_S)


def job_size(prepared: Prepared, gpus: int | None = None) -> JobSize:
    """Return the size of the job: by the option `gpus`, else by world sizes, else by the trace."""
    trace = prepared.trace
    sizes = [size for size in trace.processes["world_size"].to_pylist() if size]
    busy = distinct(numbers(trace.activities["device"])).tolist()  # with activities, chosen or not
    if trace.runs:  # several runs on one GPU, as a device each, count as one
        busy = list({trace.runs[device][0] for device in busy})
    if gpus is not None:
        devices, told_by = gpus, fact("job-size.option")
    elif sizes:
        devices, told_by = max(*sizes, len(busy)), fact("job-size.world-size")
    else:
        devices, told_by = len(busy), fact("job-size.trace")
    used = [w for windows in prepared.windows.values() for w in windows if w.used]
    steps = [window for window in used if window.role == "step"]
    lack = None
    if not steps and prepared.selection.is_time_range:
        lack = MissingInput(fact("missing.time-range"), fact("missing.select-steps"))
    elif not steps:
        how = fact("missing.mark-steps", how=advice(trace, "steps"))
        lack = MissingInput(fact("missing.no-steps"), how)
    return JobSize(
        devices=max(devices, 1),
        told_by=told_by,
        shown=len(prepared.windows),
        windows=len(steps),
        window_ns=sum(window.dur_ns for window in steps),
        host_ns=host_time(prepared) if steps else None,
        lack=lack,
    )


def host_time(prepared: Prepared) -> int | None:
    """Return the ns that the chosen steps take by the host's markers, None if one has no marker."""
    marked = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    if marked is None or prepared.plan.choice.source != marked.source:  # steps without markers
        return None
    process = numbers(prepared.trace.devices["process"])
    total_ns = 0
    for device, windows in prepared.windows.items():
        chosen = [window.step for window in windows if window.used and window.step is not None]
        if not chosen:
            continue
        if (steps := marked.by_process.get(int(process[device]))) is None:
            return None
        step_numbers = prepared.plan.layout.numbers[device].tolist()
        durations_ns = (steps.end_ns - steps.start_ns).tolist()
        duration_of = dict(zip(step_numbers, durations_ns, strict=True))
        if not {*chosen} <= duration_of.keys():
            return None
        total_ns += sum(duration_of[step] for step in chosen)
    return total_ns or None


def peak_in_trace(measured: Measurement, prepared: Prepared, dtype: str | None) -> PeakChoice:
    """Return the peak of a device of the trace for `dtype`, or why there is none.

    Without `dtype` it is that of the type of nearly all FLOPs counted in the trace. If the peaks of
    devices differ, it is their mean by chosen time: 600 for 3 s and 1000 for 1 s are 700.
    """
    plain = plain_dtype(dtype) if dtype is not None else main_type(measured.executed)
    devices, kinds = measured.devices, prepared.trace.devices["type"].to_pylist()
    if all(kinds[device.device] == "cpu" for device in devices):
        lack = without_times(prepared.trace, advice(prepared.trace, "device work"))
        return PeakChoice(None, dtype=plain, lack=lack)
    for device in devices:
        if not device.rates:
            return PeakChoice(None, dtype=plain, lack=device.match.lack)
    specs = {d.match.spec.id: d.match.spec for d in devices if d.match.spec is not None}
    spec = next(iter(specs.values())) if len(specs) == 1 else None
    label = f"{plain} dense"
    if any(device.given for device in devices):  # a rate of the user is for all types
        rates = [max(device.rates.values()) for device in devices]
        label = "given" if dtype is None else f"{plain} given"
    elif plain is None:
        types = tuple(sorted(measured.executed.dtypes))
        what = fact("missing.several-dtypes", types=types) if types else fact("missing.no-dtype")
        return PeakChoice(None, spec, lack=MissingInput(what, fact("missing.name-dtype")))
    elif without := [device for device in devices if device.rates.get(plain) is None]:
        what = fact("missing.device-rate", dtype=plain[:20], device=without[0].product)
        return PeakChoice(None, spec, plain, MissingInput(what, GIVE_PEAK))
    else:
        rates = [device.rates[plain] for device in devices]
    if len(set(rates)) == 1:
        return PeakChoice(Peak(Fraction(rates[0]), label), spec, plain)
    windows = [prepared.windows[device.device] for device in devices]
    chosen_ns = [sum(one.dur_ns for one in own if one.used) for own in windows]
    weights = chosen_ns if any(chosen_ns) else [1] * len(devices)
    mean = Fraction(sum(map(mul, rates, weights)), sum(weights))
    label = f"{label}, average over GPUs," if any(chosen_ns) else label
    return PeakChoice(Peak(mean, label), spec, plain)


def main_type(done: Executed) -> str | None:
    """Return the data type of nearly all counted FLOPs, None if they are of several types."""
    sums = done.flops_by_type
    nearly_all = NEARLY_ALL * sums.total()
    return next((dtype for dtype, flops in sums.items() if flops >= nearly_all), None)


SPARE: Final = ("experts", "tokens")
"""Kinds of padding (of experts' rows, of tokens) that look like needed rows in a trace."""
AGREE: Final = Fraction(2, 100)  # up to here two counts agree; beyond, description and trace differ


def visible(card: ModelCard, run: Run, *, recomputed: bool = False) -> Fraction:
    """Return the model FLOPs of one step that a trace shows if the description holds.

    No profiler records which rows are padding, so padded tokens and vocabulary count as real. With
    `recomputed`, a recomputed forward counts, too.
    """
    if card.padded_vocab is not None:
        card = replace(card, vocab=card.padded_vocab, padded_vocab=None)
    if run.shape(card).padded:
        # Drop all fields on real tokens, so that every token is real. `tokens` is certain to be the
        # computed ones only if real tokens are given; else they may be those of the documents.
        tokens = run.tokens if run.real_tokens is not None else None
        run = replace(run, real_tokens=None, documents=(), tokens=tokens)
        run = replace(run, seq_sum=None, seq_square_sum=None, sequences=None)
    run = run if recomputed else replace(run, checkpoint=NO_CHECKPOINT)
    ledger = model_flops(card, run, default_convention(card, run))
    padding = sum(ledger.total(f"overcompute.padding.{kind}") for kind in SPARE)
    return Fraction(ledger.total("model") + padding + ledger.total(FAMILY) * recomputed)


def expected_flops(card: ModelCard, run: Run, job: JobSize) -> Fraction | None:
    """Return the FLOPs that a description expects in the windows shown; None if unknown."""
    if not job.windows or unit_of(card, run) != "step":
        return None
    if obstacle(card, run, default_convention(card, run)) is not None:
        return None
    return visible(card, run) * job.windows / job.devices


class Counts(Struct, frozen=True):
    """Model FLOPs, padding included: `expected` by the description, `counted` in the trace.

    If lengths, masks or kernels are not known, the true count of the trace lies between `least` and
    `most` (None if unknown).
    """

    expected: Fraction
    counted: int
    least: int
    most: int | None

    @property
    def residual(self) -> Fraction:
        """Return the FLOPs expected beyond those counted, as a share of the counted ones."""
        return self.expected / self.counted - 1

    @property
    def agree(self) -> bool:
        """Return whether the two are at most 2 % apart, or within the trace's range."""
        above = self.most is None or self.expected <= self.most * (1 + AGREE)
        return above and self.expected >= self.least * (1 - AGREE)

    @property
    def is_open(self) -> bool:
        """Return whether the count of the trace is a range."""
        return not self.least == self.counted == self.most

    @property
    def agreement(self) -> Fact:
        """Return a fact on how closely the two agree."""
        if not self.is_open:
            if self.expected == self.counted:
                return fact("reconciliation.to-the-flop")
            return fact("reconciliation.within", apart=abs(self.residual))
        bounds = {"certain": self.least, "it-shows-at-most": self.most}
        # There is no ratio to an unknown bound, or to 0.
        ratios = {of: self.expected / bound for of, bound in bounds.items() if bound}
        apart = tuple(_difference(ratio - 1, of) for of, ratio in ratios.items())
        return fact("reconciliation.within-open", apart=apart)

    @property
    def difference(self) -> Fact:
        """Return a fact on how much more or less the description needs."""
        if self.is_open and self.most and self.expected > self.most:
            return _difference(self.expected / self.most - 1, "shown-at-most")
        if self.is_open and self.least:
            return _difference(self.expected / self.least - 1, "certain")
        return _difference(self.residual, "shown")


def _difference(residual: Fraction, what: str) -> Fact:
    """Return a residual as a fact; `what` is the last part of the code of the reference."""
    of = Fact(f"reconciliation.{what}")
    if not residual:
        return fact("reconciliation.as-much", of=of)
    if residual >= 1:
        return fact("reconciliation.times", times=decimal(residual + 1, 2), of=of)
    code = "reconciliation.more" if residual > 0 else "reconciliation.less"
    return fact(code, apart=abs(residual), of=of)


def counts_of(measured: Measurement, card: ModelCard, run: Run, job: JobSize) -> Counts | None:
    """Return expected and counted FLOPs; None if too few of the trace's FLOPs are known."""
    done = measured.executed
    expected, counted = expected_flops(card, run, job), done.model_flops
    too_little = done.coverage is not None and done.coverage < TOO_LITTLE
    if expected is None or not counted or too_little:
        return None
    more = unknown_flops(done, measured.rates)
    most = counted + more if more is not None else None
    return Counts(expected, counted, done.model_at_least, most)


def unknown_flops(done: Executed, peaks: Mapping[int, Peaks]) -> int | None:
    """Return the most FLOPs of unknown kernels or purpose; None if there is no such bound.

    Kernels without counted FLOPs may have run at the peak. If at least 95 % of all FLOPs are
    counted even then, these kernels count as nothing.
    """
    if done.coverage is None:  # no time to cover
        return 0
    if done.coverage < TOO_LITTLE:
        return None
    unknown = 0
    for time in done.times:
        if time.used and time.uncounted_ns:
            rates = peaks.get(time.device, {})
            # They are taken to compute in the data types that were counted.
            counted_rates = [rate for dtype, rate in rates.items() if dtype in done.dtypes]
            if not counted_rates:
                return None
            unknown += max(counted_rates) * time.uncounted_ns
    is_known = done.executed_flops >= ENOUGH * (done.executed_flops + unknown)
    return done.unsplit_flops + (0 if is_known else unknown)


def beyond_counted(measured: Measurement, card: ModelCard, run: Run, job: JobSize) -> Fact | None:
    """Return a fact if a described run needs more FLOPs than counters measured, else None.

    Counters do not tell the purpose of FLOPs (`unsplit_flops`). If the trace has model FLOPs,
    `counts_of` compares these. Kernels of unknown FLOPs may have run at the peak.
    """
    done = measured.executed
    if not done.unsplit_flops or done.model_flops or not card.complete:
        return None
    needed, most = expected_flops(card, run, job), unknown_flops(done, measured.rates)
    if needed is None or most is None or needed <= most * (1 + AGREE):
        return None
    return fact("reconciliation.beyond-counters", above=needed / most - 1)


# Recomputation (activation checkpointing) is not model work, so it is compared by itself. What full
# checkpointing describes is an upper bound: some frameworks skip the last product of each block.

MISSING, NOT_DESCRIBED = "missing-recompute", "recompute-not-described"
"""Codes of a mismatch: less is recomputed than described, or more."""
TRACES: Final = Fraction(1, 1000)
"""Recomputation that nobody described is ignored up to this share of the executed FLOPs."""
FAMILY: Final = "recompute"
EARLY: Final = Fraction(1, 2)
"""The least share of the described recomputation that is executed where blocks end early."""


class Mismatch(Struct, frozen=True):
    """How recomputation differs from its description."""

    code: str
    what: Fact


class Recomputation(Struct, frozen=True):
    """The FLOPs of recomputation in the chosen windows: `described`, and `counted` in the trace.

    If the trace does not tell for sure what was recomputed, the true count lies between `least` and
    `most`. `executed` is all FLOPs. `mismatch` says how description and trace differ; None if they
    are at most 2 % of `executed` apart.
    """

    checkpoint: Checkpoint
    described: Fraction
    counted: int
    least: int
    most: int
    executed: int
    mismatch: Mismatch | None = None

    @property
    def statement(self) -> Fact | None:
        """Return a fact on how description and trace differ, None if they agree."""
        if self.mismatch is None:
            return None
        if self.mismatch.code == NOT_DESCRIBED:
            code = "recomputation.not-described"
        else:
            code = "recomputation.missing" if self.counted else "recomputation.missing-all"
        # Shares of all executed FLOPs; None if no recomputation is described.
        shown, described = Fraction(self.counted, self.executed), self.described / self.executed
        name = _named(self.checkpoint)
        return fact(code, shown=shown, checkpointing=name, described=described or None)


def recomputation(
    measured: Measurement, card: ModelCard, run: Run, job: JobSize, counts: Counts | None
) -> Recomputation | None:
    """Return described and shown recomputation; None if the two cannot be compared."""
    if counts is None or run.forward_only or not card.complete:
        return None
    done = measured.executed
    cells = [cell for cell in done.used_cells if cell.line.startswith(f"{FAMILY}.")]
    counted = int(done.ledger().total(FAMILY))
    # Open FLOPs are either recomputation or a gradient. Recomputation of 10, 3 of them open, beside
    # gradients of 20, 4 of them open: the true recomputation is 10 - 3 = 7 to 10 + 4 = 14.
    open_here = sum(cell.open_flops for cell in cells)
    open_elsewhere = sum(cell.open_flops for cell in done.used_cells) - open_here
    least = max(sum(cell.at_least for cell in cells) - open_here, 0)
    unknown = unknown_flops(done, measured.rates) or 0
    most = sum(cell.flops for cell in cells) + open_elsewhere + unknown
    # The described recomputation in the windows shown.
    of_step = visible(card, run, recomputed=True) - visible(card, run)
    described = of_step * Fraction(job.windows, job.devices)
    # A described amount may be 2 % off; if none is described, only traces of it are tolerated.
    executed = done.executed_flops
    slack = (AGREE if described else TRACES) * executed
    # A checkpoint of products may stop early, and then recompute less.
    expected = described * (EARLY if counted and run.checkpoint.linear else 1)
    shows_less = most < expected - slack
    shows_none = described != 0 and most == 0
    mismatch = None
    if least > described + slack:
        mismatch = Mismatch(NOT_DESCRIBED, fact("recomputation.of-forward"))
    elif shows_less or shows_none:
        what = fact("recomputation.none-of", checkpointing=_named(run.checkpoint))
        mismatch = Mismatch(MISSING, what)
    return Recomputation(run.checkpoint, described, counted, least, most, executed, mismatch)


def _named(checkpoint: Checkpoint) -> str:
    return "no" if checkpoint == NO_CHECKPOINT else checkpoint.name
