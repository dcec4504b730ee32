"""One file that holds several ranks: every rank is a process whose links stay in it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import kineto_document
from sample_traces.kineto_text import render
from sample_traces.simulate import simulate
from tests.parsers.documents import read_bytes
from traceflops import analyze
from traceflops.reports.view.wording import products
from traceflops.table.links import link
from traceflops.table.trace import Trace

Event = dict[str, Any]
SHIFT = 10**8
DEVICE = 3


def event(category: str, name: str, start: int, pid: int, **args: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": 5, "pid": pid} | {
        "tid": 7,
        "args": args,
    }


def of_rank(rank: int) -> list[Event]:
    """Return an operator, its launch and kernel; all ids are the same on all ranks."""
    at, pid = 100 * rank, 4_000 + rank
    return [
        event("user_annotation", f"step of {rank}", at, pid),
        event("cpu_op", f"op of {rank}", at, pid, **{"External id": 9}),
        event("cuda_runtime", "cudaLaunchKernel", at + 1, pid, correlation=5),
        event(
            "kernel", f"kernel of {rank}", at + 9, DEVICE, device=DEVICE, stream=7, correlation=5
        ),
    ]


def told(one: Event, rank: int) -> Event:
    return one | {"args": one["args"] | {"rank": rank}}


def shifted(one: Event, rank: int) -> Event:
    return one | {"pid": one["pid"] + SHIFT * rank}


def labelled(one: Event, rank: int) -> Event:
    return one | {"pid": f"[TP{rank:02}-PP00] {one['pid']}"}


def fused(one: Event, rank: int) -> Event:
    return shifted(told(one, rank), rank)


FORMS = [told, shifted, labelled, fused]
Form = Callable[[Event, int], Event]


def merged(form: Form, ranks: tuple[int, ...] = (0, 1, 2)) -> Trace:
    events = [form(one, rank) for rank in ranks for one in of_rank(rank)]
    return read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def rows(trace: Trace) -> dict[int | None, tuple[str, ...]]:
    """Return kernel, call's operator and annotation of each rank, by the links of the trace."""
    links = link(trace)
    names = {
        table: trace.table(table)["name"].to_pylist() for table in ("activities", "ops", "marks")
    }
    marks = dict(zip(trace.marks["process"].to_pylist(), names["marks"], strict=True))
    return {
        trace.ranks[process]: (kernel, names["ops"][links.op_of_activity[row]], marks[process])
        for row, (kernel, process) in enumerate(
            zip(names["activities"], trace.activities["process"].to_pylist(), strict=True)
        )
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_rank_has_its_own_process_device_and_links(form: Form) -> None:
    trace = merged(form)
    assert trace.ranks == (0, 1, 2)
    assert trace.processes["pid"].to_pylist() == [4_000, 4_001, 4_002]
    assert trace.devices["process"].to_pylist() == [0, 1, 2]
    assert trace.devices["local_id"].to_pylist() == [DEVICE] * 3
    assert rows(trace) == {n: (f"kernel of {n}", f"op of {n}", f"step of {n}") for n in (0, 1, 2)}
    (note,) = [note for note in trace.notes if note.code == "merged-ranks"]
    assert note.count == 3


@pytest.mark.parametrize("text", ["rank {}", "[TP0{}]", "host a, rank_{}, GPU"])
def test_one_text_for_the_processes_of_a_rank_tells_it(text: str) -> None:
    trace = merged(lambda one, rank: one | {"pid": text.format(rank)})
    assert trace.ranks == (0, 1, 2)
    assert rows(trace) == {n: (f"kernel of {n}", f"op of {n}", f"step of {n}") for n in (0, 1, 2)}


def test_texts_of_gpus_alone_are_no_ranks() -> None:
    def form(one: Event, rank: int) -> Event:
        return one | {"pid": f"GPU {rank}" if one["cat"] == "kernel" else "python"}

    assert merged(form).ranks == (None,)


@pytest.mark.parametrize("count", [1, 3])
def test_ranks_that_nothing_tells_apart_are_said(count: int) -> None:
    trace = merged(lambda one, _: one | {"pid": "python"}, tuple(range(count)))
    assert trace.ranks == (None,)
    said = [note.count for note in trace.notes if note.code == "repeated-launches"]
    assert said == ([count - 1] if count > 1 else [])


@pytest.mark.parametrize("is_told", [True, False])
def test_mixed_ranks_are_not_compared(is_told: bool) -> None:
    """Two hosts have GPUs of the same numbers: rank 3 is slow, on a GPU of which there are two."""
    run = simulate(RunConfig(ranks=4, layers=1, straggler_rank=3, straggler_percent=150))
    documents = [json.loads(render(kineto_document(run, rank), "compact")) for rank in range(4)]
    events = []
    for rank, document in enumerate(documents):
        for one in document["traceEvents"]:
            if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                one = one | {"pid": rank % 2, "args": one["args"] | {"device": rank % 2}}
            events.append(told({"args": {}} | one, rank) if is_told else one)
    trace = read_bytes(json.dumps(documents[0] | {"traceEvents": events}).encode())
    ranks = analyze(trace).ranks
    blamed = ranks.slow.ranks if ranks.slow is not None else None
    assert blamed == ((3,) if is_told else None)
    assert ("repeated-launches" in {note.code for note in trace.notes}) != is_told


@pytest.mark.parametrize("form", FORMS)
def test_ranks_need_not_begin_with_zero(form: Form) -> None:
    assert merged(form, (5, 12)).ranks == (5, 12)


@pytest.mark.parametrize("form", [told, fused])
def test_a_rank_in_the_arguments_counts_alone(form: Form) -> None:
    trace = merged(form, (6,))
    assert trace.ranks == (6,)
    assert not [note for note in trace.notes if note.code == "merged-ranks"]


def test_processes_of_different_hosts_may_have_the_same_number() -> None:
    trace = merged(lambda one, rank: told(one | {"pid": min(one["pid"], 4_000)}, rank))
    assert trace.processes["pid"].to_pylist() == [4_000] * 3
    assert rows(trace) == {n: (f"kernel of {n}", f"op of {n}", f"step of {n}") for n in (0, 1, 2)}


def test_a_file_of_one_process_with_several_devices_is_one_rank() -> None:
    kernels = [event("kernel", "k", at, at, device=at, stream=7) for at in range(4)]
    trace = read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": kernels}).encode())
    assert trace.processes.num_rows == 1
    assert trace.devices["local_id"].to_pylist() == [0, 1, 2, 3]


def test_labels_that_differ_in_more_than_one_number_tell_processes_and_no_ranks() -> None:
    events = [
        one | {"pid": f"[TP{rank // 2}-DP{rank % 2}] {one['pid']}"}
        for rank in range(4)
        for one in of_rank(rank)
    ]
    trace = read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    assert trace.ranks == (None,) * 4


def test_a_merged_job_is_as_its_files() -> None:
    run = simulate(RunConfig(ranks=2, steps=1, layers=1))
    documents = [json.loads(render(kineto_document(run, rank), "compact")) for rank in (0, 1)]
    files = [read_bytes(json.dumps(one).encode()) for one in documents]
    events = [
        fused({"args": {}} | one, rank)
        for rank, document in enumerate(documents)
        for one in document["traceEvents"]
        if isinstance(one.get("pid"), int)
    ]
    trace = read_bytes(json.dumps(documents[0] | {"traceEvents": events}).encode())
    links = link(trace)
    for rank, file in enumerate(files):
        mine = [one == rank for one in trace.activities["process"].to_pylist()]
        alone = trace.activities.filter(mine)
        assert alone["name"].to_pylist() == file.activities["name"].to_pylist()
        linked = (links.op_of_activity >= 0)[mine].sum()
        assert linked == (link(file).op_of_activity >= 0).sum() > 0


def test_more_ranks_than_are_real_are_none() -> None:
    events = [told(event("cpu_op", "op", rank, 7), rank) for rank in range(4_097)]
    trace = read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    assert trace.processes["rank"].to_pylist() == [None]


def test_operators_of_several_processes_have_a_cpu_each_without_work_of_gpus() -> None:
    """No rank is known: nothing but the process ids tells the processes apart."""
    ops = [event("cpu_op", f"op {at}", at, pid) for at in (10, 20) for pid in (40, 50, 60)]
    trace = read_bytes(json.dumps({"schemaVersion": 1, "traceEvents": ops}).encode())
    assert trace.processes["pid"].to_pylist() == [40, 50, 60]
    assert trace.processes["rank"].to_pylist() == [None] * 3
    analysis = analyze(trace)
    assert [device.chosen.components.idle_ns for device in analysis.devices] == [5_000] * 3
    assert products(analysis) == "CPU operators of 3 processes"
