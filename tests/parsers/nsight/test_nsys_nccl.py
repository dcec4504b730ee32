"""Collectives of NCCL: which, how much and who, by NVTX ranges and their payloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parsers.nsight.nsysfile import NsysFile, process, thread
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

COMM = "0x1234"
COLUMNS = ("collective", "collective_dtype", "collective_in_elements", "collective_out_elements")


def run(tmp_path: Path, export: NsysFile) -> Trace:
    return read(export.save(tmp_path / "run.sqlite"))


def told(trace: Trace) -> list[Any]:
    columns = [trace.activities[name].to_pylist() for name in (*COLUMNS, "collective_group_size")]
    return list(zip(*columns, strict=True))


def collective(
    export: NsysFile, at: int, name: str, payload: dict[str, Any] | None, **more: Any
) -> None:
    """Add a range of NCCL, the launch in it and the kernel that was launched."""
    pid = more.pop("pid", 4242)
    text = None if payload is None else json.dumps(payload)
    place = {"domainId": 1, "globalTid": thread(1, pid)}
    export.range(at, at + 50, None, textId=export.string(name), jsonText=text, **place)
    if more.get("kernel", True):
        export.call(at + 10, at + 20, at, globalTid=thread(1, pid))
        kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
        export.kernel(at + 100, at + 200, kernel, correlationId=at, globalPid=process(pid))


def init(export: NsysFile, at: int, rank: int, ranks: int, pid: int = 4242) -> None:
    payload = {"NCCL communicator ID": COMM, "No. of ranks": ranks, "Rank": rank, "CUDA device": 0}
    collective(export, at, "ncclCommInitRank", payload, pid=pid, kernel=False)


def sizes(size: int) -> dict[str, Any]:
    return {"NCCL communicator ID": COMM, "Message size [bytes]": size}


@pytest.mark.parametrize(
    ("name", "word", "puts", "gets"),
    [
        ("ncclAllReduce", "allreduce", 4096, 4096),
        ("ncclAllGather", "allgather", 4096, 32768),
        ("ncclReduceScatter", "reduce_scatter", 32768, 4096),
        ("ncclBroadcast", "broadcast", None, 4096),
        ("ncclSend", "send", 4096, 0),
    ],
)
def test_payloads_tell_sizes_in_bytes(
    tmp_path: Path, name: str, word: str, puts: int | None, gets: int
) -> None:
    export = NsysFile()
    init(export, 1, 3, 8)
    collective(export, 1_000, name, sizes(4096))
    trace = run(tmp_path, export)
    assert told(trace) == [(word, "Byte", puts, gets, 8)]
    assert (trace.ranks, trace.processes["world_size"].to_pylist()) == ((3,), [8])
    assert "nccl-sizes" not in {note.code for note in trace.notes}


def test_payloads_may_be_registered_texts_and_nested(tmp_path: Path) -> None:
    export = NsysFile()
    init(export, 1, 0, 2)
    collective(export, 1_000, "ncclAllReduce", None)
    payload = json.dumps({"payload": [{"values": sizes(8)}]})
    export.rows["NVTX_EVENTS"][-1]["jsonTextId"] = export.string(payload)
    assert told(run(tmp_path, export)) == [("allreduce", "Byte", 8, 8, 2)]


def test_without_payloads_the_kind_is_known_and_the_option_is_named(tmp_path: Path) -> None:
    export = NsysFile()
    collective(export, 1_000, "ncclAllReduce", None)
    trace = run(tmp_path, export)
    assert told(trace) == [("allreduce", None, None, None, None)]
    (note,) = [note for note in trace.notes if note.code == "nccl-sizes"]
    assert "--include-json=true" in note.text
    assert trace.ranks == (None,)


def test_ranges_that_make_communicators_lack_no_sizes(tmp_path: Path) -> None:
    export = NsysFile()
    collective(export, 1_000, "ncclCommInitRank", None, kernel=False)
    assert "nccl-sizes" not in {note.code for note in run(tmp_path, export).notes}


def test_two_processes_have_the_ranks_of_their_largest_communicators(tmp_path: Path) -> None:
    export = NsysFile()
    for pid, rank in ((100, 5), (200, 4)):
        init(export, 1, 0, 2, pid)
        init(export, 100, rank, 8, pid)
        collective(export, 1_000, "ncclAllReduce", sizes(16), pid=pid)
    trace = run(tmp_path, export)
    assert trace.ranks == (4, 5)
    assert trace.processes["pid"].to_pylist() == [200, 100]
    assert trace.processes["world_size"].to_pylist() == [8, 8]


def test_ranks_of_mpi_count_more(tmp_path: Path) -> None:
    export = NsysFile()
    init(export, 1, 0, 8)
    collective(export, 1_000, "ncclAllReduce", sizes(16))
    export.row("MPI_RANKS", globalPid=process(), rank=7)
    assert run(tmp_path, export).ranks == (7,)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"Rank": [1]}', "[" * 200, "\ud800"])
def test_payloads_that_cannot_be_read_tell_nothing(tmp_path: Path, text: str) -> None:
    export = NsysFile()
    collective(export, 1_000, "ncclAllReduce", None)
    export.rows["NVTX_EVENTS"][-1]["jsonText"] = text.encode(errors="surrogatepass")
    assert told(run(tmp_path, export)) == [("allreduce", None, None, None, None)]


def test_a_range_of_pytorch_around_it_is_not_the_collective(tmp_path: Path) -> None:
    export = NsysFile()
    export.range(900, 1_300, "nccl:all_reduce", globalTid=thread(1))
    collective(export, 1_000, "ncclAllReduce", None)
    assert told(run(tmp_path, export))[0][0] == "allreduce"
