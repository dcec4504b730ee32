"""What a described step does and how long it takes: all of a utilisation but the peak."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from traceflops.errors import UsageError
from traceflops.flops.analytic.conventions import convention
from traceflops.flops.analytic.run import Run, RunShape
from traceflops.flops.analytic.run_flops import default_convention, model_flops
from traceflops.flops.ledger import Ledger, Line
from traceflops.flops.model.blocks import Attention, LatentAttention
from traceflops.flops.model.card import ModelCard

TERA = 10**12
PUBLISHED = "published-tflops"


@dataclass(frozen=True, slots=True)
class DescribedWork:
    """The ledger of one step, its time where that is known, devices, and the tokens computed."""

    ledger: Ledger
    seconds: Fraction | None
    devices: int
    tokens: int | None

    @property
    def tflops_per_device(self) -> Fraction | None:
        """Return the convention's TFLOP/s per device; None where the time is not known."""
        if self.seconds is None:
            return None
        return self.ledger.figure / (self.seconds * self.devices * TERA)

    @property
    def is_counted(self) -> bool:
        """Return whether FLOPs were counted, not taken from a published rate."""
        return self.ledger.convention != PUBLISHED

    @property
    def flops_per_token(self) -> Fraction | None:
        """Return the convention's FLOPs per computed token; None where there are no tokens."""
        return Fraction(self.ledger.figure) / self.tokens if self.tokens else None

    @property
    def tokens_per_s(self) -> Fraction | None:
        """Return computed tokens per second of all devices; None where it is not known."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None


def work(card: ModelCard, run: Run, name: str | None = None) -> DescribedWork:
    """Return what a step does, by the default convention where none is named.

    A published rate of unknown convention is taken as it is, unless one is named. Raises UsageError
    where the convention cannot be computed.
    """
    rule = convention(name or usual_convention(card, run))
    if rule.id == PUBLISHED:
        return _published(run)
    ledger = model_flops(card, run, rule.id)
    shape = run.shape(card)
    return DescribedWork(ledger, _seconds(card, run, shape, ledger), run.devices, shape.slot_tokens)


def usual_convention(card: ModelCard, run: Run) -> str:
    """Return the convention to use where none is asked for."""
    return PUBLISHED if counted_by_nobody_knows_what(run) else default_convention(card, run)


def counted_by_nobody_knows_what(run: Run) -> bool:
    """Return whether all there is is a published rate of unknown convention."""
    return run.achieved is not None and run.achieved_basis is None


def _seconds(card: ModelCard, run: Run, shape: RunShape, ledger: Ledger) -> Fraction | None:
    if run.achieved is None:
        return run.seconds(shape)
    basis = ledger if run.achieved_basis is None else model_flops(card, run, run.achieved_basis)
    return Fraction(basis.figure) / (run.achieved * run.devices)


def _published(run: Run) -> DescribedWork:
    """Return a published rate as the work of one second, nothing counted."""
    if run.achieved is None:
        raise UsageError(f"{PUBLISHED} needs a published rate", "set --achieved (TFLOP/s per GPU)")
    line = Line("model.published", run.achieved * run.devices)
    return DescribedWork(Ledger(PUBLISHED, (line,)), Fraction(1), run.devices, None)


# The least bytes that decoding a described model moves: weights once per pass, and cached keys.
#
# Of experts the least is what one token uses, as all sequences of a pass may choose the same ones.
# Reading and writing activations adds little and is left out.


Bytes = int | Fraction
"""Bytes per element; a fraction for packed types, such as 1/2 for 4 bits."""


def decode_bytes(
    card: ModelCard,
    *,
    passes: int,
    keys: int,
    weight_bytes: Bytes = 2,
    cache_bytes: Bytes = 2,
) -> Fraction:
    """Return the least bytes of so many passes over `keys` cached tokens in all.

    `keys` are the tokens attended to, summed over sequences and passes. Raises UsageError for a
    model whose layers are not described, or that looks back only part of the way: how much each
    sequence has within reach is not known from the sum.
    """
    if not card.complete:
        lacks = ", ".join(card.lacks)
        raise UsageError(f"the model's {lacks} are unknown", "describe its layers")
    weights = passes * card.weights() * Fraction(weight_bytes)
    return weights + keys * cache_elements(card) * Fraction(cache_bytes)


def cache_elements(card: ModelCard) -> int:
    """Return the elements that one token has in the cache of all layers."""
    return sum(count * _elements(block.attention) for count, block in card.blocks)


def _elements(attention: Attention | LatentAttention | None) -> int:
    """Return the elements of keys and values; of the latent vector and its position for MLA."""
    if attention is None:
        return 0
    if attention.mask.kind in ("window", "chunk"):
        raise UsageError("it has layers with limited attention windows", "count them separately")
    if isinstance(attention, LatentAttention):
        return attention.kv_rank + attention.rope_dim
    return 2 * attention.kv_heads * attention.head_dim
