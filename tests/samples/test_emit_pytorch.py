"""Every variant of the emitted format, and that nothing is lost on the way into text."""

import gzip
import json
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import KinetoOptions, kineto_text, write_pytorch
from sample_traces.kineto_text import Digits, micros, ratio, render
from sample_traces.records import Activity, Call, Op, Run
from sample_traces.simulate import simulate
from tests.conftest import examples
from tests.samples.strategies import run_configs

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


@cache
def small_run() -> Run:
    return simulate(
        RunConfig(
            ranks=2,
            layers=1,
            first_step=5,
            lead_in=True,
            copy_stream=True,
            sync_each_step=True,
            zero_length_kernels=True,
            clock_skew_ns=777,
        )
    )


def loaded(options: KinetoOptions, rank: int = 0, run: Run | None = None) -> Any:
    """Return the written file, its decimal numbers still text."""
    return json.loads(kineto_text(run or small_run(), rank, options), parse_float=str)


def events(options: KinetoOptions, *categories: str) -> list[dict[str, Any]]:
    document = loaded(options)
    everything = document if options.style == "list" else document["traceEvents"]
    return [event for event in everything if event.get("cat") in categories]


def nanoseconds(text: str) -> int:
    whole, decimals = text.split(".")
    assert len(decimals) == 3
    return int(whole) * 1000 + int(decimals)


@given(st.integers(0, 2**63))
def test_micros_has_three_decimals_and_loses_nothing(time_ns: int) -> None:
    assert nanoseconds(micros(time_ns)) == time_ns


def test_ratio_rounds_down_to_six_decimals() -> None:
    assert ratio(24, 132) == "0.181818"
    assert ratio(5, 4) == "1.250000"


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(run_configs(steps=2), st.sampled_from(["pretty", "compact"]))
def test_every_time_reads_back_to_the_nanosecond(config: RunConfig, style: Any) -> None:
    run = simulate(config)
    for rank in run.ranks:
        document = loaded(KinetoOptions(style=style), rank.rank, run)
        base = document["baseTimeNanoseconds"] - rank.origin_unix_ns
        written = Counter(
            (
                event["cat"],
                event["name"],
                base + nanoseconds(event["ts"]),
                nanoseconds(event["dur"]),
            )
            for event in document["traceEvents"]
            if event.get("cat") in _DEVICE | {"cuda_runtime", "cpu_op"}
        )
        kinds = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
        happened: list[tuple[str, str, Activity | Call | Op]] = [
            (kinds[a.work.kind], a.work.name, a) for a in rank.activities
        ]
        happened += [("cuda_runtime", call.name, call) for call in rank.calls]
        happened += [("cpu_op", op.name, op) for op in rank.ops]
        assert written == Counter((c, n, x.start_ns, x.dur_ns) for c, n, x in happened)


def test_styles_hold_the_same_events() -> None:
    pretty, compact, bare = (
        loaded(KinetoOptions(style=style)) for style in ("pretty", "compact", "list")
    )
    assert pretty == compact
    assert bare == pretty["traceEvents"]


def test_pretty_is_laid_out_as_kineto_does() -> None:
    event = {
        "ph": "X",
        "name": "k",
        "ts": Digits("1.500"),
        "dur": Digits("0.001"),
        "args": {"a": 1},
    }
    expected = (
        '\n{\n  "schemaVersion": 1,\n  "traceEvents": [\n  {\n    "ph": "X", "name": "k",\n'
        '    "ts": 1.500, "dur": 0.001,\n    "args": {\n      "a": 1\n    }\n  }\n  ]\n}\n'
    )
    assert render({"schemaVersion": 1, "traceEvents": [event]}, "pretty") == expected


@pytest.mark.parametrize("place", ["before", "after"])
def test_metadata_stands_where_asked(place: Any) -> None:
    keys = list(loaded(KinetoOptions(metadata=place)))
    assert (keys.index("deviceProperties") < keys.index("traceEvents")) == (place == "before")
    assert keys[-1] == "traceName"


def test_absolute_times_are_whole_unix_microseconds() -> None:
    options = KinetoOptions(times="absolute")
    assert "baseTimeNanoseconds" not in loaded(options)
    rank = small_run().ranks[0]
    written = sorted((e["ts"], e["dur"]) for e in events(options, *_DEVICE))
    happened = ((rank.origin_unix_ns + a.start_ns, a.dur_ns) for a in rank.activities)
    assert written == sorted((start // 1000, dur // 1000) for start, dur in happened)


def test_another_base_moves_the_times_back() -> None:
    origin = small_run().ranks[0].origin_unix_ns
    document = loaded(KinetoOptions(base_unix_ns=origin - 5))
    assert document["baseTimeNanoseconds"] == origin - 5
    assert document["traceEvents"][-1]["name"] == "Record Window End"
    assert nanoseconds(document["traceEvents"][-1]["ts"]) == small_run().ranks[0].end_ns + 5


def test_clock_skew_reaches_the_file() -> None:
    first, second = (loaded(KinetoOptions(), rank)["traceEvents"][-3]["ts"] for rank in (0, 1))
    assert nanoseconds(second) - nanoseconds(first) == 777


@pytest.mark.parametrize(("ids", "kind"), [("number", int), ("string", str)])
def test_ids_are_numbers_or_strings(ids: Any, kind: type) -> None:
    options = KinetoOptions(ids=ids)
    kernels = events(options, "kernel")
    assert {type(event["args"]["correlation"]) for event in kernels} == {kind}
    ops = events(options, "cpu_op")
    assert {type(event["args"]["External id"]) for event in ops} == {kind}
    assert {type(event["id"]) for event in events(options, "ac2g")} == {kind}


def test_legacy_uses_the_names_of_2021() -> None:
    options = KinetoOptions(legacy=True, gpu_annotations=False, python_functions=True)
    categories = Counter(event.get("cat") for event in loaded(options)["traceEvents"])
    old = {"Operator", "Python", "Runtime", "Kernel", "Memcpy", "Memset"}
    assert old <= set(categories)
    assert set(categories) <= old | {"ac2g", "fwdbwd", "Trace", None}
    kernel = events(options, "Kernel")[-1]
    assert kernel["tid"] == "stream 7"
    assert "external id" in kernel["args"]
    assert all(event["tid"].isdigit() for event in events(options, "Operator", "Runtime"))


def test_flows_lead_from_calls_to_their_work() -> None:
    rank = small_run().ranks[0]
    flows = events(KinetoOptions(), "ac2g")
    starts = {flow["id"] for flow in flows if flow["ph"] == "s"}
    launching = {a.correlation for a in rank.activities if a.call is not None}
    assert starts == launching
    ends = Counter(flow["id"] for flow in flows if flow["ph"] == "f" and flow["pid"] == 0)
    assert ends == Counter(activity.correlation for activity in rank.activities)
    assert events(KinetoOptions(flows=False), "ac2g", "fwdbwd") == []


def test_gradient_flows_lead_from_forward_ops_to_their_backward() -> None:
    options = KinetoOptions()
    ops = {(op["tid"], op["ts"]): op for op in events(options, "cpu_op")}
    flows = events(options, "fwdbwd")
    ends = {(flow["ph"], flow["id"]): ops[flow["tid"], flow["ts"]] for flow in flows}
    linears = 0
    for (phase, number), forward in ends.items():
        if phase == "s":
            backward = ends["f", number]
            assert forward["args"]["Sequence number"] == backward["args"]["Sequence number"]
            linears += (forward["name"], backward["name"]) == ("aten::addmm", "AddmmBackward0")
    assert linears == 3 * 4


@pytest.mark.parametrize(
    ("option", "category"),
    [
        ("python_functions", "python_function"),
        ("memory", "cpu_instant_event"),
        ("gpu_annotations", "gpu_user_annotation"),
        ("cuda_sync", "cuda_sync"),
    ],
)
def test_categories_on_demand(option: str, category: str) -> None:
    chosen: dict[str, Any] = {option: True}
    left_out: dict[str, Any] = {option: False}
    assert events(KinetoOptions(**chosen), category)
    assert not events(KinetoOptions(**left_out), category)


def test_python_frames_name_their_parents() -> None:
    frames = events(KinetoOptions(python_functions=True), "python_function")
    by_id = {frame["args"]["Python id"]: frame for frame in frames}
    parents = {
        (frame["name"], by_id[parent]["name"])
        for frame in frames
        if (parent := frame["args"]["Python parent id"]) is not None
    }
    assert ("nn.Module: Block_0", "nn.Module: GPT_0") in parents


def test_step_annotations_on_the_device_surround_their_work() -> None:
    options = KinetoOptions()
    run = small_run().ranks[0]
    shift = run.origin_unix_ns - loaded(options)["baseTimeNanoseconds"]
    (annotation,) = (
        event
        for event in events(options, "gpu_user_annotation")
        if (event["name"], event["tid"]) == ("ProfilerStep#5", 7)
    )
    main = {i for i, call in enumerate(run.calls) if call.thread == run.main_thread}
    inside = [a for a in run.activities if a.step == 5 and a.stream == 7 and a.call in main]
    start_ns = nanoseconds(annotation["ts"]) - shift
    assert start_ns == min(a.start_ns for a in inside) - 1
    assert start_ns + nanoseconds(annotation["dur"]) == max(a.end_ns for a in inside) + 1


def test_shapes_on_demand() -> None:
    ops = events(KinetoOptions(), "cpu_op")
    product = next(event for event in ops if event["name"] == "aten::addmm")
    assert product["args"]["Input Dims"] == [[3072], [4096, 1024], [1024, 3072], [], []]
    assert product["args"]["Input Strides"] == [[1], [1024, 1], [1, 1024], [], []]
    assert product["args"]["Concrete Inputs"] == ["", "", "", "1", "1"]
    fused = next(event for event in ops if event["name"] == "aten::_fused_adamw_")
    assert fused["args"]["Input Dims"][0][0] == [8192 * 1024]
    without = KinetoOptions(shapes=False)
    assert not any("Input Dims" in event["args"] for event in events(without, "cpu_op"))
    assert "record_shapes" not in loaded(without)


def test_rank_stands_in_the_header_of_distributed_runs() -> None:
    info = loaded(KinetoOptions(), rank=1)["distributedInfo"]
    assert (info["rank"], info["world_size"]) == (1, 2)
    assert "distributedInfo" not in loaded(KinetoOptions(rank_metadata=False))
    alone = simulate(RunConfig(steps=1, layers=1))
    assert "distributedInfo" not in loaded(KinetoOptions(), 0, alone)


def test_collective_metadata_is_on_op_and_kernel() -> None:
    ops = [e for e in events(KinetoOptions(), "cpu_op") if e["name"] == "record_param_comms"]
    kernels = [e for e in events(KinetoOptions(), "kernel") if e["tid"] == 20]
    described = [event for event in kernels if "Collective name" in event["args"]]
    # The one of the lead-in was launched before the window, so nothing is known of it.
    assert len(described) == len(kernels) - 1 == len(ops)
    for op, kernel in zip(ops, described, strict=True):
        assert op["args"]["In msg nelems"] == kernel["args"]["In msg nelems"] > 0
        assert kernel["args"]["External id"] == op["args"]["External id"]


def test_device_number_is_shifted_but_not_the_properties() -> None:
    options = KinetoOptions(device_offset=2)
    for event in events(options, *_DEVICE, "gpu_user_annotation"):
        assert event["pid"] == 2
        assert event["args"].get("device", 2) == 2
    assert [device["id"] for device in loaded(options)["deviceProperties"]] == [0, 1]


def test_duplicates_write_every_device_event_twice() -> None:
    once = events(KinetoOptions(), *_DEVICE)
    twice = events(KinetoOptions(duplicates=True), *_DEVICE)
    assert twice == [event for event in once for _ in range(2)]


def test_external_ids_are_unique_and_calls_point_at_their_op() -> None:
    options = KinetoOptions()
    hosts = events(options, "cpu_op", "user_annotation")
    ids = [event["args"]["External id"] for event in hosts]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    names = {event["args"]["External id"]: event["name"] for event in hosts}
    copies = {
        names[event["args"]["External id"]]
        for event in events(options, "cuda_runtime")
        if event["name"] == "cudaMemcpyAsync"
    }
    assert copies == {"aten::copy_", "aten::_local_scalar_dense"}


@pytest.mark.parametrize("compression", ["none", "gzip", "zip"])
def test_files_hold_the_text(tmp_path: Path, compression: Any) -> None:
    options = KinetoOptions(compression=compression)
    paths = write_pytorch(small_run(), tmp_path, options)
    suffix = {"none": ".json", "gzip": ".json.gz", "zip": ".zip"}[compression]
    assert [path.name for path in paths] == [f"rank0{suffix}", f"rank1{suffix}"]
    for rank, path in enumerate(paths):
        assert unpacked(path, rank) == kineto_text(small_run(), rank, options)


def unpacked(path: Path, rank: int) -> str:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            assert archive.namelist() == [f"rank{rank}.json"]
            return archive.read(f"rank{rank}.json").decode()
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


@pytest.mark.parametrize("compression", ["gzip", "zip"])
def test_same_run_same_bytes(tmp_path: Path, compression: Any) -> None:
    options = KinetoOptions(compression=compression)
    config = RunConfig(layers=1, steps=1)
    (first,) = write_pytorch(simulate(config), tmp_path / "a", options)
    (second,) = write_pytorch(simulate(config), tmp_path / "b", options)
    assert first.read_bytes() == second.read_bytes()


def test_whole_graphs_cannot_be_written() -> None:
    run = simulate(RunConfig(layers=1, steps=1, cuda_graph=True, opaque_graph=True))
    with pytest.raises(ValueError, match="no event for a whole graph"):
        kineto_text(run, 0)


def test_graph_nodes_share_a_correlation_and_have_no_external_id() -> None:
    run = simulate(RunConfig(layers=1, steps=1, cuda_graph=True))
    nodes = [
        event["args"]
        for event in loaded(KinetoOptions(), 0, run)["traceEvents"]
        if "graph node id" in event.get("args", {})
    ]
    assert len({args["correlation"] for args in nodes}) == 1 < len(nodes)
    assert not any("External id" in args for args in nodes)
