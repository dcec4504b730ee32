"""FLOPs that a description expects and that a trace shows: of the model, and of recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from traceflops.facts import Fact, fact
from traceflops.flops.analytic.run import NO_CHECKPOINT, Checkpoint, Run
from traceflops.flops.analytic.run_flops import default_convention, model_flops, obstacle
from traceflops.flops.analytic.run_utilisation import unit_of
from traceflops.flops.mfu_waterfall import Peaks
from traceflops.flops.model.card import ModelCard
from traceflops.mfu.checked.job_size import JobSize
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.coverage import ENOUGH, TOO_LITTLE
from traceflops.mfu.traced.executed import Executed
from traceflops.units import decimal

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
    unknown = 0
    if done.coverage is None:  # no time to cover
        return 0
    if done.coverage < TOO_LITTLE:
        return None
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

    Kernels of unknown FLOPs may have run at the peak. `run` has the devices of the job. If the
    trace has model FLOPs, `counts_of` compares these instead.
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
        code = "recomputation.missing" if self.counted else "recomputation.missing-all"
        if self.mismatch.code == NOT_DESCRIBED:
            code = "recomputation.not-described"
        return fact(
            code,
            shown=Fraction(self.counted, self.executed),
            checkpointing=_named(self.checkpoint),
            described=self.described / self.executed or None,
        )


def recomputation(
    measured: Measurement, card: ModelCard, run: Run, job: JobSize, counts: Counts | None
) -> Recomputation | None:
    """Return described and shown recomputation; None if the two cannot be compared."""
    if counts is None or run.forward_only or not card.complete:
        return None
    done = measured.executed
    cells = [cell for cell in done.used_cells if cell.line.startswith(f"{FAMILY}.")]
    counted = int(done.ledger().total(FAMILY))
    # Open FLOPs are either recomputation or a gradient: those counted as recomputation may be none,
    # and those counted as gradients may be recomputation.
    open_here = sum(cell.open_flops for cell in cells)
    open_elsewhere = sum(cell.open_flops for cell in done.used_cells) - open_here
    least = max(sum(cell.at_least for cell in cells) - open_here, 0)
    unknown = unknown_flops(done, measured.rates) or 0
    most = sum(cell.flops for cell in cells) + open_elsewhere + unknown
    # The described recomputation in the windows shown.
    of_step = visible(card, run, recomputed=True) - visible(card, run)
    described = of_step * Fraction(job.windows, job.devices)
    # A described amount may be 2 % off; if none is described, only traces of it are tolerated.
    slack = (AGREE if described else TRACES) * done.executed_flops
    # A checkpoint of products may stop early, and then recompute less.
    expected = described * (EARLY if counted and run.checkpoint.linear else 1)
    mismatch = None
    if least > described + slack:
        mismatch = Mismatch(NOT_DESCRIBED, fact("recomputation.of-forward"))
    elif most < expected - slack or (described and not most):
        what = fact("recomputation.none-of", checkpointing=_named(run.checkpoint))
        mismatch = Mismatch(MISSING, what)
    return Recomputation(
        run.checkpoint, described, counted, least, most, done.executed_flops, mismatch
    )


def _named(checkpoint: Checkpoint) -> str:
    return "no" if checkpoint == NO_CHECKPOINT else checkpoint.name
