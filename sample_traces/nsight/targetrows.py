"""Rows of an export for the machine, the session and the exporter."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from sample_traces.machines import MACHINES, Machine
from sample_traces.nsight.schema import RELEASES, Era, Row, Tables, Value
from sample_traces.nsight.session import CONTEXT, VM, Session, global_pid, global_tid, uuid_of
from sample_traces.program import streams_of
from sample_traces.records import RankRun

CLOCK_HZ: Final = 1_980_000_000
_BANDWIDTH: Final = 3_352_320_000_000
_NULL_STREAM: Final = 7
_UPTIME_NS: Final = 28_254_349_605
_CAPABILITY: Final = ("Major", "Minor")


def target_rows(session: Session, era: Era) -> Tables:
    """Return the rows that say where and how was recorded; each era takes the tables it knows."""
    ranks = session.ranks
    machine = MACHINES[session.run.config.machine]
    tables: Tables = {
        "TARGET_INFO_GPU": [
            _gpu(machine, gpu) | {"deviceId": gpu} for gpu in range(session.run.config.ranks)
        ],
        "TARGET_INFO_CUDA_GPU": [row for rank in ranks for row in _cuda_gpus(session, rank)],
        "TARGET_INFO_CUDA_DEVICE": [row for rank in ranks for row in _numbers(session, rank)],
        "TARGET_INFO_CUDA_NULL_STREAM": [_context(session, rank) for rank in ranks],
        "TARGET_INFO_CUDA_CONTEXT_INFO": [_context(session, rank) for rank in ranks],
        "TARGET_INFO_CUDA_STREAM": [row for rank in ranks for row in _streams(rank)],
        "TARGET_INFO_SYSTEM_ENV": list(_environment(session)),
        "TARGET_INFO_SESSION_START_TIME": [_start(session)],
        "ANALYSIS_DETAILS": [_details(session)],
        "DIAGNOSTIC_EVENT": [_diagnostic(rank) for rank in ranks],
        "PROCESSES": [
            {"globalPid": global_pid(rank), "pid": rank.process, "name": "python3"}
            for rank in ranks
        ],
        "ThreadNames": [row for rank in ranks for row in _threads(session, rank)],
    }
    if era in RELEASES:
        tables["META_DATA_EXPORT"] = tables["EXPORT_META_DATA"] = list(_export(session, era))
        tables["META_DATA_CAPTURE"] = list(_capture(session))
    return tables


def _gpu(machine: Machine, gpu: int) -> dict[str, Value]:
    known = machine.properties
    return {
        "vmId": VM,
        "id": gpu,
        "name": machine.product,
        "busLocation": f"0000:{0x1B + 16 * gpu:02x}:00.0",
        "isDiscrete": 1,
        "l2CacheSize": 52_428_800,
        "totalMemory": machine.memory_bytes,
        "memoryBandwidth": _BANDWIDTH,
        "clockRate": CLOCK_HZ,
        "smCount": machine.units,
        "pwGpuId": gpu,
        "uuid": uuid_of(gpu),
        "luid": 0,
        "chipName": "GH100",
        "cuDevice": gpu,
        "constantMemory": 65_536,
        "maxRegistersPerBlock": known["regsPerBlock"],
        "maxShmemPerBlock": known["sharedMemPerBlock"],
        "maxShmemPerBlockOptin": known["sharedMemPerBlockOptin"],
        "maxShmemPerSm": known["sharedMemPerMultiprocessor"],
        "maxRegistersPerSm": known["regsPerMultiprocessor"],
        "threadsPerWarp": machine.width,
        "asyncEngines": 3,
        "maxWarpsPerSm": 64,
        "maxBlocksPerSm": 32,
        "maxThreadsPerBlock": known["maxThreadsPerBlock"],
        **{
            f"{what}{part}": known[f"compute{part}"]
            for what in ("compute", "sm")
            for part in _CAPABILITY
        },
    }


def _cuda_gpus(session: Session, rank: RankRun) -> Iterator[Row]:
    """Yield the GPUs as exports of 2020 list them: by process and its numbers; clocks in kHz."""
    machine = MACHINES[session.run.config.machine]
    for number in session.numbers(rank):
        yield {
            "pid": rank.process,
            "deviceId": number,
            "name": machine.product,
            "globalMemoryBandwidth": _BANDWIDTH // 1000,
            "globalMemorySize": machine.memory_bytes,
            "coreClockRate": CLOCK_HZ // 1000,
            "numMultiprocessors": machine.units,
            "computeCapabilityMajor": machine.properties["computeMajor"],
            "computeCapabilityMinor": machine.properties["computeMinor"],
            "numThreadsPerWarp": machine.width,
        }


def _numbers(session: Session, rank: RankRun) -> Iterator[Row]:
    machine = MACHINES[session.run.config.machine]
    for number, gpu in session.numbers(rank).items():
        yield {
            "gpuId": gpu,
            "cudaId": number,
            "pid": rank.process,
            "uuid": uuid_of(gpu),
            "numMultiprocessors": machine.units,
        }


def _context(session: Session, rank: RankRun) -> Row:
    return {
        "nullStreamId": _NULL_STREAM,
        "streamId": _NULL_STREAM,
        "hwId": 0,
        "vmId": 1,
        "processId": rank.process,
        "deviceId": session.device(rank),
        "contextId": CONTEXT,
        "parentContextId": 0,
        "isGreenContext": 0,
    }


def _streams(rank: RankRun) -> Iterator[Row]:
    for stream in streams_of(rank):
        yield {
            "streamId": stream,
            "hwId": 0,
            "vmId": 1,
            "processId": rank.process,
            "contextId": CONTEXT,
            "priority": 0,
            "flag": 2,
        }


def _environment(session: Session) -> Iterator[Row]:
    size = session.run.config.ranks
    ranks = ",".join(str(rank.rank) for rank in session.ranks)
    values = {
        "CpuArchitecture": "x86_64",
        "Hostname": session.options.host,
        "CudaDriverVersion": "12080",
        "NvDriverVersion": "570.86.15",
        "GpuInfo": "{}",
        "DeviceEnvironment": f"LANG=C.UTF-8;WORLD_SIZE={size};RANK={ranks}",
    }
    for number, (name, value) in enumerate(values.items(), start=1):
        yield {
            "globalVid": VM,
            "devStateName": "Local (CLI)",
            "name": name,
            "nameEnum": number,
            "value": value,
        }


def _start(session: Session) -> Row:
    utc = datetime.fromtimestamp(session.start_unix_ns // 1_000_000_000, UTC)
    said = utc.strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "utcEpochNs": session.start_unix_ns,
        "utcTime": said,
        "localTime": said,
        "systemClockNs": _UPTIME_NS,
    }


def _details(session: Session) -> Row:
    length = max(session.time(rank, rank.end_ns) for rank in session.ranks) + 1_000_000_000
    return {
        "globalVid": VM,
        "duration": length,
        "startTime": _UPTIME_NS,
        "stopTime": _UPTIME_NS + length,
    }


def _diagnostic(rank: RankRun) -> Row:
    return {
        "timestamp": 0,
        "timestampType": 1,
        "source": 3,
        "severity": 1,
        "text": "Profiling has started.",
        "globalPid": global_pid(rank),
    }


def _threads(session: Session, rank: RankRun) -> Iterator[Row]:
    names = {rank.main_thread: "python3", rank.backward_thread: "pt_autograd_0"}
    for thread, name in names.items():
        own = {"nameId": session.text(name), "priority": 20}
        yield {**own, "globalTid": global_tid(rank, thread)}


def _export(session: Session, era: Era) -> Iterator[Row]:
    """Yield what says of the exporter; to 2023.2 two keys were misspelt."""
    product, schema = RELEASES[era]
    output = "OUTUPT" if era == "2023" else "OUTPUT"
    values = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": product,
        "EXPORT_SCHEMA_VERSION": schema,
        **{
            f"EXPORT_SCHEMA_VERSION_{part}": number
            for part, number in zip(("MAJOR", "MINOR", "MICRO"), schema.split("."), strict=True)
        },
        "EXPORT_HOST": session.options.host,
        "EXPORT_USER": "",
        "EXPORT_PARAM_INPUT_FILE": "run.nsys-rep",
        f"EXPORT_{output}_FILE" if era == "2023" else f"EXPORT_PARAM_{output}_FILE": "run.sqlite",
        "EXPORT_PARAM_LAZY": "true",
        "EXPORT_PARAM_INCLUDE_JSON": str(session.options.nccl == "payloads").lower(),
    }
    for name, value in values.items():
        yield {"name": name, "value": value}


def _capture(session: Session) -> Iterator[Row]:
    """Yield what was recorded; names may be there several times."""
    opaque = session.run.config.opaque_graph
    pairs = [
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("PROCESS_0:COMMAND", "python3"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", 'LANG="C.UTF-8"'),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f'WORLD_SIZE="{session.run.config.ranks}"'),
        ("PROCESS_0:COLLECT_NVTX_TRACE", "true"),
        ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph" if opaque else "Node"),
    ]
    for name, value in pairs:
        yield {"name": name, "value": value}
