"""Steps that marks on the host name, and the step in which each activity was launched.

A step here is the time [start, end) in which the host launched its work. The device executes that
work later: `choice` turns steps into windows of devices. Without marks, steps come from what
repeats on the device (see `periodicity`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.categories.programs import of_ml, of_pytorch
from traceflops.characters import shortened
from traceflops.devices.processes import device_name
from traceflops.facts import Fact, fact
from traceflops.remedies import in_words_of, sentence
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import codes, is_one_of, names, numbers
from traceflops.table.grouping import distinct, groups, without
from traceflops.table.links import Links
from traceflops.table.nesting import taken
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.intervals import ENDLESS
from traceflops.units import capitalized, listed
from traceflops.windows.engine_passes import serving_marks
from traceflops.windows.selection import marked_groups
from traceflops.windows.step_times import Launched, Owners, Steps, shared_note, thread_of_steps

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
DIGITS = re.compile(r"\d+")
LONGEST_MARK = 60
_MOST_NAMED = 5  # annotations that a hint names as examples
_NO_MATCH, _NO_NUMBER = -2, -1
"""Instead of the step number of a name: it is no step; it is a step without a number."""
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


class FoundSteps(Struct, frozen=True):
    """Steps by process, their source (see `StepChoice`) and its description, and notes.

    `are_passes`: they are forward passes of a serving engine. Passes differ, so a long first one is
    no warm-up, and work between two of them may belong to neither.
    """

    by_process: dict[int, Steps]
    source: str
    how: Fact
    notes: tuple[Note, ...] = ()
    are_passes: bool = False


@lru_cache(maxsize=1 << 17)
def is_step_label(label: str, step_mark: str | None) -> bool:
    """Return whether a mark with this name would begin a step."""
    return step_number(label, step_mark) is not None


def step_number(label: str, step_mark: str | None) -> int | None:
    """Return the number of the step that a mark with this name would begin.

    -1 if the name has no number, None if it begins no step. `step_mark` is the expression of the
    user; if it does not match, the names of PyTorch's profiler and of annotations still count.
    """
    by_pattern = [] if step_mark is None else _marked(step_mark, [label])
    by_pattern += [_number(pattern, label) for pattern in (_PROFILER_STEP, _ANNOTATED_STEP)]
    return next((number for number in by_pattern if number != _NO_MATCH), None)


def find_marked_steps(trace: Trace, step_mark: str | None) -> FoundSteps | None:
    """Return the steps that marks on the host name, by process; None without any.

    With `step_mark`, the marks whose whole name matches it; else ProfilerStep#N; else annotations
    such as "step 12" or "iteration_7"; else forward passes that a serving engine annotates.
    """
    marks = trace.marks
    if not marks.num_rows:
        return None
    labels, code = names(marks["name"]), codes(marks["name"])
    is_range = is_one_of(marks["kind"], *_HOST_RANGES)
    is_range &= numbers(marks["dur_ns"], ABSENT) != ABSENT  # a step must have an end
    for number_of_name, source, how in _numbered_names(labels, step_mark):
        number = np.array(number_of_name, dtype=np.int64)[code]
        rows = np.flatnonzero(is_range & (number != _NO_MATCH))
        if len(rows):
            return steps_by_process(trace, rows, number[rows], source, how)
    return None


def _numbered_names(
    labels: Sequence[str], step_mark: str | None
) -> Iterator[tuple[list[int], str, Fact]]:
    """Yield, per naming scheme, the step number of each name, the source and its description."""
    if step_mark is not None:
        how = fact("steps-by.mark", mark=repr(step_mark))
        yield _marked(step_mark, labels), "mark-regex", how
        return
    for pattern, source, how in _PATTERNS:
        yield [_number(pattern, label) for label in labels], source, how
    passes = serving_marks(labels)
    are_passes = [_NO_NUMBER if code in passes else _NO_MATCH for code in range(len(labels))]
    yield are_passes, "annotation", _PASSES


def _marked(step_mark: str, labels: Sequence[str]) -> list[int]:
    """Return, per name, the step number by the user's expression, or as `_number` does."""
    labels = [label[:_LONGEST_NAME] for label in labels]
    return [*map(_numbered, labels, marked_groups(step_mark, labels))]


def _number(pattern: re.Pattern[str], label: str) -> int:
    """Return the step number in a name, _NO_NUMBER without one, _NO_MATCH if it is no step."""
    match = pattern.fullmatch(label[:_LONGEST_NAME])
    return _numbered(label[:_LONGEST_NAME], match and match.group(1))


def _numbered(label: str, group: str | None) -> int:
    """Return the step number of a name, as `_number`; `group` is what the pattern's group matched.

    If that is no number, the last number in the name counts. `group` is None without a match.
    """
    if group is None:
        return _NO_MATCH
    digits = group if group.isdecimal() else next(reversed(DIGITS.findall(label)), "")
    return int(digits) if 0 < len(digits) < 19 else _NO_NUMBER  # 19 digits may exceed an int64


def steps_by_process(
    trace: Trace, rows: IntArray, number: IntArray, source: str, how: Fact
) -> FoundSteps:
    """Return the steps of each process, of one of its threads, from marks that may be steps.

    `rows` are the rows of the marks, `number` is the step number of each.
    """
    marks = trace.marks
    thread, start = numbers(marks["thread"])[rows], numbers(marks["start_ns"])[rows]
    end = start + numbers(marks["dur_ns"])[rows]
    recorded_until_ns = int((numbers(marks["start_ns"]) + numbers(marks["dur_ns"], 0)).max())

    def steps_of(of_thread: IntArray) -> Steps:
        """Return the steps of one thread; `of_thread` are indices of `rows`."""
        # If a program never closes its ranges, each step is inside the one before, and all end with
        # the recording: nesting tells nothing. (Two may also be a loop and its last step.)
        are_open = len(of_thread) > 2 and (end[of_thread] == recorded_until_ns).all()
        is_step = are_open | ~_is_nested(start[of_thread], end[of_thread])
        index = of_thread[is_step]
        index = index[np.argsort(start[index], kind="stable")]
        is_numbered = (number[index] != _NO_NUMBER).all()
        step_number = number[index] if is_numbered else np.arange(len(index), dtype=np.int64)
        # If all marks are instants or never closed, each step lasts until the next.
        are_instants = (start[index] == end[index]).all()
        lasts_until_next = are_open or are_instants
        ends = np.append(start[index][1:], ENDLESS) if lasts_until_next else end[index]
        return Steps(step_number, start[index], ends)

    by_process: dict[int, Steps] = {}
    launched = Launched(trace)
    on_other_threads, nested, in_doubt = 0, 0, False
    for process, in_process in groups(numbers(marks["process"])[rows]):
        by_thread = {name: in_process[index] for name, index in groups(thread[in_process])}
        chosen, is_doubtful = thread_of_steps(launched, process, by_thread, steps_of)
        by_process[process] = steps_of(by_thread[chosen])
        on_other_threads += len(in_process) - len(by_thread[chosen])
        nested += len(by_thread[chosen]) - len(by_process[process])
        in_doubt |= is_doubtful
    notes = []
    if on_other_threads:
        wording = _OTHER_THREADS + (_IN_DOUBT if in_doubt else "")
        notes.append(counted_note("dropped", "steps-on-other-threads", wording, on_other_threads))
    if nested:
        notes.append(counted_note("assumed", "steps-nested", _NESTED, nested))
    return FoundSteps(by_process, source, how, tuple(notes), are_passes=how == _PASSES)


def _is_nested(start: IntArray, end: IntArray) -> BoolArray:
    """Return, per mark of a thread, whether nesting shows that it is no step.

    Outer marks are steps, marks inside of them are not. But a single mark around all others is no
    step: it is the loop, and the others are judged without it.
    """
    order = np.lexsort((-end, start))  # outer marks before those inside of them
    # Per mark but the first: whether it is inside of one before it.
    # start [0 1 5 9], end [8 3 7 12]  ->  latest end before [8 8 8], is_inside [1 1 0]
    latest_end = np.maximum.accumulate(end[order])[:-1]
    is_inside = (end[order][1:] <= latest_end) & (start[order][1:] < latest_end)
    is_nested = np.zeros(len(start), dtype=np.bool_)
    if len(order) > 2 and is_inside.all():
        loop, others = order[0], order[1:]
        is_nested[loop] = True
        is_nested[others] = _is_nested(start[others], end[others])
    else:
        is_nested[order[1:]] = is_inside
    return is_nested


def some_marks(trace: Trace) -> str:
    """Return a hint that names marks of the trace that could be steps."""
    marks = trace.marks
    labels, code = names(marks["name"]), codes(marks["name"])
    annotations = distinct(code[is_one_of(marks["kind"], "annotation")])[:_MOST_NAMED].tolist()
    if annotations:
        shown = ", ".join(shortened(labels[label], LONGEST_MARK) for label in annotations)
        return f"the trace has annotations such as {shown}"
    if "gpu_annotation" in names(marks["kind"]):
        return (
            "the trace has only GPU annotations, and steps need CPU annotations: add "
            "nvtx_pushpop_trace"
        )
    return "the trace has no annotations"


def how_to_mark(trace: Trace, mark: str | None) -> str:
    """Return advice on marking steps, or ""; `mark` is a pattern that `likely_step_mark` found."""
    if mark is not None:
        return _LIKELY.format(shlex.quote(mark))
    if not of_ml(trace):
        return ""  # other programs need not have steps
    ways = []
    tools = ["torch"] if of_pytorch(trace) else []
    if how := sentence(trace, in_words_of(tools, trace, "steps")):
        ways.append(f"{how} when recording")
    if is_one_of(trace.marks["kind"], "annotation").any():
        ways.append(_NAME_THEM)
    return f"{capitalized(', or '.join(ways))}." if ways else ""


def until_next(marked: FoundSteps) -> FoundSteps:
    """Return the steps extended until the next one of the process begins; ENDLESS for the last."""
    by_process = {
        process: Steps(steps.number, steps.start_ns, np.append(steps.start_ns[1:], ENDLESS))
        for process, steps in marked.by_process.items()
    }
    return replace(marked, by_process=by_process, how=fact("steps-by.until-next", how=marked.how))


def step_of_activity(trace: Trace, links: Links, marked: FoundSteps) -> IntArray:
    """Return, per activity, the index of its step among those of its process, -1 if unknown.

    It is the step in which the host launched the activity. If no launch of the process is recorded,
    it is the step in which the activity started on the device. Operators of CPUs launch themselves.
    """
    launched_ns, has_launch = _launch_times(trace, links)
    start_ns = numbers(trace.activities["start_ns"])
    index = np.full(len(launched_ns), -1)
    for process, rows in groups(numbers(trace.activities["process"])):
        steps = marked.by_process.get(process)
        if steps is None:
            continue
        launched = rows[has_launch[rows]]
        if len(launched):
            index[launched] = steps.at(launched_ns[launched])
        else:
            index[rows] = steps.at(start_ns[rows])
    return index


def marked_notes(
    linked: LinkedTrace, marked: FoundSteps, owners: Mapping[int, Owners]
) -> Iterator[Note]:
    """Yield the notes of the marks, and notes on devices without steps or of several processes."""
    yield from marked.notes
    unlaunched = set(without_launches(linked.trace, linked.links).tolist())
    if unlaunched & marked.by_process.keys():
        yield note_of("assumed", "steps-by-device-time")
    without_steps = [row for row, owner in owners.items() if owner.owner not in marked.by_process]
    count = len(without_steps)
    if 0 < count < len(owners):
        devices = listed(without_steps, partial(device_name, linked.trace))
        yield note_of("missing", "devices-without-steps", count=count, devices=devices)
    shared = {device: owner for device, owner in owners.items() if owner.others}
    if shared:
        yield shared_note(linked.trace, shared)


def without_launches(trace: Trace, links: Links) -> IntArray:
    """Return the processes with activities, none of which has a recorded launch."""
    _, has_launch = _launch_times(trace, links)
    process = numbers(trace.activities["process"])
    return without(process, process[has_launch])


def _launch_times(trace: Trace, links: Links) -> tuple[IntArray, BoolArray]:
    """Return, per activity, the time in ns when the host launched it, and whether that is known."""
    activities = trace.activities
    call = links.call_of_activity
    has_call = call >= 0
    called_ns = taken(numbers(trace.calls["start_ns"]), call)
    if "op" not in names(activities["kind"]):  # operators of a CPU
        return called_ns, has_call
    is_op = is_one_of(activities["kind"], "op")
    launched_ns = np.where(is_op, numbers(activities["start_ns"]), called_ns)
    return launched_ns, has_call | is_op
