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

from traceflops.categories import of_ml
from traceflops.characters import shortened
from traceflops.remedies import sentence
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    Links,
    Note,
    NoteKind,
    Trace,
    codes,
    counted_note,
    distinct,
    group_rows,
    groups,
    is_one_of,
    names,
    numbers,
    taken,
)
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
    (_PROFILER_STEP, "markers", "ProfilerStep markers"),
    (_ANNOTATED_STEP, "annotation", "annotations that name a step"),
)
_PASSES = "serving-engine annotations of forward passes"
_DIGITS = re.compile(r"\d+")
_SPECIAL = re.compile(r"[\\^$.|?*+(){}\[\]]")
_KINDS_TRIED, _LONGEST_MARK = 16, 60
_NO_MATCH, _NO_NUMBER = -2, -1
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
    """Steps by process, where they came from, in words, and what to say about them.

    `are_passes` says that they are forward passes of a serving engine: no two need do the same, so
    a long one at the beginning is no warm-up, and work between two may be of neither.
    """

    by_process: dict[int, Steps]
    source: str
    text: str
    notes: tuple[Note, ...] = ()
    are_passes: bool = False


def is_step_label(label: str, step_mark: str | None) -> bool:
    """Return whether a mark of this name would begin a step."""
    return step_number(label, step_mark) is not None


def step_number(label: str, step_mark: str | None) -> int | None:
    """Return the number of the step that a mark of this name would begin.

    -1 where its name has none, None where it begins no step.
    """
    found = [] if step_mark is None else _marked(step_mark, [label])
    found += [_number(pattern, label) for pattern in (_PROFILER_STEP, _ANNOTATED_STEP)]
    return next((number for number in found if number != _NO_MATCH), None)


def find_marked_steps(trace: Trace, step_mark: str | None) -> FoundSteps | None:
    """Return the steps that marks of the host name, None where there are none.

    With `step_mark` the marks whose whole name matches it; else ProfilerStep#N; else annotations
    such as "step 12" or "iteration_7"; else the forward passes that a serving engine annotates.
    """
    found = (_from_marks(trace, *named) for named in _named_marks(trace, step_mark))
    return next(filter(None, found), None)


def _named_marks(trace: Trace, step_mark: str | None) -> Iterator[tuple[IntArray, str, str]]:
    """Yield the step number that each name of a mark has, by each way to name steps.

    With it the source, and that in words.
    """
    labels = names(trace.marks["name"])
    if step_mark is not None:
        text = f"annotations that match {step_mark!r}"
        yield np.array(_marked(step_mark, labels), dtype=np.int64), "mark-regex", text
        return
    for pattern, source, text in _PATTERNS:
        told = [_number(pattern, label) for label in labels]
        yield np.array(told, dtype=np.int64), source, text
    number = np.full(len(labels), _NO_MATCH, dtype=np.int64)
    number[list(serving_marks(labels))] = _NO_NUMBER
    yield number, "annotation", _PASSES


def _from_marks(trace: Trace, number_of: IntArray, source: str, text: str) -> FoundSteps | None:
    """Return the steps of the marks whose name (a place in `number_of`) is not _NO_MATCH."""
    marks = trace.marks
    if not marks.num_rows:
        return None
    label = codes(marks["name"])
    wanted = is_one_of(marks["kind"], *_HOST_RANGES) & (number_of[label] != _NO_MATCH)
    rows = np.flatnonzero(wanted & (numbers(marks["dur_ns"], ABSENT) != ABSENT))
    if not len(rows):
        return None
    return _by_process(trace, rows, number_of[label[rows]], source, text)


def _marked(step_mark: str, labels: Sequence[str]) -> list[int]:
    """Return the numbers of markers that the user's expression names, as `_number` does."""
    labels = [label[:1000] for label in labels]
    return [*map(_numbered, labels, marked_groups(step_mark, labels))]


def _number(pattern: re.Pattern[str], label: str) -> int:
    """Return the number in a marker's name, _NO_NUMBER without one, _NO_MATCH if it is none."""
    match = pattern.fullmatch(label[:1000])
    return _numbered(label[:1000], match and match.group(1))


def _numbered(label: str, digits: str | None) -> int:
    """Return the same of a name in which a group matched these digits; None if it is none."""
    if digits is None:
        return _NO_MATCH
    if not digits.isdecimal():
        found = _DIGITS.findall(label)
        digits = found[-1] if found else ""
    return int(digits) if 0 < len(digits) < 19 else _NO_NUMBER


def _by_process(
    trace: Trace, rows: IntArray, number: IntArray, source: str, text: str
) -> FoundSteps:
    marks = trace.marks
    process = numbers(marks["process"])[rows]
    thread = numbers(marks["thread"])[rows]
    start = numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    found: dict[int, Steps] = {}
    launched = Launched(trace)
    passed_over, nested, in_doubt = 0, 0, False
    for one, mine in groups(process):
        of_thread = {name: mine[at] for name, at in groups(thread[mine])}

        def steps_of(name: int, of_thread: dict[int, IntArray] = of_thread) -> Steps:
            some = of_thread[name]
            some = some[~_is_inner(start[some], end[some])]
            return _ordered(number[some], start[some], end[some])

        markers = {name: len(some) for name, some in of_thread.items()}
        chosen, is_doubtful = thread_of_steps(launched, one, markers, steps_of)
        found[one] = steps_of(chosen)
        passed_over += len(mine) - markers[chosen]
        nested += markers[chosen] - len(found[one])
        in_doubt |= is_doubtful
    others = _OTHER_THREADS + (_IN_DOUBT if in_doubt else "")
    said: tuple[tuple[NoteKind, str, str, int], ...] = (
        ("dropped", "steps-on-other-threads", others, passed_over),
        ("assumed", "steps-nested", _NESTED, nested),
    )
    notes = tuple(counted_note(*one) for one in said if one[-1])
    return FoundSteps(found, source, text, notes, are_passes=text == _PASSES)


def _is_inner(start: IntArray, end: IntArray) -> BoolArray:
    """Return which marks of a thread lie within another one: the outer marks are the steps.

    A single mark around all others is no step of a loop: then it is the one that is left out.
    """
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order])[:-1]
    within = np.concatenate([[False], (end[order][1:] <= reach) & (start[order][1:] < reach)])
    found = np.zeros(len(start), dtype=np.bool_)
    if len(order) > 2 and within[1:].all():
        found[order[0]] = True
        found[order[1:]] = _is_inner(start[order[1:]], end[order[1:]])
    else:
        found[order] = within
    return found


def some_marks(trace: Trace) -> str:
    """Return which marks a trace has that could have been steps."""
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
    """Return what makes steps known: `mark` selects ranges that look like some; "" where none."""
    if mark is not None:
        return _LIKELY.format(shlex.quote(mark))
    if not of_ml(trace):
        return ""
    how, named = sentence(trace, "steps"), is_one_of(trace.marks["kind"], "annotation").any()
    ways = [f"{how} when recording"] * bool(how) + [_NAME_THEM] * bool(named)
    return f"{capitalized(', or '.join(ways))}." if ways else ""


def likely_step_mark(trace: Trace) -> str | None:
    """Return the pattern of the ranges that look like steps, None where none do.

    They have one name but for numbers, come one after the other on a thread, are mostly of one
    length, and take more than half of the time from the first GPU work to the last. Of several such
    names it is that with most of the time; one that is long or cannot be typed is none.
    """
    marks, works = trace.marks, trace.activities
    alike = [_DIGITS.sub("0", name) for name in names(marks["name"])]
    kinds = {label: place for place, label in enumerate(alike)}
    kind = np.array([kinds[label] for label in alike], dtype=np.int64)[codes(marks["name"])]
    start, dur = numbers(marks["start_ns"]), numbers(marks["dur_ns"], ABSENT)
    rows = np.flatnonzero(is_one_of(marks["kind"], "annotation") & (dur > 0))
    rows = rows[np.argsort(start[rows], kind="stable")]
    columns = (kind, numbers(marks["process"]), numbers(marks["thread"], ABSENT))
    group, _ = group_rows(tuple(column[rows] for column in columns))
    sums_ns = np.bincount(group, weights=dur[rows])
    begun = numbers(works["start_ns"])
    span_ns = (begun + numbers(works["dur_ns"])).max() - begun.min()
    for one in np.argsort(-sums_ns)[:_KINDS_TRIED]:
        mine = rows[group == one]
        name = alike[kind[mine[0]]]
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_MARK:
            continue
        if 2 * sums_ns[one] > span_ns and _is_loop(start[mine], dur[mine]):
            labels = names(marks["name"])
            return _pattern([labels[code] for code in distinct(codes(marks["name"])[mine])])
    return None


def _pattern(labels: Sequence[str]) -> str:
    """Return the pattern of labels that differ in numbers only; those that do not differ stay."""
    values = [{*each} for each in zip(*map(_DIGITS.findall, labels), strict=True)]
    numbers = (next(iter(each)) if len(each) == 1 else r"\d+" for each in values)
    text = (_SPECIAL.sub(r"\\\g<0>", piece) for piece in _DIGITS.split(labels[0]))
    return "".join(chain.from_iterable(zip_longest(text, numbers, fillvalue="")))


def _is_loop(start: IntArray, dur: IntArray) -> bool:
    """Return whether ranges, by start, come one after the other and are mostly of one length."""
    usual = float(np.median(dur))
    regular = np.abs(dur - usual) <= TOLERANCE * usual
    apart = (start + dur)[:-1] <= start[1:]
    return bool(len(dur) >= FEWEST_ROUNDS and apart.all() and regular.mean() >= REGULAR_SHARE)


def until_next(found: FoundSteps) -> FoundSteps:
    """Return the steps, each of them until the next of its process begins."""
    by_process = {
        one: Steps(s.number, s.start_ns, _next(s.start_ns)) for one, s in found.by_process.items()
    }
    return replace(found, by_process=by_process, text=f"{found.text}, each until the next")


def _next(start: IntArray) -> IntArray:
    return np.append(start[1:], np.iinfo(np.int64).max)


def _ordered(number: IntArray, start: IntArray, end: IntArray) -> Steps:
    """Return the steps in order; where all marks are instants, each step lasts until the next."""
    order = np.argsort(start, kind="stable")
    number, start, end = number[order], start[order], end[order]
    if (number == _NO_NUMBER).any():
        number = np.arange(len(number), dtype=np.int64)
    if (start == end).all():
        end = _next(start)
    return Steps(number, start, end)


def step_of_activity(trace: Trace, links: Links, found: FoundSteps) -> IntArray:
    """Return, for each activity, the place of its step, -1 if unknown.

    It is the step in which the activity was launched; in a process without any recorded launch,
    the one in which it started. Activities of a CPU device are their own launch.
    """
    issued, known = _issued(trace, links)
    started = numbers(trace.activities["start_ns"])
    place = np.full(len(issued), -1, dtype=np.int64)
    for one, mine in groups(numbers(trace.activities["process"])):
        steps = found.by_process.get(one)
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
    """Return when the host issued each activity, and for which of them that is known."""
    activities = trace.activities
    call = links.call_of_activity
    issued = taken(numbers(trace.calls["start_ns"]), call)
    if "op" not in names(activities["kind"]):
        return issued, call >= 0
    is_op = is_one_of(activities["kind"], "op")
    return np.where(is_op, numbers(activities["start_ns"]), issued), (call >= 0) | is_op
