"""What a trace says of its own run, as the card and the run that the same options would give.

A trace may carry a description (docs/selfdescribing.md): the top-level key `traceflops` with the
words of `traceflops mfu`, and marks that tell the tokens of each step. Options win over it, and of
its words those that contradict each other are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.errors import TraceflopsError, UsageError
from traceflops.flops import (
    CONVENTIONS,
    ModelCard,
    Run,
    check_claims,
    default_convention,
    refusal,
    unit_of,
)
from traceflops.mfu.checked.description import PACKED, TOTALS, WHERE, Description, left_out
from traceflops.mfu.checked.description import description_of as description_of
from traceflops.mfu.checked.run_marks import is_ours
from traceflops.mfu.checked.run_options import Words, adjusted, check_sums, described_run
from traceflops.mfu.checked.token_marks import told_by_marks
from traceflops.table import Note, Trace, codes, names
from traceflops.units import DESCRIPTION_WORDS
from traceflops.windows import Prepared


def card_and_run(description: Description) -> tuple[ModelCard, Run]:
    """Return the model and a step of its run. Raises UsageError where they cannot be."""
    if description.card is None:
        raise UsageError(
            "unknown model: the trace's description names none",
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


@dataclass(frozen=True, slots=True)
class NotDescribed:
    """That a trace has no description that can be used: `problem` is None where none has a model.

    `notes` say what was left out, and why.
    """

    notes: tuple[Note, ...]
    problem: TraceflopsError | None = None


def without_description(trace: Trace) -> Trace:
    """Return a trace without what it says of its own run: neither description nor marks."""
    source = replace(trace.source, description=None)
    notes = tuple(note for note in trace.notes if note.code not in _OF_DESCRIPTIONS)
    marks = trace.marks
    ours = [is_ours(label) for label in names(marks["name"])]
    if not any(ours):
        return replace(trace, source=source, notes=notes)
    kept = marks.filter(pa.array(~np.array(ours, dtype=np.bool_)[codes(marks["name"])]))
    return Trace(source, {**trace.tables, "marks": kept}, notes)


_OF_DESCRIPTIONS: Final = frozenset(("description-left-out", "descriptions-differ"))


def self_described(
    prepared: Prepared,
    card: ModelCard | None = None,
    options: Words | None = None,
    convention: str | None = None,
) -> SelfDescribed | NotDescribed:
    """Return model and run of a prepared trace; options win over what it says itself.

    What of the trace's words cannot be used is left out with a note; where the rest is too little
    for a step, or for the convention, that is said. Raises UsageError only for what the options
    alone get wrong.
    """
    options = options or Words({}, dashed=True)
    check_sums(options)
    said = description_of(prepared.trace) or Description()
    marked = None if _gives_tokens(options) else told_by_marks(prepared)
    whole = said.with_tokens(marked) if marked is not None else said
    whole = whole.with_options(card, options)
    if whole.card is None:
        more = (_NO_MODEL,) if said.words.values else ()
        return NotDescribed((*whole.notes, *more))
    usable = _usable(whole, options, convention)
    if isinstance(usable, Description):
        return SelfDescribed(*card_and_run(usable), usable.notes)
    if card is not None or not _DESCRIBING.isdisjoint(options.values):
        card_and_run(Description(whole.card, options))  # refuses what only the options get wrong
    return NotDescribed((*whole.notes, _unused(usable, said)), usable)


_NO_MODEL: Final = Note(
    "dropped",
    "description-not-used",
    f"{WHERE.capitalize()} is not compared with the executed work: it names no model.",
)

_DESCRIBING: Final = frozenset(DESCRIPTION_WORDS) - {"gpus", "dtype"}
"""Words that say something of model, tokens or training."""


def _gives_tokens(options: Words) -> bool:
    """Return whether options say how many tokens a step has; marks are put aside then."""
    return not (PACKED | TOTALS | {"batch", "seq"}).isdisjoint(options.values)


def _usable(
    whole: Description, options: Words, convention: str | None
) -> Description | TraceflopsError:
    """Return a description with which a step can be counted, or why there is none.

    Where words contradict each other, a total or a detail of the trace is left out.
    """
    problem = _problem(whole, convention)
    if problem is None:
        return whole
    dropped = [word for word in _DROPPED_FIRST if word in whole.words.values]
    dropped = [word for word in dropped if word not in options.values]
    for number in (1, 2):
        for words in combinations(dropped, number):
            less = whole.without(words)
            if _problem(less, convention) is None:
                each = [problem, *(_problem(whole.without({word}), convention) for word in words)]
                why = dict.fromkeys(error.message for error in each if error is not None)
                reason = f"{' and '.join(words)} ({'; '.join(why)})"
                return replace(less, notes=(*less.notes, *left_out([reason])))
    return problem


_DROPPED_FIRST: Final = (
    *("tokens", "real_tokens", "sequences", "lora_targets", "checkpointing", "frozen_layers"),
    *("encoder_seq", "cached", "attention_kernel", "frozen", "lora_params", "lora_rank"),
    *("padded_vocab", "mtp", "expert_capacity", "seq"),
)
"""Words without which a description still says what a step works on; first what says least."""


def _problem(description: Description, convention: str | None) -> TraceflopsError | None:
    """Return why a step of a description cannot be counted, None if it can."""
    try:
        card, run = card_and_run(description)
        check_claims(card, run)
        unit_of(card, replace(run, step_seconds=Fraction(1)))  # refuses a step of unknown size
    except TraceflopsError as error:
        return error
    refused = refusal(card, run, default_convention(card, run))
    if refused is None or convention is None or convention not in CONVENTIONS:
        return refused
    return refusal(card, run, convention)


def _unused(problem: TraceflopsError, said: Description) -> Note:
    hint = problem.hint[:1].upper() + problem.hint[1:]
    nothing = f" ({' and '.join(said.empty)}: null there)" if said.empty else ""
    text = (
        f"{WHERE.capitalize()} is not compared with the executed work: "
        f"{problem.message}{nothing}. {hint}."
    )
    return Note("dropped", "description-not-used", text)
