"""Rule `little-work`: a recording with hardly any GPU work does not tell how a program runs.

    |<--------------- recorded --------------->|
    |-------- start-up --------|GPU|---------- |      # milliseconds, and busy for less

Fills before the first kernel are start-up, too: they are of memory that was just allocated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceflops.attribution.host_events import has_fact, host_span
from traceflops.attribution.outside_work import OutsideGpuWork, outside_gpu_work
from traceflops.facts import Fact, Value, fact, quoted
from traceflops.findings.finding import function_of, short_name
from traceflops.findings.rules import thresholds
from traceflops.table.columns import codes, is_one_of, matching, numbers
from traceflops.table.grouping import distinct, group_rows, used_names
from traceflops.table.links import recorded_calls
from traceflops.table.nesting import OpTree
from traceflops.table.patterns import ANY_FREE, LOADS, started
from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.first_calls import times_of
from traceflops.timeline.intervals import NEVER, Intervals
from traceflops.timeline.long_calls import TIMES_USUAL, longer
from traceflops.windows.device_records import launch_calls
from traceflops.windows.prepared import Prepared
from traceflops.windows.repetition import FEWEST_ROUNDS
from traceflops.windows.selection import Selection
from traceflops.windows.starting_calls import launching

LITTLE_WORK: Final = "little-work"
FAILED: Final = "launch-error.failed"  # the code of the statement that launches failed
RECORD: Final = "little-work.record"  # the code of what to record instead
UPLOADS_ALONE: Final = "little-work.uploads-alone"  # and that of a recording without kernels
_FILL, _COMPUTING = "memset", quoted("computing")
_FEWEST: Final = 2  # a single kernel or launch cannot show that nothing repeats
_FEW_SIZES: Final = 3  # copies of more sizes are of many things
_FEW_ROUNDS: Final = 10  # fewer inferred steps may be tests, one after another
_INFERRED: Final = frozenset({"copies", "signature"})
"""Where steps come from that nothing marks."""


def _cold_call(prepared: Prepared, limits: Mapping[str, float]) -> Fact | None:
    """Return the statement that each kernel runs for its first time: launches load it, GPUs wait.

    None if a kernel runs again, if most launches are fast, or if the GPU is busy for much time.
    """
    trace, activities = prepared.trace, prepared.trace.activities
    rows = np.flatnonzero(is_one_of(activities["kind"], "kernel"))
    process, name = numbers(activities["process"])[rows], codes(activities["name"])[rows]
    call = prepared.linked.links.call_of_activity[rows]
    _, first = group_rows((process, name))
    none_repeats = len(rows) >= _FEWEST and len(first) == len(rows)
    # With several GPUs, one may be idle because others work.
    if not none_repeats or len(prepared.accounts) != 1 or (call < 0).any():
        return None
    took_ns = numbers(trace.calls["dur_ns"])[distinct(call)]  # a graph is one launch of many
    [account] = prepared.accounts.values()
    first_ns, end_ns = account.rows.span
    busy_ns = Intervals.of(account.rows.start_ns, account.rows.end_ns).length_ns
    is_idle = busy_ns <= limits["cold_share"] * (end_ns - first_ns)
    if not is_idle or len(took_ns) < _FEWEST or np.median(took_ns) < limits["cold_launch_ns"]:
        return None
    values = {"busy_ns": busy_ns, "window_ns": end_ns - first_ns, "launch_ns": int(took_ns.sum())}
    return fact(f"{LITTLE_WORK}.cold", kernels=len(rows), **values)


def _cold_operators(trace: Trace, busy_ns: int, window_ns: int) -> Fact | None:
    """Return the statement that first calls of operators take most of the time of all operators.

    Later ones take far less, so what holds up the GPU now will not do so again.
    """
    process, _, start_ns, dur_ns = times_of(trace.ops)
    own_ns = OpTree.of(trace.ops).own(dur_ns)
    long = longer(process, codes(trace.ops["name"]), start_ns, own_ns, own_ns > 0)
    is_first = (long.number == 0) & (long.calls > 1)
    beyond_ns = int((own_ns[long.row] - long.usual_ns)[is_first].sum())
    if 2 * beyond_ns <= own_ns.sum():
        return None
    times = {"first_ns": beyond_ns, "ops_ns": int(own_ns.sum())}
    of_gpu = {"busy_ns": busy_ns, "window_ns": window_ns}
    return fact(f"{LITTLE_WORK}.cold-operators", **times, **of_gpu, times=TIMES_USUAL)


def _uploads_alone(prepared: Prepared) -> Fact | None:
    """Return the statement that memory was only set up: nothing computed, nothing came back.

    None for other programs. Those that measure copies also copy from the GPU, or copy most of the
    time into memory that they free again; of many small copies, each into memory of its own,
    `small_pieces` tells more.
    """
    trace, works = prepared.trace, prepared.trace.activities
    is_copy, ways = is_one_of(works["kind"], "memcpy"), used_names(works["direction"])
    is_set_up = used_names(works["kind"]) <= {"memcpy", "memset", "kernel"} and ways == {"HtoD"}
    has_others = trace.source.kinds_apart  # kernels may be in other files
    # Kernels may fill memory, too, if none was launched that is not recorded.
    categorised, is_kernel = prepared.linked.categorised, is_one_of(works["kind"], "kernel")
    used = distinct(categorised.category[is_kernel]).tolist()
    is_set_up &= all(code >= 0 and categorised.categories[code].sub == _FILL for code in used)
    is_set_up &= started(trace.calls).sum() <= is_kernel.sum() <= is_copy.sum()
    if has_others or not is_set_up:
        return None
    start_ns, dur_ns = (numbers(works[name]) for name in ("start_ns", "dur_ns"))
    window_ns = int((start_ns + dur_ns).max() - start_ns.min())
    copies, moved = int(is_copy.sum()), int(numbers(works["bytes"], 0)[is_copy].sum())
    frees = matching(trace.calls["name"], ANY_FREE.search).sum()
    allocations = has_fact(trace.calls["name"], "allocates").sum() - frees  # frees are some, too
    kept = allocations - frees
    # What is loaded has many sizes, and stays; a measurement repeats a copy, or frees its memory.
    sizes = distinct(numbers(works["bytes"], 0)[is_copy])
    is_kept = kept >= copies or (not frees and len(sizes) > _FEW_SIZES)
    is_measured = 2 * dur_ns.sum() > window_ns and not is_kept
    is_small = 0 < moved <= thresholds()["host-copies"]["small_bytes"] * copies
    if is_measured or (is_small and 2 * allocations >= copies):
        return None
    return fact(
        UPLOADS_ALONE,
        copies=copies,
        bytes=moved or None,
        fills=int((~is_copy).sum()) or None,
        kind=_COMPUTING if is_kernel.any() else None,
        window_ns=window_ns,
        loads=int(matching(trace.calls["name"], LOADS.match).sum()) or None,
    )


_WHY_FAILED: Final = {
    **dict.fromkeys((1, 9, 701), "launch-error.shape"),
    **dict.fromkeys((98, 209), "program-error.other-gpu"),
    **dict.fromkeys((218, 222), "launch-error.newer"),
    2: "program-error.memory",
    700: "program-error.access",
}
"""By the error of a launch: why it failed."""
_UNKNOWN_ERROR: Final = 999  # and larger ones: errors that tell no reason


def failed_launches(trace: Trace) -> tuple[Fact, ...]:
    """Return that launches of kernels failed; with what to do, if no kernel ran. () if none did."""
    is_failed = launching(trace, failed=True)
    if is_failed.any():
        is_failed &= ~recorded_calls(trace)  # a launch whose work is recorded did start it
    errors = Counter(numbers(trace.calls["error_code"])[is_failed].tolist())
    if not errors:
        return ()
    [(error, _)], count = errors.most_common(1), errors.total()
    why = fact(_WHY_FAILED[error]) if error in _WHY_FAILED else None
    launches = count + launch_calls(trace)
    is_known = error < _UNKNOWN_ERROR
    reason = fact("launch-error.number", error=error, why=why) if is_known else None
    claim = fact(FAILED, count=count, launches=launches, reason=reason)
    has_kernels = is_one_of(trace.activities["kind"], "kernel", "graph").any()
    return (claim,) if has_kernels else (claim, fact(f"{LITTLE_WORK}.failures"))


class _Work(NamedTuple):
    """How long a device works, fills memory before that, and takes from first to last work.

    `rest_ns` is this span without start-up.
    """

    busy_ns: int
    fills_ns: int
    span_ns: int = 0
    rest_ns: int = 0


def _work_of(prepared: Prepared, account: DeviceAccount) -> _Work:
    """Return how much work a device has; fills before its first kernel, if it has any, are none."""
    kind, rows = prepared.trace.activities["kind"], account.rows
    is_kernel, is_fill = (is_one_of(kind, name)[rows.row] for name in ("kernel", "memset"))
    counts = (np.cumsum(is_kernel) > 0) | (not is_kernel.any()) | ~is_fill
    start_ns, end_ns = rows.start_ns[counts], rows.end_ns[counts]
    fills_ns = int((rows.end_ns - rows.start_ns)[~counts].sum())
    busy_ns = Intervals.of(start_ns, end_ns).length_ns
    if not len(start_ns):
        return _Work(busy_ns, fills_ns)
    first_ns, last_ns = int(start_ns.min()), int(end_ns.max())
    span_ns = last_ns - first_ns
    rest_ns = span_ns - account.start_up.within(first_ns, last_ns).length_ns
    return _Work(busy_ns, fills_ns, span_ns, rest_ns)


def _is_sparse(trace: Trace, busy_ns: int, span_ns: int, limits: Mapping[str, float]) -> bool:
    """Return whether GPUs do a few things within a long time, and no call tells what for.

    None of these things is done often enough to show how the program runs.
    """
    works = trace.activities
    is_alone = not (trace.calls.num_rows or trace.ops.num_rows or trace.marks.num_rows)
    most = np.bincount(codes(works["name"])).max(initial=0)
    is_little = busy_ns <= min(limits["most_busy_ns"], limits["most_share"] * span_ns)
    return bool(is_alone and is_little and 0 < most < FEWEST_ROUNDS)


def _single(trace: Trace, busy_ns: int) -> Fact | None:
    """Return the statement that the recording has one kernel, launched or not, and no more.

    Counters tell what limits a single kernel.
    """
    works = trace.activities
    others = (trace.ops, trace.marks, trace.kernel_counters)
    is_single = trace.calls.num_rows <= works.num_rows == 1
    is_alone = not any(table.num_rows for table in others)
    is_alone &= not is_one_of(trace.totals["kind"], "kernel").any()
    if is_single and is_alone and is_one_of(works["kind"], "kernel").all():
        name = short_name(function_of(works["name"][0].as_py() or ""))
        return fact(f"{LITTLE_WORK}.single", name=name or None, busy_ns=busy_ns)
    return None


def little_work(prepared: Prepared, limits: Mapping[str, float]) -> tuple[Fact, ...]:
    """Return statements that a recording has too little GPU work, and what to record instead.

    So it is if all launches failed.

    The result is empty if there are steps, other than a few inferred ones, if less than a job is
    chosen, or if there is more work than `limits`, the thresholds of LITTLE_WORK.
    """
    choice = prepared.plan.choice
    has_steps = choice.used and not (choice.source in _INFERRED and len(choice.seen) < _FEW_ROUNDS)
    is_part = replace(prepared.selection, job=None) != Selection()
    if is_part or has_steps or prepared.on_host:
        return ()
    if len(failed := failed_launches(prepared.trace)) > 1:
        return failed
    if (uploads := _uploads_alone(prepared)) is not None:
        is_loading = uploads.values["kind"] is not None
        return uploads, fact(f"{LITTLE_WORK}.{'load' if is_loading else 'find-launches'}")
    if (cold := _cold_call(prepared, limits)) is not None:
        return cold, fact(RECORD)
    works = [_work_of(prepared, account) for account in prepared.accounts.values()]
    fills_ns = sum(work.fills_ns for work in works)
    busy_ns, span_ns, rest_ns = (
        max((getattr(work, name) for work in works), default=0)
        for name in ("busy_ns", "span_ns", "rest_ns")
    )
    if _is_sparse(prepared.trace, busy_ns, span_ns, limits):
        count = prepared.trace.activities.num_rows
        few = fact(f"{LITTLE_WORK}.few", busy_ns=busy_ns, operations=count, window_ns=span_ns)
        return few, fact(RECORD)
    single = _single(prepared.trace, busy_ns)
    if single is not None and busy_ns <= limits["most_busy_ns"]:
        return single, fact(RECORD)
    if rest_ns > limits["most_window_ns"] or busy_ns > limits["most_busy_ns"]:
        return ()
    if busy_ns <= limits["cold_share"] * span_ns:
        cold = _cold_operators(prepared.trace, busy_ns, span_ns)
        if cold is not None:
            return cold, fact(RECORD)
    rest = outside_gpu_work(prepared)
    if rest is None or busy_ns > limits["most_share"] * rest.recorded_ns:
        return ()
    if rest.before_ns + rest.after_ns < max(limits["least_outside"] * rest.recorded_ns, 1):
        return ()
    all_busy_ns = sum(work.busy_ns for work in works)  # the limits are for each device
    values: dict[str, Value] = {"busy_ns": all_busy_ns, "window_ns": span_ns}
    values["fills_ns"] = fills_ns or None
    times = {"before_ns": rest.before_ns, "recorded_ns": rest.recorded_ns}
    code = _code_of_rest(prepared, rest)
    return fact(f"{LITTLE_WORK}.{code}", **values, **times), fact(RECORD)


def _code_of_rest(prepared: Prepared, rest: OutsideGpuWork) -> str:
    """Return how the statement on little work calls the rest of the recording."""
    if 2 * rest.before_ns < rest.recorded_ns:
        return "of-recording"
    # Is the host recorded before the GPU begins? Marks that go on after that are about more.
    begin_ns = int(min(account.rows.span[0] for account in prepared.accounts.values()))
    _, mark_start, mark_end = host_span(prepared.trace.marks)
    is_over = mark_end <= begin_ns
    spans = [(mark_start[is_over], mark_end[is_over])]
    spans += [host_span(table)[1:] for table in (prepared.trace.calls, prepared.trace.ops)]
    starts, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
    recorded = Intervals.of(starts, ends).within(NEVER, begin_ns)
    return "after-nothing" if 2 * recorded.length_ns < rest.before_ns else "after-start-up"
