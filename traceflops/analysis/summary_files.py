"""The file of a summary: an Arrow file of one value, the fields of `RankSummary` as MessagePack.

The fields are decoded by their types, so that a file cannot run code, and checked before use.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from operator import add
from types import MappingProxyType, NoneType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.analysis.rank_summary import RankSummary
from traceflops.analysis.summary_sums import HeldSummary, Shared
from traceflops.attribution.kernels import KERNEL_TOTALS
from traceflops.errors import InputError
from traceflops.facts import Fact, in_words
from traceflops.flops.mfu_waterfall import FAMILIES, UNSPLIT
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_groups import MOST_RANKS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.late_causes import KernelSums
from traceflops.table.columns import ABSENT, LIMIT_NS, IntArray
from traceflops.table.packed import ARROW_UNREADABLE, LARGEST, check_trace, checked, require
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Trace
from traceflops.timeline.records import COMPONENTS, EMPTY_ACCOUNT, Account
from traceflops.windows.records import DeviceReport

_KEY: Final = b"traceflops"
_SCHEMA: Final = {_KEY: b"summary/5"}  # raise the number with each change of RankSummary
_ANY_VERSION: Final = re.compile(rb"summary/\d{1,9}\0")
_FILE: Final = {"summary": pa.large_binary(), "failed": pa.string()}
_ARROW: Final = b"ARROW1"
_MOST_BYTES: Final = 2_000_000
_MOST_RECORDS: Final = 1 << 20
_ALONE: Final = pa.ipc.IpcReadOptions(use_threads=False)
"""Little data is read faster without threads."""
_DTYPES: Final = {"<i8", "|b1"}


def is_summary(head: bytes) -> bool:
    """Return whether a file that begins with `head` may be a summary."""
    return head.startswith(_ARROW) and _ANY_VERSION.search(head) is not None


def encoded(summary: RankSummary | str) -> bytes:
    """Return a summary as a file of at most _MOST_BYTES, or the name of a file that has none."""
    if isinstance(summary, str):
        return _file(None, summary)
    most = _MOST_RECORDS
    content = _file(summary.compact(most, keeps_work=True))
    while len(content) > _MOST_BYTES and most > 1:
        content = _file(summary.compact(most, keeps_work=False))
        most //= 2
    return content


def packed(summary: RankSummary) -> bytes:
    """Return a whole summary as bytes, for a process on this machine."""
    return msgspec.msgpack.encode(summary, enc_hook=_plain)


def unpacked(data: Any) -> RankSummary:
    """Return the summary in bytes."""
    return msgspec.msgpack.decode(data, type=RankSummary, dec_hook=_restored)


def _file(summary: RankSummary | None, failed: str | None = None) -> bytes:
    """Return a file of one row: a summary, or the name of a file that has none."""
    data = packed(summary) if summary is not None else None
    columns = {"summary": pa.array([data], pa.large_binary()), "failed": pa.array([failed])}
    table = pa.table({name: column.cast(_FILE[name]) for name, column in columns.items()})
    table = table.replace_schema_metadata(_SCHEMA)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decoded(content: bytes, name: str) -> RankSummary | str:
    """Return the summary in a file, or an unreadable file's name. Raises InputError."""
    try:
        table = checked(_table(content, name))
        data = table["summary"][0].as_buffer()
        if data is None:
            return str(table["failed"][0])
        summary = unpacked(data)
        check_summary(summary)
    except (*ARROW_UNREADABLE, IndexError, msgspec.MsgspecError, ArithmeticError, RecursionError):
        raise _unreadable("damaged summary", name) from None
    return summary


def held(data: bytes, shared: Shared) -> HeldSummary:
    """Return what to hold of the summary in bytes; all of it can be decoded again."""
    return HeldSummary.of(unpacked(data), shared, partial(unpacked, data))


def held_file(content: bytes, name: str, shared: Shared) -> HeldSummary | str:
    """Return what to hold of the summary in a file; names and errors are as in `decoded`."""
    part = decoded(content, name)
    if isinstance(part, str):
        return part

    def load() -> RankSummary:
        return unpacked(_table(content, name)["summary"][0].as_buffer())  # it is checked already

    return HeldSummary.of(part, shared, load)


def _table(content: bytes, name: str) -> pa.Table:
    """Return the table of a file. Raises InputError for another version's."""
    reader = pa.ipc.open_file(pa.py_buffer(content), options=_ALONE)
    if (reader.schema.metadata or {})[_KEY] != _SCHEMA[_KEY]:
        raise _unreadable("summary written by another version of traceflops", name)
    return reader.read_all()


def _unreadable(what: str, name: str) -> InputError:
    return InputError(f"{what}: {name}", "write it again with traceflops reduce")


def _plain(value: Any) -> object:
    """Return a value as one that MessagePack supports; `_restored` is the inverse.

    A fact becomes a dict of code and values, a fraction [numerator, denominator], a mapping a dict,
    an array [dtype, shape, bytes], a table the bytes of an Arrow stream.
    """
    if isinstance(value, Fact):
        return _plain_value(value)
    if isinstance(value, Fraction):
        return value.as_integer_ratio()
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    assert isinstance(value, pa.Table), type(value)
    sink = pa.BufferOutputStream()
    bare = pa.schema([field.remove_metadata() for field in value.schema])
    with pa.ipc.new_stream(sink, bare) as writer:
        writer.write_table(pa.Table.from_arrays(value.columns, schema=bare))
    return bytes(sink.getvalue())


def _plain_value(value: Any) -> Any:
    """Return a value of a fact in a form that tells its type."""
    if isinstance(value, Fact):
        return {"code": value.code, "values": {k: _plain_value(v) for k, v in value.values.items()}}
    if isinstance(value, Fraction):
        return {"ratio": value.as_integer_ratio()}
    return tuple(map(_plain_value, value)) if isinstance(value, tuple) else value


def _value(data: Any) -> Any:
    """Return the value of a fact that `_plain_value` encoded as `data`."""
    if isinstance(data, list):
        return tuple(map(_value, data))
    if not isinstance(data, dict):
        return data
    if "ratio" in data:
        return Fraction(*data["ratio"])
    return Fact(data["code"], {str(name): _value(value) for name, value in data["values"].items()})


def _restored(kind: Any, data: Any) -> Any:
    """Return the value of type `kind` that `_plain` encoded as `data`.

    Fraction: [numerator, denominator]. Fact: as `_value` reads it. Table: bytes of an Arrow stream.
    Any other kind is an array: [dtype, shape, bytes]. Damaged data raise the errors of `decoded`.
    """
    if kind is Fraction:
        return Fraction(*data)
    if kind is Fact:
        fact = _value(data)
        require(isinstance(fact, Fact))
        in_words(fact)  # raises if the fact is damaged
        return fact
    if kind is pa.Table:
        require(isinstance(data, bytes))
        return checked(pa.ipc.open_stream(data).read_all())
    dtype, shape, content = data
    require(dtype in _DTYPES and all(side >= 0 for side in shape))
    return np.frombuffer(content, dtype).reshape(shape)


_SIGNED: Final = frozenset(
    {"start_ns", "end_ns", "origin_unix_ns", "step", "before_step", "seen", "used", "long_steps"}
)
_FAMILIES: Final = (*FAMILIES, UNSPLIT)
_WITHOUT_NUMBERS: Final = frozenset({NoneType, str, bool, float, pa.Table})
_ELSEWHERE: Final = (Trace, CommRecords, KernelSums)
_OF_GROUPS: Final = ("which", "call", "stream", "other_side")
_OF_RECORDS: Final = (
    *("place", "row", "kind", "group", "peer", "sequence", "elements", "received", "bytes"),
    *("step", "start_ns", "end_ns", "busy_ns"),
)
_OF_LEADS: Final = ("lead_ns", "is_starved", "phase", "count")
_MOST_MEMBERS: Final = 1 << 22  # the most ranks in all groups of one rank together
_BY_NAME: Final = ("count", "time_ns", "threads", "given")


def check_summary(summary: RankSummary) -> None:
    """Raise ValueError if figures of a summary are impossible, or contradict each other."""
    for name in ("processes", "devices"):
        checked(summary.trace.table(name), arrow_schema(name))
    check_trace(summary.trace)
    require(not summary.trace.jobs)
    checked(summary.kernels, KERNEL_TOTALS)
    devices = summary.trace.devices.num_rows
    # Check each number by the name of its field; `_ELSEWHERE` are the types with other checks.
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    _find_numbers(summary, "", by_name)
    counts = {"device": devices, "process": summary.trace.processes.num_rows}
    for field, values in by_name.items():
        # Times have a limit; other numbers must fit in 64 bits.
        stop = counts.get(field, LIMIT_NS if field.endswith("_ns") else 2 * LARGEST)
        require((-LIMIT_NS if field in _SIGNED else 0) <= min(values) and max(values) < stop)
    for device in summary.reports:
        _check_device(device)
    reported = [device.device for device in summary.reports]
    require(sorted(reported) == sorted(summary.records.devices) == sorted(set(reported)))
    activities = sum(device.chosen.activities for device in summary.reports)
    require(sum(summary.kernels["count"].to_pylist()) == activities)
    _check_records(summary.records)
    # The figures of all steps together, then of each long step.
    reports = len(reported)
    choices = 1 + len(summary.long_steps)
    require(len(summary.work) == len(summary.idle_of) == choices)
    require(all(len(culprits) == reports for culprits in summary.idle_of))
    for sums in summary.work:
        require(len(set(sums.names)) == len(sums.names) and sums.received.shape == (reports,))
        for column in (*(getattr(sums, column_name) for column_name in _BY_NAME), sums.received):
            require(_within(column, 0, LARGEST) and _sums_fit(column))
        shapes = {getattr(sums, column_name).shape for column_name in _BY_NAME}
        require(shapes == {(reports, len(sums.names))})
    if summary.launches is not None:
        leads = summary.launches.leads
        _check_columns([getattr(leads, name) for name in _OF_LEADS])
        require(len(leads.count) and _within(leads.count, 1, LARGEST) and _sums_fit(leads.count))
        require(set(summary.launches.devices) <= set(range(devices)))
    _check_utilisation(summary, set(reported))


def _check_device(device: DeviceReport) -> None:
    """Check that the parts of a device add up, and that its windows are in order inside it."""
    whole = device.whole
    exposed_ns, hidden_ns = whole.exposed_communication_ns, whole.hidden_communication_ns
    require(exposed_ns + hidden_ns == whole.communication.union_ns)
    _check_account(whole.account, whole.span_ns)
    components = whole.account.components
    require(components.idle_ns + components.start_up_ns == whole.idle_ns)
    require(whole.busy_ns <= whole.sum_ns)
    # The first window may begin at the mark of its step, before all work.
    last_ns = min([whole.start_ns, *(window.start_ns for window in device.windows[:1])])
    for window in device.windows:
        is_range = window.role == "range"  # a chosen time lies across the other windows
        since_ns = whole.start_ns if is_range else last_ns
        require(since_ns <= window.start_ns <= window.end_ns <= whole.end_ns)
        _check_account(window.account, window.dur_ns)
        last_ns = last_ns if is_range else window.end_ns
    used = [window.account for window in device.windows if window.used]
    require(device.chosen == reduce(add, used, EMPTY_ACCOUNT))
    for gap in device.gaps:
        require(gap.device == device.device)
        require(gap.causes.idle_ns + gap.start_up_ns == gap.dur_ns)
        require(min(gap.causes.launch_latency_parts().values()) >= 0)


def _check_utilisation(summary: RankSummary, reported: set[int]) -> None:
    """Check peaks, FLOPs and bytes; `reported` are the devices that have a report."""
    require(summary.budgets or summary.lacks)  # without MFU there must be a reason
    of_devices = {peak.device for peak in summary.peaks}
    require(not reported or of_devices == reported)  # a graph capture reports no device
    require(all(rate > 0 for peak in summary.peaks for rate in peak.rates.values()))
    for cell in summary.cells:
        require(cell.device in reported and cell.component in COMPONENTS)
        require(cell.line.split(".")[0] in _FAMILIES)
    for budget in summary.budgets:
        require(set(budget.components) <= set(COMPONENTS))
        require(budget.uncounted_ns <= budget.components.get("compute", 0))
        for work in budget.work:
            require(work.family in _FAMILIES and work.component in COMPONENTS)
            require(budget.peaks.get(work.dtype, 0) > 0)
    for roof in (summary.roofs.memory, summary.roofs.compute):
        require(min(roof.excess_ns, roof.bytes_ns) >= 0)


def _find_numbers(value: Any, name: str, by_name: Mapping[str, list[int]]) -> None:
    """Add all integers in a value called `name` to `by_name`, under the names of their fields."""
    kind = type(value)
    if kind is int:
        by_name[name].append(value)
    elif kind in _WITHOUT_NUMBERS:
        return
    elif kind is tuple:
        for item in value:
            _find_numbers(item, name, by_name)
    elif issubclass(kind, Struct):
        for field in kind.__struct_fields__ if kind not in _ELSEWHERE else ():
            item = getattr(value, field)
            if type(item) is int:  # most are: this spares a call
                by_name[field].append(item)
            else:
                _find_numbers(item, field, by_name)
    elif issubclass(kind, Mapping):
        for item in value.values():
            _find_numbers(item, name, by_name)


def _check_account(account: Account, window_ns: int) -> None:
    components, causes = account.components, account.idle_causes
    require(components.window_ns == window_ns and causes.idle_ns == components.idle_ns)
    require(min(causes.launch_latency_parts().values()) >= 0)
    require(account.launched_activities <= account.activities)


def _check_records(records: CommRecords) -> None:
    """Check the collectives: columns of equal length, and values whose sums fit an int64."""
    ranks = len(records.ranks)
    require(len(records.alone) == ranks)
    require(len(records.work) == len(records.devices))
    require(len(records.devices) in (0, ranks))  # ranges projected on GPUs have no devices
    columns = [getattr(records, name) for name in _OF_RECORDS]
    _check_columns([*columns, *(getattr(records.told, name) for name in _OF_GROUPS)])
    require(_within(records.place, 0, ranks) and _within(records.kind, -1, len(KINDS)))
    require(_within(records.told.which, 0, len(records.told.known)))
    lists = (listed for _, listed, *_ in records.told.known if isinstance(listed, tuple))
    runs = [range(*run) for listed in lists for run in listed]
    require(all(run and 0 <= end < MOST_RANKS for run in runs for end in (run[0], run[-1])))
    require(sum(map(len, runs)) < _MOST_MEMBERS)
    times = (records.start_ns, records.end_ns, records.busy_ns)
    require(all(_within(time, -LIMIT_NS, LIMIT_NS) for time in times))
    require((records.end_ns >= records.start_ns).all() and (records.busy_ns >= 0).all())
    for name in ("elements", "received", "bytes"):
        amounts = getattr(records, name)
        amounts = amounts[amounts != ABSENT]
        require(_within(amounts, -1, LARGEST) and _sums_fit(amounts))
    for intervals in (*records.alone, *records.work):
        _check_columns([intervals.start_ns, intervals.end_ns])
        edges = np.stack([intervals.start_ns, intervals.end_ns], axis=1).ravel()
        require(_within(edges, -LIMIT_NS, LIMIT_NS) and (np.diff(edges) > 0).all())


def _check_columns(columns: Sequence[IntArray]) -> None:
    require(len({column.shape for column in columns}) == 1 and columns[0].ndim == 1)


def _within(values: IntArray, least: int, stop: int) -> bool:
    return not values.size or (int(values.min()) >= least and int(values.max()) < stop)


def _sums_fit(values: IntArray) -> bool:
    return float(values.sum(dtype=np.float64)) < LARGEST
