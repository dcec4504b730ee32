"""The section on the peak: what it says with an MFU, without one, and of hostile names."""

from math import log10

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.conftest import analysis_of_sample
from tests.mfu.test_measurement import GEMM, H100, MATMUL, matmul
from tests.reports.factory import HOSTILE
from tests.reports.test_html import Tree
from traceflops.mfu.budget import PeakOptions
from traceflops.reports.json.measured import measured_object
from traceflops.reports.page.html import render_html
from traceflops.reports.page.roofline import NARROW, drawn_sentence, reach_plot, roofline_plot
from traceflops.reports.page.work import peak_page, work_of


def section(analysis: tf.Analysis) -> str:
    """Return what the page says of the peak, of kernels and of the roofline."""
    text = render_html(analysis)
    found = [text.split(f'<section id="{name}">')[1:] for name in ("peak", "kernels", "roofline")]
    return "".join(rest[0].split("</section>")[0] for rest in found if rest)


def test_a_product_at_half_the_peak() -> None:
    """2 x 1000^3 FLOPs in 4,000 ns at a peak of 1,000 TFLOP/s: half useful, half slow."""
    analysis = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000))
    page = peak_page(analysis)
    assert [(part.label, part.percent, *amounts) for part, *amounts in page["lines"]] == [
        ("useful work", "50.0 %", 2_000, "2.000 GFLOP"),
        ("compute below peak", "50.0 %", 2_000, "2.000 GFLOP"),
    ]
    assert page["budget"] == "4.000 GFLOP"
    kernel = work_of(analysis.measured, analysis.measured.kernels, [GEMM])[GEMM]
    assert (kernel.name, kernel.time_ns, kernel.flops.text) == (GEMM, 4_000, "2.000 GFLOP")
    assert (kernel.flops.value, kernel.rate.value, kernel.of_peak.value) == (2e9, 500, 0.5)
    assert (kernel.rate.text, kernel.of_peak.text) == ("500.0", "50.0 %")
    assert (kernel.bytes_rate.text, kernel.bytes_rate.value) == ("1,500", 1_500)
    assert (kernel.of_bandwidth.text, kernel.intensity.text) == ("44.8 %", "333.3")  # of 3,350 GB/s
    # 1,000 TFLOP/s over 3,350 GB/s are 298.5 FLOP per byte.
    assert (kernel.bound, kernel.by) == ("compute", "shapes")


@pytest.mark.parametrize(("time_ns", "word"), [(4_000, "compute"), (4_100, "slow")])
def test_work_below_half_of_its_nearer_roof_is_not_bound_by_it(time_ns: int, word: str) -> None:
    """2 x 1000^3 FLOPs need 2,000 ns at the peak; the JSON says which roof is nearer."""
    measured = tf.analyze(matmul(time_ns), peaks=PeakOptions(tflops=1000)).measured
    assert work_of(measured, measured.kernels, [GEMM])[GEMM].bound == word
    assert {row["bound"] for row in measured_object(measured)["kernels"]} == {"compute"}


def test_kernels_without_names_are_on_the_page() -> None:
    """As dots of the roofline, and as the whole of the critical path."""
    trace = trace_of(**launched(("", 10, 100, 4_000)), ops=[MATMUL], devices=[H100])
    page = render_html(tf.analyze(trace, peaks=PeakOptions(tflops=1000)))
    parts = {name: page.split(f'<section id="{name}">')[1] for name in ("roofline", "critical")}
    assert "unknown: " in parts["roofline"].split("</section>")[0]
    assert "Largest parts" not in parts["critical"].split("</section>")[0]


def test_a_share_above_the_peak_is_explained_where_it_stands() -> None:
    peaks = PeakOptions(tflops=1000)
    assert "Above 100 %: several kernels" in section(tf.analyze(matmul(1_000), peaks=peaks))
    assert "Above 100 %" not in section(tf.analyze(matmul(4_000), peaks=peaks))


def test_a_dot_has_its_share_of_the_roof_and_the_time_to_recover() -> None:
    """Half of the peak for 4 us: at the roof it takes 2 us."""
    plot = reach_plot(tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000)))
    assert plot is not None
    (dot,) = plot["dots"]
    assert dot.y == (plot["ys"][0].at + plot["ys"][-1].at) / 2
    assert dot.text == "4.00 µs, 50.0 % of its roof, 2.00 µs recoverable"
    assert dot.label.endswith(" 2.00 µs")


def test_the_roofline_has_its_dot_under_the_roof() -> None:
    plot = roofline_plot(tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000)).measured)
    assert plot is not None
    (dot,), (flat,) = plot.dots, plot.flats
    assert flat.y1 < dot.y
    assert dot.x > flat.x1  # right of the balance
    assert dot.text == "500 TFLOP/s at 333 FLOP/B, bf16, 4.00 µs"
    assert (flat.text, plot.slope.text) == ("bf16 1,000 TFLOP/s", "3,350 GB/s")
    assert plot.held == [("bf16", 1, "299")]


def test_the_axes_of_the_roofline_leave_room_around_what_they_show() -> None:
    """Each is 0.15 of a decade longer than its highest value, and 0.3 shorter than its lowest."""
    plot = roofline_plot(tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000)).measured)
    assert plot is not None
    # Across 686 pixels from a tenth of the balance, 29.9 FLOP per byte, to the dot at 333.3.
    decade = 686 / (log10(1_000 / 3 / (1_000_000 / 3_350 / 10)) + 0.45)
    at = {tick.text: tick.at for tick in plot.xs}
    assert at["200"] - at["20"] == pytest.approx(decade, abs=0.2)
    assert plot.dots[0].x == pytest.approx(744 - 0.15 * decade, abs=0.1)
    # Up 266 pixels from the roof at a tenth of the balance, 100 TFLOP/s, to the peak of 1,000.
    assert plot.flats[0].y1 == pytest.approx(30 + 0.15 * 266 / 1.45, abs=0.1)


def test_the_roofline_shows_the_slope_and_says_what_it_leaves_out() -> None:
    analysis = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000))
    assert drawn_sentence(analysis) == ("All kernels are shown (100.0 % of GPU time).")
    for width in (760, NARROW):
        plot = roofline_plot(analysis.measured, width)
        assert plot is not None
        # A balance of 298.5, and a decade of the slope before it.
        assert [ridge.text for ridge in plot.ridges] == ["299"]
        assert plot.slope.x1 < plot.ridges[0].at == plot.slope.x2 < plot.dots[0].x < width
        assert plot.slope.y1 > plot.slope.y2
        assert plot.components == ["compute"]
    part = drawn_sentence(analysis_of_sample("gpt_ddp_4rank"))
    assert part.startswith("Showing 6 of 26 kernels (60.6 % of GPU time)")


def test_the_four_ranks_are_split_exactly_and_stay_small() -> None:
    analysis = analysis_of_sample("gpt_ddp_4rank")
    text = render_html(analysis)
    assert len(text.encode()) < 1_200_000
    tree = Tree(text)
    assert tree.text("title")[0].startswith("MFU 35.0 % · rank0.json.gz and 3 more")
    for words in ("scores in the backward pass of flash attention", "weight grad", "executed"):
        assert words in section(analysis)


def test_without_mfu_it_says_why_and_what_supplies_it() -> None:
    analysis = tf.analyze(matmul(4_000, device={"product": "Quantum 9000"}))
    shown = section(analysis)
    assert "no row of the table has the name" in shown
    assert "--peak</span> TFLOPS sets one for all data types" in shown
    assert 'id="peak-table"' not in shown
    assert "2.000 GFLOP" in shown  # what was executed is known all the same
    page = render_html(analysis)
    assert 'data-tile="MFU">unknown<' in page
    assert page.partition('data-tile="MFU"')[0].rpartition("<a ")[2].startswith('href="#peak">')


def test_without_shapes_there_are_no_empty_columns() -> None:
    op = {name: value for name, value in MATMUL.items() if not name.startswith("input")}
    shown = section(tf.analyze(matmul(4_000, op=op)))
    assert "the operators have no shapes" in shown
    assert "record_shapes=True" in shown
    assert "TFLOP/s</th>" not in shown
    assert "FLOPs of" not in shown
    assert "roofline" not in shown


def test_without_devices_there_is_no_section() -> None:
    assert section(tf.analyze(matmul(4_000)))
    assert section(tf.analyze(trace_of())) == ""


def test_hostile_names_are_text() -> None:
    names = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    tables = launched(
        *((f"{name} gemm", 10 * i, 10_000 * i, 4_000) for i, name in enumerate(names, 1))
    )
    ops = [{**MATMUL, "start_ns": 10 * i, "dur_ns": 5} for i in range(1, len(names) + 1)]
    analysis = tf.analyze(trace_of(**tables, ops=ops, devices=[H100]))
    assert analysis.measured.figure is not None
    assert len(analysis.measured.kernels) == len(set(names))
    shown = section(analysis)
    tree = Tree(shown)
    assert not {"script", "img"} & {tag for tag, _ in tree.elements}
    assert not [name for _, found in tree.elements for name in found if name.startswith("on")]
    assert "[red] gemm" in tree.text("code")
    assert "49 gemm" not in tree.text("code")
    assert shown.count("<circle") == 2 * 2 * len(set(names))  # two drawings, each also for phones


def test_a_device_name_cannot_act() -> None:
    device = {**H100, "product": "<img src=x onerror=alert(1)>"}
    shown = section(tf.analyze(matmul(4_000, device=device)))
    assert "<img" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown


@pytest.mark.parametrize("dtypes", [1, 2])
def test_amounts_are_flops_only_where_there_is_one_type(dtypes: int) -> None:
    tables = launched((GEMM, 10, 100, 4_000), ("sgemm_fp32_ffma", 60, 5_000, 90_000))
    other = {**MATMUL, "start_ns": 55, "input_types": '["float","float"]'}
    ops = [MATMUL, other if dtypes == 2 else {**MATMUL, "start_ns": 55}]
    analysis = tf.analyze(trace_of(**tables, ops=ops, devices=[H100]))
    page = peak_page(analysis)
    assert page["lines"]
    assert (page["budget"] == "\N{EN DASH}") == (dtypes == 2)
    assert ("FLOPs at peak</th>" in section(analysis)) == (dtypes == 1)


def test_a_page_of_no_figure_has_the_loss_as_its_title() -> None:
    analysis = tf.analyze(matmul(4_000, device={"product": "x"}))
    title = Tree(render_html(replace(analysis))).text("title")[0]
    assert title.startswith("100.0 % busy · made.json")
