"""Recomputation (activation checkpointing): as described, and as the trace shows it.

It is no model work, so model FLOPs agree whatever is said of it: it is a claim of its own.
Checkpoints that stop early leave out the last product of each block, so full checkpointing
describes the most there can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.flops import FULL_CHECKPOINT, NO_CHECKPOINT, SELECTIVE, Checkpoint, ModelCard, Run
from traceflops.mfu.checked.job_size import JobSize
from traceflops.mfu.checked.passes import AGREE, Counts, Passes, unknown_flops, visible
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.executed import Executed
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
            said = f"the description has {_named(self.checkpoint)} checkpointing"
            if self.described:
                said += f", which is {exact_percent(self.described / self.executed)}"
            return (
                f"recomputation is not as described: {shown} of the executed FLOPs "
                f"are recomputed, and {said}. {self.mismatch.remedy}"
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
    least, most = _bounds(done)
    shown = Recomputation(
        checkpoint=run.checkpoint,
        described=_described(card, run, job).total,
        counted=int(ledger.total(FAMILY)),
        least=least,
        most=most + (unknown_flops(measured.executed, measured.rates) or 0),
        executed=done.executed_flops,
    )
    products = ledger.total("recompute.matmul") + ledger.total("recompute.conv")
    seen = (Fraction(products), Fraction(ledger.total("recompute.attention")))
    whole = _described(card, replace(run, checkpoint=FULL_CHECKPOINT), job)
    return replace(shown, mismatch=_mismatch(shown, _describing(seen, whole)))


def _bounds(done: Executed) -> tuple[int, int]:
    """Return the least and the most that can be recomputed in the chosen windows."""
    cells = [cell for cell in done.select() if cell.line.startswith(f"{FAMILY}.")]
    least, most = (sum(getattr(cell, name) for cell in cells) for name in ("at_least", "flops"))
    for bounds in done.ranges():
        if bounds.line.startswith(f"{FAMILY}."):
            least -= bounds.flops - bounds.at_least
            most += bounds.at_most - bounds.flops
    return max(least, 0), most


def _described(card: ModelCard, run: Run, job: JobSize) -> Passes:
    """Return what is recomputed in the windows shown, if the description holds: forward passes."""
    with_it, without = visible(card, run, recomputed=True), visible(card, run)
    again = Passes(*(more - less for more, less in zip(with_it, without, strict=True)))
    return again.times(Fraction(job.windows, job.devices))


def _mismatch(shown: Recomputation, how: str) -> Mismatch | None:
    """Return how what is recomputed differs from what is described; `how` would describe it."""
    slack = (AGREE if shown.described else TRACES) * shown.executed
    if shown.least > shown.described + slack:
        words = "the backward pass recomputes part of the forward pass"
        return Mismatch(NOT_DESCRIBED, words, how)
    expected = shown.described * (EARLY if shown.counted and shown.checkpoint.linear else 1)
    if shown.most < expected - slack or (shown.described and not shown.most):
        words = f"the recomputation of {_named(shown.checkpoint)} checkpointing is missing"
        off = "Check that it is enabled; --checkpointing none describes what ran"
        return Mismatch(MISSING, words, how if shown.counted else off)
    return None


def _describing(seen: tuple[Fraction, Fraction], whole: Passes) -> str:
    """Return which option describes what a trace recomputes; `whole` is all of the blocks.

    `seen` are the FLOPs of products and convolutions, and of attention.
    """
    of_blocks = (whole.forward, whole.attention_forward)
    products, attention = (
        part / of if of else Fraction(0) for part, of in zip(seen, of_blocks, strict=True)
    )
    every = attention if whole.attention else Fraction(1)
    if EARLY <= products <= 1 + AGREE and EARLY <= every <= 1 + AGREE:
        return f"--checkpointing {FULL_CHECKPOINT.name} describes it"
    if products <= AGREE and abs(attention - 1) <= AGREE:
        return f"--checkpointing {SELECTIVE.name} describes it"
    shares = ",".join(decimal(share, 2) for share in (products, attention))
    return f"--checkpointing {shares} describes it"


def _named(checkpoint: Checkpoint) -> str:
    return "no" if checkpoint == NO_CHECKPOINT else checkpoint.name
