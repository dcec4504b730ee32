"""The windows of each device, and which of them the figures are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.devices.processes import device_name
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words
from traceflops.table.columns import ABSENT, IntArray, codes, is_one_of, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.idle import LONGEST_START_NS
from traceflops.timeline.records import Window
from traceflops.units import listed
from traceflops.windows.chosen_runs import chosen_range, gpu_notes, one_step_note
from traceflops.windows.periodicity import (
    KEEP_LAST_UP_TO,
    LAST_STEP,
    TRIFLE,
    Behind,
    Stretch,
    before_first,
    device_steps,
    inferred_steps,
    paced,
    steady,
    tile,
)
from traceflops.windows.records import StepChoice, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.started_up import AFTER_START_UP, BEFORE_WORK, spans
from traceflops.windows.step_times import Owners, owners_of, shared_steps_note
from traceflops.windows.steps import (
    FoundSteps,
    how_to_mark,
    likely_step_mark,
    some_marks,
    step_of_activity,
    until_next,
    without_launches,
)

_RANGE_SELECTED = fact("left-out.range-selected")
_NO_WORK, _OUTSIDE = fact("left-out.no-work"), fact("left-out.outside")
REPEATED = "repeated-step-numbers"
"""The code of the note that steps are renumbered."""

_SMALL_PART: Final = 20
"""Latency of less than 1/20 of the time of the steps does not move their edges."""
_NEVER: Final = np.iinfo(np.int64).max


class StepLayout(Struct, frozen=True):
    """The stretches of each device, and the number of the step per `place` of a stretch.

    `source` and `how` say how steps were found. `launched_in` is, per activity, the place of the
    step that launched it (see `step_of_activity`), -1 if unknown; None where steps are not marked
    on the host. `are_passes` is as in `FoundSteps`. `at_marks`: the last step begins at its mark,
    so that its length is known without a successor.
    """

    stretches: Mapping[int, list[Stretch]]
    numbers: Mapping[int, IntArray]
    source: str
    how: Fact
    notes: tuple[Note, ...] = ()
    launched_in: IntArray | None = None
    are_passes: bool = False
    at_marks: bool = False

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
    """The steps of all devices, the numbers of those used, and the reasons why others are not.

    `time_range` is, by device, start and end of the chosen time; None where steps are chosen.
    """

    layout: StepLayout
    choice: StepChoice
    used: frozenset[int]
    reasons: Mapping[int, Fact]
    time_range: Mapping[int, tuple[int, int]] | None
    chosen_by_user: bool
    notes: tuple[Note, ...]

    def windows(self, device: int, account: DeviceAccount) -> tuple[Window, ...]:
        """Return the windows of a device in order, with accounts, and whether each is used."""
        stretches = list(self.layout.stretches[device])
        if self.time_range is not None and device in self.time_range:
            stretches.append(Stretch("range", None, *self.time_range[device], None))
        edges = [(stretch.start_ns, stretch.end_ns) for stretch in stretches]
        accounts = account.accounts(*np.array(edges, dtype=np.int64).T)
        launched = [s.launched for s in stretches if s.launched is not None]
        usual_launched = float(np.median(launched)) if len(launched) > 2 else 0.0
        # On a device that ends before other ranks, a used step may be the last: nothing bounds it.
        steps = [s for s in stretches if self.layout.step_number(device, s) in self.used]
        ends_here = steps and steps[-1] is [s for s in stretches if s.role == "step"][-1]
        is_kept = self.chosen_by_user or self.layout.at_marks or len(steps) <= KEEP_LAST_UP_TO
        unbounded = steps[-1] if ends_here and not is_kept else None
        windows = []
        for stretch, window_account in zip(stretches, accounts, strict=True):
            number = self.layout.step_number(device, stretch)
            reason: Fact | None
            if self.time_range is not None:
                used, reason = stretch.role == "range", _RANGE_SELECTED
            elif stretch.role == "span":
                used, reason = not self.choice.seen, _NO_WORK
            elif number is None:
                used, reason = False, _OUTSIDE if self.choice.seen else BEFORE_WORK
            else:
                used, reason = number in self.used, self.reasons.get(number)
            if stretch is unbounded:
                used, reason = False, LAST_STEP
            window = Window(
                role=stretch.role,
                step=number,
                start_ns=stretch.start_ns,
                end_ns=stretch.end_ns,
                used=used,
                left_out=None if used else reason,
                launched=stretch.launched,
                unfinished=stretch.launched is not None and stretch.launched < usual_launched,
                account=window_account,
            )
            windows.append(window)
        return tuple(windows)


def plan_steps(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    selection: Selection,
    marked: FoundSteps | None,
) -> StepPlan:
    """Choose the steps or the time that the figures are about, for all devices.

    `marked` are the steps that the host marks, None without any. Raises UsageError where selected
    steps are not in the trace.
    """
    layout = _layout(linked, accounts, selection, marked)
    time_range, range_notes = chosen_range(linked.trace, accounts, selection)
    durations = layout.durations()
    used, reasons = _used(layout, durations, selection) if time_range is None else ((), {})
    notes = list(layout.notes)
    if len(used) == 1 and selection.steps is None and len(durations) == 1:
        notes.append(one_step_note(linked.trace, layout.stretches))
    notes += _outside_notes(linked.trace, layout, accounts) if time_range is None else ()
    collapsed = sum(s.role == "step" and not s.dur_ns for d in layout.stretches.values() for s in d)
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
    how, after = in_words(layout.how), layout.how == AFTER_START_UP
    choice = StepChoice(layout.source, how, tuple(durations), used, after_start_up=after)
    by_user = selection.steps is not None
    return StepPlan(layout, choice, frozenset(used), reasons, time_range, by_user, tuple(notes))


def _outside_notes(
    trace: Trace, layout: StepLayout, accounts: Mapping[int, DeviceAccount]
) -> Iterator[Note]:
    """Yield notes on device work outside of steps; none without steps or for a trifle."""
    if not layout.durations():
        return
    work_ns = total_ns = head_ns = 0
    for device, stretches in layout.stretches.items():
        busy = accounts[device].timeline.busy
        edges = [(s.start_ns, s.end_ns) for s in stretches if s.role != "step"]
        low, high = np.array([*edges, accounts[device].rows.span], dtype=np.int64).T
        *outside, total = busy.length_within(low, high).tolist()
        work_ns, total_ns = work_ns + sum(outside), total_ns + total
        first, unrecorded = stretches[0], accounts[device].idle.by_cause["unrecorded"]
        if layout.are_passes and first.role == "before":
            head_ns = max(head_ns, unrecorded.within(first.start_ns, first.end_ns).length_ns)
    if work_ns * TRIFLE > total_ns:
        share, work = work_ns / total_ns, device_words(trace).work
        yield note_of("dropped", "work-outside-steps", ns=work_ns, work=work, share=share)
    steps_ns = sum(map(sum, layout.durations().values()))
    if head_ns * TRIFLE > steps_ns:
        share = head_ns / (head_ns + steps_ns)
        yield note_of("missing", "head-left-out", ns=head_ns, share=share)


def _layout(
    linked: LinkedTrace,
    accounts: Mapping[int, DeviceAccount],
    selection: Selection,
    marked: FoundSteps | None,
) -> StepLayout:
    """Return the steps by marks of the host, else by other means (see `_unmarked_layout`).

    Marks count if work was launched inside them, or until the next mark.
    """
    trace, work = linked.trace, device_words(linked.trace).work
    if marked is not None:
        layout = _marked_layout(linked, accounts, marked)
        if layout.durations():
            return layout
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
    process: list[int] = numbers(linked.trace.devices["process"]).tolist()
    launcher, stream = (numbers(activities[name], ABSENT) for name in ("process", "stream"))
    is_kernel, name = is_one_of(activities["kind"], "kernel"), codes(activities["name"])
    before = None
    if marked.are_passes:
        before = step_of_activity(linked.trace, linked.links, until_next(marked))
    owners: dict[int, Owners] = {}
    is_other_clock, at_marks = linked.clock_offsets != 0, True
    has_repeats = any(len(distinct(s.number)) < len(s) for s in marked.by_process.values())
    stretches: dict[int, list[Stretch]] = {}
    numbers_of: dict[int, IntArray] = {}
    for device, account in accounts.items():
        rows, row = account.rows, account.rows.row
        work = launcher[row], rows.end_ns - rows.start_ns, step_of[row] >= 0
        owners[device] = owners_of(*work, process[device], marked.by_process.keys())
        owner = owners[device].owner
        # Step indices are per process: those of other processes mean other steps.
        of_owner = launcher[row] == owner
        step_of[row[~of_owner]] = -1
        behind = None
        if before is not None:
            last = np.where(of_owner, before[row], -1)
            behind = Behind(last, name[row], account.idle.by_cause["unrecorded"])
        step = step_of[row]
        is_paced = paced(step, stream[row], is_kernel[row])
        tiled = tile(rows.start_ns, rows.end_ns, step, rows.span, behind, is_paced)
        steps = marked.by_process.get(owner)
        stretches[device] = tiled
        if steps is not None and not is_other_clock[owner] and not marked.are_passes:
            stretches[device] = _from_the_marks(tiled, steps.start_ns, account)
            if (begin_ns := stretches[device][0].start_ns) < rows.span[0]:
                account.begin_at(begin_ns)
        last_begin, first_work = (
            [stretch.start_ns for stretch in windows if stretch.role == "step"][-1:]
            for windows in (stretches[device], tiled)
        )
        at_marks &= last_begin != first_work
        number = steps.number if steps is not None else np.empty(0, dtype=np.int64)
        numbers_of[device] = np.arange(len(number)) if has_repeats else number
    notes = [*_marked_notes(linked, marked, owners)]
    if has_repeats:
        notes.append(note_of("assumed", REPEATED))
    described = marked.source, marked.how, tuple(notes)
    return StepLayout(stretches, numbers_of, *described, step_of, marked.are_passes, at_marks)


def _from_the_marks(
    tiled: list[Stretch], marked_ns: IntArray, account: DeviceAccount
) -> list[Stretch]:
    """Return the windows of a device with steps that begin at their mark, not their first work.

    A step begins at its mark on the host (`marked_ns`, per place), or later when the work before
    it has ended. If its first work waited long after the launch, for work that is not recorded, it
    begins with that work. So do all steps if the difference is small.
    """
    steps = [stretch for stretch in tiled if stretch.role == "step"]
    if not steps or not all(step.dur_ns for step in steps):
        return tiled
    first_ns, work = np.array([step.start_ns for step in steps]), account.work
    first = np.searchsorted(work.start_ns, first_ns)
    ended_ns = np.append(-_NEVER, np.maximum.accumulate(work.end_ns))[first]
    marks = np.maximum(marked_ns[[step.place or 0 for step in steps]], ended_ns)
    called_ns = work.call_start_ns[np.minimum(first, len(work.start_ns) - 1)]
    waits = (called_ns != ABSENT) & (first_ns - called_ns > LONGEST_START_NS)
    begin_ns = np.maximum.accumulate(np.where(waits, first_ns, np.minimum(first_ns, marks)))
    if (first_ns - begin_ns).sum() * _SMALL_PART < steps[-1].end_ns - begin_ns[0]:
        return tiled
    moved = dict(zip(first_ns.tolist(), begin_ns.tolist(), strict=True))
    edges = ((moved.get(s.start_ns, s.start_ns), moved.get(s.end_ns, s.end_ns)) for s in tiled)
    windows = [
        replace(s, start_ns=low, end_ns=high) for s, (low, high) in zip(tiled, edges, strict=True)
    ]
    return [window for window in windows if window.role == "step" or window.dur_ns > 0]


def _marked_notes(
    linked: LinkedTrace, marked: FoundSteps, owners: Mapping[int, Owners]
) -> Iterator[Note]:
    """Yield the notes of the marks, and those on devices without steps or with several owners."""
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
    """Return the steps that the tool marks on devices, else those that repeat, else one span."""
    marked_by_tool = device_steps(linked.trace, accounts)
    if marked_by_tool is not None:
        return StepLayout(*marked_by_tool, "markers", fact("steps-by.tool"))
    inferred = inferred_steps(linked, accounts)
    if inferred is not None:
        stretches, source, how = inferred
        variant = ".unmarked" if marked is None else ""
        note = note_of("assumed", f"steps-inferred{variant}", how=how)
        numbered = {device: np.arange(len(steps)) for device, steps in stretches.items()}
        return StepLayout(stretches, numbered, source, how, (note,))
    mark = likely_step_mark(linked.trace) if accounts else None
    advice, share = how_to_mark(linked.trace, mark), float(mark is not None)
    windows, extent = spans(linked.trace, accounts, selection)
    note = note_of("assumed", f"no-steps.{extent}", share=share, advice=advice)
    no_numbers = dict.fromkeys(windows, np.empty(0, dtype=np.int64))
    notes = (note,) if accounts else ()
    return StepLayout(windows, no_numbers, "none", fact(f"steps-by.{extent}"), notes)


def _used(
    layout: StepLayout, durations: Mapping[int, list[int]], selection: Selection
) -> tuple[tuple[int, ...], dict[int, Fact]]:
    """Return the numbers of the steps to use, and by number the reasons against the others."""
    seen = tuple(durations)
    if selection.steps is not None:
        used = tuple(filter(selection.wants_step, seen))
        if not used:
            span = f"{seen[0]} to {seen[-1]}" if seen else "none"
            raise UsageError(
                "none of the selected steps is in the trace", f"steps in the trace: {span}"
            )
        return used, dict.fromkeys(set(seen).difference(used), fact("left-out.not-selected"))
    usual = [round(Fraction(sum(times), len(times))) for times in durations.values()]
    before_ns, may_warm_up = before_first(layout.stretches.values()), not layout.are_passes
    lengths = np.array(usual, dtype=np.int64)
    why = steady(lengths, before_ns, may_warm_up=may_warm_up, has_end=layout.at_marks)
    reasons = {number: reason for number, reason in zip(seen, why, strict=True) if reason}
    return tuple(number for number in seen if number not in reasons), reasons
