"""What is read of XPlane files, by hand-made planes."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_traces.config import RunConfig
from sample_traces.machines import MACHINES
from sample_traces.messages import number, part
from sample_traces.simulate import simulate
from sample_traces.xplane import PlaneWriter, Said, line, xspace
from tests.conftest import examples, shared_file
from tests.parsers.documents import codes, read_one, source_of
from traceflops import analyze
from traceflops import read as read_file
from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.matching import match
from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.messages import Block, Messages, fields
from traceflops.parsers.xla.planes import MOST_THREADS
from traceflops.remedies import remedy
from traceflops.table.trace import Trace

Event = tuple[str, int, int, Mapping[str, Said]]
NOW = 1_767_225_600_123_456_789
KERNEL = {"kernel_details": "regs:40 static_shared:16 dynamic_shared:1024 grid:3,2,1 block:64,1,1"}


def plane(
    name: str,
    lines: Mapping[str, Iterable[Event]],
    start_ns: int = 0,
    shown: Mapping[str, str] | None = None,
    **facts: Said,
) -> bytes:
    writer = PlaneWriter(name, shown or {})
    written = [
        line(key, title, start_ns, [writer.event(*event) for event in events])
        for key, (title, events) in enumerate(lines.items(), 7)
    ]
    return part(1, writer.message(written, facts))


def gpu(*events: Event, **more: Any) -> bytes:
    return plane("/device:GPU:3", {"Stream #20(Compute)": events}, **more)


def read(*planes: bytes) -> Trace:
    return read_one(source_of(b"".join(planes), name="host.xplane.pb"))


def rows(trace: Trace, table: str, *names: str) -> list[Any]:
    found = trace.table(table).select(names).to_pylist()
    return [tuple(row.values()) if len(names) > 1 else row[names[0]] for row in found]


@pytest.mark.parametrize("thread", ["python3", "tf_gpu_private_4"])
def test_operators_of_tensorflow_ran_on_the_cpu_if_no_thread_is_of_a_gpu(thread: str) -> None:
    ms = 10**9  # in ps
    events: list[Event] = [
        ("net/conv_1:Conv2D", 0, 6 * ms, {}),
        ("Iterator::Model::Zip", 7 * ms, ms, {}),
        ("Relu:Relu", 8 * ms, 2 * ms, {}),
    ]
    shown = {"net/conv_1:Conv2D": "Conv2D", "Relu:Relu": "Relu", events[1][0]: "Iterator::Zip"}
    trace = read(plane("/host:CPU", {thread: events}, shown=shown))
    is_of_cpu = thread == "python3"
    assert rows(trace, "ops", "name") == (["Conv2D", "Relu"] if is_of_cpu else [])
    assert len(rows(trace, "marks", "name")) == (1 if is_of_cpu else 3)
    said = analyze(trace).verdict.sentence
    assert ("On the CPU, Conv2D takes 60.0 %" in said) == is_of_cpu


@pytest.mark.parametrize("thread", ["tf_XLAPjRtCpuClient/7", "tf_gpu_private_4"])
def test_operations_of_xla_ran_on_the_cpu_if_no_thread_is_of_a_gpu(thread: str) -> None:
    """The functions that call them, in a thread of their own, are the host's work between them."""
    ms = 10**9  # in ps
    of_xla: dict[str, Said] = {"hlo_op": "dot.3", "hlo_module": "jit_f"}
    work: list[Event] = [
        ("dot.3", 0, 2 * ms, of_xla),
        ("end: dot.3", 2 * ms, ms, {}),
        ("tanh.1", 8 * ms, 2 * ms, of_xla),
    ]
    python: list[Event] = [("$train.py:3 step", 0, 10 * ms, {})]
    trace = read(plane("/host:CPU", {thread: work, "python": python}))
    is_of_cpu = "Cpu" in thread
    assert rows(trace, "ops", "name") == (["dot.3", "tanh.1"] if is_of_cpu else [])
    if is_of_cpu:
        found = analyze(trace)
        assert found.idle.unexplained_ns == 0
        [only] = found.idle.by_class()
        assert (only.kind, only.idle_ns) == ("host_code", 6_000_000)
        assert only.culprits[0].label == "train.py(3): step"


def test_a_kernel_and_its_gpu() -> None:
    said: dict[str, Said] = {"correlation_id": 9, "hlo_module": "&jit_f", "hlo_op": "dot.3"}
    trace = read(
        gpu(
            ("k", 5_000, 7_000, {**KERNEL, **said, "name": "jit(f)/dot_general"}),
            (
                "k",
                20_000,
                1_000,
                {**KERNEL, "kernel_details": "regs:2191500840 static_shared:32462"},
            ),
            core_count=132,
            clock_rate=1_980_000,
            memory_size=85_017_624_576,
            compute_cap_major=9,
            gpu_device_name="NVIDIA H100 80GB HBM3",
        )
    )
    columns = ("name", "stream", "start_ns", "dur_ns", "correlation", "grid", "block")
    assert rows(trace, "activities", *columns) == [
        ("k", 20, 5, 7, 9, [3, 2, 1], [64, 1, 1]),
        ("k", 20, 20, 1, None, None, None),
    ]
    sizes = rows(trace, "activities", "registers_per_thread", "shared_memory_bytes", "annotation")
    assert sizes == [(40, 1040, "jit_f/dot.3: jit(f)/dot_general"), (None, None, None)]
    (device,) = trace.devices.to_pylist()
    facts = ("local_id", "product", "sm_count", "clock_hz", "memory_bytes", "compute_major")
    expected = (3, "NVIDIA H100 80GB HBM3", 132, 1_980_000_000, 85_017_624_576, 9)
    assert tuple(device[fact] for fact in facts) == expected
    assert device["compute_minor"] is device["warp_size"] is None


@pytest.mark.parametrize(
    ("name", "detail", "expected"),
    [
        ("MemcpyH2D", "memcpy_details", ("memcpy", "HtoD", 512)),
        ("MemcpyD2H", "", ("memcpy", "DtoH", None)),
        ("MemcpyP2P", "memcpy_details", ("memcpy", "PtoP", 512)),
        ("CopyDeviceToDevice", "memcpy_details", ("memcpy", "DtoD", 512)),
        ("MemcpyOther", "memcpy_details", ("memcpy", None, 512)),
        ("Memset", "memset_details", ("memset", None, 512)),
        ("memcpy_kernel", "", ("kernel", None, None)),
    ],
)
def test_copies_and_fills(name: str, detail: str, expected: tuple[Any, ...]) -> None:
    said = {detail: "kind:pinned size:512 dest:0 async:1"} if detail else {}
    assert rows(read(gpu((name, 0, 9000, said))), "activities", "kind", "direction", "bytes") == [
        expected
    ]


def test_what_repeats_the_time_of_streams_is_no_work() -> None:
    events: list[Event] = [("f", 0, 5_000, {})]
    lines = {"Stream #1": events, "XLA Ops": events, "XLA Modules": events, "Steps": events}
    trace = read(plane("/device:GPU:0", lines))
    assert rows(trace, "activities", "dur_ns") == [5]
    assert sorted(rows(trace, "marks", "kind", "dur_ns", "device")) == [
        ("gpu_annotation", 5, 0),
        ("gpu_step", 5, 0),
    ]


def test_steps_that_the_profiler_marks_are_steps() -> None:
    """Each GPU has its own; work of another step of the host may be launched in their time."""

    def device(number: int, shift: int, *steps: str) -> bytes:
        at = [(n, shift + 20_000_000 * n) for n in range(len(steps))]
        work: list[Event] = [("copy", 0, 1_000_000, {})]
        work += [(f"k{n}", begin + 5_000_000, 9_000_000, {}) for n, begin in at]
        marks: list[Event] = [
            (name, begin + 4_000_000, 12_000_000, {})
            for name, (_, begin) in zip(steps, at, strict=True)
        ]
        lines = {"Stream #1(Compute)": work} | ({"Steps": marks} if marks else {})
        return plane(f"/device:GPU:{number}", lines)

    trace = read(device(0, 0, "7", "8"), device(1, 3_000_000, "train 7", "train 8"), device(2, 0))
    found = analyze(trace)
    assert found.steps.seen == (7, 8)
    windows = {
        one.device: [(w.step, w.start_ns, w.end_ns) for w in one.windows if w.role == "step"]
        for one in found.devices
    }
    assert windows == {
        0: [(7, 5_000, 25_000), (8, 25_000, 34_000)],
        1: [(7, 8_000, 28_000), (8, 28_000, 37_000)],
        2: [],
    }


@pytest.mark.parametrize(
    ("idle", "threads"),
    [(0, (7, 7, 9, 9, 7, 11, 11)), (MOST_THREADS, (8, 8, 10, 10, 8, 11, 11))],
    ids=["usual", "too many lines to compare"],
)
def test_launches_on_rocm_are_of_the_thread_whose_events_are_around_them(
    idle: int, threads: tuple[int, ...]
) -> None:
    def launches(*starts: int) -> list[Event]:
        said = [(n, {"correlation_id": n}) for n in starts]
        return [("hipModuleLaunchKernel", n * 1_000, 2_000, one) for n, one in said]

    lines: dict[str, list[Event]] = {
        "python3": [("$train.py:3 main", 0, 900_000, {}), ("jit_step", 10_000, 50_000, {})],
        "Host Threads/1": launches(12, 30, 500),
        "worker": [("gemm.1", 100_000, 9_000, {}), ("gemm.2", 300_000, 9_000, {})],
        "Host Threads/2": launches(101, 302),
        "Host Threads/3": launches(950, 960),
        **{f"idle {n}": [("idle", 0, 1, {})] for n in range(idle)},
    }
    trace = read(plane("/host:CPU", lines), gpu(("k", 1_000_000, 9_000, {"correlation_id": 12})))
    assert rows(trace, "calls", "correlation", "thread") == list(
        zip((12, 30, 101, 302, 500, 950, 960), threads, strict=True)
    )


def test_the_step_of_tensorflow_on_two_of_eight_gpus() -> None:
    found = analyze(read_file(shared_file("verdicts/files/xprof-tf.xplane.pb")))
    used = [(d.local_id, w.dur_ns // 100_000) for d in found.devices for w in d.windows if w.used]
    assert used == [(4, 198), (6, 213)]


def test_the_host() -> None:
    events: list[Event] = [
        ("train", 0, 90_000, {"step_num": 12, "_r": 1}),
        ("$train.py:33 main", 1_000, 80_000, {}),
        ("$time sleep", 2_000, 3_000, {}),
        ("cuLaunchKernel", 8_000, 2_000, {"correlation_id": 9}),
        ("not a number", 9_000, 0, {"step_num": "x"}),
        ("hipMemcpyAsync", 11_000, 2_000, {"correlation_id": 10}),
        ("PjitFunction(f)", 20_000, 5_000, {}),
        ("ThreadpoolListener::Record", 21_000, 0, {}),
    ]
    trace = read(gpu(("k", 0, 1, KERNEL)), plane("/host:CPU", {"python": events}))
    columns = ("name", "api", "correlation", "thread", "start_ns")
    assert rows(trace, "calls", *columns) == [
        ("cuLaunchKernel", "driver", 9, 7, 8),
        ("hipMemcpyAsync", "hip", 10, 7, 11),
    ]
    assert rows(trace, "marks", "kind", "name") == [
        ("annotation", "train step 12"),
        ("python", "train.py(33): main"),
        ("python", "<built-in function sleep>"),
        ("instant", "not a number"),
        ("annotation", "PjitFunction(f)"),
        ("instant", "ThreadpoolListener::Record"),
    ]


@pytest.mark.parametrize(
    ("names", "told", "untold"),
    [
        (["PjitFunction(f)", "PjRtBuffer::Release"], "jax.profiler.", "tf.profiler."),
        (["EagerKernelExecute"], "tf.profiler.", "jax.profiler."),
    ],
)
def test_each_framework_is_told_of_its_own_profiler(
    names: list[str], told: str, untold: str
) -> None:
    events: list[Event] = [(name, 0, 1_000, {}) for name in names]
    trace = read(gpu(("k", 0, 1, KERNEL)), plane("/host:CPU", {"python": events}))
    for lack in ("device work", "steps", "stacks", "host work", "ranges"):
        said = str(remedy(trace, lack))
        assert told in said and untold not in said


def test_a_launch_may_be_named_as_its_kernel() -> None:
    """So calls of CUDA are in files of TensorFlow of 2020."""
    events: list[Event] = [
        ("void f<1>(int)", 8_000, 2_000, {"correlation_id": 9}),
        ("", 11_000, 2_000, {"correlation_id": 10}),
        ("Mul", 20_000, 2_000, {"correlation_id": 0}),
    ]
    trace = read(gpu(("k", 0, 1, KERNEL)), plane("/host:CPU", {"python": events}))
    assert rows(trace, "calls", "name", "api", "correlation") == [
        ("void f<1>(int)", "driver", 9),
        ("(unnamed)", "driver", 10),
    ]
    assert rows(trace, "marks", "name") == ["Mul"]
    alone = read(gpu(("k", 0, 1, KERNEL)), plane("/host:CPU", {"python": [("Mul", 0, 1_000, {})]}))
    assert rows(alone, "marks", "name") == ["Mul"]


def test_an_op_of_tensorflow() -> None:
    said = {"annotation": "layer/MatMul:MatMul#shape=(half[8,8])#::#edge_name=a#"}
    both = {"annotation": "Cast:Cast", "hlo_op": "dot.3"}
    trace = read(gpu(("k", 0, 1_000, said), ("k", 2_000, 1_000, both), ("k", 4_000, 1_000, {})))
    assert rows(trace, "activities", "annotation") == ["layer/MatMul:MatMul", "dot.3", None]


def test_the_memory_that_allocators_hold() -> None:
    def held(name: str, at: int, allocator: str, value: int) -> Event:
        return name, at, 0, {"allocator_name": allocator, "bytes_allocated": value}

    events: list[Event] = [
        held("MemoryAllocation", 5_000, "GPU_3_bfc", 2**40),
        held("MemoryDeallocation", 9_000, "GPU_3_bfc", 0),
        held("MemoryAllocation", 6_000, "gpu_host_bfc", 7),
        held("MemoryAllocation", 6_000, "GPU_5_bfc", 8),
        held("MemoryAllocation", 7_000, "GPU_3_bfc", -1),
        ("MemoryAllocation", 7_000, 0, {}),
    ]
    trace = read(plane("/host:CPU", {"python": events}), gpu(("k", 0, 1_000, KERNEL)))
    assert rows(trace, "counters", "name", "time_ns", "value", "device", "process") == [
        ("device_memory.allocated_bytes", 5, float(2**40), 0, 0),
        ("device_memory.allocated_bytes", 9, 0.0, 0, 0),
    ]
    assert trace.marks.num_rows == 0


def test_a_compute_capability_of_a_whole_number() -> None:
    facts: dict[str, Said] = {"core_count": 80, "compute_cap_major": 7, "compute_cap_minor": 0}
    facts |= {"memory_size": 16_945_512_448, "clock_rate": 1_530_000}
    (device,) = read(gpu(("k", 0, 1_000, KERNEL), **facts)).devices.to_pylist()
    assert (device["compute_major"], device["compute_minor"]) == (7, 0)
    assert match(SeenDevice.of(device)).spec.id == "v100-sxm2"  # type: ignore[union-attr]


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 9_999)), min_size=1, max_size=9))
@settings(max_examples=examples(100))
def test_both_ends_are_rounded_so_that_what_touches_still_does(
    spans: list[tuple[int, int]],
) -> None:
    events: list[Event] = []
    at, expected = 0, []
    for gap, dur in spans:
        ends = [
            math.floor(Fraction(ps, 1000) + Fraction(1, 2)) for ps in (at + gap, at + gap + dur)
        ]
        events.append(("k", at + gap, dur, KERNEL))
        expected.append((40 + ends[0], ends[1] - ends[0]))
        at += gap + dur
    found = rows(read(gpu(*events, start_ns=40)), "activities", "start_ns", "dur_ns")
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("start_ns", "began", "origin", "expected"),
    [(50, NOW, NOW, 50), (50, None, None, 50), (NOW, None, NOW, 0), (NOW, NOW - 9, NOW, 0)],
)
def test_the_calendar(start_ns: int, began: int | None, origin: int | None, expected: int) -> None:
    facts: Any = {} if began is None else {"profile_start_time": began}
    calendar = plane("Task Environment", {}, **facts)
    work = gpu(("k", 0, 3_000, KERNEL), start_ns=start_ns)
    for planes in ((work, calendar), (calendar, work)):
        trace = read(*planes)
        assert trace.source.origin_unix_ns == origin
        assert rows(trace, "activities", "start_ns") == [expected]


def test_other_devices_are_said_or_refused() -> None:
    tpu = plane("/device:TPU:0", {"XLA Ops": [("fusion", 0, 5_000, {})]})
    assert "planes-unread" in codes(read(gpu(("k", 0, 1_000, KERNEL)), tpu))
    with pytest.raises(NotATrace, match=r"another device than a GPU \(/device:TPU:0\)"):
        read(tpu)
    with pytest.raises(NotATrace, match="without events"):
        read(plane("/host:metadata", {}))
    with pytest.raises(InputError, match="2,000 devices"):
        read(*[gpu()] * 2_000)


SAMPLE = xspace(
    simulate(RunConfig(layers=1, steps=2, vocab=256)).ranks[0], MACHINES["h100"], python=True
)


def test_a_packed_file_and_the_host() -> None:
    plain, packed = read(SAMPLE), read_one(source_of(gzip.compress(SAMPLE), name="host.xplane.pb"))
    assert packed.tables == plain.tables
    assert packed.source.identities == ("sim-node-0",)


def test_the_host_is_known_without_its_port() -> None:
    trace = read(gpu(("k", 0, 1, KERNEL)), part(4, b"10.0.0.7:6003"))
    assert trace.source.identities == ("10.0.0.7:6003", "10.0.0.7")


def test_a_profiler_without_cupti_is_said_first() -> None:
    host = plane("/host:CPU", {"python": [("train", 0, 9_000, {})]})
    trace = read(host, plane("/device:GPU:0", {}), part(2, b"node: Failed to load libcupti"))
    assert "no-cupti" in codes(trace)
    assert analyze(trace).verdict.sentence.startswith("GPU records are missing: the profiler could")


_BEGINS = b"\x0a\x22"
"""With what a plane and the host begin: a cut just before them leaves a whole file."""


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
@settings(max_examples=examples(200), deadline=None)
def test_damage_is_said_or_refused(at: int, change: int) -> None:
    flipped = bytearray(SAMPLE)
    flipped[at] ^= change
    for data in (SAMPLE[:at], bytes(flipped)):
        try:
            trace = read(data)
        except InputError:
            continue
        if len(data) == at and SAMPLE[at] not in _BEGINS:
            assert "input-cut" in codes(trace)


@given(st.integers(0, 40_000), st.integers(0, 2**20))
@settings(max_examples=examples(300), deadline=None)
def test_no_length_of_the_first_plane_hides_what_it_is(size: int, key: int) -> None:
    """The signs of other binary formats are asked for first."""
    first = number(1, key) + part(2, b"/host:metadata") + part(4, bytes(size))
    kernel = gpu(("k", 0, 1_000, KERNEL))
    assert rows(read(part(1, first), kernel), "activities", "name") == ["k"]


@given(st.lists(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=3)), max_size=5)))
@settings(max_examples=examples(100))
def test_parts_that_repeat(content: list[list[tuple[int, bytes]]]) -> None:
    messages = [b"".join(part(key, text) for key, text in one) for one in content]
    ends = [sum(map(len, messages[: place + 1])) for place in range(len(messages))]
    block = Block(b"".join(messages))
    begin = np.array([0, *ends][: len(ends)], np.int64)
    said = Messages(block, begin, np.array(ends, np.int64)).columns((), repeated=2)
    owner, found = said.owner, said.each
    texts = block.texts(found.begin, found.end)
    expected = [
        (place, value)
        for place, one in enumerate(messages)
        for key, value in fields(one)
        if key == 2
    ]
    assert sorted(zip(owner.tolist(), texts, strict=True), key=lambda one: one[0]) == expected
