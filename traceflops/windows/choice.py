"""Which windows the figures are about: steps that are chosen or steady, or a range of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.characters import shortened
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, in_words
from traceflops.table.trace import Note, Trace, counted_note, note_of
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.records import Window
from traceflops.windows import periodicity, tiling
from traceflops.windows.chosen_runs import chosen_range, gpu_notes, one_step_note
from traceflops.windows.layout import StepLayout, layout_of, spans_layout
from traceflops.windows.records import Accounts, StepChoice, device_words
from traceflops.windows.selection import Selection
from traceflops.windows.started_up import AFTER_START_UP, BEFORE_WORK, RANGE, warms_up
from traceflops.windows.steps import LONGEST_MARK, FoundSteps

_OVERLAP = "{n} [step has|steps have] zero length: work launched in a later step started first."
_RANGE_SELECTED = fact("left-out.range-selected")
_NO_WORK, _OUTSIDE = fact("left-out.no-work"), fact("left-out.outside")


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
            stretches.append(tiling.Stretch("range", *self.time_range[device]))
        edges = [(stretch.start_ns, stretch.end_ns) for stretch in stretches]
        accounts = account.accounts(*np.array(edges, dtype=np.int64).T)
        launched = [s.launched for s in stretches if s.launched is not None]
        # A step with fewer launches than usual is unfinished. Two steps show nothing usual.
        usual_launched = float(np.median(launched)) if len(launched) > 2 else 0.0
        unbounded = self._unbounded_step(device, stretches)
        windows = []
        for stretch, window_account in zip(stretches, accounts, strict=True):
            number = self.layout.step_number(device, stretch)
            reason = self._why_left_out(stretch, number)
            if stretch is unbounded:
                reason = periodicity.LAST_STEP
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

    def _unbounded_step(
        self, device: int, stretches: Sequence[tiling.Stretch]
    ) -> tiling.Stretch | None:
        """Return the last step of a device if no later step bounds it, so that it is left out.

        Device 0 has steps 0 to 9, device 1 has steps 0 to 7. `steady` left out step 9, the last of
        the trace: so step 7 of device 1 is left out here. None if the last step is not used, if
        its end is known, or if few steps are used.
        """
        if self.chosen_by_user or self.layout.at_marks:
            return None
        steps = [stretch for stretch in stretches if stretch.role == "step"]
        used = [step for step in steps if self.layout.step_number(device, step) in self.used]
        if len(used) <= periodicity.KEEP_LAST_UP_TO or used[-1] is not steps[-1]:
            return None
        return used[-1]

    def _why_left_out(self, stretch: tiling.Stretch, number: int | None) -> Fact | None:
        """Return why a stretch is left out, None if it is used; `number` is that of its step."""
        if self.time_range is not None:
            return None if stretch.role == "range" else _RANGE_SELECTED
        if number is not None:
            return self.reasons.get(number)
        # A span is the whole of a device: it is used unless other devices have steps (`seen`).
        if stretch.role == "span":
            return _NO_WORK if self.choice.seen else None
        return _OUTSIDE if self.choice.seen else BEFORE_WORK


def plan_steps(
    linked: LinkedTrace, accounts: Accounts, selection: Selection, marked: FoundSteps | None
) -> StepPlan:
    """Return the steps of all devices, and the steps or the time range that figures are about.

    `marked` are the steps that the host marks, or None. Raises UsageError if the selection has no
    step or lies outside of the trace.
    """
    layout = layout_of(linked, accounts, selection, marked)
    if selection == Selection() and warms_up(linked, accounts, layout.stretches):
        layout = spans_layout(linked, accounts, selection)
    durations = layout.durations()
    time_range, range_notes = chosen_range(linked.trace, accounts, selection)
    used: tuple[int, ...] = ()
    reasons: dict[int, Fact] = {}
    if time_range is None:
        reasons = _reasons(layout, accounts, durations, selection)
        used = tuple(number for number in durations if number not in reasons)
    notes = [*layout.notes]
    if time_range is None:
        # A single step has no spread, which is worth a note unless the user chose it.
        if len(durations) == 1 and selection.steps is None:
            notes.append(one_step_note(linked.trace, layout.stretches))
        notes += _outside_notes(linked.trace, layout, accounts)
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


def _outside_notes(trace: Trace, layout: StepLayout, accounts: Accounts) -> Iterator[Note]:
    """Yield notes on work outside of steps, and on idle time before the first pass.

    There is no note if the trace has no steps, or if the time is a trifle (see TRIFLE).
    """
    if not layout.durations():
        return
    outside_ns = total_ns = unrecorded_ns = 0
    for device, stretches in layout.stretches.items():
        busy = accounts[device].timeline.busy
        edges = [(s.start_ns, s.end_ns) for s in stretches if s.role != "step"]
        starts, ends = np.array(edges, dtype=np.int64).reshape(-1, 2).T
        outside_ns += int(busy.length_within(starts, ends).sum())
        total_ns += busy.length_ns
        # Idle time of unrecorded cause before the first pass (see `tile`) belongs to no step.
        first = stretches[0]
        if layout.are_passes and first.role == "before":
            unrecorded = accounts[device].idle.by_cause["unrecorded"]
            before_ns = unrecorded.within(first.start_ns, first.end_ns).length_ns
            unrecorded_ns = max(unrecorded_ns, before_ns)
    if outside_ns * tiling.TRIFLE > total_ns:
        share, work = outside_ns / total_ns, device_words(trace).work
        yield note_of("dropped", "work-outside-steps", ns=outside_ns, work=work, share=share)
    steps_ns = sum(map(sum, layout.durations().values()))
    if unrecorded_ns * tiling.TRIFLE > steps_ns:
        share = unrecorded_ns / (unrecorded_ns + steps_ns)
        yield note_of("missing", "head-left-out", ns=unrecorded_ns, share=share)


def _reasons(
    layout: StepLayout,
    accounts: Accounts,
    durations: Mapping[int, list[int]],
    selection: Selection,
) -> dict[int, Fact]:
    """Return why steps are left out, by their number; all others are used.

    `durations` are in ns, by step number. Raises UsageError if the selection has no step.
    """
    if selection.steps is not None:
        return _not_selected(tuple(durations), selection)
    mean_ns = [round(Fraction(sum(times), len(times))) for times in durations.values()]
    # The longest time that a device works before its first step.
    firsts = (stretches[0] for stretches in layout.stretches.values())
    before_ns = max((first.dur_ns for first in firsts if first.role == "before"), default=0)
    why = periodicity.steady(
        np.array(mean_ns, dtype=np.int64),
        before_ns,
        may_warm_up=not layout.are_passes,
        has_end=layout.at_marks,
    )
    reasons = {number: reason for number, reason in zip(durations, why, strict=True) if reason}
    # Only marked steps show a loss. The work of inferred steps is alike because it told them apart,
    # and that of passes is not alike.
    if layout.launched_in is not None and not layout.are_passes:
        steady = [number for number in durations if number not in reasons]
        reasons |= dict.fromkeys(_lossy(layout, accounts, steady), periodicity.LOSSY)
    return reasons


def _not_selected(seen: Sequence[int], selection: Selection) -> dict[int, Fact]:
    """Return why steps are left out that the user did not select. UsageError if that is all."""
    others = [number for number in seen if not selection.wants_step(number)]
    if len(others) == len(seen):
        span = f"{seen[0]} to {seen[-1]}" if seen else "none"
        raise UsageError(
            "none of the selected steps is in the trace", f"steps in the trace: {span}"
        )
    return dict.fromkeys(others, fact("left-out.not-selected"))


def _lossy(layout: StepLayout, accounts: Accounts, steps: Sequence[int]) -> list[int]:
    """Return the numbers of those `steps` that lost records of GPU work, on all devices together.

    Step 3 launched 40 kernels on GPU 0 and 38 on GPU 1: it counts as one step with 78 launches.
    """
    if not steps:
        return []
    launched, late_ns, dur_ns = (dict.fromkeys(steps, 0) for _ in range(3))
    for device, stretches in layout.stretches.items():
        starts_ns = np.array([stretch.start_ns for stretch in stretches], dtype=np.int64)
        ends_ns = np.array([stretch.end_ns for stretch in stretches], dtype=np.int64)
        unrecorded = accounts[device].idle.by_cause["unrecorded"]
        late = unrecorded.length_within(starts_ns, ends_ns).tolist()
        for stretch, stretch_late_ns in zip(stretches, late, strict=True):
            number = layout.step_number(device, stretch)
            if number in launched:
                launched[number] += stretch.launched or 0
                late_ns[number] += stretch_late_ns
                dur_ns[number] += stretch.dur_ns
    figures = (np.array([*by_step.values()]) for by_step in (launched, late_ns, dur_ns))
    is_lossy = periodicity.lossy(*figures)
    return [number for number, is_one in zip(steps, is_lossy, strict=True) if is_one]
