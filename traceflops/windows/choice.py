"""The windows of each device, and which of them the figures are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.characters import shortened
from traceflops.devices.processes import device_name
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.records import Window
from traceflops.units import listed
from traceflops.windows import tiling
from traceflops.windows.chosen_runs import chosen_range, gpu_notes, one_step_note
from traceflops.windows.numbered_ranges import likely_step_mark, numbered_steps
from traceflops.windows.periodicity import (
    KEEP_LAST_UP_TO,
    LAST_STEP,
    device_steps,
    inferred_steps,
    steady,
)
from traceflops.windows.records import StepChoice, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.started_up import AFTER_START_UP, BEFORE_WORK, RANGE, spans
from traceflops.windows.step_times import Owners, owners_of, shared_steps_note
from traceflops.windows.steps import (
    LONGEST_MARK,
    FoundSteps,
    how_to_mark,
    some_marks,
    step_of_activity,
    until_next,
    without_launches,
)

_RANGE_SELECTED = fact("left-out.range-selected")
_NO_WORK, _OUTSIDE = fact("left-out.no-work"), fact("left-out.outside")
REPEATED = "repeated-step-numbers"
"""The code of the note that steps are renumbered."""


class StepLayout(Struct, frozen=True):
    """The windows (`stretches`) of each device, and its step numbers, by `place` of a stretch.

    `source` and `how` say how steps were found. `launched_in` is, per activity, the place of the
    step that launched it (see `step_of_activity`), -1 if unknown; None if the host marks no steps.
    `are_passes` is as in `FoundSteps`. `at_marks`: steps begin and end at their marks on the host,
    so the length of the last one is known although no step follows it.
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


class StepPlan(Struct, frozen=True):
    """The steps of all devices, the numbers of those used, and by number why others are not.

    `time_range` is, by device, start and end of the chosen time; None if steps are chosen.
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
            stretches.append(tiling.Stretch("range", None, *self.time_range[device], None))
        edges = [(stretch.start_ns, stretch.end_ns) for stretch in stretches]
        accounts = account.accounts(*np.array(edges, dtype=np.int64).T)
        launched = [s.launched for s in stretches if s.launched is not None]
        # A step with fewer launches than usual is unfinished; of two, neither is usual.
        usual_launched = float(np.median(launched)) if len(launched) > 2 else 0.0
        # The last of all steps is already left out (`steady`), but a device may end before others.
        steps = [stretch for stretch in stretches if stretch.role == "step"]
        used = [step for step in steps if self.layout.step_number(device, step) in self.used]
        has_end = self.chosen_by_user or self.layout.at_marks or len(used) <= KEEP_LAST_UP_TO
        unbounded = None if has_end or used[-1] is not steps[-1] else used[-1]
        windows = []
        for stretch, window_account in zip(stretches, accounts, strict=True):
            number = self.layout.step_number(device, stretch)
            reason = LAST_STEP if stretch is unbounded else self._why_left_out(stretch, number)
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

    def _why_left_out(self, stretch: tiling.Stretch, number: int | None) -> Fact | None:
        """Return why figures are not about a stretch (`number`: of its step), None if they are."""
        if self.time_range is not None:
            return None if stretch.role == "range" else _RANGE_SELECTED
        if number is not None:
            return self.reasons.get(number)
        # A span is the whole of a device: it is used unless other devices have steps (`seen`).
        if stretch.role == "span":
            return _NO_WORK if self.choice.seen else None
        return _OUTSIDE if self.choice.seen else BEFORE_WORK


def plan_steps(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    selection: Selection,
    marked: FoundSteps | None,
) -> StepPlan:
    """Choose the steps or the time that the figures are about, for all devices.

    `marked` are the steps that the host marks, or None. Raises UsageError if none is selected.
    """
    layout = _layout(linked, accounts, selection, marked)
    time_range, range_notes = chosen_range(linked.trace, accounts, selection)
    durations = layout.durations()
    used, reasons = _used(layout, durations, selection) if time_range is None else ((), {})
    notes = list(layout.notes)
    # A single step has no spread, which is worth a note unless the user chose it from several.
    if len(used) == 1 and selection.steps is None and len(durations) == 1:
        notes.append(one_step_note(linked.trace, layout.stretches))
    notes += _outside_notes(linked.trace, layout, accounts) if time_range is None else ()
    all_stretches = chain.from_iterable(layout.stretches.values())
    collapsed = sum(stretch.role == "step" and not stretch.dur_ns for stretch in all_stretches)
    if collapsed:
        notes.append(
            counted_note(
                "assumed",
                "steps-overlap",
                "{n} [step has|steps have] zero length: work launched in a later step started "
                "first.",
                collapsed,
            )
        )
    notes += gpu_notes(linked.trace, accounts, selection)
    notes += range_notes
    how, after = in_words(layout.how), layout.how.code in (AFTER_START_UP.code, RANGE)
    choice = StepChoice(layout.source, how, tuple(durations), used, after_start_up=after)
    by_user = selection.steps is not None
    return StepPlan(layout, choice, frozenset(used), reasons, time_range, by_user, tuple(notes))


def _outside_notes(
    trace: Trace, layout: StepLayout, accounts: Mapping[int, DeviceAccount]
) -> Iterator[Note]:
    """Yield notes on device time outside of steps; none without steps, or if it is a trifle."""
    if not layout.durations():
        return
    work_ns = total_ns = unrecorded_ns = 0
    for device, stretches in layout.stretches.items():
        busy = accounts[device].timeline.busy
        outside = [(s.start_ns, s.end_ns) for s in stretches if s.role != "step"]
        starts, ends = np.array(outside, dtype=np.int64).reshape(-1, 2).T
        work_ns += int(busy.length_within(starts, ends).sum())
        total_ns += busy.length_ns
        # The first pass begins after any idle time whose cause was not recorded (`tile`): that time
        # belongs to no step.
        first, unrecorded = stretches[0], accounts[device].idle.by_cause["unrecorded"]
        if layout.are_passes and first.role == "before":
            before_ns = unrecorded.within(first.start_ns, first.end_ns).length_ns
            unrecorded_ns = max(unrecorded_ns, before_ns)
    if work_ns * tiling.TRIFLE > total_ns:
        share, work = work_ns / total_ns, device_words(trace).work
        yield note_of("dropped", "work-outside-steps", ns=work_ns, work=work, share=share)
    steps_ns = sum(map(sum, layout.durations().values()))
    if unrecorded_ns * tiling.TRIFLE > steps_ns:
        share = unrecorded_ns / (unrecorded_ns + steps_ns)
        yield note_of("missing", "head-left-out", ns=unrecorded_ns, share=share)


def _layout(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    selection: Selection,
    marked: FoundSteps | None,
) -> StepLayout:
    """Return the steps by marks of the host (`marked`) with work, else as `_unmarked_layout`."""
    trace, work = linked.trace, device_words(linked.trace).work
    if marked is not None:
        layout = _marked_layout(linked, accounts, marked)
        if layout.durations():
            return layout
        # The marks may end before the launches they announce. That they announce any is trusted
        # only if there is work between all of several marks.
        layout = _marked_layout(linked, accounts, until_next(marked))
        most = max(map(len, marked.by_process.values()))
        if len(layout.durations()) == most > 1:
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


def _marked_layout(
    linked: LinkedTrace, accounts: Mapping[int, DeviceAccount], marked: FoundSteps
) -> StepLayout:
    """Lay out marked steps, on each device those of the process with most work in steps."""
    activities = linked.trace.activities
    step_of = step_of_activity(linked.trace, linked.links, marked)
    listed_for: list[int] = numbers(linked.trace.devices["process"]).tolist()
    process, stream = (numbers(activities[name], ABSENT) for name in ("process", "stream"))
    is_kernel, name = is_one_of(activities["kind"], "kernel"), codes(activities["name"])
    last_pass = None
    if marked.are_passes:  # the last begun before each launch: they launch work behind their end
        last_pass = step_of_activity(linked.trace, linked.links, until_next(marked))
    owners: dict[int, Owners] = {}
    is_other_clock, at_marks = linked.clock_offsets != 0, True
    has_repeats = any(len(distinct(s.number)) < len(s) for s in marked.by_process.values())
    stretches: dict[int, list[tiling.Stretch]] = {}
    numbers_of: dict[int, IntArray] = {}
    for device, account in accounts.items():
        rows, row = account.rows, account.rows.row
        work = process[row], rows.end_ns - rows.start_ns, step_of[row] >= 0
        owners[device] = owners_of(*work, listed_for[device], marked.by_process.keys())
        owner = owners[device].owner
        # Step indices are per process: those of other processes mean other steps.
        of_owner = process[row] == owner
        step_of[row[~of_owner]] = -1
        behind = None
        if last_pass is not None:
            pass_of_row = np.where(of_owner, last_pass[row], -1)
            behind = tiling.Behind(pass_of_row, name[row], account.idle.by_cause["unrecorded"])
        is_paced = tiling.paced(step_of[row], stream[row], is_kernel[row])
        tiled = tiling.tile(rows.start_ns, rows.end_ns, step_of[row], rows.span, is_paced, behind)
        stretches[device] = tiled
        # Marks are times of the host, so its clock must agree with the device's. Passes that
        # overlap are launched ahead: each lasts from its first work on.
        steps = marked.by_process.get(owner)
        if steps is not None and not is_other_clock[owner] and not marked.are_passes:
            stretches[device] = tiling.from_the_marks(tiled, steps.start_ns, account)
            if (begin_ns := stretches[device][0].start_ns) < rows.span[0]:
                account.begin_at(begin_ns)  # the time before the first work is idle time, too
        begins_ns, first_work_ns = (
            [stretch.start_ns for stretch in windows if stretch.role == "step"]
            for windows in (stretches[device], tiled)
        )
        # If the last step begins at its mark, before its first work, the end of the mark bounds it.
        at_marks &= begins_ns[-1:] != first_work_ns[-1:]
        number = steps.number if steps is not None else np.empty(0, dtype=np.int64)
        # Numbers that repeat do not tell steps apart: these count from 0 then.
        numbers_of[device] = np.arange(len(number)) if has_repeats else number
    notes = [*_marked_notes(linked, marked, owners)]
    if has_repeats:
        notes.append(note_of("assumed", REPEATED))
    described = marked.source, marked.how, tuple(notes)
    return StepLayout(stretches, numbers_of, *described, step_of, marked.are_passes, at_marks)


def _marked_notes(
    linked: LinkedTrace, marked: FoundSteps, owners: Mapping[int, Owners]
) -> Iterator[Note]:
    """Yield the notes of the marks, and on devices without steps or used by several processes."""
    yield from marked.notes
    if set(without_launches(linked.trace, linked.links).tolist()) & marked.by_process.keys():
        yield note_of("assumed", "steps-by-device-time")
    without_steps = [
        device for device, owner in owners.items() if owner.owner not in marked.by_process
    ]
    if without_steps and len(without_steps) < len(owners):
        devices = listed(without_steps, partial(device_name, linked.trace))
        count = len(without_steps)
        yield note_of("missing", "devices-without-steps", count=count, devices=devices)
    shared = {device: owner for device, owner in owners.items() if owner.others}
    if shared:
        yield shared_steps_note(linked.trace, shared)


def _unmarked_layout(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    selection: Selection,
    marked: FoundSteps | None,
) -> StepLayout:
    """Return the steps that the tool marks on devices, else those that repeat, else one span.

    Where what repeats may be layers, numbered ranges that hold them are the steps.
    """
    marked_by_tool = device_steps(linked.trace, accounts)
    if marked_by_tool is not None:
        return StepLayout(*marked_by_tool, "markers", fact("steps-by.tool"))
    inferred = inferred_steps(linked, accounts)
    ranges = numbered_steps(linked, accounts, inferred[1] if inferred is not None else None)
    if ranges is not None:
        return _marked_layout(linked, accounts, ranges)
    if inferred is not None:
        stretches, source, how = inferred
        variant = ".unmarked" if marked is None else ""
        note = note_of("assumed", f"steps-inferred{variant}", how=how)
        numbered = {device: np.arange(len(steps)) for device, steps in stretches.items()}
        return StepLayout(stretches, numbered, source, how, (note,))
    mark = likely_step_mark(linked.trace) if accounts else None
    # `share`, the part of the time that the note concerns, is all if the advice can name a mark.
    advice, share = how_to_mark(linked.trace, mark), float(mark is not None)
    windows, how = spans(linked, accounts, selection)
    extent = how.code.removeprefix("steps-by.")
    note = note_of("assumed", f"no-steps.{extent}", share=share, advice=advice)
    no_numbers = dict.fromkeys(windows, np.empty(0, dtype=np.int64))
    notes = (note,) if accounts else ()
    return StepLayout(windows, no_numbers, "none", how, notes)


def _used(
    layout: StepLayout, durations: Mapping[int, list[int]], selection: Selection
) -> tuple[tuple[int, ...], dict[int, Fact]]:
    """Return the steps to use, and by number why others are not. Raises UsageError for none."""
    seen = tuple(durations)
    if selection.steps is not None:
        used = tuple(filter(selection.wants_step, seen))
        if not used:
            span = f"{seen[0]} to {seen[-1]}" if seen else "none"
            raise UsageError(
                "none of the selected steps is in the trace", f"steps in the trace: {span}"
            )
        return used, dict.fromkeys(set(seen).difference(used), fact("left-out.not-selected"))
    means = [round(Fraction(sum(times), len(times))) for times in durations.values()]
    # The longest time that a device works before its first step.
    firsts = (stretches[0] for stretches in layout.stretches.values())
    before_ns = max((first.dur_ns for first in firsts if first.role == "before"), default=0)
    why = steady(
        np.array(means, dtype=np.int64),
        before_ns,
        may_warm_up=not layout.are_passes,
        has_end=layout.at_marks,
    )
    reasons = {number: reason for number, reason in zip(seen, why, strict=True) if reason}
    return tuple(number for number in seen if number not in reasons), reasons
