"""FLOPs that a description expects and a trace shows: by pass, in all, and of recomputation."""

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
"""Rows that are computed beyond those needed, and that no trace tells from these."""
AGREE: Final = Fraction(2, 100)  # up to here two counts agree; beyond, description and trace differ


def visible(card: ModelCard, run: Run, *, recomputed: bool = False) -> Fraction:
    """Return what a trace shows as model FLOPs of one step if the description holds.

    No profiler records which rows are padding, so padded tokens and vocabulary count as real. With
    `recomputed`, a recomputed forward counts, too: for traces in which it cannot be told apart.
    """
    if card.padded_vocab is not None:
        card = replace(card, vocab=card.padded_vocab, padded_vocab=None)
    if run.shape(card).padded:
        # Drop all words on real tokens, so that every token is one. `tokens` are the computed ones
        # only beside real tokens; else they may be those of the documents.
        tokens = run.tokens if run.real_tokens is not None else None
        run = replace(run, real_tokens=None, documents=(), tokens=tokens)
        run = replace(run, seq_sum=None, seq_square_sum=None, sequences=None)
    run = run if recomputed else replace(run, checkpoint=NO_CHECKPOINT)
    ledger = model_flops(card, run, default_convention(card, run))
    padding = sum(ledger.total(f"overcompute.padding.{kind}") for kind in SPARE)
    return Fraction(ledger.total("model") + padding + ledger.total(FAMILY) * recomputed)


def expected_flops(card: ModelCard, run: Run, job: JobSize) -> Fraction | None:
    """Return the FLOPs that a description expects in the windows shown; None if not countable."""
    if not job.windows or unit_of(card, run) != "step":
        return None
    if obstacle(card, run, default_convention(card, run)) is not None:
        return None
    return visible(card, run) * job.windows / job.devices


class Counts(Struct, frozen=True):
    """Model FLOPs, padding included: `expected` by the description, `counted` in the trace.

    If lengths, masks or kernels are open, the true number lies between `least` and `most`, which is
    None if unknown.
    """

    expected: Fraction
    counted: int
    least: int
    most: int | None

    @property
    def residual(self) -> Fraction:
        """Return how much more is described than counted, as a share of what was counted."""
        return self.expected / self.counted - 1

    @property
    def agree(self) -> bool:
        """Return whether the two are at most 2 % apart, or within the trace's range."""
        above = self.most is None or self.expected <= self.most * (1 + AGREE)
        return above and self.expected >= self.least * (1 - AGREE)

    @property
    def is_open(self) -> bool:
        """Return whether what the trace shows is a range."""
        return not self.least == self.counted == self.most

    @property
    def agreement(self) -> Fact:
        """Return how far the two agree."""
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
        """Return how much more or less the description needs."""
        if self.is_open and self.most and self.expected > self.most:
            return _difference(self.expected / self.most - 1, "shown-at-most")
        if self.is_open and self.least:
            return _difference(self.expected / self.least - 1, "certain")
        return _difference(self.residual, "shown")


def _difference(residual: Fraction, what: str) -> Fact:
    """Return a residual as a fact; `what` ends the code of what it is compared with."""
    of = Fact(f"reconciliation.{what}")
    if not residual:
        return fact("reconciliation.as-much", of=of)
    if residual >= 1:
        return fact("reconciliation.times", times=decimal(residual + 1, 2), of=of)
    code = "reconciliation.more" if residual > 0 else "reconciliation.less"
    return fact(code, apart=abs(residual), of=of)


def counts_of(measured: Measurement, card: ModelCard, run: Run, job: JobSize) -> Counts | None:
    """Return described and counted FLOPs, None if the trace tells too little."""
    done = measured.executed
    expected, counted = expected_flops(card, run, job), done.model_flops
    too_little = done.coverage is not None and done.coverage < TOO_LITTLE
    if expected is None or not counted or too_little:
        return None
    more = unknown_flops(done, measured.rates)
    most = counted + more if more is not None else None
    return Counts(expected, counted, done.model_at_least, most)


def unknown_flops(done: Executed, peaks: Mapping[int, Peaks]) -> int | None:
    """Return the most FLOPs of unknown kernels or purpose; None if that is not known, either.

    Kernels without counted FLOPs may have run at the peak. If at least 95 % are counted even then,
    these kernels count as nothing.
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
    """Return that a described run needs more FLOPs than counters measured, None if it does not.

    Kernels of unknown FLOPs may have run at the peak. `run` has the devices of the job. Where the
    trace tells model FLOPs, `counts_of` compares these instead.
    """
    done = measured.executed
    if not done.unsplit_flops or done.model_flops or not card.complete:
        return None
    needed, most = expected_flops(card, run, job), unknown_flops(done, measured.rates)
    if needed is None or most is None or needed <= most * (1 + AGREE):
        return None
    return fact("reconciliation.beyond-counters", above=needed / most - 1)


# Recomputation (activation checkpointing) is not model work, so it is compared by itself. Full
# checkpointing is the most there is: checkpoints that stop early skip each block's last product.

MISSING, NOT_DESCRIBED = "missing-recompute", "recompute-not-described"
"""Codes of a mismatch: less is recomputed than described, or more."""
TRACES: Final = Fraction(1, 1000)
"""Up to this share of what was executed recomputation may go without saying."""
FAMILY: Final = "recompute"
EARLY: Final = Fraction(1, 2)
"""So much of what full checkpointing describes is recomputed at least, where it stops early."""


class Mismatch(Struct, frozen=True):
    """How recomputation differs from its description."""

    code: str
    what: Fact


class Recomputation(Struct, frozen=True):
    """Recomputation in the chosen windows: as described, and as the trace shows it.

    `counted` lies between `least` and `most` if the trace leaves open what was recomputed.
    `executed` are all FLOPs. `mismatch` says how the two differ; None if they are at most 2 % of
    these apart.
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
        """Return how the two differ, None if they agree."""
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
    least, most = (sum(getattr(cell, name) for cell in cells) for name in ("at_least", "flops"))
    # Open FLOPs are recomputation or a gradient: counted as the former, they may be the latter, and
    # the other way round.
    least -= sum(cell.open_flops for cell in cells)
    most += sum(cell.open_flops for cell in done.used_cells) - sum(c.open_flops for c in cells)
    least, most = max(least, 0), most + (unknown_flops(done, measured.rates) or 0)
    counted = int(done.ledger().total(FAMILY))
    # The described recomputation in the windows shown.
    of_step = visible(card, run, recomputed=True) - visible(card, run)
    described = of_step * Fraction(job.windows, job.devices)
    # What is described may be miscounted a little; of what is not, only traces are excused.
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
