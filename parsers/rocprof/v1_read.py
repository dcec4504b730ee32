"""Reads rocprof's (v1) JSON into a trace. docs/parsers/rocprof.md says what becomes what."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.database_query import Batch, joined
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.json_events import EventStream
from traceflops.parsers.io.json_text import event_text_notes
from traceflops.parsers.io.worker_pool import BLOCK_BYTES, WorkerPool
from traceflops.parsers.rocprof import v1_events
from traceflops.parsers.rocprof.agents import gpus_of
from traceflops.parsers.rocprof.trace import NOTES, trace_of
from traceflops.parsers.rocprof.v1_events import COUNTERS, WORK
from traceflops.parsers.rocprof.v1_tables import V1Tables, only_process
from traceflops.table.columns import ABSENT, Array, IntArray, Names, Rows, count_true
from traceflops.table.grouping import group_rows
from traceflops.table.trace import Source, Trace

_KINDS: Final[Mapping[str, str]] = {
    WORK: "kernel",
    v1_events.COPY: "memcpy",
    v1_events.FILL: "memset",
}
_APIS: Final = {name: name.removesuffix("_api") for name in v1_events.CALLS.values()}
_ALL_KINDS: Final = (
    *(*_KINDS, *_APIS, v1_events.KERNEL, v1_events.MARK),
    *(v1_events.ARROW_FROM, v1_events.ARROW_TO),
)
"""The kinds of events whose rows are used."""
_CALL_IDS: Final = 1 << 40
"""The first id of calls, which follow the order of the text; ids of kernels are lower."""
_LAUNCHES: Final = re.compile(
    "Launch|Memcpy|Memset|WaitEvent|Synchronize|Stream(?:Wait|Write)Value|async_copy"
)
"""Calls from which arrows lead to work."""
_SHOWN: Final = ("section", "lane", "shown_us")
_TIMED: Final = (*_SHOWN, "start", "end")
_NONE: Final = -1
_MOST_NAMED: Final = 8
_SPREAD: Final = 1 << 32
"""More than a file has distinct times; `lane * _SPREAD + time` orders by lane, then time."""
_COLUMNS: Final = (*v1_events.NUMBERS, *_SHOWN, "id", "bytes", "name")
Columns = Mapping[str, Array]
Events = Mapping[str, Batch]
"""The events of a file by kind, in the order of the text; kinds that it lacks have no rows."""


def read_v1_json(source: ByteSource, pool: WorkerPool, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError if nothing of it can be used."""
    stream = EventStream[dict[str, Rows]](
        source, v1_events.V1Reader(), pool, ("otherData",), block_bytes
    )
    pieces, labels = defaultdict[str, Rows](Rows), Names()
    for block in stream:
        for kind, rows in block.items():
            pieces[kind].names["name"] = labels  # all kinds share the codes of names
            pieces[kind].absorb(rows)
    damage = stream.damage
    if not pieces:
        if source.cut or damage.cut_bytes is not None or damage.dropped_places:
            raise InputError(
                f"no readable record: {source.label} (cut off or damaged)",
                "use results.csv or results.db of the same run",
            )
        raise NotATrace(
            f"no records: {source.label} (rocprof JSON without kernels, copies and calls)",
            "if the program uses the GPU, record with rocprof --hip-trace or --timestamp on",
        )
    tables = V1Tables(source.label, gpus_of(stream.header), labels)
    # COUNTERS and KERNEL are the same records.
    tables.counts.update({kind: pieces[kind].count for kind in pieces.keys() - {COUNTERS}})
    counters = joined(pieces[COUNTERS], np.nan).numbers
    events = {kind: joined(pieces[kind], columns=_COLUMNS) for kind in _ALL_KINDS}
    is_double = v1_events.doubles(events[WORK].numbers)
    tables.odd["empty-doubles"] += count_true(is_double)
    tables.counts[WORK] -= count_true(is_double)
    events[WORK] = events[WORK].only(~is_double)
    _add_all(tables, events, counters)

    notes = [*event_text_notes(source, damage, "the list of GPUs")]
    if tables.open_devices:
        listed = ", ".join(map(str, sorted(tables.open_devices)[:_MOST_NAMED]))
        notes.append(NOTES.note("device-ambiguous", numbers=listed))
    arrows = {v1_events.ARROW_FROM, v1_events.ARROW_TO}  # links, not records
    recorded = sorted((+tables.counts).keys() - arrows)
    about = Source(
        format="rocprof",
        files=(),
        tool="rocprof JSON",
        facts={"generation": "v1", "recorded": ", ".join(recorded)},
    )
    return trace_of(tables, source, about, "v1 file", notes=notes)


def _add_all(tables: V1Tables, events: Events, counters: Columns) -> None:
    """Add all kinds of events to `tables`, device work with the calls that launched it."""
    kernels = events[v1_events.KERNEL]
    work = _together(events, (v1_events.KERNEL, *_KINDS), ("gpu", "pid"))
    tables.gpus |= set(work["gpu"][work["gpu"] != ABSENT].tolist())
    tables.only_pid = only_process(work["pid"])
    # Rows of calls, here and in `call_bytes`, count through the calls of all _APIS.
    call_of = _launching_calls(tables, events)
    call_bytes = _together(events, _APIS, ("bytes",))["bytes"]

    if kernels.count:  # rows of results.csv, numbered in their order there
        kernels = kernels.with_numbers({"index": np.arange(kernels.count)})
        if not events[WORK].count:  # else the same kernels are among the operations
            tables.add_kernels(kernels)
        tables.add_counters(kernels, counters)
    first_id = _CALL_IDS
    for kind in (kind for kind in _APIS if events[kind].count):
        ids = first_id + np.arange(events[kind].count)
        tables.add_calls(events[kind].with_numbers({"index": ids}), _APIS[kind])
        first_id += len(ids)
    for kind in (kind for kind in _KINDS if events[kind].count):
        _add_work(tables, kind, events[kind], call_of.get(kind), call_bytes)
    if events[v1_events.MARK].count:
        tables.add_marks(events[v1_events.MARK])
    tables.sum_instances()


def _add_work(
    tables: V1Tables, kind: str, work: Batch, call: IntArray | None, call_bytes: Array
) -> None:
    """Add device work of one kind of event.

    `call` is the row of the call that launched each piece, or -1 (None: the file links none).
    """
    gpu, sizes = work["gpu"], work["bytes"]
    tables.odd["device-unknown json"] += count_true(gpu == ABSENT)
    only_gpu = min(tables.gpus) if len(tables.gpus) == 1 else 0
    columns = {"gpu": np.where(gpu == ABSENT, only_gpu, gpu), "index": np.full(work.count, ABSENT)}
    if call is not None:
        # A call that launched several pieces of work does not say how many bytes each moved.
        launching, inverse, launched = np.unique(call, return_inverse=True, return_counts=True)
        is_single = (launching >= 0) & (launched == 1)
        of_call = np.append(call_bytes, ABSENT)[np.where(is_single, launching, -1)]
        columns["bytes"] = np.where(sizes == ABSENT, of_call[inverse], sizes)
        columns["index"] = np.where(call < 0, ABSENT, call + _CALL_IDS)
    if kind == v1_events.COPY:  # a copy engine executes it: it belongs to no queue
        columns["queue"] = np.full(work.count, ABSENT)
    rows = work.with_numbers(columns)
    if kind == WORK:  # markers are left out only now, since arrows lead to them, too
        that_ran = tables.without_markers(rows)
        tables.counts[v1_events.BARRIER] += work.count - that_ran.count
        tables.counts[WORK] -= work.count - that_ran.count
        tables.add_kernels(that_ran)
    else:
        tables.add_copies(rows, [_KINDS[kind]] * len(tables.labels))


def _launching_calls(tables: V1Tables, events: Events) -> dict[str, IntArray]:
    """Return, by kind of work, the row of each piece's launching call, or -1; {} without arrows."""
    begins, ends = (events[kind].numbers for kind in (v1_events.ARROW_FROM, v1_events.ARROW_TO))
    if not len(begins["id"]) or not len(ends["id"]):
        return {}
    if not events[WORK].count:
        # Kernels of results.csv say when they were dispatched: ignore arrows to them.
        others = ~np.isin(ends["section"], events[v1_events.KERNEL]["section"])
        ends = _rows_of(ends, others)
    calls, work = _together(events, _APIS, (*_TIMED, "name")), _together(events, _KINDS, _TIMED)
    call, tables.odd["loose-arrows"] = _linked(begins, ends, work, calls, tables.labels)
    sizes = [events[kind].count for kind in _KINDS]
    return dict(zip(_KINDS, np.split(call, np.cumsum(sizes)[:-1]), strict=True))


def _together(events: Events, kinds: Iterable[str], columns: Sequence[str]) -> dict[str, Array]:
    return {name: np.concatenate([events[kind][name] for kind in kinds]) for name in columns}


def _linked(
    begins: Columns, ends: Columns, work: Columns, calls: Columns, names: Iterable[str]
) -> tuple[IntArray, int]:
    """Return the row of the call that launched each piece of work, or -1; count loose arrows.

    The JSON has no ids of calls, only arrows, and `begins` and `ends` are their two ends. An arrow
    leads from the middle of a call (in ROCm 3 and 4 from its end), or from the beginning of the
    work if that was sooner, to the beginning of the work; both in whole microseconds. An arrow is
    loose if it leads to no call and work. `names` are the names of calls, by code.
    """
    # Pair the ends of arrows by id; an id that recurs at one end links nothing.
    unique_ids = []
    for ids in (begins["id"], ends["id"]):
        distinct, row, count = np.unique(ids, return_index=True, return_counts=True)
        is_unique = (count == 1) & (distinct != ABSENT)
        unique_ids.append((distinct[is_unique], row[is_unique]))
    (begin_ids, begin_row), (end_ids, end_row) = unique_ids
    _, of_begin, of_end = np.intersect1d(
        begin_ids, end_ids, assume_unique=True, return_indices=True
    )
    origin = {name: begins[name][begin_row[of_begin]] for name in _SHOWN}
    goal = {name: ends[name][end_row[of_end]] for name in _SHOWN}
    target = _in_order(goal, origin["shown_us"], work)

    # Calls from which the arrows come: try both rules, and keep the one that fits more arrows.
    may_launch = np.array([_LAUNCHES.search(name) is not None for name in names], np.bool_)
    launching = np.flatnonzero(may_launch[calls["name"]])
    launches = {name: calls[name][launching] for name in _TIMED}
    took_us = (launches["end"] - launches["start"]) // 1000
    from_middle, from_end = (
        _in_order(origin, goal["shown_us"], launches | {"shown_us": launches["shown_us"] + delay})
        for delay in (took_us // 2, took_us)
    )
    ends_fit = np.count_nonzero(from_end != _NONE) > np.count_nonzero(from_middle != _NONE)
    source, after_us = (from_end, took_us) if ends_fit else (from_middle, took_us // 2)
    if len(launching):
        # Arrows that neither rule explains: those from the beginning of the work, then the others.
        is_early = (source == _NONE) & (origin["shown_us"] == goal["shown_us"])
        source[is_early] = _still_to_come(_rows_of(origin, is_early), launches, after_us, source)
        is_open = source == _NONE
        source[is_open] = _around(_rows_of(origin, is_open), launches, took_us)

    is_linked = (target != _NONE) & (source != _NONE)
    call = np.full(len(work["start"]), _NONE, np.int64)
    call[target[is_linked]] = launching[source[is_linked]]
    if is_linked.any():  # else there may be no calls, which `_with_earlier` needs
        call = _with_earlier(call, work, calls)
    return call, count_true(~is_linked)


def _with_earlier(call: IntArray, work: Columns, calls: Columns) -> IntArray:
    """Return `call` with further pieces of work linked, to which no arrow leads.

    The arrow of a call leads to the last piece of work that it launched. Pieces before it in the
    same lane, if they start after the call, are of the same call.
    """
    order = np.lexsort((work["start"], work["lane"], work["section"]))
    linked = np.where(call[order] >= 0, np.arange(len(order)), len(order))
    # The index in `order` of the next linked piece, at or after each; len(order) if none follows.
    next_linked = np.minimum.accumulate(linked[::-1])[::-1]
    last = order[np.minimum(next_linked, len(order) - 1)]
    same_call = next_linked < len(order)
    for name in ("section", "lane"):
        same_call &= work[name][last] == work[name][order]
    same_call &= work["start"][order] >= calls["start"][call[last]]
    with_earlier = call.copy()
    with_earlier[order[same_call]] = call[last[same_call]]
    return with_earlier


def _in_order(arrows: Columns, order: Array, targets: Columns) -> IntArray:
    """Return the row of the target of each arrow, or -1.

    Arrows and targets with the same lane and microsecond form a group, in which they are paired in
    order: arrows by `order`, targets by start. In a group with unequal numbers no arrow has one.
    """
    count = len(order)
    keys, _ = group_rows([np.append(arrows[name], targets[name]) for name in _SHOWN])
    arrow_group, target_group = keys[:count], keys[count:]
    size = int(keys.max(initial=0)) + 1
    as_many = np.bincount(arrow_group, minlength=size) == np.bincount(target_group, minlength=size)
    sorted_arrows = np.lexsort((order, arrow_group))
    sorted_targets = np.lexsort((targets["start"], target_group))
    paired_arrows = sorted_arrows[as_many[arrow_group[sorted_arrows]]]
    target = np.full(count, _NONE, np.int64)
    target[paired_arrows] = sorted_targets[as_many[target_group[sorted_targets]]]
    return target


def _still_to_come(
    arrows: Columns, calls: Columns, after_us: IntArray, taken: IntArray
) -> IntArray:
    """Return the call of each arrow that begins with its work, or -1.

    Normally an arrow begins `after_us` behind the beginning of its call. If the work began sooner,
    so does the arrow: its call is the next one in the lane that reaches that point later. If that
    call has not even begun, the clocks of host and device disagree: then it counts only if no
    other arrow leads from it. `taken` are the calls of the other arrows.
    """
    arrow, point, order = _on_one_axis(arrows, calls, calls["shown_us"] + after_us)
    following = np.searchsorted(point[order], arrow)
    exists = following < len(order)
    call = np.where(exists, order[np.minimum(following, len(order) - 1)], 0)
    exists &= point[call] // _SPREAD == arrow // _SPREAD  # same lane
    uses = np.bincount(np.append(call[exists], taken[taken != _NONE]), minlength=len(order))
    has_begun = calls["shown_us"][call] <= arrows["shown_us"]
    is_used_once = uses[call] == 1
    return np.where(exists & (has_begun | is_used_once), call, _NONE)


def _around(arrows: Columns, calls: Columns, took_us: IntArray) -> IntArray:
    """Return, per arrow, the last call of its lane that began before it; -1 if that has ended."""
    arrow, begin, order = _on_one_axis(arrows, calls, calls["shown_us"])
    last = np.searchsorted(begin[order], arrow, side="right") - 1
    call = order[np.maximum(last, 0)]
    is_running = (last >= 0) & (begin[call] // _SPREAD == arrow // _SPREAD)  # same lane
    is_running &= arrows["shown_us"] <= calls["shown_us"][call] + took_us[call]
    return np.where(is_running, call, _NONE)


def _on_one_axis(
    arrows: Columns, calls: Columns, time_us: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return a number per arrow, a number per call, and the rows of the calls in ascending order.

    The numbers of both order by lane, then time: `time_us` for calls, their own for arrows.
    """
    count = len(arrows["lane"])
    lanes, _ = group_rows([np.append(arrows[name], calls[name]) for name in ("section", "lane")])
    _, times = np.unique(np.append(arrows["shown_us"], time_us), return_inverse=True)
    axis = lanes * _SPREAD + times
    return axis[:count], axis[count:], np.lexsort((calls["start"], axis[count:]))


def _rows_of(columns: Columns, rows: Array) -> dict[str, Array]:
    return {name: column[rows] for name, column in columns.items()}
