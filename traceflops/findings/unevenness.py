"""Rule `uneven-steps`: the time of steps beyond their median, which are slow, and of what.

A remedy gains at most all of that time. Slow steps may have more to do, but not in idle time: at
least half of their additional idle time is gained.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution.culprits import REST, UNRECORDED, Culprit, culprits_of
from traceflops.attribution.host_events import has_fact
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapParts, gap_parts
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.marks import range_names
from traceflops.characters import function_name, kernel_name
from traceflops.facts import Fact, fact
from traceflops.findings.case import Case, cause
from traceflops.findings.finding import Cause, Finding, Gain, Row, Where, severity_of, short_name
from traceflops.findings.host_samples import only_waits
from traceflops.findings.pacing import period_ns
from traceflops.findings.rules import rule_of, statement
from traceflops.mfu.serving_passes import Serving
from traceflops.table.columns import axes, codes, is_one_of, names, numbers, product_of
from traceflops.table.grouping import distinct, group_rows, groups
from traceflops.table.nesting import taken
from traceflops.timeline.intervals import Intervals
from traceflops.units import PART_NAMES, listed
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport, chosen_time
from traceflops.windows.step_times import StepSpread, StepTime, late_after, median_of

UNEVEN_STEPS: Final = "uneven-steps"
_LEAST_STEPS: Final = 3  # of two steps the median is their mean, and one is always longer
_ANOTHER_SIZE: Final = 0.1
"""Steps whose launches have more or fewer blocks by this share work on another size."""
_HARDLY: Final = 0.1
"""A span makes steps slow if the usual steps have at most this share of its time."""
_IDLE: Final = "idle"
_PROMPTS: Final = ("prefill", "mixed")
_SPANS: Final = ("annotation", "python", "overhead")
_LOADER: Final = re.compile("[Dd]ata[Ll]oader")
_KINDS: Final = {
    "checkpoints": r"serialization\.py|\bsave(_(checkpoint|model|state)\w*)?$|^checkpoint\b",
    "garbage": r"\b(gc|GC|collect)\b",
    "evaluation": r"\b(eval|evaluat(e|ion)|validat(e|ion))$",
    "profiler": r"^(Activity Buffer Request|Buffer Flush|Instrumentation)$",
}
"""Why steps are slow, by names of functions and ranges that take longer in them."""
_WARM_UP, _PROFILER = "warm-up", "profiler"
_SPORADIC: Final = ("other_calls", "eager_overhead", "launch_latency")
"""Classes of idle time whose usual remedy does not help if only some steps have more of them."""
_KERNELS: Final = "uneven-steps.remedy.kernels"
_SAME: Final = "uneven-steps.remedy.same"


class _More(Struct, frozen=True):
    """What takes longer in slow steps: its name, and by how much per step.

    `usual_ns` is its time in usual steps; `remedy` the code of what to do, "" for a span.
    """

    name: str
    more_ns: int
    usual_ns: int
    remedy: str = ""


def uneven_findings(
    spread: StepSpread | None, devices: Sequence[DeviceReport], serving: Serving
) -> Iterator[Finding]:
    """Give a finding if the steps used take much longer together than if each were the median.

    Nothing is given if the slow steps are passes of a server that read prompts, which take longer.
    """
    if spread is None or len(spread.used) < _LEAST_STEPS:
        return
    # Prompts explain slow steps if all slow steps, and few others, read some.
    reads = [one_pass for one_pass in serving.passes if one_pass.kind in _PROMPTS]
    starts = np.array([one_pass.start_ns for one_pass in reads])
    reading = {
        window.step
        for device in devices
        for window in (device.windows if reads else ())
        if window.used and ((window.start_ns <= starts) & (starts < window.end_ns)).any()
    }
    slow = {step.step for step in spread.slow}
    prompts_explain = slow <= reading and 2 * len(reading) < len(spread.used)
    if slow and prompts_explain:
        return
    whole_ns = sum(spread.times_ns)
    share = spread.beyond_median_ns / whole_ns if whole_ns else 0.0
    if severity_of(share) is None:
        return
    # By how much the longest step is longer than the median, and what most of it is
    longest = spread.longest
    more_ns = longest.ns - spread.median_ns
    name, part_ns = spread.largest_part
    is_most = 2 * part_ns > more_ns
    late = late_after(devices, longest.step, more_ns) if name == _IDLE and is_most else None
    of_longest = fact(
        f"{UNEVEN_STEPS}.longest",
        step=longest.step,
        more_ns=more_ns,
        part=PART_NAMES[name] if is_most else None,
        late=late[0] if late is not None else None,
    )
    yield statement(UNEVEN_STEPS, share, details=(of_longest,), owner=None)


def uneven_steps(case: Case) -> Iterator[Cause]:
    """Give uneven steps as a cause: which steps are slow, and what takes longer in them."""
    spread = case.spread
    finding = next(uneven_findings(spread, case.devices, case.serving), None)
    if spread is None or finding is None or is_sweep(case) or period_ns(case) is not None:
        return
    slow = spread.slow
    more = _more(case, spread, slow) if slow else None
    if more is not None and _LOADER.search(more.name):
        return  # rule data-input tells it, with its gain
    # Why steps are slow: a key of _KINDS, warm-up if they are the first and idle, "" if unknown.
    name = more.name if more is not None and not more.remedy else ""
    kind = next((kind for kind, named in _KINDS.items() if name and re.search(named, name)), "")
    if slow and slow == spread.used[: len(slow)] and spread.largest_part[0] == _IDLE:
        kind = _WARM_UP
    # Which steps stand out, and what takes longer in them, or occurs only in them
    which, has_more = fact(f"{UNEVEN_STEPS}.none"), None
    if more is not None:
        code = f"{UNEVEN_STEPS}.{'more' if more.usual_ns else 'only'}"
        has_more = fact(code, name=short_name(more.name), more_ns=more.more_ns)
    if slow:
        which = fact(
            f"{UNEVEN_STEPS}.which",
            count=len(slow),
            all=len(spread.used),
            steps=listed([str(step.step) for step in slow]),
            more=has_more,
        )
    # No gain is told of what ends by itself, nor of waits that may set the pace.
    waits = more is not None and more.name == CLASSES[UNRECORDED] and only_waits(case)
    if more is not None and more.remedy == _KERNELS and _have_same_work(case, slow):
        more = replace(more, remedy=_SAME)
    is_nobodys = kind == _PROFILER or (more is not None and more.remedy == _SAME)
    doubt = "leaving-out" if kind in (_WARM_UP, _PROFILER) else "off-cpu" if waits else None
    windows = [
        window
        for device in case.devices
        for window in device.windows
        if window.used and window.step == spread.longest.step
    ]
    longest = max(windows, key=lambda window: window.end_ns - window.start_ns)
    yield cause(
        case,
        UNEVEN_STEPS,
        finding.share,
        details=(*finding.details, which),
        name=fact(f"{UNEVEN_STEPS}.title-{kind}" if kind else f"{UNEVEN_STEPS}.title"),
        advice=_advice(case, kind, spread, slow, more),
        owner=None if is_nobodys else rule_of(UNEVEN_STEPS).owner,
        rows=(Row(more.name, more.more_ns * len(slow), len(slow)),) if more else (),
        where=Where(start_ns=longest.start_ns, end_ns=longest.end_ns),
        gain=None if doubt else _gain(case, spread, slow),
        doubts=(fact(f"doubt.{doubt or 'longer-step'}"),),
    )


def is_sweep(case: Case) -> bool:
    """Return whether steps differ on purpose: most launch another number of blocks than usual."""
    prepared = case.prepared
    grid = np.maximum(product_of(axes(prepared.trace.activities["grid"])), 0)  # 0 for unknown
    for device, account in prepared.accounts.items():
        used = [window for window in prepared.windows[device] if window.used]
        start, end = (
            np.array([(w.start_ns, w.end_ns) for w in used], dtype=np.int64).reshape(-1, 2).T
        )
        # Blocks per step, as differences of the sum up to the first work of each
        up_to = np.append(0, np.cumsum(grid[account.rows.row]))
        first, stop = (np.searchsorted(account.rows.start_ns, edge) for edge in (start, end))
        blocks = up_to[stop] - up_to[first]
        usual = np.sort(blocks)[(len(used) - 1) // 2] if used else 0
        differs = np.abs(blocks - usual) > _ANOTHER_SIZE * usual
        if usual and 2 * differs.sum() > len(used):
            return True
    return False


def _have_same_work(case: Case, slow: Sequence[StepTime]) -> bool:
    """Return whether each slow step launches what some usual step does, on inputs of that size.

    False if that is not known: for summaries, or if a kernel has neither a grid nor shapes.
    """
    prepared, steps = case.prepared, {step.step for step in slow}
    activities, ops = prepared.trace.activities, prepared.trace.ops
    for device, account in prepared.accounts.items():
        row, start_ns = account.rows.row, account.rows.start_ns
        dims = taken(codes(ops["input_dims"]), ops_that_launched(prepared, row))
        blocks = np.maximum(product_of(axes(activities["grid"]))[row], 0)  # 0 for unknown
        launch, _ = group_rows((codes(activities["name"])[row], blocks, dims))
        work: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
        for window in prepared.windows[device]:
            if window.used:
                first, stop = np.searchsorted(start_ns, (window.start_ns, window.end_ns))
                if ((dims[first:stop] < 0) & (blocks[first:stop] == 0)).any():
                    return False
                own = tuple(np.sort(launch[first:stop]).tolist())
                work[window.step in steps].add(own)
        if not work[True] <= work[False]:
            return False
    return len(prepared.accounts) > 0


def _gain(case: Case, spread: StepSpread, slow: Sequence[StepTime]) -> Gain:
    """Return the gain per step if slow steps became as short as the median.

    At most it is all their time beyond the median. At least it is half of their additional idle
    time: nothing runs then, but how much can be saved is not known.
    """
    usual_ns = spread.median_ns
    usual_idle_ns = median_of([step.components.idle_ns for step in spread.used])
    idle_ns = sum(
        max(min(step.components.idle_ns - usual_idle_ns, step.ns - usual_ns), 0) for step in slow
    )
    beyond_ns = sum(step.ns - usual_ns for step in slow) if slow else spread.beyond_median_ns
    # If idle time is not known for sure, work that is not recorded may have run in it.
    least_ns = idle_ns // 2 if case.total.knows_idle else 0
    return Gain(least_ns // len(spread.used), beyond_ns // len(spread.used), None)


def _advice(
    case: Case, kind: str, spread: StepSpread, slow: Sequence[StepTime], more: _More | None
) -> Fact:
    """Return what to do about slow steps, and how to look at the steps without them."""
    # The longest run of steps that are not slow; each slow step begins a new run.
    runs, slow_steps = [list[int]()], {step.step for step in slow}
    for step in spread.used:
        if step.step in slow_steps:
            runs.append([])
        else:
            runs[-1].append(step.step)
    longest = max(runs, key=len)
    first, last = (longest[0], longest[-1]) if longest else (0, 0)
    leave_out = fact(f"{UNEVEN_STEPS}.remedy.leave-out", first=first, last=last)
    without = leave_out if slow and first < last else None  # a single step is no run
    if without is not None and kind == _WARM_UP:
        return without
    code = f"{UNEVEN_STEPS}.remedy.{'span' if more else 'compare'}"
    usual = fact(more.remedy if more and more.remedy else code)
    if more and more.remedy.startswith("idle."):
        usual = fact("sentence", text=usual)  # texts of idle time are clauses
    # The remedies of kinds are for PyTorch, except that of the profiler.
    if kind == _PROFILER or (kind in _KINDS and "torch" in case.program):
        usual = fact(f"{UNEVEN_STEPS}.remedy.{kind}")
    return fact("joined", parts=(usual, without)) if without else usual


def _more(case: Case, spread: StepSpread, slow: Sequence[StepTime]) -> _More | None:
    """Return the span, culprit or kernel that is at least half of the time that slow steps add.

    A span that usual steps hardly have comes first; None if nothing explains so much.
    """
    prepared = case.prepared
    steps = {step.step for step in slow}
    when_slow, when_usual, slow_count, usual_count = {}, {}, 0, 0
    for device, windows in prepared.windows.items():
        own = tuple(window for window in windows if window.used and window.step in steps)
        when_slow[device] = chosen_time(own)
        when_usual[device] = chosen_time(windows).subtract(when_slow[device])
        slow_count += len(own)
        usual_count += sum(window.used for window in windows) - len(own)
    (part, _), median_ns = spread.largest_part, spread.median_ns
    least_ns = sum(step.ns - median_ns for step in slow) // (2 * len(slow))
    for of_slow, of_usual, most in _times(case, when_slow, when_usual, part, least_ns):
        longer = []
        for (name, remedy), ns in of_slow.items():
            usual_ns = of_usual.get((name, remedy), 0) // max(usual_count, 1)
            if name and usual_ns <= most * ns // max(slow_count, 1):
                more_ns = ns // max(slow_count, 1) - usual_ns
                longer.append(_More(name, more_ns, usual_ns, remedy))
        largest = max(longer, key=lambda more: more.more_ns, default=None)
        if largest is not None and largest.more_ns >= least_ns:
            return largest
    return None


_When = Mapping[int, Intervals]
"""The time of some steps, by device."""
_Times = Mapping[tuple[str, str], int]
"""The ns that something took in some steps, by its name and the code of its remedy."""


def _times(
    case: Case, slow: _When, usual: _When, part: str, least_ns: int
) -> Iterator[tuple[_Times, _Times, float]]:
    """Yield what took how long in slow and in usual steps, and a share: its most in usual steps.

    They are by span first; then, if the longer `part` is idle time, by culprit, then by class of
    idle time; else by kernel.
    """
    prepared = case.prepared
    spans = _spans(prepared, least_ns)
    yield spans(slow), spans(usual), _HARDLY
    if part != _IDLE:
        yield _kernel_times(prepared, slow), _kernel_times(prepared, usual), 1.0
        return
    parts = (gap_parts(prepared.accounts[device], some) for device, some in slow.items())
    culprits = culprits_of(GapParts.joined(parts), prepared.trace).culprits
    for by_class in (False, True):
        of_all, of_slow = (_idle_times(some, by_class) for some in (case.idle.culprits, culprits))
        of_usual = {key: ns - of_slow[key] for key, ns in of_all.items()}
        yield {key: of_slow[key] for key in of_all}, of_usual, 1.0


def _spans(prepared: Prepared, least_ns: int) -> Callable[[_When], _Times]:
    """Return a function that adds up the time of functions and ranges by name.

    Names that never take half of `least_ns` are left out: they hardly make a step long.
    """
    marks, process_of = prepared.trace.marks, numbers(prepared.trace.devices["process"])
    code_of_mark = codes(marks["name"])
    # Waits are left out: they are longer in a longer step, whatever makes it long.
    is_host = is_one_of(marks["kind"], *_SPANS) & ~has_fact(marks["name"], "waits")
    start, dur, process = (numbers(marks[name]) for name in ("start_ns", "dur_ns", "process"))
    long = distinct(code_of_mark[is_host & (2 * dur >= least_ns)])
    rows = np.flatnonzero(is_host & np.isin(code_of_mark, long))
    labels, name_of_range = names(marks["name"]), range_names(prepared.trace)

    def times_in(when: _When) -> _Times:
        """Return the time of each name in some steps."""
        times: Counter[tuple[str, str]] = Counter()
        for device, intervals in when.items():
            ranges = rows[process[rows] == process_of[device]]
            inside_ns = intervals.length_within(start[ranges], start[ranges] + dur[ranges])
            for code, rows_of_code in groups(code_of_mark[ranges]):
                label = labels[code]
                is_function = function_name(label) != label  # of Python: it keeps its file
                name = label if is_function else name_of_range(label)
                times[name, ""] += int(inside_ns[rows_of_code].sum())
        return times

    return times_in


def _idle_times(culprits: Sequence[Culprit], by_class: bool) -> Counter[tuple[str, str]]:
    """Return idle time by class or name of the culprit, and by the code of the remedy."""
    times: Counter[tuple[str, str]] = Counter()
    for culprit in culprits:
        name = culprit.label if culprit.label != REST else ""  # the sum of those without a name
        is_sporadic = culprit.kind in _SPORADIC
        remedy = f"{UNEVEN_STEPS}.remedy.load" if is_sporadic else f"idle.remedy.{culprit.kind}"
        times[CLASSES[culprit.kind] if by_class else name, remedy] += culprit.idle_ns
    return times


def _kernel_times(prepared: Prepared, when: _When) -> _Times:
    """Return how long kernels and copies ran in some steps."""
    column = prepared.trace.activities["name"]
    times: Counter[tuple[str, str]] = Counter()
    for device, some in when.items():
        rows = prepared.accounts[device].rows
        inside_ns = some.length_within(rows.start_ns, rows.end_ns)
        for code, rows_of_code in groups(codes(column)[rows.row]):
            name = kernel_name(names(column)[code])
            times[name, _KERNELS] += int(inside_ns[rows_of_code].sum())
    return times
