"""A trace held against the description of its run: what the model needs, what was executed.

    expected = F(description) of one step / devices of the job x step windows shown
    residual = expected / counted - 1

`expected` is what the trace should show as model FLOPs, counted exactly, padding included; MFU is
of what the convention counts, over the devices' own windows. Above 2 % the difference gets a
diagnosis. The signed difference of the two MFUs stands outside the waterfall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from traceflops.mfu.budget import executed_bounds
from traceflops.mfu.card import ModelCard
from traceflops.mfu.coverage import TOO_LITTLE
from traceflops.mfu.describedfall import described_fall
from traceflops.mfu.diagnosis import AGREE, Diagnosis, diagnose
from traceflops.mfu.executed import Executed
from traceflops.mfu.figures import decimal, percent
from traceflops.mfu.jobsize import JobSize, job_size
from traceflops.mfu.lacks import Lack
from traceflops.mfu.ledger import Count
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.modelflops import default_convention, obstacle
from traceflops.mfu.passes import passes_of, visible
from traceflops.mfu.rates import Rate
from traceflops.mfu.run import MEASURES, NO_CHECKPOINT, Run
from traceflops.mfu.tracechoice import main_type, peak_in_trace
from traceflops.mfu.utilisation import Utilisation, utilisation
from traceflops.mfu.variants import Seen
from traceflops.mfu.waterfall import Waterfall
from traceflops.prepare import Prepared

ROUGH: Final = (
    "A number of parameters says roughly what is needed: describe the model (--model) for an exact "
    "comparison."
)
UNTIMED: Final[dict[str, Any]] = dict.fromkeys((*MEASURES, "achieved_basis"))
CHECK: Final = "check model, tokens, devices and steps of the description"


@dataclass(frozen=True, slots=True)
class Counts:
    """Model FLOPs of the chosen windows: what a description expects, and what the trace shows.

    `counted` lies between `least` and `most` where the trace leaves lengths, masks or kernels
    open; `most` is None where it is not known.
    """

    expected: Fraction
    counted: int
    least: int
    most: int | None

    @property
    def residual(self) -> Fraction:
        """Return by how much more is described than counted, as a share of what was counted."""
        return self.expected / self.counted - 1

    @property
    def agree(self) -> bool:
        """Return whether the two are at most 2 % apart, or within what the trace leaves open."""
        above = self.most is None or self.expected <= self.most * (1 + AGREE)
        return above and self.expected >= self.least * (1 - AGREE)

    @property
    def exact(self) -> bool:
        """Return whether not a single FLOP is between them."""
        return self.expected == self.counted


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A description and a trace together.

    `described` is the run with the trace's own step time (the mean device window); it has no rate
    where that is not known or cannot be, and `lacks` says why. `counts` is None where the trace
    does not tell FLOPs or steps. `waterfall` is from the description, where the trace alone allows
    none.
    """

    described: Utilisation
    job: JobSize
    counts: Counts | None
    diagnoses: tuple[Diagnosis, ...]
    waterfall: Waterfall | None
    lacks: tuple[Lack, ...]
    measured_mfu: Fraction | None

    @property
    def rate(self) -> Rate | None:
        """Return MFU and HFU of the description over the device windows, if they can be."""
        return self.described.rate

    @property
    def host_mfu(self) -> Fraction | None:
        """Return the same MFU over the host's step markers in place of the device windows."""
        rate, host_ns = self.rate, self.job.host_ns
        if rate is None or rate.is_hfu or host_ns is None:
            return None
        return rate.mfu * self.job.window_ns / host_ns

    @property
    def needed(self) -> Fraction | None:
        """Return what the convention counts for the chosen windows; None without steps."""
        return _in_windows(self.described.work.ledger.figure, self.job)

    @property
    def gap(self) -> Fraction | None:
        """Return (needed - useful) / budget: the described MFU less that of the trace."""
        if self.rate is None or self.rate.is_hfu or self.measured_mfu is None:
            return None
        return self.rate.mfu - self.measured_mfu

    @property
    def residual(self) -> Fraction | None:
        """Return by how much more is described than counted, None where it is not known."""
        return self.counts.residual if self.counts is not None else None

    @property
    def agree(self) -> bool | None:
        """Return whether description and trace agree, None where nothing can be compared."""
        return self.counts.agree if self.counts is not None else None

    @property
    def fitting(self) -> tuple[Diagnosis, ...]:
        """Return the diagnoses that explain the difference, the simplest first."""
        return tuple(one for one in self.diagnoses if one.fits)

    @property
    def sentence(self) -> str:
        """Return in words how description and trace compare, "" where they cannot be."""
        if self.counts is None:
            return ""
        if self.counts.exact:
            return "Description and trace agree to the FLOP."
        apart = percent(abs(self.counts.residual))
        if self.counts.agree and abs(self.counts.residual) <= AGREE:
            return f"Description and trace agree within {apart}."
        if self.counts.agree:
            return (
                "Description and trace agree within what the trace leaves open: the description "
                f"needs {_difference(self.counts.residual)} for certain."
            )
        return f"The description needs {_difference(self.counts.residual)}. {self._finding}"

    @property
    def in_doubt(self) -> Utilisation:
        """Return the described run, with the finding as its first note where there is one."""
        if self.agree is not False:
            return self.described
        notes = (self.sentence, *self.described.notes)
        return replace(self.described, notes=notes)

    @property
    def _finding(self) -> str:
        if not self.described.card.complete:
            return ROUGH
        if not self.diagnoses:
            return f"Nothing known explains it: {CHECK}."
        best, *others = self.diagnoses
        if best.fits:
            also = [one for one in others if one.fits and one.score <= best.score + 1]
            return f"It fits if {'; or if '.join(one.words for one in (best, *also[:1]))}."
        near = next((one for one in self.diagnoses if one.is_near), None)
        nothing = "Nothing that was tried fits: is it another model, or are sizes wrong?"
        if near is None:
            return nothing
        return f"{nothing} Nearest: {near.words}, which leaves {percent(near.distance)}."


def _more(residual: Fraction) -> str:
    return f"{percent(abs(residual))} {'more' if residual > 0 else 'less'}"


def _difference(residual: Fraction) -> str:
    """Return how a description compares with a trace, in words."""
    if residual >= 1:
        return f"{decimal(residual + 1, 2)} times what the trace shows"
    return f"{_more(residual)} than the trace shows"


def reconcile(
    measured: Measurement,
    prepared: Prepared,
    card: ModelCard,
    run: Run,
    convention: str | None = None,
    gpus: int | None = None,
) -> Reconciliation:
    """Return what a description says of a trace, and whether the two agree.

    `run` describes a step of the whole job; its devices are `gpus`, or else those that the trace
    tells, and its time is the trace's. Raises UsageError where FLOPs cannot be counted.
    """
    job = job_size(prepared, gpus)
    run = replace(replace(run, **UNTIMED), devices=job.devices, step_seconds=job.seconds)
    choice = peak_in_trace(measured, prepared, run.dtype)
    described = utilisation(card, run, choice, convention)
    counts = _counts(measured, described, job)
    notes = (job.note, *described.notes, *_doubts(measured.executed, described, counts))
    described = replace(described, notes=notes)
    lacks, fall = _lacks(described, job), None
    if measured.waterfall is None and described.rate is not None and not lacks:
        fall, lacks = described_fall(described, prepared, job)
    if lacks:
        described = replace(described, rate=None)
    diagnoses = _diagnoses(measured, described, job, counts)
    return Reconciliation(described, job, counts, diagnoses, fall, lacks, measured.mfu)


def _diagnoses(
    measured: Measurement, described: Utilisation, job: JobSize, counts: Counts | None
) -> tuple[Diagnosis, ...]:
    """Return what may be different, where the two do not agree; a rule of thumb says too little."""
    if counts is None or counts.agree or not described.card.complete:
        return ()
    return diagnose(described.card, described.run, _seen(measured.executed, job), job.known)


def _lacks(described: Utilisation, job: JobSize) -> tuple[Lack, ...]:
    """Return what keeps MFU of the description back."""
    choice, found = described.choice, []
    if job.lack is not None:
        found.append(job.lack)
    if choice.peak is None:
        found.append(Lack(choice.problem, choice.remedy))
    rate = described.rate
    if rate is not None and not described.is_possible:
        value = percent(max(rate.mfu, rate.hfu))
        problem = f"what is described would be {value} of the peak ({rate.convention})"
        found.append(Lack(problem, CHECK))
    return tuple(found)


def _doubts(done: Executed, described: Utilisation, counts: Counts | None) -> Iterator[str]:
    """Yield in what description and trace differ besides their model FLOPs."""
    shown, choice = main_type(done), described.choice
    if described.run.dtype is not None and shown is not None and choice.dtype != shown:
        yield f"The products in the trace are {shown}; --dtype has {choice.dtype} as the peak."
    if (problem := _uncountable(described)) is not None:
        yield f"Description and trace are not compared: {problem}."
    if counts is None:
        return
    recomputed = done.ledger().total("recompute")
    said = described.run.checkpoint
    if recomputed > AGREE * done.executed_flops and said == NO_CHECKPOINT:
        share = percent(Fraction(recomputed, done.executed_flops))
        yield (
            f"Of what the trace shows {share} is recomputation; the description has none "
            "(--checkpointing), so its HFU is without."
        )
    if not recomputed and said != NO_CHECKPOINT:
        yield (
            f"The description has checkpointing ({said.name}), and the trace shows no "
            "recomputation: the described HFU is with it, that of the trace without."
        )


def _in_windows(flops: Count, job: JobSize) -> Fraction | None:
    """Return what of a step's FLOPs falls to the windows shown."""
    return Fraction(flops) * job.windows / job.devices if job.windows else None


def _counts(measured: Measurement, described: Utilisation, job: JobSize) -> Counts | None:
    done = measured.executed
    coverage = done.coverage
    too_little = coverage is not None and coverage < TOO_LITTLE
    if not job.windows or not done.model_flops or too_little or described.unit != "step":
        return None
    if described.work.tokens is None or _uncountable(described) is not None:
        return None
    expected = visible(described.card, described.run).total * job.windows / job.devices
    model = [cell for cell in done.select() if cell.line.startswith("model.")]
    counted = sum(cell.flops for cell in model)
    least = sum(cell.at_least for cell in model)
    return Counts(expected, counted, least, _most(measured, counted))


def _uncountable(described: Utilisation) -> str | None:
    """Return why the description cannot be counted exactly, whatever convention was asked for."""
    card, run = described.card, described.run
    return obstacle(card, run, default_convention(card, run))


def _most(measured: Measurement, counted: int) -> int | None:
    """Return the most that model FLOPs can be, with unknown compute time at the peak."""
    done = measured.executed
    if done.coverage is None:
        return counted
    bounds = executed_bounds(done, {one.device: one.rates for one in measured.devices})
    return counted + bounds.at_most - done.executed_flops if bounds is not None else None


def _seen(done: Executed, job: JobSize) -> Seen:
    """Return what the trace shows of one device in one step."""
    ledger = done.ledger()
    return Seen(
        passes_of(ledger).times(Fraction(1, job.windows)),
        Fraction(ledger.total("model.matmul.forward.adapter"), job.windows),
        Fraction(ledger.total("model.matmul.forward.logits"), job.windows),
    )
