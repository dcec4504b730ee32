"""The windows of each device, and which of them the figures are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.characters import shortened
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words
from traceflops.table.columns import IntArray, is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.records import Window
from traceflops.windows import periodicity
from traceflops.windows.chosen_runs import chosen_range, gpu_notes, one_step_note
from traceflops.windows.numbered_ranges import likely_step_mark, numbered_steps
from traceflops.windows.records import Accounts, StepChoice, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.started_up import AFTER_START_UP, BEFORE_WORK, RANGE, spans, warms_up
from traceflops.windows.step_times import Owners, Steps, owners_of
from traceflops.windows.steps import (
    LONGEST_MARK,
    FoundSteps,
    how_to_mark,
    marked_notes,
    some_marks,
    step_of_activity,
    until_next,
)
from traceflops.windows.tiling import Behind, Stretch, from_the_marks, outside_notes, paced, tile

_OVERLAP = "{n} [step has|steps have] zero length: work launched in a later step started first."
_RANGE_SELECTED = fact("left-out.range-selected")
_NO_WORK, _OUTSIDE = fact("left-out.no-work"), fact("left-out.outside")
REPEATED = "repeated-step-numbers"
"""The code of the note that steps are renumbered."""


class StepLayout(Struct, frozen=True):
    """The steps of all devices, and the windows (`stretches`) that they divide each device into.

    `numbers[device][stretch.place]` is the number of a step. `source` and `how` say how steps were
    found. `launched_in` is, per activity, the place of the step that launched it, -1 if unknown
    (see `step_of_activity`); None if the host marks no steps. `are_passes` is as in `FoundSteps`.
    `has_end`: the length of the last step is known although no step follows it, as steps end at
    their marks on the host, or CPUs run them one after another.
    """

    stretches: Mapping[int, list[Stretch]]
    numbers: Mapping[int, IntArray]
    source: str
    how: Fact
    notes: tuple[Note, ...] = ()
    launched_in: IntArray | None = None
    are_passes: bool = False
    has_end: bool = False

    def step_number(self, device: int, stretch: Stretch) -> int | None:
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


class StepPlan(Struct, frozen=True):
    """The steps of all devices, and which of them the figures are about.

    `used` are their step numbers; `reasons` says, by step number, why a step is left out.
    `time_range` is, by device, start and end in ns of the chosen time; None if steps are chosen.
    """

    layout: StepLayout
    choice: StepChoice
    used: frozenset[int]
    reasons: Mapping[int, Fact]
    time_range: Mapping[int, tuple[int, int]] | None
    chosen_by_user: bool
    notes: tuple[Note, ...]

    def named_in(self, trace: Trace) -> StepPlan:
        """Return the plan with the name that a range has in a trace, which may be redacted."""
        if self.layout.how.code != RANGE:
            return self
        row = self.layout.how.values["row"]
        measured = shortened(trace.marks["name"][row].as_py(), LONGEST_MARK)
        return replace(self, choice=replace(self.choice, measured=measured))

    def windows(self, device: int, account: DeviceAccount) -> tuple[Window, ...]:
        """Return the windows of a device in order, with accounts, and whether each is used."""
        stretches = list(self.layout.stretches[device])
        if self.time_range is not None and device in self.time_range:
            stretches.append(Stretch("range", *self.time_range[device]))
        edges = [(stretch.start_ns, stretch.end_ns) for stretch in stretches]
        accounts = account.accounts(*np.array(edges, dtype=np.int64).T)
        launched = [s.launched for s in stretches if s.launched is not None]
        # A step with fewer launches than usual is unfinished. Two steps show nothing usual.
        usual_launched = float(np.median(launched)) if len(launched) > 2 else 0.0
        unbounded = self._unbounded_step(device, stretches)
        windows = []
        for stretch, window_account in zip(stretches, accounts, strict=True):
            number = self.layout.step_number(device, stretch)
            reason: Fact | None
            if stretch is unbounded:
                reason = periodicity.LAST_STEP
            elif self.time_range is not None:
                reason = None if stretch.role == "range" else _RANGE_SELECTED
            elif number is not None:
                reason = self.reasons.get(number)
            elif stretch.role == "span":
                # A span is the whole of a device. If other devices have steps, it is not used.
                reason = _NO_WORK if self.choice.seen else None
            else:
                reason = _OUTSIDE if self.choice.seen else BEFORE_WORK
            windows.append(
                Window(
                    role=stretch.role,
                    step=number,
                    start_ns=stretch.start_ns,
                    end_ns=stretch.end_ns,
                    used=reason is None,
                    left_out=reason,
                    launched=stretch.launched,
                    unfinished=stretch.launched is not None and stretch.launched < usual_launched,
                    account=window_account,
                )
            )
        return tuple(windows)

    def _unbounded_step(self, device: int, stretches: Sequence[Stretch]) -> Stretch | None:
        """Return the last step of a device if it is used, though no later step bounds it.

        Device 0 has steps 0 to 9, device 1 has steps 0 to 7. `steady` left out step 9, the last of
        the trace: so step 7 is the one for device 1. None if few steps are used.
        """
        if self.chosen_by_user or self.layout.has_end:
            return None
        steps = [stretch for stretch in stretches if stretch.role == "step"]
        used = [step for step in steps if self.layout.step_number(device, step) in self.used]
        if len(used) <= periodicity.KEEP_LAST_UP_TO or used[-1] is not steps[-1]:
            return None
        return used[-1]


def plan_steps(
    linked: LinkedTrace, accounts: Accounts, selection: Selection, marked: FoundSteps | None
) -> StepPlan:
    """Return the steps of all devices, and the steps or the time range that figures are about.

    `marked` are the steps that the host marks, or None. Raises UsageError if the selection has no
    step or lies outside of the trace.
    """
    layout = _layout(linked, accounts, selection, marked)
    if selection == Selection() and warms_up(linked, accounts, layout.stretches):
        layout = _spans_layout(linked, accounts, selection)
    durations = layout.durations()
    time_range, range_notes = chosen_range(linked.trace, accounts, selection)
    used: tuple[int, ...] = ()
    reasons: dict[int, Fact] = {}
    if time_range is None:
        reasons = _reasons(layout, accounts, durations, selection)
        used = tuple(number for number in durations if number not in reasons)
    notes = [*layout.notes]
    if time_range is None:
        # A single step has no spread. That is worth a note if the user did not choose it.
        if len(durations) == 1 and selection.steps is None:
            notes.append(one_step_note(linked.trace, layout.stretches))
        is_of_passes = layout.are_passes
        notes += outside_notes(linked.trace, accounts, layout.stretches, are_passes=is_of_passes)
    all_stretches = chain.from_iterable(layout.stretches.values())
    if collapsed := sum(one.role == "step" and not one.dur_ns for one in all_stretches):
        notes.append(counted_note("assumed", "steps-overlap", _OVERLAP, collapsed))
    notes += (*gpu_notes(linked.trace, accounts, selection), *range_notes)
    lossy = sum(reason is periodicity.LOSSY for reason in reasons.values())
    if lossy:
        of = len(durations)
        notes.append(note_of("missing", "steps-lossy", count=lossy, share=lossy / of, of=of))
    choice = StepChoice(
        layout.source,
        text=in_words(layout.how),
        seen=tuple(durations),
        used=used,
        after_start_up=layout.how.code in (AFTER_START_UP.code, RANGE),
        lossy=lossy,
    )
    by_user = selection.steps is not None
    return StepPlan(layout, choice, frozenset(used), reasons, time_range, by_user, tuple(notes))


def _layout(
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
        count = len(layout.durations())
        if count > 1 and count == max(map(len, marked.by_process.values())):
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
    trace, columns = linked.trace, linked.columns
    process = numbers(trace.activities["process"])
    listed_for: list[int] = numbers(trace.devices["process"]).tolist()
    is_kernel = is_one_of(trace.activities["kind"], "kernel")
    step_of = step_of_activity(trace, linked.links, marked)
    # Passes launch some work after their mark has ended: `last_pass` began last before the launch.
    last_pass = None
    if marked.are_passes:
        last_pass = step_of_activity(trace, linked.links, until_next(marked))
    owners: dict[int, Owners] = {}
    stretches: dict[int, list[Stretch]] = {}
    numbers_of: dict[int, IntArray] = {}
    at_marks = True
    # Numbers that repeat do not tell steps apart: then steps count from 0.
    has_repeats = any(len(distinct(s.number)) < len(s) for s in marked.by_process.values())
    for device, account in accounts.items():
        rows, row = account.rows, account.rows.row
        dur_ns, in_step = rows.end_ns - rows.start_ns, step_of[row] >= 0
        marking = marked.by_process.keys()
        owners[device] = owners_of(process[row], dur_ns, in_step, listed_for[device], marking)
        owner = owners[device].owner
        steps = marked.by_process.get(owner, Steps.none())
        numbers_of[device] = np.arange(len(steps)) if has_repeats else steps.number
        # Step indices are per process: those of other processes mean other steps.
        is_own = process[row] == owner
        step_of[row[~is_own]] = -1
        # Each step begins with its first work on the device.
        behind = None
        if last_pass is not None:
            own_pass = np.where(is_own, last_pass[row], -1)
            behind = Behind(own_pass, columns.name[row], account.idle.by_cause["unrecorded"])
        is_paced = paced(step_of[row], columns.stream[row], is_kernel[row])
        at_work = tile(rows.start_ns, rows.end_ns, step_of[row], rows.span, is_paced, behind)
        stretches[device] = at_work
        # Or at its mark, if the clock of the host agrees with that of the device. Passes overlap,
        # since they are launched ahead: they begin with their first work.
        if len(steps) and not linked.clock_offsets[owner] and not marked.are_passes:
            stretches[device] = from_the_marks(at_work, steps.start_ns, account)
            begin_ns = stretches[device][0].start_ns
            if begin_ns < rows.span[0]:
                account.begin_at(begin_ns)  # the time before the first work is idle time, too
        # If the last step begins at its mark, before its first work, the end of the mark bounds it.
        at_marks &= _last_begin(stretches[device]) != _last_begin(at_work)
    notes = [*marked_notes(linked, marked, owners)]
    if has_repeats:
        notes.append(note_of("assumed", REPEATED))
    layout = StepLayout(stretches, numbers_of, marked.source, marked.how, tuple(notes))
    return replace(layout, launched_in=step_of, are_passes=marked.are_passes, has_end=at_marks)


def _last_begin(stretches: list[Stretch]) -> int | None:
    """Return when the last step begins, in ns; None without steps."""
    begins_ns = [stretch.start_ns for stretch in stretches if stretch.role == "step"]
    return begins_ns[-1] if begins_ns else None


def _unmarked_layout(
    linked: LinkedTrace, accounts: Accounts, selection: Selection, marked: FoundSteps | None
) -> StepLayout:
    """Return the first that there is: steps marked by the tool, numbered ranges, rounds, spans.

    The tool marks steps on devices. Ranges of the host with consecutive numbers are steps if they
    hold rounds that may be layers. Rounds are work that repeats. A span is all time of a device.
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
        # Without queues, the work of the last step ends before what follows begins.
        has_end = all(own.is_cpu for own in accounts.values())
        return StepLayout(stretches, numbered, source, how, (note,), has_end=has_end)
    return _spans_layout(linked, accounts, selection)


def _spans_layout(linked: LinkedTrace, accounts: Accounts, selection: Selection) -> StepLayout:
    """Return the layout without steps: each device has one window, its span."""
    windows, how = spans(linked, accounts, selection)
    mark = likely_step_mark(linked.trace) if accounts else None
    # `share`, the part of the time that the note concerns, is all if the advice can name a mark.
    advice, share = how_to_mark(linked.trace, mark), float(mark is not None)
    code = f"no-steps.{how.code.removeprefix('steps-by.')}"
    note = note_of("assumed", code, share=share, advice=advice)
    no_numbers = dict.fromkeys(windows, np.empty(0, dtype=np.int64))
    return StepLayout(windows, no_numbers, "none", how, (note,) if accounts else ())


def _reasons(
    layout: StepLayout, accounts: Accounts, durations: Mapping[int, list[int]], selection: Selection
) -> dict[int, Fact]:
    """Return why steps are left out, by their number; all others are used.

    `durations` are in ns, by step number. Raises UsageError if the selection has no step.
    """
    if selection.steps is not None:
        others = [number for number in durations if not selection.wants_step(number)]
        if len(others) == len(durations):
            span = f"{min(durations)} to {max(durations)}" if durations else "none"
            raise UsageError(
                "none of the selected steps is in the trace", f"steps in the trace: {span}"
            )
        return dict.fromkeys(others, fact("left-out.not-selected"))
    mean_ns = [round(Fraction(sum(times), len(times))) for times in durations.values()]
    # The longest time that a device works before its first step.
    firsts = (stretches[0] for stretches in layout.stretches.values())
    before_ns = max((first.dur_ns for first in firsts if first.role == "before"), default=0)
    lengths_ns = np.array(mean_ns, dtype=np.int64)
    may_warm_up, has_end = not layout.are_passes, layout.has_end
    why = periodicity.steady(lengths_ns, before_ns, may_warm_up=may_warm_up, has_end=has_end)
    reasons = {number: reason for number, reason in zip(durations, why, strict=True) if reason}
    # The work of inferred steps is alike because it told them apart, and that of passes is not.
    if layout.launched_in is not None and not layout.are_passes:
        steady = [number for number in durations if number not in reasons]
        reasons |= dict.fromkeys(_lossy(layout, accounts, steady), periodicity.LOSSY)
    return reasons


def _lossy(layout: StepLayout, accounts: Accounts, steps: Sequence[int]) -> list[int]:
    """Return which of these steps lost records of GPU work; figures of devices are added up."""
    if not steps:
        return []
    launched, late_ns, ended_ns, dur_ns = (dict.fromkeys(steps, 0) for _ in range(4))
    for device, stretches in layout.stretches.items():
        edges = np.array([(own.start_ns, own.end_ns) for own in stretches], np.int64)
        late, ended = accounts[device].idle.late(*edges.reshape(-1, 2).T).tolist()
        for stretch, own_late_ns, own_ended_ns in zip(stretches, late, ended, strict=True):
            number = layout.step_number(device, stretch)
            if number in launched:
                launched[number] += stretch.launched or 0
                late_ns[number] += own_late_ns
                ended_ns[number] += own_ended_ns
                dur_ns[number] += stretch.dur_ns
    figures = (np.array([*by_step.values()]) for by_step in (launched, late_ns, ended_ns, dur_ns))
    is_lossy = periodicity.lossy(*figures)
    return [number for number, is_one in zip(steps, is_lossy, strict=True) if is_one]
