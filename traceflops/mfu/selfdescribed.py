"""What a trace says of its own run, as the card and the run that the same options would give.

A trace may carry a description (docs/selfdescribing.md): the top-level key `traceflops` with the
words of `traceflops mfu`, and marks that tell the tokens of each step. Anybody may have written
it: no file is opened because of it, what cannot be meant is a note, and options win over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from traceflops.errors import TraceflopsError, UsageError
from traceflops.mfu.card import ModelCard
from traceflops.mfu.cardtable import build
from traceflops.mfu.huggingface import card_of_config
from traceflops.mfu.models import bare_model
from traceflops.mfu.presets import preset
from traceflops.mfu.quantities import LARGEST, parse_count, parse_lengths, parse_rate
from traceflops.mfu.run import PARTS, Run, parse_checkpoint
from traceflops.mfu.runwords import TOKEN_COUNTS, Words, adjusted, described_run, parse_kernel
from traceflops.mfu.tokenmarks import Told, told_by_marks
from traceflops.prepare import Prepared
from traceflops.trace import Note, Trace

WHERE: Final = "the trace's description"
_COUNTS: Final = (
    *(*TOKEN_COUNTS, "gpus", "params", "mtp", "padded_vocab"),
    *("frozen_layers", "lora_rank", "lora_params"),
)
_FLAGS: Final = ("lora", "forward_only")
_MODEL: Final = frozenset(("model", "params", "mtp", "padded_vocab", "expert_capacity"))
_PACKED: Final = frozenset(("documents", "seq_sum", "seq_square_sum", "sequences"))
_TOTALS: Final = frozenset(("tokens", "real_tokens"))
_REPLACES: Final[Mapping[str, frozenset[str]]] = {
    "params": _MODEL,
    "batch": _PACKED | _TOTALS,
    "seq": _PACKED | _TOTALS,
    "tokens": _PACKED | _TOTALS | {"batch"},
    "documents": _PACKED | _TOTALS,
    "seq_sum": _PACKED | _TOTALS,
    "seq_square_sum": _PACKED | _TOTALS,
    "lora_rank": frozenset(("lora_params",)),
    "lora_params": frozenset(("lora_rank", "lora_targets")),
}
"""Which words of the trace an option puts aside besides its own: they say the same otherwise."""


@dataclass(frozen=True, slots=True)
class Description:
    """The model that a trace names, None where it names none, and what it says of the run."""

    card: ModelCard | None = None
    words: Words = field(default_factory=lambda: Words({}))
    notes: tuple[Note, ...] = ()

    def with_options(self, card: ModelCard | None, options: Words) -> Description:
        """Return the description with what the options say in its place; `card` is theirs."""
        aside = _MODEL if card is not None else frozenset()
        for word in options.values:
            aside |= _REPLACES.get(word, frozenset())
        kept = {word: text for word, text in self.words.values.items() if word not in aside}
        of_card = _MODEL if card is not None else frozenset()  # its options are in it already
        given = {word: text for word, text in options.values.items() if word not in of_card}
        dashed = bool(options.values or options.flags)
        words = Words({**kept, **given}, self.words.flags | options.flags, dashed)
        return replace(self, card=card or self.card, words=words)

    def with_tokens(self, told: Told) -> Description:
        """Return the description with the tokens that marks tell: those of the steps shown."""
        values, notes = told.over(self.words.values)
        return replace(self, words=replace(self.words, values=values), notes=(*self.notes, *notes))


def description_of(trace: Trace) -> Description | None:
    """Return what a trace says of its run, None where it says nothing."""
    said = trace.source.description
    if not said:
        return None
    return _Reader(said).read()


def card_and_run(description: Description) -> tuple[ModelCard, Run]:
    """Return the model and a step of its run. Raises UsageError where they cannot be."""
    if description.card is None:
        raise UsageError(
            "no model is known: the trace's description names none",
            "add --model NAME, --model config.json or --params 8e9",
        )
    card = adjusted(description.card, description.words)
    run = described_run(card, description.words)
    if run.lora is not None:
        run.lora.adapters(card)  # refuses targets that the model lacks
    return card, run


@dataclass(frozen=True, slots=True)
class SelfDescribed:
    """The model and run of a trace by its own words, and what to say of them."""

    card: ModelCard
    run: Run
    notes: tuple[Note, ...]


def self_described(
    prepared: Prepared, card: ModelCard | None = None, options: Words | None = None
) -> SelfDescribed | tuple[Note, ...]:
    """Return model and run of a prepared trace; options win over what it says itself.

    Without a model, or where what it says cannot be, the notes that say so. Raises UsageError only
    for what the options alone get wrong.
    """
    options = options or Words({}, dashed=True)
    said = description_of(prepared.trace) or Description()
    told = None if _gives_tokens(options) else told_by_marks(prepared)
    whole = said.with_tokens(told) if told is not None else said
    whole = whole.with_options(card, options)
    if whole.card is None:
        return whole.notes
    try:
        found = card_and_run(whole)
    except TraceflopsError as error:
        if card is not None:
            card_and_run(Description(card, options))
        return (*whole.notes, _unused(f"{error.message} ({error.hint})"))
    return SelfDescribed(*found, whole.notes)


def _gives_tokens(options: Words) -> bool:
    """Return whether options say how many tokens a step has; marks are put aside then."""
    return not (_PACKED | _TOTALS | {"batch", "seq"}).isdisjoint(options.values)


def _unused(problem: str) -> Note:
    return Note("dropped", "description-not-used", f"{WHERE.capitalize()} is not used: {problem}.")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the words of one description, each for itself."""

    said: Mapping[str, object]

    def read(self) -> Description:
        """Return what can be meant, and a note of what cannot."""
        problems: list[str] = []
        values: dict[str, str] = {}
        flags: set[str] = set()
        card = None
        for word, value in self.said.items():
            if value is None:
                continue
            try:
                if word == "model":
                    card = _model(value)
                elif word in _FLAGS and isinstance(value, bool):
                    flags |= {word} if value else set()
                elif word == "lora":
                    values |= _lora(value)
                    flags.add(word)
                else:
                    values[word] = _text(word, value)
            except TraceflopsError as error:
                problems.append(error.message)
        params = values.pop("params", None)
        if card is None and params is not None:  # a card says it better
            try:
                card = bare_model(parse_count("params", params))
            except TraceflopsError as error:
                problems.append(error.message)
        return Description(card, Words(values, frozenset(flags)), _notes(problems))


def _notes(problems: list[str]) -> tuple[Note, ...]:
    if not problems:
        return ()
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    text = f"Of {WHERE} was left out: {'; '.join(problems[:3])}{more}."
    return (Note("dropped", "description-words-left-out", text, len(problems)),)


def _model(value: object) -> ModelCard:
    """Return a preset by its name, or the card or config.json that an object is; never a file."""
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, Mapping):
        raise UsageError("model is neither a name nor an object", "")
    if "model_type" in value or "text_config" in value:
        return card_of_config(value, f"{WHERE}, model")
    return build(value, f"{WHERE}, model")


def _lora(value: object) -> dict[str, str]:
    """Return the words in `lora: {rank, targets, params}`."""
    keys = ("rank", "targets", "params")
    if not isinstance(value, Mapping) or not {*value} <= {*keys}:
        raise UsageError(f"lora is neither true nor false nor an object of {', '.join(keys)}", "")
    return {
        f"lora_{key}": _text(f"lora_{key}", value[key])
        for key in keys
        if value.get(key) is not None
    }


def _text(word: str, value: object) -> str:
    """Return the text that the option of this word would have. Raises UsageError."""
    text = _list(word, value) if isinstance(value, list) else _one(word, value)
    if word in _COUNTS:
        parse_count(word, text)
    elif word == "documents":
        parse_lengths(word, text)
    elif word == "expert_capacity":
        parse_rate(word, text)
    elif word == "checkpointing":
        parse_checkpoint(word, text)
    elif word == "attention_kernel":
        parse_kernel(word, text)
    elif word == "frozen":
        _check_parts(text)
    elif word in _FLAGS:
        raise UsageError(f"{word} is neither true nor false", "")
    return text


def _list(word: str, value: list[object]) -> str:
    if word not in ("documents", "frozen", "lora_targets", "checkpointing"):
        raise UsageError(f"{word} is a list", "")
    return ",".join(_one(word, one) for one in value)


def _one(word: str, value: object) -> str:
    """Return a plain value as text."""
    if word == "frozen" and value is True:
        return "all"
    if isinstance(value, str) and value.isprintable():
        return value
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or word in ("dtype", "frozen", "lora_targets", "attention_kernel"):
        raise UsageError(f"{word} is nothing that can be meant", "")
    if isinstance(value, int) and abs(value) > LARGEST**2:  # what str() may refuse to print
        raise UsageError(f"{word} is too large a number", "")
    return str(value)


def _check_parts(text: str) -> None:
    for part in text.split(","):
        if part.strip() not in PARTS:
            raise UsageError(f"no part {part.strip()[:40]!r} can be frozen", "")
