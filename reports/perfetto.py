"""A trace of any format as trace-event JSON that the Perfetto UI and chrome://tracing open.

The format has processes with threads (pid, tid). Findings come first. Each device is a process: its
steps, the components of its time, its outstanding launches, then its streams. So is each process of
the job: its threads with annotations, ops and calls. Arrows lead from calls to what they launched.
Times count from the first record and are exact: microseconds with three decimals.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from traceflops.attribution.launch_lead import outstanding_launches
from traceflops.drawing.coarsening import MOST_LANES, lanes_of
from traceflops.errors import UsageError
from traceflops.findings.finding import Finding
from traceflops.reports.files import MARK
from traceflops.reports.json.report import gain_object
from traceflops.reports.view.texts import words
from traceflops.table.columns import ABSENT, IntArray, codes, names, numbers
from traceflops.table.grouping import distinct
from traceflops.table.trace import Trace
from traceflops.timeline.intervals import Intervals
from traceflops.timeline.records import COMPONENTS
from traceflops.windows.prepared import Prepared

SUFFIXES: Final = (".json", ".json.gz")

_DEVICE, _HOST = 1, 1_000_000
"""The first pid of devices, and of the job's processes; viewers take 0 for the idle process."""

_FINDINGS = 999_999  # the pid of the findings; no job has as many devices

_STEPS, _COMPONENTS, _STREAMS = 1, 2, 1000
"""The tids of steps and components of a device, and the first of its streams."""
_HOST_TABLES: Final = {"marks": "mark", "ops": "op", "calls": "call"}
_HOST_KINDS: Final = (*("annotation", "module", "python", "system", "sync", "overhead", "instant"),)
_COMPONENT_NAMES: Final = {"communication": "exposed communication", "start_up": "start-up"}
_COMPRESSION: Final = 3
_ROWS_AT_ONCE: Final = 50_000

Write = Callable[..., str]  # `_range` without its first argument


def check_suffix(target: Path) -> None:
    """Raise UsageError unless the name of a file ends in one of SUFFIXES."""
    if not target.name.lower().endswith(SUFFIXES):
        raise UsageError(
            f"cannot write a trace for Perfetto as {target.suffix or 'a file without suffix'}: "
            f"{target}",
            f"give a name that ends in {' or '.join(SUFFIXES)}",
        )


def render_perfetto(
    prepared: Prepared, findings: Sequence[Finding] = (), *, packed: bool = True
) -> Iterator[bytes]:
    """Yield the document in pieces, as gzip if `packed`; equal traces give equal bytes."""

    def document() -> Iterator[bytes]:
        yield b'{"displayTimeUnit":"ns","otherData":{"writer":"%s"},"traceEvents":[\n' % MARK
        separator = b""
        for text in filter(None, _events(prepared, findings)):
            yield separator + text
            separator = b",\n"
        yield b"\n]}\n"

    if not packed:
        yield from document()
        return
    packer = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, 31)  # 31: gzip, without a timestamp
    for piece in document():
        yield packer.compress(piece)
    yield packer.flush()


def _events(prepared: Prepared, findings: Sequence[Finding]) -> Iterator[bytes]:
    """Yield all events as JSON, several at a time, without the brackets of a list."""
    trace = prepared.trace
    tables = [trace.activities, *(trace.table(name) for name in _HOST_TABLES)]
    origin_ns = min((int(numbers(t["start_ns"]).min()) for t in tables if t.num_rows), default=0)
    write = partial(_range, origin_ns)
    # A device has a thread per stream, or more if activities of the stream overlap.
    stream, streams = numbers(trace.activities["stream"], ABSENT), {}
    for device, account in prepared.accounts.items():
        rows = account.rows
        thread, labels = _threads(stream[rows.row], rows.start_ns, rows.end_ns, nests=False)
        streams[device] = _Threads({"activities": rows.row}, {"activities": thread}, labels)
    processes = _host_threads(trace)
    thread_of_call = _thread_column(processes.values(), "calls", trace)
    thread_of_activity = _thread_column(streams.values(), "activities", trace)
    yield from _findings(prepared, findings, write)
    yield from _devices(prepared, write, origin_ns, streams)
    for row in trace.processes.to_pylist():
        if row["process"] in processes:
            rank, pid = row["rank"], _HOST + row["process"]
            name = f"rank {rank}, CPU" if rank is not None else f"CPU: {row['file']}"
            yield _label("process", pid, 0, name, pid).encode()
            yield from _host(trace, processes[row["process"]], pid, write)
    yield from _arrows(prepared, origin_ns, thread_of_call, thread_of_activity)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _time(ns: int) -> str:
    """Return a time in µs, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _range(
    origin_ns: int,
    pid: int,
    tid: int,
    name: str,
    start_ns: int,
    dur_ns: int,
    category: str,
    args: str = "{}",
) -> str:
    """Return an event of a thread as JSON; `name`, `category` and `args` already are JSON."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{_time(start_ns - origin_ns)},'
        f'"dur":{_time(dur_ns)},"name":{name},"cat":{category},"args":{args}}}'
    )


def _label(what: str, pid: int, tid: int, name: str, order: int) -> str:
    """Return the events that give a process or thread (`what`) its name and its place in order."""
    head = f'"ph":"M","pid":{pid},"tid":{tid},"ts":0'
    return (
        f'{{{head},"name":"{what}_name","args":{{"name":{_json(name)}}}}},\n'
        f'{{{head},"name":"{what}_sort_index","args":{{"sort_index":{order}}}}}'
    )


def _thread_labels(pid: int, names: Mapping[int, str], first: int) -> bytes:
    """Return the events that name threads, in order from `first`; `names` are by tid."""
    return _joined(
        _label("thread", pid, tid, name, order)
        for order, (tid, name) in enumerate(names.items(), first)
    )


def _joined(events: Iterable[str]) -> bytes:
    return ",\n".join(events).encode()


def _pieces(events: Iterator[str]) -> Iterator[bytes]:
    """Yield events as JSON, _ROWS_AT_ONCE at a time, to limit memory."""
    while piece := list(islice(events, _ROWS_AT_ONCE)):
        yield _joined(piece)


def _findings(prepared: Prepared, findings: Sequence[Finding], write: Write) -> Iterator[bytes]:
    """Yield the findings, each on its own thread, from the first used window to the last."""
    all_windows = (window for windows in prepared.windows.values() for window in windows)
    used = [window for window in all_windows if window.used]
    if not used or not findings:
        return
    start_ns = min(window.start_ns for window in used)
    dur_ns = max(window.end_ns for window in used) - start_ns
    yield _label("process", _FINDINGS, 0, "findings", 0).encode()
    for tid, finding in enumerate(findings, 1):
        args: dict[str, object] = {"severity": finding.severity, "share": finding.share}
        args["mfu_without"] = finding.mfu_without
        if finding.remedy:  # the gain is that of the remedy
            args["remedy"] = finding.remedy
            args |= gain_object(finding.gain) if finding.gain is not None else {}
        sentence = _json(finding.sentence)
        yield _label("thread", _FINDINGS, tid, finding.rule, tid).encode()
        yield write(_FINDINGS, tid, sentence, start_ns, dur_ns, '"finding"', _json(args)).encode()


def _devices(
    prepared: Prepared, write: Write, origin_ns: int, streams: Mapping[int, _Threads]
) -> Iterator[bytes]:
    """Yield the events of all devices; `streams` are the threads of each."""
    trace = prepared.trace
    rows, ranks = trace.devices.to_pylist(), trace.ranks
    for device in prepared.accounts:
        row = rows[device]
        rank = ranks[row["process"]]
        owner = row["type"].upper() if rank is None else f"rank {rank}, {row['type'].upper()}"
        name = f"{owner} {row['local_id']}: {row['product'] or 'unknown product'}"
        pid = _DEVICE + device
        yield _label("process", pid, 0, name, pid).encode()
        yield _thread_labels(pid, {_STEPS: "steps", _COMPONENTS: "components"}, 0)
        yield _joined(_steps(prepared, device, write))
        yield _joined(_components(prepared, device, write))
        # Launches that were called, but have not started yet: a value whenever it changes.
        changed_ns, counts = outstanding_launches(prepared.accounts[device])
        yield from _pieces(
            f'{{"ph":"C","pid":{pid},"tid":0,"ts":{_time(ns - origin_ns)},'
            f'"name":"outstanding launches","args":{{"launches":{count}}}}}'
            for ns, count in zip(changed_ns.tolist(), counts.tolist(), strict=True)
        )
        yield from _streams(prepared, device, write, streams[device])


def _steps(prepared: Prepared, device: int, write: Write) -> Iterator[str]:
    """Yield the windows of a device, with the time of each component."""
    for window in prepared.windows[device]:
        if window.role != "range":  # ranges would overlap the steps
            name = _json(window.role if window.step is None else f"step {window.step}")
            parts = {f"{part}_ns": ns for part, ns in window.account.components.parts().items()}
            args = _json({"used": window.used, "left_out": words(window.left_out) or None} | parts)
            pid = _DEVICE + device
            yield write(pid, _STEPS, name, window.start_ns, window.dur_ns, '"step"', args)


def _components(prepared: Prepared, device: int, write: Write) -> Iterator[str]:
    """Yield the intervals of each component of a device's time."""
    account = prepared.accounts[device]
    not_busy = Intervals.one(*account.rows.span).subtract(account.timeline.busy)
    intervals_of = {**account.timeline.parts, "start_up": account.start_up}
    intervals_of["idle"] = not_busy.subtract(account.start_up)
    for component in COMPONENTS:
        name = _json(_COMPONENT_NAMES.get(component, component))
        intervals = intervals_of[component]
        for start, end in zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True):
            yield write(_DEVICE + device, _COMPONENTS, name, start, end - start, name)


class _Threads(NamedTuple):
    """The shown rows of a device or process by table, the tid of each row, the names by tid."""

    rows: Mapping[str, IntArray]
    threads: Mapping[str, IntArray]
    labels: Mapping[int, str]


def _thread_column(shown: Iterable[_Threads], table: str, trace: Trace) -> IntArray:
    """Return the tid of each row of a table, -1 for rows that are not shown."""
    column = np.full(trace.table(table).num_rows, -1, dtype=np.int64)
    for threads in shown:
        column[threads.rows[table]] = threads.threads[table]
    return column


def _streams(prepared: Prepared, device: int, write: Write, shown: _Threads) -> Iterator[bytes]:
    """Yield the names of a device's threads, then its activities."""
    activities, rows = prepared.trace.activities, prepared.accounts[device].rows
    labels = [_json(name) for name in names(activities["name"])]
    categorised = prepared.linked.categorised
    categories = [_json(f"{category.top}.{category.sub}") for category in categorised.categories]
    yield _thread_labels(_DEVICE + device, shown.labels, 2)  # below steps and components
    columns = (
        shown.threads["activities"].tolist(),
        codes(activities["name"])[rows.row].tolist(),
        rows.start_ns.tolist(),
        (rows.end_ns - rows.start_ns).tolist(),
        categorised.category[rows.row].tolist(),
        _facts(prepared, rows.row),
    )
    yield from _pieces(
        write(_DEVICE + device, tid, labels[name], start, dur, categories[category], args)
        for tid, name, start, dur, category, args in zip(*columns, strict=True)
    )


def _threads(
    track: IntArray, start_ns: IntArray, end_ns: IntArray, *, nests: bool, word: str = "stream"
) -> tuple[IntArray, dict[int, str]]:
    """Return a tid per row, and the name of each tid.

    `track` is the stream (or another `word`) of each row. Rows of a track that overlap are on
    several threads, its lanes; with `nests`, rows may lie inside others on the same lane.
    """
    tracks, track_index = np.unique(track, return_inverse=True)
    lane = lanes_of(track_index, start_ns, end_ns, nests=nests)
    tids = _STREAMS + track_index * MOST_LANES + lane  # a track has room for MOST_LANES
    labels = {}
    for tid in distinct(tids).tolist():
        index, lane_number = divmod(tid - _STREAMS, MOST_LANES)
        number = int(tracks[index])
        label = f"{word} of no number" if number == ABSENT else f"{word} {number}"
        labels[tid] = f"{label}, lane {lane_number + 1}" if lane_number else label
    return tids, labels


def _facts(prepared: Prepared, rows: IntArray) -> Iterator[str]:
    """Yield the arguments of each activity as JSON: its op, bytes and correlation, if known."""
    activities, ops = prepared.trace.activities, prepared.trace.ops
    op_names = [_json(name) for name in names(ops["name"])]
    op_code = codes(ops["name"])
    op_rows = prepared.linked.links.op_of_activity[rows].tolist()
    sizes = numbers(activities["bytes"], ABSENT)[rows].tolist()
    correlations = numbers(activities["correlation"], ABSENT)[rows].tolist()
    for op_row, size, correlation in zip(op_rows, sizes, correlations, strict=True):
        facts = [f'"op":{op_names[op_code[op_row]]}'] if op_row >= 0 else []
        facts += [f'"bytes":{size}'] if size != ABSENT else []
        facts += [f'"correlation":{correlation}'] if correlation != ABSENT else []
        yield f"{{{','.join(facts)}}}"


def _host_threads(trace: Trace) -> dict[int, _Threads]:
    """Return the threads of processes with ops, calls or marks of host code of known length."""
    all_rows, processes = {}, {}
    for name in _HOST_TABLES:
        table = trace.table(name)
        is_shown = numbers(table["dur_ns"], ABSENT) != ABSENT
        if name == "marks":
            wanted = [k for k, kind in enumerate(names(table["kind"])) if kind in _HOST_KINDS]
            is_shown &= np.isin(codes(table["kind"]), wanted)
        all_rows[name] = np.flatnonzero(is_shown)
    for process in trace.processes["process"].to_pylist():
        own_rows = {
            name: rows[numbers(trace.table(name)["process"])[rows] == process]
            for name, rows in all_rows.items()
        }
        if not any(len(rows) for rows in own_rows.values()):
            continue

        # Marks, ops and calls of a thread nest in each other.
        start_ns = _of_all_tables(trace, own_rows, "start_ns")
        end_ns = start_ns + np.maximum(_of_all_tables(trace, own_rows, "dur_ns"), 0)
        track = _of_all_tables(trace, own_rows, "thread")
        tids, labels = _threads(track, start_ns, end_ns, nests=True, word="thread")
        begins = np.cumsum([len(rows) for rows in own_rows.values()])[:-1]
        threads = dict(zip(own_rows, np.split(tids, begins), strict=True))
        processes[process] = _Threads(own_rows, threads, labels)
    return processes


def _of_all_tables(trace: Trace, rows_of: Mapping[str, IntArray], column: str) -> IntArray:
    """Return a column of some rows of several tables, one table after the other."""
    values = [numbers(trace.table(name)[column], ABSENT)[rows] for name, rows in rows_of.items()]
    return np.concatenate(values)


def _host(trace: Trace, shown: _Threads, pid: int, write: Write) -> Iterator[bytes]:
    """Yield the names of a process's threads, then its marks, ops and calls."""
    yield _thread_labels(pid, shown.labels, 0)
    for name, rows in shown.rows.items():
        table = trace.table(name)
        labels = [_json(label) for label in names(table["name"])]
        kind = _json(_HOST_TABLES[name])
        columns = (
            shown.threads[name].tolist(),
            codes(table["name"])[rows].tolist(),
            numbers(table["start_ns"], ABSENT)[rows].tolist(),
            np.maximum(numbers(table["dur_ns"], ABSENT)[rows], 0).tolist(),
        )
        yield from _pieces(
            write(pid, tid, labels[label], start, dur, kind)
            for tid, label, start, dur in zip(*columns, strict=True)
        )


def _arrows(
    prepared: Prepared, origin_ns: int, thread_of_call: IntArray, thread_of_activity: IntArray
) -> Iterator[bytes]:
    """Yield an arrow from each call to each activity that it launched; thread -1 is not shown."""
    trace, call_of_activity = prepared.trace, prepared.linked.links.call_of_activity
    is_launched, is_shown = call_of_activity >= 0, thread_of_activity >= 0
    rows = np.flatnonzero(is_launched & is_shown)
    rows = rows[thread_of_call[call_of_activity[rows]] >= 0]
    call = call_of_activity[rows]
    columns = (
        rows,
        _HOST + numbers(trace.calls["process"])[call],
        thread_of_call[call],
        numbers(trace.calls["start_ns"])[call] - origin_ns,
        _DEVICE + numbers(trace.activities["device"])[rows],
        thread_of_activity[rows],
        numbers(trace.activities["start_ns"])[rows] - origin_ns,
    )
    arrows = zip(*(column.tolist() for column in columns), strict=True)
    yield from _pieces(
        f"{_arrow('s', number, pid, tid, called)},\n{_arrow('f', number, device, stream, started)}"
        for number, pid, tid, called, device, stream, started in arrows
    )


def _arrow(end: str, number: int, pid: int, tid: int, ns: int) -> str:
    """Return an end of an arrow as JSON: its start ("s") or its tip ("f")."""
    return (
        f'{{"ph":"{end}","bp":"e","id":{number},"pid":{pid},"tid":{tid},"ts":{_time(ns)},'
        '"name":"launch","cat":"launch"}'
    )
