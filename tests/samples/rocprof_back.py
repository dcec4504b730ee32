"""Reads what the rocprof writers wrote with plain code that shares nothing with any reader."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from tests.samples.perfetto_back import Back

Row = dict[str, str]


@dataclass
class Seen:
    """What stands in the files, each record as often as it does.

    Kernels as (process, name, start, end, work-items, work-items of a group), copies as (process,
    direction, start, end), calls, collectives and markers as (process, name, start, end). A
    process is None where the format does not give it. `asked` are (whose, start of the work,
    correlation id), `began` starts of calls by (whose, id), `bytes` those of copies, `counters`
    sums by kernel and name, `devices` the numbers of the devices that kernels ran on.
    """

    kernels: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    copies: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    calls: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    collectives: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    markers: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    asked: set[tuple[Any, int, int]] = field(default_factory=set)
    began: dict[tuple[Any, int], int] = field(default_factory=dict)
    bytes: Counter[int] = field(default_factory=Counter)
    counters: dict[tuple[Any, int], dict[str, float]] = field(default_factory=dict)
    streams: set[Any] = field(default_factory=set)
    devices: set[Any] = field(default_factory=set)

    @property
    def links(self) -> set[tuple[int, int]]:
        """Return (start of the work, start of its call, or its id where there is no call)."""
        return {(work, self.began.get((whose, id_), id_)) for whose, work, id_ in self.asked}


def rows_of(path: Path, *, empty_line: bool = False) -> list[Row]:
    """Return the rows of a CSV file; `empty_line` says that one follows the header."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if empty_line:
        assert rows.pop(0) == []
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def files_of(folder: Path, end: str) -> Iterator[tuple[Path, int | None]]:
    """Yield the files whose names end so, by name, with the number that stands before."""
    for path in sorted(folder.rglob(f"*{end}")):
        number = path.name.split("_")[0]
        yield path, int(number) if number.isdecimal() else None


def from_v1_csv(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, "results.csv"):
        for number, row in enumerate(rows_of(path)):
            assert int(row["Index"]) == number
            _v1_kernel(seen, row, number + 1)
    return seen


def _v1_kernel(seen: Seen, row: Row, dispatch: int) -> None:
    assert int(row["DispatchNs"]) <= int(row["BeginNs"]) <= int(row["EndNs"])
    assert int(row["EndNs"]) <= int(row["CompleteNs"])
    if "DurationNs" in row:
        assert int(row["DurationNs"]) == int(row["EndNs"]) - int(row["BeginNs"])
    seen.kernels[
        int(row["pid"]),
        row["KernelName"],
        int(row["BeginNs"]),
        int(row["EndNs"]),
        int(row["grd"]),
        int(row["wgr"]),
    ] += 1
    # What stands for the call is the moment at which the kernel was put into its queue.
    seen.asked.add((int(row["pid"]), int(row["BeginNs"]), int(row["DispatchNs"])))
    seen.streams.add(row["queue-id"])
    seen.devices.add(int(row["gpu-id"]))
    _count(seen, int(row["pid"]), dispatch, row)


def _count(seen: Seen, process: int, dispatch: int, row: Row) -> None:
    found = {n: float(v) for n, v in row.items() if n.startswith(("SQ_", "TCC_"))}
    if found:
        seen.counters[process, dispatch] = found


def from_v1_json(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, "results.json"):
        for number, event in enumerate(_v1_events(path), start=1):
            assert event["ph"] == "X"
            _v1_kernel(seen, event["args"], number)
    return seen


def _v1_events(path: Path) -> list[dict[str, Any]]:
    first, *events = json.loads(path.read_text())["traceEvents"]
    assert first == {}
    return [event for event in events if event["ph"] != "M"]


def from_v1_api_json(folder: Path) -> Seen:
    seen = Seen()
    places: dict[int, Counter[tuple[Any, ...]]] = {0: seen.markers, 1: seen.copies, 2: seen.calls}
    for path, _ in files_of(folder, "results.json"):
        for event in _v1_events(path):
            if event["ph"] != "X":
                continue
            args, section = event["args"], event["pid"]
            times = int(args["BeginNs"]), int(args["EndNs"])
            record = int(args["pid"]), args["Name"], *times
            if section >= 6:
                seen.kernels[(*record, None, None)] += 1
                seen.devices.add(int(args["dev-id"]))
            elif args["Name"] == "FillBuffer":
                seen.kernels[(*record, None, None)] += 1
            else:
                places[section][record] += 1
            if section == 1 or section >= 6:
                seen.streams.add(args["stream-id"])
            if args["Name"] == "hipMemcpyAsync":
                # The copy's size stands with the call that asked for it.
                seen.bytes[int(args["args"].split("sizeBytes(")[1].split(")")[0])] += 1
            assert int(event["ts"]) == times[0] // 1000
    return seen


def v1_arrows(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return begin and end of each arrow of a v1 JSON file."""
    events = _v1_events(path)
    begins, ends = (
        {event["id"]: event for event in events if event["ph"] == phase} for phase in ("s", "t")
    )
    assert begins.keys() == ends.keys()
    return [(begins[number], ends[number]) for number in begins]


def from_v1_db(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, "results.db"):
        with closing(sqlite3.connect(path)) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute('SELECT * FROM KERN ORDER BY "Index"').fetchall()
        for number, row in enumerate(rows, start=1):
            plain = {key: str(row[key]) for key in row.keys()}  # noqa: SIM118
            name = plain["KernelName"]
            assert name[0] == name[-1] == '"'
            _v1_kernel(seen, plain | {"KernelName": name[1:-1]}, number)
    return seen


def from_v1_api_db(folder: Path) -> Seen:
    seen = Seen()
    tables = {"rocTX": seen.markers, "HIP": seen.calls, "OPS": seen.kernels, "COPY": seen.copies}
    for path, _ in files_of(folder, "results.db"):
        with closing(sqlite3.connect(path)) as database:
            database.row_factory = sqlite3.Row
            made = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            for table in tables.keys() & made:
                place = tables[table]
                for row in database.execute(f"SELECT * FROM {table}"):
                    _v1_row(seen, table, place, row)
    return seen


def _v1_row(seen: Seen, table: str, place: Counter[tuple[Any, ...]], row: sqlite3.Row) -> None:
    pid, name, start, end = (row[column] for column in ("pid", "Name", "BeginNs", "EndNs"))
    if table == "HIP":
        seen.began[pid, row["Index"]] = start
    elif table != "rocTX":
        assert row["DurationNs"] == end - start
        seen.asked.add((pid, start, row["Index"]))
        seen.streams.add(row["stream-id"])
    if table == "OPS":
        seen.devices.add(row["dev-id"])
    if table == "OPS" or name == "FillBuffer":
        seen.kernels[pid, name, start, end, None, None] += 1
    else:
        place[pid, name, start, end] += 1


def from_v2(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, ".csv"):
        what, process = path.stem.rsplit("_", 1)
        _V2[what](seen, int(process), rows_of(path, empty_line=True))
    return seen


def _v2_kernels(seen: Seen, process: int, rows: list[Row]) -> None:
    for row in rows:
        assert int(row["PID"]) == process
        start = int(row["Start_Timestamp"])
        grid = row["GRD"] if "GRD" in row else row["Grid_Size"]
        group = row["WGR"] if "WGR" in row else row["Workgroup_Size"]
        times = start, int(row["End_Timestamp"])
        seen.kernels[process, row["Kernel_Name"], *times, int(grid), int(group)] += 1
        seen.asked.add((process, start, int(row["Correlation_ID"])))
        seen.streams.add(row["Queue_ID"])
        seen.devices.add(int(row["GPU_ID"]))
        _count(seen, process, int(row["Dispatch_ID"]), row)


def _v2_operations(seen: Seen, process: int, rows: list[Row]) -> None:
    for row in rows:
        times = int(row["Start_Timestamp"]), int(row["Stop_Timestamp"])
        if row["Operation"].startswith("Copy"):
            seen.copies[process, row["Operation"], *times] += 1
        else:
            name = row["Kernel_Name"] or row["Operation"]
            seen.kernels[process, name, *times, None, None] += 1
        seen.asked.add((process, times[0], int(row["Correlation_ID"])))


def _v2_calls(seen: Seen, process: int, rows: list[Row]) -> None:
    for row in rows:
        times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
        seen.calls[process, row["Function"], *times] += 1
        seen.began[process, int(row["Correlation_ID"])] = times[0]


def _v2_markers(seen: Seen, process: int, rows: list[Row]) -> None:
    open_: dict[str, Row] = {}
    for row in rows:
        if row["ROCTX_ID"] not in open_:
            open_[row["ROCTX_ID"]] = row
            continue
        push = open_.pop(row["ROCTX_ID"])
        assert row["Message"] == ""
        times = int(push["Timestamp"]), int(row["Timestamp"])
        seen.markers[process, push["Message"], *times] += 1
    assert not open_


_V2: dict[str, Callable[[Seen, int, list[Row]], None]] = {
    "results": _v2_kernels,
    "hcc_ops_trace": _v2_operations,
    "hip_api_trace": _v2_calls,
    "roctx_trace": _v2_markers,
}


def from_v3_csv(folder: Path) -> Seen:
    seen = Seen()
    for path, process in files_of(folder, "kernel_trace.csv"):
        for row in rows_of(path):
            assert row["Kind"] == "KERNEL_DISPATCH"
            sizes = [
                prod(int(row[f"{what}_Size_{axis}"]) for axis in "XYZ")
                for what in ("Grid", "Workgroup")
            ]
            times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
            seen.kernels[process, row["Kernel_Name"], *times, *sizes] += 1
            seen.asked.add((whose(row, process), times[0], int(row["Correlation_Id"])))
            seen.streams.add(row.get("Stream_Id", row["Queue_Id"]))
            seen.devices.add(row["Agent_Id"])
    for path, process in files_of(folder, "memory_copy_trace.csv"):
        for row in rows_of(path):
            assert row["Source_Agent_Id"] != row["Destination_Agent_Id"]
            times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
            seen.copies[process, row["Direction"], *times] += 1
            seen.asked.add((whose(row, process), times[0], int(row["Correlation_Id"])))
    _v3_ranges(folder, seen)
    for path, _ in files_of(folder, "counter_collection.csv"):
        for row in rows_of(path):
            key = int(row["Process_Id"]), int(row["Dispatch_Id"])
            seen.counters.setdefault(key, {})[row["Counter_Name"]] = float(row["Counter_Value"])
    return seen


def _v3_ranges(folder: Path, seen: Seen) -> None:
    for path, process in files_of(folder, "_api_trace.csv"):
        for row in rows_of(path):
            times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
            place = _place(seen, row["Domain"])
            place[int(row["Process_Id"]), row["Function"], *times] += 1
            if place is seen.calls:
                seen.began[whose(row, process), int(row["Correlation_Id"])] = times[0]


def whose(row: Row, process: int | None) -> str | int | None:
    return row.get("Guid", process)


def _place(seen: Seen, domain: str) -> Counter[tuple[Any, ...]]:
    places = {"HIP": seen.calls, "MARKER": seen.markers, "RCCL": seen.collectives}
    return places[domain.split("_")[0]]


def from_v3_json(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, "results.json"):
        for process in json.loads(path.read_text())["rocprofiler-sdk-tool"]:
            _v3_process(seen, process)
    return seen


def _v3_process(seen: Seen, document: dict[str, Any]) -> None:
    pid, records = document["metadata"]["pid"], document["buffer_records"]
    strings = document["strings"]["buffer_records"]
    names = {one["kernel_id"]: one["demangled_kernel_name"] for one in document["kernel_symbols"]}
    texts = {one["key"]: one["value"] for one in document["strings"]["marker_api"]}
    nodes = {one["id"]["handle"]: one["node_id"] for one in document["agents"]}
    for one in records["kernel_dispatch"]:
        assert strings[one["kind"]]["kind"] == "KERNEL_DISPATCH"
        info = one["dispatch_info"]
        sizes = [prod(info[what].values()) for what in ("grid_size", "workgroup_size")]
        times = one["start_timestamp"], one["end_timestamp"]
        seen.kernels[pid, names[info["kernel_id"]], *times, *sizes] += 1
        seen.asked.add((pid, times[0], one["correlation_id"]["internal"]))
        seen.streams.add(one.get("stream_id", info["queue_id"])["handle"])
        seen.devices.add(nodes[info["agent_id"]["handle"]])
    for one in records["memory_copy"]:
        kind = strings[one["kind"]]
        assert kind["kind"] == "MEMORY_COPY"
        times = one["start_timestamp"], one["end_timestamp"]
        seen.copies[pid, kind["operations"][one["operation"]], *times] += 1
        seen.asked.add((pid, times[0], one["correlation_id"]["internal"]))
        seen.bytes[one["bytes"]] += 1
    for what in ("hip_api", "marker_api", "rccl_api"):
        for one in records[what]:
            kind, id_ = strings[one["kind"]], one["correlation_id"]["internal"]
            times = one["start_timestamp"], one["end_timestamp"]
            name = kind["operations"][one["operation"]]
            place = _place(seen, kind["kind"])
            place[pid, texts[id_] if place is seen.markers else name, *times] += 1
            if place is seen.calls:
                seen.began[pid, id_] = times[0]
    _v3_counters(seen, pid, document)


def _v3_counters(seen: Seen, pid: int, document: dict[str, Any]) -> None:
    names = {one["id"]["handle"]: one["name"] for one in document["counters"]}
    for one in document["callback_records"]["counter_collection"]:
        sums: Counter[str] = Counter()
        for record in one["records"]:
            sums[names[record["counter_id"]["handle"]]] += record["value"]
        seen.counters[pid, one["dispatch_data"]["dispatch_info"]["dispatch_id"]] = dict(sums)


def from_rocpd(folder: Path) -> Seen:
    seen = Seen()
    for path, _ in files_of(folder, "results.db"):
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            database.row_factory = sqlite3.Row
            _rocpd(seen, database)
    return seen


_KERNELS = """
    SELECT K.pid, S.display_name, K.start, K.end,
        K.grid_size_x * K.grid_size_y * K.grid_size_z,
        K.workgroup_size_x * K.workgroup_size_y * K.workgroup_size_z,
        E.stack_id, K.stream_id, A.absolute_index
    FROM rocpd_kernel_dispatch K JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id
        JOIN rocpd_event E ON E.id = K.event_id JOIN rocpd_info_agent A ON A.id = K.agent_id
"""
_COPIES = """
    SELECT C.pid, S.string, C.start, C.end, E.stack_id, C.size
    FROM rocpd_memory_copy C JOIN rocpd_string S ON S.id = C.name_id
        JOIN rocpd_event E ON E.id = C.event_id
"""
_RANGES = """
    SELECT R.pid, S.string, R.start, R.end, C.string, E.stack_id, E.extdata
    FROM rocpd_region R JOIN rocpd_string S ON S.id = R.name_id
        JOIN rocpd_event E ON E.id = R.event_id JOIN rocpd_string C ON C.id = E.category_id
"""
_COUNTERS = """
    SELECT K.pid, K.dispatch_id, I.name, SUM(P.value)
    FROM rocpd_pmc_event P JOIN rocpd_info_pmc I ON I.id = P.pmc_id
        JOIN rocpd_kernel_dispatch K ON K.event_id = P.event_id
    GROUP BY K.pid, K.dispatch_id, I.name
"""


def _rocpd(seen: Seen, database: sqlite3.Connection) -> None:
    for *record, id_, stream, node in database.execute(_KERNELS):
        seen.kernels[tuple(record)] += 1
        seen.asked.add((record[0], record[2], id_))
        seen.streams.add(stream)
        seen.devices.add(node)
    for *record, id_, size in database.execute(_COPIES):
        seen.copies[tuple(record)] += 1
        seen.asked.add((record[0], record[2], id_))
        seen.bytes[size] += 1
    for pid, name, start, end, category, id_, extra in database.execute(_RANGES):
        place = _place(seen, category)
        text = json.loads(extra)["message"] if place is seen.markers else name
        place[pid, text, start, end] += 1
        if place is seen.calls:
            seen.began[pid, id_] = start
    for pid, dispatch, name, value in database.execute(_COUNTERS):
        seen.counters.setdefault((pid, dispatch), {})[name] = value


def from_pftrace(folder: Path) -> Seen:
    seen = Seen()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        back = Back(path)
        for one in back.slices:
            _pftrace(seen, back.pid, one)
    return seen


def _pftrace(seen: Seen, pid: int, one: dict[str, Any]) -> None:
    times = one["start"], one["end"]
    assert times == (one["begin_ns"], one["end_ns"])
    what = one["category"].removeprefix("rocm_")
    if what == "kernel_dispatch":
        sizes = [
            prod(map(int, re.findall(r"\d+", str(one[of]))))
            for of in ("grid_size", "workgroup_size")
        ]
        seen.kernels[pid, one["name"], *times, *sizes] += 1
        seen.streams.add(one["queue"])
        (device,) = re.findall(r"\[(\d+)\].*(?:STREAM|Queue|QUEUE)", one["track"])
        assert one.get("agent", f"GPU-{device}") == f"GPU-{device}"
        seen.devices.add(int(device))
    elif what == "memory_copy":
        seen.copies[pid, one["name"], *times] += 1
        seen.bytes[one["copy_bytes"] if "copy_bytes" in one else one["bytes"]] += 1
    else:
        place = _place(seen, what.upper())
        place[pid, one["name"], *times] += 1
        if place is seen.calls:
            seen.began[pid, one["corr_id"]] = times[0]
        return
    seen.asked.add((pid, times[0], one["corr_id"]))


def read_back(name: str, folder: Path) -> Seen:
    """Return what stands in the files of a format of the simulator's table."""
    return next(read for start, read in _READERS.items() if name.startswith(start))(folder)


_READERS: dict[str, Callable[[Path], Seen]] = {
    "v1 csv": from_v1_csv,
    "v1 database of calls": from_v1_api_db,
    "v1 database": from_v1_db,
    "v1 json of calls": from_v1_api_json,
    "v1 json": from_v1_json,
    "v2": from_v2,
    "v3 csv": from_v3_csv,
    "v3 json": from_v3_json,
    "rocpd": from_rocpd,
    "pftrace": from_pftrace,
}
