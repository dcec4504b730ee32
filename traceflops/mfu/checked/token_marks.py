"""The tokens of the steps of a run, by the marks in which it states them (traced/known_lengths.py).

A mark belongs to the step in which it begins on the host. Marks of one step add up (gradient
accumulation), and so do ranks: each states its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from traceflops.mfu.traced.known_lengths import Mark, run_marks
from traceflops.table.columns import IntArray, numbers
from traceflops.table.trace import Note
from traceflops.units import some_of
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import find_marked_steps

_REPLACED: Final = frozenset(
    ("tokens", "real_tokens", "documents", "seq_sum", "seq_square_sum", "sequences")
)

_ROUNDED: Final = Note(
    "assumed",
    "tokens-mean",
    "The selected steps differ in their number of tokens; the rounded mean is used.",
)

_PARTLY: Final = Note(
    "assumed",
    "tokens-of-some-steps",
    "Some of the selected steps have no annotation with their tokens; the mean of "
    "the others is used.",
)


@dataclass(frozen=True, slots=True)
class MarkedTokens:
    """What marks state of one step of the job, all ranks together: the mean of the steps shown.

    `values` are by kind and key: "tokens.real".
    """

    values: Mapping[str, Fraction]
    notes: tuple[Note, ...] = ()

    def over(self, words: Mapping[str, str]) -> tuple[dict[str, str], tuple[Note, ...]]:
        """Return the words of a description with these tokens in place of its own."""
        if not self.values:
            return dict(words), self.notes
        words = {word: text for word, text in words.items() if word not in _REPLACED}
        notes = list(self.notes)
        broken = [key for key, value in self.values.items() if value.denominator > 1]
        tokens = {key: round(value) for key, value in self.values.items()}
        if any(not key.endswith(".count") for key in broken):
            notes.append(_ROUNDED)
        real, padded = tokens.get("tokens.real"), tokens.get("tokens.padded")
        if "seqlens.sum" in tokens:
            if real not in (None, tokens["seqlens.sum"]):
                text = (
                    f"Annotations give {real:,} real tokens per step, but sequences of "
                    f"{tokens['seqlens.sum']:,}; the sequences are used."
                )
                notes.append(Note("assumed", "token-marks-disagree", text))
            squares = tokens["seqlens.sumsq"]
            squares += (squares - tokens["seqlens.sum"]) % 2  # a mean may have lost the parity
            words |= {"seq_sum": str(tokens["seqlens.sum"]), "seq_square_sum": str(squares)}
            if "seqlens.count" in tokens and not broken:
                words["sequences"] = str(tokens["seqlens.count"])
        elif real is not None:
            words["real_tokens"] = str(real)
        # Batch and length of the description stand only as far as they agree with the marks.
        computed = padded or real or tokens.get("seqlens.sum", 0)
        batch, seq = words.get("batch", ""), words.get("seq", "")
        slots = int(batch) * int(seq) if batch.isdecimal() and seq.isdecimal() else -1
        if slots != computed and (slots < computed or padded is not None):
            words.pop("batch", None)
            words["tokens"] = str(computed)
        return words, tuple(notes)


def marked_tokens(prepared: Prepared) -> MarkedTokens | None:
    """Return what marks state of the tokens of a step; None where there are no marks.

    Ranks add up; those whose files are not here are taken to be as the others, which a note says.
    """
    trace = prepared.trace
    marks, ignored = run_marks(trace)
    notes, ranks = [*ignored], []
    for process, of_process in sorted(marks.items()):
        step, shown = _steps_of(prepared, process, of_process)
        inside = [(mark, int(n)) for mark, n in zip(of_process, step, strict=True) if n >= 0]
        values: dict[str, Fraction] = {}
        counts = set()
        for kind in dict.fromkeys(mark.kind for mark, _ in inside):
            alike = [mark.values for mark, _ in inside if mark.kind == kind]
            steps = len({number for mark, number in inside if mark.kind == kind})
            counts.add(steps)
            for key in alike[0]:  # a number that only some marks give is not known
                if all(key in numbers_of for numbers_of in alike):
                    total = sum(numbers_of[key] for numbers_of in alike)
                    values[f"{kind}.{key}"] = Fraction(total, steps)
        if values:
            ranks.append(values)
            if counts != {shown} and _PARTLY not in notes:
                notes.append(_PARTLY)
    if not ranks:
        return MarkedTokens({}, tuple(notes)) if notes else None
    keys, count = set.intersection(*({*values} for values in ranks)), len(ranks)
    sizes = {size for size in trace.processes["world_size"].to_pylist() if size}
    world = max(*sizes, count) if len(sizes) == 1 else count
    if world != count:
        text = (
            f"{some_of(count, world, 'rank', 'give')} their tokens per step; the others are "
            "assumed to have as many."
        )
        notes.append(Note("assumed", "tokens-of-some-ranks", text, world - count))
    scale = Fraction(world, count)
    of_job = {key: scale * sum(values[key] for values in ranks) for key in sorted(keys)}
    return MarkedTokens(of_job, tuple(notes))


def _steps_of(prepared: Prepared, process: int, marks: list[Mark]) -> tuple[IntArray, int]:
    """Return the number of the step of each mark, -1 outside those shown, and how many are shown.

    Without any steps all of the recording is one. Steps that were inferred on the device, and a
    stretch of time, have no times on the host.
    """
    outside = np.full(len(marks), -1, dtype=np.int64)
    owner = numbers(prepared.trace.devices["process"])
    device = next((number for number in prepared.accounts if owner[number] == process), None)
    if device is None or prepared.plan.time_range is not None:
        return outside, 0
    plan, windows = prepared.plan, prepared.windows[device]
    if plan.layout.launched_in is None:
        return (outside, 0) if plan.choice.seen else (np.zeros_like(outside), 1)
    marked = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    steps = marked.by_process.get(process) if marked is not None else None
    if steps is None:
        return outside, 0
    index = steps.at(np.array([mark.start_ns for mark in marks], dtype=np.int64))
    number = np.append(plan.layout.numbers[device], -1)[index]
    used = [w.step for w in windows if w.used and w.step is not None]
    return np.where((index >= 0) & np.isin(number, used), number, -1), len(used)
