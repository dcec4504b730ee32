"""How much of a loss the bytes need, by hand: a device of 1,000 TFLOP/s and 3,350 GB/s."""

from typing import Any

import pytest

from tests.build import launched, trace_of
from tests.conftest import SAMPLES
from tests.mfu.test_measurement import GEMM, H100
from traceflops import Analysis, analyze
from traceflops.mfu.budget import PeakOptions
from traceflops.mfu.roof_times import RoofTime
from traceflops.parsers.reading import read
from traceflops.reports.json.measured import measured_object
from traceflops.timeline.records import Components

BF16 = "c10::BFloat16"
ADD = "vectorized_elementwise_kernel"


def op(name: str, start_ns: int, *shapes: list[int]) -> dict[str, Any]:
    """Return an operator on tensors of two bytes an element."""
    types = ",".join(f'"{BF16}"' for _ in shapes)
    dims = ",".join(str(shape) for shape in shapes)
    found = {"name": name, "start_ns": start_ns, "dur_ns": 8}
    return found | {"input_dims": f"[{dims}]", "input_types": f"[{types}]"}


def add(start_ns: int) -> dict[str, Any]:
    """Return an addition of 3 x 6,700,000 bytes: 6,000 ns at 3,350 GB/s."""
    return op("aten::add", start_ns, [3_350_000], [3_350_000])


def of(
    *works: tuple[str, int, int, int], ops: list[dict[str, Any]], device: dict[str, Any] = H100
) -> Analysis:
    """Return the analysis of kernels (name, launch, start, duration) with the given operators."""
    tables = launched(*works)
    return analyze(trace_of(**tables, ops=ops, devices=[device]), peaks=PeakOptions(tflops=1000))


def test_a_slow_kernel_needs_less_than_it_takes() -> None:
    found = of((ADD, 5, 100, 24_000), ops=[add(0)])
    assert found.measured.roofs.memory == RoofTime(24_000, 24_000, 0, 6_000)
    (finding,) = found.losses
    assert finding.sentence == (
        "Memory work (elementwise kernels) takes 100.0 % of the total time. At peak "
        "bandwidth, memory work would take 25.0 % of the total time."
    )
    times = measured_object(found.measured)["needed_time"]["memory"]
    assert times["needed_ns"] + times["excess_ns"] == times["known_ns"] == times["time_ns"]


@pytest.mark.parametrize(
    ("unknown_ns", "words"),
    [
        (1_200, " At peak bandwidth, memory work would take 23.8 % of the total time."),
        (
            16_000,
            " Memory work with known bytes takes 60.0 % of the total time; at peak bandwidth it "
            "would take 15.0 %.",
        ),
        (26_000, ""),
    ],
)
def test_where_few_bytes_are_known_nothing_is_said_of_them(unknown_ns: int, words: str) -> None:
    """6,000 ns of 25,200, 40,000 or 50,000 with bytes known of 95 %, 60 % and 48 % of the time."""
    found = of((ADD, 5, 100, 24_000), (ADD, 55, 24_100, unknown_ns), ops=[add(0)])
    assert found.measured.roofs.memory.needed_ns == 6_000
    (finding,) = found.losses
    assert finding.sentence == (
        f"Memory work (elementwise kernels) takes 100.0 % of the total time.{words}"
    )


def test_bytes_of_lists_without_types_are_unknown() -> None:
    """A profiler does not record the types of the lists of a fused optimizer."""
    found = analyze(read([SAMPLES / "gpt_1rank.json.gz"]))
    rows = found.categories.to_pylist()
    (optimizer,) = (row["sum_ns"] for row in rows if row["sub"] == "optimizer")
    memory = found.measured.roofs.memory
    assert memory.time_ns * 0.95 > memory.time_ns - optimizer >= memory.known_ns > 0
    assert (
        "Memory work with known bytes takes 19.6 % of the step time; at" in found.verdict.sentence
    )
    assert round(1000 * memory.known_ns / found.total.components.window_ns) == 196


def test_without_a_bandwidth_nothing_is_said() -> None:
    found = of((ADD, 5, 100, 24_000), ops=[add(0)], device={"product": "Quantum 9000"})
    assert found.measured.roofs.memory == RoofTime(24_000, 0, 0, 0)
    assert "bytes" not in found.losses[0].sentence


def test_bytes_from_a_cache_need_no_more_than_the_kernel_took() -> None:
    found = of((ADD, 5, 100, 2_000), ops=[add(0)])
    assert found.measured.roofs.memory == RoofTime(2_000, 2_000, 0, 2_000)


def test_what_runs_behind_compute_needs_no_time_of_its_own() -> None:
    """Half of the addition runs beside a product."""
    tables = launched((GEMM, 5, 0, 12_000), (ADD, 25, 0, 24_000))
    tables["activities"][1]["stream"] = 8
    found = analyze(trace_of(**tables, ops=[add(20)], devices=[H100]))
    assert found.measured.roofs.memory == RoofTime(12_000, 12_000, 0, 3_000)


def test_two_at_once_count_in_proportion() -> None:
    """Two additions at once: each has half of the time, and of what it needs."""
    tables = launched((ADD, 5, 0, 24_000), (ADD, 25, 0, 24_000))
    tables["activities"][1]["stream"] = 8
    found = analyze(trace_of(**tables, ops=[add(0), add(20)], devices=[H100]))
    assert found.measured.roofs.memory == RoofTime(24_000, 24_000, 0, 6_000)


COPIES = "Memory work (host-to-device copies) takes 100.0 % of the total time."


@pytest.mark.parametrize(
    ("product", "needed_ns", "link"),
    [
        (H100["product"], 10_000, ", 50.0 % of PCIe Gen 5 x16"),
        ("Quantum 9000", None, ""),
    ],
)
def test_a_copy_to_the_device_needs_the_link(
    product: str, needed_ns: int | None, link: str
) -> None:
    """63.015 bytes a ns over PCIe Gen 5 x16, of which half are moved."""
    tables = launched(("Memcpy HtoD (Pinned -> Device)", 5, 100, 20_000))
    tables["activities"][0] |= {"kind": "memcpy", "direction": "HtoD", "bytes": 630_150}
    found = analyze(trace_of(**tables, devices=[H100 | {"product": product}]))
    known = (20_000, 0, needed_ns) if needed_ns is not None else (0, 0, 0)
    assert found.measured.roofs.memory == RoofTime(20_000, *known)
    words = f"{COPIES} Copies between CPU and GPU run at 31.5 GB/s{link}."
    assert (found.losses[0].sentence, found.verdict.sentence) == (words, words)


def test_where_kernels_take_most_the_rate_of_copies_is_not_said() -> None:
    tables = launched(("Memcpy HtoD (Pinned -> Device)", 5, 100, 20_000), (ADD, 25, 20_100, 24_000))
    tables["activities"][0] |= {"kind": "memcpy", "direction": "HtoD", "bytes": 630_150}
    found = analyze(trace_of(**tables, devices=[H100]))
    assert "GB/s" not in found.verdict.sentence


def test_a_decode_product_waits_for_its_weights() -> None:
    """1 x 8,192 x 8,192: 134 ns of FLOPs at the peak, 40,075 ns of bytes; it takes 50,000 ns."""
    found = of((GEMM, 5, 100, 50_000), ops=[op("aten::mm", 0, [1, 8192], [8192, 8192])])
    assert found.measured.roofs.compute == RoofTime(50_000, 50_000, 134, 40_075)
    (finding,) = found.losses
    assert (finding.rule, finding.sentence) == (
        "loss-inefficiency",
        "Compute below peak takes 99.7 % of the total time. Even at peak, compute would wait for "
        "its bytes 79.9 % of the total time.",
    )
    assert found.components == Components(compute_ns=50_000)


def test_a_large_product_below_the_peak_is_slow() -> None:
    """4,096^3: 137,439 ns of FLOPs at the peak, 30,049 ns of bytes; it takes 274,878 ns."""
    square = [4096, 4096]
    found = of((GEMM, 5, 100, 274_878), ops=[op("aten::mm", 0, square, square)])
    assert found.losses[0].sentence == "Compute below peak takes 50.0 % of the total time."


def test_where_bytes_are_unknown_compute_is_only_below_peak() -> None:
    square = [4096, 4096]
    found = of(
        (GEMM, 5, 100, 274_878),
        ops=[op("aten::mm", 0, square, square)],
        device={"product": "Quantum 9000"},
    )
    assert found.losses[0].sentence == "Compute below peak takes 50.0 % of the total time."
