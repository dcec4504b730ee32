"""The words that describe a run, and what they say together.

The same words are options of the command line (`--real-tokens 900`) and keys of the description
that a trace carries (`"real_tokens": 900`); both end here, so both mean the same. Values are text:
`405e9`, `16k` and `0.75,1` stay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from traceflops.errors import UsageError
from traceflops.flops import (
    Lora,
    ModelCard,
    parse_checkpoint,
    why_impossible,
    with_capacity,
    with_mtp,
    with_padded_vocab,
)
from traceflops.units import decimal_thousands, one_of, parse_count, parse_lengths, parse_rate

T = TypeVar("T")

TOKEN_COUNTS = (
    *("batch", "seq", "tokens", "real_tokens", "seq_sum", "seq_square_sum", "sequences"),
    *("encoder_seq", "cached"),
)
TRAINS = "no_forward_only"
"""The flag that says that a run is no inference."""
_OF_TRAINING = frozenset(
    ("lora", "lora_rank", "lora_params", "frozen", "frozen_layers", "checkpointing")
)


@dataclass(frozen=True, slots=True)
class Words:
    """Words with their values, and the flags that are set; `dashed` where they are options."""

    values: Mapping[str, str]
    flags: frozenset[str] = field(default_factory=frozenset)
    dashed: bool = False

    def called(self, word: str) -> str:
        """Return a word as its user writes it."""
        return f"--{word.replace('_', '-')}" if self.dashed else word

    def read(self, word: str, parse: Callable[[str, str], T]) -> T | None:
        """Return what a word says, None where it is not given."""
        text = self.values.get(word)
        return parse(self.called(word), text) if text is not None else None

    def listed(self, word: str) -> tuple[str, ...]:
        """Return the words of a list separated by commas."""
        parts = self.values.get(word, "").split(",")
        return tuple(part.strip() for part in parts if part.strip())


def adjusted(card: ModelCard, words: Words) -> ModelCard:
    """Return the card with what the words change of it. Raises UsageError."""
    if (modules := words.read("mtp", parse_count)) is not None:
        card = with_mtp(card, modules)
    if (rows := words.read("padded_vocab", parse_count)) is not None:
        card = with_padded_vocab(card, rows)
    capacity = words.read("expert_capacity", lambda name, text: parse_rate(name, text, "1.25"))
    return with_capacity(card, capacity) if capacity is not None else card


def _token_settings(card: ModelCard, words: Words) -> dict[str, Any]:
    """Return what one step works on."""
    called = words.called
    forward_only = _forward_only(words)
    if "cached" in words.values and not forward_only:  # something says that it is training
        raise UsageError(f"{called('cached')} is for decoding", f"add {called('forward_only')}")
    if "encoder_seq" in words.values and card.encoder is None:
        raise UsageError(f"{card.name} has no encoder", f"remove {called('encoder_seq')}")
    counts = {word: words.read(word, parse_count) for word in TOKEN_COUNTS}
    settings: dict[str, Any] = {word: value for word, value in counts.items() if value is not None}
    if (lengths := words.read("documents", parse_lengths)) is not None:
        settings["documents"] = lengths
    return {**settings, "forward_only": forward_only, "notes": tuple(_binary(words))}


def _forward_only(words: Words) -> bool | None:
    """Return whether a run is inference, None where no word says so or says what is trained.

    What decodes has no backward pass.
    """
    if "forward_only" in words.flags:
        return True
    says = TRAINS in words.flags or not _OF_TRAINING.isdisjoint({*words.values, *words.flags})
    return False if says else "cached" in words.values or None


def _binary(words: Words) -> Iterator[str]:
    """Yield a note on each number of thousands that may be meant as so many 1,024."""
    for word in TOKEN_COUNTS:
        if (number := decimal_thousands(words.values.get(word, ""))) is not None:
            yield (
                f"{words.called(word)} {words.values[word]} is {number * 1000:,}; {number}Ki is "
                f"{number * 1024:,}"
            )


def _training_settings(card: ModelCard, words: Words) -> dict[str, Any]:
    """Return what has gradients, and what is computed twice."""
    called = words.called
    settings: dict[str, Any] = {"lora": _adapters(card, words), "frozen": _frozen(words)}
    if (layers := words.read("frozen_layers", parse_count)) is not None:
        if layers > card.layers:
            raise UsageError(
                f"{called('frozen_layers')} {layers} exceeds the {card.layers} known layers",
                "give at most that many",
            )
        settings["frozen_layers"] = layers
    if (checkpoint := words.read("checkpointing", parse_checkpoint)) is not None:
        if "forward_only" in words.flags:
            raise UsageError(
                f"{called('checkpointing')} and {called('forward_only')} exclude each other",
                "remove one: without a backward pass nothing is recomputed",
            )
        settings["checkpoint"] = checkpoint
    if (kernel := words.read("attention_kernel", parse_kernel)) is not None:
        settings["attention_kernel"] = kernel
    return settings


def check_sums(words: Words) -> None:
    """Refuse sums of lengths that no lengths have. Raises UsageError.

    Of what was written; the means over steps that marks give are no sums of one step.
    """
    named = ("seq_sum", "seq_square_sum", "sequences")
    total, squares, count = (words.read(word, parse_count) for word in named)
    if total is None or squares is None:
        return
    if problem := why_impossible(total, squares, count):
        which = " and ".join(words.called(word) for word in named[:2])
        raise UsageError(f"{which} cannot be right: {problem}", "correct one of them")


def run_settings(card: ModelCard, words: Words) -> dict[str, Any]:
    """Return the fields of the run that the words give, but its time. Raises UsageError."""
    return {
        "devices": words.read("gpus", parse_count) or 1,
        "dtype": words.values.get("dtype"),
        **_token_settings(card, words),
        **_training_settings(card, words),
    }


def _frozen(words: Words) -> frozenset[str]:
    parts = words.listed("frozen")
    sized = "lora_rank" in words.values or "lora_params" in words.values
    return frozenset(("all", *parts) if "lora" in words.flags and not sized else parts)


def _adapters(card: ModelCard, words: Words) -> Lora | None:
    called = words.called
    one_of({called(word): words.values.get(word) for word in ("lora_rank", "lora_params")})
    if "lora_targets" in words.values and "lora_rank" not in words.values:
        raise UsageError(
            f"{called('lora_targets')} needs the rank of the adapters",
            f"add {called('lora_rank')} R",
        )
    if (params := words.read("lora_params", parse_count)) is not None:
        return Lora(params=params)
    rank = words.read("lora_rank", parse_count)
    if rank is None:
        return None
    if not card.complete or not card.blocks:
        raise UsageError(
            f"{called('lora_rank')} is not enough: the matrices of {card.name} are unknown",
            f"set {called('lora_params')}, or describe the model with {called('model')}",
        )
    return Lora(rank=rank, targets=words.listed("lora_targets"))


def parse_kernel(name: str, text: str) -> str:
    """Return `flash` or `unfused`."""
    kind = text.strip().lower()
    if kind not in ("flash", "unfused"):
        raise UsageError(f"{name} is {text[:40]!r}", "use flash or unfused")
    return kind
