"""Figures of one thing are the same wherever they stand, and held against what is said."""

import re

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.memory.test_usage import counter
from tests.mfu.test_measurement import GEMM, H100, MATMUL, matmul
from tests.reports import factory
from tests.reports.test_memory import MIB
from traceflops.devices.missing_input import MissingInput
from traceflops.facts import quoted
from traceflops.flops.mfu_waterfall import Waterfall, WaterfallLine
from traceflops.mfu.budget import PeakOptions
from traceflops.mfu.roof_times import Measured
from traceflops.reports.markdown import render_markdown
from traceflops.reports.page.html import render_html
from traceflops.reports.page.memory import memory_page
from traceflops.reports.page.roofline import roofline_plot
from traceflops.reports.page.work import operators_page, peak_page, work_of
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.host import host_tables
from traceflops.reports.view.utilisation import parts, rate, rates, why_not
from traceflops.table.trace import Note, Trace

HALF = PeakOptions(tflops=1000)


def section(text: str, name: str) -> str:
    return text.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_each_line_of_the_peak_is_rounded_by_itself() -> None:
    """Apportioned to thousandths one of three equal lines would be 33.4 %."""
    lines = [WaterfallLine(name, 333_333) for name in ("memory", "other", "idle")]
    lines.append(WaterfallLine("graph", 1))
    found = parts(Waterfall(1_000_000, tuple(lines), ("bf16",), "FLOP"))
    assert [part.percent for part in found] == ["33.3 %", "33.3 %", "33.3 %", "<0.1 %"]
    assert sum(part.thousandths for part in found) == 1000
    assert [part.thousandths for part in found] != [333, 333, 333, 0]  # so drawn, not so written


def test_useful_work_has_the_digits_of_mfu() -> None:
    """2 GFLOP in 57,000 ns at 1,000 TFLOP/s are 3.5088 %."""
    analysis = tf.analyze(matmul(57_000), peaks=HALF)
    assert analysis.measured.figure == "MFU 3.51 %"
    assert [part.percent for part, *_ in peak_page(analysis)["lines"]] == ["3.51 %", "96.5 %"]


def test_the_whole_is_of_the_devices_that_are_used() -> None:
    one = factory.ranks(3)
    unused = tuple(replace(window, used=False) for window in one.devices[2].windows)
    devices = (*one.devices[:2], replace(one.devices[2], windows=unused))
    assert "peak of 2 GPUs" in peak_page(replace(one, devices=devices))["whole"]


def test_time_without_an_operator_is_held_against_the_time_of_kernels() -> None:
    """Kernels of 300 ns and 100 ns in a window of 1,000 ns; only the first has an operator."""
    tables = launched(("k", 10, 100, 300), ("late", 500, 1_000, 100))
    op = {"name": "aten::mm", "start_ns": 0, "dur_ns": 50}
    page = operators_page(tf.analyze(trace_of(**tables, ops=[op])))
    assert page is not None
    assert (page["unknown_ns"], page["all_ns"], page["unknown_share"]) == (100, 400, 0.25)


def two_types() -> tf.Analysis:
    """Return a bf16 product at half its peak (989.4) and an fp64 one, each in a kernel."""
    tables = launched((GEMM, 10, 100, 4_000), ("dgemm_kernel", 110, 5_000, 60_000))
    double = MATMUL | {"start_ns": 100, "input_types": '["double","double"]'}
    return tf.analyze(trace_of(**tables, ops=[MATMUL, double], devices=[H100]))


def test_each_dot_names_the_roof_that_it_is_held_against() -> None:
    plot = roofline_plot(two_types().measured)
    assert plot is not None
    assert [flat.text for flat in plot.flats] == ["bf16 989.4 TFLOP/s", "fp64 67 TFLOP/s"]
    # 989.4 and 67 TFLOP/s over 3,350 GB/s.
    assert plot.held == [("bf16", 1, "295"), ("fp64", 1, "20")]
    assert [dot.text.split(", ")[1] for dot in plot.dots] == ["fp64", "bf16"]
    assert [dot.dash for dot in plot.dots] == [flat.dash for flat in reversed(plot.flats)]
    assert len({flat.dash for flat in plot.flats}) == 2
    shown = section(render_html(two_types()), "roofline")
    assert "bf16 (1 dot, ridge at 295 FLOP/B); fp64 (1 dot, ridge at 20" in shown


def test_a_kernel_has_its_rate_of_memory() -> None:
    """Three bf16 matrices of 1000 x 1000 are 6 MB, in 4,000 ns 1,500 GB/s of 3,350."""
    analysis = tf.analyze(matmul(4_000), peaks=HALF)
    shown = section(render_html(analysis), "kernels")
    assert 'data-csv="gbyte_per_s">GB/s</th>' in shown
    row = shown[shown.index('id="kernel=') :].split("</tr>")[0]
    cells = re.findall(r'<td class="n[^"]*" data-value="[^"]*"[^>]*>([^<]*)</td>', row)
    assert cells[cells.index("1,500") + 1] == "44.8 %"
    # 2 GFLOP in 4 us are 500 of 1,000 TFLOP/s: at that roof it takes half as long.
    assert cells[2:4] == ["50.0 %", "2.00 µs"]
    assert (
        work_of(analysis.measured, analysis.measured.kernels, [GEMM])[GEMM].bytes_rate.value
        == 1_500
    )
    assert "bytes are minimum traffic" in shown


def test_the_first_table_has_flops_of_products_bytes_of_copies_and_blanks() -> None:
    """2 GFLOP in 4 µs; 1 MB in 40 µs over the link; 1 MB read and written in 1 µs."""
    copy = {"kind": "memcpy", "bytes": 1_000_000}
    analysis = tf.analyze(
        matmul(
            4_000,
            copy | {"name": "H", "start_ns": 5_000, "dur_ns": 40_000, "direction": "HtoD"},
            copy | {"name": "D", "start_ns": 50_000, "dur_ns": 1_000, "direction": "DtoD"},
            {"name": "k", "start_ns": 60_000, "dur_ns": 9_000},
        )
    )
    lines = [line.plain for line in render_terminal(analysis)]
    top = lines[next(at for at, line in enumerate(lines) if line.startswith("Top of 4")) :]
    told = {"4.00 µs": "500 TFLOP/s", "40.0 µs": "25 GB/s", "1.00 µs": "2,000 GB/s", "9.00 µs": ""}
    for time, fast in told.items():
        (line,) = (line for line in top if f" {time} " in line)
        assert line.rpartition("%")[2].rpartition("×")[0].split()[:-1] == fast.split()
    rows = [line for line in render_markdown(analysis).splitlines() if line.startswith("| `")]
    assert all(any(row.endswith(f"| {fast or '–'} |") for row in rows) for fast in told.values())


@pytest.mark.parametrize(("size", "has_rate"), [(65_536, False), (65_537, True)])
def test_small_copies_have_no_rate(size: int, *, has_rate: bool) -> None:
    """They take as long as launching them, whatever they move."""
    copy = {"kind": "memcpy", "bytes": size, "direction": "HtoD", "name": "H"}
    analysis = tf.analyze(matmul(4_000, copy | {"start_ns": 5_000, "dur_ns": 40_000}))
    lines = "\n".join(line.plain for line in render_terminal(analysis))
    assert ("1.64 GB/s" in lines) == has_rate
    operations = dict(host_tables(analysis, 5))["Copies, fills and allocations"]
    assert ("1.64 GB/s" in str(operations.rows)) == has_rate


@pytest.mark.parametrize("ending", ["", ".kd"])
def test_a_rate_by_shapes_is_a_bound_where_its_work_is(ending: str) -> None:
    """A sum of floats moves 12 MB or more in 6 µs; FLOPs may lie between two counts.

    Rates have the names that kernels have in tables.
    """
    add = {"name": "aten::add", "start_ns": 0, "dur_ns": 50, "input_types": '["float","float"]'}
    add["input_dims"] = "[[1000000],[1000000]]"
    tables = launched((f"add_kernel{ending}", 10, 100, 6_000))
    found = tf.analyze(trace_of(**tables, ops=[add], devices=[H100])).measured
    assert rates(found) == {"add_kernel": "≥ 2,000 GB/s"}
    most = Measured(2 * 10**9, None, 4_000, 10**9)
    assert rate(replace(found.kernels[0], measured=most)) == "≤ 500 TFLOP/s"


def test_a_kernel_that_alone_works_for_an_op_without_flops_has_its_bytes() -> None:
    """Two float vectors of 1,000,000 are read and one is written: 12 MB in 6,000 ns, 2,000 GB/s.

    Of the sum with two kernels it is not known which of them moved its bytes.
    """
    types = '["float","float"]'
    add = {"name": "aten::add", "start_ns": 0, "dur_ns": 50, "input_types": types}
    add["input_dims"] = "[[1000000],[1000000]]"
    both = launched(
        ("add_kernel", 10, 100, 6_000),
        ("first_kernel", 110, 7_000, 500),
        ("second_kernel", 120, 8_000, 500),
    )
    ops = [add, add | {"start_ns": 100}]
    found = tf.analyze(trace_of(**both, ops=ops, devices=[H100]))
    work = {row.name: row for row in found.measured.kernels}
    assert (work["add_kernel"].measured.min_bytes, work["add_kernel"].counted) == (12_000_000, 1)
    shown = work_of(found.measured, found.measured.kernels, ["add_kernel"])["add_kernel"]
    assert (shown.bytes_rate.text, shown.of_bandwidth.text) == ("2,000", "59.7 %")  # of 3,350 GB/s
    assert (shown.flops.value, shown.bound, shown.by) == (None, "memory", "shapes")
    assert {work[name].measured.min_bytes for name in ("first_kernel", "second_kernel")} == {None}


@pytest.mark.parametrize(
    ("device", "units"),
    [
        (H100, "132 SMs"),
        ({"product": "AMD Instinct MI300X", "sm_count": 304}, "304 CUs"),
        ({"product": "Quantum 9000", "sm_count": 7, "warp_size": None}, "7 SMs or CUs"),
    ],
)
def test_units_have_the_name_of_their_maker(device: dict[str, object], units: str) -> None:
    text = render_html(tf.analyze(trace_of(**launched(("k", 0, 10, 5)), devices=[device])))
    assert f", {units}</td>" in section(text, "recording")


@pytest.mark.parametrize("kind", ["annotation", "module"])
def test_the_key_of_the_timeline_has_only_what_is_there(kind: str) -> None:
    other = {"annotation": "module", "module": "annotation"}[kind]
    mark = {"name": "here", "kind": kind, "start_ns": 0, "dur_ns": 20}
    shown = section(
        render_html(tf.analyze(trace_of(**launched(("k", 0, 10, 5)), marks=[mark]))), "timeline"
    )
    key = shown[shown.index('class="key"') :]
    assert kind in key
    assert other not in key


def test_one_of_a_thing_is_singular() -> None:
    text = render_html(tf.analyze(trace_of(**launched(("k", 0, 10, 5)))))
    assert not re.search(r"\b1 (operations|calls|launches|kernels|GPUs|steps)\b", text)


def test_a_lack_without_a_remedy_is_a_whole_sentence() -> None:
    measured = replace(factory.measured(True), lacks=(MissingInput(quoted("too little is known")),))
    assert why_not(measured) == ["No MFU: too little is known."]


def apart(second_start_ns: int, *counters: dict[str, object]) -> Trace:
    """Return two ranks, each with two kernels of 10 ns around a gap of 80 ns; clocks differ."""
    work = [
        {"name": "k", "process": n, "device": n, "start_ns": at + start, "dur_ns": 10}
        for n, start in enumerate((1_000, second_start_ns))
        for at in (0, 90)
    ]
    made = trace_of(
        processes=[{"process": 0, "rank": 0}, {"process": 1, "rank": 1}],
        devices=[{"device": n, "process": n} for n in range(2)],
        activities=work,
        counters=list(counters),
    )
    return replace(made, notes=(Note("assumed", "clocks-not-aligned", "apart"),))


def test_gaps_count_from_their_own_clock_where_none_is_common() -> None:
    text = section(render_html(tf.analyze(apart(7_000_000))), "idle")
    assert re.findall(r'class="to-timeline"[^>]*>([^<]*)<', text) == ["10 ns", "10 ns"]
    assert "the first GPU operation of the same process (clocks are not aligned)" in text


def test_memory_counts_from_its_own_clock_where_none_is_common() -> None:
    rows = [
        counter("device_memory.allocated_bytes", at, at * MIB, n) | {"process": n}
        for n, start in enumerate((1_000, 7_000_000))
        for at in (start, start + 50)
    ]
    page = memory_page(tf.analyze(apart(7_000_000, *rows)))
    assert page is not None
    assert [row["when"] for row in page.rows] == ["50 ns", "50 ns"]
    assert page.counts_from.startswith("the first GPU operation of the same process")
