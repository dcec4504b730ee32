"""The classes of what the host did while the device was idle, and the rule of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.attribution.host_events import (
    CALL,
    FRAME,
    LABEL,
    OP,
    SYSTEM,
    HostEvents,
    facts_of,
    owners,
)
from traceflops.attribution.idle_slices import AFTER_CALL, HOST, IN_CALL, GapParts, Slices
from traceflops.table import (
    ABSENT,
    BoolArray,
    IntArray,
    SmallArray,
    Trace,
    codes,
    group_rows,
    in_order,
    innermost,
    matching,
    names,
    numbers,
    taken,
)
from traceflops.table import groups as by_group
from traceflops.timeline import NEVER

CLASSES: Final[dict[str, str]] = {
    "data_input": "loading data",
    "sync_call": "waiting for the GPU",
    "blocking_copy": "blocking copies",
    "memory_alloc": "allocating memory",
    "slow_driver_call": "slow driver calls",
    "compiled_runtime": "running compiled code",
    "optimizer_loop": "the optimizer",
    "own_sleep": "sleeping",
    "external_wait": "waiting for others",
    "host_code": "Python and other host code",
    "eager_overhead": "launching operators",
    "thread_handover": "handover between threads",
    "host_unrecorded": "unrecorded host work",
    "launch_latency": "launch latency",
    "device_wait": "late start of queued work",
    "unexplained": "no launch recorded",
}
"""What the host did, in words, in the order in which the classes are tried.

`unexplained` is what no rule fits: idle time before work of which no launch is recorded.
"""
TAGS: Final = ("graph capture", "start-up", "first use", "repeat")
"""What more is known of some idle time, in the order in which it is tried."""
PLACES: Final = {name: place for place, name in enumerate(CLASSES)}

_BUILT_IN: Final = ("<built-in ", "<frozen ")
_LONG_CALL_NS: Final = 20_000
_LONG_OP_NS: Final = 100_000
_LONG_GAP_NS: Final = 200_000
_FEW_CALLS: Final = 8
_TIMES_MEDIAN: Final = 5
_START_UP_NS: Final = 50_000_000
_STREAM: Final = re.compile("Stream(?!WaitEvent)")


def class_of(slices: Slices, parts: GapParts, events: HostEvents, trace: Trace) -> SmallArray:
    """Return the class of each slice as its place in CLASSES."""
    rules = {
        **_rules_of_calls(slices, parts, events, trace.calls),
        **_rules_of_work(slices, parts, events),
        **_rules_of_rest(slices, parts, events, trace),
    }
    fits = [rules[name] for name in CLASSES if name in rules]
    return _first_fit(fits, len(fits))


def _first_fit(fits: Sequence[BoolArray], other: int) -> SmallArray:
    """Return the place of the first condition that each row fits."""
    return np.select(fits, [*np.arange(len(fits), dtype=np.int8)], np.int8(other))


def slow_calls(calls: pa.Table) -> BoolArray:
    """Return which calls took long: much longer than others of their name, where there are some."""
    duration, name = numbers(calls["dur_ns"]), codes(calls["name"])
    order = np.lexsort((duration, name))
    known, first, count = np.unique(name[order], return_index=True, return_counts=True)
    limit = np.where(count < _FEW_CALLS, 0, _TIMES_MEDIAN * duration[order][first + count // 2])
    limit = np.maximum(limit, _LONG_CALL_NS)
    return np.asarray(duration > taken(limit, np.searchsorted(known, name)))


def waiting_calls(calls: pa.Table) -> BoolArray:
    """Return which calls wait for the device, or copy and return late or not before the end."""
    facts, code = facts_of(names(calls["name"])), codes(calls["name"])
    is_late = (numbers(calls["dur_ns"]) > _LONG_CALL_NS) | ~facts["copies_async"][code]
    return np.asarray(facts["waits_for_device"][code] | (facts["copies"][code] & is_late))


def _rules_of_calls(
    slices: Slices, parts: GapParts, events: HostEvents, calls: pa.Table
) -> dict[str, BoolArray]:
    """Return the rules of slices in a call, also in the launch if that takes long itself."""
    event = slices.event
    in_launch_ns = np.minimum(parts.call_end_ns, parts.gap_end_ns) - parts.launched_ns
    takes_long = (in_launch_ns >= parts.cap_ns)[slices.part] & (slices.role == IN_CALL)
    in_call = events.is_kind(CALL, event) & ((slices.role == HOST) | takes_long)
    call = np.where(in_call, taken(events.source, event), -1)
    is_slow, waits = (
        taken(some.astype(np.int8), call, 0) > 0
        for some in (slow_calls(calls), waiting_calls(calls))
    )
    copies = in_call & events.told("copies", event)
    reads_scalar = events.around("reads_scalar", event) >= 0
    return {
        "sync_call": (in_call & events.told("waits_for_device", event)) | (copies & reads_scalar),
        "blocking_copy": copies & waits,
        "memory_alloc": in_call & events.told("allocates", event),
        "slow_driver_call": is_slow | takes_long,
    }


def _rules_of_work(slices: Slices, parts: GapParts, events: HostEvents) -> dict[str, BoolArray]:
    """Return the rules of slices in which some thread worked before the launch."""
    is_host, event, label = slices.role == HOST, slices.event, slices.label
    works = is_host & (event >= 0)
    built_in = np.array([label.startswith(_BUILT_IN) for label in events.labels], dtype=np.bool_)
    is_told = (events.kind != CALL) & (events.kind != LABEL) & ~built_in[events.name]
    code = events.tree.nearest(is_told)
    gap_ns = (parts.gap_end_ns - parts.gap_start_ns)[slices.part]
    return {
        "data_input": is_host & events.is_inside("data_input", event, label),
        "compiled_runtime": is_host
        & events.told("compiled", np.where(event < 0, label, taken(code, event))),
        "optimizer_loop": is_host & events.is_inside("optimizer", event, label),
        "own_sleep": works & events.told("sleeps", event),
        "external_wait": works & events.told("waits", event),
        "host_code": works
        & (
            (events.is_kind(FRAME, event) & (gap_ns >= _LONG_GAP_NS))
            | (events.is_kind(OP, event) & (slices.dur_ns >= _LONG_OP_NS))
            | (events.is_kind(SYSTEM, event) & events.told("uses_files", event))
        ),
        "eager_overhead": works,
    }


def _rules_of_rest(
    slices: Slices, parts: GapParts, events: HostEvents, trace: Trace
) -> dict[str, BoolArray]:
    """Return the rules of slices in which no thread showed work, and of those of the launch."""
    role, silent = slices.role, (slices.role == HOST) & (slices.event < 0)
    left_ns = parts.gap_end_ns - np.maximum(parts.call_end_ns, parts.gap_start_ns)
    is_usual = (role == AFTER_CALL) & (left_ns < parts.cap_ns)[slices.part]
    handed_over = silent & events.told("runs_backward", slices.own)
    handed_over[silent] |= _last_was_other(slices.only(silent), parts, trace)
    return {
        "thread_handover": handed_over,
        "host_unrecorded": silent,
        "launch_latency": (role == IN_CALL) | is_usual,
        "device_wait": role == AFTER_CALL,
    }


def _last_was_other(slices: Slices, parts: GapParts, trace: Trace) -> BoolArray:
    """Return whether another thread than the launching one was the last to work before slices.

    Nothing goes on when they begin, so of what began before, the last to end was the last to work.
    """
    call = parts.call[slices.part]
    process, thread = (numbers(trace.calls[name], ABSENT)[call] for name in ("process", "thread"))
    last = [_last_ended(table, process, slices.start_ns) for table in (trace.calls, trace.ops)]
    (call_end_ns, caller), (op_end_ns, operator) = last
    worker = np.where(call_end_ns > op_end_ns, caller, operator)
    return np.asarray((np.maximum(call_end_ns, op_end_ns) > NEVER) & (worker != thread))


def _last_ended(table: pa.Table, process: IntArray, at_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Return the end and thread of the last to end of all begun in processes up to some times."""
    of, start, threads = (
        numbers(table[name], ABSENT) for name in ("process", "start_ns", "thread")
    )
    end_ns, thread = np.full((2, len(at_ns)), [[NEVER], [ABSENT]])
    order = in_order(of, start)
    for group, asked in by_group(process):
        mine = order[slice(*np.searchsorted(of, [group, group + 1], sorter=order))]
        end = start[mine] + numbers(table["dur_ns"])[mine]
        reach = np.maximum.accumulate(end)
        latest = np.maximum.accumulate(np.where(end == reach, np.arange(len(mine)), 0))
        place = np.searchsorted(start[mine], at_ns[asked], side="right") - 1
        end_ns[asked] = taken(reach, place, NEVER)
        thread[asked] = taken(threads[mine][latest], place, ABSENT)
    return end_ns, thread


def tags_of(
    slices: Slices, kind: SmallArray, parts: GapParts, events: HostEvents, trace: Trace
) -> SmallArray:
    """Return the tag of each slice as its place in TAGS, -1 for none."""
    allocates, is_slow = (kind == PLACES[name] for name in ("memory_alloc", "slow_driver_call"))
    call = np.where(allocates | is_slow, taken(events.source, slices.event), -1)
    starts_up, of_stream = (
        taken(some.astype(np.int8), call, 0) > 0
        for some in (_start_up(trace.calls), matching(trace.calls["name"], _STREAM.search))
    )
    launches = is_slow & (slices.role == IN_CALL)
    is_first = taken(_is_first(trace.activities), parts.activity)[slices.part] > 0
    thread = taken(events.thread_of_call, parts.call)[slices.part]
    fits = [
        _captures(trace.calls, events.thread_of_call, thread, slices.start_ns),
        starts_up & (allocates | of_stream),
        launches & is_first,
        launches,
    ]
    return _first_fit(fits, -1)


def _start_up(calls: pa.Table) -> BoolArray:
    """Return which calls take very long, as few of their name and process do."""
    long = np.flatnonzero(slow_calls(calls) & (numbers(calls["dur_ns"]) >= _START_UP_NS))
    group, _ = group_rows((numbers(calls["process"])[long], codes(calls["name"])[long]))
    starts_up = np.zeros(calls.num_rows, dtype=np.bool_)
    starts_up[long] = np.bincount(group)[group] < _FEW_CALLS
    return starts_up


def _is_first(activities: pa.Table) -> SmallArray:
    """Return which activities are the first of their name in their process."""
    order = in_order(numbers(activities["start_ns"]))
    columns = (numbers(activities["process"]), codes(activities["name"]))
    _, first = group_rows([column[order] for column in columns])
    is_first = np.zeros(activities.num_rows, dtype=np.int8)
    is_first[order[first]] = 1
    return is_first


def _captures(calls: pa.Table, thread: IntArray, at_thread: IntArray, at_ns: IntArray) -> BoolArray:
    """Return whether threads captured a graph at some times."""
    begins = matching(calls["name"], lambda name: "StreamBeginCapture" in name)
    start = numbers(calls["start_ns"])
    row = np.flatnonzero(begins | matching(calls["name"], lambda name: "StreamEndCapture" in name))
    row = row[in_order(thread[row], start[row])]
    row, after = row[:-1], row[1:]
    pairs = begins[row] & ~begins[after] & (thread[row] == thread[after])
    row, after = row[pairs], after[pairs]
    return innermost(thread[row], start[row], start[after], at_thread, at_ns) >= 0


def owner_of(slices: Slices, kind: SmallArray, events: HostEvents) -> IntArray:
    """Return the event that each slice is named by, -1 where nothing is recorded."""
    event, label = slices.event, slices.label
    owner = np.where(event < 0, label, taken(owners(events), event))
    is_inside = events.is_kind(FRAME, owner) & ~events.told("helps", owner)
    is_inside &= events.is_inside("data_input", owner)
    loader = np.where(is_inside, owner, events.nearest("data_input", label, event))
    step = events.nearest("optimizer", label, event)
    is_step, loads = (kind == PLACES[name] for name in ("optimizer_loop", "data_input"))
    return np.select([is_step, loads], [step, loader], owner)
