"""What is said of a run, held against its model: what cannot be is refused, what is odd is told."""

from __future__ import annotations

from collections.abc import Iterator

from traceflops.errors import UsageError
from traceflops.flops.analytic.run import Run
from traceflops.flops.model.card import ModelCard


def check_claims(card: ModelCard, run: Run) -> None:
    """Refuse what the model makes impossible. Raises UsageError."""
    _check_frozen(card, run)
    _check_adapters(card, run)
    if run.seq is not None and card.is_convolutional:
        raise UsageError(f"{card.name} has no sequences of tokens", "omit --seq and set --batch")


def doubtful_claims(card: ModelCard, run: Run) -> tuple[str, ...]:
    """Return what is said and does not fit the model, in sentences."""
    return (*card.doubts, *run.notes, *_doubtful_lengths(card, run), *_doubtful_rank(card, run))


def _check_frozen(card: ModelCard, run: Run) -> None:
    """Refuse parts that the model does not have: freezing them would change nothing."""
    parts = run.frozen - {"all"}
    if parts and not card.complete:
        raise UsageError(
            f"the weights in {_listed(parts)} of {card.name} are unknown",
            "freeze all of them, or describe the model (preset, config.json, TOML card)",
        )
    absent = parts - {*card.parts}
    if absent:
        raise UsageError(
            f"{card.name} has no {_listed(absent)} to freeze", f"available: {', '.join(card.parts)}"
        )


def _check_adapters(card: ModelCard, run: Run) -> None:
    lora = run.lora
    if lora is None:
        return
    lora.adapters(card)  # refuses targets that the model lacks
    if lora.params is not None and lora.params > card.total:
        raise UsageError(
            f"adapters with {lora.params:,} parameters are larger than the model ({card.total:,})",
            "give the parameters of the adapters only",
        )
    widths = [min(one.linear.inputs, one.linear.outputs) for one in lora.adapted(card)]
    if lora.rank is not None and lora.rank > max(widths, default=0):
        raise UsageError(
            f"LoRA rank {lora.rank} exceeds the width of every matrix ({max(widths, default=0)})",
            "typical ranks are 8 to 256",
        )


def _doubtful_rank(card: ModelCard, run: Run) -> Iterator[str]:
    """Yield which matrices are narrower than the rank of their adapters."""
    lora = run.lora
    if lora is None or lora.rank is None:
        return
    rank = lora.rank
    linears = [one.linear for one in lora.adapted(card)]
    narrow = {one.name: None for one in linears if min(one.inputs, one.outputs) < rank}
    if narrow:
        yield (
            f"LoRA rank {rank:,} exceeds the width of {', '.join(narrow)}, so these "
            "adapters are larger than their matrices"
        )


def _doubtful_lengths(card: ModelCard, run: Run) -> Iterator[str]:
    """Yield which sequences are longer than the model's positions, or than it fixes them."""
    if card.seq is not None and run.seq not in (None, card.seq):
        yield (
            f"{card.name} has {card.seq:,} tokens per sequence by design; using "
            f"{run.seq:,} as given"
        )
        return
    longest = _longest(card, run)
    if 0 < card.positions < longest:
        yield (
            f"sequences of {longest:,} tokens exceed the {card.positions:,} learned "
            f"positions of {card.name}"
        )


def _longest(card: ModelCard, run: Run) -> int:
    """Return the tokens of the longest sequence, cache included; 0 where it is not known."""
    try:
        documents = run.shape(card).documents or ()
    except UsageError:
        documents = ()
    return max((length for length, _ in documents), default=-run.cached) + run.cached


def _listed(parts: frozenset[str]) -> str:
    return " or ".join(sorted(parts))
