"""The description that a trace carries of its own run: its words, each read for itself.

Anybody may have written it: no file is opened because of it, and what cannot be meant is left out
with a note that names the word and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops import (
    PARTS,
    ModelCard,
    bare_model,
    build,
    card_of_config,
    parse_checkpoint,
    preset,
)
from traceflops.mfu.checked.run_options import TOKEN_COUNTS, Words, check_sums, parse_kernel
from traceflops.mfu.checked.token_marks import MarkedTokens
from traceflops.table import Note, Trace
from traceflops.units import LARGEST, parse_count, parse_lengths, parse_rate

WHERE: Final = "the trace's description"
_COUNTS: Final = (
    *(*TOKEN_COUNTS, "gpus", "params", "mtp", "padded_vocab"),
    *("frozen_layers", "lora_rank", "lora_params"),
)
_FLAGS: Final = ("lora", "forward_only")
_MODEL: Final = frozenset(("model", "params", "mtp", "padded_vocab", "expert_capacity"))
PACKED: Final = frozenset(("documents", "seq_sum", "seq_square_sum", "sequences"))
_SUMS: Final = frozenset(("seq_sum", "seq_square_sum", "sequences"))
TOTALS: Final = frozenset(("tokens", "real_tokens"))
_REPLACES: Final[Mapping[str, frozenset[str]]] = {
    "params": _MODEL,
    "batch": PACKED | TOTALS,
    "seq": PACKED | TOTALS,
    "tokens": PACKED | TOTALS | {"batch"},
    "documents": PACKED | TOTALS,
    "seq_sum": PACKED | TOTALS,
    "seq_square_sum": PACKED | TOTALS,
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
    empty: tuple[str, ...] = ()
    """Words that are there without a value: null, or what was read as such."""

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

    def without(self, words: Iterable[str]) -> Description:
        """Return the description without some of its words."""
        kept = {word: text for word, text in self.words.values.items() if word not in words}
        return replace(self, words=replace(self.words, values=kept))

    def with_tokens(self, tokens: MarkedTokens) -> Description:
        """Return the description with the tokens that marks tell: those of the steps shown."""
        values, notes = tokens.over(self.words.values)
        return replace(self, words=replace(self.words, values=values), notes=(*self.notes, *notes))


def description_of(trace: Trace) -> Description | None:
    """Return what a trace says of its run, None where it says nothing."""
    said = trace.source.description
    if not said:
        return None
    return _DescriptionReader(said).read()


@dataclass(frozen=True, slots=True)
class _DescriptionReader:
    """Reads the words of one description, each for itself."""

    said: Mapping[str, object]

    def read(self) -> Description:
        """Return what can be meant, and a note of what cannot."""
        problems: list[str] = []
        values: dict[str, str] = {}
        flags: set[str] = set()
        card = None
        given = {word: value for word, value in self.said.items() if value is not None}
        for word, value in given.items():
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
                named = error.message if word in error.message else f"{word}: {error.message}"
                problems.append(named)
        values = _without_impossible_sums(values, problems)
        card = _model_of_params(card, values, problems)
        empty = tuple(word for word in self.said if word not in given)
        kept = {word: text for word, text in values.items() if word != "params"}
        words = Words(kept, frozenset(flags))
        return Description(card, words, left_out(problems), empty)


def _without_impossible_sums(values: dict[str, str], problems: list[str]) -> dict[str, str]:
    """Return the words without sums that no lengths have."""
    try:
        check_sums(Words(values))
    except TraceflopsError as error:
        problems.append(error.message)
        return {word: text for word, text in values.items() if word not in _SUMS}
    return values


def _model_of_params(
    card: ModelCard | None, values: dict[str, str], problems: list[str]
) -> ModelCard | None:
    """Return the model by its number of parameters, where nothing says it better."""
    if card is not None or "params" not in values:
        return card
    try:
        return bare_model(parse_count("params", values["params"]))
    except TraceflopsError as error:
        problems.append(error.message)
        return None


def left_out(problems: list[str]) -> tuple[Note, ...]:
    """Return the note on words that cannot be used, none where there are no such."""
    if not problems:
        return ()
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    text = f"Ignored in {WHERE}: {'; '.join(problems[:3])}{more}."
    return (Note("dropped", "description-words-left-out", text, len(problems)),)


def _model(value: object) -> ModelCard:
    """Return a preset by its name, or the card or config.json that an object is; never a file."""
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, Mapping):
        raise UsageError("model must be a name or an object", "")
    if "model_type" in value or "text_config" in value:
        return card_of_config(value, "model")
    return build(value, "model")


def _lora(value: object) -> dict[str, str]:
    """Return the words in `lora: {rank, targets, params}`."""
    keys = ("rank", "targets", "params")
    if not isinstance(value, Mapping) or not {*value} <= {*keys}:
        raise UsageError(f"lora must be true, false or an object with {', '.join(keys)}", "")
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
        raise UsageError(f"{word} must be true or false", "")
    return text


def _list(word: str, value: list[object]) -> str:
    if word not in ("documents", "frozen", "lora_targets", "checkpointing"):
        raise UsageError(f"{word} cannot be a list", "")
    return ",".join(_one(word, each) for each in value)


def _one(word: str, value: object) -> str:
    """Return a plain value as text."""
    if word == "frozen" and value is True:
        return "all"
    if isinstance(value, str) and value.isprintable():
        return value
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if not is_number or word in ("dtype", "frozen", "lora_targets", "attention_kernel"):
        raise UsageError(f"{word} cannot be {_said(value)}", "")
    if isinstance(value, int) and abs(value) > LARGEST**2:  # what str() may refuse to print
        raise UsageError(f"{word} is too large", "")
    return str(value)


def _said(value: object) -> str:
    """Return a value that cannot be meant, in words."""
    if isinstance(value, bool):
        return str(value).lower()
    kinds: dict[type, str] = {
        list: "a list",
        dict: "an object",
        str: "text with invalid characters",
    }
    return kinds.get(type(value), "null" if value is None else "a number")


def _check_parts(text: str) -> None:
    for part in text.split(","):
        if part.strip() not in PARTS:
            raise UsageError(f"cannot freeze unknown part {part.strip()[:40]!r}", "")
