"""A trace of any format as trace-event JSON that the Perfetto UI and chrome://tracing open.

Findings come first, over the windows that they are about. Each device is a process: its steps, the
components of its time, its outstanding launches, then its streams. Each process of the job is one
too: its threads with annotations, ops and calls. Arrows lead from calls to what they launched.
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
from traceflops.drawing.lane_stacking import MOST_LANES, lanes_of
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
"""Where the numbers of devices and those of the job's processes begin; 0 is the idle process."""

_FINDINGS = 999_999  # the process of the findings; no job has as many devices

_STEPS, _COMPONENTS, _STREAMS = 1, 2, 1000
_HOST_TABLES: Final = {"marks": "mark", "ops": "op", "calls": "call"}
_HOST_KINDS: Final = (*("annotation", "module", "python", "system", "sync", "overhead", "instant"),)
_CALLED: Final = {"communication": "exposed communication", "start_up": "start-up"}
_COMPRESSION: Final = 3
_ROWS_AT_ONCE: Final = 50_000

Write = Callable[..., str]  # writes a range, see `_range`


def check_suffix(target: Path) -> None:
    """Refuse a name by which nobody would know what is in the file."""
    if not target.name.lower().endswith(SUFFIXES):
        raise UsageError(
            f"cannot write a trace for Perfetto as {target.suffix or 'a file without suffix'}: "
            f"{target}",
            f"give a name that ends in {' or '.join(SUFFIXES)}",
        )


def render_perfetto(
    prepared: Prepared, findings: Sequence[Finding] = (), *, packed: bool = True
) -> Iterator[bytes]:
    """Yield the document in pieces, compressed or not; its bytes depend on the trace alone."""

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
    packer = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, 31)  # 31: as gzip, without a time
    for piece in document():
        yield packer.compress(piece)
    yield packer.flush()


def _events(prepared: Prepared, findings: Sequence[Finding]) -> Iterator[bytes]:
    """Yield events, some at a time, as JSON without the brackets of their list."""
    trace = prepared.trace
    tables = [trace.activities, *(trace.table(name) for name in _HOST_TABLES)]
    origin_ns = min((int(numbers(t["start_ns"]).min()) for t in tables if t.num_rows), default=0)
    write = partial(_range, origin_ns)
    # The threads of each device: one per stream, more where its activities overlap.
    stream, streams = numbers(trace.activities["stream"], ABSENT), {}
    for device, account in prepared.accounts.items():
        rows = account.rows
        thread, labels = _threads(stream[rows.row], rows.start_ns, rows.end_ns, nests=False)
        streams[device] = _Threads({"activities": rows.row}, {"activities": thread}, labels)
    processes = _host_threads(trace)
    of_calls = _thread_column(processes.values(), "calls", trace)
    of_activities = _thread_column(streams.values(), "activities", trace)
    yield from _found(prepared, findings, write)
    yield from _devices(prepared, write, origin_ns, streams)
    for row in trace.processes.to_pylist():
        if row["process"] in processes:
            rank, pid = row["rank"], _HOST + row["process"]
            name = f"rank {rank}, CPU" if rank is not None else f"CPU: {row['file']}"
            yield _label("process", pid, 0, name, pid).encode()
            yield from _host(trace, processes[row["process"]], pid, write)
    yield from _arrows(prepared, origin_ns, of_calls, of_activities)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _time(ns: int) -> str:
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
    """Return an event; `name`, `category` and `args` are JSON already."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{_time(start_ns - origin_ns)},'
        f'"dur":{_time(dur_ns)},"name":{name},"cat":{category},"args":{args}}}'
    )


def _label(what: str, pid: int, tid: int, name: str, order: int) -> str:
    """Return the events that name a process or thread and say where it stands."""
    at = f'"ph":"M","pid":{pid},"tid":{tid},"ts":0'
    return (
        f'{{{at},"name":"{what}_name","args":{{"name":{_json(name)}}}}},\n'
        f'{{{at},"name":"{what}_sort_index","args":{{"sort_index":{order}}}}}'
    )


def _thread_labels(pid: int, named: Mapping[int, str], first: int) -> bytes:
    return _joined(
        _label("thread", pid, tid, text, place)
        for place, (tid, text) in enumerate(named.items(), first)
    )


def _joined(events: Iterable[str]) -> bytes:
    return ",\n".join(events).encode()


def _pieces(events: Iterator[str]) -> Iterator[bytes]:
    """Yield events some at a time, so that no more of them are held."""
    while piece := list(islice(events, _ROWS_AT_ONCE)):
        yield _joined(piece)


def _found(prepared: Prepared, findings: Sequence[Finding], write: Write) -> Iterator[bytes]:
    """Yield the findings, a track each, over all the windows that they are about."""
    used = [one for windows in prepared.windows.values() for one in windows if one.used]
    if not used or not findings:
        return
    start_ns, end_ns = min(one.start_ns for one in used), max(one.end_ns for one in used)
    yield _label("process", _FINDINGS, 0, "findings", 0).encode()
    for place, one in enumerate(findings, 1):
        args: dict[str, object] = {"severity": one.severity, "share": one.share}
        args["mfu_without"] = one.mfu_without
        gain = gain_object(one.gain) if one.gain is not None else {}
        args |= {"remedy": one.remedy, **gain} if one.remedy else {}  # the gain is the remedy's
        sentence, length = _json(one.sentence), end_ns - start_ns
        yield _label("thread", _FINDINGS, place, one.rule, place).encode()
        yield write(_FINDINGS, place, sentence, start_ns, length, '"finding"', _json(args)).encode()


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
        steps, components = [], []
        for window in prepared.windows[device]:
            if window.role == "range":
                continue  # it lies across the steps
            text = _json(window.role if window.step is None else f"step {window.step}")
            parts = {f"{part}_ns": ns for part, ns in window.account.components.parts().items()}
            args = _json({"used": window.used, "left_out": words(window.left_out) or None} | parts)
            steps.append(write(pid, _STEPS, text, window.start_ns, window.dur_ns, '"step"', args))
        account = prepared.accounts[device]
        times = {**account.timeline.parts, "start_up": account.start_up}
        rest = Intervals.one(*account.rows.span).subtract(account.timeline.busy)
        times["idle"] = rest.subtract(account.start_up)  # start-up is no idle time
        for component in COMPONENTS:
            text, spans = _json(_CALLED.get(component, component)), times[component]
            for low, high in zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True):
                components.append(write(pid, _COMPONENTS, text, low, high - low, text))
        yield _joined(steps)
        yield _joined(components)
        # How many launches are called and not yet started, each time that this changes.
        changed_ns, counts = outstanding_launches(account)
        yield from _pieces(
            f'{{"ph":"C","pid":{pid},"tid":0,"ts":{_time(at_ns - origin_ns)},'
            f'"name":"outstanding launches","args":{{"launches":{count}}}}}'
            for at_ns, count in zip(changed_ns.tolist(), counts.tolist(), strict=True)
        )
        yield from _streams(prepared, device, write, streams[device])


class _Threads(NamedTuple):
    """By table the rows shown of a device or process, a thread per row; the names of threads."""

    rows: Mapping[str, IntArray]
    threads: Mapping[str, IntArray]
    labels: Mapping[int, str]


def _thread_column(shown: Iterable[_Threads], table: str, trace: Trace) -> IntArray:
    """Return the thread of each row of a table, -1 for rows that no thread shows."""
    column = np.full(trace.table(table).num_rows, -1, dtype=np.int64)
    for some in shown:
        column[some.rows[table]] = some.threads[table]
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
    """Return a thread number per row, and what each is called: a stream, or another `word`."""
    # Each track has MOST_LANES numbers: rows that overlap take further lanes, nested ones do not.
    tracks, place = np.unique(track, return_inverse=True)
    lane = lanes_of(place, start_ns, end_ns, nests=nests)
    thread = _STREAMS + place * MOST_LANES + lane
    named = {}
    for tid in distinct(thread).tolist():
        own = int(tracks[(tid - _STREAMS) // MOST_LANES])
        text = f"{word} of no number" if own == ABSENT else f"{word} {own}"
        more = (tid - _STREAMS) % MOST_LANES
        named[tid] = f"{text}, lane {more + 1}" if more else text
    return thread, named


def _facts(prepared: Prepared, rows: IntArray) -> Iterator[str]:
    """Yield what is said of each activity beside its name, as JSON."""
    activities, ops = prepared.trace.activities, prepared.trace.ops
    op_names = [_json(name) for name in names(ops["name"])]
    op_code = codes(ops["name"])
    op = prepared.linked.links.op_of_activity[rows].tolist()
    sizes = numbers(activities["bytes"], ABSENT)[rows].tolist()
    correlations = numbers(activities["correlation"], ABSENT)[rows].tolist()
    for row, size, correlation in zip(op, sizes, correlations, strict=True):
        facts = [f'"op":{op_names[op_code[row]]}'] if row >= 0 else []
        facts += [f'"bytes":{size}'] if size != ABSENT else []
        facts += [f'"correlation":{correlation}'] if correlation != ABSENT else []
        yield f"{{{','.join(facts)}}}"


def _host_threads(trace: Trace) -> dict[int, _Threads]:
    """Return the threads of each process with ops, calls or marks of host code of known length."""
    rows_of, processes = {}, {}
    for name in _HOST_TABLES:
        table = trace.table(name)
        known = numbers(table["dur_ns"], ABSENT) != ABSENT
        if name == "marks":
            wanted = [k for k, kind in enumerate(names(table["kind"])) if kind in _HOST_KINDS]
            known &= np.isin(codes(table["kind"]), wanted)
        rows_of[name] = np.flatnonzero(known)
    for number in trace.processes["process"].to_pylist():
        picked = {
            name: rows[numbers(trace.table(name)["process"])[rows] == number]
            for name, rows in rows_of.items()
        }
        if any(len(rows) for rows in picked.values()):
            # Rows of one thread nest across tables.
            start_ns, dur_ns, track = (
                np.concatenate(
                    [
                        numbers(trace.table(name)[column], ABSENT)[rows]
                        for name, rows in picked.items()
                    ]
                )
                for column in ("start_ns", "dur_ns", "thread")
            )
            end_ns = start_ns + np.maximum(dur_ns, 0)
            thread, labels = _threads(track, start_ns, end_ns, nests=True, word="thread")
            begins = np.cumsum([len(rows) for rows in picked.values()])[:-1]
            threads = dict(zip(picked, np.split(thread, begins), strict=True))
            processes[number] = _Threads(picked, threads, labels)
    return processes


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
    prepared: Prepared, origin_ns: int, of_calls: IntArray, of_activities: IntArray
) -> Iterator[bytes]:
    """Yield an arrow from each call to each activity that it launched; a thread of -1 is none."""
    trace = prepared.trace
    call = prepared.linked.links.call_of_activity
    rows = np.flatnonzero((call >= 0) & (of_activities >= 0))
    rows = rows[of_calls[call[rows]] >= 0]
    call = call[rows]
    columns = (
        rows,
        _HOST + numbers(trace.calls["process"])[call],
        of_calls[call],
        numbers(trace.calls["start_ns"])[call] - origin_ns,
        _DEVICE + numbers(trace.activities["device"])[rows],
        of_activities[rows],
        numbers(trace.activities["start_ns"])[rows] - origin_ns,
    )
    yield from _pieces(
        f"{_arrow('s', number, pid, tid, start)},\n{_arrow('f', number, device, stream, begun)}"
        for number, pid, tid, start, device, stream, begun in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


def _arrow(end: str, number: int, pid: int, tid: int, ns: int) -> str:
    """Return one end of an arrow: s where it begins, f where it leads to."""
    return (
        f'{{"ph":"{end}","bp":"e","id":{number},"pid":{pid},"tid":{tid},"ts":{_time(ns)},'
        '"name":"launch","cat":"launch"}'
    )
