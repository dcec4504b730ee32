"""Recomputation (activation checkpointing): as described, and as the trace shows it.

Recomputation is not model work, so it is compared by itself. Checkpoints that stop early leave out
the last product of each block, so full checkpointing describes the most there can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.flops import FULL_CHECKPOINT, NO_CHECKPOINT, SELECTIVE, Checkpoint, ModelCard, Run
from traceflops.mfu.checked.job_size import JobSize
from traceflops.mfu.checked.passes import AGREE, Counts, Passes, unknown_flops, visible
from traceflops.mfu.measurement import Measurement
from traceflops.units import decimal, exact_percent

MISSING, NOT_DESCRIBED = "missing-recompute", "recompute-not-described"
"""Codes of a mismatch: less is recomputed than described, or more."""

TRACES: Final = Fraction(1, 1000)
"""Up to this share of what was executed recomputation may go without saying."""

FAMILY: Final = "recompute"

EARLY: Final = Fraction(1, 2)
"""So much of what full checkpointing describes is recomputed at least, where it stops early."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How recomputation differs from its description, and which option would describe it."""

    code: str
    words: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Recomputation in the chosen windows: as described, and as the trace shows it.

    `counted` lies between `least` and `most` where the trace leaves open what was recomputed.
    `mismatch` says how the two differ, None where they agree within 2 % of what was `executed`.
    """

    checkpoint: Checkpoint
    described: Fraction
    counted: int
    least: int
    most: int
    executed: int
    mismatch: Mismatch | None = None

    @property
    def sentence(self) -> str:
        """Return how the two differ, "" where they agree: the second half of a sentence."""
        if self.mismatch is None:
            return ""
        shown = exact_percent(Fraction(self.counted, self.executed))
        if self.mismatch.code == NOT_DESCRIBED:
            description = f"the description has {_named(self.checkpoint)} checkpointing"
            if self.described:
                description += f", which is {exact_percent(self.described / self.executed)}"
            return (
                f"recomputation is not as described: {shown} of the executed FLOPs "
                f"are recomputed, and {description}. {self.mismatch.remedy}"
            )
        only = f"only {shown} is" if self.counted else "nothing is"
        return (
            f"recomputation is missing: {_named(self.checkpoint)} checkpointing would "
            f"recompute {exact_percent(self.described / self.executed)} of the executed "
            f"FLOPs, but {only} recomputed. {self.mismatch.remedy}"
        )


def recomputation(
    measured: Measurement, card: ModelCard, run: Run, job: JobSize, counts: Counts | None
) -> Recomputation | None:
    """Return what is described and what is shown; None where the two cannot be compared."""
    if counts is None or run.forward_only or not card.complete:
        return None
    done = measured.executed.as_computed
    ledger = done.ledger()
    cells = [cell for cell in done.select() if cell.line.startswith(f"{FAMILY}.")]
    least, most = (sum(getattr(cell, name) for cell in cells) for name in ("at_least", "flops"))
    for bounds in done.ranges():
        if bounds.line.startswith(f"{FAMILY}."):
            least -= bounds.flops - bounds.at_least
            most += bounds.at_most - bounds.flops
    least, most = max(least, 0), most + (unknown_flops(measured.executed, measured.rates) or 0)
    counted, described = int(ledger.total(FAMILY)), _described(card, run, job).total
    slack = (AGREE if described else TRACES) * done.executed_flops
    mismatch = None
    full = _described(card, replace(run, checkpoint=FULL_CHECKPOINT), job)
    products = ledger.total("recompute.matmul") + ledger.total("recompute.conv")
    option = _option(Fraction(products), Fraction(ledger.total("recompute.attention")), full)
    expected = described * (EARLY if counted and run.checkpoint.linear else 1)
    if least > described + slack:
        words = "the backward pass recomputes part of the forward pass"
        mismatch = Mismatch(NOT_DESCRIBED, words, option)
    elif most < expected - slack or (described and not most):
        words = f"the recomputation of {_named(run.checkpoint)} checkpointing is missing"
        off = "Check that it is enabled; --checkpointing none describes what ran"
        mismatch = Mismatch(MISSING, words, option if counted else off)
    return Recomputation(
        run.checkpoint, described, counted, least, most, done.executed_flops, mismatch
    )


def _option(products: Fraction, attention: Fraction, full: Passes) -> str:
    """Return which option describes recomputed FLOPs; `full` is recomputation of all blocks."""
    products = products / full.forward if full.forward else Fraction(0)
    attention = attention / full.attention_forward if full.attention_forward else Fraction(0)
    of_attention = attention if full.attention else Fraction(1)
    if all(EARLY <= share <= 1 + AGREE for share in (products, of_attention)):
        return f"--checkpointing {FULL_CHECKPOINT.name} describes it"
    if products <= AGREE and abs(attention - 1) <= AGREE:
        return f"--checkpointing {SELECTIVE.name} describes it"
    shares = ",".join(decimal(share, 2) for share in (products, attention))
    return f"--checkpointing {shares} describes it"


def _described(card: ModelCard, run: Run, job: JobSize) -> Passes:
    """Return what is recomputed in the windows shown, if the description holds: forward passes."""
    with_it, without = visible(card, run, recomputed=True), visible(card, run)
    again = Passes(*(more - less for more, less in zip(with_it, without, strict=True)))
    return again.times(Fraction(job.windows, job.devices))


def _named(checkpoint: Checkpoint) -> str:
    return "no" if checkpoint == NO_CHECKPOINT else checkpoint.name
