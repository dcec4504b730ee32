"""The description in a trace of its own run, read as the same options would be: a card and a Run.

A trace may carry a description (docs/selfdescribing.md): the top-level key `traceflops` with the
words of `traceflops mfu`, and marks with the tokens of each step. Options win over it. Invalid
words are left out; if the others contradict each other, none is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops.analytic.conventions import CONVENTIONS
from traceflops.flops.analytic.run import PARTS, Run
from traceflops.flops.analytic.run_flops import default_convention, refusal
from traceflops.flops.analytic.run_utilisation import check_claims, unit_of
from traceflops.flops.model.card import ModelCard
from traceflops.flops.model.card_table import build
from traceflops.flops.model.models import bare_model, card_of_config, preset
from traceflops.mfu.checked import run_options
from traceflops.mfu.checked.run_marks import PACKED, MarkedTokens, is_ours, marked_tokens
from traceflops.mfu.checked.run_options import Words
from traceflops.table.columns import flag_column, matching
from traceflops.table.trace import Note, Trace, note_of
from traceflops.units import DESCRIPTION_WORDS, LARGEST, parse_count, parse_lengths
from traceflops.windows.prepared import Prepared

_FLAGS: Final = ("lora", "forward_only")
_LISTS: Final = ("documents", "frozen", "lora_targets", "checkpointing")
_DIRECTIONS: Final = frozenset(("forward_only", run_options.TRAINS))
_MODEL: Final = frozenset(("model", "params", "mtp", "padded_vocab", "expert_capacity"))
_SUMS: Final = frozenset(("seq_sum", "seq_square_sum", "sequences"))
TOTALS: Final = frozenset(("tokens", "real_tokens"))
_REPLACES: Final[Mapping[str, frozenset[str]]] = {
    "params": _MODEL,
    **dict.fromkeys(("batch", "seq", "documents", "seq_sum", "seq_square_sum"), PACKED | TOTALS),
    "tokens": PACKED | TOTALS | {"batch"},
    "lora_rank": frozenset(("lora_params",)),
    "lora_params": frozenset(("lora_rank", "lora_targets")),
}
"""By option: the words of the trace, besides its own, that say the same in another way."""
_DESCRIBING: Final = frozenset(DESCRIPTION_WORDS) - {"gpus", "dtype"}
"""Words about the model, the tokens or the training."""
_MOST_SHOWN: Final = 3
_MOST_COUNTED: Final = 2**53  # the most samples or tokens that JSON readers hold exactly


class Description(Struct, frozen=True):
    """The model that a trace names (or None), and its words on the run."""

    card: ModelCard | None = None
    words: Words = field(default_factory=lambda: Words({}))
    notes: tuple[Note, ...] = ()
    empty: tuple[str, ...] = ()
    """Words whose value is null."""

    def with_options(self, card: ModelCard | None, options: Words) -> Description:
        """Return the description overridden by options; `card` is the model that the options give.

        An option replaces its own word and those that say the same in another way: `--tokens` also
        `batch`. With options, messages write all words as options (`dashed`).
        """
        of_card = _MODEL if card is not None else frozenset()  # the card has these options already
        replaced = of_card.union(*(_REPLACES.get(word, ()) for word in options.values))
        kept = {word: text for word, text in self.words.values.items() if word not in replaced}
        given = {word: text for word, text in options.values.items() if word not in of_card}
        dashed = bool(options.values or options.flags)
        # Inference or training: the option replaces what the trace says.
        direction = _DIRECTIONS if _DIRECTIONS & options.flags else frozenset()
        words = Words({**kept, **given}, (self.words.flags - direction) | options.flags, dashed)
        return replace(self, card=card or self.card, words=words)


def description_of(trace: Trace) -> Description | None:
    """Return the description in a trace, or None; invalid words are left out, with a note."""
    description = trace.source.description
    if not description:
        return None
    problems: list[str] = []
    values: dict[str, str] = {}
    flags: set[str] = set()
    card = None
    given = {word: value for word, value in description.items() if value is not None}
    for word, value in given.items():
        try:
            if word == "model":
                card = _card(value)
            elif word in _FLAGS and isinstance(value, bool):
                flags.add(word if value else f"no_{word}")
            elif word == "lora":
                values |= _lora_texts(value)
                flags.add("lora")
            else:
                values[word] = _text(word, value)
        except TraceflopsError as error:
            names_word = word in error.message
            problems.append(error.message if names_word else f"{word}: {error.message}")
    left_out = {"params"}  # the card has them
    try:
        run_options.check_sums(Words(values))
    except TraceflopsError as error:  # the sums of lengths contradict each other
        problems.append(error.message)
        left_out |= _SUMS
    try:
        if card is None and "params" in values:
            card = bare_model(parse_count("params", values["params"]))
    except TraceflopsError as error:
        problems.append(error.message)
    kept = {word: text for word, text in values.items() if word not in left_out}
    empty = tuple(word for word in description if word not in given)
    notes: tuple[Note, ...] = ()
    if problems:
        first = tuple(problems[:_MOST_SHOWN])  # the others are counted
        more = len(problems) - len(first) or None
        code, count = "description-words-left-out", len(problems)
        notes = (note_of("dropped", code, count=count, first=first, more=more),)
    return Description(card, Words(kept, frozenset(flags)), notes, empty)


def _card(value: object) -> ModelCard:
    """Return the model that a description names. Raises TraceflopsError for an invalid one."""
    # The name of a preset (never of a file), or an object: a card or a config.json.
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, Mapping):
        raise UsageError("model must be a name or an object", "")
    if "model_type" in value or "text_config" in value:
        return card_of_config(value, "model")
    return build(value, "model")


def _lora_texts(value: object) -> dict[str, str]:
    """Return the words for an object `lora: {rank, targets, params}`. Raises UsageError."""
    keys = ("rank", "targets", "params")
    if not isinstance(value, Mapping) or not {*value} <= {*keys}:
        raise UsageError(f"lora must be true, false or an object with {', '.join(keys)}", "")
    given = {f"lora_{key}": value[key] for key in keys if value.get(key) is not None}
    return {name: _text(name, part) for name, part in given.items()}


def _text(word: str, value: object) -> str:
    """Return a value of the description as the text of the same option. Raises UsageError."""
    if isinstance(value, list) and word not in _LISTS:
        raise UsageError(f"{word} cannot be a list", "")
    parts = value if isinstance(value, list) else [value]
    text = ",".join(_part(word, part) for part in parts)
    if word == "forward_only":  # true and false are flags, not texts
        raise UsageError(f"{word} must be true or false", "")
    if word == "frozen":
        unknown = [part.strip() for part in text.split(",") if part.strip() not in PARTS]
        if unknown:
            raise UsageError(f"cannot freeze unknown part {unknown[0][:40]!r}", "")
    if word in run_options.PARSERS:
        run_options.PARSERS[word](word, text)  # raises for an invalid text
    return text


def _part(word: str, part: object) -> str:
    """Return one value of a word as text. Raises UsageError if it is no text and no number."""
    if word == "frozen" and part is True:
        return "all"
    if isinstance(part, str) and part.isprintable():
        return part
    is_number = isinstance(part, int | Decimal) and not isinstance(part, bool)
    if not is_number or word in ("dtype", "frozen", "lora_targets", "attention_kernel"):
        kinds: dict[type, str] = {list: "a list", dict: "an object", type(None): "null"}
        kinds |= {str: "text with invalid characters", bool: str(part).lower()}
        raise UsageError(f"{word} cannot be {kinds.get(type(part), 'a number')}", "")
    # No word takes larger numbers, and str() refuses to print much larger ones.
    if isinstance(part, int) and abs(part) > LARGEST**2:
        raise UsageError(f"{word} is too large", "")
    return str(part)


def counts_of_step(prepared: Prepared) -> dict[str, int | None]:
    """Return the samples, tokens and real tokens of a step of the whole job, None if unknown."""
    description = description_of(prepared.trace) or Description()
    marks = marked_tokens(prepared) or MarkedTokens({})
    values, _ = marks.over(description.words.values)
    given = [word for word in values if word in run_options.TOKEN_COUNTS]
    count = {word: parse_count(word, values[word]) for word in given}
    lengths = parse_lengths("documents", values["documents"]) if "documents" in values else ()
    slots = count["batch"] * count["seq"] if {"batch", "seq"} <= {*count} else None
    packed = count.get("seq_sum", sum(lengths) or None)
    counts = {
        "sample": count.get("sequences", len(lengths) or count.get("batch")),
        "token": slots or count.get("tokens", packed),
        "real_token": count.get("real_tokens", packed),
    }
    # None for counts that are unknown (None or 0) or too large.
    return {unit: n if n and 0 < n <= _MOST_COUNTED else None for unit, n in counts.items()}


def card_and_run(description: Description) -> tuple[ModelCard, Run]:
    """Return the model and a step of its run. Raises UsageError if the words do not give these."""
    if description.card is None:
        hint = "add --model NAME, --model config.json or --params 8e9"
        raise UsageError("unknown model: the trace's description names none", hint)
    card = run_options.adjusted(description.card, description.words)
    run = Run(**run_options.run_settings(card, description.words))
    if run.lora is not None:
        run.lora.adapters(card)  # refuses targets that the model lacks
    return card, run


class SelfDescribed(Struct, frozen=True):
    """The model and run that a trace describes, and notes on what was left out or assumed."""

    card: ModelCard
    run: Run
    notes: tuple[Note, ...]


class NotDescribed(Struct, frozen=True):
    """A trace without a usable description, and the `problem` (None: it names no model)."""

    notes: tuple[Note, ...]
    problem: TraceflopsError | None = None


def without_description(trace: Trace) -> Trace:
    """Return a trace without the description and the marks of its own run."""
    source = replace(trace.source, description=None)
    of_descriptions = ("description-left-out", "descriptions-differ")
    notes = tuple(note for note in trace.notes if note.code not in of_descriptions)
    ours = matching(trace.marks["name"], is_ours)
    if not ours.any():
        return replace(trace, source=source, notes=notes)
    return Trace(source, {**trace.tables, "marks": trace.marks.filter(flag_column(~ours))}, notes)


def self_described(
    prepared: Prepared,
    card: ModelCard | None = None,
    options: Words | None = None,
    convention: str | None = None,
) -> SelfDescribed | NotDescribed:
    """Return the model and run of a prepared trace; options win over its own description.

    Invalid words of the trace are left out with a note. Returns NotDescribed if the others describe
    no step or lack what the convention needs. Raises UsageError for errors in the options.
    """
    options = options or Words({}, dashed=True)
    run_options.check_sums(options)
    own = description_of(prepared.trace) or Description()
    described = own
    # Marks with the tokens of each step count unless an option says how many a step has.
    if (PACKED | TOTALS | {"batch", "seq"}).isdisjoint(options.values):
        marked = marked_tokens(prepared) or MarkedTokens({})
        values, notes_on_marks = marked.over(own.words.values)
        words = replace(own.words, values=values)
        described = replace(own, words=words, notes=(*own.notes, *notes_on_marks))
    described = described.with_options(card, options)
    if described.card is None:
        has_words = bool(own.words.values)
        no_model = (note_of("dropped", "description-not-used.no-model"),) if has_words else ()
        return NotDescribed((*described.notes, *no_model))
    problem: TraceflopsError | None
    try:
        used_card, run = card_and_run(described)
        check_claims(used_card, run)
        unit_of(used_card, replace(run, step_seconds=Fraction(1)))  # refuses an unknown step
        problem = refusal(used_card, run, default_convention(used_card, run))
        # The user's convention may need less than the default one.
        if problem is not None and convention in CONVENTIONS:
            problem = refusal(used_card, run, convention or "")
        if problem is None:
            return SelfDescribed(used_card, run, described.notes)
    except TraceflopsError as error:
        problem = error
    # Options that are wrong by themselves raise; any other problem becomes a note.
    if card is not None or not _DESCRIBING.isdisjoint(options.values):
        card_and_run(Description(described.card, options))
    why, hint = problem.message, problem.hint
    unused = note_of("dropped", "description-not-used", why=why, empty=own.empty, hint=hint)
    return NotDescribed((*described.notes, unused), problem)
