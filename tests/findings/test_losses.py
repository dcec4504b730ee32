"""Findings that are parts of the device time: which are listed, in what order, with what gain."""

import pytest
from msgspec.structs import replace

import traceflops as tf
from tests.build import launched, trace_of
from tests.mfu.test_measurement import matmul
from traceflops.facts import quoted
from traceflops.findings.finding import Finding, severity_of
from traceflops.findings.losses import Loss, loss_findings
from traceflops.mfu.budget import PeakOptions
from traceflops.reports.page.html import render_html
from traceflops.reports.terminal.lines import Style
from traceflops.reports.terminal.summary import render_terminal
from traceflops.reports.view.findings import opening


def told(finding: Finding) -> str:
    """Return what a finding says, and what to do."""
    return f"{finding.sentence} {finding.remedy}".rstrip()


def of(**works: int) -> tf.Analysis:
    """Return the analysis of kernels that run one after the other for so many ns."""
    names = {
        "gemm": "sm90_gemm_bf16",
        "copy": "Memcpy HtoD (Pinned -> Device)",
        "fill": "Memset (Device)",
        "norm": "vectorized_layer_norm_kernel",
        "conv": "implicit_convolve_sgemm",
        "odd": "my_kernel",
        "odd2": "my_other_kernel",
    }
    rows, start = [], 1_000
    for place, (work, dur) in enumerate(works.items()):
        if work != "idle":
            rows.append((names[work], place, start, dur))
        start += dur
    tables = launched(*rows)
    for row in tables["activities"]:
        row |= {"kind": "memcpy"} if row["name"].startswith("Memcpy") else {}
    return tf.analyze(trace_of(**tables))


def test_losses_are_listed_by_size_with_their_share() -> None:
    kernel, *found = of(gemm=500, idle=200, norm=300).losses
    assert (kernel.rule, kernel.share) == ("main-kernel", 0.5)
    assert [(one.rule, one.severity, one.share) for one in found] == [
        ("loss-memory", "high", 0.3),
        ("loss-idle", "high", 0.2),
    ]
    assert told(found[1]) == (
        "Idle time takes 20.0 % of the total time. Of that, 100.0 % is launch latency; largest "
        "part: launch. Inherent in each launch; fusion and graphs reduce their number."
    )
    assert told(found[0]) == ("Memory work (norm kernels) takes 30.0 % of the total time.")
    assert {one.mfu_without for one in found} == {None}  # no MFU in this trace


def waiting(*works: tuple[str, int, int]) -> tf.Analysis:
    """Return two kernels of 1 ms, and what the CPU runs in the 8 ms between them, until when."""
    ms = 1_000_000
    run = launched(("sm90_gemm", 0, 0, ms), ("sm90_gemm", 9 * ms, 9 * ms, ms))
    run["marks"] = [
        {"name": name, "start_ns": start * ms, "dur_ns": dur * ms, "kind": "python"}
        for name, start, dur in works
    ]
    return tf.analyze(trace_of(**run))


def test_idle_time_is_named_after_what_the_host_did() -> None:
    analysis = waiting(("site/images.py(12): resize", 1, 6), ("queue.py(154): get", 7, 2))
    assert analysis.verdict.sentence.startswith(
        "Idle time (mostly host code) takes 80.0 % of the total time."
    )
    assert [told(one) for one in analysis.losses if one.rule == "loss-idle"] == [
        "Idle time takes 80.0 % of the total time. Of that, 75.0 % is host code; "
        "largest part: resize (images.py:12). Move the named function off the critical thread, or "
        "make it faster."
    ]


def test_no_class_is_most_of_idle_time_below_half_of_it() -> None:
    works = [("a.py(1): f", 1, 3), ("queue.py(154): get", 4, 3), ("Optimizer.step#A", 7, 2)]
    analysis = waiting(*works)
    assert analysis.verdict.sentence.startswith("Idle time takes 80.0 % of the total time.")
    assert "Of that, 37.5 % is" in analysis.losses[0].sentence


def test_a_long_name_of_a_culprit_is_cut() -> None:
    name = "a.py(1): " + "f" * 5_000
    (found,) = [one for one in waiting((name, 1, 8)).losses if one.rule == "loss-idle"]
    assert len(told(found)) < 320
    assert "ffff…ffff" in told(found)


SLOWLY = "the host seems to launch too slowly; fused kernels or a graph have fewer."
BETWEEN = f"gaps of {{}} µs between them: {SLOWLY}"
SHORT = "150 gaps of 4.00 µs on average, as between kernels launched one by one; fused kernels or a"


@pytest.mark.parametrize(
    ("gaps_us", "said"),
    [
        ([4] * 150, f" Most of it is {SHORT} graph have fewer."),
        ([4] * 150 + [300], f" Most of it is {SHORT} graph have fewer."),
        ([4] * 150 + [700], " Most of it is 1 gap of 700 µs."),
        ([4] * 150 + [500] * 9 + [90] * 9, " Most of it is 9 gaps of 500 µs on average."),
        (
            [4] * 90 + [20] * 60,
            f" Operations take 5.00 µs on average, with 150 {BETWEEN}".format(10.4),
        ),
        ([50] * 150, f" Operations take 5.00 µs on average, with 150 {BETWEEN}".format("50.0")),
        ([4] * 90 + [0] * 60, ""),
        ([110] * 150, ""),
        ([4] * 50, ""),
    ],
)
def test_idle_time_is_a_few_long_gaps_or_many_short_ones(gaps_us: list[int], said: str) -> None:
    """No call is recorded, so no host work explains the gaps."""
    rows, start = [], 0
    for gap_us in (0, *gaps_us):
        start += gap_us * 1_000
        rows.append({"name": "sm90_gemm_bf16", "start_ns": start, "dur_ns": 5_000})
        start += 5_000
    (found,) = tf.analyze(trace_of(activities=rows)).losses
    share = sum(gaps_us) / (sum(gaps_us) + 5 * len(rows))
    assert told(found) == f"Idle time takes {share:.1%} of the total time.{said}".replace("%", " %")


def test_what_is_small_is_not_listed() -> None:
    """The kernel with nearly all of the time is told beside."""
    assert [one.rule for one in of(gemm=971, norm=29).losses] == ["main-kernel"]
    assert [one.rule for one in of(gemm=97, norm=3).losses] == ["main-kernel", "loss-memory"]


def test_what_cannot_be_judged_is_no_finding_and_has_no_severity() -> None:
    """Nothing says whether the program needs its uncategorized kernels."""
    (kernel,) = of(gemm=500, odd=500).losses
    assert kernel.rule == "main-kernel"
    assert "main-kernel" not in {one.rule for one in of(gemm=290, odd=290, norm=420).losses}


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.2, "high"), (0.1999, "medium"), (0.1, "medium"), (0.0999, "low"), (0.03, "low")],
)
def test_the_severity_goes_by_the_share(share: float, severity: str) -> None:
    assert severity_of(share) == severity
    assert severity_of(0.0299) is None


def test_without_a_loss_mfu_would_be_that_much_higher() -> None:
    """A product that takes twice as long as at the peak: MFU 50 %, and 100 % if it did not."""
    found = tf.analyze(matmul(4_000), peaks=PeakOptions(tflops=1000)).losses
    assert [(one.rule, one.share, one.mfu_without) for one in found] == [
        ("loss-inefficiency", 0.5, 1.0)
    ]


def test_a_trace_without_devices_or_length_has_no_findings() -> None:
    assert tf.analyze(trace_of()).losses == ()
    assert tf.analyze(trace_of(**launched(("k", 0, 10, 0)))).losses == ()


@pytest.mark.parametrize(
    ("works", "words"),
    [
        ({"copy": 900}, "copies"),
        ({"copy": 600, "norm": 300}, "mostly copies"),
        ({"copy": 300, "norm": 600}, "norm kernels, copies"),
        ({"norm": 900}, "norm kernels"),
        ({"copy": 300, "norm": 250, "fill": 350}, "fills, copies, norm kernels"),
        ({"norm": 840, "fill": 60}, "mostly norm kernels"),
        ({"copy": 420, "norm": 40, "fill": 440}, "mostly fills, copies"),
        ({"fill": 900}, "fills"),
    ],
)
def test_memory_work_is_called_what_most_of_it_is(works: dict[str, int], words: str) -> None:
    found = of(gemm=100, **works)
    sentence = f"Memory work ({words}) takes 90.0 % of the total time."
    assert found.losses[0].sentence == sentence
    assert sentence in found.verdict.sentence


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        (("HtoD", "HtoD"), "host-to-device copies"),
        (("HtoD", "DtoH"), "copies"),
        (("DtoH", "DtoH"), "device-to-host copies"),
        (("DtoD", None), "copies"),
        (("migration HtoD", "HtoD"), "copies and page migrations"),
        (("migration HtoD", "migration DtoH"), "page migrations"),
    ],
)
def test_copies_are_called_by_their_direction(ways: tuple[str | None, ...], words: str) -> None:
    tables = launched(("Memcpy", 0, 100, 50), ("Memcpy", 1, 150, 50))
    for row, way in zip(tables["activities"], ways, strict=True):
        row |= {"kind": "memcpy", "direction": way}
    assert tf.analyze(trace_of(**tables)).verdict.sentence == (
        f"Memory work ({words}) takes 100.0 % of the total time."
    )


def decoding(second: str, dur_us: int, mark: str = "") -> list[Finding]:
    """Return what is found of the main kernel of three passes: 40 us, `dur_us` and 20 us of work.

    Each is of 100 us, and launched under the mark.
    """
    works = (("_matmul_ogs_NNT_16x128", 40), (second, dur_us), ("vectorized_layer_norm_kernel", 20))
    rows, marks = [], []
    for at in range(0, 300_000, 100_000):
        marks.append({"name": mark, "start_ns": at, "dur_ns": 20_000})
        start = at + 4_000
        for turn, (name, us) in enumerate(works):
            rows.append((name, at + 1_000 * turn, start, 1_000 * us))
            start += 1_000 * us
    analysis = tf.analyze(trace_of(**launched(*rows), marks=marks if mark else []))
    return [one for one in analysis.losses if one.rule == "main-kernel"]


@pytest.mark.parametrize(("dur_us", "is_told"), [(5, False), (50, True)])
def test_kernels_shorter_than_their_launches_are_no_program(dur_us: int, *, is_told: bool) -> None:
    """The GPU is idle for a quarter of the time."""
    works = []
    for at in range(20):
        start = 2_000 * dur_us * at
        works += [("stencil_a", start, start + 100, 1_000 * dur_us)]
        works += [("stencil_b", start + 50, start + 1_000 * dur_us + 100, 500 * dur_us)]
    analysis = tf.analyze(trace_of(**launched(*works)))
    assert ("main-kernel" in {one.rule for one in analysis.losses}) == is_told


LOSSES = ("communication", "idle", "memory", "inefficiency", "recompute", "overcompute")


@pytest.mark.parametrize(("name", "other"), [*zip(LOSSES, LOSSES[1:] + LOSSES[:1], strict=True)])
def test_a_loss_is_told_from_three_percent_if_it_can_be_judged(name: str, other: str) -> None:
    losses = (
        Loss(name, name, False, 0.031),
        Loss(other, other, False, 0.029),
        Loss("other", "other", False, 0.9, unknown=quoted("nobody knows")),
    )
    told = loss_findings(losses, of(gemm=1_000).measured, quoted("the step time"))
    assert [(one.rule, one.severity) for one in told] == [(f"loss-{name}", "low")]


def test_a_product_with_a_vector_needs_more_vectors() -> None:
    works = (("mul_mat_vec_q<2, 1>", 0, 5_000, 80_000), ("flash_fwd_kernel", 1_000, 85_000, 20_000))
    analysis = tf.analyze(trace_of(**launched(*works)))
    (found,) = (one for one in analysis.losses if one.rule == "main-kernel")
    assert "batch several" in found.remedy
    assert opening(analysis).title == found.sentence
    page = render_html(analysis)
    title, case = page.split("</h1>")[0], page.split("</h1>")[1].split("</header>")[0]
    assert title.rpartition("<h1>")[2].startswith("mul_mat_vec_q takes ")
    assert "batch several" in case.split("<dt>Do</dt>")[1].split("</dl>")[0]
    lines = [line.plain for line in render_terminal(analysis, Style())]
    help_line = next(line for line in lines if line.startswith("help: "))
    assert "batch several" in help_line
    assert lines[lines.index(help_line) - 1].startswith("mul_mat_vec_q takes ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mul_mat_q<(ggml_type)12, 128, false>", "with many it waits for arithmetic"),
        ("marlin_gemm_kernel<4>", "with many it waits for arithmetic"),
        ("triton_red_fused_bmm_9", "A matrix is read for one vector"),
        ("selective_scan_fwd_kernel<4>", "profile with Nsight Compute"),
    ],
)
def test_no_remedy_asks_for_what_the_kernel_has_or_is_not(name: str, said: str) -> None:
    works = ((name, 0, 5_000, 80_000), ("flash_fwd_kernel", 1_000, 85_000, 20_000))
    (found,) = tf.analyze(trace_of(**launched(*works))).losses
    assert found.rule == "main-kernel"
    assert said in told(found)


def test_the_kernel_with_most_of_the_compute_time_is_named_with_all_its_variants() -> None:
    (found,) = decoding("_matmul_ogs_NNT_16x128_swiglu", 36)
    assert (found.severity, found.evidence) == ("high", ("kernels",))
    assert found.share == pytest.approx(0.76, abs=0.02)  # the last pass has no end
    assert told(found).startswith("2 kernels named _matmul_ogs… take 7")
    assert ", the longest 40.5 %. " in told(found)
    assert "Their shapes would tell" in told(found)


@pytest.mark.parametrize(
    ("others", "claim"),
    [
        (("solve_small",), "solve_large takes 96.0 % of "),
        (("solve_large<1>",), "2 kernels named solve_large… take 100.0 % of "),
    ],
)
def test_a_function_with_nearly_all_time_of_its_family_is_told_alone(
    others: tuple[str, ...], claim: str
) -> None:
    """Of 100 us, the first kernel takes 96."""
    works = [("solve_large<0>", 0, 5_000, 96_000)]
    works += [(name, 1_000, 101_000, 4_000) for name in others]
    (found, *_) = tf.analyze(trace_of(**launched(*works))).losses
    assert told(found).startswith(claim)
    assert (", in 1 launch (96.0 µs)." in told(found)) == claim.startswith("solve_large takes")


def test_products_of_experts_are_told_together() -> None:
    """Of 100 us, kernels of two names take 50 and 20; an attention kernel takes 30."""
    names = (
        "fused_moe::run_global<Fused_Moe_Kernel_sm80<int>>",
        "Kernel<MoeFCGemm<int>>",
        "flash_fwd",
    )
    spans = ((10_000, 50_000), (60_000, 20_000), (80_000, 30_000))
    works = (
        (name, number, *span) for number, (name, span) in enumerate(zip(names, spans, strict=True))
    )
    (found, *_) = tf.analyze(trace_of(**launched(*works))).losses
    assert told(found).startswith(
        "GEMMs of experts (MoE), fused_moe::run_global and MoeFCGemm, take 70.0"
    )
    assert "more tokens per pass, or weights of fewer bits" in told(found)


def test_a_name_that_was_cut_short_is_of_several_kernels() -> None:
    works = (("triton_", 0, 5_000, 80_000), ("flash_fwd_kernel", 1_000, 85_000, 20_000))
    assert not tf.analyze(trace_of(**launched(*works))).losses


@pytest.mark.parametrize(
    ("name", "format_", "events", "told"),
    [
        ("sgemm_128x64_nn", "pytorch", "", "with many, lower precision is faster."),
        ("sgemm_128x64_nn", "nsys", "", "Tune it for these shapes, or try another implementation."),
        ("mul_mat_q<8>", "rocpd", "", "Tune it for these shapes, or try another implementation."),
        ("gemmk1_kernel<int, 256>", "nsys", "", "Tune it for these shapes, or try another"),
        ("rocblas_gemm_kernel", "rocpd", "", "Tune it for these shapes, or try another"),
        ("matMulGpu(float*, int)", "nsys", "", "Compare it with the GEMM of a BLAS library"),
        ("matMulGpu(int const*, int)", "nsys", "", "Tune it for these shapes, or try another"),
        ("laplacian", "rocpd", "", "is unknown: profile with rocprof-compute."),
        ("laplacian", "nsys", "", "is unknown: profile with Nsight Compute (ncu --set full)."),
        ("laplacian", "pytorch", "", "(ncu --set full) or rocprof-compute."),
        ("laplacian", "pytorch", "xpu_runtime", "What limits it is unknown."),
    ],
)
def test_the_main_kernel_is_told_what_its_program_and_gpu_have(
    name: str, format_: str, events: str, told: str
) -> None:
    other = "another_kernel" if name == "laplacian" else "sgemm_32x32_tt"
    trace = trace_of(**launched((name, 0, 100, 80_000), (other, 50, 80_100, 9_000)))
    source = replace(trace.source, format=format_, event_counts={events: 1} if events else {})
    found = tf.analyze(replace(trace, source=source)).losses
    (one,) = (one for one in found if one.rule == "main-kernel")
    assert told in one.remedy


def test_kernels_whose_long_names_are_cut_alike_are_no_family() -> None:
    names = [f"conv2_{'x' * 150}_{tiles}_{'y' * 150}" for tiles in ("64", "128")]
    works = ((names[0], 0, 100, 30_000), (names[1], 50, 30_100, 29_000), ("conv", 60, 59_100, 9))
    found = tf.analyze(trace_of(**launched(*works))).losses
    # 30,000 of 59,009 ns, or of 59,109 ns with the launch
    assert [one.claim.values["kernels"] for one in found if one.rule == "main-kernel"] == [1]


def test_a_kernel_is_named_though_others_of_its_kind_have_more_than_half() -> None:
    works = (("taylor_c", 0, 10, 40), ("taylor_s", 1, 50, 35), ("taylor_b", 2, 85, 25))
    rows = ((name, at, 1_000 * start, 1_000 * dur) for name, at, start, dur in works)
    (main, *_) = tf.analyze(trace_of(**launched(*rows))).findings
    assert main.sentence.startswith("taylor_c takes 40.0 % of the total time, in 1 launch (40")


@pytest.mark.parametrize(
    ("first", "is_beside", "is_told"),
    [(250, False, True), (400, False, False), (250, True, False)],
)
def test_uncategorized_kernels_are_named_if_none_of_them_leads(
    first: int, *, is_beside: bool, is_told: bool
) -> None:
    """Another kernel, not named, has 9 % of the time; one with 40 % is a finding of its own.

    Of kernels beside a product nobody knows which of them take the time that it does not hide.
    """
    names = {"void fox<int>(int)": first, "hare(int)": 200, "boar(int)": 90, "sgemm": 710 - first}
    works, at = [], 250
    for place, (name, dur) in enumerate(names.items()):
        works.append((name, place, at, dur))
        at += dur
    tables = launched(*works)
    if is_beside:
        tables["activities"][-1] |= {"start_ns": 300, "stream": 8}
    sentence = tf.analyze(trace_of(**tables)).verdict.sentence
    assert ("Uncategorized kernels (fox 25.0 %, hare 20.0 %) take 54.0 %;" in sentence) == is_told


@pytest.mark.parametrize(
    ("compute", "blocks", "units", "told_of_build"),
    [
        (
            (7, 5),
            1_000,
            100,
            "(INT8). Larger batches would hardly help: nearly all time is in launches of",
        ),
        ((7, 5), 999, 100, "level, for lower precision (INT8) or for larger batches."),
        ((8, 9), 999, 100, "level, for lower precision (INT8, FP8) or for larger batches."),
        ((7, 5), 1_000, 0, "level, for lower precision (INT8) or for larger batches."),
        ((5, 2), 0, 100, "build with a higher builder optimization level or for larger batches."),
    ],
)
def test_kernels_of_tensorrt_are_one_kind_and_to_be_built_anew(
    compute: tuple[int, int], blocks: int, units: int, told_of_build: str
) -> None:
    """On `units` multiprocessors; the types that a compute capability has are those of NVIDIA."""
    names_ = ("sm75_xmma_fprop_implicit_gemm_t1r3s3_execute_kernel_trt", "trt_turing_convolution")
    works = launched((names_[0], 0, 100, 50_000), (names_[1], 50, 50_100, 30_000))
    for row in works["activities"]:
        row |= {"grid": [blocks, 1, 1]} if blocks else {}
    major, minor = compute
    device = {"sm_count": units, "compute_major": major, "compute_minor": minor}
    (one,) = (
        one
        for one in tf.analyze(trace_of(**works, devices=[device])).losses
        if one.rule == "main-kernel"
    )
    assert told(one).startswith("TensorRT's 2 kernels of category convolution take ")
    assert told_of_build in told(one)


def test_the_ranges_of_tensorrt_tell_who_chose_kernels() -> None:
    names_ = ("sm80_xmma_fprop_implicit_gemm_a", "cudnn_fprop_b")
    works = launched((names_[0], 0, 100, 50_000), (names_[1], 50, 50_100, 30_000))
    execute = {
        "name": "ExecutionContext::execute",
        "kind": "annotation",
        "start_ns": 0,
        "dur_ns": 9,
    }
    for marks, is_told in (([], False), ([execute], True)):
        trace = trace_of(**works, marks=marks)
        losses = tf.analyze(replace(trace, source=replace(trace.source, format="nsys"))).losses
        assert any("TensorRT chose them" in told(one) for one in losses) == is_told


def test_a_decode_pass_of_few_tokens_waits_for_weights() -> None:
    mark = "execute_context_0(0)_generation_{tokens}({tokens})"
    few, many = (
        decoding("_matmul_ogs_NNT_16x128_swiglu", 36, mark.format(tokens=tokens))
        for tokens in (64, 65)
    )
    assert "A decode pass of 64 tokens is limited by reading weights" in told(few[0])
    assert "decode" not in told(many[0])


def test_a_kernel_of_no_category_that_is_the_program_is_to_be_profiled() -> None:
    works = (("sweep_all_MPI(float*)", 0, 5_000, 80_000), ("settle(float*)", 1_000, 85_000, 20_000))
    analysis = tf.analyze(trace_of(**launched(*works)))
    (found,) = (one for one in analysis.losses if one.rule == "main-kernel")
    assert told(found).startswith(
        "sweep_all_MPI takes 80.0 % of the total time, in 1 launch (80.0 µs). "
    )
    assert found.remedy is not None
    assert "ncu --set full" in found.remedy


def test_a_kernel_whose_launches_overlap_has_no_more_than_all_of_its_kind() -> None:
    """Sweeps of 60 us overlap by 30 us, settling 10 us follows: 100 us in all."""
    works = (("sweep(float*)", 0, 5_000, 60_000), ("settle(float*)", 1_000, 95_000, 10_000))
    analysis = tf.analyze(trace_of(**launched(*works, ("sweep(float*)", 2_000, 35_000, 60_000))))
    (found,) = (one for one in analysis.losses if one.rule == "main-kernel")
    assert told(found).startswith(
        "sweep takes up to 100.0 % of the total time, in 2 launches (mean 60.0 µs). "
    )
    assert found.share == 1


def test_no_kernel_is_named_where_none_has_most_of_compute_or_compute_is_little() -> None:
    (found,) = decoding("sm90_gemm_bf16", 39)
    assert told(found).split()[0] == "_matmul_ogs_NNT_16x128"  # it is alone: its own name
    assert decoding("vectorized_layer_norm_kernel", 36) == []


def test_one_kernel_with_nearly_all_of_the_time_is_said_first() -> None:
    """It is the only one of its kind of work."""
    works = [("stencil", 0, 100, 100_000), ("Memset", 50, 100_100, 5_000)]
    first = tf.analyze(trace_of(**launched(*works))).findings[0]
    assert (first.rule, first.rows[0].name) == ("main-kernel", "stencil")
