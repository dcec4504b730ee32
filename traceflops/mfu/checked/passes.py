"""FLOPs by what a description and a trace can both tell apart: products and attention, by pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from traceflops.flops import NO_CHECKPOINT, Ledger, ModelCard, Run, default_convention, model_flops

GRADIENTS = ("input_grad", "weight_grad", "gradient")
SPARE: Final = ("experts", "tokens")
"""Rows that are computed beyond those needed, and that no trace tells from these."""


@dataclass(frozen=True, slots=True)
class Passes:
    """FLOPs of matrix products and convolutions, and of attention, forward and backward."""

    forward: Fraction
    backward: Fraction
    attention_forward: Fraction
    attention_backward: Fraction

    @property
    def total(self) -> Fraction:
        """Return the sum."""
        return sum(self, Fraction(0))

    @property
    def attention(self) -> Fraction:
        """Return the FLOPs of attention."""
        return self.attention_forward + self.attention_backward

    def __iter__(self) -> Iterator[Fraction]:
        """Return the four figures in turn."""
        figures = (self.forward, self.backward, self.attention_forward, self.attention_backward)
        return iter(figures)

    def times(self, factor: Fraction) -> Passes:
        """Return all of it so many times."""
        return Passes(*(flops * factor for flops in self))

    def merged(self) -> Passes:
        """Return attention among the products: where no kernel of its own computes it."""
        forward = self.forward + self.attention_forward
        return Passes(forward, self.backward + self.attention_backward, Fraction(0), Fraction(0))

    def products(self) -> Passes:
        """Return the products alone."""
        return Passes(self.forward, self.backward, Fraction(0), Fraction(0))

    def distance(self, other: Passes) -> Fraction:
        """Return by how much they differ in all, pass by pass, as a share of the other."""
        gap = sum((abs(a - b) for a, b in zip(self, other, strict=True)), Fraction(0))
        return gap / other.total


def passes_of(ledger: Ledger, spare: tuple[str, ...] = SPARE) -> Passes:
    """Return the model lines of a ledger, and with the products the padding named."""
    forward = _products(ledger, "forward")
    backward = sum((_products(ledger, name) for name in GRADIENTS), Fraction(0))
    more = Fraction(sum(ledger.total(f"overcompute.padding.{rows}") for rows in spare))
    both = forward + backward
    return Passes(
        forward + (more * forward / both if both else 0),
        backward + (more * backward / both if both else 0),
        Fraction(ledger.total("model.attention.forward")),
        Fraction(ledger.total("model.attention.backward")),
    )


def _products(ledger: Ledger, name: str) -> Fraction:
    return Fraction(ledger.total(f"model.matmul.{name}") + ledger.total(f"model.conv.{name}"))


def visible(card: ModelCard, run: Run, *, recomputed: bool = False) -> Passes:
    """Return what a trace shows as model FLOPs if the description holds, of one step.

    No profiler records which rows are padding, so padded tokens and vocabulary are in. With
    `recomputed` the recomputed forward is in, too: for traces in which it cannot be told apart.
    """
    card, run = _as_computed(card, run)
    run = run if recomputed else replace(run, checkpoint=NO_CHECKPOINT)
    ledger = model_flops(card, run, default_convention(card, run))
    passes = passes_of(ledger)
    if not recomputed:
        return passes
    again = ledger.total("recompute.matmul") + ledger.total("recompute.conv")
    attention = passes.attention_forward + ledger.total("recompute.attention")
    return replace(passes, forward=passes.forward + again, attention_forward=attention)


def without_lengths(run: Run) -> Run:
    """Return a run of which it is not said which tokens are real, or how they are packed."""
    return replace(
        run, real_tokens=None, documents=(), seq_sum=None, seq_square_sum=None, sequences=None
    )


def plain_slots(card: ModelCard, run: Run) -> tuple[int, int] | None:
    """Return length and number of the sequences of a step; None where they are packed."""
    slots = run.shape(card).slots
    packed = run.documents or run.sums is not None
    return None if packed or slots is None or len(slots) != 1 else slots[0]


def _as_computed(card: ModelCard, run: Run) -> tuple[ModelCard, Run]:
    """Return the description with padding counted as if it were real."""
    if card.padded_vocab is not None:
        card = replace(card, vocab=card.padded_vocab, padded_vocab=None)
    if run.shape(card).padded:
        tokens = run.tokens if run.real_tokens is not None else None
        run = replace(without_lengths(run), tokens=tokens)
    return card, run
