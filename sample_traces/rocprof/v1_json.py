"""rocprof v1: `results.json`, a Chrome trace in which every value is text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

from sample_traces.machines import MACHINES
from sample_traces.records import Run
from sample_traces.rocprof.agents import Agent, agents
from sample_traces.rocprof.capture import Capture, Dispatch, HostRange, Transfer, captures
from sample_traces.rocprof.names import Cell, save, written
from sample_traces.rocprof.options import RocprofOptions
from sample_traces.rocprof.v1_csv import duration, kernel_rows

EXTERNAL: Final = 0
COPIES: Final = 1
CALLS: Final = 2
FIRST_GPU: Final = 6
_BARRIERS: Final = 512
"""Chrome's process numbers of markers, copies, HIP calls, GPUs and their barriers."""

COPY_NAMES: Final = {"HtoD": "CopyHostToDevice", "DtoH": "CopyDeviceToHost"}
FILL_NAME: Final = "FillBuffer"


def write_v1_json(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write one folder per rank: the layout of a run that traced only kernels."""
    return _write(run, folder, options, calls=False)


def write_v1_api_json(run: Run, folder: Path, options: RocprofOptions) -> list[Path]:
    """Write one folder per rank: the layout of a run with --hip-trace (and --roctx-trace)."""
    return _write(run, folder, options, calls=True)


def _write(run: Run, folder: Path, options: RocprofOptions, calls: bool) -> list[Path]:
    nodes = agents(MACHINES[run.config.machine], run.config.ranks)
    paths = []
    for one in captures(run, options):
        events = _traced(one, options) if calls else _kernels(one, options)
        text = "".join((*_labels(one, calls), *events, *_node(nodes)))
        paths.append(save(folder / f"rank{one.rank}" / "results.json", text))
    return paths


def _labels(capture: Capture, calls: bool) -> Iterator[str]:
    labels = [(EXTERNAL, "Markers and Ranges"), (CALLS, "CPU HIP API")] if calls else []
    labels.append((COPIES, "COPY"))
    for gpu in range(capture.node + 1):
        labels.append((FIRST_GPU + gpu, f"GPU{gpu}"))
        labels.append((FIRST_GPU + gpu + _BARRIERS, f"GPU Barriers{gpu}"))
    yield '{ "traceEvents":[{}\n'
    for place, (process, label) in enumerate(labels):
        yield (
            f',{{"args":{{"name":"{label}"}},"ph":"M","pid":{process},"name":"process_name",'
            f'"sort_index":{place}}}\n'
        )


def _event(name: str, process: int, thread: int, args: dict[str, Cell]) -> str:
    begin, took = int(args["BeginNs"]), int(args["EndNs"]) - int(args["BeginNs"])
    # Whole microseconds, rounded down; a bar of none would not be seen.
    shown = took // 1000 or 1
    inner = ",\n    ".join(f'"{key}":"{value}"' for key, value in args.items())
    return (
        f',{{"ph":"X","name":"{name}","pid":{process},"tid":{thread},'
        f'"ts":"{begin // 1000}","dur":"{shown}",\n  "args":{{\n    {inner}\n  }}\n}}\n'
    )


def _kernels(capture: Capture, options: RocprofOptions) -> Iterator[str]:
    for row in kernel_rows(capture, options, "arch_vgpr"):
        args = {name: value for name, value in row.items() if name != "Index"}
        args["DurationNs"] = duration(row)
        name, thread = str(row["KernelName"]), int(row["tid"])
        yield _event(name, FIRST_GPU + capture.node, thread, args)


def _traced(capture: Capture, options: RocprofOptions) -> Iterator[str]:
    """Yield markers, copies, calls, kernels and the arrows between them."""
    for mark in capture.of("marker"):
        yield _event(mark.name, EXTERNAL, mark.thread, host_args(capture, mark))
    for copy in capture.transfers:
        yield _event(copy_name(copy), COPIES, copy.stream, copy_args(capture, copy))
    kernels = capture.in_order_of_dispatch()
    for one in kernels:
        if section_of(capture, one) == COPIES:
            yield _event(FILL_NAME, COPIES, one.stream, work_args(capture, one, FILL_NAME))
    for call in capture.of("hip"):
        yield _event(call.name, CALLS, call.thread, call_args(capture, call))
    for one in kernels:
        name, section = written(one.kernel.name, options.names), section_of(capture, one)
        if section != COPIES:
            yield _event(name, section, one.stream, work_args(capture, one, name))
    yield from _arrows(capture, kernels)


def host_args(capture: Capture, one: HostRange) -> dict[str, Cell]:
    """Return the values of a marker by name."""
    return {
        "BeginNs": one.start_ns,
        "EndNs": one.end_ns,
        "pid": capture.process,
        "tid": one.thread,
        "Name": one.name,
    }


def call_args(capture: Capture, one: HostRange) -> dict[str, Cell]:
    """Return the values of a call by name."""
    given = " ".join(f"{name}({value})" for _, name, value in one.arguments)
    rest: dict[str, Cell] = {"args": f"( {given} )", "Data": ""}
    return host_args(capture, one) | rest | {"DurationNs": one.end_ns - one.start_ns}


def copy_name(one: Transfer) -> str:
    """Return what a copy is called."""
    return COPY_NAMES[one.work.direction or ""]


def copy_args(capture: Capture, one: Transfer) -> dict[str, Cell]:
    """Return the values of a copy by name."""
    return _device_args(
        capture, one.start_ns, one.end_ns, 0, copy_name(one), one.thread, one.stream
    )


def work_args(capture: Capture, one: Dispatch, name: str) -> dict[str, Cell]:
    """Return the values of a kernel by name."""
    return _device_args(
        capture, one.start_ns, one.end_ns, one.queue - 1, name, one.thread, one.stream
    )


def _device_args(
    capture: Capture,
    start_ns: int,
    end_ns: int,
    queue: int,
    name: str,
    thread: int,
    stream: int,
) -> dict[str, Cell]:
    return {
        "BeginNs": start_ns,
        "EndNs": end_ns,
        "dev-id": capture.node,
        "queue-id": queue,
        "Name": name,
        "pid": capture.process,
        "tid": thread,
        "stream-id": stream,
        "Data": "",
        "DurationNs": end_ns - start_ns,
    }


def _arrows(capture: Capture, kernels: Iterable[Dispatch]) -> Iterator[str]:
    """Yield an arrow from the middle of each call to the work that it asked for."""
    calls = {one.correlation: one for one in capture.of("hip")}
    ends: list[tuple[Dispatch | Transfer, int, int]]
    ends = [(one, section_of(capture, one), one.stream) for one in kernels]
    ends += [(one, COPIES, one.stream) for one in capture.transfers]
    numbers = count()
    for work, process, stream in ends:
        if work.correlation not in calls:
            continue
        call, number, to = calls[work.correlation], next(numbers), work.start_ns // 1000
        middle = call.start_ns // 1000 + (call.end_ns - call.start_ns) // 2000
        yield _arrow("s", min(middle, to), number, CALLS, call.thread)
        yield _arrow("t", to, number, process, stream)


def section_of(capture: Capture, one: Dispatch) -> int:
    """Return Chrome's process number of a kernel: fills stand with the copies."""
    return COPIES if one.work.sub == "memset" else FIRST_GPU + capture.node


def _arrow(phase: str, time: int, number: int, process: int, thread: int) -> str:
    return (
        f',{{"ts":{time},"ph":"{phase}","cat":"DataFlow","id":{number},"pid":{process},'
        f'"tid":{thread},"name":"dep"}}\n'
    )


def _node(nodes: list[Agent]) -> Iterator[str]:
    """Yield what rocminfo says of the node, its blanks removed."""
    said: dict[str, str] = {"CMD": "rocminfo", "HSASystemAttributes.RuntimeVersion": "1.14"}
    for number, agent in enumerate(nodes, start=1):
        gpu = agent["type"] == 2
        clock = agent["max_engine_clk_fcompute" if gpu else "max_engine_clk_ccompute"]
        facts = {
            "Name": agent["name"],
            "MarketingName": agent["product_name"],
            "VendorName": agent["vendor_name"],
            "Node": agent["node_id"],
            "DeviceType": "GPU" if gpu else "CPU",
            "MaxClockFreq.(MHz)": clock,
            "ComputeUnit": agent["cu_count"],
            "MemoryProperties.PoolInfo.Pool1.Segment": "GLOBAL",
            "MemoryProperties.PoolInfo.Pool1.Size": _kilobytes(agent),
        }
        if gpu:
            wave = agent["wave_front_size"]
            facts["MemoryProperties.WavefrontSize"] = f"{wave}({hex(wave)})"
        said |= {f"Agent{number}.{key}": str(value) for key, value in facts.items()}
    yield '],\n"otherData": {\n'
    yield ",\n".join(f'    "{key}": "{value.replace(" ", "")}"' for key, value in said.items())
    yield "\n  }\n}"


def _kilobytes(agent: Agent) -> str:
    size = agent["mem_banks"][0]["size_in_bytes"] // 1024
    return f"{size}({hex(size)})KB"
