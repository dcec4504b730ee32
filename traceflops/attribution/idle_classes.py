"""The classes of what the host did while the device was idle, and the rule of each."""

from __future__ import annotations

import re
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
    facts_of_names,
    owners,
)
from traceflops.attribution.idle_slices import (
    AFTER_CALL,
    HOST,
    IN_CALL,
    NO_LAUNCH,
    GapParts,
    Slices,
)
from traceflops.flops.ops.table import computes
from traceflops.table.arrays import ABSENT, BoolArray, IntArray, SmallArray
from traceflops.table.columns import codes, matching, names, numbers
from traceflops.table.grouping import (
    group_least,
    group_rows,
    in_order,
    is_among,
    joint_codes,
    places_in_groups,
)
from traceflops.table.grouping import groups as by_group
from traceflops.table.nesting import taken
from traceflops.table.patterns import GRAPH_LAUNCH, started
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import NEVER

CLASSES: Final[dict[str, str]] = {
    "graph_gaps": "gaps inside graphs",
    "data_input": "loading data",
    "sync_call": "waiting for the GPU",
    "blocking_copy": "blocking copies",
    "memory_alloc": "allocating or freeing memory",
    "slow_driver_call": "slow driver calls",
    "compiled_runtime": "running compiled code",
    "optimizer_loop": "the optimizer",
    "own_sleep": "sleeping",
    "external_wait": "waiting for others",
    "host_code": "host code",
    "other_calls": "other GPU calls",
    "eager_overhead": "launching operators",
    "thread_handover": "handover between threads",
    "host_unrecorded": "untraced host time",
    "launch_latency": "launch latency",
    "device_wait": "late start of queued work",
    "host_page_faults": "work on managed memory",
    "unexplained": "no launch recorded",
    "start_up": "start-up",
}
"""By class, what the host did in words. A slice of idle time has the first class whose rule fits.

`unexplained`, which has no rule, is idle time before work without a recorded launch. `start_up` is
not idle time: see `timeline.start_up`.
"""
PLACES: Final = {name: place for place, name in enumerate(CLASSES)}
_BUILT_IN: Final = ("<built-in ", "<frozen ")
_ASKED: Final = re.compile(r"\b(prefetch|eviction)\b")
"""Pages that move because a call asks for it, or to make room for another page."""
_PREFETCH: Final = re.compile(r"\bprefetch\b")
_LONG_CALL_NS: Final = 20_000
_LONG_OP_NS: Final = 100_000
_LONG_GAP_NS: Final = 200_000
LONGEST_HANDOVER_NS: Final = 1_000_000
"""The longest that another thread takes to go on; in more time one of the two does something."""
_FEW_CALLS: Final = 8
_TIMES_MEDIAN: Final = 5


def class_of(slices: Slices, parts: GapParts, events: HostEvents, trace: Trace) -> SmallArray:
    """Return the class of each slice as its place in CLASSES: the first whose rule it fits."""
    event, label, role, part = slices.event, slices.label, slices.role, slices.part
    is_host = role == HOST
    works, silent = is_host & (event >= 0), is_host & (event < 0)
    # On a CPU, the time between operators is code of the range around them, if there is one.
    of_cpu = (parts.op >= 0)[part]
    in_range, silent = silent & of_cpu & (label >= 0), silent & ~of_cpu
    # Slices in a call; in the launch call itself only if it takes long.
    launched_ns = np.maximum(parts.call_start_ns, parts.gap_start_ns)
    in_launch_ns = np.minimum(parts.call_end_ns, parts.gap_end_ns) - launched_ns
    takes_long = (in_launch_ns >= parts.cap_ns)[part] & (role == IN_CALL)
    in_call = events.is_kind(CALL, event) & (is_host | takes_long)
    call = np.where(in_call, taken(events.source, event), -1)
    is_slow, waits = (
        taken(some.astype(np.int8), call, 0) > 0
        for some in (slow_calls(trace.calls), waiting_calls(trace.calls))
    )
    copies = in_call & events.has_fact("copies", event)
    waits_for_device = in_call & events.has_fact("waits_for_device", event)
    awaits_device = works & events.has_fact("waits", event)
    awaits_device &= events.is_inside("awaits_device", event, label)
    reads_scalar = events.around("reads_scalar", event) >= 0
    # Slices before the launch in which a thread worked: the code that it ran.
    built_in = np.array([name.startswith(_BUILT_IN) for name in events.labels], dtype=np.bool_)
    names_code = (events.kind != CALL) & (events.kind != LABEL) & ~built_in[events.name]
    code = np.where(event < 0, label, taken(events.tree.nearest(names_code), event))
    # Without recorded operators, nothing tells that a call is part of launching one.
    is_alone = events.is_kind(CALL, event) & (trace.ops.num_rows == 0)
    # Slices without work: handed over if another thread than the launching one worked last.
    handed_over = silent & events.has_fact("runs_backward", slices.own)
    handed_over[silent] |= _other_thread_was_last(slices.only(silent), parts, trace)
    # Slices after the launch call: latency if the activity began soon after it.
    left_ns = parts.gap_end_ns - np.maximum(parts.call_end_ns, parts.gap_start_ns)
    is_usual = (role == AFTER_CALL) & (left_ns < parts.cap_ns)[part]
    rules = {
        "graph_gaps": _inside_graphs(parts, trace)[part],
        "data_input": is_host & events.is_inside("data_input", event, label),
        "sync_call": waits_for_device | (copies & reads_scalar) | awaits_device,
        "blocking_copy": copies & waits,
        "memory_alloc": in_call & events.has_fact("allocates", event),
        "slow_driver_call": is_slow | takes_long,
        "compiled_runtime": (is_host & events.has_fact("compiled", code))
        | (works & events.is_kind(LABEL, event) & events.has_fact("compiled", event)),
        "optimizer_loop": is_host & events.is_inside("optimizer", event, label),
        "own_sleep": works & events.has_fact("sleeps", event),
        "external_wait": (works & events.has_fact("waits", event))
        | (is_host & events.is_inside("waits_for_ranks", event, label)),
        "host_code": (works & _is_host_code(slices, parts, events, trace.calls)) | in_range,
        "other_calls": works & is_alone,
        "eager_overhead": works,
        "thread_handover": handed_over,
        "host_unrecorded": silent,
        "launch_latency": (role == IN_CALL) | is_usual,
        "device_wait": role == AFTER_CALL,
        "host_page_faults": (role == NO_LAUNCH) & _between_pages(parts, trace)[part],
    }
    # Classes without a rule, `unexplained` among them, come last in CLASSES.
    fits = [rules[name] for name in CLASSES if name in rules]
    return np.select(fits, [*np.arange(len(fits), dtype=np.int8)], np.int8(len(rules)))


def _is_host_code(
    slices: Slices, parts: GapParts, events: HostEvents, calls: pa.Table
) -> BoolArray:
    """Return, per slice, whether its event is more than what launching operators takes.

    That is 1. a function, if the gap is long or ends with an operator of a CPU, 2. an operator that
    takes long in this slice, 3. an operator in a long gap that computes without a GPU call, with
    tensors of the CPU, or 4. a call of the operating system.
    """
    event, part = slices.event, slices.part
    is_long_gap = (parts.gap_end_ns - parts.gap_start_ns >= _LONG_GAP_NS)[part]
    is_of_cpu = (parts.op >= 0)[part]
    is_function = events.is_kind(FRAME, event) & (is_long_gap | is_of_cpu)
    is_op = events.is_kind(OP, event)
    is_long_op = is_op & (slices.dur_ns >= _LONG_OP_NS)
    computes_something = np.array([*map(computes, events.labels)], dtype=np.bool_)[events.name]
    in_computing = taken(events.tree.nearest(computes_something), event) >= 0
    rows = np.flatnonzero(is_op & is_long_gap & in_computing)
    is_long_op[rows] |= ~_calls_gpu(events, calls, event[rows])  # rule 3
    return is_function | is_long_op | events.is_kind(SYSTEM, event)


def _calls_gpu(events: HostEvents, calls: pa.Table, event: IntArray) -> BoolArray:
    """Return, per event inside operators, whether its thread makes a call in the outermost one."""
    is_op, start_ns = events.kind == OP, numbers(calls["start_ns"])
    outermost = events.tree.nearest(is_op & (events.tree.around(is_op) < 0))
    operator, order = outermost[event], in_order(events.thread_of_call, start_ns)
    # Calls of the thread before the operator begins, and until it ends.
    before, until = (
        places_in_groups(
            events.thread_of_call[order], start_ns[order], events.thread[operator], at_ns[operator]
        )
        for at_ns in (events.start_ns - 1, events.end_ns)
    )
    return np.asarray(until > before)


def _other_thread_was_last(slices: Slices, parts: GapParts, trace: Trace) -> BoolArray:
    """Return, per slice, whether the last thread to work before it was not the launching one.

    Nothing runs when these slices begin, so the call or operator that ended last was the last work.
    Beyond LONGEST_HANDOVER_NS nothing connects the two.
    """
    call = parts.call[slices.part]
    process, thread = (numbers(trace.calls[name], ABSENT)[call] for name in ("process", "thread"))
    last = [_last_ended(table, process, slices.start_ns) for table in (trace.calls, trace.ops)]
    (call_end_ns, thread_of_call), (op_end_ns, thread_of_op) = last
    worker = np.where(call_end_ns > op_end_ns, thread_of_call, thread_of_op)
    is_known = np.maximum(call_end_ns, op_end_ns) > NEVER
    return np.asarray(is_known & (worker != thread) & (slices.dur_ns <= LONGEST_HANDOVER_NS))


def on_demand(activities: pa.Table, direction: str) -> BoolArray:
    """Return, per activity, whether it is a page of unified memory that moved when touched.

    `direction` is "migration", or one direction of it. Pages moved by a call or to make room are
    left out.
    """
    moves = matching(activities["direction"], lambda text: text.startswith(direction))
    return moves & ~matching(activities["name"], _ASKED.search)


def is_prefetch(activities: pa.Table, direction: str) -> BoolArray:
    """Return, per activity, whether a call asked to move it in this direction."""
    moves = matching(activities["direction"], lambda text: text.startswith(direction))
    return moves & matching(activities["name"], _PREFETCH.search)


def _inside_graphs(parts: GapParts, trace: Trace) -> BoolArray:
    """Return which gaps lie between work of one replayed graph, which its launch has started."""
    work = trace.activities
    is_graph = taken(started(trace.calls, GRAPH_LAUNCH).astype(np.int8), parts.call)
    replayed = np.flatnonzero(is_graph > 0)
    begun_ns = np.full(len(parts.call), NEVER, dtype=np.int64)
    if len(replayed):
        process, correlation, start_ns = (
            numbers(work[name], ABSENT) for name in ("process", "correlation", "start_ns")
        )
        group, first = group_rows((process, correlation))
        first_ns = group_least(group, start_ns, len(first))
        begun_ns[replayed] = first_ns[group[parts.activity[replayed]]]
    return np.asarray((begun_ns > NEVER) & (begun_ns < parts.gap_start_ns))


def _between_pages(parts: GapParts, trace: Trace) -> BoolArray:
    """Return, per gap part, whether the gap lies between two pages that the host touched.

    The second may also be a page that a call asks for. Between them the host works on the first.
    """
    work = trace.activities
    to_host, device = on_demand(work, "migration DtoH"), numbers(work["device"])
    if not to_host.any():
        return np.zeros(len(parts.call), dtype=np.bool_)
    end_ns = (numbers(work["start_ns"]) + numbers(work["dur_ns"]))[to_host]
    # A gap begins when the work before it ends: look for a page with that device and end.
    devices = np.concatenate([device[to_host], device[parts.activity]])
    edge = joint_codes(devices, np.concatenate([end_ns, parts.gap_start_ns]))
    follows = is_among(edge[len(end_ns) :], edge[: len(end_ns)])
    return np.asarray(follows & (to_host | is_prefetch(work, "migration"))[parts.activity])


def slow_calls(calls: pa.Table) -> BoolArray:
    """Return, per call, whether it took long, and much longer than is usual for its name."""
    duration = numbers(calls["dur_ns"])
    is_slow = duration > _LONG_CALL_NS
    for _, rows in by_group(codes(calls["name"])):
        if len(rows) >= _FEW_CALLS:
            median_ns = np.partition(duration[rows], len(rows) // 2)[len(rows) // 2]
            is_slow[rows] &= duration[rows] > _TIMES_MEDIAN * median_ns
    return np.asarray(is_slow)


def waiting_calls(calls: pa.Table) -> BoolArray:
    """Return, per call, whether it waits for the device: a synchronisation, or a blocking copy."""
    facts, code = facts_of_names(names(calls["name"])), codes(calls["name"])
    # An asynchronous copy blocks, too, if it returns late (e.g. from pageable memory).
    is_late = (numbers(calls["dur_ns"]) > _LONG_CALL_NS) | ~facts["copies_async"][code]
    return np.asarray(facts["waits_for_device"][code] | (facts["copies"][code] & is_late))


def _last_ended(table: pa.Table, process: IntArray, at_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Return, per instant, the end and the thread of what ended last in its process.

    `process` and `at_ns` are per instant. Only rows of `table` that began until then are looked at;
    if there are none, return NEVER and ABSENT.
    """
    owner, start, threads = (
        numbers(table[name], ABSENT) for name in ("process", "start_ns", "thread")
    )
    end_ns, thread = np.full((2, len(at_ns)), [[NEVER], [ABSENT]])
    order = in_order(owner, start)
    for number, instants in by_group(process):
        own = order[slice(*np.searchsorted(owner, [number, number + 1], sorter=order))]
        end = start[own] + numbers(table["dur_ns"])[own]
        # Up to each row, by start: the latest end, and the row that has it.
        # end [8 5 12]  ->  reach [8 8 12], latest [0 0 2]
        reach = np.maximum.accumulate(end)
        latest = np.maximum.accumulate(np.where(end == reach, np.arange(len(own)), 0))
        index = np.searchsorted(start[own], at_ns[instants], side="right") - 1  # began last
        end_ns[instants] = taken(reach, index, NEVER)
        thread[instants] = taken(threads[own][latest], index, ABSENT)
    return end_ns, thread


def owner_of(slices: Slices, kind: SmallArray, events: HostEvents) -> IntArray:
    """Return the event that gives each slice its name, -1 if nothing is recorded.

    `kind` is the class of each slice. Slices of loading data are named by the user's function
    inside the loader, else by the loader; those of the optimizer by its step; others by `owners`.
    """
    event, label = slices.event, slices.label
    owner = np.where(event < 0, label, taken(owners(events), event))
    is_users = events.is_kind(FRAME, owner) & ~events.has_fact("helps", owner)
    is_inside_loader = events.is_inside("data_input", owner)
    loader = events.nearest("data_input", label, event)
    loading = np.where(is_users & is_inside_loader, owner, loader)
    step = events.nearest("optimizer", label, event)
    is_step, loads = kind == PLACES["optimizer_loop"], kind == PLACES["data_input"]
    return np.select([is_step, loads], [step, loading], owner)
