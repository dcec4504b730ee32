"""Reads rocprof's (v1) JSON into a trace. docs/parsers/rocprof.md says what goes where."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io import (
    BLOCK_BYTES,
    Batch,
    ByteSource,
    Crew,
    EventStream,
    event_text_notes,
)
from traceflops.parsers.rocprof.agents import gpus_of
from traceflops.parsers.rocprof.notes import clock_of_folder
from traceflops.parsers.rocprof.tables.parts import place_of
from traceflops.parsers.rocprof.trace import NOTES, trace_of
from traceflops.parsers.rocprof.v1_events import (
    ARROW_FROM,
    ARROW_TO,
    BARRIER,
    CALLS,
    COPY,
    COUNTERS,
    FILL,
    KERNEL,
    MARK,
    NUMBERS,
    WORK,
    EventRows,
    V1Reader,
    V1Tables,
    without_markers,
)
from traceflops.parsers.rocprof.v1_processes import Owners
from traceflops.parsers.shared import UNNAMED
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names, Source, Trace, joint_codes

_AT_END: Final = "the list of GPUs"
_KINDS: Final[Mapping[str, str]] = {WORK: "kernel", COPY: "memcpy", FILL: "memset"}
_APIS: Final = {name: name.removesuffix("_api") for name in CALLS.values()}
_CALL_IDS: Final = 1 << 40
"""The places of calls stand for ids above this; kernels of results.csv have the ids below."""

_ASKING: Final = re.compile(
    "Launch|Memcpy|Memset|WaitEvent|Synchronize|Stream(?:Wait|Write)Value|async_copy"
)
"""Calls from which arrows lead."""
_PLACE: Final = ("section", "lane", "shown_us")
_SHOWN: Final = (*_PLACE, "start", "end")
_NONE: Final = -1
_SPREAD: Final = 1 << 32
"""More than the distinct times of one file: lanes lie so far apart."""

Columns = Mapping[str, Array]
AllRows = Mapping[str, EventRows]
"""The events of a file by kind, in the order of the text; of others there are no rows."""


def read_v1_json(source: ByteSource, crew: Crew, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the trace in a file. Raises InputError where nothing of it can be used."""
    rows: defaultdict[str, EventRows] = defaultdict(EventRows)
    stream = EventStream[dict[str, EventRows]](
        source, V1Reader(), crew, ("otherData",), block_bytes
    )
    for block in stream:
        for kind, events in block.items():
            rows[kind].absorb(events)
    if not rows:
        raise _nothing_in(source, stream)
    for kind, events in rows.items():
        events.join(np.nan if kind == COUNTERS else ABSENT)
    tables = V1Tables(source.label, gpus_of(stream.header))
    tables.counts.update({kind: rows[kind].count for kind in rows if kind != COUNTERS})
    _add_all(tables, rows)
    notes = [*event_text_notes(source, stream.damage, _AT_END)]
    if tables.open_devices:
        listed = ", ".join(map(str, sorted(tables.open_devices)[:8]))
        notes.append(NOTES.note("device-ambiguous", numbers=listed))
    recorded = [kind for kind in sorted(+tables.counts) if kind not in (ARROW_FROM, ARROW_TO)]
    about = Source(
        format="rocprof",
        files=(),
        tool="rocprof JSON",
        clock=clock_of_folder(place_of(source.folder, source.name).root),
        facts={"generation": "v1", "recorded": ", ".join(recorded)},
    )
    return trace_of(tables, source, about, "v1 file", notes=notes)


def _nothing_in(source: ByteSource, stream: EventStream[dict[str, EventRows]]) -> InputError:
    if source.cut or stream.damage.cut_bytes is not None or stream.damage.dropped_places:
        return InputError(
            f"no readable record: {source.label} (cut off or damaged)",
            "use results.csv or results.db of the same run",
        )
    return NotATrace(
        f"no records: {source.label} (rocprof JSON without kernels, copies and calls)",
        "nothing was launched while recording; record with rocprof --hip-trace or --timestamp on",
    )


def _add_all(tables: V1Tables, rows: defaultdict[str, EventRows]) -> None:
    gpus = np.concatenate([rows[kind].column("gpu") for kind in (KERNEL, *_KINDS)])
    tables.gpus |= set(gpus[gpus != ABSENT].tolist())
    only_gpu = min(tables.gpus) if len(tables.gpus) == 1 else 0
    asked_by = _asked_by(tables, rows)
    tables.owners = _owners(rows, asked_by)
    if rows[KERNEL].count:
        _add_kernels(tables, rows)
    offset = _CALL_IDS
    for kind in (kind for kind in _APIS if rows[kind].count):
        calls = _batch(rows[kind], offset + np.arange(rows[kind].count))
        tables.add_calls(calls, _labels(rows[kind]), _APIS[kind])
        offset += calls.count
    for kind in (kind for kind in _KINDS if rows[kind].count):
        _add_work(tables, rows, kind, asked_by.get(kind), only_gpu)
    if rows[MARK].count:
        tables.add_marks(_batch(rows[MARK]), _labels(rows[MARK]))
    tables.sum_instances()


def _add_kernels(tables: V1Tables, rows: AllRows) -> None:
    """Add what results.csv holds, numbered as there: in the order in which it stands there."""
    kernels, labels = _batch(rows[KERNEL], np.arange(rows[KERNEL].count)), _labels(rows[KERNEL])
    if not rows[WORK].count:  # else the same kernels stand among the operations
        tables.add_kernels(kernels, labels)
    tables.add_counters(kernels, labels, rows[COUNTERS].joined)


def _labels(rows: EventRows) -> list[str]:
    """Return the names of rows, by their codes."""
    return [name or UNNAMED for name in rows.names["name"]]


def _batch(rows: EventRows, index: IntArray | None = None, **columns: Array) -> Batch:
    """Return rows as `V1Tables` takes them."""
    known = rows.columns((*NUMBERS, "name", "bytes"))
    known["index"] = np.full(rows.count, ABSENT) if index is None else index
    return Batch(rows.count, known | columns, {})


def _asked_by(tables: V1Tables, rows: AllRows) -> dict[str, IntArray]:
    """Return the place, among all calls, of the call that asked for each piece of work."""
    if not rows[ARROW_FROM].count or not rows[ARROW_TO].count:
        return {}
    names = Names()
    codes = [names.codes(_labels(rows[kind]))[rows[kind].column("name")] for kind in _APIS]
    calls: dict[str, Array] = _together(rows, _APIS, _SHOWN) | {"name": np.concatenate(codes)}
    begins, ends = (rows[kind].columns((*_PLACE, "id")) for kind in (ARROW_FROM, ARROW_TO))
    if not rows[WORK].count:  # kernels know when they were dispatched: no arrow needs to tell it
        others = ~np.isin(ends["section"], rows[KERNEL].column("section"))
        ends = {name: column[others] for name, column in ends.items()}
    work = _together(rows, _KINDS, _SHOWN)
    asked, tables.odd["loose-arrows"] = _links(begins, ends, work, calls, names)
    sizes = [rows[kind].count for kind in _KINDS]
    return dict(zip(_KINDS, np.split(asked, np.cumsum(sizes)[:-1]), strict=True))


def _owners(rows: AllRows, asked_by: Mapping[str, IntArray]) -> Owners:
    """Return the processes of the file, and whose its threads are."""
    kernels, work = rows[KERNEL], _together(rows, _KINDS, ("pid",))["pid"]
    votes = [(kernels.column("thread"), kernels.column("pid"))]
    if asked_by:
        call = np.concatenate([asked_by[kind] for kind in _KINDS])
        thread = _together(rows, _APIS, ("thread",))["thread"]
        votes.append((thread[call[call >= 0]], work[call >= 0]))
    return Owners(np.append(kernels.column("pid"), work), votes)


def _add_work(
    tables: V1Tables, rows: AllRows, kind: str, asked_by: IntArray | None, only_gpu: int
) -> None:
    """Add kernels, copies or fills as they were seen to run.

    What names no GPU ran on the only one, or on 0.
    """
    work, labels = rows[kind], _labels(rows[kind])
    gpu, sizes = work.column("gpu"), work.column("bytes")
    tables.odd["device-unknown json"] += int(np.count_nonzero(gpu == ABSENT))
    columns = {"gpu": np.where(gpu == ABSENT, only_gpu, gpu)}
    if asked_by is not None:
        columns["bytes"] = np.where(sizes == ABSENT, _sizes_asked(rows, asked_by), sizes)
        columns["index"] = np.where(asked_by < 0, ABSENT, asked_by + _CALL_IDS)
    if kind == COPY:  # an engine for copies works these off: no queue is their place
        columns["queue"] = np.full(work.count, ABSENT)
    if kind == WORK:  # arrows lead to markers, too
        rows_that_ran = without_markers(_batch(work, **columns), labels)
        tables.counts[BARRIER] += work.count - rows_that_ran.count
        tables.counts[WORK] -= work.count - rows_that_ran.count
        tables.add_kernels(rows_that_ran, labels)
    else:
        tables.add_copies(_batch(work, **columns), labels, lambda _: _KINDS[kind])


def _sizes_asked(rows: AllRows, asked_by: IntArray) -> IntArray:
    """Return how many bytes were asked for, where a call asked for one piece of work only."""
    said = _together(rows, _APIS, ("bytes",))["bytes"]
    calls, place, count = np.unique(asked_by, return_inverse=True, return_counts=True)
    once = (calls >= 0) & (count == 1)
    sizes = np.append(said, ABSENT)  # the last is of those without a call
    return np.where(once, sizes[np.where(once, calls, -1)], ABSENT)[place]


def _together(rows: AllRows, kinds: Iterable[str], columns: Sequence[str]) -> dict[str, Array]:
    """Return columns of several kinds, one behind the other."""
    return {name: np.concatenate([rows[kind].column(name) for kind in kinds]) for name in columns}


def _links(
    begins: Columns, ends: Columns, work: Columns, calls: Columns, names: Iterable[str]
) -> tuple[IntArray, int]:
    """Return the row of the call that asked for each piece of work or -1, and the loose arrows.

    `names` are those of the calls, by code. The JSON has no ids of calls. An arrow leads from the
    middle of a call (in ROCm 3 and 4 from its end), or from the beginning of the work if that was
    sooner, to the beginning of the work; both in whole microseconds.
    Where several arrows meet in one microsecond, the first leads to what comes first. If these are
    not as many as what they could lead to, they lead to nothing.
    """
    start, end = _paired(begins["id"], ends["id"])
    origin = {name: begins[name][start] for name in _PLACE}
    goal = {name: ends[name][end] for name in _PLACE}
    to = _in_order(goal, origin["shown_us"], work)
    may_ask = np.array([_ASKING.search(name) is not None for name in names], dtype=np.bool_)
    asking = np.flatnonzero(may_ask[calls["name"]])
    chosen = {name: calls[name][asking] for name in (*_PLACE, "start", "end")}
    took_us = (chosen["end"] - chosen["start"]) // 1000
    sources = [
        _in_order(origin, goal["shown_us"], chosen | {"shown_us": chosen["shown_us"] + after})
        for after in (took_us // 2, took_us)
    ]
    from_end = np.count_nonzero(sources[1] != _NONE) > np.count_nonzero(sources[0] != _NONE)
    source = sources[int(from_end)]
    if len(asking):
        early = (source == _NONE) & (origin["shown_us"] == goal["shown_us"])
        after = took_us if from_end else took_us // 2
        to_come = _not_yet_in_the_middle(_at(origin, early), chosen, after, source)
        source[early] = to_come
        other = source == _NONE
        source[other] = _around(_at(origin, other), chosen, took_us)
    known = (to != _NONE) & (source != _NONE)
    call = np.full(len(work["start"]), _NONE, dtype=np.int64)
    call[to[known]] = asking[source[known]]
    return _with_earlier(call, work, calls["start"]), int(np.count_nonzero(~known))


def _with_earlier(call: IntArray, work: Columns, call_start: IntArray) -> IntArray:
    """Return the call of each piece of work, also where it asked for several.

    Its arrow leads to the last of them. Those before it lie in the same lane, behind its beginning.
    """
    order = np.lexsort((work["start"], work["lane"], work["section"]))
    place = np.where(call[order] >= 0, np.arange(len(order)), len(order))
    following = np.minimum.accumulate(place[::-1])[::-1]
    last = order[np.minimum(following, len(order) - 1)]
    same = following < len(order)
    for name in ("section", "lane"):
        same &= work[name][last] == work[name][order]
    same &= work["start"][order] >= call_start[call[last]]
    whole = call.copy()
    whole[order[same]] = call[last[same]]
    return whole


def _paired(begins: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of beginnings and ends of arrows with one id; ids used twice are left out."""
    sides = []
    for ids in (begins, ends):
        distinct, row, count = np.unique(ids, return_index=True, return_counts=True)
        once = (count == 1) & (distinct != ABSENT)
        sides.append((distinct[once], row[once]))
    (first, first_row), (last, last_row) = sides
    _, mine, theirs = np.intersect1d(first, last, assume_unique=True, return_indices=True)
    return first_row[mine], last_row[theirs]


def _in_order(arrows: Columns, order: Array, targets: Columns) -> IntArray:
    """Return the row of the target of each arrow: same place and time, and the same rank there."""
    count = len(order)
    lanes = _codes(*(np.append(arrows[name], targets[name]) for name in _PLACE[:2]))
    keys = _codes(lanes, np.append(arrows["shown_us"], targets["shown_us"]))
    mine, theirs = keys[:count], keys[count:]
    size = int(keys.max(initial=0)) + 1
    fits = np.bincount(mine, minlength=size) == np.bincount(theirs, minlength=size)
    by_arrow = np.lexsort((order, mine))
    by_target = np.lexsort((targets["start"], theirs))
    target = np.full(count, _NONE, dtype=np.int64)
    target[by_arrow[fits[mine[by_arrow]]]] = by_target[fits[theirs[by_target]]]
    return target


def _not_yet_in_the_middle(
    arrows: Columns, calls: Columns, after_us: IntArray, taken: IntArray
) -> IntArray:
    """Return, for arrows that begin with their work, the call whose middle was still to come.

    Or its end: arrows begin `after_us` behind the beginning of a call. Of a call before, such an
    arrow would begin there. If that call is yet to begin, the
    clocks of host and device disagree; then it is told only if no other arrow leads from it.
    """
    middle = calls["shown_us"] + after_us
    here, there, order = _places(arrows, calls, middle)
    after = np.searchsorted(there[order], here)
    known = after < len(order)
    call = np.where(known, order[np.minimum(after, len(order) - 1)], 0)
    known &= there[call] // _SPREAD == here // _SPREAD
    often = np.bincount(np.append(call[known], taken[taken != _NONE]), minlength=len(order))
    runs = calls["shown_us"][call] <= arrows["shown_us"]
    return np.where(known & (runs | (often[call] == 1)), call, _NONE)


def _around(arrows: Columns, calls: Columns, took_us: IntArray) -> IntArray:
    """Return the latest call of the same lane that runs where each arrow begins."""
    here, there, order = _places(arrows, calls, calls["shown_us"])
    before = np.searchsorted(there[order], here, side="right") - 1
    call = order[np.maximum(before, 0)]
    runs = (before >= 0) & (there[call] // _SPREAD == here // _SPREAD)
    runs &= arrows["shown_us"] <= calls["shown_us"][call] + took_us[call]
    return np.where(runs, call, _NONE)


def _places(
    arrows: Columns, calls: Columns, at_us: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return where arrows begin and calls are, lane by lane in order of time, and that order."""
    count = len(arrows["lane"])
    lanes = _codes(*(np.append(arrows[name], calls[name]) for name in _PLACE[:2]))
    _, times = np.unique(np.append(arrows["shown_us"], at_us), return_inverse=True)
    places = lanes * _SPREAD + times
    return places[:count], places[count:], np.lexsort((calls["start"], places[count:]))


def _at(columns: Columns, rows: BoolArray) -> Columns:
    """Return some rows of columns."""
    return {name: column[rows] for name, column in columns.items()}


def _codes(first: IntArray, second: IntArray) -> IntArray:
    """Return one small number per distinct pair."""
    _, place = np.unique(first, return_inverse=True)
    _, codes = np.unique(joint_codes(place, second), return_inverse=True)
    return codes
