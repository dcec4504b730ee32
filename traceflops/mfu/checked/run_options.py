"""The words that describe a run: options (`--real-tokens 900`), or keys of a trace's description.

The key `"real_tokens": 900` means the same. Values are text: `405e9`, `16k` and `0.75,1` are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.facts import fact
from traceflops.flops.analytic import run
from traceflops.flops.analytic.lengths import why_impossible
from traceflops.flops.analytic.run import Lora, parse_checkpoint
from traceflops.flops.model.blocks import Experts, require
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.families import MTP_NOT_COUNTED
from traceflops.units import decimal_thousands, one_of, parse_count, parse_lengths, parse_rate

TOKEN_COUNTS = (*run.TOKEN_COUNTS, "cached")
TRAINS = "no_forward_only"  # the flag that says that a run is no inference
_OF_ADAPTERS: Final = frozenset(("lora", "lora_rank", "lora_params"))
_OF_TRAINING: Final = _OF_ADAPTERS | {"frozen", "frozen_layers", "checkpointing", TRAINS}


def _parse_kernel(name: str, text: str) -> str:
    """Return `flash` or `unfused`. Raises UsageError for other texts; `name` is the option."""
    kind = text.strip().lower()
    if kind not in ("flash", "unfused"):
        raise UsageError(f"{name} is {text[:40]!r}", "use flash or unfused")
    return kind


_COUNTS: Final = (
    *(*TOKEN_COUNTS, "gpus", "params", "mtp", "padded_vocab"),
    *("frozen_layers", "lora_rank", "lora_params"),
)
PARSERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(_COUNTS, parse_count),
    "documents": parse_lengths,
    "expert_capacity": lambda name, text: parse_rate(name, text, "1.25"),
    "checkpointing": parse_checkpoint,
    "attention_kernel": _parse_kernel,
}
"""By word: the function that reads its text, or raises UsageError for an invalid one."""


class Words(Struct, frozen=True):
    """Words of a run with their values, and flags. Messages write them as options if `dashed`."""

    values: Mapping[str, str]
    flags: frozenset[str] = field(default_factory=frozenset)
    dashed: bool = False

    def called(self, word: str) -> str:
        """Return a word as its user wrote it: `--real-tokens` or `real_tokens`."""
        return f"--{word.replace('_', '-')}" if self.dashed else word

    def read(self, word: str, parse: Callable[[str, str], Any] | None = None) -> Any:
        """Return a word's value by `parse`, else by its parser; None where it is not given."""
        text = self.values.get(word)
        return (parse or PARSERS[word])(self.called(word), text) if text is not None else None

    def listed(self, word: str) -> tuple[str, ...]:
        """Return the words of a list separated by commas."""
        parts = self.values.get(word, "").split(",")
        return tuple(part.strip() for part in parts if part.strip())


def adjusted(card: ModelCard, words: Words) -> ModelCard:
    """Return the card with the MTP modules, padded vocabulary and capacity that the words give.

    Capacity is the rows of experts computed per row needed. Raises UsageError.
    """
    if (modules := words.read("mtp")) is not None:
        notes = tuple(note for note in card.notes if note.code != MTP_NOT_COUNTED)
        card = replace(card, mtp=modules, notes=notes)
    if (rows := words.read("padded_vocab")) is not None:
        has_head = bool(card.vocab and card.head)
        require(has_head, f"the vocabulary of {card.name} is unknown", "describe it with --model")
        problem = f"padded vocabulary {rows} is less than the {card.vocab} of {card.name}"
        require(rows >= card.vocab, problem, "padding adds rows: give the total")
        card = replace(card, padded_vocab=rows)
    if (capacity := words.read("expert_capacity")) is None:
        return card
    has_experts = any(isinstance(block.feed_forward, Experts) for _, block in card.blocks)
    require(has_experts, f"{card.name} has no experts", "remove --expert-capacity")
    blocks = []
    for count, block in card.blocks:
        if isinstance(block.feed_forward, Experts):
            experts = replace(block.feed_forward, capacity=capacity)
            block = replace(block, feed_forward=experts)
        blocks.append((count, block))
    return replace(card, blocks=tuple(blocks))


def check_sums(words: Words) -> None:
    """Raise UsageError if no sequences can have the given sums of lengths."""
    named = ("seq_sum", "seq_square_sum", "sequences")
    total, squares, count = (words.read(word) for word in named)
    if total is None or squares is None:
        return
    if problem := why_impossible(total, squares, count):
        which = " and ".join(words.called(word) for word in named[:2])
        raise UsageError(f"{which} cannot be right: {problem}", "correct one of them")


def run_settings(card: ModelCard, words: Words) -> dict[str, Any]:
    """Return the fields of Run that the words give, except its time. Raises UsageError."""
    called, values = words.called, words.values
    forward_only = _forward_only(words)
    if "encoder_seq" in values and card.encoder is None:
        raise UsageError(f"{card.name} has no encoder", f"remove {called('encoder_seq')}")
    settings: dict[str, Any] = {"dtype": values.get("dtype"), "forward_only": forward_only}
    settings["devices"] = words.read("gpus") or 1
    notes = []
    for word in TOKEN_COUNTS:
        if (count := words.read(word)) is not None:
            settings[word] = count
        # "4k" is read as 4,000: a note says that 4,096 may be meant.
        if (number := decimal_thousands(values.get(word, ""))) is not None:
            option = f"{called(word)} {values[word]}"
            notes.append(fact("described.thousands", option=option, k=number, ki=number * 1024))
    if (lengths := words.read("documents")) is not None:
        settings["documents"] = lengths
    return {**settings, "notes": tuple(notes), **_training_settings(card, words)}


def _forward_only(words: Words) -> bool | None:
    """Return whether the run has no backward pass, None if that is unknown.

    1. The flag `forward_only`: True.
    2. A word of training, such as `lora_rank`: False. Raises UsageError if `cached` is given, too.
    3. The word `cached`, the tokens that are in the cache before decoding: True.
    """
    if "forward_only" in words.flags:
        return True
    if _OF_TRAINING.isdisjoint({*words.values, *words.flags}):
        return True if "cached" in words.values else None
    if "cached" in words.values:
        problem = f"{words.called('cached')} is for decoding"
        raise UsageError(problem, f"add {words.called('forward_only')}")
    return False


def _training_settings(card: ModelCard, words: Words) -> dict[str, Any]:
    """Return the fields of Run on adapters, frozen weights, checkpointing and kernels."""
    called, values, flags = words.called, words.values, words.flags
    settings: dict[str, Any] = {"lora": _lora(card, words)}
    # LoRA adapters of unknown size: all weights are frozen, and the adapters count as nothing.
    has_size = "lora_rank" in values or "lora_params" in values
    implied = ("all",) if "lora" in flags and not has_size else ()
    settings["frozen"] = frozenset((*implied, *words.listed("frozen")))
    if (layers := words.read("frozen_layers")) is not None:
        known = f"the {card.layers} known layers"
        problem = f"{called('frozen_layers')} {layers} exceeds {known}"
        require(layers <= card.layers, problem, "give at most that many")
        settings["frozen_layers"] = layers
    if (checkpoint := words.read("checkpointing")) is not None:
        both = f"{called('checkpointing')} and {called('forward_only')}"
        hint = "remove one: without a backward pass nothing is recomputed"
        require("forward_only" not in flags, f"{both} exclude each other", hint)
        settings["checkpoint"] = checkpoint
    if (kernel := words.read("attention_kernel")) is not None:
        settings["attention_kernel"] = kernel
    return settings


def _lora(card: ModelCard, words: Words) -> Lora | None:
    """Return the LoRA adapters, None without any. Raises UsageError if their size is unclear."""
    called = words.called
    # The rank or the number of parameters, not both.
    one_of({called(word): words.values.get(word) for word in ("lora_rank", "lora_params")})
    if "lora_targets" in words.values:
        problem = f"{called('lora_targets')} needs the rank of the adapters"
        require("lora_rank" in words.values, problem, f"add {called('lora_rank')} R")
    if (params := words.read("lora_params")) is not None:
        return Lora(params=params)
    rank = words.read("lora_rank")
    if rank is None:
        return None
    problem = f"{called('lora_rank')} is not enough: the matrices of {card.name} are unknown"
    hint = f"set {called('lora_params')}, or describe the model with {called('model')}"
    require(card.complete and bool(card.blocks), problem, hint)
    return Lora(rank=rank, targets=words.listed("lora_targets"))
