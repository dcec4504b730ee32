"""Which iteration of the user's loop each activity belongs to.

Steps come from markers on the host, else from what repeats on the device (see `periodicity`).
A step here is a host window [start, end): the time in which the host issued the step. The device
executes it later; `windows` turns steps into device windows. Where no launch was recorded, work
belongs to the step in which it started on the device.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import numpy as np

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.characters import shortened
from traceflops.facts import Fact, fact
from traceflops.remedies import in_words_of, sentence
from traceflops.table.columns import ABSENT, BoolArray, IntArray, codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, group_rows, groups
from traceflops.table.nesting import Links, taken
from traceflops.table.trace import Note, Trace, counted_note
from traceflops.units import capitalized
from traceflops.windows.engine_passes import serving_marks
from traceflops.windows.repetition import FEWEST_ROUNDS, REGULAR_SHARE, TOLERANCE
from traceflops.windows.selection import marked_groups
from traceflops.windows.step_times import Launched, Steps, thread_of_steps

_NAME_THEM = "name the annotations that begin a step with --step-mark"
_LIKELY = "Some ranges look like steps: try --step-mark {}."
_HOST_RANGES = ("annotation", "module", "instant")
_PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_ANNOTATED_STEP = re.compile(
    r"(?:[a-z]+[ _./:-])?(?:step|iteration|iter)[ _#:=\[-]*(\d+)\]?", re.IGNORECASE
)
_PATTERNS = (
    (_PROFILER_STEP, "markers", fact("steps-by.profiler-steps")),
    (_ANNOTATED_STEP, "annotation", fact("steps-by.annotations")),
)
_PASSES = fact("steps-by.passes")
_DIGITS = re.compile(r"\d+")
_SPECIAL = re.compile(r"[\\^$.|?*+(){}\[\]]")
_KINDS_TRIED, _LONGEST_MARK = 16, 60
_NO_MATCH, _NO_NUMBER = -2, -1
_LONGEST_NAME = 1000
_NESTED = (
    "Step markers nest: {n} [marker|markers] inside or around the used steps [is|are] ignored. The "
    "outer markers of a loop are its steps; --step-mark selects markers by name."
)
_OTHER_THREADS = "{n} [step marker|step markers] on other threads [is|are] ignored."
_IN_DOUBT = (
    " Which thread runs the loop is uncertain: markers of another thread also hold much of the GPU "
    "work. --step-mark selects markers by name."
)


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Steps by process, where they came from, how that is told, and notes on them.

    `are_passes` says that they are forward passes of a serving engine: no two need do the same, so
    a long first one is no warm-up, and work between two may belong to neither.
    """

    by_process: dict[int, Steps]
    source: str
    how: Fact
    notes: tuple[Note, ...] = ()
    are_passes: bool = False


def is_step_label(label: str, step_mark: str | None) -> bool:
    """Return whether a mark of this name would begin a step."""
    return step_number(label, step_mark) is not None


def step_number(label: str, step_mark: str | None) -> int | None:
    """Return the number of the step that a mark of this name would begin.

    -1 where its name has none, None where it begins no step.
    """
    known = [] if step_mark is None else _marked(step_mark, [label])
    known += [_number(pattern, label) for pattern in (_PROFILER_STEP, _ANNOTATED_STEP)]
    return next((number for number in known if number != _NO_MATCH), None)


def find_marked_steps(trace: Trace, step_mark: str | None) -> FoundSteps | None:
    """Return the steps that marks of the host name, None where there are none.

    With `step_mark` the marks whose whole name matches it; else ProfilerStep#N; else annotations
    such as "step 12" or "iteration_7"; else the forward passes that a serving engine annotates.
    """
    marks = trace.marks
    if not marks.num_rows:
        return None
    labels, code = names(marks["name"]), codes(marks["name"])
    is_range = is_one_of(marks["kind"], *_HOST_RANGES)
    is_range &= numbers(marks["dur_ns"], ABSENT) != ABSENT
    for number_of_name, source, how in _numbered_names(labels, step_mark):
        number = np.array(number_of_name, dtype=np.int64)[code]
        rows = np.flatnonzero(is_range & (number != _NO_MATCH))
        if len(rows):
            return _by_process(trace, rows, number[rows], source, how)
    return None


def _numbered_names(
    labels: Sequence[str], step_mark: str | None
) -> Iterator[tuple[list[int], str, Fact]]:
    """Yield the step number of each name by each naming scheme, and what the scheme is."""
    if step_mark is not None:
        how = fact("steps-by.mark", mark=repr(step_mark))
        yield _marked(step_mark, labels), "mark-regex", how
        return
    for pattern, source, how in _PATTERNS:
        yield [_number(pattern, label) for label in labels], source, how
    passes = serving_marks(labels)
    numbers_of = [_NO_NUMBER if code in passes else _NO_MATCH for code in range(len(labels))]
    yield numbers_of, "annotation", _PASSES


def _marked(step_mark: str, labels: Sequence[str]) -> list[int]:
    """Return the step number of each name by the user's expression, as `_number` does."""
    labels = [label[:_LONGEST_NAME] for label in labels]
    return [*map(_numbered, labels, marked_groups(step_mark, labels))]


def _number(pattern: re.Pattern[str], label: str) -> int:
    """Return the step number in a name, _NO_NUMBER without one, _NO_MATCH if it names no step."""
    match = pattern.fullmatch(label[:_LONGEST_NAME])
    return _numbered(label[:_LONGEST_NAME], match and match.group(1))


def _numbered(label: str, digits: str | None) -> int:
    """Return the number in a name of which a group matched `digits`, None if it did not match."""
    if digits is None:
        return _NO_MATCH
    if not digits.isdecimal():
        digits = next(reversed(_DIGITS.findall(label)), "")
    return int(digits) if 0 < len(digits) < 19 else _NO_NUMBER


def _by_process(
    trace: Trace, rows: IntArray, number: IntArray, source: str, how: Fact
) -> FoundSteps:
    """Return the steps of each process; `rows` are marks that name steps, `number` theirs."""
    marks = trace.marks
    thread, start = numbers(marks["thread"])[rows], numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    by_process: dict[int, Steps] = {}
    launched = Launched(trace)
    elsewhere, nested, in_doubt = 0, 0, False
    last_ns = int((numbers(marks["start_ns"]) + numbers(marks["dur_ns"], 0)).max())
    for process, mine in groups(numbers(marks["process"])[rows]):
        of_thread = {name: mine[own] for name, own in groups(thread[mine])}

        def steps_of(name: int, of_thread: dict[int, IntArray] = of_thread) -> Steps:
            own = of_thread[name]
            # Ranges that are never closed end with the recording, each inside the one before.
            are_open = len(own) > 2 and (end[own] == last_ns).all()
            own = own if are_open else own[~_is_inner(start[own], end[own])]
            own = own[np.argsort(start[own], kind="stable")]
            is_numbered = (number[own] != _NO_NUMBER).all()
            numbered = number[own] if is_numbered else np.arange(len(own), dtype=np.int64)
            # Where all marks are instants or never closed, each step lasts until the next.
            are_instants = are_open or (start[own] == end[own]).all()
            return Steps(numbered, start[own], _next(start[own]) if are_instants else end[own])

        markers = {name: len(own) for name, own in of_thread.items()}
        chosen, is_doubtful = thread_of_steps(launched, process, markers, steps_of)
        by_process[process] = steps_of(chosen)
        elsewhere += len(mine) - markers[chosen]
        nested += markers[chosen] - len(by_process[process])
        in_doubt |= is_doubtful
    notes = []
    if elsewhere:
        wording = _OTHER_THREADS + (_IN_DOUBT if in_doubt else "")
        notes.append(counted_note("dropped", "steps-on-other-threads", wording, elsewhere))
    if nested:
        notes.append(counted_note("assumed", "steps-nested", _NESTED, nested))
    return FoundSteps(by_process, source, how, tuple(notes), are_passes=how == _PASSES)


def _is_inner(start: IntArray, end: IntArray) -> BoolArray:
    """Return which marks of a thread lie within another one: the outer marks are the steps.

    A single mark around all others is no step of a loop: then that one is left out.
    """
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order])[:-1]
    within = np.concatenate([[False], (end[order][1:] <= reach) & (start[order][1:] < reach)])
    is_inner = np.zeros(len(start), dtype=np.bool_)
    if len(order) > 2 and within[1:].all():
        is_inner[order[0]] = True
        is_inner[order[1:]] = _is_inner(start[order[1:]], end[order[1:]])
    else:
        is_inner[order] = within
    return is_inner


def some_marks(trace: Trace) -> str:
    """Return a hint on the marks of a trace that could have been steps."""
    marks = trace.marks
    labels, code = names(marks["name"]), codes(marks["name"])
    annotations = distinct(code[is_one_of(marks["kind"], "annotation")])[:5].tolist()
    if annotations:
        shown = ", ".join(shortened(labels[place], 60) for place in annotations)
        return f"the trace has annotations such as {shown}"
    if "gpu_annotation" in names(marks["kind"]):
        return (
            "the trace has only GPU annotations, and steps need CPU annotations: add "
            "nvtx_pushpop_trace"
        )
    return "the trace has no annotations"


def how_to_mark(trace: Trace, mark: str | None) -> str:
    """Return how to mark steps: `mark` selects ranges that look like some; "" where no way fits."""
    if mark is not None:
        return _LIKELY.format(shlex.quote(mark))
    if not of_ml(trace):
        return ""
    lack = in_words_of(["torch"] if of_pytorch(trace) else [], trace, "steps")
    how, named = sentence(trace, lack), is_one_of(trace.marks["kind"], "annotation").any()
    ways = [f"{how} when recording"] * bool(how) + [_NAME_THEM] * bool(named)
    return f"{capitalized(', or '.join(ways))}." if ways else ""


def likely_step_mark(trace: Trace) -> str | None:
    """Return the pattern of the ranges that look like steps, None where none do.

    They have one name but for numbers, come one after the other on a thread, are mostly of one
    length, and take more than half of the time from the first GPU work to the last. Of several such
    names it is that with most of the time; one that is long or cannot be typed is none.
    """
    marks, work, labels = trace.marks, trace.activities, names(trace.marks["name"])
    alike = [_DIGITS.sub("0", name) for name in labels]
    code_of = {label: code for code, label in enumerate(alike)}
    code = codes(marks["name"])
    kind = np.array([code_of[label] for label in alike], dtype=np.int64)[code]
    start, dur = numbers(marks["start_ns"]), numbers(marks["dur_ns"], ABSENT)
    rows = np.flatnonzero(is_one_of(marks["kind"], "annotation") & (dur > 0))
    rows = rows[np.argsort(start[rows], kind="stable")]
    columns = (kind, numbers(marks["process"]), numbers(marks["thread"], ABSENT))
    group, _ = group_rows(tuple(column[rows] for column in columns))
    sums_ns = np.bincount(group, weights=dur[rows])
    begun = numbers(work["start_ns"])
    span_ns = (begun + numbers(work["dur_ns"])).max() - begun.min()
    for number in np.argsort(-sums_ns)[:_KINDS_TRIED]:
        mine = rows[group == number]
        name, length = alike[kind[mine[0]]], dur[mine]
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_MARK:
            continue
        usual = float(np.median(length))
        regular = np.abs(length - usual) <= TOLERANCE * usual
        apart = ((start[mine] + length)[:-1] <= start[mine][1:]).all()
        is_loop = len(mine) >= FEWEST_ROUNDS and apart and regular.mean() >= REGULAR_SHARE
        if 2 * sums_ns[number] > span_ns and is_loop:
            # Labels differ in numbers only: equal numbers stay.
            own_labels = [labels[own] for own in distinct(code[mine])]
            figures = [{*column} for column in zip(*map(_DIGITS.findall, own_labels), strict=True)]
            fixed = (next(iter(column)) if len(column) == 1 else r"\d+" for column in figures)
            texts = (_SPECIAL.sub(r"\\\g<0>", piece) for piece in _DIGITS.split(own_labels[0]))
            return "".join(chain.from_iterable(zip_longest(texts, fixed, fillvalue="")))
    return None


def until_next(marked: FoundSteps) -> FoundSteps:
    """Return the steps, each of them until the next of its process begins."""
    by_process = {
        process: Steps(steps.number, steps.start_ns, _next(steps.start_ns))
        for process, steps in marked.by_process.items()
    }
    return replace(marked, by_process=by_process, how=fact("steps-by.until-next", how=marked.how))


def _next(start: IntArray) -> IntArray:
    return np.append(start[1:], np.iinfo(np.int64).max)


def step_of_activity(trace: Trace, links: Links, marked: FoundSteps) -> IntArray:
    """Return, per activity, the place of its step among those of its process, -1 if unknown.

    It is the step in which the activity was launched; in a process without any recorded launch,
    the one in which it started. Activities of a CPU device are their own launch.
    """
    issued, known = _issued(trace, links)
    started = numbers(trace.activities["start_ns"])
    place = np.full(len(issued), -1, dtype=np.int64)
    for process, mine in groups(numbers(trace.activities["process"])):
        steps = marked.by_process.get(process)
        if steps is None:
            continue
        rows = mine[known[mine]]
        times, rows = (issued, rows) if len(rows) else (started, mine)
        place[rows] = steps.at(times[rows])
    return place


def without_launches(trace: Trace, links: Links) -> IntArray:
    """Return the processes none of whose activities has a recorded launch."""
    _, known = _issued(trace, links)
    process = numbers(trace.activities["process"])
    launches = np.bincount(process, weights=known)
    return np.flatnonzero((launches == 0) & (np.bincount(process) > 0))


def _issued(trace: Trace, links: Links) -> tuple[IntArray, BoolArray]:
    """Return, per activity, when the host issued it, and whether that is known."""
    activities = trace.activities
    call = links.call_of_activity
    issued = taken(numbers(trace.calls["start_ns"]), call)
    if "op" not in names(activities["kind"]):
        return issued, call >= 0
    is_op = is_one_of(activities["kind"], "op")
    return np.where(is_op, numbers(activities["start_ns"]), issued), (call >= 0) | is_op
