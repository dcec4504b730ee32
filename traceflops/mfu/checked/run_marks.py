"""Marks by which a run states its tokens and lengths.

    record_function("traceflops.tokens|real=30511|padded=32768")              Recorder.tokens()
    record_function("traceflops.seqlens|sum=30511|sumsq=98304211|count=14")   Recorder.lengths()

`real` is the tokens without padding, `padded` all computed ones. `sum` and `sumsq` are sum s and
sum s^2 over the lengths s of `count` packed sequences; a causal mask then leaves
(sum s^2 + sum s) / 2 pairs of query and key. An invalid mark is ignored with a note.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from traceflops.devices.device_facts import quoted
from traceflops.flops.analytic.lengths import why_impossible
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace, note_of
from traceflops.units import does, several
from traceflops.windows.prepared import Prepared
from traceflops.windows.steps import find_marked_steps

PREFIX: Final = "traceflops."
_KINDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "tokens": (("real",), ("padded",)),
    "seqlens": (("sum", "sumsq"), ("count",)),
}
"""By kind of mark: the numbers it must have, and those it may have."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LONGEST: Final = 200
PACKED: Final = frozenset(("documents", "seq_sum", "seq_square_sum", "sequences"))
"""Words that describe packed sequences."""
Sums = dict[str, int]  # the numbers of a mark by key, such as "real"
_SHAPES: Final = " and ".join(
    PREFIX + "|".join((kind, *(f"{key}=N" for key in (*needed, *allowed))))
    for kind, (needed, allowed) in _KINDS.items()
)


class Mark(NamedTuple):
    """One mark: when it begins on the host, its kind, and its numbers."""

    start_ns: int
    kind: str
    values: Sums


def run_marks(trace: Trace) -> tuple[dict[int, list[Mark]], tuple[Note, ...]]:
    """Return the usable marks of the host by process, and a note on those that are ignored."""
    labels = names(trace.marks["name"])
    ours = [code for code, label in enumerate(labels) if is_ours(label)]
    if not ours:
        return {}, ()
    label, device = codes(trace.marks["name"]), numbers(trace.marks["device"], ABSENT)
    # The profiler repeats each mark on the timeline of the device.
    on_host = is_one_of(trace.marks["kind"], "annotation") & (device == ABSENT)
    rows = np.flatnonzero(np.isin(label, ours) & on_host)
    process, start = numbers(trace.marks["process"]), numbers(trace.marks["start_ns"])
    read = {code: _read(labels[code]) for code in distinct(label[rows]).tolist()}
    marks: defaultdict[int, list[Mark]] = defaultdict(list)
    reasons: Counter[str] = Counter()  # of ignored marks
    for row in rows.tolist():
        content = read[int(label[row])]
        if isinstance(content, str):
            reasons[content] += 1
        else:
            kind, values = content
            marks[int(process[row])].append(Mark(int(start[row]), kind, values))
    if not reasons:
        return dict(marks), ()
    # The note gives the first reason and the number of further ones, None if there are none.
    first, more = next(iter(reasons)), len(reasons) - 1 or None
    count, code = reasons.total(), "token-marks-left-out"
    note = note_of("dropped", code, count=count, first=first, more=more, shapes=_SHAPES)
    return dict(marks), (note,)


def is_ours(label: str) -> bool:
    """Return whether a label is a mark, valid or not."""
    if label[: len(PREFIX)].lower() != PREFIX:
        return False
    return "|" in label or label.startswith(tuple(f"{PREFIX}{kind}" for kind in _KINDS))


def _read(label: str) -> tuple[str, Sums] | str:
    """Return the kind and the numbers of a mark, or a text that says why it is ignored."""
    head, *parts = label[: _LONGEST + 1].split("|")
    kind = head.removeprefix(PREFIX)
    if kind not in _KINDS:
        return f"of unknown kind {quoted(head)}"
    needed, allowed = _KINDS[kind]
    sums: Sums = {}
    for part in parts:
        key, _, text = part.partition("=")
        if key not in (*needed, *allowed) or key in sums or not _NUMBER.fullmatch(text):
            return "of another format"
        sums[key] = int(text)
    if len(label) > _LONGEST or not {*needed} <= sums.keys():
        return "of another format"
    if kind == "seqlens":
        problem = why_impossible(sums["sum"], sums["sumsq"], sums.get("count"))
        return problem or (kind, sums)
    real, padded = sums["real"], sums.get("padded")
    if padded is not None and real > padded:
        return f"{several(real, 'real token')} {does(real, 'exceed')} the {padded:,} computed"
    return kind, sums


_ROUNDED: Final = Note(
    "assumed",
    "tokens-mean",
    "The selected steps differ in their number of tokens; the rounded mean is used.",
)


class MarkedTokens(Struct, frozen=True):
    """Tokens of one step of the whole job by kind and key of marks: means over the steps shown."""

    values: Mapping[str, Fraction]
    notes: tuple[Note, ...] = ()

    def over(self, words: Mapping[str, str]) -> tuple[dict[str, str], tuple[Note, ...]]:
        """Return the words of a description with these tokens in place of its own, and notes."""
        if not self.values:
            return dict(words), self.notes
        replaced = ("tokens", "real_tokens", *PACKED)
        words = {word: text for word, text in words.items() if word not in replaced}
        notes = list(self.notes)
        fractional = [key for key, value in self.values.items() if value.denominator > 1]
        tokens = {key: round(value) for key, value in self.values.items()}
        if any(not key.endswith(".count") for key in fractional):
            notes.append(_ROUNDED)
        real, padded = tokens.get("tokens.real"), tokens.get("tokens.padded")
        if "seqlens.sum" in tokens:
            if real not in (None, tokens["seqlens.sum"]):
                total = tokens["seqlens.sum"]
                notes.append(note_of("assumed", "token-marks-disagree", real=real, sum=total))
            # A sum of squares is odd if the sum is; rounding a mean may have changed that.
            squares = tokens["seqlens.sumsq"]
            squares += (squares - tokens["seqlens.sum"]) % 2
            words |= {"seq_sum": str(tokens["seqlens.sum"]), "seq_square_sum": str(squares)}
            if "seqlens.count" in tokens and not fractional:  # rounded, it may not fit the sums
                words["sequences"] = str(tokens["seqlens.count"])
        elif real is not None:
            words["real_tokens"] = str(real)
        # Keep batch and length of the description only if their product (`slots`) fits the marks:
        # exactly the padded tokens if these are marked, else at least the other marked ones.
        computed = padded or real or tokens.get("seqlens.sum", 0)
        batch, seq = words.get("batch", ""), words.get("seq", "")
        slots = int(batch) * int(seq) if batch.isdecimal() and seq.isdecimal() else -1
        fits = slots >= computed if padded is None else slots == computed
        if not fits:
            words.pop("batch", None)
            words["tokens"] = str(computed)
        return words, tuple(notes)


def marked_tokens(prepared: Prepared) -> MarkedTokens | None:
    """Return the tokens of one step of the whole job by marks; None without marks.

    Ranks are added up. Those without a recording count as the mean of the others, with a note:
    ranks with 100 and 80 tokens per step, of a world size of 4, make 360 tokens.
    """
    trace = prepared.trace
    marks, ignored = run_marks(trace)
    ranks, has_unmarked_steps = [], False  # of each rank: the mean per step, by kind and key
    for process, of_process in sorted(marks.items()):
        step_of, steps_shown = _steps_of(prepared, process, of_process)
        in_steps = [(m, n) for m, n in zip(of_process, step_of.tolist(), strict=True) if n >= 0]
        means: dict[str, Fraction] = {}
        for kind in dict.fromkeys(mark.kind for mark, _ in in_steps):
            sums = [mark.values for mark, _ in in_steps if mark.kind == kind]
            steps_marked = {step for mark, step in in_steps if mark.kind == kind}
            has_unmarked_steps |= len(steps_marked) != steps_shown
            for key in sums[0]:
                if all(key in values for values in sums):  # else only some marks have it
                    total = sum(values[key] for values in sums)
                    means[f"{kind}.{key}"] = Fraction(total, len(steps_marked))
        if means:
            ranks.append(means)
    notes = [*ignored]
    if has_unmarked_steps:
        some = Note(
            "assumed",
            "tokens-of-some-steps",
            "Some of the selected steps have no annotation with their tokens; the mean of the "
            "others is used.",
        )
        notes.append(some)
    if not ranks:
        return MarkedTokens({}, tuple(notes)) if notes else None
    # Scale the sum of the recorded ranks to the whole job, if all processes agree on its size.
    common_keys, count = set.intersection(*({*values} for values in ranks)), len(ranks)
    sizes = {size for size in trace.processes["world_size"].to_pylist() if size}
    world = max(*sizes, count) if len(sizes) == 1 else count
    if world != count:
        code = "tokens-of-some-ranks"
        notes.append(note_of("assumed", code, count=world - count, known=count, of=world))
    scale = Fraction(world, count)
    of_job = {key: scale * sum(values[key] for values in ranks) for key in sorted(common_keys)}
    return MarkedTokens(of_job, tuple(notes))


def _steps_of(prepared: Prepared, process: int, marks: list[Mark]) -> tuple[IntArray, int]:
    """Return the step of each mark (-1 outside the chosen steps), and the number of chosen steps.

    1. If no device of the process or a time range is chosen, all marks are outside.
    2. If there are no steps, the whole recording is one step, number 0.
    3. If steps have no times on the host (they are inferred from the device), all are outside.
    4. Else a mark is in the step of its process in which it begins, if that is chosen.
    """
    outside = np.full(len(marks), -1, dtype=np.int64)
    owner = numbers(prepared.trace.devices["process"])
    device = next((number for number in prepared.accounts if owner[number] == process), None)
    if device is None or prepared.plan.time_range is not None:
        return outside, 0
    plan, windows = prepared.plan, prepared.windows[device]
    if not plan.choice.seen and plan.layout.launched_in is None:
        return np.zeros_like(outside), 1
    if plan.layout.launched_in is None:
        return outside, 0
    marked = find_marked_steps(prepared.trace, prepared.selection.step_mark)
    steps = marked.by_process.get(process) if marked is not None else None
    if steps is None:
        return outside, 0
    step_index = steps.at(np.array([mark.start_ns for mark in marks], dtype=np.int64))
    step_number = taken(plan.layout.numbers[device], step_index)
    used = [window.step for window in windows if window.used and window.step is not None]
    is_used = (step_index >= 0) & np.isin(step_number, used)
    return np.where(is_used, step_number, -1), len(used)
