"""Rules on the host: graphs that fit, compilation, loading of code; each beside one without."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.conftest import SAMPLES, shared_file
from traceflops.attribution.named_slices import sample_spacing_ns
from traceflops.facts import fact
from traceflops.findings.autotuning import trials
from traceflops.findings.finding import Finding
from traceflops.findings.host_samples import outside_samples
from traceflops.findings.launching import slowed_by_stacks
from traceflops.remedies import advice
from traceflops.reports.view.culprits import waits
from traceflops.reports.view.findings import causes, opening, title_sentence
from traceflops.reports.view.texts import words
from traceflops.windows.selection import Selection

STEP = MS = 1_000_000
GEMM = "sm90_gemm_bf16"


def run(*gaps: int, by: str = "pytorch", **tables: Any) -> tf.Analysis:
    """Return a run of steps that compute for 1 ms and then idle, recorded by a profiler.

    A last step is not used. `tables` are what the host does: times count from the end of the work
    of step 1.
    """
    works, steps, at = [], [], STEP
    for number, gap in enumerate((*gaps, 0)):
        works.append((GEMM, at - 5_000, at, STEP))
        steps.append((f"ProfilerStep#{number}", at - 9_000, 8_000))
        at += STEP + gap
    ends = STEP * 3 + gaps[0]
    rows = launched(*works)
    for name, more in {"marks": (), **tables}.items():
        rows.setdefault(name, []).extend(
            {**one, "start_ns": one["start_ns"] + ends} for one in more
        )
    rows["marks"].extend(step_marks(*steps))
    return analyzed(rows, by)


def analyzed(rows: Mapping[str, Any], by: str = "pytorch") -> tf.Analysis:
    trace, apart = trace_of(**rows), by.startswith("rocprof")
    return tf.analyze(replace(trace, source=replace(trace.source, format=by, kinds_apart=apart)))


def of_rule(analysis: tf.Analysis, rule: str) -> list[Finding]:
    return [one for one in analysis.findings if one.rule == rule]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("annotation", "entire_frame_compile (dynamo_timed)"),
        ("python", "torch/_dynamo/convert_frame.py(1071): __call__"),
        ("python", "triton/compiler/compiler.py(226): compile"),
        ("python", "torch/_inductor/compile_fx.py(679): _compile_fx_inner"),
    ],
)
def test_compilation_inside_a_step_gains_its_time(kind: str, name: str) -> None:
    """Step 1 idles 2 ms more than the others: 1.9 ms of compilation, over four steps."""
    mark = {"kind": kind, "name": name, "start_ns": 50_000, "dur_ns": 1_900_000}
    analysis = run(0, 2_000_000, 0, 0, marks=[mark])
    (found,) = of_rule(analysis, "recompilation")
    assert 'TORCH_LOGS="recompiles"' in found.remedy
    assert found.gain is not None
    assert found.gain.low_ns <= 1_900_000 // 4 <= found.gain.high_ns
    assert found.gain.high_ns <= 2_000_000 // 4
    assert not of_rule(analysis, "compiled-runtime")


@pytest.mark.parametrize(
    "name",
    [
        "torch/_dynamo/eval_frame.py(791): compile_wrapper",
        "triton/compiler/compiler.py(487): launch_metadata",
        "TorchDynamo Cache Lookup",
        "torch/_inductor/compile_fx.py(979): run",
    ],
)
def test_running_compiled_code_is_no_compilation(name: str) -> None:
    mark = {"kind": "python", "name": name, "start_ns": 50_000, "dur_ns": 1_900_000}
    analysis = run(0, 2_000_000, 0, 0, marks=[mark])
    assert not of_rule(analysis, "recompilation")
    assert of_rule(analysis, "compiled-runtime")


def host(table: str, name: str, **more: Any) -> dict[str, Any]:
    """Return 1.9 ms of something on the host in the gap of 2 ms, unless told otherwise."""
    return {table: [{"name": name, "start_ns": 50_000, "dur_ns": 1_900_000, **more}]}


SHORT: list[dict[str, Any]] = [
    {"name": "cudaEventRecord", "start_ns": 9_000 * at, "dur_ns": 8_900} for at in range(200)
]
OPS = [{**one, "name": "aten::add"} for one in SHORT]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
IDLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "data-input": (host("marks", LOADER), host("marks", "DataLoader.__init__")),
    "sync-call": (host("calls", "cudaDeviceSynchronize"), host("calls", "cudaGetDevice")),
    "blocking-copy": (
        host("calls", "cudaMemcpy"),
        host("calls", "cudaMemcpyAsync", dur_ns=9_000),
    ),
    "memory-alloc": (host("calls", "cudaMalloc"), host("calls", "cudaMemsetAsync")),
    "slow-driver-call": (host("calls", "cudaStreamCreate"), {"calls": SHORT}),
    "device-queries": (
        {"calls": [{**one, "name": "cudaGetDeviceProperties_v2"} for one in SHORT]},
        {"calls": SHORT},
    ),
    "other-calls": ({"calls": SHORT}, {"calls": SHORT[:9]}),
    "eager-overhead": ({"ops": OPS, "calls": SHORT}, {"ops": OPS[:9], "calls": SHORT[:9]}),
    "optimizer-loop": (
        host("marks", "Optimizer.step#AdamW.step"),
        host("marks", "Optimizer.step#AdamW.step", start_ns=-900_000, dur_ns=800_000),
    ),
    "external-wait": (
        host("marks", "poll", kind="system"),
        host("marks", "write", kind="system"),
    ),
    "input-wait": (
        host("marks", "fgets", kind="system"),
        host("marks", "fputs", kind="system"),
    ),
    "host-code": (
        host("marks", "a.py(3): b", kind="python"),
        host("marks", "a.py(3): b", kind="python", dur_ns=20_000),
    ),
    "thread-handover": (
        host("marks", "<built-in method run_backward>", kind="python", dur_ns=1_990_000),
        host("ops", "aten::add", start_ns=-500_000, dur_ns=510_000, thread=9),
    ),
    "host-unrecorded": ({}, host("marks", "a.py(3): b", kind="python", dur_ns=1_990_000)),
}
"""By rule: what the host does while the GPU is idle, and the like that is another or no cause."""


@pytest.mark.parametrize("rule", IDLE)
def test_a_cause_of_idle_time_is_found_and_its_like_is_not(rule: str) -> None:
    """Step 1 idles for 2 of 3 ms, and no other step does."""
    faulty, like = (run(0, 2_000_000, 0, 0, **tables) for tables in IDLE[rule])
    (one,) = of_rule(faulty, rule)
    assert not of_rule(like, rule)
    assert one.share == pytest.approx(1_900_000 / 6_000_000, rel=0.08)
    assert one.rows and len(one.title.split()) <= 8
    # Why a call of the driver is slow no recording tells.
    assert one.remedy.endswith(".") == (rule != "slow-driver-call")
    if rule in ("host-unrecorded", "input-wait"):
        assert one.gain is None  # nobody knows what the host, or who types, does then
    else:
        assert one.gain is not None and 0 <= one.gain.low_ns <= one.gain.high_ns <= 2_000_000 // 4


@pytest.mark.parametrize(("launched_ns", "is_told"), [(10_000, True), (3 * MS - 5_000, False)])
def test_work_that_was_queued_in_time_waits_for_the_device(
    launched_ns: int, *, is_told: bool
) -> None:
    rows = launched(("k", 0, 5_000, MS), ("k", launched_ns, 3 * MS, MS))
    assert bool(of_rule(analyzed(rows), "device-wait")) == is_told


def test_a_gpu_that_may_draw_meanwhile_is_not_blamed() -> None:
    rows = launched(("k", 0, 5_000, MS), ("k", 10_000, 3 * MS, MS))
    rows["calls"].append({"name": "cudaGraphicsMapResources", "start_ns": 8_000, "dur_ns": 500})
    analysis = analyzed(rows)
    assert not of_rule(analysis, "device-wait") and not of_rule(analysis, "host-waits")
    assert "the GPU may draw meanwhile" in title_sentence(analysis)


@pytest.mark.parametrize(("each_ns", "is_shown"), [(16_667_000, True), (18_000_000, False)])
def test_frames_at_the_rate_of_a_display_are_told_to_wait_for_it(
    each_ns: int, *, is_shown: bool
) -> None:
    """Of two kernels that are launched after each frame, one starts only with the next frame."""
    at_ns = range(0, 60 * each_ns, each_ns)
    late = (("late", at + 20_000, at + each_ns, 8_000) for at in at_ns)
    rows = launched(*(("k", at + 10_000, at + 15_000, 9_000) for at in at_ns), *late)
    maps = [{"name": "cudaGraphicsMapResources", "start_ns": at, "dur_ns": 500} for at in at_ns]
    rows["calls"] += maps
    analysis = analyzed(rows)
    assert ("display with 60 Hz" in analysis.verdict.sentence) == is_shown
    assert analysis.verdict.headline == ("external-wait" if is_shown else "idle-unknown")


def test_launches_that_all_start_late_have_no_ordinary_latency() -> None:
    """Each of them starts 2.4 ms after its launch on an idle GPU, as where others use that."""
    rows = launched(*(("k", 3 * MS * n, (3 * n + 2) * MS + 400_000, 500_000) for n in range(20)))
    assert analyzed(rows).idle.by_class()[0].kind == "device_wait"


@pytest.mark.parametrize(("latency_ns", "is_told"), [(15_000, True), (1_000, False)])
def test_slow_launches_matter_where_each_is_waited_for(latency_ns: int, *, is_told: bool) -> None:
    works, waits, at = [], [], MS
    for _ in range(60):
        done = at + latency_ns + 20_000
        works.append(("k", at, at + latency_ns, 20_000))
        name = "cudaStreamSynchronize"
        waits.append({"name": name, "start_ns": at + 900, "dur_ns": done + 1_100 - at})
        at = done + 5_000
    rows = launched(*works)
    calls = [{**one, "name": "cudaLaunchKernel", "dur_ns": 800} for one in rows["calls"]]
    analysis = analyzed({**rows, "calls": [*calls, *waits]})
    (wait,) = of_rule(analysis, "sync-call")  # without the wait, the host would be ahead
    assert not of_rule(analysis, "launch-latency")
    assert ("Then nothing is queued: for another 37.2 %" in wait.sentence) == is_told
    assert wait.gain is not None and (wait.gain.high_ns > 10_000 * 60) == is_told


def test_launches_after_a_wait_are_told_to_be_queued_before_it() -> None:
    """Kernels of 0.2 ms begin 20 us after their launches, with a wait for each."""
    begins = range(MS, 20 * MS, 230_000)
    rows = launched(*(("k", at - 20_000, at, 200_000) for at in begins))
    calls = [{**one, "name": "cudaLaunchKernel", "dur_ns": 5_000} for one in rows["calls"]]
    wait = {"name": "cudaThreadSynchronize", "dur_ns": 205_000}
    waits = [{**wait, "start_ns": at - 4_000} for at in begins]
    (found,) = of_rule(analyzed({**rows, "calls": [*calls, *waits]}, "nsys"), "launch-latency")
    assert found.remedy == (
        "Nothing is queued after cudaThreadSynchronize: wait only where the CPU needs a result."
    )


@pytest.mark.parametrize(("copies", "is_told"), [(20, True), (3, False)])
def test_small_copies_that_are_most_of_what_is_launched_are_to_be_joined(
    copies: int, *, is_told: bool
) -> None:
    """Four kernels have 20 copies of 8 bytes beside them, or 3; between them are short calls."""
    events = [one for one in SHORT if one["start_ns"] < 1_700_000]
    moves, calls = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(copies):
        link = {"correlation": 1_000 + number}
        at = 1_800_000 + 9_000 * number
        calls.append({"name": "cudaMemcpyAsync", "start_ns": at, "dur_ns": 8_000, **link})
        copy = {"name": "Memcpy DtoH", "kind": "memcpy", "direction": "DtoH", "bytes": 8}
        moves.append({**copy, "start_ns": at + 6_000, "dur_ns": 1_000, **link})
    analysis = run(0, 2_000_000, 0, 0, by="nsys", calls=[*events, *calls], activities=moves)
    (found,) = of_rule(analysis, "other-calls")
    told = "Most of what is launched are copies between CPU and GPU of about 8 B"
    assert (told in (found.remedy or "")) is is_told


@pytest.mark.parametrize(("alloc_ns", "is_told"), [(20_000, False), (2_000, True)])
def test_fast_launches_are_not_blamed_for_what_the_host_does_between(
    alloc_ns: int, *, is_told: bool
) -> None:
    """Each launch takes 15 us and is waited for; before the next the host allocates."""
    works, others, at = [], [], MS
    for number in range(60):
        done = at + 35_000
        works.append(("k", at, at + 15_000, 20_000))
        wait = {"name": "cudaStreamSynchronize", "start_ns": at + 900, "dur_ns": 35_100}
        alloc = {"name": "cudaMalloc", "start_ns": done + 1_000, "dur_ns": alloc_ns}
        others += [wait, {**alloc, "correlation": 500 + number}]
        at = done + 2_000 + alloc_ns
    rows = launched(*works)
    calls = [{**one, "name": "cudaLaunchKernel", "dur_ns": 800} for one in rows["calls"]]
    analysis = analyzed({**rows, "calls": [*calls, *others]})
    found = of_rule(analysis, "launch-latency")
    assert [one.title for one in found] == ["The host does not launch ahead of the GPU"] * is_told
    assert is_told or of_rule(analysis, "memory-alloc")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("cuLibraryLoadData", "CUDA_MODULE_LOADING=EAGER"),
        ("hipModuleLoadData", "HIP_ENABLE_DEFERRED_LOADING=0"),
    ],
)
def test_loading_code_inside_a_step_gains_its_time(call: str, says: str) -> None:
    loads = {"name": call, "start_ns": 50_000, "dur_ns": 1_900_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, calls=[loads]), "code-loading")
    assert says in found.remedy
    assert found.gain is not None
    assert found.gain.low_ns <= 1_900_000 // 4 <= found.gain.high_ns <= 2_000_000 // 4


def short_kernels(
    graphs: int, *counts: int, name: str = "add", by: str = "pytorch", waits: int = 0
) -> tf.Analysis:
    """Return steps of so many kernels of 2 us, each 18 us after the other; calls launch several.

    In the first steps, `waits` of them, the host waits for the first kernel.
    """
    activities: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    marks, at = [], 1_000_000
    for number, count in enumerate((*counts, counts[-1])):
        marks.append((f"ProfilerStep#{number}", at - 9_000, count * 20_000))
        for place in range(count):
            of_call = len(calls) if place % graphs else len(calls) + 1
            if not place % graphs:
                calls.append({"start_ns": at - 6_000, "correlation": of_call, "dur_ns": 5_000})
                ops.append({"name": "aten::add", "start_ns": at - 17_000, "dur_ns": 16_500})
            activities.append(
                {"name": name, "start_ns": at, "dur_ns": 2_000, "correlation": of_call}
            )
            at += 20_000
    begins = [start_ns + 9_000 for _, start_ns, _ in marks[:waits]]
    ops += [{"name": "aten::item", "start_ns": at, "dur_ns": 2_500} for at in begins]
    calls += [
        {"name": "cudaStreamSynchronize", "start_ns": at, "dur_ns": 2_300, "correlation": None}
        for at in begins
    ]
    rows = {"activities": activities, "calls": calls, "ops": ops, "marks": step_marks(*marks)}
    return analyzed(rows, by)


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_a_wait_in_each_step_goes_before_a_graph(waits: int) -> None:
    (found,) = of_rule(short_kernels(1, 30, 30, 30, waits=waits), "eager-overhead")
    assert found.remedy.startswith("Replay the step")
    assert ("No graph can hold calls that wait" in found.remedy) == (waits > 0)
    first = "first remove cudaStreamSynchronize in aten::item"
    assert (first in found.remedy) == (waits == 3)


def test_short_kernels_launched_one_by_one_call_for_a_graph() -> None:
    (found,) = of_rule(short_kernels(1, 30, 30, 30), "eager-overhead")
    assert "Each step launches 30 operations, none by a graph; 100.0 % of kernels" in found.sentence
    assert "100.0 % of launches come when the GPU has no work" in found.sentence
    assert 'mode="reduce-overhead"' in found.remedy


@pytest.mark.parametrize(("graphs", "counts"), [(1, (30, 40, 30)), (5, (30, 30, 30))])
def test_no_graph_for_steps_that_differ_or_have_one(graphs: int, counts: tuple[int, ...]) -> None:
    found = of_rule(short_kernels(graphs, *counts), "eager-overhead")
    assert all("none by a graph" not in one.sentence for one in found)
    assert all("CUDA graph" not in one.remedy for one in found)


def test_allocation_inside_steps_is_told_with_how_often_it_happens() -> None:
    calls: list[dict[str, Any]] = [
        {"name": name, "start_ns": 50_000 + at, "dur_ns": 400_000}
        for name, at in (("cudaMalloc", 0), ("cudaMalloc", 500_000), ("cudaFree", 1_000_000))
    ]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, calls=calls), "memory-alloc")
    assert found.sentence.endswith("Called in 4 steps: cudaMalloc 2 times, cudaFree 1 time.")
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in found.remedy
    on_amd = [{**one, "name": one["name"].replace("cuda", "hip")} for one in calls]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, calls=on_amd), "memory-alloc")
    assert "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold" in found.remedy


def test_idle_time_in_a_single_gap_is_no_gain_of_each_step() -> None:
    label = {"name": "save", "start_ns": 0, "dur_ns": 2 * MS, "kind": "annotation"}
    (found,) = of_rule(run(0, 2 * MS, *[0] * 8, marks=[label]), "host-unrecorded")
    assert "Nearly all of that is one gap of 2.00 ms, in a single step." in found.sentence
    assert found.gain is None
    (found,) = of_rule(run(*[2 * MS] * 10, marks=[label]), "host-unrecorded")
    assert "one gap" not in found.sentence


def test_unrecorded_host_work_is_told_how_to_record_it_and_where_to_look() -> None:
    (found,) = of_rule(run(0, 2_000_000, 0, 0), "host-unrecorded")
    assert found.remedy == ("Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].")
    op = {"name": "aten::add", "start_ns": -20_000, "dur_ns": 10_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, ops=[op]), "host-unrecorded")
    assert found.remedy == (
        "Record with with_stack=True, or record_function() around code between operators."
    )
    assert found.owner is None
    label = {"name": "write log", "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, marks=[label]), "host-unrecorded")
    assert found.remedy.startswith("Look at the code in write log. Record with")
    assert found.owner == "yours"


@pytest.mark.parametrize(("name", "is_known"), [("IO 12", True), ("a 1 to 2", True), ("", False)])
def test_unrecorded_work_in_a_range_is_replayed_without_it(name: str, *, is_known: bool) -> None:
    """The GPU idles for 2 ms, of which the range has all but 10 us; the last step has no launch."""
    label = {"name": name, "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, marks=[label] * is_known), "host-unrecorded")
    assert found.confidence is not None
    assert (fact("doubt.nothing-recorded") in found.confidence.reasons) != is_known
    assert (found.gain is not None) == is_known
    if found.gain is not None:
        assert found.gain.point_ns is not None
        assert found.gain.high_ns == pytest.approx(1_990_000 / 4, rel=0.02)


@pytest.mark.parametrize(
    ("by", "is_doubt"), [("pytorch", True), ("nsight", False), ("rocprofv3", False)]
)
def test_only_where_stacks_can_be_recorded_their_lack_is_a_doubt(
    by: str, *, is_doubt: bool
) -> None:
    label = {"name": "IO", "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by=by, marks=[label]), "host-unrecorded")
    assert found.confidence is not None
    assert (fact("doubt.no-stacks") in found.confidence.reasons) == is_doubt
    assert found.confidence.level == ("medium" if is_doubt else "high")


@pytest.mark.parametrize("by", ["nsight", "rocprofv3", "pytorch"])
def test_no_remedy_asks_for_what_is_recorded_already(by: str) -> None:
    """A call of the operating system comes with --trace=osrt, a function with stacks."""
    label = {"name": "IO", "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by=by, marks=[label]), "host-unrecorded")
    assert "Record with" in found.remedy
    kind = "python" if by == "pytorch" else "system"
    known = {"kind": kind, "name": "fsync", "start_ns": 9_000_000, "dur_ns": 9}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by=by, marks=[label, known]), "host-unrecorded")
    assert found.remedy.startswith("Look at the code in IO. Put ")
    assert not {"osrt", "with_stack", "--"} & {*found.remedy.replace("=", " ").split()}


def test_a_range_that_a_profiler_puts_around_every_module_is_no_place() -> None:
    name = "torch.nn.modules.Module.__call__"
    label = {"name": name, "start_ns": 0, "dur_ns": 1_990_000}
    analysis = run(0, 2_000_000, 0, 0, by="nsight", marks=[label])
    (found,) = of_rule(analysis, "host-code")
    assert (found.owner, found.rows) == ("library", ())
    assert "Module" not in title_sentence(analysis) + found.sentence + found.remedy
    assert not of_rule(analysis, "host-unrecorded")
    label["name"] = "IO"  # a range of the program is one
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsight", marks=[label]), "host-unrecorded")
    assert (found.owner, found.rows[0].name) == ("yours", "IO")
    assert found.title == "Host code holds up the GPU"
    assert "nothing of the host" not in found.sentence


@pytest.mark.parametrize(("begins_ns", "is_place"), [(-9 * MS, False), (0, True)])
def test_a_range_around_the_whole_window_is_no_place(begins_ns: int, *, is_place: bool) -> None:
    """The range ends with the last step; it begins before the first, or in the gap of 9 ms."""
    label = {"name": "train", "start_ns": begins_ns, "dur_ns": 15 * MS - begins_ns}
    analysis = run(0, 9_000_000, 0, 0, by="nsight", marks=[label])
    (found,) = of_rule(analysis, "host-unrecorded")
    assert found.owner == ("yours" if is_place else None)
    assert bool(found.rows) == is_place
    said = title_sentence(analysis) + found.sentence + found.remedy
    assert ("train" in said) == is_place
    assert (found.gain is not None) == is_place  # a range around everything tells nothing
    assert is_place or found.remedy.startswith("Record with")


def test_ranges_around_all_steps_show_that_the_host_works() -> None:
    """The range of two steps each has the gap of 9 ms in the second one: no place, but a gain."""
    begins = (-9 * MS, 1_500_000)
    labels = [
        {"name": "train", "start_ns": begin, "dur_ns": end - begin}
        for begin, end in zip(begins, (begins[1], 15 * MS), strict=True)
    ]
    (found,) = of_rule(run(0, 9_000_000, 0, 0, by="nsight", marks=labels), "host-unrecorded")
    assert (found.owner, found.rows) == (None, ())
    assert found.gain is not None


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "record with nsys profile --trace=cuda,nvtx,osrt, and NVTX ranges around the code"),
        ({"NVTX": 9}, "record with finer NVTX ranges, and osrt in --trace"),
        ({"NVTX_EVENTS": 9, "OSRT_API": 9}, "record with finer NVTX ranges"),
    ],
)
def test_no_trace_option_is_asked_for_that_a_file_has(counts: dict[str, int], said: str) -> None:
    trace = trace_of()
    source = replace(trace.source, format="nsys-rep", event_counts=counts)
    assert advice(replace(trace, source=source), "host work") == said


def test_time_of_no_known_cause_may_be_copies_that_were_not_recorded() -> None:
    assert of_rule(run(0, 2_000_000, 0, 0, by="rocprofv3"), "host-unrecorded")
    copies = [{"name": "hipMemcpyAsync", "start_ns": 2_990_000, "dur_ns": 9_000}]
    lacking = run(0, 2_000_000, 0, 0, by="rocprofv3", calls=copies)
    assert not of_rule(lacking, "host-unrecorded")


@pytest.mark.parametrize(
    ("kernel", "by", "is_torch"),
    [
        ("saxpy", "nsight", False),
        ("void at::native::vectorized_elementwise_kernel<4>", "nsight", True),
        ("saxpy", "pytorch", True),
    ],
)
def test_programs_without_pytorch_hear_nothing_of_it(kernel: str, by: str, is_torch: bool) -> None:
    """Nor is the code that launches a framework's; where no step is known, none is named."""
    (pace,) = of_rule(short_kernels(1, 30, 30, 30, name=kernel, by=by), "eager-overhead")
    assert (pace.owner == "framework") == is_torch
    rows = launched(*((kernel, 3 * MS * n - 9_000, 3 * MS * n, MS) for n in range(1, 10)))
    rows["calls"] += [
        {"name": "cudaMalloc", "start_ns": 3 * MS * n + 1_100_000, "dur_ns": 1_800_000}
        for n in range(1, 9)
    ]
    (found,) = of_rule(analyzed(rows, by), "memory-alloc")
    assert found.title == "Memory is allocated during the run"
    assert ("torch" in pace.remedy) == ("PyTorch" in found.remedy) == is_torch


def test_a_function_gains_no_time_of_the_calls_it_holds() -> None:
    """A step idles 4 ms: 3 ms of an operator, of which 2 ms are in a call of another class."""
    op = {"name": "aten::init", "start_ns": 50_000, "dur_ns": 3_000_000}
    for name, rule in (("cudaFree", "memory-alloc"), ("cuModuleLoad", "code-loading")):
        call = {"name": name, "start_ns": 600_000, "dur_ns": 2_000_000}
        analysis = run(0, 4_000_000, 0, 0, ops=[op], calls=[call])
        (inside,), (found,) = of_rule(analysis, rule), of_rule(analysis, "host-code")
        assert inside.gain is not None and found.gain is not None
        assert inside.gain.high_ns == 2_000_000 // 4
        assert found.gain.high_ns <= 1_010_000 // 4  # 5 us may be the launch


@pytest.mark.parametrize("runs", [4, 3])
def test_one_long_call_of_an_operator_of_each_step_has_no_steady_remedy(runs: int) -> None:
    """Of four steps one idles 2 ms, in an operator that holds up the GPU in no other."""
    ops = [{"name": "aten::init", "start_ns": 50_000, "dur_ns": 1_900_000}]
    ops += [{"name": "aten::init", "start_ns": -200_000 - 9_000 * n, "dur_ns": 900} for n in (1, 2)]
    ops += [{"name": "aten::init", "start_ns": -900_000, "dur_ns": 900}] * (runs - 3)
    asks = [{"name": "cudaGetDevice", "start_ns": 60_000, "dur_ns": 1_000}]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, ops=ops, calls=asks), "host-code")
    assert (found.gain is None) == found.remedy.startswith("Each of these ran in one gap only")
    assert (found.gain is None) == (runs == 4)


def test_a_slow_driver_call_gains_at_most_its_time() -> None:
    """Beside 1 ms of a call that should take none, 2 ms of an operator."""
    call = {"name": "cudaStreamCreate", "start_ns": 50_000, "dur_ns": 1_000_000}
    op = {"name": "aten::init", "start_ns": 1_500_000, "dur_ns": 2_000_000}
    analysis = run(0, 4_000_000, 0, 0, ops=[op], calls=[call])
    (found,) = of_rule(analysis, "slow-driver-call")
    assert found.gain is not None
    assert 0 < found.gain.high_ns <= 1_000_000 // 4


@pytest.mark.parametrize(
    ("iterator", "memory", "said", "unsaid"),
    [
        ("_SingleProcess", "Pageable", "Raise num_workers of the DataLoader and set pin_", "cores"),
        ("_SingleProcess", "Pinned", "and set persistent_workers=True", "pin_memory"),
        ("_MultiProcessing", "Pageable", "less to do, or raise num_workers and", "persistent"),
        ("_MultiProcessing", "Pinned", "if CPU cores are free.", "pin_memory"),
    ],
)
def test_a_loader_is_not_told_to_do_what_it_does(
    iterator: str, memory: str, said: str, unsaid: str
) -> None:
    label = f"enumerate(DataLoader)#{iterator}DataLoaderIter.__next__"
    copy = {"name": f"Memcpy HtoD ({memory} -> Device)", "kind": "memcpy", "direction": "HtoD"}
    copies = [{**copy, "start_ns": -200_000, "dur_ns": 9_000, "stream": 7}]
    (found,) = of_rule(
        run(0, 2_000_000, 0, 0, activities=copies, **host("marks", label)), "data-input"
    )
    assert said in found.remedy
    assert unsaid not in found.remedy


@pytest.mark.parametrize(
    ("name", "times", "said"),
    [
        ("Enter Data", 3, "Keep arrays on the GPU: one data region"),
        ("Enter Data", 2, ""),  # they have to get there
        ("Wait", 3, "Run the loops with async clauses"),
    ],
)
def test_data_of_openacc_are_to_stay_on_the_gpu(name: str, times: int, said: str) -> None:
    rows = launched(*(("main_12_gpu", at - 5_000, at, MS) for at in range(MS, 9 * MS, 2 * MS)))
    rows["marks"] = [
        {"name": name, "kind": "system", "start_ns": at, "dur_ns": 900_000}
        for at in range(2 * MS, 2 * MS + 2 * MS * times, 2 * MS)
    ]
    found = of_rule(analyzed(rows, "nsight"), "host-code")
    assert [one.remedy.startswith(said) for one in found] == [True] * bool(said)
    # A range of the user of this name has no part in OpenACC.
    rows["marks"] = [{**mark, "kind": "annotation"} for mark in rows["marks"]]
    (named,) = of_rule(analyzed(rows, "nsight"), "host-unrecorded")
    assert named.confidence is not None
    assert fact("doubt.half") not in named.confidence.reasons


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("transformers/models/llama/modeling_llama.py(9): forward", "Join kernels with torch."),
        ("transformers/trainer.py(9): floating_point_ops", "Call it less often"),
    ],
)
def test_operators_of_others_are_to_be_joined_not_called_less(name: str, said: str) -> None:
    tables = host("marks", name, kind="python")
    (found,) = of_rule(run(0, 2_000_000, 0, 0, **tables), "host-code")
    assert said in found.remedy


@pytest.mark.parametrize(
    ("name", "owner"),
    [("aten::conv2d", "library"), ("vllm/utils.py(9): gemm", "framework"), ("a.py(9): b", "yours")],
)
def test_only_code_of_the_user_is_theirs_to_move(name: str, owner: str) -> None:
    work = {"name": name, "start_ns": 50_000, "dur_ns": 1_900_000}
    asks = [{"name": "cudaGetDevice", "start_ns": 60_000, "dur_ns": 1_000}]
    where: dict[str, Any] = (
        {"ops": [work], "calls": asks} if "::" in name else {"marks": [{**work, "kind": "python"}]}
    )
    (found,) = of_rule(run(0, 2_000_000, 0, 0, **where), "host-code")
    assert found.owner == owner
    assert ("Move the named function" in found.remedy) == (owner == "yours")


@pytest.mark.parametrize(
    ("name", "says"), [("aten::randn", 'device="cuda"'), ("aten::split", "fewer views")]
)
def test_operators_that_launch_nothing_are_work_of_the_cpu(name: str, says: str) -> None:
    """Step 1 idles for 2 ms; its operator takes 1.9 ms of it and calls nothing of the GPU."""
    (found,) = of_rule(run(0, 2_000_000, 0, 0, **host("ops", name)), "cpu-operators")
    assert found.gain is not None
    assert found.gain.low_ns <= 1_900_000 // 4 <= found.gain.high_ns <= 2_000_000 // 4
    assert says in found.remedy and "torch.compile" not in found.remedy
    assert found.title == f"{name} keeps the CPU busy"


@pytest.mark.parametrize(("share", "title"), [(0.5, "Operators keep"), (0.95, "aten::randn keeps")])
def test_the_operator_that_takes_nearly_all_of_the_cause_is_its_title(
    share: float, title: str
) -> None:
    first = round(1_900_000 * share)
    spans = (("aten::randn", 50_000, first), ("aten::normal", 50_000 + first, 1_900_000 - first))
    work = [{"name": name, "start_ns": at, "dur_ns": dur} for name, at, dur in spans]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, ops=work), "cpu-operators")
    assert found.title.startswith(title)


@pytest.mark.parametrize("asks", [0, 20])
def test_what_a_function_computes_on_the_cpu_is_no_launching(asks: int) -> None:
    """In a gap of 2 ms it runs 20 products of 90 us; if these query the GPU, they may launch."""
    frame = {"kind": "python", "name": "a.py(9): attend", "start_ns": 40_000, "dur_ns": 1_950_000}
    begins = range(0, 2 * MS, MS // 10)
    works = [{"name": "aten::bmm", "start_ns": at, "dur_ns": 90_000} for at in begins]
    calls = [{"name": "cudaGetDevice", "start_ns": at + 9, "dur_ns": 9} for at in begins]
    tables: dict[str, Any] = {"ops": works, "marks": [frame], "calls": calls[:asks]}
    classes = run(0, 2 * MS, 0, 0, **tables).idle.by_class()
    computed_ns = {one.kind: one.idle_ns for one in classes}.get("host_code", 0)
    assert (computed_ns > 1_800_000) == (not asks)
    found = of_rule(run(0, 2 * MS, 0, 0, **tables), "host-code")
    assert all("attend (a.py:9) work on CPU tensors" in one.remedy for one in found if not asks)
    assert bool(found) == (not asks)


def test_short_operators_between_launches_are_launching() -> None:
    """In gaps of 0.1 ms a view launches nothing, and is part of what a launch takes."""
    at, works, views = STEP, [], []
    for _ in range(20):
        works.append((GEMM, at - 5_000, at, 50_000))
        views.append({"name": "aten::view", "start_ns": at + 55_000, "dur_ns": 85_000})
        at += 150_000
    rules = {one.rule for one in analyzed({**launched(*works), "ops": views}).findings}
    assert "eager-overhead" in rules and "cpu-operators" not in rules


@pytest.mark.parametrize(("name", "is_there"), [("SGD", True), ("Shampoo", False)])
def test_only_optimizers_of_torch_have_a_fused_option(name: str, *, is_there: bool) -> None:
    mark = {"kind": "annotation", "name": f"Optimizer.step#{name}.step"}
    (found,) = of_rule(
        run(0, 2_000_000, 0, 0, marks=[{**mark, "start_ns": 50_000, "dur_ns": 1_900_000}]),
        "optimizer-loop",
    )
    assert ("fused=True" in found.remedy) == is_there


@pytest.mark.parametrize(
    ("region", "breaks"), [("forward", 0), *((f"Torch-Compiled Region: {n}/0", n) for n in (0, 1))]
)
def test_the_launcher_of_a_kernel_written_in_triton_is_no_compiled_code(
    region: str, breaks: int
) -> None:
    """Step 1 idles for 2 ms, while the launcher of Triton prepares a kernel."""
    launcher = {"kind": "python", "name": "triton/runtime/jit.py(563): run"}
    marks = [{**launcher, "start_ns": 50_000, "dur_ns": 1_948_000}]
    marks.append({"name": region, "start_ns": 10_000, "dur_ns": 10_000})
    marks += [{**marks[1], "name": "Torch-Compiled Region: 0/0"}] * breaks
    (found,) = of_rule(run(0, 2 * MS, 0, 0, marks=marks), "compiled-runtime")
    if region == "forward":
        assert found.title == "Triton launches its kernels slowly"
        assert "Triton's launcher runs" in found.sentence
        assert "Capture the step in a CUDA graph" in found.remedy
    else:
        assert ('TORCH_LOGS="graph_breaks' in found.remedy) == bool(breaks)
        assert ("one region without graph breaks" in found.remedy) == (not breaks)


@pytest.mark.parametrize(("name", "rules"), [("vllm/a.py(9): b", 1), ("my/a.py(9): b", 2)])
def test_code_of_others_that_launches_is_told_once(name: str, rules: int) -> None:
    """Step 1 idles while `b` runs Python and then an operator, and that starts nothing."""
    frame = {"kind": "python", "name": name, "start_ns": 50_000, "dur_ns": 1_900_000}
    launches = [
        {"name": "cudaEventRecord", "start_ns": 600_000 + 9_000 * at, "dur_ns": 8_900}
        for at in range(140)
    ]
    found = run(0, 2_000_000, 0, 0, marks=[frame], calls=launches).findings
    told = [one for one in found if one.rule in ("host-code", "other-calls")]
    assert len(told) == rules, [(one.rule, one.sentence) for one in told]
    assert all(one.rows[0].name == name for one in told)
    more = run(0, 2_000_000, 0, 0, marks=[frame], calls=launches[:40]).findings
    assert "host-code" in [one.rule for one in more]


@pytest.mark.parametrize(("optimizer_ns", "is_joined"), [(500_000, True), (900_000, False)])
def test_what_launching_costs_is_one_cause(optimizer_ns: int, *, is_joined: bool) -> None:
    """In 2 ms of idle time data is loaded, an optimizer steps, and operators launch for 0.63 ms."""
    loads = {"name": LOADER, "start_ns": 150_000, "dur_ns": 550_000}
    step = {"name": "Optimizer.step#SGD.step", "start_ns": 710_000, "dur_ns": optimizer_ns}
    calls = [{**one, "start_ns": one["start_ns"] + 1_340_000} for one in SHORT[:70]]
    calls = calls[:: 1 if is_joined else 2]
    ops = [{**one, "name": "a::b"} for one in calls]
    asks = [{**one, "dur_ns": 100} for one in calls]
    found = run(0, 2_000_000, 0, 0, marks=[loads, step], ops=ops, calls=asks)
    found_causes = [one for one in found.findings if one.rule != "uneven-steps"]
    assert ("optimizer-loop" in [one.rule for one in found_causes]) != is_joined
    if is_joined:
        (first, *_) = found_causes
        assert first.rule == "eager-overhead"
        assert first.share == pytest.approx((500_000 + 630_000) / 6_000_000, rel=0.08)
        assert first.gain is not None and first.gain.high_ns <= first.share * 6_000_000 / 4 + 1
        assert first.remedy.endswith("fused=True.")


def test_a_slow_call_gains_at_most_its_own_time() -> None:
    """Beside a slow call of 0.6 ms the host allocates and loads code, which are other causes."""
    calls = [
        {"name": "cudaMalloc", "start_ns": 50_000, "dur_ns": 500_000},
        {"name": "cuLibraryLoadData", "start_ns": 600_000, "dur_ns": 500_000},
        {"name": "cudaStreamCreateWithFlags", "start_ns": 1_200_000, "dur_ns": 600_000},
    ]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, calls=calls), "slow-driver-call")
    assert found.gain is not None
    assert 0 < found.gain.high_ns <= 700_000 // 4


def test_faster_host_code_gains_at_most_the_time_without_work() -> None:
    """The host launches each millisecond of work 45 us after the one before has ended."""
    label = {"name": "write log", "start_ns": 0, "dur_ns": 5_000_000}
    (found,) = of_rule(run(*[50_000] * 4, marks=[label]), "host-unrecorded")
    assert found.gain is not None
    assert 0 < found.gain.high_ns <= 50_000


@pytest.mark.parametrize(("way", "is_needed"), [("DtoH", True), ("HtoD", False)])
def test_what_the_host_needs_at_once_is_not_to_be_copied_asynchronously(
    way: str, *, is_needed: bool
) -> None:
    copy = {"kind": "memcpy", "name": f"Memcpy {way}", "direction": way, "bytes": 1 << 24}
    rows = launched((GEMM, STEP - 5_000, STEP, STEP), (GEMM, 9 * STEP, 9 * STEP + 5_000, STEP))
    rows["activities"].append({**copy, "start_ns": 2 * STEP, "dur_ns": 100_000})
    rows["calls"].append({"name": "cudaMemcpy", "start_ns": STEP, "dur_ns": 7 * STEP})
    (found,) = of_rule(analyzed(rows, "nsight"), "blocking-copy")
    assert ("does not need at once" in found.remedy) == is_needed


@pytest.mark.parametrize(("memory", "is_pinned"), [("Pinned", True), ("Pageable", False)])
def test_blocking_copies_of_pinned_memory_are_not_to_be_pinned(
    memory: str, *, is_pinned: bool
) -> None:
    copy = {"kind": "memcpy", "name": f"Memcpy DtoH (Device -> {memory})", "direction": "DtoH"}
    rows = launched((GEMM, STEP - 5_000, STEP, STEP), (GEMM, 9 * STEP, 9 * STEP + 5_000, STEP))
    rows["activities"].append({**copy, "start_ns": 2 * STEP, "dur_ns": 100_000, "bytes": 1 << 24})
    rows["calls"].append({"name": "cudaMemcpy", "start_ns": STEP, "dur_ns": 7 * STEP})
    (found,) = of_rule(analyzed(rows, "nsight"), "blocking-copy")
    assert ("pinned already" in found.remedy) == is_pinned
    assert ("to pinned memory" in found.remedy) != is_pinned


def waiting(steps: int, call: str, waits: int, way: str = "DtoH") -> tf.Analysis:
    """Return steps of 1 ms on the GPU, 90 us of host work between; the first few wait inside."""
    works, calls, ops, marks = [], [], [], []
    for number in range(steps):
        at = 1_000_000 + 1_100_000 * number
        works.append((GEMM, at, at + 10_000, STEP))
        marks.append((f"ProfilerStep#{number}", at - 1_000, 1_099_000))
        ops.append({"name": "aten::add", "start_ns": at + 1_011_000, "dur_ns": 88_000})
        if number < waits:
            calls.append({"name": call, "start_ns": at + 10_000, "dur_ns": 1_001_000})
    rows = launched(*works)
    rows["calls"] += calls
    copy = {"kind": "memcpy", "direction": way, "start_ns": STEP // 2, "dur_ns": 1_000}
    rows["activities"].append({**copy, "name": f"Memcpy {way}", "stream": 9})
    return tf.analyze(trace_of(**rows, ops=ops, marks=step_marks(*marks)))


@pytest.mark.parametrize(
    ("call", "says"),
    [("cudaStreamSynchronize", ".item()"), ("cudaMemcpyAsync", "non_blocking=True")],
)
def test_waits_in_each_step_leave_no_lead(call: str, says: str) -> None:
    """Without them, the host works while the GPU does: a step takes as long as its kernel."""
    (found,) = of_rule(waiting(6, call, 6), "host-waits")
    assert found.rows[0].name.startswith(call)
    assert found.rows[0].count == 5
    assert says in found.remedy
    assert found.gain is not None
    assert found.gain.low_ns <= 100_000 <= found.gain.high_ns + 10_000
    assert found.gain.low_ns > 80_000
    assert not of_rule(waiting(6, call, 2), "host-waits")


@pytest.mark.parametrize(
    ("size", "says"), [(20, "of at most 20 B"), (9_000_000, "to pinned memory")]
)
def test_a_value_that_each_step_reads_is_kept_rather_than_pinned(size: int, says: str) -> None:
    copy, works, marks = "Memcpy DtoH (Device -> Pageable)", [], []
    for number in range(12):
        at = 1_000_000 + 1_100_000 * number
        works += [(GEMM, at, at + 9_000, STEP), (copy, at + 10_000, at + 1_010_000, 1_000)]
        marks.append((f"ProfilerStep#{number}", at - 1_000, 1_099_000))
    rows = launched(*works)
    for call in rows["calls"][1::2]:
        call.update(name="cudaMemcpy", dur_ns=1_002_000)
    for one in rows["activities"][1::2]:
        one.update(kind="memcpy", direction="DtoH", bytes=size)
    trace = trace_of(**rows, marks=step_marks(*marks))
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsight")))
    (found,) = of_rule(analysis, "host-waits")
    assert says in found.remedy


def test_who_reads_nothing_back_is_not_told_to_keep_values_on_the_gpu() -> None:
    (found,) = of_rule(waiting(6, "cudaStreamSynchronize", 6, way="HtoD"), "host-waits")
    assert ".item()" not in found.remedy
    assert "Queue more work before the wait" in found.remedy


def test_an_operator_that_waits_by_itself_reads_no_value() -> None:
    around = host("ops", "aten::conv2d", start_ns=40_000, dur_ns=1_920_000)
    tables = {**around, **host("calls", "cudaEventSynchronize")}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, **tables), "sync-call")
    assert (found.owner, found.remedy[:28]) == ("library", "aten::conv2d waits by itself")


def test_pinned_memory_is_no_matter_of_the_caching_allocator() -> None:
    (found,) = of_rule(run(0, 2_000_000, 0, 0, **host("calls", "cudaHostAlloc")), "memory-alloc")
    assert found.remedy == "Allocate pinned memory once and reuse it."


def test_calls_of_mpi_wait_for_other_ranks() -> None:
    label = {"name": "MPI_Recv", "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsight", marks=[label]), "external-wait")
    assert found.title == "The host waits for other ranks"
    assert "MPI_Irecv" in found.remedy


def test_a_range_of_a_library_is_not_the_code_of_the_user() -> None:
    label = {"name": "MPI_Comm_split", "start_ns": 0, "dur_ns": 1_990_000}
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsight", marks=[label]), "host-unrecorded")
    assert (found.owner, found.remedy[:24]) == ("library", "Find what MPI_Comm_split")
    # Around the code of the user
    label["name"] = "DistributedDataParallel.forward"
    (found,) = of_rule(run(0, 2_000_000, 0, 0, marks=[label]), "host-unrecorded")
    assert "waits for" not in found.remedy


def test_start_up_is_told_as_such_where_no_step_is_marked() -> None:
    works = launched((GEMM, 900_000_000, 900_010_000, STEP), (GEMM, 902_000_000, 902_010_000, STEP))
    first = {"name": "aten::add", "start_ns": 0, "dur_ns": 100_000}
    kernel = {"name": GEMM, "start_ns": 100_000, "dur_ns": STEP, "correlation": 9}
    works["activities"].insert(0, kernel)
    works["calls"] += [
        {"start_ns": 50_000, "correlation": 9},
        {"name": "cudaFree", "start_ns": 2_000_000, "dur_ns": 800_000_000},
    ]
    analysis = tf.analyze(trace_of(**works, ops=[first]))
    (found,) = of_rule(analysis, "start-up")
    assert "--from and --to" in found.remedy
    assert found.sentence.startswith("Start-up takes 900 ms of the 903 ms window (99.7 %)")
    assert found.sentence.endswith(", mostly first calls; GPU work takes 3.00 ms.")
    assert found.gain is None  # no step that follows has it
    assert not of_rule(analysis, "memory-alloc")


def test_time_between_samples_is_that_of_threads_that_call_the_gpu() -> None:
    """Helpers, which mostly sleep, are seldom on a CPU."""
    rows = launched(("k", 0, 0, MS))
    rows["calls"] = [call | {"thread": 0} for call in rows["calls"]]
    times = [(0, MS * at) for at in range(5)] + [(1, 100 * MS * at) for at in range(9)]
    samples = [{"kind": "sample", "thread": thread, "start_ns": at} for thread, at in times]
    marks = [sample | {"name": "f", "dur_ns": 0} for sample in samples]
    assert sample_spacing_ns(trace_of(**rows, marks=marks)) == MS
    assert sample_spacing_ns(trace_of(marks=marks)) == 100 * MS


@pytest.mark.parametrize(("times", "is_told"), [(1, False), (3, True)])
def test_behind_start_up_host_code_that_runs_once_is_no_loss(times: int, *, is_told: bool) -> None:
    """After 800 ms of start-up, an operator takes 20 ms before it launches its kernel."""
    starts = [900 * MS + 21 * MS * n for n in range(times)]
    works = launched(
        (GEMM, 0, 10_000, MS), *(("k", at + 20 * MS, at + 20 * MS + 10_000, MS) for at in starts)
    )
    works["calls"].append({"name": "cudaFree", "start_ns": 2 * MS, "dur_ns": 897 * MS})
    ops = [{"name": "aten::linear", "start_ns": at, "dur_ns": 20 * MS + 9_000} for at in starts]
    found = tf.analyze(trace_of(**works, ops=ops)).findings
    assert found[0].rule == "start-up"
    assert bool([one for one in found if one.gain is not None]) == is_told


def test_start_up_is_said_first_where_no_cause_takes_more_and_shares_are_of_the_rest() -> None:
    # 40 of 100 ms is the first launch of a kernel; 30 ms of kernels, and 30 ms of two sleeps.
    works = launched(
        *(("k", MS * n, MS * n + 10_000, MS - 10_000) for n in range(15)),
        ("new", 15 * MS, 55 * MS, MS),
        *(
            ("k", at * MS + MS * n, at * MS + MS * n + 10_000, MS - 10_000)
            for at in (71, 93)
            for n in range(7)
        ),
    )
    works["calls"][15]["dur_ns"] = 40 * MS
    sleeps = [
        {"name": "time.sleep", "kind": "python", "start_ns": at * MS, "dur_ns": 15 * MS}
        for at in (56, 78)
    ]
    analysis = tf.analyze(trace_of(**works, marks=sleeps))
    assert analysis.findings[0].rule == "start-up"
    assert analysis.findings[0].sentence.endswith(
        ". The figures are of the 45.0 ms after it, without 15.0 ms of other time before its end."
    )
    assert analysis.findings[0].remedy == "Warm up before recording."  # the work repeats already
    said = analysis.verdict.sentence
    assert "Idle time (mostly sleeping) takes 67.0 % of the time after start-up" in said
    analysis = tf.analyze(trace_of(**works, marks=sleeps), tf.Selection(from_ns=0))  # all of it
    assert analysis.components.start_up_ns == pytest.approx(40 * MS, rel=0.01)
    (found,) = [one for one in analysis.findings if one.rule == "start-up"]
    assert found.remedy == (
        "Warm up before recording; or leave start-up out with --from and --to."  # no more rounds
    )
    said = analysis.verdict.sentence
    # The shares are of all time, as those of the bar and of findings.
    told = "Idle time apart from start-up (mostly sleeping) takes 30.3 % of the total time"
    assert told in said
    replay, _ = analysis.replay_or_reason
    assert replay is not None
    path = {part.component: part.ns for part in replay.critical}
    assert path["start_up"] == analysis.components.start_up_ns
    assert path.get("launch_latency", 0) < MS
    assert sum(path.values()) <= replay.before_ns


def framed(*functions: tuple[str, int] | str) -> tf.Analysis:
    """Return a step in which functions, by their parts of 100, launch 5 us of work each 60 us."""
    works = launched(*((GEMM, at, at + 10_000, 5_000) for at in range(100_000, 6_100_000, 60_000)))
    frames, start_ns = [], 100_000
    for one in functions:
        name, parts = one if isinstance(one, tuple) else (one, 100)
        dur_ns = 60_000 * parts
        frames.append({"kind": "python", "name": name, "start_ns": start_ns, "dur_ns": dur_ns})
        start_ns += dur_ns
    return tf.analyze(
        trace_of(**works, marks=[*frames, *step_marks(("ProfilerStep#0", 90_000, 6_000_000))])
    )


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ((60, 20, 20), ("a.py", 1, "f")),
        ((40, 30, 30), (None, None, None)),
        ((100, 0, 0), ("a.py", 1, "f")),
    ],
)
def test_a_place_has_half_of_the_time(
    parts: tuple[int, ...], place: tuple[str | None, int | None, str | None]
) -> None:
    names = ("a.py(1): f", "b.py(2): g", "c.py(3): h")
    analysis = framed(*(one for one in zip(names, parts, strict=True) if one[1]))
    (found,) = of_rule(analysis, "eager-overhead")
    assert (found.where.file, found.where.line, found.where.function) == place
    assert found.rows[0].name == names[0]
    (words,) = [one for one in causes(analysis) if one.finding is found]
    assert words.where == (("f (a.py:1)",) if place[0] else ())


@pytest.mark.parametrize(
    ("folder", "says"), [("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph")]
)
def test_a_serving_engine_has_its_own_option_to_launch_faster(folder: str, says: str) -> None:
    (found,) = of_rule(framed(f"{folder}/model.py(7): forward"), "eager-overhead")
    assert says in found.remedy
    assert found.owner == "configuration"
    for other in ("train.py", f"nano{folder}/model.py"):
        (found,) = of_rule(framed(f"{other}(7): forward"), "eager-overhead")
        assert found.owner == "framework"


def test_who_replays_graphs_is_not_told_to_use_them() -> None:
    """Each pass of the sample replays one graph of 45 kernels."""
    analysis = tf.analyze(SAMPLES / "tutorials/serving/after")
    (found,) = of_rule(analysis, "eager-overhead")
    assert "already" in found.remedy
    assert "enforce-eager" not in found.remedy


@pytest.mark.parametrize(
    ("table", "name", "says"),
    [
        ("marks", "Torch-Compiled Region: 0/0", "reduce-overhead"),
        ("calls", "cudaGraphLaunch", "outside of the CUDA graphs"),
        ("marks", "other", "Join kernels with torch.compile"),
    ],
)
def test_no_remedy_asks_for_what_the_program_does(table: str, name: str, says: str) -> None:
    """An operator launches slowly; elsewhere compiled code runs, or a graph is launched."""
    uses: dict[str, Any] = {"marks": [], "calls": SHORT, "ops": OPS}
    uses[table] = [*uses[table], {"name": name, "start_ns": -900_000, "dur_ns": 9_000}]
    (found,) = of_rule(run(0, 2_000_000, 0, 500_000, **uses), "eager-overhead")
    assert says in found.remedy
    assert ("Join kernels" in found.remedy) == (name == "other")


@pytest.mark.parametrize(("count", "is_told"), [(4_000, True), (400, False)])
def test_many_recorded_functions_slow_the_host(count: int, *, is_told: bool) -> None:
    """Functions come every 1.5 or 15 µs of 6 ms."""
    frame = {"kind": "python", "name": "a.py(3): b", "dur_ns": 0}
    frames = [{**frame, "start_ns": 1_000 + 400 * at} for at in range(count)]
    recorded = run(0, 2_000_000, 0, 0, calls=SHORT, ops=OPS, marks=frames)
    (found,) = of_rule(recorded, "eager-overhead")
    assert found.confidence is not None
    codes = [doubt.code for doubt in found.confidence.reasons]
    assert ("doubt.stacks" in codes) == is_told


def test_no_recorded_function_slows_the_host_however_short_the_recording() -> None:
    """A recording of 2.8 µs, less than the 5 µs in which a function costs much."""
    recorded = tf.analyze(trace_of(**launched(("k", 0, 100, 900), ("k", 1_500, 2_000, 900))))
    assert slowed_by_stacks(recorded) is None


def test_a_cause_of_idle_time_says_when_it_is_and_names_its_largest_part() -> None:
    (found,) = of_rule(framed("train.py(7): forward"), "eager-overhead")
    parts = (("launching operators", 99 * 45_000), ("launch latency", 99 * 10_000))
    shares = tuple(fact("launching.part", kind=kind, share=ns / 5_945_000) for kind, ns in parts)
    assert found.claim == fact("launching.claim", share=99 * 55_000 / 5_945_000, parts=shares)
    assert found.details[0].values["name"] == "forward (train.py:7)"
    assert " while work is launched: launching operators 74.9 %, launch" in found.sentence


def test_a_function_with_a_tenth_of_the_idle_time_is_no_place() -> None:
    """Launching takes 52.9 % of the time, of which 7.2 % are in the function with most."""
    path = shared_file("traces/pytorch/b200_vllm_gptoss_prefill.json.gz")
    (first, *_) = causes(tf.analyze(tf.read(path)))
    assert first.finding.rule == "eager-overhead"
    assert first.where == ()


def test_the_critical_path_names_host_time_as_idle_time_does() -> None:
    """Python between launches that are 60 us apart is launching, not code that holds up the GPU."""
    replay, _ = framed("train.py(7): forward").replay_or_reason
    assert replay is not None
    kinds = {part.component for part in replay.critical}
    assert "eager_overhead" in kinds
    assert "host_code" not in kinds


@pytest.mark.parametrize(("gap_ns", "is_told"), [(100_000, True), (300_000, False)])
@pytest.mark.parametrize("is_ranged", [False, True])
def test_short_gaps_between_launches_of_pytorch_are_launching(
    gap_ns: int, *, is_told: bool, is_ranged: bool
) -> None:
    """Kernels of 2 us, each launched so long after the last had ended.

    Nothing else is recorded but a range around two thirds of them, which is no place to look at.
    """
    kernel = "void at::native::elementwise_kernel<(int)128>(int)"
    begins = range(MS, MS + 30 * gap_ns, gap_ns)
    rows = launched(*((kernel, at - 6_000, at, 2_000) for at in begins))
    if is_ranged:
        rows["marks"] = [{"name": "measured", "start_ns": MS - 10_000, "dur_ns": 20 * gap_ns}]
    (found,) = of_rule(analyzed(rows, "nsys"), "host-unrecorded")
    assert (found.title == "The host launches work too slowly") == is_told
    assert ("measured" in f"{found.sentence} {found.where}") == (is_ranged and not is_told)
    assert ("torch.compile" in found.remedy) == is_told


@pytest.mark.parametrize(
    ("took_ns", "name", "is_told"),
    [
        (2_000, "void at::native::elementwise_kernel<(int)128>(int)", True),
        (60_000, "void at::native::elementwise_kernel<(int)128>(int)", False),
        (2_000, "saxpy", False),
    ],
    ids=["tiny", "kernels that fill", "no framework"],
)
def test_tiny_kernels_with_long_gaps_ask_for_larger_batches(
    took_ns: int, name: str, *, is_told: bool
) -> None:
    begins = range(MS, MS + 30 * 300_000, 300_000)
    rows = launched(*((name, at - 6_000, at, took_ns) for at in begins))
    (found,) = of_rule(analyzed(rows, "nsys"), "host-unrecorded")
    said = "Nearly all kernels are short, 2.00 µs on average: too little work for a GPU, so use"
    assert (said in found.remedy) == is_told
    assert ("larger batches" in found.remedy) == is_told


def test_a_long_kernel_among_tiny_ones_is_not_in_their_mean() -> None:
    kernel = "void at::native::elementwise_kernel<(int)128>(int)"
    begins = range(MS, MS + 60 * 1_300_000, 1_300_000)
    works = [(kernel, at - 6_000, at, 2_000) for at in begins]
    works[::12] = [(kernel, launch, at, 600_000) for _, launch, at, _ in works[::12]]
    (found,) = of_rule(analyzed(launched(*works), "nsys"), "host-unrecorded")
    assert found.remedy.startswith("Nearly all kernels are short, 2.00 µs on average:")


def launched_by_operators(dur_ns: int) -> dict[str, list[dict[str, Any]]]:
    """Return kernels with gaps of 98 us, in each of which an operator takes so many ns."""
    kernel = "void at::native::elementwise_kernel<(int)128>(int)"
    begins = range(MS, 4 * MS, 100_000)
    rows = launched(*((kernel, at - 6_000, at, 2_000) for at in begins))
    rows["ops"] = [
        {"name": "aten::add", "start_ns": at - dur_ns - 2_000, "dur_ns": dur_ns} for at in begins
    ]
    return rows


def test_launching_is_advised_once_if_operators_take_more_than_untraced_time() -> None:
    """Of each gap of 98 us an operator takes 60 us, the rest is in no recorded call."""
    rows = launched_by_operators(60_000)
    titles = [finding.title for finding in analyzed(rows).findings]
    assert titles.count("The host launches work too slowly") == 1
    assert "Untraced host time holds up the GPU" in titles


def test_untraced_time_between_launches_and_launching_are_one_cause() -> None:
    """Of each gap of 98 us an operator takes 30 us, the rest is in no recorded call."""
    rows = launched_by_operators(30_000)
    (found,) = (one for one in analyzed(rows).findings if "launches work" in one.title)
    # 29 gaps of 98 us in 2,902 us: 66 us before the operator, 26 us until the launch, and 6 us
    said = (
        "The GPU is idle for 97.9 % of the time while work is launched: untraced host time 66.0 %, "
        "launching operators 26.0 %, launch latency 6.0 %."
    )
    assert (found.rule, said in found.sentence) == ("host-unrecorded", True)


@pytest.mark.parametrize("has_operators", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_one_pass_of_a_model_is_told_beside_what_the_host_may_gain(
    passes: int, *, has_operators: bool
) -> None:
    """Ten products, of which the first and the last have shapes of their own, 98 us apart."""
    works, ops, widths = [], [], passes * [3, *[64] * 8, 99]
    for turn, width in enumerate(widths):
        begin = MS + 100_000 * turn
        works.append((GEMM, begin - 6_000, begin, 2_000))
        row = {"name": "aten::mm", "start_ns": begin - 62_000, "dur_ns": 60_000}
        ops.append(row | {"input_dims": f"[[8, {width}], [{width}, 8]]"})
    rows = launched(*works)
    for work, width in zip(rows["activities"], widths, strict=True):
        work["grid"] = [width, 1, 1]
    found = analyzed(rows | ({"ops": ops} if has_operators else {}))
    assert found.findings[0].confidence is not None
    reasons = found.findings[0].confidence.reasons
    assert (fact("doubt.one-pass") in reasons) == (passes == 1)
    is_in_title = "Only one pass seems to be recorded" in opening(found).title
    assert is_in_title == (passes == 1 and has_operators)
    chosen = tf.analyze(found.prepared.trace, Selection(to_ns=920_000)).findings[0].confidence
    assert chosen is not None
    assert (fact("doubt.one-pass") in chosen.reasons) == (passes == 1)


def test_a_few_long_gaps_among_many_short_ones_are_not_launching() -> None:
    """Of 4.9 ms between kernels 2 ms lie in one gap, though the mean gap is below 100 us."""
    kernel = "void at::native::elementwise_kernel<(int)128>(int)"
    begins = [MS + at * 52_000 + (2 * MS if at > 30 else 0) for at in range(60)]
    rows = launched(*((kernel, at - 6_000, at, 2_000) for at in begins))
    (found,) = of_rule(analyzed(rows, "nsys"), "host-unrecorded")
    assert found.title == "Untraced host time holds up the GPU"


@pytest.mark.parametrize(("count", "is_told"), [(20, True), (19, False)])
def test_samples_of_the_cpu_tell_what_unrecorded_host_work_is(count: int, *, is_told: bool) -> None:
    names = ["png.so!zlib(int)", "png.so!crc", "png.so!zlib(int)", "libc.so"]
    samples = [
        {"kind": "sample", "name": names[at % 4], "start_ns": 1_000 + at, "dur_ns": 0}
        for at in range(count)
    ]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsys", marks=samples), "host-unrecorded")
    said = "75.0 % of 20 CPU samples are in png.so. Most frequent: zlib (50.0 %), crc (25.0 %)."
    assert (said in found.sentence) == is_told
    assert ("nsys profile" in found.remedy) != is_told


@pytest.mark.parametrize(
    ("names", "title", "said"),
    [
        (
            ["libuct.so.0!a", "mca_pml.so!b", "app!f(int)", "libmpi.so.4"],
            "The host waits for other ranks",
            "75.0 % of 20 CPU samples are in MPI. Most frequent: a (25.0 %), b (25.0 %)",
        ),
        (
            ["libx.so!a", "liby.so!b", "app!f(int)", "libx.so"],
            "Host code holds up the GPU",
            "50.0 % of 20 CPU samples are in libx.so. Most frequent: a (25.0 %), libx.so (25.0 %).",
        ),
        (
            ["libx.so!a", "liby.so!b", "app!f(int)", "libz.so"],
            "Host code holds up the GPU",
            ": 20 CPU samples. Most frequent: a (25.0 %), b (25.0 %), f (25.0 %).",
        ),
    ],
)
def test_samples_go_by_the_library_that_has_half_of_them(
    names: list[str], title: str, said: str
) -> None:
    samples = [
        {"kind": "sample", "name": names[at % 4], "start_ns": 1_000 + at, "dur_ns": 0}
        for at in range(20)
    ]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsys", marks=samples), "host-unrecorded")
    assert found.title == title
    assert said in found.sentence


@pytest.mark.parametrize(
    ("kernel", "memory", "function", "is_told"),
    [
        ("solve_12_gpu", "Pinned", "libnvc.so!__c_mcopy8_sky", True),
        ("solve_12_gpu", "Pinned", "libc.so.6!__memmove_avx_unaligned", True),
        ("solve_12_gpu", "Pinned", "app!prepare", False),
        ("solve_12_gpu", "Pageable", "libnvc.so!__c_mcopy8_sky", False),
        ("solve(float*)", "Pinned", "libnvc.so!__c_mcopy8_sky", False),
    ],
)
def test_the_copies_of_openacc_from_its_own_buffer_are_no_code_of_the_user(
    kernel: str, memory: str, function: str, *, is_told: bool
) -> None:
    copied = f"Memcpy DtoH (Device -> {memory})"
    rows = launched((kernel, 0, 1_000, 1_000), (copied, 2_000_000, 2_001_000, 50_000))
    rows["activities"][1] |= {"kind": "memcpy", "direction": "DtoH", "bytes": 10**6}
    samples = [
        {"kind": "sample", "name": function, "start_ns": 10_000 + at, "dur_ns": 0}
        for at in range(20)
    ]
    (found,) = of_rule(analyzed({**rows, "marks": samples}, "nsys"), "host-unrecorded")
    assert found.remedy.startswith("The OpenACC runtime copies between") == is_told


@pytest.mark.parametrize(("names", "is_told"), [("aaaaa", True), ("aaaa", False), ("aaaab", False)])
def test_few_samples_of_the_cpu_tell_what_it_does_if_they_agree(
    names: str, *, is_told: bool
) -> None:
    """If half of the time were something else, five would agree once in 32 times."""
    samples = [
        {"kind": "sample", "name": f"lib.so!{name}", "start_ns": 1_000 + at, "dur_ns": 0}
        for at, name in enumerate(names)
    ]
    (found,) = of_rule(run(0, 2_000_000, 0, 0, by="nsys", marks=samples), "host-unrecorded")
    assert ("Most frequent: a (100.0 %)." in found.sentence) == is_told


@pytest.mark.parametrize(
    ("off_ns", "label", "is_told", "gains"),
    [
        (1_900_000, None, True, False),  # it may wait for what sets the pace
        (1_900_000, "load", True, True),
        (1_200_000, None, True, False),
        (900_000, None, False, False),
    ],
)
def test_a_launching_thread_that_is_off_the_cpu_waits(
    off_ns: int, label: str | None, *, is_told: bool, gains: bool
) -> None:
    off = {"kind": "off_cpu", "name": "(off the CPU)", "start_ns": 50_000, "dur_ns": off_ns}
    ranges = [{"name": label, "start_ns": 0, "dur_ns": 2_000_000}] if label else []
    analysis = run(0, 2_000_000, 0, 0, by="nsys", marks=[off, *ranges])
    (found,) = of_rule(analysis, "host-unrecorded")
    assert (found.title == "The launching thread is off the CPU") == is_told
    assert ("of that it is off the CPU, and waits" in found.sentence) == is_told
    assert (found.gain is not None) == gains


@pytest.mark.parametrize(("off_ns", "is_told"), [(100_000, True), (900_000, False), (0, False)])
def test_a_launching_thread_that_is_hardly_switched_out_computes(
    off_ns: int, *, is_told: bool
) -> None:
    off = {"kind": "off_cpu", "name": "(off the CPU)", "start_ns": 50_000, "dur_ns": off_ns}
    analysis = run(0, 2_000_000, 0, 0, by="nsys", marks=[off] if off_ns else [])
    (found,) = of_rule(analysis, "host-unrecorded")
    assert (found.title == "Host code holds up the GPU") == is_told
    assert ("of that it runs on a CPU" in found.sentence) == is_told


@pytest.mark.parametrize(("late", "is_told"), [("rare", True), ("k", False)])
def test_a_kernel_that_ends_most_idle_time_is_named_where_it_is_one_of_few(
    late: str, *, is_told: bool
) -> None:
    """Ten rounds of nine kernels back to back and one that the host launches 1 ms later."""
    works = []
    for begin in range(0, 10 * 2 * MS, 2 * MS):
        works += [("k", begin + 20_000 * n, begin + 20_000 * n + 6_000, 14_000) for n in range(9)]
        works.append((late, begin + 1_200_000, begin + 1_206_000, 700_000))
    (found,) = of_rule(analyzed(launched(*works), "nsys"), "host-unrecorded")
    assert ("of the idle time comes just before rare." in found.sentence) == is_told


def test_a_wait_behind_which_the_gpu_does_not_run_empty_leaves_a_queue() -> None:
    """Each step waits for the kernel before, while the next one is queued."""
    works = [(GEMM, 1_000_000 * at, 1_500_000 + STEP * at, STEP) for at in range(6)]
    marks = [(f"ProfilerStep#{at}", 1_000_000 * at - 1_000, 999_000) for at in range(6)]
    rows = launched(*works)
    wait = {"name": "cudaEventSynchronize", "dur_ns": 900_000}
    rows["calls"] += [wait | {"start_ns": 1_000_000 * at + 20_000} for at in range(6)]
    assert not of_rule(tf.analyze(trace_of(**rows, marks=step_marks(*marks))), "host-waits")


@pytest.mark.parametrize(
    ("gap_ms", "title"), [(90, "The GPU waits in one long gap"), (6, "Untraced")]
)
def test_one_gap_with_half_of_the_time_is_told_as_one(gap_ms: int, title: str) -> None:
    """Kernels of 1 ms, ten before the gap and ten after it, with 1 ms between them."""
    begins = [MS * (2 + 2 * at + (gap_ms if at > 9 else 0)) for at in range(20)]
    rows = launched(*(("saxpy", at - 6_000, at, MS) for at in begins))
    (found,) = of_rule(analyzed(rows, "nsys"), "host-unrecorded")
    assert found.title.startswith(title)
    assert ("91.0 ms of it in one gap" in found.sentence) == (gap_ms == 90)
    assert "while nothing of the host is recorded" not in found.sentence


@pytest.mark.parametrize(("size", "is_batch"), [(150_000_000, True), (65_536, False)])
def test_a_gap_that_ends_in_a_large_copy_may_be_of_loading_data(
    size: int, *, is_batch: bool
) -> None:
    """PyTorch traced the GPU alone, so no range can be seen; 90 ms lie between two batches."""
    works = [("saxpy", MS), ("Memcpy HtoD", 93 * MS), ("saxpy", 95 * MS)]
    rows = launched(*((name, at - 6_000, at, MS) for name, at in works))
    rows["activities"][1] |= {"kind": "memcpy", "direction": "HtoD", "bytes": size}
    (found,) = of_rule(analyzed(rows), "host-unrecorded")
    assert ("a copy of 150 MB to the GPU" in found.sentence) == is_batch
    assert found.remedy.startswith("Record with activities=[ProfilerActivity.CPU, ")
    assert "without the CPU, record_function() shows nothing" in found.remedy


@pytest.mark.parametrize(("late", "is_told"), [("copy", True), ("kernel", False)])
def test_gaps_that_always_end_in_the_copy_of_a_batch_are_late_input(
    late: str, *, is_told: bool
) -> None:
    """Twenty rounds: a copy of 1 MB, and a kernel right behind it, or 4 ms later."""
    delays = {"copy": (4, 1), "kernel": (1, 4)}[late]
    works, at = [("saxpy", MS - 6_000, MS, MS)], 2 * MS
    for _ in range(20):
        for name, delay in zip(("copy", "saxpy"), delays, strict=True):
            at += delay * MS if delay > 1 else 7_000
            works.append((name, at - 6_000, at, MS))
            at += MS
    rows = launched(*works)
    for work in rows["activities"][1::2]:
        work |= {"kind": "memcpy", "direction": "HtoD", "bytes": 1_000_000}
    (found,) = of_rule(analyzed(rows, "nsys"), "host-unrecorded")
    assert (found.title == "New input reaches the GPU late") == is_told
    assert ("(20 times; 1.00 MB after the longest such gap)" in found.sentence) == is_told


def test_a_library_without_names_of_functions_is_named_once() -> None:
    works = [{"name": "saxpy", "start_ns": 500 * MS, "dur_ns": 100 * MS}]
    sample = {"kind": "sample", "name": "[kernel]", "dur_ns": 0}
    samples = [{**sample, "start_ns": at * MS} for at in range(20)]
    said = outside_samples(tf.analyze(trace_of(activities=works, marks=samples)))
    assert said is not None
    assert words(said) == (
        "100.0 % of 20 CPU samples before the first GPU operation are in [kernel]."
    )


def test_idle_time_has_no_function_if_samples_name_none() -> None:
    sample = {"kind": "sample", "name": "[kernel]", "dur_ns": 0}
    samples = [{**sample, "start_ns": 1_000 + at} for at in range(20)]
    analysis = run(0, 2_000_000, 0, 0, by="nsys", marks=samples)
    (found,) = of_rule(analysis, "host-unrecorded")
    assert "20 CPU samples are in [kernel]" in found.sentence
    (row,) = (row for row in waits(analysis) if row.words == "untraced host time")
    assert row.names == ("longest 2.00 ms",)


def test_samples_outside_the_gpu_work_tell_what_most_of_a_recording_is() -> None:
    """The GPU works from 1.0 to 1.1 s. Of 21 samples before that 16 are of one library.

    The 19 samples after it are fewer, and no part of the figures.

    Names have neither what a function returns nor the arguments of templates.
    """
    names = ["io.so!std::istream& std::getline<char, A<int> >(std::istream&)", "app!main"]
    marks = [
        {"kind": "sample", "name": names[n % 4 == 3], "start_ns": 50 * MS * n, "dur_ns": 0}
        for n in range(41)
    ]
    works = [("saxpy", (1_000 + n) * MS, (1_000 + n) * MS + 6_000, 500_000) for n in range(100)]
    analysis = tf.analyze(trace_of(**launched(*works), marks=marks))
    said = outside_samples(analysis)
    assert said is not None
    when = "before the first GPU operation"
    told = f"76.2 % of 21 CPU samples {when} are in io.so: std::getline (76.2 %)."
    assert words(said) == told


CHECK = "redzone_checker"


def _starting(check: str = "k", last: int = 28) -> tf.Analysis:
    """30 kernels of 1 ms; a first launch of 41 ms, 38 ms untraced, and a sleep of 10 ms.

    Checks are the second kernel and number `last`.
    """
    works, at = list[tuple[str, int, int, int]](), MS
    for number in range(30):
        name = "new" if number == 5 else check if number in (1, last) else "k"
        launch, at = at, at + {5: 41, 10: 13, 15: 12, 20: 13, 25: 10}.get(number, 0) * MS
        works.append((name, launch if number == 5 else at - 9_000, at, MS))
        at += MS
    rows = launched(*works)
    rows["calls"][5]["dur_ns"] = 41 * MS
    sleep = {"name": "time.sleep", "kind": "python", "start_ns": works[25][2] - 10 * MS}
    rows["marks"] = [sleep | {"dur_ns": 10 * MS - 20_000}]
    return tf.analyze(trace_of(**rows), tf.Selection(from_ns=0))


def test_start_up_leads_before_untraced_host_time_that_takes_less() -> None:
    analysis = _starting()
    first, second = analysis.findings[:2]
    assert (first.rule, second.rule) == ("start-up", "host-unrecorded")
    assert second.share < first.share < (analysis.components.share("idle") or 0)


@pytest.mark.parametrize(("last", "is_told"), [(28, True), (8, False)])
def test_trials_of_autotuning_are_told_if_they_are_most_of_the_work(
    last: int, *, is_told: bool
) -> None:
    (found,) = of_rule(_starting(CHECK, last), "start-up")
    said = " Most GPU work is autotuning (redzone_checker, 2 times), until 1.00 ms before the end, "
    assert (said in found.sentence) == is_told


@pytest.mark.parametrize(("each", "is_told"), [(1, True), (50, False)])
def test_work_between_the_trials_of_two_functions_is_of_the_program(
    each: int, *, is_told: bool
) -> None:
    """A function has trials at the begin, another at the end; 52 or 2,600 kernels between."""
    sizes = [size * each for size in (3, 5, 2, 7, 11, 4, 13, 1, 6)]
    names = ["a", CHECK, "b", CHECK, *(f"k{size}" for size in sizes for _ in range(size))]
    works = [{"name": name, "start_ns": MS * at} for at, name in enumerate([*names, CHECK, "c"])]
    prepared = tf.analyze(trace_of(activities=[work | {"dur_ns": MS} for work in works])).prepared
    assert not prepared.plan.choice.used
    assert (trials(prepared) is not None) == is_told


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (40, "100.0 % of 40 CPU samples of the launching threads"),
        (20, "90.0 % of 200 CPU samples of all threads"),
    ],
    ids=["the launching thread works", "it mostly waits"],
)
def test_samples_of_all_threads_tell_what_the_launching_thread_waits_for(
    own: int, said: str
) -> None:
    """Three threads read for 0.6 s, sampled every 10 ms; the launching one is on the CPU less."""
    kernels = (("saxpy", at * MS, at * MS, 500_000) for at in range(1_000, 1_100))
    rows = launched(*kernels)
    rows["calls"] = [call | {"thread": 0} for call in rows["calls"]]
    rows["marks"] = [
        {"kind": "sample", "name": name, "start_ns": 10 * MS * at, "dur_ns": 0} | {"thread": thread}
        for thread, name in enumerate(("app!main", *("io.so!getline",) * 3))
        for at in range(60 if thread else own)
    ]
    found = outside_samples(tf.analyze(trace_of(**rows)))
    assert found is not None
    assert words(found).startswith(f"{said} before the first GPU operation are in ")


@pytest.mark.parametrize("calls", [1, 2])
def test_one_call_that_allocates_is_not_to_be_reused(calls: int) -> None:
    """Without steps: 3.8 ms of one call, or of two of half the time, between two kernels."""
    rows = launched(("k", 90_000, 100_000, STEP), ("k", 4_990_000, 5_000_000, STEP))
    took_ns = 3_800_000 // calls
    rows["calls"] += [{"name": "cudaHostAlloc", "start_ns": 0, "dur_ns": 5_000}]  # the first one
    rows["calls"] += [
        {"name": "cudaHostAlloc", "start_ns": 1_100_000 + n * took_ns, "dur_ns": took_ns}
        for n in range(calls)
    ]
    (found,) = of_rule(analyzed(rows, "nsight"), "memory-alloc")
    assert ("One call" in found.remedy) == (calls == 1)
    assert f"Called in the window: cudaHostAlloc {calls} time" in found.sentence


@pytest.mark.parametrize(("copy_ns", "is_dear"), [(1_500_000, True), (2_500_000, False)])
def test_memory_pinned_for_longer_than_it_is_copied_stays_pageable(
    copy_ns: int, *, is_dear: bool
) -> None:
    copied = "Memcpy DtoH (Device -> Pinned)"
    rows = launched(("k", 90_000, 100_000, STEP), (copied, 4_990_000, 5_000_000, copy_ns))
    rows["activities"][1] |= {"kind": "memcpy", "direction": "DtoH", "bytes": 10**7}
    rows["calls"] += [
        {"name": "cudaHostAlloc", "start_ns": 0, "dur_ns": 5_000},
        {"name": "cudaHostAlloc", "start_ns": 1_100_000, "dur_ns": 3_800_000},
    ]
    (found,) = of_rule(analyzed(rows, "nsight"), "memory-alloc")
    assert ("leave memory pageable" in found.remedy) == is_dear


def test_memory_that_many_ranges_allocate_is_one_cause() -> None:
    """Of 60 ranges with 80 us of cudaMalloc each more than are named become one: "(others)"."""
    us = 1_000
    works, calls, marks = [], [], []
    for number in range(61):
        at, name = 100 * us * number, chr(97 + number % 26) * (1 + number // 26)
        works.append(("gemm", at + 94 * us, at + 96 * us, 9 * us))
        calls.append({"name": "cudaMalloc", "start_ns": at + 10 * us, "dur_ns": 80 * us})
        marks.append({"name": f"make {name}", "start_ns": at + 5 * us, "dur_ns": 88 * us})
    rows = launched(*works)
    rows["calls"] += calls
    (found,) = of_rule(tf.analyze(trace_of(**rows, marks=marks)), "memory-alloc")
    assert found.share == pytest.approx(60 * 80 / (60 * 100 + 9))


def test_so_are_they_where_a_part_of_the_launches_is_queued() -> None:
    """Three kernels of 30 us each 150 us: two are queued behind the first."""
    kernel = "void at::native::elementwise_kernel<(int)128>(int)"
    works = []
    for at in range(MS, 4 * MS, 150_000):
        works.append((kernel, at - 6_000, at, 30_000))
        works += [(kernel, at + n * 6_000, at + n * 30_000, 30_000) for n in (1, 2)]
    analysis = analyzed(launched(*works), "nsys")
    assert analysis.host_bound is not None
    assert analysis.host_bound.verdict == "partly host-bound"
    (found,) = of_rule(analysis, "host-unrecorded")
    assert found.title == "The host launches work too slowly"
