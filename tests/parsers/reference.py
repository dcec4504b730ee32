"""A second reader of Kineto documents, as plain as can be: the standard library, event by event.

It shares no line with the reader under test and is written from the description of the format.
Only for well-formed JSON.
"""

import json
from collections import Counter
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

Row = dict[str, Any]
Rows = dict[str, list[Row]]

ACTIVITIES = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "collective_comm": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
CALLS = {
    "cuda_runtime": "runtime",
    "Runtime": "runtime",
    "mtia_runtime": "runtime",
    "xpu_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
}
OPS = {"cpu_op", "Operator"}
HOST_MARKS = {"user_annotation": "annotation", "overhead": "overhead"}
DEVICE_MARKS = {
    "gpu_user_annotation": "gpu_annotation",
    "cuda_sync": "sync",
    "xpu_sync": "sync",
    "cuda_event": "event",
}
PYTHON = {"python_function", "Python"}
FLOWS = {"ac2g", "async_cpu_to_gpu", "async_gpu", "async"}
OTHER_KNOWN = {
    "fwdbwd",
    "external_correlation",
    "Trace",
    "glow_runtime",
    "hpu_op",
    "mtia_insight",
    "hardware_counters",
    "mtia_counters",
    "xpu_scope_profiler",
    "cuda_profiler_range",
    "cpu_instant_event",
}
KNOWN = (
    set(ACTIVITIES)
    | set(CALLS)
    | OPS
    | set(HOST_MARKS)
    | set(DEVICE_MARKS)
    | PYTHON
    | FLOWS
    | OTHER_KNOWN
)
COLLECTIVE = {
    "collective": "Collective name",
    "collective_dtype": "dtype",
    "collective_in_elements": "In msg nelems",
    "collective_out_elements": "Out msg nelems",
    "collective_group": "Process Group Name",
    "collective_group_size": "Group size",
    "collective_group_ranks": "Process Group Ranks",
    "collective_description": "Process Group Description",
    "collective_sequence": "Seq",
    "collective_call": "Comms Id",
    "collective_source": "Src Rank",
    "collective_destination": "Dst Rank",
}
GENERATED = ("kernel_backend", "kernel_hash", "kernel_kwargs", "num_warps", "num_stages")
# This oracle has its own table: it must not share a rule with the code under test.
COPIES = {
    **{way: way for way in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH")},
    "HostToDevice": "HtoD",
    "DeviceToHost": "DtoH",
    "DeviceToDevice": "DtoD",
}


def loads(text: bytes | str) -> Any:
    """Return a document with its decimals exact."""
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    return json.loads(text, parse_float=Decimal)


def events_of(document: Any) -> list[Any]:
    return list(document if isinstance(document, list) else document["traceEvents"])


def nanoseconds(value: Any) -> int | None:
    """Return microseconds, as number or as text, in nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return None
    try:
        scaled = Decimal(str(value).strip()) * 1000
    except ArithmeticError:
        return None
    if not scaled.is_finite() or abs(scaled) > 2**62:
        return None
    return int(scaled.to_integral_value(rounding=ROUND_HALF_EVEN))


def integer(value: Any) -> int | None:
    """Return an id or count as a signed 64-bit number."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            return None
        value = int(value)
    if isinstance(value, Decimal):
        if value != value.to_integral_value() or abs(value) >= 2**63:
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    signed = (value + 2**63) % 2**64 - 2**63
    return None if signed == -(2**63) else signed


def number_at_end(value: Any) -> int | None:
    """Return the number in `stream 7`, or the number it is."""
    return integer(value.split(" ")[-1] if isinstance(value, str) else value)


def text(value: Any) -> str | None:
    return None if value is None else str(value)


def first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def read_rows(events: Iterable[Any]) -> Rows:
    """Return the rows of each table; a device is the number that the file gives it."""
    rows: Rows = {name: [] for name in ("activities", "calls", "ops", "marks", "counters")}
    arrows: list[tuple[int, int | None]] = []
    for event in events:
        if isinstance(event, dict):
            _read_event(event, rows, arrows)
    _lend(arrows, rows["activities"] + rows["calls"])
    used = {row["device"] for row in rows["activities"]}
    for row in rows["marks"] + rows["counters"]:
        if row["device"] not in used:
            row["device"] = None
    return rows


def _read_event(event: Row, rows: Rows, arrows: list[tuple[int, int | None]]) -> None:
    phase, category = phase_and_category(event)
    start = nanoseconds(event.get("ts"))
    if start is None:
        return
    if phase in ("s", "f") and category in FLOWS:
        arrows.append((start, integer(event.get("id"))))
    elif phase == "i" and (category not in OTHER_KNOWN or category == "cpu_instant_event"):
        can_be_memory = category not in KNOWN or category == "cpu_instant_event"
        _read_instant(event, start, rows, can_be_memory)
    elif phase == "X":
        _read_range(event, category, start, rows)


def phase_and_category(event: Row) -> tuple[str, str]:
    phase, category = event.get("ph"), event.get("cat")
    if phase is None and event.get("dur") is not None:
        phase = "X"
    return (
        phase if isinstance(phase, str) else "",
        category if isinstance(category, str) else "",
    )


def _read_range(event: Row, category: str, start: int, rows: Rows) -> None:
    args = event["args"] if isinstance(event.get("args"), dict) else {}
    name = text(event.get("name")) or ""
    times = {"name": name, "start_ns": start, "dur_ns": max(0, nanoseconds(event.get("dur")) or 0)}
    host = {"thread": number_at_end(event.get("tid"))}
    external = first(integer(args.get("External id")), integer(args.get("external id")))
    if category in ACTIVITIES:
        rows["activities"].append(times | _activity(event, args, ACTIVITIES[category], external))
    elif category in CALLS:
        correlation = integer(args.get("correlation"))
        ids = {"correlation": correlation, "external_id": external}
        unknown = {"error_code": None}  # no returned error is recorded
        api = {"api": CALLS[category]}
        rows["calls"].append(times | host | api | ids | unknown | _launched(args))
    elif category in OPS and not name.startswith("ProfilerStep#"):
        rows["ops"].append(times | host | _op(args))
    elif category in OPS:
        rows["marks"].append(_mark("annotation") | times | host | _inputs(args))
    elif category in HOST_MARKS:
        inputs = _inputs(args) if category == "user_annotation" else {}
        rows["marks"].append(_mark(HOST_MARKS[category]) | times | host | inputs)
    elif category in DEVICE_MARKS:
        facts = _device_mark(event, args)
        rows["marks"].append(_mark(DEVICE_MARKS[category]) | times | facts)
    elif category in PYTHON:
        rows["marks"].append(_mark("python") | times | host | _python(args))


def _activity(event: Row, args: Row, kind: str, external: int | None) -> Row:
    return {
        "kind": kind,
        "device": first(number_at_end(event.get("pid")), integer(args.get("device")), -1),
        "stream": first(
            integer(args.get("stream")),
            number_at_end(event.get("tid")),
            integer(args.get("sycl queue")),
        ),
        "correlation": integer(args.get("correlation")),
        "external_id": external,
        "graph": integer(args.get("graph id")),
        "graph_node": integer(args.get("graph node id")),
        "bytes": integer(args.get("bytes")),
        "direction": _direction(kind, text(event.get("name")) or "", args.get("kind")),
        "grid": _triple(args.get("grid")),
        "block": _triple(args.get("block")),
        "registers_per_thread": integer(args.get("registers per thread")),
        "shared_memory_bytes": integer(args.get("shared memory")),
        "scratch_bytes": None,
        "occupancy_percent": integer(args.get("est. achieved occupancy %")),
        "annotation": text(args.get("name"))
        if (integer(args.get("graph node id")) or 0) > 0
        else None,
        "source": _source(args.get("stack")),
    } | _collective(args)


def _source(stack: Any) -> str | None:
    found = []
    for one in stack if isinstance(stack, list) else []:
        parts = [line.split('"') for line in one.splitlines() if line.startswith("  File ")]
        frames = [(path, rest.split(", ")) for _, path, rest in parts]
        mine = [frame for frame in frames if "torch/" not in frame[0]] or frames
        path, (_, line, function) = mine[-1]
        found.append(f"{path}({line[5:]}): {function[3:]}")
    return ", ".join(dict.fromkeys(found)) or None


def _launched(args: Row) -> Row:
    if args.get("kernel") is None:
        return {"kernel": None, "grid": None, "block": None}
    sides = {name: _triple(args.get(name)) for name in ("grid", "block")}
    return {"kernel": text(args["kernel"]), **sides}


def _direction(kind: str, name: str, rocm: Any) -> str | None:
    if kind != "memcpy":
        return None
    for told in (name, str(rocm)):
        places = {told.index(word): way for word, way in COPIES.items() if word in told}
        if places:
            return places[min(places)]
    return None


def _triple(value: Any) -> list[int | None] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    numbers = [integer(item) for item in value]
    return None if None in numbers else numbers


def _collective(args: Row) -> Row:
    if args.get("Collective name") is None:
        return dict.fromkeys(COLLECTIVE)
    texts = {"", "_dtype", "_group", "_group_ranks", "_description"}
    return {
        column: (text if column.removeprefix("collective") in texts else integer)(args.get(key))
        for column, key in COLLECTIVE.items()
    }


def _op(args: Row) -> Row:
    finished = args.get("finished")
    generated = {k: args[k] for k in GENERATED if args.get(k) is not None}
    return {
        "external_id": integer(args.get("External id")),
        "sequence": integer(args.get("Sequence number")),
        "forward_thread": integer(args.get("Fwd thread id")),
        "input_dims": args.get("Input Dims"),
        "input_types": args.get("Input type"),
        "input_strides": args.get("Input Strides"),
        "concrete_inputs": args.get("Concrete Inputs"),
        "finished": None if finished is None else finished not in (False, "false", "False", 0),
        "generated_kernel": generated if args.get("kernel_backend") is not None else None,
    } | _collective(args)


def _inputs(args: Row) -> Row:
    return {"input_dims": args.get("Input Dims"), "input_types": args.get("Input type")}


def _mark(kind: str) -> Row:
    empty = dict.fromkeys(
        (
            "thread",
            "device",
            "stream",
            "correlation",
            "input_dims",
            "input_types",
            "python_id",
            "python_parent",
            "python_module",
            "sync_kind",
            "wait_stream",
            "wait_correlation",
        )
    )
    return {"kind": kind, **empty}


def _device_mark(event: Row, args: Row) -> Row:
    return {
        "device": first(number_at_end(event.get("pid")), integer(args.get("device"))),
        "stream": first(integer(args.get("stream")), number_at_end(event.get("tid"))),
        "correlation": integer(args.get("correlation")),
        "sync_kind": text(args.get("cuda_sync_kind")),
        "wait_stream": integer(args.get("wait_on_stream")),
        "wait_correlation": integer(args.get("wait_on_cuda_event_record_corr_id")),
    }


def _python(args: Row) -> Row:
    module = integer(args.get("Python module id"))
    return {
        "kind": "python" if module is None else "module",
        "python_id": integer(args.get("Python id")),
        "python_parent": integer(args.get("Python parent id")),
        "python_module": module,
    }


def _read_instant(event: Row, start: int, rows: Rows, can_be_memory: bool) -> None:
    args = event["args"] if isinstance(event.get("args"), dict) else {}
    if not can_be_memory or event.get("name") != "[memory]":
        named = {"name": text(event.get("name")) or "", "start_ns": start, "dur_ns": 0}
        thread = {"thread": number_at_end(event.get("tid"))}
        rows["marks"].append(_mark("instant") | named | thread)
        return
    on_device = (integer(args.get("Device Type")) or 0) > 0
    for name, key in (
        ("change_bytes", "Bytes"),
        ("allocated_bytes", "Total Allocated"),
        ("reserved_bytes", "Total Reserved"),
    ):
        value = integer(args.get(key))
        if value is not None:
            rows["counters"].append(
                {
                    "name": f"{'device' if on_device else 'host'}_memory.{name}",
                    "device": integer(args.get("Device Id")) if on_device else None,
                    "time_ns": start,
                    "value": float(value),
                    "address": integer(args.get("Addr")),
                }
            )


def _lend(arrows: list[tuple[int, int | None]], rows: list[Row]) -> None:
    """Give rows without correlation the id of the one arrow at their start."""
    times = Counter(time for time, _ in arrows)
    ids = {time: number for time, number in arrows if times[time] == 1}
    for row in rows:
        if row["correlation"] is None:
            row["correlation"] = ids.get(row["start_ns"])
