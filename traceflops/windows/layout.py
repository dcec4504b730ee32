"""The windows of each device: steps that the host or the tool marks, rounds that repeat, or one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.facts import Fact, fact
from traceflops.table.columns import BoolArray, IntArray, is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, counted_note, note_of
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.windows import periodicity, tiling
from traceflops.windows.numbered_ranges import likely_step_mark, numbered_steps
from traceflops.windows.records import Accounts, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.started_up import spans
from traceflops.windows.step_times import Owners, Steps, owners_of
from traceflops.windows.steps import (
    FoundSteps,
    how_to_mark,
    marked_notes,
    some_marks,
    step_of_activity,
    until_next,
)

REPEATED = "repeated-step-numbers"
"""The code of the note that steps are renumbered."""


class StepLayout(Struct, frozen=True):
    """The steps of all devices, and the windows (`stretches`) that they divide each device into.

    `numbers[device][stretch.place]` is the number of a step. `source` and `how` say how steps were
    found. `launched_in` is, per activity, the place of the step that launched it, -1 if unknown
    (see `step_of_activity`); None if the host marks no steps. `are_passes` is as in `FoundSteps`.
    `at_marks`: steps begin and end at their marks on the host, so the length of the last step is
    known although no step follows it.
    """

    stretches: Mapping[int, list[tiling.Stretch]]
    numbers: Mapping[int, IntArray]
    source: str
    how: Fact
    notes: tuple[Note, ...] = ()
    launched_in: IntArray | None = None
    are_passes: bool = False
    at_marks: bool = False

    def step_number(self, device: int, stretch: tiling.Stretch) -> int | None:
        """Return the step number of a stretch, None if it is no step."""
        return None if stretch.place is None else int(self.numbers[device][stretch.place])

    def durations(self) -> dict[int, list[int]]:
        """Return, by step number in order, the durations in ns of the step on all its devices."""
        durations: defaultdict[int, list[int]] = defaultdict(list)
        for device, stretches in self.stretches.items():
            for stretch in stretches:
                number = self.step_number(device, stretch)
                if number is not None:
                    durations[number].append(stretch.dur_ns)
        return dict(sorted(durations.items()))


def layout_of(
    linked: LinkedTrace, accounts: Accounts, selection: Selection, marked: FoundSteps | None
) -> StepLayout:
    """Return the steps that the host marks (`marked`) if they launch work, else unmarked steps.

    Raises UsageError if the user gave an expression for marks, and no step follows from it.
    """
    trace, work = linked.trace, device_words(linked.trace).work
    if marked is not None:
        layout = _marked_layout(linked, accounts, marked)
        if layout.durations():
            return layout
        # The marks may end before the launches that they announce: then a step lasts until the next
        # mark. This is trusted only if there are several marks, each followed by work.
        layout = _marked_layout(linked, accounts, until_next(marked))
        step_count = len(layout.durations())
        mark_count = max(map(len, marked.by_process.values()))
        if step_count > 1 and step_count == mark_count:
            note = note_of("assumed", "steps-until-next", work=work)
            return replace(layout, notes=(*layout.notes, note))
    if selection.step_mark is not None:
        raise UsageError(
            f"no step starts with an annotation that matches --step-mark {selection.step_mark!r}",
            some_marks(trace),
        )
    layout = _unmarked_layout(linked, accounts, selection, marked)
    if marked is None:
        return layout
    unused = counted_note(
        "assumed",
        "markers-without-work",
        f"The trace has {{n}} [step marker|step markers], but no {work} shown was launched inside "
        "[it: it is|them: they are] ignored.",
        sum(map(len, marked.by_process.values())),
    )
    return replace(layout, notes=(unused, *marked.notes, *layout.notes))


def _marked_layout(linked: LinkedTrace, accounts: Accounts, marked: FoundSteps) -> StepLayout:
    """Return the windows of marked steps; a device has the steps of one process, its owner.

    The owner is the process with most work in steps on the device. On GPU 1, steps of process 0
    have 80 ms of work, steps of process 1 have 5 ms: those of process 0 are the steps of GPU 1.
    """
    trace = linked.trace
    process, marking = numbers(trace.activities["process"]), marked.by_process.keys()
    listed_for: list[int] = numbers(trace.devices["process"]).tolist()
    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    step_of = step_of_activity(trace, linked.links, marked)
    # Passes launch some work after their mark has ended: `last_pass` began last before the launch.
    last_pass = None
    if marked.are_passes:
        last_pass = step_of_activity(trace, linked.links, until_next(marked))
    owners: dict[int, Owners] = {}
    stretches: dict[int, list[tiling.Stretch]] = {}
    numbers_of: dict[int, IntArray] = {}
    at_marks = True
    # Numbers that repeat do not tell steps apart: then steps count from 0.
    has_repeats = any(len(distinct(s.number)) < len(s) for s in marked.by_process.values())
    for device, account in accounts.items():
        row = account.rows.row
        dur_ns = account.rows.end_ns - account.rows.start_ns
        in_step = step_of[row] >= 0
        owners[device] = owners_of(process[row], dur_ns, in_step, listed_for[device], marking)
        owner = owners[device].owner
        steps = marked.by_process.get(owner, Steps.none())
        numbers_of[device] = np.arange(len(steps)) if has_repeats else steps.number
        # Step indices are per process: those of other processes mean other steps.
        is_own = process[row] == owner
        step_of[row[~is_own]] = -1
        own_pass = None if last_pass is None else np.where(is_own, last_pass[row], -1)
        at_work = _from_first_work(linked, account, step_of[row], is_kernel[row], own_pass)
        stretches[device] = at_work
        # A step begins at its mark instead, if the clock of the host agrees with that of the
        # device. Passes overlap, since they are launched ahead: they begin with their first work.
        if len(steps) and not linked.clock_offsets[owner] and not marked.are_passes:
            stretches[device] = tiling.from_the_marks(at_work, steps.start_ns, account)
            begin_ns = stretches[device][0].start_ns
            if begin_ns < account.rows.span[0]:
                account.begin_at(begin_ns)  # the time before the first work is idle time, too
        # If the last step begins at its mark, before its first work, the end of the mark bounds it.
        at_marks &= _last_begin(stretches[device]) != _last_begin(at_work)
    notes = [*marked_notes(linked, marked, owners)]
    if has_repeats:
        notes.append(note_of("assumed", REPEATED))
    layout = StepLayout(stretches, numbers_of, marked.source, marked.how, tuple(notes))
    return replace(layout, launched_in=step_of, are_passes=marked.are_passes, at_marks=at_marks)


def _from_first_work(
    linked: LinkedTrace,
    account: DeviceAccount,
    step: IntArray,
    is_kernel: BoolArray,
    last_pass: IntArray | None,
) -> list[tiling.Stretch]:
    """Return the windows of a device if each step begins with its first work on it.

    The arrays are per activity of the device: its step and the pass before it (-1: none), and
    whether it is a kernel. `last_pass` is None if the steps are no passes.
    """
    rows, columns = account.rows, linked.columns
    is_paced = tiling.paced(step, columns.stream[rows.row], is_kernel)
    behind = None
    if last_pass is not None:
        unrecorded = account.idle.by_cause["unrecorded"]
        behind = tiling.Behind(last_pass, columns.name[rows.row], unrecorded)
    return tiling.tile(rows.start_ns, rows.end_ns, step, rows.span, is_paced, behind)


def _last_begin(stretches: list[tiling.Stretch]) -> int | None:
    """Return when the last step begins, in ns; None without steps."""
    begins_ns = [stretch.start_ns for stretch in stretches if stretch.role == "step"]
    return begins_ns[-1] if begins_ns else None


def _unmarked_layout(
    linked: LinkedTrace, accounts: Accounts, selection: Selection, marked: FoundSteps | None
) -> StepLayout:
    """Return the steps that the tool marks on devices, else the rounds of work that repeat.

    Without either, each device has one window, its span. If the rounds may be layers, host ranges
    with consecutive numbers that hold them are the steps.
    """
    marked_by_tool = periodicity.device_steps(linked.trace, accounts)
    if marked_by_tool is not None:
        return StepLayout(*marked_by_tool, "markers", fact("steps-by.tool"))
    inferred = periodicity.inferred_steps(linked, accounts)
    ranges = numbered_steps(linked, accounts, inferred[1] if inferred is not None else None)
    if ranges is not None:
        return _marked_layout(linked, accounts, ranges)
    if inferred is not None:
        stretches, source, how = inferred
        variant = ".unmarked" if marked is None else ""
        note = note_of("assumed", f"steps-inferred{variant}", how=how)
        numbered = {device: np.arange(len(steps)) for device, steps in stretches.items()}
        return StepLayout(stretches, numbered, source, how, (note,))
    return spans_layout(linked, accounts, selection)


def spans_layout(linked: LinkedTrace, accounts: Accounts, selection: Selection) -> StepLayout:
    """Return the layout without steps: each device has one window, its span."""
    windows, how = spans(linked, accounts, selection)
    mark = likely_step_mark(linked.trace) if accounts else None
    # `share`, the part of the time that the note concerns, is all if the advice can name a mark.
    advice, share = how_to_mark(linked.trace, mark), float(mark is not None)
    code = f"no-steps.{how.code.removeprefix('steps-by.')}"
    note = note_of("assumed", code, share=share, advice=advice)
    no_numbers = dict.fromkeys(windows, np.empty(0, dtype=np.int64))
    return StepLayout(windows, no_numbers, "none", how, (note,) if accounts else ())
