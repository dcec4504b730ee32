"""What stands beside the events: ranks, clocks, devices, and what must never be read."""

import json
import random
from typing import Any

import pytest

from tests.parsers.documents import COMPACT, LAYOUTS, codes, printed, read_bytes
from traceflops.devices.merging import merge
from traceflops.parsers.pytorch.block import KinetoReader
from traceflops.table.trace import Trace

A100 = {
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 85_899_345_920,
    "computeMajor": 8,
    "computeMinor": 0,
    "numSms": 108,
    "warpSize": 32,
}
MI210 = A100 | {"name": "AMD Instinct MI210", "computeMajor": 9, "numSms": 104, "warpSize": 64}


def kernels(*devices: Any, ts: int = 5) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": d, "tid": 7, "ts": ts, "dur": 1}
        for d in devices
    ]


def trace_of(metadata: dict[str, Any], *devices: Any, name: str = "trace.json") -> Trace:
    return read_bytes(printed(kernels(*devices or (0,)), COMPACT, metadata).data, name=name)


# Process groups


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, ("[0, 2, 4]", "mesh_dp")),
        ({"Process Group Ranks": "[0, 2, ...]"}, ("[0, 2, 4]", "mesh_dp")),
        ({"Process Group Ranks": "[0, 1]", "Process Group Description": "x"}, ("[0, 1]", "x")),
        ({"Process Group Name": "8"}, (None, None)),
        ({"Process Group Name": None}, (None, None)),
    ],
)
def test_what_a_collective_does_not_say_of_its_group_the_metadata_does(
    own: dict[str, Any], found: tuple[str | None, str | None]
) -> None:
    config = [{"pg_name": "7", "pg_desc": "mesh_dp", "pg_size": 3, "ranks": [0, 2, 4]}, "?", {}]
    args = {"Collective name": "allreduce", "Process Group Name": "7", **own}
    events = [one | {"args": args} for one in kernels(0)]
    metadata = {"distributedInfo": {"rank": 0, "world_size": 6, "pg_config": config}}
    activities = read_bytes(printed(events, COMPACT, metadata).data).activities
    columns = ("collective_group_ranks", "collective_description")
    assert tuple(activities[name].to_pylist()[0] for name in columns) == found


# Ranks


@pytest.mark.parametrize(
    ("info", "rank", "world"),
    [
        ({"rank": 3, "world_size": 8}, 3, 8),
        ({"rank": "3", "world_size": "8"}, 3, 8),
        ({"rank": 0}, 0, None),
        ({}, None, None),
        (None, None, None),
        ([3], None, None),
        ("rank 3", None, None),
        ({"rank": -1, "world_size": 0}, None, 0),
        ({"rank": 2**31, "world_size": 2**64 + 8}, None, None),
        ({"rank": None, "world_size": True}, None, None),
    ],
)
def test_ranks(info: Any, rank: int | None, world: int | None) -> None:
    trace = trace_of({"distributedInfo": info})
    assert trace.ranks == (rank,)
    assert trace.processes["world_size"].to_pylist() == [world]


@pytest.mark.parametrize("layout", LAYOUTS[:5])
def test_the_rank_may_stand_before_or_behind_the_events(layout: Any) -> None:
    metadata = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "displayTimeUnit": "ms"}
    if layout.metadata != "none":
        assert read_bytes(printed(kernels(0), layout, metadata).data).ranks == (3,)
        reverse = dict(reversed(metadata.items()))
        assert read_bytes(printed(kernels(0), layout, reverse).data).ranks == (3,)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("trace_rank_12.json.gz", 12),
        ("RANK-07.json", 7),
        ("my.rank.4.pt.trace.json", 4),
        ("frank3.json", None),
        ("rank.json", None),
        ("rank12345678.json", None),
        ("3.json", None),
    ],
)
def test_the_file_name_is_the_second_source_of_the_rank(name: str, rank: int | None) -> None:
    trace = trace_of({}, name=name)
    assert trace.ranks == (rank,)
    assert ("rank-from-name" in codes(trace)) == (rank is not None)
    assert trace_of({"distributedInfo": {"rank": 1}}, name=name).ranks == (1,)


def test_a_rank_that_occurs_twice_is_said() -> None:
    both = [trace_of({"distributedInfo": {"rank": 2}}, name=n) for n in ("a.json", "b.json")]
    trace = merge(both)
    assert trace.ranks == (2, 2)
    assert trace.processes["file"].to_pylist() == ["a.json", "b.json"]
    (note,) = [note for note in trace.notes if note.code == "rank-clash"]
    assert "rank 2" in note.text


# Clocks


def test_ranks_with_different_bases_share_a_clock() -> None:
    base = 1_727_740_830_000_000_000
    bases = (base, base - 7_889_238_000_000_000)
    traces = [
        read_bytes(
            printed(
                kernels(0, ts=5 + (base - bases[rank]) // 1000),
                COMPACT,
                {"baseTimeNanoseconds": bases[rank], "distributedInfo": {"rank": rank}},
            ).data
        )
        for rank in (0, 1)
    ]
    trace = merge(traces)
    assert trace.activities["start_ns"].to_pylist() == [5_000, 5_000]
    assert trace.source.origin_unix_ns == base
    assert "clocks-not-aligned" not in codes(trace)


def test_a_rank_with_epoch_times_joins_one_with_a_base() -> None:
    base = 1_727_740_830_000_000_000
    old = read_bytes(printed(kernels(0, ts=base // 1000 + 5), COMPACT, {}).data, name="rank1.json")
    new = trace_of({"baseTimeNanoseconds": base, "distributedInfo": {"rank": 0}})
    assert merge([old, new]).activities["start_ns"].to_pylist() == [5_000, 5_000]


def test_a_clock_that_is_tied_to_nothing_is_said() -> None:
    traces = [trace_of({"distributedInfo": {"rank": rank}}) for rank in (0, 1)]
    assert "clocks-not-aligned" in codes(merge(traces))


# Devices


def products(trace: Trace) -> dict[int, str | None]:
    rows = trace.devices.to_pylist()
    return {row["local_id"]: row["product"] for row in rows}


def test_cuda_devices_are_found_by_their_id() -> None:
    listed = [A100 | {"id": 1}, A100 | {"id": 0, "name": "NVIDIA T4"}]
    trace = trace_of({"deviceProperties": listed}, 0, 1)
    assert products(trace) == {0: "NVIDIA T4", 1: A100["name"]}
    assert trace.devices.drop_columns(["device", "process", "type"]).to_pylist()[1] == {
        "local_id": 1,
        "product": "NVIDIA A100-SXM4-80GB",
        "memory_bytes": 85_899_345_920,
        "compute_major": 8,
        "compute_minor": 0,
        "sm_count": 108,
        "warp_size": 32,
        "architecture": None,
        "clock_hz": None,
        "dies": None,
    }


def test_a_rocm_number_is_no_index() -> None:
    """Device 1 of the file is not the second in the list, which is of another kind."""
    listed = [MI210 | {"id": 0}, MI210 | {"id": 1, "numSms": 220}]
    trace = trace_of({"deviceProperties": listed, "hip_runtime_version": 60_000_000}, 1)
    assert products(trace) == {1: None}
    assert trace.devices["sm_count"].to_pylist() == [None]
    (note,) = [note for note in trace.notes if note.code == "device-ambiguous"]
    assert "device 1:" in note.text


@pytest.mark.parametrize("memory", [85_899_345_920, 85_899_345_921])
def test_equal_devices_need_no_number(memory: int) -> None:
    listed = [MI210 | {"id": 0}, MI210 | {"id": 1, "totalGlobalMem": memory}]
    trace = trace_of({"deviceProperties": listed, "roctracer_version": 1}, 9)
    assert products(trace) == {9: MI210["name"]}
    assert "device-ambiguous" not in codes(trace)


def test_a_number_that_is_not_listed_is_ambiguous_only_among_different_devices() -> None:
    same = [A100 | {"id": 0}, A100 | {"id": 1}]
    assert products(trace_of({"deviceProperties": same}, 7)) == {7: A100["name"]}
    mixed = [A100 | {"id": 0}, A100 | {"id": 1, "name": "NVIDIA T4"}]
    trace = trace_of({"deviceProperties": mixed}, 7)
    assert products(trace) == {7: None}
    assert "device-ambiguous" in codes(trace)


@pytest.mark.parametrize("listed", [[], None, {}, "A100", [5], [None], [[]]])
def test_device_properties_may_be_anything(listed: Any) -> None:
    trace = trace_of({"deviceProperties": listed}, 0)
    assert products(trace) == {0: None}
    assert "device-ambiguous" not in codes(trace)


def test_odd_properties_are_missing_ones() -> None:
    odd = {"id": 0, "name": " ", "totalGlobalMem": "x", "computeMajor": -1, "numSms": 2**40}
    trace = trace_of({"deviceProperties": [odd]}, 0)
    row = trace.devices.to_pylist()[0]
    assert {k: v for k, v in row.items() if v is not None} == {
        "device": 0,
        "process": 0,
        "local_id": 0,
        "type": "gpu",
    }


def test_xpu_units_are_counted() -> None:
    trace = trace_of({"deviceProperties": [{"id": 0, "maxComputeUnits": 512}]}, 0)
    assert trace.devices["sm_count"].to_pylist() == [512]


# Facts, identities, and what is nobody's business

FACTS = {
    "schemaVersion": 1,
    "with_stack": 1,
    "record_shapes": 1,
    "cupti_version": 24,
    "cuda_runtime_version": 12080,
    "pytorch_version": "2.9.0",
}


def test_facts_of_the_recording() -> None:
    info = {"backend": "nccl", "nccl_version": "2.27.3", "rank": 0}
    facts = trace_of(FACTS | {"distributedInfo": info}).source.facts
    assert facts == {k: str(v) for k, v in FACTS.items()} | {
        "backend": "nccl",
        "nccl_version": "2.27.3",
    }


CANARY = "env-canary-5f1c"
SECRETS: dict[str, Any] = {
    "metadata": {"system": {"env": {"HF_TOKEN": CANARY, CANARY: "x"}}},
    "environ": [f"AWS_SECRET={CANARY}"],
    CANARY: CANARY,
    "job_name": CANARY,
    "command_line": f"python train.py --token {CANARY}",
    "WARNING": [CANARY],
    "traceName": f"/home/{CANARY}/trace.json",
    "trace_id": CANARY,
}


@pytest.mark.parametrize("layout", LAYOUTS[:5])
def test_what_is_not_asked_for_never_gets_into_a_trace(layout: Any) -> None:
    keys = list(SECRETS)
    random.Random(7).shuffle(keys)
    metadata = {key: SECRETS[key] for key in keys} | {"distributedInfo": {CANARY: CANARY}}
    metadata["deviceProperties"] = [A100 | {"id": 0, "uuid": CANARY}]
    extra = kernels(0)[0] | {"args": {"env": CANARY, "stream": 7}, "cname": CANARY}
    data = printed([extra], layout, metadata).data
    if layout.metadata != "none":
        assert data.count(CANARY.encode()) > 8
    assert CANARY not in everything(read_bytes(data))
    broken = data[:-1]  # the end is missing, so the text behind the events is salvaged
    assert CANARY not in everything(read_bytes(broken))


def everything(trace: Trace) -> str:
    """Return all that a trace holds, as text."""
    tables = {name: table.to_pydict() for name, table in trace.to_arrow().items()}
    dictionaries = [
        column.combine_chunks().dictionary.to_pylist()
        for table in trace.to_arrow().values()
        for column in table.columns
        if hasattr(column.type, "value_type") and hasattr(column.type, "index_type")
    ]
    return json.dumps([tables, dictionaries], default=str) + repr((trace.source, trace.notes))


def test_the_canary_test_looks_everywhere() -> None:
    named = kernels(0)[0] | {"name": CANARY}
    assert everything(read_bytes(printed([named], COMPACT, {}).data)).count(CANARY) == 2


def test_identities_are_told_so_that_they_can_be_hidden() -> None:
    trace = trace_of({"host_name": "node-17", "username": "alice", "hostname": "node-17"})
    assert trace.source.identities == ("node-17", "alice")
    assert trace.processes["host"].to_pylist() == ["node-17"]


def test_the_host_in_a_tensorboard_name_is_an_identity() -> None:
    trace = trace_of({}, name="node-17_4242.1704067200123456789.pt.trace.json.gz")
    assert trace.source.identities == ("node-17",)
    assert trace_of({}, name="rank0.json").source.identities == ()


@pytest.mark.parametrize("value", [5, None, [], {}, "", "  "])
def test_an_odd_host_name_is_none(value: Any) -> None:
    trace = trace_of({"host_name": value, "username": value})
    assert trace.source.identities == ()
    assert trace.processes["host"].to_pylist() == [None]


def test_the_process_is_the_one_that_most_calls_come_from() -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "c", "tid": 1, "ts": 1, "dur": 1}
    drawn = [*kernels(0), *(call | {"pid": pid} for pid in (11, 42, 42))]
    trace = read_bytes(printed(drawn, COMPACT, {}).data)
    assert trace.processes["pid"].to_pylist() == [42]


def test_metadata_at_the_end_does_not_make_other_events_be_decoded_again() -> None:
    kernel = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"stream": 7}}'
    name = b'{"name": "process_name", "ph": "M", "args": {"name": "python"}}'
    for events in ([kernel, name], [name], [kernel, name, name]):
        reader = KinetoReader()
        block = reader.read(b"[" + b",\n".join(events) + b"]")
        assert block is not None and reader._odd_blocks == 0
        counts = {"kernel": events.count(kernel), "phase M": events.count(name)}
        assert block.counts == {which: count for which, count in counts.items() if count}


# What recording cost


def cost_of(said: Any) -> list[str]:
    trace = trace_of({"traceflops_recording": said})
    return [note.text for note in trace.notes if note.code == "recording-cost"]


@pytest.mark.parametrize(
    ("before", "recorded", "shown"),
    [
        (
            2_000_000,
            2_100_000,
            "took 2.10 ms on average, steps before the recording 2.00 ms (+5.0 %)",
        ),
        (
            4_000_000_000,
            3_000_000_000,
            "took 3.00 s on average, steps before the recording 4.00 s (-25",
        ),
    ],
)
def test_what_recording_cost_is_told(before: int, recorded: int, shown: str) -> None:
    (text,) = cost_of({"unrecorded_step_ns": before, "recorded_step_ns": recorded, "more": [1]})
    assert shown in text


@pytest.mark.parametrize("value", [None, 0, -5, True, 1.5, "many", [1], {}, 2**70, "9" * 40])
def test_a_cost_that_cannot_be_is_not_told(value: Any) -> None:
    assert cost_of({"unrecorded_step_ns": value, "recorded_step_ns": 5}) == []
    assert cost_of({"unrecorded_step_ns": 5, "recorded_step_ns": value}) == []
    assert cost_of(value) == []
