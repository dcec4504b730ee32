"""What the host did while the device was idle: each class, exact sums, labelled recordings."""

import json
import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.build import launched, trace_of
from tests.conftest import ROOT, examples, shared_file
from traceflops import Intervals, Selection, Trace, analyze, read
from traceflops.analysis.preparation import prepare
from traceflops.attribution.culprits import (
    GapLengths,
    IdleCulprits,
    culprits_of,
    gap_lengths,
    gap_parts,
)
from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.idle_slices import GapParts
from traceflops.attribution.launch_lead import leads, outstanding_launches
from traceflops.reports.view.culprits import waits
from traceflops.reports.view.texts import all_texts
from traceflops.timeline.account import DeviceAccount
from traceflops.timeline.records import GapCulprit

US = 1_000
THREAD, ENGINE = 1, 2


def made(**host: list[dict[str, Any]]) -> Trace:
    """Return a kernel twice, idle from 20 to 1,010 us, again launched at 1,000 us; and a host."""
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 1_000 * US, 1_010 * US, 10 * US))
    run["calls"] += host.pop("calls", [])
    return trace_of(**run, **host)


def event(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    """Return an event of the host."""
    return {"name": name, "start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, **more}


def by_class(idle: IdleCulprits) -> dict[str, int]:
    """Return the idle time of each class in us."""
    sums: Counter[str] = Counter()
    for culprit in idle.culprits:
        sums[culprit.kind] += culprit.idle_ns // US
    return dict(sums)


def frame(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    """Return a Python frame."""
    return event(name, start_us, end_us, kind="python", **more)


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
CASES: dict[str, tuple[dict[str, list[dict[str, Any]]], str]] = {
    "data_input": (
        {"marks": [event(LOADER, 15, 1_000), frame("scipy/zoom.py(7): zoom", 16, 1_000)]},
        f"scipy/zoom.py(7): zoom in {LOADER}",
    ),
    "sync_call": (
        {
            "ops": [event("aten::item", 15, 1_000)],
            "calls": [event("cudaMemcpyAsync", 18, 1_000)],
        },
        "cudaMemcpyAsync in aten::item",
    ),
    "blocking_copy": (
        {"ops": [event("aten::to", 15, 1_000)], "calls": [event("cudaMemcpyAsync", 18, 1_000)]},
        "cudaMemcpyAsync in aten::to",
    ),
    "memory_alloc": ({"calls": [event("cudaMalloc", 15, 1_000)]}, "cudaMalloc"),
    "slow_driver_call": ({"calls": [event("cudaStreamCreate", 15, 1_000)]}, "cudaStreamCreate"),
    "compiled_runtime": (
        {"ops": [event("TorchDynamo Cache Lookup", 15, 1_000)]},
        "TorchDynamo Cache Lookup",
    ),
    "optimizer_loop": (
        {
            "marks": [event("Optimizer.step#Adam.step", 5, 1_000)],
            "ops": [event("aten::add", 15, 1_000)],
        },
        "Optimizer.step#Adam.step",
    ),
    "own_sleep": (
        {"marks": [frame("<built-in function sleep>", 15, 1_000), frame("m.py(3): run", 1, 1_005)]},
        "m.py(3): run",
    ),
    "external_wait": (
        {"marks": [frame("queue.py(154): get", 15, 1_000), frame("main.py(3): run", 1, 1_005)]},
        "main.py(3): run",
    ),
    "external_wait of ranks": ({"marks": [event("MPI_Waitall", 5, 1_000)]}, "MPI_Waitall"),
    "host_code": (
        {
            "marks": [
                frame("train/metrics.py(9): log", 1, 1_005),
                frame("<built-in sum>", 20, 1_000),
            ]
        },
        "train/metrics.py(9): log",
    ),
    "other_calls": (
        {"calls": [event("cudaEventRecord", at, at + 10) for at in range(20, 1_000, 10)]},
        "cudaEventRecord",
    ),
    "eager_overhead": (
        {"ops": [event("aten::view", at, at + 10) for at in range(20, 1_000, 10)]},
        "aten::view",
    ),
    "thread_handover": ({"ops": [event("backward", 5, 20, thread=ENGINE)]}, ""),
    "host_unrecorded": ({"marks": [event("IO 190", 5, 1_000)]}, "IO"),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_gap_before_a_launch_has_the_class_of_what_the_host_did(kind: str) -> None:
    host, label = CASES[kind]
    idle = analyze(made(**host)).idle
    assert by_class(idle) == {kind.partition(" ")[0]: 980, "launch_latency": 10}
    assert idle.culprits[0].label == label
    assert idle.culprits[0].gaps == 1
    assert idle.unexplained_ns == 0


ZOOM, RESIZE = "scipy/ndimage/_interpolation.py(776): zoom", "hf/image_transforms.py(302): resize"
HOOK, CALL = "vllm/parameter.py(122): __torch_function__", "vllm/decorators.py(367): __call__"
TRAIN, OF_TORCH = "train.py(3): run", "torch/utils/data/dataloader.py(732): __next__"


@pytest.mark.parametrize(
    ("stack", "op", "label"),
    [
        ((TRAIN, LOADER, RESIZE, ZOOM, "<built-in zoom_shift>"), "", f"{ZOOM} in {RESIZE}"),
        ((TRAIN, LOADER, RESIZE, "torch/nn/functional.py(9): pad"), "aten::pad", RESIZE),
        ((TRAIN, LOADER, "PIL/Image.py(9): load"), "", f"PIL/Image.py(9): load in {LOADER}"),
        ((TRAIN, LOADER, "torch/utils/data/_utils/collate.py(5): f"), "aten::stack", LOADER),
        ((TRAIN, OF_TORCH), "aten::stack", OF_TORCH),
        ((LOADER,), "aten::stack", LOADER),
        ((TRAIN, RESIZE, HOOK), "aten::linear", RESIZE),
        ((TRAIN, RESIZE, CALL, "<built-in sum>"), "", f"{CALL} in {RESIZE}"),
        ((CALL,), "aten::linear", CALL),
        (("<ipython-input-3-5e>(4): fit",), "aten::mm", "<ipython-input-3-5e>(4): fit"),
        ((TRAIN, "<frozen os>(8): getenv", "<string>(2): __init__"), "", TRAIN),
        ((TRAIN, "data.py(9): __getitem__"), "", "data.py(9): __getitem__"),
        ((TRAIN, "Optimizer.step#Adam.step", ZOOM), "", "Optimizer.step#Adam.step"),
    ],
)
def test_a_name_is_what_its_owner_can_open(stack: tuple[str, ...], op: str, label: str) -> None:
    """Each of the stack lies in the one before it; an operator, if any, in all of them."""
    marks = [
        (frame if "(" in name and "#" not in name else event)(name, 11 + at, 1_000)
        for at, name in enumerate(stack)
    ]
    ops = [event(op, 20, 1_000)] if op else []
    longest = max(analyze(made(marks=marks, ops=ops)).idle.culprits, key=lambda one: one.idle_ns)
    assert longest.label == label


def test_what_has_no_name_lies_between_others() -> None:
    around = [event("aten::add", 12, 30), event("aten::mul", 900, 1_005)]
    inside = [event("aten::fill_", 13, 30), event("aten::copy_", 900, 950)]
    idle = analyze(made(ops=around + inside)).idle
    (unnamed,) = [one for one in idle.culprits if not one.label]
    assert (unnamed.kind, unnamed.idle_ns) == ("host_unrecorded", 870 * US)
    assert unnamed.evidence == ("between aten::add and aten::mul",)


@pytest.mark.parametrize(
    ("format_", "how"),
    [
        ("pytorch", "record with with_stack=True, or record_function() around code between "),
        (
            "rocprof",
            "record with rocprofv3 --runtime-trace --rccl-trace, and roctx ranges around the code",
        ),
        ("nsight", "record with nsys profile --trace=cuda,nvtx,osrt, and NVTX ranges"),
    ],
)
def test_where_no_range_is_named_the_help_is_what_to_record(format_: str, how: str) -> None:
    for marks, is_named in ([], False), ([event("IO 190", 5, 1_000)], True):
        trace = made(marks=marks)
        analysis = analyze(replace(trace, source=replace(trace.source, format=format_)))
        [help_] = [one.remedy for one in waits(analysis) if one.words == "untraced host time"]
        assert help_.startswith(how) != is_named
        assert ("put ranges around" in help_) == is_named
        [one] = [one for one in analysis.idle.by_class() if one.kind == "host_unrecorded"]
        assert (one.remedy == "idle.remedy.host_unrecorded") == is_named


def test_a_label_inside_a_function_tells_up_to_its_edges() -> None:
    marks = [frame("train.py(3): run", 1, 1_005), event(LOADER, 200, 700)]
    assert by_class(analyze(made(marks=marks)).idle) == {
        "data_input": 500,
        "host_code": 480,
        "launch_latency": 10,
    }


@pytest.mark.parametrize(
    ("around", "kind"), [("WaitForGPU", "sync_call"), ("Serve", "external_wait")]
)
def test_a_lock_is_a_wait_for_the_gpu_where_a_library_says_so(around: str, kind: str) -> None:
    marks = [event(around, 15, 1_000), event("futex", 20, 1_000, kind="system")]
    assert by_class(analyze(made(marks=marks)).idle)[kind] == 980


def test_before_the_first_event_of_the_host_no_thread_has_handed_over() -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("second", 30 * US, 40 * US, 10 * US))
    run["activities"][0]["correlation"] = None
    del run["calls"][0]
    assert by_class(analyze(trace_of(**run)).idle) == {"host_unrecorded": 10, "launch_latency": 10}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        *((name, "sync_call") for name in ("hipDeviceSynchronize", "hipEventSynchronize")),
        *((name, "sync_call") for name in ("cuCtxSynchronize", "hsa_signal_wait_scacquire")),
        *((name, "blocking_copy") for name in ("hipMemcpyWithStream", "cudaMemcpy2D")),
        *((name, "blocking_copy") for name in ("cuMemcpyDtoHAsync_v2", "hsa_memory_copy")),
        *((name, "memory_alloc") for name in ("hipMalloc", "hipFree", "cuMemCreate", "cuMemUnmap")),
        *((name, "memory_alloc") for name in ("hsa_amd_memory_pool_allocate", "hipHostMalloc")),
        *((name, "slow_driver_call") for name in ("hipStreamCreate", "cuEventCreate")),
    ],
)
def test_a_call_has_the_class_of_its_name(call: str, expected: str) -> None:
    idle = analyze(made(calls=[event(call, 15, 1_000)])).idle
    assert by_class(idle) == {expected: 980, "launch_latency": 10}


def system(name: str, start_us: int, end_us: int) -> dict[str, Any]:
    """Return a call of the operating system."""
    return event(name, start_us, end_us, kind="system")


def test_what_a_call_does_inside_is_part_of_the_call() -> None:
    calls = [event("hipMemcpy", 15, 1_000), event("hsa_signal_wait_relaxed", 100, 990)]
    idle = analyze(made(calls=calls, marks=[system("ioctl", 200, 900)])).idle
    assert by_class(idle) == {"blocking_copy": 980, "launch_latency": 10}
    assert idle.culprits[0].label == "hipMemcpy"


def test_a_call_is_inside_an_operator_of_the_same_times() -> None:
    calls, ops = [event("cudaDeviceSynchronize", 15, 1_000)], [event("aten::add", 15, 1_000)]
    idle = analyze(made(calls=calls, ops=ops)).idle
    assert idle.culprits[0].kind == "sync_call"
    assert idle.culprits[0].label == "cudaDeviceSynchronize in aten::add"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, "host_code") for name in ("write", "open64", "fsync")),
        *((name, "external_wait") for name in ("pthread_cond_wait", "poll", "recvmsg", "waitpid")),
        *((name, "external_wait") for name in ("getc", "fgets", "scanf", "getline")),
        *((name, "own_sleep") for name in ("nanosleep", "clock_nanosleep", "usleep", "Sleep")),
        *((name, "host_code") for name in ("pthread_cond_signal", "sem_post", "execve")),
    ],
)
def test_calls_of_the_system_are_named_with_the_annotation_around(name: str, expected: str) -> None:
    marks = [event("IO 190", 5, 1_000), system(name, 20, 1_000)]
    idle = analyze(made(marks=marks)).idle
    assert by_class(idle) == {expected: 980, "launch_latency": 10}
    assert idle.culprits[0].label == f"{name} in IO"


@pytest.mark.parametrize(
    ("label", "others", "shown"),
    [
        ("IO 190", (), "IO"),
        ("IO 190", ("IO 191",), "IO"),
        ("IO 190", ("IO 190",), "IO 190"),
        ("epoch 3 batch #12", (), "epoch 3 batch"),
        ("epoch 3 batch #12", ("epoch 4 batch #1",), "epoch N batch"),
        ("conv2d", (), "conv2d"),
        ("conv2d", ("conv3d",), "convNd"),
        ("resize()", (), "resize()"),
        ("12", (), "12"),
        ("12", ("13",), "N"),
        ("moe[tokens=64, topk=2]", (), "moe[tokens=64, topk=2]"),
        ("moe[tokens=64, topk=2]", ("moe[tokens=64, topk=2]",), "moe[tokens=64, topk=2]"),
        ("moe[tokens=64, topk=2]", ("moe[tokens=99, topk=2]",), "moe[tokens=N, topk=2]"),
        ("moe[tokens=64, topk=2]", ("moe[tokens=64, topk=4]",), "moe[tokens=64, topk=N]"),
        ("f(x, {y: 3})", ("f(x, {y: 4})",), "f(x, {y: N})"),
        ('say "take 3"', ('say "take 4"',), 'say "take N"'),
        ("推論 [層 3]", ("推論 [層 4]",), "推論 [層 N]"),
        ("IO (3)", ("IO (4)",), "IO"),
    ],
)
def test_ranges_are_called_without_the_numbers_that_differ(
    label: str, others: tuple[str, ...], shown: str
) -> None:
    marks = [event(label, 5, 1_000), *(event(one, 2_000, 2_001) for one in others)]
    idle = analyze(made(marks=marks)).idle
    assert idle.culprits[0].label == shown


def test_a_step_does_not_name_a_call() -> None:
    marks, calls = [event("step 12", 0, 1_005)], [event("hipMalloc", 15, 1_000)]
    assert analyze(made(marks=marks, calls=calls)).idle.culprits[0].label == "hipMalloc"


def test_another_thread_tells_where_the_launching_one_runs_a_backward_pass() -> None:
    waiting = frame("<built-in method run_backward of type object at 0x1>", 5, 1_005)
    ops = [event("MulBackward0", 20, 1_000, thread=ENGINE)]
    idle = analyze(made(marks=[waiting], ops=ops)).idle
    assert by_class(idle) == {"host_code": 980, "launch_latency": 10}
    assert idle.culprits[0].label == "MulBackward0"


def test_after_a_long_silence_nothing_connects_two_threads() -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 2_000 * US, 2_010 * US, 10 * US))
    trace = trace_of(**run, ops=[event("backward", 5, 20, thread=ENGINE)])
    assert by_class(analyze(trace).idle) == {"host_unrecorded": 1_980, "launch_latency": 10}


def test_gaps_between_work_of_one_replayed_graph_are_no_launch_latency() -> None:
    """Four kernels of one graph, with gaps of 5 us; the call returns while they run."""
    run = launched(("first", 0, 10 * US, 10 * US), ("k", 100 * US, 110 * US, 10 * US))
    run["calls"][1] |= {"name": "cudaGraphLaunch", "dur_ns": 30 * US}
    replayed = run["activities"][1]
    run["activities"] += [
        replayed | {"start_ns": (110 + 15 * n) * US, "name": f"k{n}"} for n in range(1, 4)
    ]
    idle = by_class(analyze(trace_of(**run)).idle)
    assert idle == {"graph_gaps": 15, "launch_latency": 10, "host_unrecorded": 80}


def test_a_backward_pass_that_no_thread_shows_is_a_handover() -> None:
    waiting = frame("<built-in method run_backward of type object at 0x1>", 5, 1_005)
    assert by_class(analyze(made(marks=[waiting])).idle) == {
        "thread_handover": 980,
        "launch_latency": 10,
    }


@pytest.mark.parametrize(
    ("call", "dur_us", "expected"),
    [
        ("cudaLaunchKernel", 5, {"launch_latency": 5, "device_wait": 985}),
        ("cudaLaunchKernel", 600, {"slow_driver_call": 600, "device_wait": 390}),
        ("cudaLaunchKernel", 985, {"slow_driver_call": 985, "launch_latency": 5}),
        ("cudaMemcpy", 985, {"blocking_copy": 985, "launch_latency": 5}),
        ("cudaMemcpyAsync", 985, {"blocking_copy": 985, "launch_latency": 5}),
    ],
)
def test_from_the_launch_on_it_is_the_call_and_then_the_device(
    call: str, dur_us: int, expected: dict[str, int]
) -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 20 * US, 1_010 * US, 10 * US))
    run["calls"][1] |= {"name": call, "dur_ns": dur_us * US}
    assert by_class(analyze(trace_of(**run)).idle) == expected


@pytest.mark.parametrize(
    ("call", "thread", "allocates"),
    [("cudaMalloc", 1, True), ("cudaMalloc", 2, False), ("cudaFree", 1, False)],
)
def test_queued_work_that_is_late_while_its_thread_allocates_memory_waits_for_that(
    call: str, thread: int, *, allocates: bool
) -> None:
    """The gap is of 1,490 us, of which the launch takes 5; memory that is freed waits for work."""
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 20 * US, 1_510 * US, 10 * US))
    run["calls"][1] |= {"name": "cudaLaunchKernel", "dur_ns": 5 * US}
    more = {"name": call, "start_ns": 110 * US, "dur_ns": 900 * US, "thread": thread}
    run["calls"].append(more)
    analysis = analyze(trace_of(**run))
    late = {"memory_alloc": 900, "device_wait": 585} if allocates else {"device_wait": 1_485}
    assert by_class(analysis.idle) == {"launch_latency": 5} | late
    assert analysis.total.idle_causes.unrecorded_ns == (585 if allocates else 1_485) * US


@pytest.mark.parametrize(
    ("call_us", "after_us", "expected"),
    [
        (22, 5, {"launch_latency": 27}),
        (25, 5, {"slow_driver_call": 25, "launch_latency": 5}),
        (22, 30, {"launch_latency": 22, "device_wait": 30}),
    ],
)
def test_a_launch_is_slow_if_its_call_alone_takes_longer_than_an_ordinary_launch(
    call_us: int, after_us: int, expected: dict[str, int]
) -> None:
    """The floor of nine launches is 8 us, so ordinary are 24 us; their calls take 7 us."""
    works = [(f"k{at}", at * 100 * US, (at * 100 + 8) * US, 92 * US) for at in range(9)]
    last = ("last", 900 * US, (900 + call_us + after_us) * US, US)
    run = launched(*works, last)
    for call in run["calls"]:
        call["dur_ns"] = 7 * US
    run["calls"][-1]["dur_ns"] = call_us * US
    assert by_class(analyze(trace_of(**run)).idle) == Counter(expected) + Counter(launch_latency=64)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("triton/runtime/jit.py(574): run", "compiled_runtime"),
        ("/opt/site-packages/triton/compiler.py(9): launch_metadata", "compiled_runtime"),
        ("torch/_functorch/_aot_autograd/utils.py(119): call", "compiled_runtime"),
        (f"/tmp/torchinductor_me/ab/c{'ab3' * 17}.py(10): call", "compiled_runtime"),
        ("aiter/ops/triton/attention.py(103): attention", "host_code"),
        ("triton_kernels/matmul.py(352): matmul", "host_code"),
    ],
)
def test_what_is_built_in_has_the_class_of_what_calls_it(function: str, expected: str) -> None:
    marks = [frame(function, 15, 1_000), frame("<built-in method get of dict>", 20, 900)]
    idle = analyze(made(marks=marks)).idle
    assert by_class(idle) == {expected: 980, "launch_latency": 10}


def test_a_wait_before_a_gap_is_said() -> None:
    sync = event("cudaDeviceSynchronize", 5, 25)
    idle = analyze(made(calls=[sync], ops=[event("aten::add", 25, 1_000)])).idle
    assert {one.kind: one.blocked_before_ns // US for one in idle.culprits} == {
        "sync_call": 5,
        "host_code": 975,
        "launch_latency": 10,
    }


def test_without_a_launch_idle_time_is_unexplained() -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("second", 15 * US, 30 * US, 10 * US))
    run["activities"][1]["correlation"] = None
    lengths = GapLengths(10 * US, 100 * US, 1, 10 * US)
    assert analyze(trace_of(**run)).idle == IdleCulprits((), 10 * US, (lengths,))


@pytest.mark.parametrize(
    ("whys", "page_faults"),
    [(("", "", "eviction ", "prefetch "), 30), (("", "", "prefetch ", "prefetch "), 60)],
)
def test_between_pages_that_the_host_touches_idle_time_is_its_page_faults(
    whys: tuple[str, ...], page_faults: int
) -> None:
    """A kernel, then four pages to the host 30 us apart; the last two make room, or were asked.

    Until it asks, the host works on what it touched.
    """
    begins = [0, 40, 80, 120, 160]
    run = launched(*((f"work {at}", 0, begin * US, 10 * US) for at, begin in enumerate(begins)))
    of_pages = {"kind": "memcpy", "direction": "migration DtoH", "correlation": None}
    for row, why in zip(run["activities"][1:], whys, strict=True):
        row |= of_pages | {"name": f"Unified memory {why}DtoH"}
    idle = analyze(trace_of(**run)).idle
    assert by_class(idle) == {"host_page_faults": page_faults}
    assert idle.culprits[0].label == "Unified memory DtoH"
    assert idle.unexplained_ns == (120 - page_faults) * US


def test_gaps_are_counted_by_decade_of_their_length() -> None:
    lengths = np.array([1, 9, 10, 999, 1_000, 2 * 10**18])
    shown = gap_lengths(lengths)
    assert [one.from_ns for one in shown] == [10**power for power in range(18)]
    assert all(one.to_ns == 10 * one.from_ns for one in shown)
    assert [(one.gaps, one.idle_ns) for one in shown[:4]] == [(2, 10), (1, 10), (1, 999), (1, 1000)]
    assert {(one.gaps, one.idle_ns) for one in shown[4:-1]} == {(0, 0)}
    assert (shown[-1].gaps, shown[-1].idle_ns) == (1, 2 * 10**18)
    assert gap_lengths(np.empty(0, np.int64)) == ()


def test_each_of_the_longest_gaps_has_its_culprits() -> None:
    """Twelve gaps before launches, the longest last: two functions in each, longer than a wait."""
    works, marks, now = [("first", 0, 0, US)], [], 1
    for gap in range(12):
        start, length = now, 1_000 + gap
        marks += [frame(f"a.py({gap}): f", start, start + 300)]
        marks += [frame(f"a.py({gap}): g", start + 300, start + 550)]
        marks += [frame("queue.py(154): get", start + 550, start + length)]
        now = start + length
        works.append((f"k{gap}", now * US, now * US, US))
        now += 1
    gaps = analyze(trace_of(**launched(*works), marks=marks)).gaps(20)
    assert [gap.culprits for gap in gaps] == [
        (
            GapCulprit("host_code", f"a.py({gap}): f", 300 * US),
            GapCulprit("host_code", f"a.py({gap}): g", 250 * US),
            GapCulprit("external_wait", "queue.py(154): get", (450 + gap) * US),
        )
        for gap in range(11, -1, -1)
    ]


def test_a_gap_has_culprits_outside_the_chosen_window_and_sums_up_the_small_ones() -> None:
    """A gap of 1,000 us before a launch, of which the window has the last 100: eight functions."""
    marks = [frame(f"a.py({place}): f", 1 + 100 * place, 101 + 100 * place) for place in range(8)]
    run = launched(("first", 0, 0, US), ("second", 1_001 * US, 1_001 * US, US))
    trace = trace_of(**run, marks=[*marks, frame("a.py(8): f", 801, 1_001)])
    analysis = analyze(trace, Selection(from_ns=900 * US, to_ns=1_000 * US))
    assert analysis.idle.culprits[0].idle_ns == 100 * US
    [gap] = analysis.gaps()
    label = [culprit.label for culprit in gap.culprits]
    assert label == ["a.py(8): f", "a.py(0): f", "a.py(1): f", "(others)"]
    assert [culprit.idle_ns // US for culprit in gap.culprits] == [200, 100, 100, 600]
    assert gap.unexplained_ns == 0


def test_a_gap_without_a_launch_is_unexplained() -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("second", 15 * US, 30 * US, 10 * US))
    run["activities"][1]["correlation"] = None
    [gap] = analyze(trace_of(**run)).gaps()
    assert (gap.culprits, gap.unexplained_ns) == ((), 10 * US)


def test_a_gap_over_the_edge_of_two_windows_is_one() -> None:
    """Two chosen steps meet within the gap from 20 to 1,010 us."""
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 1_000 * US, 1_010 * US, 10 * US))
    steps = [event("ProfilerStep#1", 0, 500), event("ProfilerStep#2", 500, 1_100)]
    marks = [{**step, "kind": "step"} for step in steps]
    lengths = analyze(trace_of(**run, marks=marks)).idle.histogram
    assert sum(one.gaps for one in lengths if one.from_ns == 100 * US) == 1


def test_the_docs_have_the_remedies_that_reports_give() -> None:
    rows = re.findall(
        r"^\| `([\w -]+)` \| .* \| (.*) \|$", (ROOT / "docs/culprits.md").read_text(), re.M
    )
    start = "idle.remedy."
    told = {code.removeprefix(start): text for code, text in all_texts().items() if start in code}
    told.pop("nameless")
    assert {kind.replace(" ", "-"): remedy.replace("`", "") for kind, remedy in rows} == told
    assert [*told, "unexplained", "start_up"] == [*CLASSES]


def test_before_the_first_call_of_a_process_no_thread_hands_over() -> None:
    run = launched(("first", 0, 10 * US, 10 * US), ("first", 1_000 * US, 1_010 * US, 10 * US))
    run["activities"][0]["correlation"] = None
    del run["calls"][0]
    assert by_class(analyze(trace_of(**run)).idle) == {"host_unrecorded": 980, "launch_latency": 10}


def test_a_library_label_is_work_and_one_of_a_user_is_not() -> None:
    marks = [event("nccl:all_to_all", 15, 500), event("validate 3", 500, 1_000)]
    idle = analyze(made(marks=marks)).idle
    assert by_class(idle) == {"eager_overhead": 480, "host_unrecorded": 500, "launch_latency": 10}


NAMES = (LOADER, "cudaMalloc", "cudaMemcpy", "aten::add", "f.py(1): f", "x")
WORK = st.lists(
    st.tuples(st.just("k"), st.integers(0, 300), st.integers(0, 100), st.integers(1, 60)),
    min_size=1,
    max_size=8,
).map(lambda work: launched(*((name, at, at + wait, dur) for name, at, wait, dur in work)))


def host_rows(
    kinds: tuple[str, ...], names: tuple[str, ...]
) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    """Return lists of rows of some kinds and names, on three threads."""
    row = st.fixed_dictionaries(
        {
            "name": st.sampled_from(names),
            "start_ns": st.integers(0, 400),
            "dur_ns": st.integers(0, 200),
            "thread": st.integers(1, 3),
        }
    )
    return st.lists(st.tuples(st.sampled_from(kinds), row), max_size=15)


@settings(max_examples=examples(500), deadline=None)
@given(host_rows(("calls", "ops", "marks"), NAMES), WORK)
@example(
    [("calls", {"name": "cudaMemcpy", "start_ns": 0, "dur_ns": 2, "thread": 1})],
    launched(("k", 0, 1, 1), ("k", 0, 3, 1)),
)
def test_culprits_and_what_is_unexplained_sum_to_the_idle_time(
    host: list[tuple[str, dict[str, Any]]], work: dict[str, list[dict[str, Any]]]
) -> None:
    tables = {table: list(rows) for table, rows in work.items()}
    for table, row in host:
        tables.setdefault(table, []).append(row)
    analysis = analyze(trace_of(**tables))
    told = sum(culprit.idle_ns for culprit in analysis.idle.culprits)
    assert told + analysis.idle.unexplained_ns == analysis.components.idle_ns
    assert analysis.idle.unexplained_ns == 0
    assert {gap.unexplained_ns for gap in analysis.gaps()} <= {0}
    for call in analysis.synchronisations:
        assert call.idle_after_ns <= min(call.blocked_ns, analysis.components.idle_ns)
    assert sum(one.idle_ns for one in analysis.idle.histogram) == analysis.components.idle_ns
    assert sum(one.idle_ns for one in analysis.idle.by_class()) == told
    assert all(culprit.idle_ns > 0 and culprit.gaps > 0 for culprit in analysis.idle.culprits)


LABELS = "diagnosis/expected_culprits.json"
LABELLED = (
    *("b200_vllm_gptoss_prefill", "h100_qwen15_infer", "mi300x_sglang_qwen3_decode_capture"),
    *("mi300x_sglang_qwen3_decode_graph", "mi300x_vllm_gptoss_decode_capture"),
    *("mi300x_vllm_gptoss_decode_graph", "mi300x_resnet18_ddp_train", "mi300x_torch_compile"),
    *("hta_event_sync_multi_stream", "a100_hta_simple_add", "a100_hta_nccl_rank0"),
    *("a100_hta_control_rank3", "hta_sampled_rank0", "hta_sampled_rank1"),
    *("v100_kineto_resnet50_nw0", "v100_kineto_resnet50_nw4", "mi210_gpu_only"),
    *("nsys_h100x2_1s", "nsys_h100x2_mfu_before", "nsys_t4_power_iteration"),
    "nsys_rtx3060_graph",
)
OF_OTHER_RANKS = {"nsys_h100x2_mfu_before": {"eager_overhead", "host_unrecorded"}}
"""The labels of these take what the other rank's process did for a thread of the launching one."""


def _of_window(account: DeviceAccount, low: int, high: int) -> GapParts:
    """Return the parts of gaps in a window, that before the first work among them."""
    parts, first = gap_parts(account, Intervals.one(low, high)), account.rows.span[0]
    if low >= first or account.idle.gap_start_ns[0] < first:
        return parts
    row, work = account.rows.row[0], account.work
    head = (low, first, low, first, row, account.call[0], work.call_start_ns[0])
    more = (work.call_end_ns[0], leads(account).cap_ns, -1)
    return GapParts.joined([GapParts(*(np.array([value]) for value in (*head, *more))), parts])


@pytest.mark.parametrize("name", LABELLED)
def test_labelled_recordings(name: str) -> None:
    labels = json.loads(shared_file(LABELS).read_text())
    key = next(key for key in labels["culprits"] if f"/{name}." in key)
    meta, expected = labels["meta"][key], labels["culprits"][key]
    prepared = prepare(read(shared_file(f"traces/{key}")))
    first = min(account.rows.span[0] for account in prepared.accounts.values())
    window = (first + meta["from_ns"], first + meta["to_ns"])
    parts = [_of_window(account, *window) for account in prepared.accounts.values()]
    # The labels do not tell start-up from idle time.
    low, high = (np.array([edge]) for edge in window)
    start_up_ms = [
        float(account.start_up.length_within(low, high)[0]) / 1e6
        for account in prepared.accounts.values()
    ]
    idle_ms = [
        float((one.end_ns - one.start_ns).sum()) / 1e6 + start_ms
        for one, start_ms in zip(parts, start_up_ms, strict=True)
    ]
    place = int(np.argmin(np.abs(np.array(idle_ms) - meta["idle_ms"])))
    idle = culprits_of(parts[place], prepared.trace)
    ms = defaultdict(float, {"unexplained": idle.unexplained_ns / 1e6})
    for culprit in idle.culprits:
        ms[culprit.kind] += culprit.idle_ns / 1e6
    all_ms = sum(ms.values()) + start_up_ms[place]
    assert all_ms == pytest.approx(meta["idle_ms"], rel=1e-3, abs=1e-3)
    if meta["idle_share"] < 0.02:
        return
    for label in expected:
        if label["class"] in OF_OTHER_RANKS.get(name, ()):
            continue
        slack = max(0.1 * label["ms"], 0.02 * meta["idle_ms"])
        least, most = label["ms"] - slack - start_up_ms[place], label["ms"] + slack
        assert least <= ms[label["class"]] <= most, label["class"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=30))
def test_outstanding_launches_are_called_and_not_yet_started(pairs: list[tuple[int, int]]) -> None:
    works = [("k", called, called + lead, 3) for called, lead in pairs]
    account = prepare(trace_of(**launched(*works))).accounts[0]
    at, count = outstanding_launches(account)
    changes = dict(zip(at.tolist(), count.tolist(), strict=True))
    now, last = 0, None
    for instant in range(105):
        now = changes.get(instant, now)
        assert now == sum(begun <= instant < start for _, begun, start, _ in works)
        assert instant not in changes or now != last
        last = now


def test_a_launch_of_several_operations_is_outstanding_until_the_first() -> None:
    run = launched(("a", 0, 10, 5), ("b", 20, 40, 5))
    run["activities"].append({"name": "c", "start_ns": 60, "correlation": 2})
    run["activities"].append({"name": "unlaunched", "start_ns": 80})
    at, count = outstanding_launches(prepare(trace_of(**run)).accounts[0])
    assert list(zip(at.tolist(), count.tolist(), strict=True)) == [
        (0, 1),
        (10, 0),
        (20, 1),
        (40, 0),
    ]


def test_the_longest_gap_is_whole_whatever_other_threads_call_in_it() -> None:
    """Of 6 ms between two calls another thread takes 1 ms, in the middle: 5 ms are left."""
    run = launched(("k", 0, US, 10 * US), ("k", 9_000 * US, 9_005 * US, 10 * US))
    run["calls"] = [{**call, "thread": THREAD, "dur_ns": 3_000 * US} for call in run["calls"]]
    run["calls"].append(event("cudaEventQuery", 5_500, 6_500, thread=ENGINE))
    rows = {one.words: one for one in waits(analyze(trace_of(**run)))}
    row = rows["untraced host time"]
    assert (row.names, row.tails) == (("longest 5.00 ms",), (", 1 gap",))


@pytest.mark.parametrize(
    ("launches_in", "kind"), [("[DALI][Mixed op] copy", "data_input"), ("step", "host_unrecorded")]
)
def test_who_waits_for_a_copy_of_the_input_pipeline_waits_for_that(
    launches_in: str, kind: str
) -> None:
    """From 20 to 1,000 us nothing is launched; a reader works from 100 to 900 us."""
    marks = [
        event(launches_in, 990, 1_020),
        event("[DALI][DataReader] Run", 100, 900, thread=ENGINE),
    ]
    idle = by_class(analyze(made(marks=marks)).idle)
    assert idle[kind] >= 800
    assert ("data_input" in idle) == (kind == "data_input")


def test_of_many_devices_of_one_process_the_idlest_are_explained() -> None:
    """Each of 66 GPUs is idle for longer than the one before, between two kernels."""
    count, activities, calls = 66, [], []
    for number in range(2 * count):
        device, is_second = number % count, number >= count
        at = (10 * US if is_second else 0) + device * (2 if is_second else 1) * US
        calls.append({"start_ns": at, "correlation": number})
        activities.append(
            {"name": "k", "device": device, "start_ns": at + 5, "dur_ns": 5, "correlation": number}
        )
    devices = [{"device": number, "local_id": number} for number in range(count)]
    analysis = analyze(trace_of(activities=activities, calls=calls, devices=devices))
    idle_ns = [10 * US + device * US - 5 for device in range(count)]
    assert analysis.total.components.idle_ns == sum(idle_ns)
    # Without the two least idle ones, but for their launches: these are known of all.
    explained_ns = sum(culprit.idle_ns for culprit in analysis.idle.culprits)
    assert explained_ns == sum(idle_ns) - sum(ns - 5 for ns in idle_ns[:2])
    (note,) = (note for note in analysis.notes if note.code == "too-many-devices")
    assert note.count == 2
    replay, reason = analysis.replay_or_reason
    assert replay is None
    assert "too many GPUs" in str(reason)
