"""Copies that nothing hides, and room for a larger batch: with the finding, and without."""

from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, step_marks, trace_of
from tests.findings.scenarios import reach_ns
from tests.findings.test_kernel_rules import T4
from traceflops.attribution.kernels import memory_times
from traceflops.findings.copy_sizes import same_uploads
from traceflops.findings.finding import Finding

MS = 1_000_000
STEPS = 4


def run(
    copy: str,
    way: str,
    *,
    beside: bool = False,
    copy_ns: int = MS // 2,
    by: str = "pytorch",
    steps: int = STEPS,
    size: int = 5_000_000,
    mark: str | None = None,
) -> tf.Analysis:
    """Return steps of a kernel of 1 ms and a copy, one after the other or on another stream."""
    works: list[tuple[str, int, int, int]] = []
    marks, at = [], 2 * MS
    for step in range(steps):
        marks.append((f"ProfilerStep#{step}", 10_000 * step, 9_000))  # the host is far ahead
        works.append(("sm90_gemm", 10_000 * step + 1_000, at, MS))
        begin = at if beside else at + MS
        works.append((copy, 10_000 * step + 2_000, begin, copy_ns))
        at = begin + (MS if beside else copy_ns)
    rows = launched(*works)
    is_copy: dict[str, Any] = {"kind": "memcpy", "direction": way, "bytes": size}
    is_copy["stream"] = 9 if beside else 7
    for one in rows["activities"]:
        one.update(is_copy if one["name"] == copy else {})
    named = [{"name": mark, "start_ns": 1, "dur_ns": 1}] if mark else []
    trace = trace_of(**rows, marks=[*step_marks(*marks), *named])
    return tf.analyze(replace(trace, source=replace(trace.source, format=by)))


def of_rule(analysis: tf.Analysis, *rules: str) -> list[Finding]:
    return [one for one in analysis.findings if one.rule in rules]


@pytest.mark.parametrize(
    ("copy", "by", "rule", "remedy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "pytorch", "pageable-copies", "pin_memory()"),
        ("Memcpy HtoD (Pageable -> Device)", "nsight", "pageable-copies", "cudaHostAlloc"),
        ("Memcpy HtoD (Pinned -> Device)", "pytorch", "host-copies", "prefetch more batches"),
        ("Memcpy HtoD (Pinned -> Device)", "nsight", "host-copies", "stream of its own"),
        ("Memcpy DtoH (Device -> Pinned)", "pytorch", "host-copies", "offload fewer"),
    ],
)
def test_copies_alone_gain_at_most_their_time(copy: str, by: str, rule: str, remedy: str) -> None:
    """Half a millisecond of each step of 1.5 ms; hiding all of it gains as much."""
    (found,) = of_rule(run(copy, copy.split()[1], by=by), "pageable-copies", "host-copies")
    assert found.rule == rule
    assert found.share == pytest.approx(1 / 3)
    assert "Only copies between CPU and GPU run for 33.3 % of the time" in found.sentence
    assert "10 GB/s" in found.sentence
    assert remedy in found.remedy
    assert found.gain is not None
    assert (found.gain.low_ns, found.gain.high_ns) == (0, MS // 2)
    assert found.rows[0].time_ns == MS // 2 * found.rows[0].count  # type: ignore[operator]


@pytest.mark.parametrize(("copy_ns", "is_most"), [(MS // 2, False), (9 * MS, True)])
def test_copies_that_no_work_could_hide_had_better_not_be(copy_ns: int, is_most: bool) -> None:
    copy = "Memcpy HtoD (Pinned -> Device)"
    (found,) = of_rule(run(copy, "HtoD", copy_ns=copy_ns), "host-copies")
    assert ("Other GPU work takes 10.0 %" in found.sentence) == is_most
    assert ("Keep the data on the GPU" in found.remedy) == is_most
    assert found.gain is not None
    assert found.gain.high_ns == copy_ns


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


@pytest.mark.parametrize(
    ("by", "remedy"), [("pytorch", "Pin the CPU tensors"), ("nsight", "cudaMallocHost")]
)
def test_pageable_copies_beside_little_work_are_pinned_first(by: str, remedy: str) -> None:
    (found,) = of_rule(run(PAGEABLE, "HtoD", copy_ns=9 * MS, by=by), "pageable-copies")
    assert remedy in found.remedy
    assert "Keep the data" not in found.remedy


@pytest.mark.parametrize("copy_ns", [MS // 2, 9 * MS])
def test_only_recorded_loaders_and_copies_to_the_cpu_are_named(copy_ns: int) -> None:
    (found,) = of_rule(run(PAGEABLE, "HtoD", copy_ns=copy_ns), "pageable-copies")
    assert "DataLoader" not in found.remedy
    assert "to the CPU" not in found.remedy
    loaded = run(PAGEABLE, "HtoD", copy_ns=copy_ns, mark="enumerate(DataLoader)#_Iter.__next__")
    (found,) = of_rule(loaded, "pageable-copies")
    assert "pin_memory=True in the DataLoader" in found.remedy
    copy = "Memcpy DtoH (Device -> Pageable)"
    (found,) = of_rule(run(copy, "DtoH", copy_ns=copy_ns), "pageable-copies")
    assert ("copy to the CPU into" in found.remedy) == (copy_ns > MS)


@pytest.mark.parametrize(
    ("product", "remedy"),
    [
        ("AMD Instinct MI300A", "share one memory: let both use the same buffers (hipMallocM"),
        ("NVIDIA GB10", "share one memory: let both use the same buffers (cudaMallocManaged"),
        ("AMD Instinct MI300X", ""),
    ],
)
def test_where_cpu_and_gpu_have_one_memory_nothing_needs_to_be_copied(
    product: str, remedy: str
) -> None:
    rows = launched(("to", 0, 1_000, 10 * MS), ("k", 11 * MS, 12 * MS, 30 * MS))
    rows["activities"][0].update(kind="memcpy", direction="HtoD", bytes=100_000_000)
    trace = trace_of(**rows, devices=[{"product": product}])
    tool = "rocprof" if product.startswith("AMD") else "nsys"
    trace = replace(trace, source=replace(trace.source, format=tool))
    (found,) = of_rule(tf.analyze(trace), "host-copies")
    assert remedy in found.remedy
    assert remedy.startswith("share") or "share one memory" not in found.remedy


@pytest.mark.parametrize(("size", "is_told"), [(4_096, True), (400_000, False)])
def test_launches_of_copies_that_are_to_be_joined_are_part_of_their_cost(
    size: int, *, is_told: bool
) -> None:
    """Copies of 4 us that begin 6 us after their calls, and after each a kernel of 5 us."""
    copy = "Memcpy HtoD (Pinned -> Device)"
    at_ns = range(10_000, 4_010_000, 20_000)
    works = [(copy, ns - 6_000, ns, 4_000) for ns in at_ns]
    rows = launched(*works, *(("k", ns + 1_000, ns + 5_000, 5_000) for ns in at_ns))
    for one, call in zip(rows["activities"], rows["calls"], strict=True):
        is_copy = {"kind": "memcpy", "direction": "HtoD", "bytes": size}
        one |= is_copy if one["name"] == copy else {}
        call["name"] = "cudaMemcpyAsync" if one["name"] == copy else "cudaLaunchKernel"
        call["dur_ns"] = 1_000
    trace = trace_of(**rows)
    trace = replace(trace, source=replace(trace.source, format="nsys"))
    (found,) = of_rule(tf.analyze(trace), "host-copies")
    assert ("is idle for another 29.9 % until launched copies begin" in found.sentence) == is_told
    assert found.gain is not None and (found.gain.high_ns > 800_000) == is_told


@pytest.mark.parametrize(
    ("rate", "each_ns", "is_slow"),
    [(6, 11 * MS, True), (25, 11 * MS, False), (15, 11 * MS, True), (15, 5 * MS, False)],
)
def test_pinned_copies_far_below_the_link_tell_to_look_at_it(
    rate: int, each_ns: int, *, is_slow: bool
) -> None:
    """Nothing but copies runs, on a GPU of a link of 31.5 GB/s: no gain is known of these."""
    name = "Memcpy HtoD (Pinned -> Device)"
    rows = launched(*((name, at, at + 1_000, 10 * MS) for at in range(0, 200 * MS, each_ns)))
    for activity in rows["activities"]:
        activity.update(kind="memcpy", direction="HtoD", bytes=rate * 10 * MS)
    trace = trace_of(**rows, devices=[{"product": "NVIDIA A100-SXM4-40GB"}])
    (found,) = of_rule(tf.analyze(trace), "host-copies")
    told = f"reach only {rate} GB/s, PCIe Gen 4 x16 up to 31.5 GB/s: look at the width"
    assert (told in found.remedy) == is_slow
    assert found.gain is None


def test_one_copy_each_way_cannot_be_hidden_and_does_not_pay_for_pinned_memory() -> None:
    """A sort of 2 ms between its copies of 0.2 ms; no step is known, so nothing runs beside."""
    works = (
        (PAGEABLE, 0, MS, MS // 5),
        ("sort", 1_000, 2 * MS, 2 * MS),
        ("Memcpy DtoH (Device -> Pageable)", 2_000, 4 * MS, MS // 5),
    )
    rows = launched(*works)
    for one in rows["activities"]:
        way = {"kind": "memcpy", "direction": one["name"][7:11], "bytes": 500_000}
        one.update(way if "Memcpy" in one["name"] else {})
    trace = trace_of(**rows)
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsys")))
    (found,) = of_rule(analysis, "pageable-copies")
    assert "Pin only buffers that are used many times" in found.remedy
    assert found.gain is None
    assert "stream" not in found.remedy


@pytest.mark.parametrize(
    ("size", "remedy"),
    [(20, "copies of at most 20 B"), (40_000, "cudaMallocHost"), (90_000_000, "cudaMallocHost")],
)
def test_tiny_copies_had_better_not_be(size: int, remedy: str) -> None:
    """One copy per step cannot be joined with others."""
    of_copies = run(PAGEABLE, "HtoD", copy_ns=9 * MS, by="nsight", steps=12, size=size)
    (found,) = of_rule(of_copies, "pageable-copies")
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("way", "told"),
    [("HtoD", "Pass such values as arguments of the kernel"), ("DtoH", "read them only every few")],
)
def test_tiny_copies_to_the_gpu_are_not_read(way: str, told: str) -> None:
    named = PAGEABLE if way == "HtoD" else "Memcpy DtoH (Device -> Pageable)"
    of_copies = run(named, way, copy_ns=9 * MS, by="nsight", steps=12, size=20)
    (found,) = of_rule(of_copies, "pageable-copies")
    assert told in found.remedy


@pytest.mark.parametrize(
    ("way", "beside", "copy_ns"),
    [("HtoD", True, MS // 2), ("HtoD", False, MS // 50), ("DtoD", False, MS // 2)],
)
def test_hidden_short_and_other_copies_are_no_finding(way: str, beside: bool, copy_ns: int) -> None:
    analysis = run(f"Memcpy {way} (Pinned -> Device)", way, beside=beside, copy_ns=copy_ns)
    assert of_rule(analysis, "pageable-copies", "host-copies") == []


@pytest.mark.parametrize(
    ("name", "way", "beside", "is_told"),
    [
        ("Unified memory HtoD", "migration HtoD", True, True),
        ("[CUDA Unified Memory memcpy DtoH]", "migration DtoH", True, True),
        ("Unified memory HtoD", "migration HtoD", False, False),
        ("Unified memory prefetch HtoD", "migration HtoD", True, False),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", True, False),
    ],
)
def test_pages_that_migrate_on_demand_inside_kernels_are_a_cause(
    name: str, way: str, *, beside: bool, is_told: bool
) -> None:
    """Half a millisecond of each kernel of one millisecond."""
    found = of_rule(run(name, way, beside=beside), "unified-memory")
    assert bool(found) == is_told
    for one in found:
        assert "1.50 ms of the 3.00 ms in which kernels run. Largest part: sm90_gemm" in (
            one.sentence
        )
        assert "cudaMemPrefetchAsync" in one.remedy
        assert one.gain is not None
        assert (one.gain.low_ns, one.gain.high_ns) == (MS // 4, MS // 2)


@pytest.mark.parametrize(
    ("faults_ns", "told", "most_ns"),
    [
        (None, "to the last of them kernels take 1.96 ms; how much of that is waiting", 1_960_000),
        ((-10_000, 10_000), "for 40.0 % of the time: 800 µs of the 2.00 ms", 800_000),
        ((10_000, 25_000), "for 50.0 % of the time: 1.00 ms of the 2.00 ms", 1_000_000),
    ],
)
def test_page_faults_tell_how_long_kernels_wait_for_pages(
    faults_ns: tuple[int, int] | None, told: str, most_ns: int
) -> None:
    """In a kernel of 2 ms pages migrate for 10 of each 50 us; faults are told from there."""
    works = [("add(float *)", 1_000, MS, 2 * MS)]
    begins = [MS + 10_000 + 50_000 * at for at in range(40)]
    works += [("Unified memory HtoD", 0, begin, 10_000) for begin in begins]
    rows = launched(*works)
    for one in rows["activities"][1:]:
        one.update({"kind": "memcpy", "direction": "migration HtoD", "stream": None})
        one.update({"correlation": None})
    rows["calls"] = rows["calls"][:1]
    first_ns, last_ns = faults_ns or (0, 0)
    fault = {"kind": "page_fault", "name": "GPU page faults", "device": 0, "thread": None}
    marks = [
        fault | {"start_ns": begin + first_ns, "dur_ns": last_ns - first_ns}
        for begin in begins
        if faults_ns
    ]
    trace = trace_of(**rows, marks=marks)
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsys")))
    (found,) = of_rule(analysis, "unified-memory")
    assert told in found.sentence
    assert ("--cuda-um-gpu-page-faults=true" in found.sentence) == (not faults_ns)
    assert ("with 40 groups of page faults" in found.sentence) == bool(faults_ns)
    assert found.gain is not None
    assert reach_ns(found.gain) == most_ns


@pytest.mark.parametrize("size", [250_000, 1_000_000, 1_600_000])
def test_pages_that_must_still_cross_the_link_bound_the_gain(size: int) -> None:
    """In a kernel of 2 ms 40 pages come to an A100-SXM4-40GB, from first to last 1.96 ms.

    PCIe 4.0 x16 has 31.5 GB/s, the memory 1,555 GB/s: pages of 1.6 MB need more than the kernel.
    """
    works = [("add(float *)", 1_000, MS, 2 * MS)]
    begins = [MS + 50_000 * at for at in range(40)]
    works += [("Unified memory HtoD", 0, begin, 10_000) for begin in begins]
    rows = launched(*works)
    for one in rows["activities"][1:]:
        one |= {"kind": "memcpy", "direction": "migration HtoD", "stream": None}
        one |= {"correlation": None, "bytes": size}
    rows["calls"] = rows["calls"][:1]
    device = {"product": "NVIDIA A100-SXM4-40GB", "compute_major": 8, "compute_minor": 0}
    found = of_rule(tf.analyze(trace_of(**rows, devices=[device])), "unified-memory")
    least_ns = 40 * size * (1 / 31.5 + 1 / 1_555)
    most_ns = [reach_ns(one.gain) for one in found if one.gain is not None]
    left_ns = 1_960_000 - least_ns
    assert most_ns == ([pytest.approx(left_ns, rel=0.01)] if left_ns > 0 else [])


@pytest.mark.parametrize(("evicted", "says"), [(6, "Prefetch"), (7, "Work on less data")])
def test_where_pages_make_room_the_data_does_not_fit(evicted: int, says: str) -> None:
    """In a kernel of 2 ms 20 pages come in; then four move out, of so many bytes."""
    works = [("add(float *)", 1_000, MS, 2 * MS)]
    begins = [MS + 10_000 + 50_000 * at for at in range(24)]
    works += [("Unified memory HtoD", 0, begin, 10_000) for begin in begins]
    rows = launched(*works)
    for place, one in enumerate(rows["activities"][1:]):
        out = place >= 20
        name, way = ("eviction DtoH", "DtoH") if out else ("HtoD", "HtoD")
        one |= {"kind": "memcpy", "direction": f"migration {way}", "stream": None}
        one |= {"correlation": None, "name": f"Unified memory {name}"}
        one |= {"bytes": evicted if out else 4}
    rows["calls"] = rows["calls"][:1]
    (found,) = of_rule(tf.analyze(trace_of(**rows)), "unified-memory")
    assert says in (found.remedy or "")
    assert ("moves out again" in found.sentence) == (evicted == 7)


@pytest.mark.parametrize(
    ("asked", "freed", "each", "says"),
    [
        ("cudaMalloc", "cudaFree", 1, "unset PYTORCH_NO_CUDA_MEMORY_CACHING"),
        ("hipMalloc", "hipFree", 1, "unset PYTORCH_NO_HIP_MEMORY_CACHING"),
        ("cudaMallocAsync_v11020", "cudaFreeAsync_v11020", 1, "remove backend:cudaMallocAsync"),
        ("cudaMalloc", "cudaFree", 4, "expandable_segments:True"),
    ],
)
def test_where_each_tensor_asks_the_driver_the_cache_is_off(
    asked: str, freed: str, each: int, says: str
) -> None:
    """An operator allocates, launches 40 us of work and frees, every 500 us; 10 are a step."""
    works: list[tuple[str, int, int, int]] = []
    calls: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    marks: list[tuple[str, int, int]] = []
    for at in range(MS, MS + 50 * MS // 2, MS // 2):
        place = len(works)
        if place % 10 == 0:
            marks.append((f"ProfilerStep#{place // 10}", at, 5 * MS))
        ops += [
            {"name": "aten::relu", "start_ns": at, "dur_ns": 450_000},
            {"name": "aten::empty", "start_ns": at + 5_000, "dur_ns": 60_000},
        ]
        if place % each == 0:
            calls += [
                {"name": asked, "start_ns": at + 10_000, "dur_ns": 50_000},
                {"name": freed, "start_ns": at + 90_000, "dur_ns": 350_000},
            ]
        works.append(("relu", at + 70_000, at + 80_000, 40_000))
    rows = launched(*works)
    rows["calls"] += calls
    analysis = tf.analyze(trace_of(**rows, ops=ops, marks=step_marks(*marks)))
    (found,) = of_rule(analysis, "memory-alloc")
    assert says in found.remedy
    assert ("empty_cache" in found.remedy) == (each > 1)
    assert found.owner == ("configuration" if each == 1 else "yours")


def counted_memory(peak: int | None) -> list[dict[str, Any]]:
    """Return the counters of an allocator that holds `peak` bytes, none if that is None."""
    return [
        {"device": 0, "name": f"device_memory.{name}_bytes", "time_ns": MS, "value": float(peak)}
        for name in ("allocated", "reserved")
        if peak is not None
    ]


@pytest.mark.parametrize(
    ("frees", "peak", "is_full"), [(1, None, False), (3, None, True), (3, 90, True), (3, 11, False)]
)
def test_a_cache_that_is_given_back_to_ask_for_more_is_full(
    frees: int, peak: int | None, *, is_full: bool
) -> None:
    """Every other tensor is allocated by the driver, for 300 of 500 us, after some are freed.

    The GPU has 100 bytes, `peak` of which the allocator holds if that is recorded.
    """
    works, calls, ops = [], [], []
    for number, at in enumerate(range(MS, 21 * MS, MS // 2)):
        ops.append({"name": "aten::empty", "start_ns": at, "dur_ns": 400_000})
        if number % 2:
            calls += [
                {"name": "cudaFree", "start_ns": at + 10_000 * each, "dur_ns": 5_000}
                for each in range(1, frees + 1)
            ]
            calls.append({"name": "cudaMalloc", "start_ns": at + 50_000, "dur_ns": 300_000})
        works.append(("relu", at + 410_000, at + 415_000, 60_000))
    rows = launched(*works)
    rows["calls"] += calls
    marks = step_marks(*((f"ProfilerStep#{n}", (1 + 5 * n) * MS, 5 * MS) for n in range(4)))
    rows["counters"] = counted_memory(peak)
    made = trace_of(**rows, ops=ops, marks=marks, devices=[{"memory_bytes": 100}])
    (found,) = of_rule(tf.analyze(made), "memory-alloc")
    assert found.remedy.startswith("GPU memory is full") == is_full
    assert "expandable_segments" in found.remedy


def starved(peak: int | None, *, memory: int | None = 100) -> tf.Analysis:
    """Return short kernels that the host launches too slowly, on a device of 100 bytes."""
    starts = range(MS, 3 * MS, 20_000)
    rows = launched(*(("add", at - 6_000, at, 2_000) for at in starts))
    ops = [{"name": "aten::add", "start_ns": at - 17_000, "dur_ns": 16_000} for at in starts]
    devices = [{"memory_bytes": memory}]
    return tf.analyze(trace_of(**rows, ops=ops, counters=counted_memory(peak), devices=devices))


def test_a_starved_gpu_with_much_free_memory_has_room_for_a_larger_batch() -> None:
    (found,) = of_rule(starved(40), "memory-headroom")
    assert "its memory is 40.0 % full at its peak" in found.sentence
    assert found.gain is None


@pytest.mark.parametrize(("peak", "memory"), [(50, 100), (None, 100), (40, None)])
def test_no_room_where_memory_is_used_or_not_known(peak: int | None, memory: int | None) -> None:
    assert of_rule(starved(peak, memory=memory), "memory-headroom") == []


def test_copies_beside_kernels_are_no_part_of_memory_work() -> None:
    """Copies run beside a kernel of the same length: only what no kernel hides counts."""
    prepared = run("Memcpy HtoD (Pinned -> Device)", "HtoD", beside=True, copy_ns=MS).prepared
    alone = run("Memcpy HtoD (Pinned -> Device)", "HtoD", copy_ns=MS).prepared
    assert alone is not None

    assert memory_times(prepared) == {"host-to-device copies": 0}
    assert memory_times(alone).keys() == {"host-to-device copies"}
    assert memory_times(alone)["host-to-device copies"] > 0


@pytest.mark.parametrize(
    ("last", "by", "memory", "says"),
    [
        (10, "nsight", "Pageable", "105 MB go to the GPU 10 times in copies of the same sizes"),
        (10, "nsight", "Pinned", "105 MB go to the GPU 10 times in copies of the same sizes"),
        (10, "pytorch", "Pageable", "pin_memory"),
        (7, "nsight", "Pageable", "Pin the host memory"),  # no pass repeats
    ],
)
def test_the_same_sizes_again_and_again_may_be_the_same_data(
    last: int, by: str, memory: str, says: str
) -> None:
    """Ten passes of four copies of 25 MB, and of a rest of 5 MB at the end of each, or of seven."""
    copies = [25_000_000] * 40 + [5_000_000] * last
    works = [("copy", MS + 5 * MS * n, 2 * MS + 5 * MS * n, 4 * MS) for n in range(len(copies))]
    rows = launched(*works, ("kernel", 400 * MS, 401 * MS, 9 * MS))
    way = {"kind": "memcpy", "direction": "HtoD", "name": f"Memcpy HtoD ({memory} -> Device)"}
    for one, size in zip(rows["activities"], copies, strict=False):
        one.update(way, bytes=size)
    trace = trace_of(**rows, devices=[T4])
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format=by)))
    (found,) = of_rule(analysis, "pageable-copies", "host-copies")
    assert found.gain is not None
    # Pinned copies would take less than half as long; copies that are left out take no time.
    is_all = says[0] == "1" or memory == "Pinned"
    assert (found.gain.high_ns == 4 * MS * len(copies)) == is_all
    assert says in found.remedy
    assert ("from pinned memory" in found.remedy) == (says[0] == "1" and memory == "Pageable")
    assert ("if they are the same data" in found.remedy) == (says[0] == "1")


@pytest.mark.parametrize("gpus", [1, 10])
def test_the_same_data_on_several_gpus_are_no_repeats(gpus: int) -> None:
    """Forty pieces of 25 MB go to one GPU, or four to each of ten, between kernels there."""
    works = [("k", MS * n + 10, MS * (n + 1), MS // 2) for n in range(10)]
    works += [("copy", 20 * MS + 5 * MS * n, 21 * MS + 5 * MS * n, 4 * MS) for n in range(40)]
    works += [("k", MS * n + 10, MS * (n + 1), MS // 2) for n in range(230, 240)]
    rows = launched(*works)
    way = {"kind": "memcpy", "direction": "HtoD", "name": "Memcpy HtoD (Pageable -> Device)"}
    for name, each in (("copy", 4), ("k", 1)):
        own = [one for one in rows["activities"] if one["name"] == name]
        for number, one in enumerate(own):
            one["device"] = number // each % gpus
            one.update({**way, "bytes": 25_000_000} if name == "copy" else {})
    devices = [{"device": n, "local_id": n, "memory_bytes": 8_000_000_000} for n in range(gpus)]
    trace = trace_of(**rows, devices=devices)
    found = same_uploads(tf.analyze(replace(trace, source=replace(trace.source, format="nsight"))))
    assert found == ({"often": 40, "each": 25_000_000} if gpus == 1 else {})


def fills(beside: int) -> list[Finding]:
    """Return what is said of fills of 3 ms, 30 MB each, before a kernel of 1 ms; or `beside` it."""
    begins = range(2 * MS, 42 * MS, 4 * MS)
    fill, works = "Memset (Device)", list[tuple[str, int, int, int]]()
    for begin in begins:
        works.append((fill, begin - 2_000, begin, 3 * MS))
        works.append(("k", begin - 1_000, begin + 3 * MS * (1 - beside), MS * (1 + 2 * beside)))
    rows = launched(*works)
    for one in rows["activities"]:
        is_fill = one["name"] == fill
        one |= {"kind": "memset", "bytes": 30_000_000, "stream": 9} if is_fill else {}
    return of_rule(tf.analyze(trace_of(**rows)), "fills")


def test_fills_that_take_much_of_the_time_gain_at_most_their_time() -> None:
    (found,) = fills(beside=0)
    assert found.share == pytest.approx(0.75, abs=0.01)
    assert "fills of 300 MB in all at 10 GB/s" in found.sentence
    assert "Clear only the part that is read" in found.remedy
    assert found.gain is not None
    assert found.gain.low_ns == 0
    assert found.gain.high_ns * 4 == pytest.approx(3 * 40 * MS, abs=40 * MS)


def test_fills_that_run_beside_kernels_are_no_finding() -> None:
    assert fills(beside=1) == []


@pytest.mark.parametrize(
    ("call_ns", "title"),
    [(25_000, "host-copies.title-mpi"), (2_000, "host-copies.title")],
)
def test_copies_that_mpi_makes_are_not_the_programs(call_ns: int, title: str) -> None:
    """20 rounds of 100 us: a kernel, then 80 us in MPI, which copies to the CPU and back.

    If its calls take 50 of the 80 us, it copies; if they take 4, it waits for its neighbour.
    """
    works, marks = [], []
    for number in range(20):
        at = 100_000 * number
        works.append(("stencil", at, at + 5_000, 5_000))
        marks.append({"name": "MPI_Sendrecv", "start_ns": at + 12_000, "dur_ns": 80_000})
        works.append(("Memcpy DtoH", at + 15_000, at + 20_000, 10_000))
        works.append(("Memcpy HtoD", at + 55_000, at + 60_000, 10_000))
    rows = launched(*works)
    for one, call in zip(rows["activities"], rows["calls"], strict=True):
        if one["name"] != "stencil":
            one.update({"kind": "memcpy", "direction": one["name"][7:], "bytes": 8_192})
            call["dur_ns"] = call_ns
    for one in marks:
        one["kind"] = "annotation"
    trace = trace_of(**rows, marks=marks)
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsys")))
    (found,) = of_rule(analysis, "pageable-copies", "host-copies")
    assert found.name.code == title
    assert "MPI_Sendrecv makes most copies" in found.sentence
    assert "80.8 %" in found.sentence  # 20 times 80 us of 19 times 100 us and 80 us
    assert (found.owner, found.remedy[:4]) == ("library", "MPI ")


def test_a_single_call_of_mpi_counts_by_what_it_takes_of_all_time() -> None:
    """In 2.4 ms one call takes 0.3 ms, another call of its name inside; it copies all the time."""
    works = [("stencil", 10_000 * at, 100_000 * at, 90_000) for at in range(20)]
    works += [("Memcpy DtoH", at, at + 1_000, 10_000) for at in range(2_100_000, 2_390_000, 15_000)]
    rows = launched(*works)
    for one, call in zip(rows["activities"], rows["calls"], strict=True):
        if one["name"] != "stencil":
            one.update({"kind": "memcpy", "direction": "DtoH", "bytes": 8_192})
            call["dur_ns"] = 9_000
    mark = {"kind": "annotation", "name": "MPI_Bcast", "start_ns": 2_095_000, "dur_ns": 300_000}
    trace = trace_of(**rows, marks=[mark, {**mark, "start_ns": 2_096_000, "dur_ns": 290_000}])
    analysis = tf.analyze(replace(trace, source=replace(trace.source, format="nsys")))
    (found,) = of_rule(analysis, "pageable-copies", "host-copies")
    assert "MPI_Bcast makes most copies" in found.sentence
    (hidden,) = of_rule(tf.analyze(trace, redact=True), "pageable-copies", "host-copies")
    assert "MPI_Bcast makes most copies" in hidden.sentence
    assert found.share == pytest.approx(300 / 2_400, abs=0.01)


@pytest.mark.parametrize(("after", "is_loading"), [(0, True), (6, False)])
def test_copies_before_the_first_kernel_load_what_it_works_on(after: int, is_loading: bool) -> None:
    """Of 12 and of 18 copies, as long as a kernel, 12 come before the first kernel."""
    begin = [*range(12), *range(13, 13 + after)]
    works = [("Memcpy HtoD", 10 * at, at * MS, MS) for at in begin]
    rows = launched(*works, ("sgemm", 125, 12 * MS, MS), ("sgemm", 900, 40 * MS, MS))
    for one in rows["activities"]:
        if one["name"] == "Memcpy HtoD":
            one.update({"kind": "memcpy", "direction": "HtoD", "bytes": 5_000_000})
    (found,) = of_rule(tf.analyze(trace_of(**rows)), "host-copies")
    assert ("before the first kernel" in found.remedy) == is_loading
    assert (found.gain is None) == is_loading


@pytest.mark.parametrize(
    ("more", "says", "gains"), [(1, "not fit", True), (2, "4.00 ms after", False)]
)
def test_pages_that_move_out_only_at_first_are_no_loss_that_lasts(
    more: int, says: str, gains: bool
) -> None:
    """Pages move out during two kernels, until 4 ms; one or two of the same name follow."""
    works = [("add(float *)", 1_000 + at, MS * (1 + 2 * at), MS) for at in range(2 + more)]
    begins = [MS * (1 + 2 * at) + 50_000 * page for at in range(2) for page in range(10)]
    works += [("Unified memory eviction DtoH", 0, begin, 40_000) for begin in begins]
    works.insert(0, ("first()", 0, 0, 1_000))
    rows = launched(*works)
    for one in rows["activities"]:
        if "eviction" in one["name"]:
            one |= {"kind": "memcpy", "direction": "migration DtoH", "stream": None, "bytes": 1}
            one |= {"correlation": None}
    rows["calls"] = rows["calls"][: 3 + more]
    (found,) = of_rule(tf.analyze(trace_of(**rows)), "unified-memory")
    assert says in (found.remedy or "")
    assert (found.gain is not None) == gains
