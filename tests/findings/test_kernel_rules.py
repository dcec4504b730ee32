"""Faults of kernels by hand: each is found, its like without the fault is not, gains are bounds."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import traceflops as tf
from sample_traces.config import RunConfig
from tests.build import launched, trace_of
from tests.conftest import shared_file
from tests.findings.scenarios import reach_ns
from tests.findings.test_diagnosis import ROUNDING, SMALL, analysis_of, of_rule, step_ns
from traceflops.facts import fact
from traceflops.findings.finding import Finding, Gain
from traceflops.findings.rules import thresholds
from traceflops.table.trace import Trace

A100 = {
    "product": "NVIDIA A100-SXM4-40GB",
    "compute_major": 8,
    "compute_minor": 0,
    "sm_count": 108,
    "warp_size": 32,
    "memory_bytes": 42_505_273_344,
}
T4 = {
    "product": "Tesla T4",
    "compute_major": 7,
    "compute_minor": 5,
    "sm_count": 40,
    "warp_size": 32,
    "memory_bytes": 15_828_320_256,
}
US = 1_000
Made = dict[str, Any]


def made(kernel: str, us: int, op: str = "", dims: str = "", **more: Any) -> Made:
    """Return a kernel that an op launches, maybe inside another op, `around`."""
    return {"kernel": kernel, "us": us, "op": op, "dims": dims, **more}


def trace(works: Sequence[Made], device: Made = A100, **more: Sequence[Made]) -> Trace:
    """Return a run in which all is launched at once, so that only the kernels take time."""
    activities, calls, ops, at = [], [], [], 100 * US
    for number, one in enumerate(works, 1):
        launch = {"start_ns": 40 * number + 10, "dur_ns": 4, "correlation": number}
        calls.append(launch)
        activities.append(
            {"name": one["kernel"], "start_ns": at, "dur_ns": one["us"] * US, "correlation": number}
            | one.get("form", {})
        )
        at += one["us"] * US
        around = [one[name] for name in ("around", "op") if one.get(name)]
        for depth, name in enumerate(around):
            op = {"name": name, "start_ns": 40 * number + depth, "dur_ns": 30 - 2 * depth}
            told = {"input_dims": one["dims"] or None, "input_types": one.get("types")}
            told |= {"input_strides": one.get("strides"), "concrete_inputs": one.get("values")}
            op["sequence"] = one.get("sequence")
            ops.append(op | (told if name == one["op"] else {}))
    device = {"device": 0, "process": 0, "local_id": 0, "type": "gpu", **device}
    tables = {"activities": activities, "calls": calls, "ops": ops, **more}
    return trace_of(devices=[device], **tables)


def found(works: Sequence[Made], **more: Any) -> dict[str, Finding]:
    return {one.rule: one for one in tf.analyze(trace(works, **more)).findings if one.gain}


BF16 = '["c10::BFloat16", "c10::BFloat16"]'
FLOAT = '["float", "float"]'
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn"
SQUARE = "[[4096, 4096], [4096, 4096]]"
ROWS = "[[4096, 1], [4096, 1]]"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float> >"
TANH = "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>"
HEALTHY = made(GEMM, 700, "aten::mm", SQUARE, types=BF16)  # 137 GFLOP at 63 % of 312 TFLOP/s
ODD_ROWS = "[[4096, 4095], [4095, 4096]]"


def product(dims: str, us: int, kernel: str = GEMM, **more: Any) -> Made:
    return made(kernel, us, dims=dims, **{"op": "aten::mm", "types": BF16, **more})


def attention(middle: str, product_op: str = "aten::bmm") -> list[Made]:
    scores, values = "[[64,1024,64],[64,64,1024]]", "[[64,1024,1024],[64,1024,64]]"
    return [
        made(GEMM, 200, product_op, scores, types=BF16),
        made(MUL, 150, "aten::mul", "[[64,1024,1024],[]]"),
        made(SOFTMAX, 200, middle, "[[64,1024,1024],[],[]]", types=BF16),
        made(GEMM, 200, product_op, values, types=BF16),
    ]


CHAIN = [made(name, 20, "aten::add") for name in (ADD, MUL, TANH, NORM, ADD, MUL)]
STEP = [{"name": "Optimizer.step#AdamW.step", "start_ns": 0, "dur_ns": 10_000}]
TO_IMAGE = made("void upsample_gen2d_aa_out_frame<float>(float*)", 700, "aten::upsample")
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlpha>"
FUSED = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
FP64 = "void gemv2T_kernel_val<int, int, double, double, double, double, 128>"

"""By rule: the microseconds that the whole remedy saves, the fault, its like, and what else."""
FAULTS: dict[str, tuple[int, list[Made], list[Made], Made]] = {
    "misaligned-product": (
        4236,  # 75 % of 312 TFLOP/s: 588 of 2,000 us are left
        [product(ODD_ROWS, 2000)] * 3,
        [product("[[4095, 4096], [4096, 4096]]", 2000)] * 3,  # rows are 8 KiB long
        {},
    ),
    "tf32-off": (
        15750,  # 19.5 to 156 TFLOP/s
        [product(SQUARE, 9000, "ampere_sgemm_128x128_nn", types=FLOAT)] * 2,
        [product(SQUARE, 1500, "cutlass_80_tensorop_s1688gemm_128x128", types=FLOAT)] * 2,
        {},
    ),
    "single-precision": (
        1500,  # 156 to 312 TFLOP/s
        [product(SQUARE, 1500, "cutlass_80_tensorop_s1688gemm_128x128", types=FLOAT)] * 2,
        [HEALTHY] * 2,
        {},
    ),
    "double-precision": (
        500,  # half of the bytes
        [made(FP64, 500)] * 2,
        [made(FP64.replace("double", "float"), 500)] * 2,
        {"device": T4},
    ),
    "unfused-attention": (
        695,  # 8.6 GFLOP at 312 TFLOP/s take 27.5 of 200 us
        attention("aten::_softmax"),
        attention("aten::_softmax", "aten::mm"),  # of no batch: a router, or a loss
        {},
    ),
    "unfused-optimizer": (
        75,  # 75 % of lists
        [
            HEALTHY,
            made(FOREACH, 50, "aten::_foreach_add_"),
            made(FOREACH, 50, "aten::_foreach_mul_"),
        ],
        [HEALTHY, made(FUSED, 50, "aten::_fused_adamw_"), made(FUSED, 50, "aten::_fused_adamw_")],
        {"marks": STEP},
    ),
    "convolution-layout": (100, [HEALTHY, made(TO_NHWC, 100)], [HEALTHY, made(MUL, 100)], {}),
    "casts": (
        100,
        [HEALTHY, made(COPY, 100, "aten::copy_", ROWS, types='["c10::BFloat16", "float"]')],
        [HEALTHY, made(COPY, 100, "aten::copy_", ROWS, types=FLOAT)],
        {},
    ),
    "layout-copies": (
        100,
        [HEALTHY, made(COPY, 100, "aten::copy_", ROWS, types=FLOAT, around="aten::contiguous")],
        [HEALTHY, made(COPY, 100, "aten::copy_", ROWS, types=FLOAT, around="aten::index_put_")],
        {},
    ),
    "fusable-kernels": (
        100,  # the time of the norm is left
        [HEALTHY, *CHAIN],
        [HEALTHY, *CHAIN[:3], HEALTHY, *CHAIN[3:]],
        {},
    ),
}


@pytest.mark.parametrize(("units", "is_told"), [(108, True), (107, False)])
def test_rates_are_known_where_all_that_a_gpu_may_be_have_the_same(
    units: int, is_told: bool
) -> None:
    """It has the properties of four kinds of A100 and A800, but the name of none."""
    unnamed = A100 | {"product": "PG509-210", "sm_count": units, "memory_bytes": 85_045_870_592}
    slow = [product(SQUARE, 9000, "ampere_sgemm_128x128_nn", types=FLOAT)] * 2
    assert ("tf32-off" in found(slow, device=unnamed)) == is_told


@pytest.mark.parametrize(
    ("launcher", "is_cast"), [("unrolled_elementwise_kernel", True), ("elementwise_kernel", False)]
)
def test_a_contiguous_copy_with_casts_only_converts(launcher: str, is_cast: bool) -> None:
    """Its operator has no types; of the other launcher strides may be the reason."""
    name = f"void at::native::{launcher}<at::native::direct_copy_kernel_cuda, LoadWithCast<1> >"
    assert ("casts" in found([HEALTHY, made(name, 100, "aten::copy_")])) == is_cast


@pytest.mark.parametrize(
    ("others", "said"), [([HEALTHY], "bfloat16"), ([TO_IMAGE], "Convert once")]
)
def test_only_a_model_is_to_be_loaded_in_one_type(others: list[Made], said: str) -> None:
    cast = made(COPY, 100, "aten::copy_", ROWS, types='["c10::BFloat16", "float"]')
    assert said in found([*others, cast])["casts"].remedy


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_found_and_its_like_is_not(rule: str) -> None:
    saved_us, faulty, like, more = FAULTS[rule]
    one = found(faulty, **more)[rule]
    assert rule not in found(like, **more)
    assert one.rows
    assert one.owner
    assert one.remedy.endswith(".")
    assert one.gain
    assert one.gain.high_ns == pytest.approx(saved_us * US, rel=0.005)
    assert one.gain.low_ns == pytest.approx(saved_us * US / 2, rel=0.005)
    assert len(one.title.split()) <= 7


def test_a_kernel_that_is_most_of_its_run_is_no_part_of_it_and_leads() -> None:
    """Beside it are runs that could be fused, of a tenth of the time."""
    resize = made("void upsample_gen2d_aa_out_frame<float>(float*)", 2_000)
    analysis = tf.analyze(trace([*CHAIN, resize, *CHAIN[:2], resize, *CHAIN]))
    first = analysis.findings[0]
    assert first.rule == "main-kernel"
    assert "in 2 launches (mean 2.00 ms)" in first.sentence
    fused = [one for one in analysis.findings if one.rule == "fusable-kernels"]
    assert all(one.share < 0.2 for one in fused)


@pytest.mark.parametrize(("times", "is_told"), [(4, True), (5, False)])
def test_rows_of_one_kernel_are_no_results_in_between(times: int, *, is_told: bool) -> None:
    """So a benchmark of several kernels repeats each."""
    works = [made(name, 100) for name in (ADD, MUL, TANH) for _ in range(times)]
    assert ("fusable-kernels" in found(works)) == is_told


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        ("relu_float4", "sigmoid_float4", True),
        (ADD, MUL, False),
        (SOFTMAX, MUL, False),
        ("void vllm::rms_norm_kernel<c10::Half>", MUL, False),
        ("__amd_rocclr_fillBufferAligned", MUL, False),
    ],
)
def test_a_memory_kernel_of_the_program_is_to_be_profiled(
    first: str, second: str, *, is_told: bool
) -> None:
    """It has 60 % of the time; one of a library would need nearly all."""
    works = [made(name, us) for name, us in ((first, 600), (second, 400))] * 3
    analysis = tf.analyze(trace(works))
    told = [one.sentence for one in analysis.findings if one.rule == "main-kernel"]
    assert bool(told) == is_told
    assert all("takes 60.0 % of" in sentence for sentence in told)


@pytest.mark.parametrize("other", ["aten::relu_", "autograd::engine: ReluBackward0"])
def test_batch_norm_in_inference_is_to_be_folded(other: str) -> None:
    """One kernel for norm and ReLU reads and writes once, as either of them does: half is left."""
    convolution = made("sm80_xmma_fprop_implicit_gemm_tf32f32", 1_000, "aten::cudnn_convolution")
    norm = made("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", 500, "aten::cudnn_batch_norm")
    told = found([convolution, norm, made(MUL, 500, other)] * 4).get("fusable-kernels")
    assert (told is not None) == (other == "aten::relu_")
    if told is not None:
        assert told.gain is not None
        assert told.gain.high_ns == 4 * (500 + 500 // 2) * US
        assert "; 25.0 % is batch norm, which inference can fold into conv" in told.sentence
        assert told.remedy.startswith("Fold batch norm into the convolutions")


def test_batch_norm_alone_leaves_nothing_once_it_is_folded() -> None:
    convolution = made("sm80_xmma_fprop_implicit_gemm_tf32f32", 1_000, "aten::cudnn_convolution")
    norm = made("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", 500, "aten::cudnn_batch_norm")
    told = found([convolution, norm] * 4)["fusable-kernels"]
    assert told.gain is not None
    assert told.gain.high_ns == 4 * 500 * US


def test_convolutions_are_called_so_where_their_kernels_are_named_as_gemms() -> None:
    kernel = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4"
    one = found([made(kernel, 1_000, "aten::cudnn_convolution")] * 4)["single-precision"]
    assert one.sentence.startswith("Convolutions in TF32 take 100.0 % of the time.")


def test_a_range_with_the_number_of_its_step_is_named_without_it() -> None:
    """Calls begin 40 ns apart, each in a range of its own."""
    ranges = [{"name": f"solve {at}", "start_ns": 40 * at + 45, "dur_ns": 30} for at in range(4)]
    one = found([made(f"{FP64}(T1, T2)", 500)] * 4, device=T4, marks=ranges)["double-precision"]
    kernel = FP64.removeprefix("void ")
    assert one.sentence.endswith(f"Largest part: {kernel} in solve.")


def test_a_range_of_a_compiled_graph_is_no_place() -> None:
    mark = {"name": "## Call CompiledFxGraph f537jg ##", "start_ns": 0, "dur_ns": 9_000}
    one = found([made(FP64, 500)] * 2, device=T4, marks=[mark])["double-precision"]
    assert "CompiledFxGraph" not in one.sentence


@pytest.mark.parametrize(
    ("kernels", "device", "title", "claim"),
    [
        (["cutlass_80_tensorop_s1688gemm_128x128"], A100, "GEMMs use TF32", "GEMMs in TF32"),
        (["some_gemm"], A100, "GEMMs use FP32 or TF32", "GEMMs in FP32 or TF32"),
        (["some_gemm"], T4, "GEMMs use FP32", "GEMMs in FP32"),
        (["volta_scudnn_winograd"], T4, "Convolutions use FP32", "Convolutions in FP32"),
        (
            ["volta_scudnn_winograd", "volta_sgemm_128x64_nn"],
            T4,
            "Convolutions use FP32",
            "Convolutions and GEMMs in FP32",
        ),
    ],
)
def test_products_of_32_bits_are_called_what_they_are(
    kernels: list[str], device: Made, title: str, claim: str
) -> None:
    works = [
        product(SQUARE, 30_000 - 9_000 * place, kernel, types=FLOAT)
        for place, kernel in enumerate(kernels * 2)
    ]
    one = found(works, device=device)["single-precision"]
    assert one.title == title
    assert one.sentence.startswith(f"{claim} take 100.0 % of the time. ")


@pytest.mark.parametrize(
    ("rule", "kernel", "op", "bytes_"),
    [
        ("softmax-bandwidth", SOFTMAX, "aten::_softmax", 2 * 2 * 8192**2),
        ("norm-bandwidth", NORM, "aten::native_layer_norm", 2 * 2 * 8192**2),
        ("memory-bandwidth", ADD, "aten::add", 3 * 2 * 8192**2),
    ],
)
def test_kinds_of_memory_kernels_have_remedies_of_their_own(
    rule: str, kernel: str, op: str, bytes_: int
) -> None:
    """The bandwidth of the A100 is 1,555 GB/s; 70 % to 92 % of it are within reach."""
    second = "[8192, 8192]" if op == "aten::add" else "[]"
    work = made(kernel, 1000, op, f"[[8192, 8192], {second}]", types=BF16)
    rules = found([HEALTHY, work, HEALTHY])
    assert {"softmax-bandwidth", "norm-bandwidth", "memory-bandwidth"} & rules.keys() == {rule}
    gain, needed_us = rules[rule].gain, bytes_ / 1_555_000
    assert gain is not None
    expected = [(1000 - needed_us / reached) * US for reached in (0.70, 0.92)]
    assert [gain.low_ns, gain.high_ns] == pytest.approx(expected, rel=0.005)
    assert op in rules[rule].sentence


def test_kernels_that_make_random_numbers_keep_their_time() -> None:
    """Of a run of six kernels two make numbers: what the other four take can be saved."""
    number = "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, uniform>"
    run = [made(name, 500) for name in (number, ADD, MUL, number, TANH, ADD)]
    gain = found(run)["fusable-kernels"].gain
    assert gain is not None
    assert 0 < gain.high_ns <= 4 * 500 * US


@pytest.mark.parametrize(("counted", "is_told"), [(9, True), (5, False)])
def test_launches_of_known_bytes_stand_for_all_if_they_take_nearly_all_time(
    counted: int, *, is_told: bool
) -> None:
    """Of ten launches of 1 ms some have no shapes."""
    shapes = "[[8192, 8192], [8192, 8192]]"
    known = [made(ADD, 1000, "aten::add", shapes, types=BF16)] * counted
    unknown = [made(ADD, 1000, "aten::add")] * (10 - counted)
    assert ("memory-bandwidth" in found([HEALTHY, *known, HEALTHY, *unknown])) is is_told


@pytest.mark.parametrize(("took_us", "is_told"), [(4, False), (20, True)])
def test_what_is_as_short_as_a_launch_is_not_far_below_bandwidth(
    took_us: int, *, is_told: bool
) -> None:
    works = [made(ADD, took_us, "aten::add", "[[64, 64], [64, 64]]", types=BF16)] * 20
    assert ("memory-bandwidth" in found(works)) == is_told


@pytest.mark.parametrize(
    ("kernel", "took_us", "size", "is_told"),
    [
        (ADD, 5_000, 8192, True),
        (ADD, 1_000, 8192, False),  # a quarter of the bandwidth
        (ADD, 100, 512, False),  # 1.5 MB
        (ADD.replace("vectorized", "unrolled"), 5_000, 8192, False),
    ],
)
def test_simple_kernels_of_large_tensors_are_slow_where_the_gpu_is(
    kernel: str, took_us: int, size: int, *, is_told: bool
) -> None:
    shapes = f"[[{size}, {size}], [{size}, {size}]]"
    rules = found([HEALTHY, made(kernel, took_us, "aten::add", shapes, types=BF16), HEALTHY])
    assert ("other programs on it" in rules["memory-bandwidth"].remedy) == is_told


@pytest.mark.parametrize(
    ("kernel", "is_told"),
    [
        (NORM, False),
        (
            "void at::native::(anonymous namespace)::GammaBetaBackwardKernel<float>",
            False,
        ),
        ("triton_red_fused_rms_norm_0", False),
        ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>", True),
    ],
)
def test_no_function_is_recommended_that_the_kernels_come_from(
    kernel: str, *, is_told: bool
) -> None:
    work = made(kernel, 1000, "aten::native_layer_norm", "[[8192, 8192], []]", types=BF16)
    remedy = found([HEALTHY, work, HEALTHY])["norm-bandwidth"].remedy
    assert ("F.layer_norm" in remedy) == is_told
    assert "torch.compile fuses" in remedy


HEADS = "[[8, 16, 4096, 64], [8, 16, 4096, 64], [8, 16, 4096, 64]]"
CONVOLUTION = {
    "dims": "[[32, 256, 56, 56], [256, 256, 3, 3], [], [], [], [], [], [], []]",
    "types": json.dumps(["c10::BFloat16"] * 2 + [""] * 7),
    "values": '["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]',
}
RATES: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "matrix-rate": (GEMM, "aten::mm", {"dims": SQUARE, "types": BF16}, 2 * 4096**3),
    "attention-rate": (
        "flash_fwd_kernel<128>",
        "aten::_scaled_dot_product_flash_attention",
        {"dims": HEADS, "types": json.dumps(["c10::BFloat16"] * 3)},
        4 * 8 * 16 * 4096**2 * 64,
    ),
    "convolution-rate": (
        "sm80_xmma_fprop_implicit_gemm_bf16",
        "aten::convolution",
        CONVOLUTION,
        2 * 32 * 56**2 * 256**2 * 9,
    ),
}


@pytest.mark.parametrize("rule", RATES)
def test_kinds_of_products_are_slow_below_rates_of_their_own(rule: str) -> None:
    """A tenth below `poor` it is, a tenth above it is not; the peak is 312 TFLOP/s."""
    kernel, op, told, flops = RATES[rule]
    limits = thresholds()["attention-rate" if rule == "attention-rate" else "matrix-rate"]
    needed_us = flops / 312e6
    slow, fast = (
        found([made(kernel, round(needed_us / (limits["poor"] * part)), op, **told)])
        for part in (0.9, 1.1)
    )
    assert (RATES.keys() & slow.keys(), RATES.keys() & fast.keys()) == ({rule}, set())
    gain = slow[rule].gain
    assert gain is not None
    took_us = needed_us / (limits["poor"] * 0.9)
    expected = [(took_us - needed_us / limits[name]) * US for name in ("good", "best")]
    assert [gain.low_ns, gain.high_ns] == pytest.approx(expected, rel=0.01)


def test_what_a_rule_explains_is_not_called_slow_besides() -> None:
    """Both products reach 22 % of the peak; rows of 4,095 elements explain that."""
    rules = {"misaligned-product", "matrix-rate"}
    assert rules & found([product(ODD_ROWS, 2000)]).keys() == {"misaligned-product"}
    assert rules & found([product(SQUARE, 2000)]).keys() == {"matrix-rate"}


def test_what_another_rule_explains_counts_only_for_the_high_end() -> None:
    slow = product(SQUARE, 2000)
    other = product(ODD_ROWS, 2000, kernel=f"{GEMM}_2")
    alone, both = (found([*works])["matrix-rate"] for works in ([slow], [slow, other]))
    assert alone.gain is not None
    assert both.gain is not None
    assert both.gain.low_ns == pytest.approx(alone.gain.low_ns, rel=0.01)
    assert reach_ns(both.gain) > 1.9 * reach_ns(alone.gain)


@pytest.mark.parametrize(
    ("counters", "room", "doubt"),
    [
        ([], "was not recorded", True),
        ([("allocated", 10), ("reserved", 21)], "is 50.6 % of the memory", False),
        ([("allocated", 30), ("reserved", 40)], "is 5.9 % of the memory", True),
    ],
)
def test_recomputation_says_what_memory_is_free(
    counters: list[tuple[str, int]], room: str, doubt: bool
) -> None:
    again = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    works = [HEALTHY, {**HEALTHY, "around": again, "sequence": 5}, HEALTHY]
    memory = [
        {"name": f"device_memory.{what}_bytes", "device": 0, "time_ns": 100, "value": size * 1e9}
        for what, size in counters
    ]
    one = found(works, counters=memory)["recompute"]
    assert room in one.sentence
    assert one.gain == Gain(700 * US, 700 * US, 700 * US)
    assert one.confidence
    assert (fact("doubt.memory-missing") in one.confidence.reasons) == doubt


def test_communication_in_a_backward_pass_is_no_recomputation() -> None:
    again = "autograd::engine::evaluate_function: ExchangeBackward"
    inside = {"around": again, "sequence": 5}
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    works = [HEALTHY, {**made(name, 700, "c10d::alltoall_base_"), **inside}, HEALTHY]
    assert "recompute" not in found(works)


def test_fused_attention_keeps_its_products() -> None:
    """Their FLOPs are unknown without shapes: only the 350 us between them can be saved."""
    works = [one | {"dims": "", "types": None} for one in attention("aten::_softmax")]
    gain = found(works)["unfused-attention"].gain
    assert gain is not None
    assert gain.high_ns == 350 * US


def test_the_gradient_of_attention_has_two_products_on_either_side() -> None:
    scores, values = "[[64,1024,64],[64,64,1024]]", "[[64,1024,1024],[64,1024,64]]"
    column, gradient = "[[64,64,1024],[64,1024,1024]]", "aten::_softmax_backward_data"
    works = [
        HEALTHY,
        product(values, 200, op="aten::bmm"),
        product(scores, 200, op="aten::bmm"),
        made(SOFTMAX, 300, gradient, "[[64,1024,1024],[64,1024,1024],[],[]]", types=BF16),
        made(MUL, 100, "aten::mul", "[[64,1024,1024],[]]"),
        product(values, 200, op="aten::bmm"),
        product(column, 200, op="aten::bmm"),
        HEALTHY,
    ]
    one = found(works)["unfused-attention"]
    assert one.share == pytest.approx(1200 / 2600)
    assert sum(row.time_ns for row in one.rows) == 1200 * US


MAXIMUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, MaxOps<float> > >"
POWERS = "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda>"
TOTAL = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor<float> > >"


@pytest.mark.parametrize(
    ("between", "batches", "layers", "others", "is_told"),
    [
        ([MUL, SOFTMAX], (64, 64), 2, 90, True),
        ([MAXIMUM, ADD, POWERS, TOTAL, MUL], (64, 64), 2, 90, True),
        ([MUL, SOFTMAX], (64, 64), 1, 90, False),
        ([MUL, SOFTMAX], (1, 1), 2, 90, False),
        ([MUL, SOFTMAX], (64, 8), 2, 90, False),
        ([MUL, SOFTMAX], (64, 64), 2, 300, False),
        ([POWERS, MAXIMUM, TOTAL], (64, 64), 2, 90, False),
        ([MUL, "log_softmax_kernel"], (64, 64), 2, 90, False),
    ],
)
def test_attention_without_operators_is_told_by_names_and_grids(
    between: list[str], batches: tuple[int, int], layers: int, others: int, *, is_told: bool
) -> None:
    """Each layer has another product, and memory work for `others` us."""
    first, second = (made(GEMM, 200, form={"grid": [8, 8, side]}) for side in batches)
    layer = [
        made(GEMM, 90),
        made(TANH, others),
        made(GEMM, 90),
        first,
        *(made(name, 100) for name in between),
        second,
    ]
    causes = found(layers * layer)
    assert ("unfused-attention" in causes) == is_told
    if is_told:
        share = (400 + 100 * len(between)) / (670 + 100 * len(between))
        assert causes["unfused-attention"].share == pytest.approx(share)


@pytest.mark.parametrize(
    ("back", "batches", "is_told"),
    [([MUL, TOTAL, ADD, MUL], 64, True), ([MUL, TOTAL, ADD, MUL], 8, False), ([MUL], 64, False)],
    ids=["gradients", "other products", "no sum"],
)
def test_gradients_of_a_softmax_of_operators_are_of_the_attention(
    back: list[str], batches: int, *, is_told: bool
) -> None:
    """Two layers forward, two back; of 1,300 us of other memory work per layer they are most."""
    forth = [MAXIMUM, ADD, POWERS, TOTAL, MUL]
    first, last = (made(GEMM, 200, form={"grid": [8, 8, side]}) for side in (64, batches))
    ahead = [first, *(made(name, 200) for name in forth), first]
    behind = [last, *(made(name, 200) for name in back), last]
    other = [made(GEMM, 90), made(TANH, 1_300), made(GEMM, 90)]
    causes = found(2 * [*other, *ahead] + 2 * behind)
    assert ("unfused-attention" in causes) == is_told


SLOW_FP32 = {
    "dtype": "fp32",
    "layers": 3,
    "sequence": 128,
    "batch": 32,
    "peak_flops_per_s": 66_900_000_000_000,
}
"""H100 has 66.9 TFLOP/s for FP32, and 494.7 for TF32. Of fused attention no name tells which."""
ODD = {"hidden": 1020, "heads": 12, "layers": 4, "gemm_percent": 18}


@pytest.mark.parametrize(
    ("rule", "planted", "change"),
    [
        ("tf32-off", SLOW_FP32, {"peak_flops_per_s": 494_700_000_000_000}),
        ("misaligned-product", ODD, {"hidden": 1024, "heads": 16, "gemm_percent": 60}),
    ],
)
def test_the_interval_holds_what_the_repair_gains(
    rule: str, planted: dict[str, Any], change: dict[str, Any]
) -> None:
    config = RunConfig(**{**SMALL, **planted})
    analysis = analysis_of(config)
    gained = step_ns(analysis) - step_ns(analysis_of(replace(config, **change)))
    one = of_rule(analysis.findings, rule)
    assert one.gain
    rounding = ROUNDING * step_ns(analysis)  # attention gets faster, too
    assert one.gain.low_ns - rounding <= gained <= one.gain.high_ns + rounding
    assert one.priority == "high"


def test_a_model_without_fused_operators_is_named_by_its_module() -> None:
    """Norm and residual are nine kernels, rotary embedding and copies 13, in each of 24 layers."""
    analysis = tf.analyze(tf.read(shared_file("traces/pytorch/h100_qwen15_infer.json.gz")))
    first = analysis.findings[0]
    assert (first.rule, first.priority) == ("fusable-kernels", "high")
    assert first.where.module == "Qwen2Model/Qwen2DecoderLayer/Qwen2Attention"
    assert "torch.compile" in first.remedy


@pytest.mark.parametrize("name", ["mi300x_sglang_qwen3_decode_graph", "mi300x_torch_compile"])
def test_compiled_and_replayed_runs_have_no_such_fault(name: str) -> None:
    analysis = tf.analyze(tf.read(shared_file(f"traces/pytorch/{name}.json.gz")))
    assert not {one.rule for one in analysis.findings} & FAULTS.keys()


def test_kernels_of_replayed_graphs_are_named_by_their_capture() -> None:
    decode = "traces/pytorch/mi300x_sglang_qwen3_decode_{}.json.gz"
    graph, capture = (tf.read(shared_file(decode.format(name))) for name in ("graph", "capture"))
    one = of_rule(tf.analyze(graph, pair=capture).findings, "matrix-rate")
    assert one.where.module == "Qwen3DecoderLayer/Qwen3Attention/QKVParallelLinear"
    assert "aten::mm of 32×4096, 4096×6144" in one.sentence


@pytest.mark.parametrize(
    ("kernel", "other", "is_told"),
    [
        ("triton_red_fused__log_softmax_prepare_softmax_online_3", "MmBackward0", True),
        ("triton_red_fused__log_softmax_prepare_softmax_online_3", "aten::mm", False),
        ("triton_red_fused__softmax_prepare_softmax_online_3", "MmBackward0", False),
        ("liger_cross_entropy_kernel", "MmBackward0", False),
    ],
)
def test_the_softmax_of_a_loss_is_told_without_a_gain(
    kernel: str, other: str, is_told: bool
) -> None:
    analysis = tf.analyze(trace([HEALTHY, made(kernel, 300, "aten::x"), made(GEMM, 10, other)]))
    told = [one for one in analysis.findings if one.rule == "loss-softmax"]
    busy_us = sum(row["sum_ns"] for row in analysis.kernels.to_pylist()) / US
    assert [one.gain for one in told] == [None] * is_told
    assert [one.share for one in told] == pytest.approx([300 / busy_us] * is_told, rel=0.02)


@pytest.mark.parametrize("other", ["aten::relu", "autograd::engine: ReluBackward0"])
def test_statistics_of_each_batch_are_told_where_nothing_is_of_training(other: str) -> None:
    norm = made("void cudnn::bn_fw_tr_1C11_singleread<float, 512>", 500, "aten::batch_norm")
    analysis = tf.analyze(trace([HEALTHY, norm, made(MUL, 100, other)]))
    norms = [one for one in analysis.findings if one.rule == "training-mode"]
    assert bool(norms) == (other == "aten::relu")
    assert all(one.gain is None and "model.eval()" in one.remedy for one in norms)
    inferring = made("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>", 500, "aten::batch_norm")
    told = tf.analyze(trace([HEALTHY, inferring])).findings
    assert "training-mode" not in [one.rule for one in told]


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", True),
        ("ampere_sgemm_128x64_nt", True),
        ("volta_sgemm_128x64_nt", False),  # an older GPU may have run it
        ("ampere_bf16_s16816gemm_bf16_128x64_tn", False),
    ],
)
def test_totals_by_name_tell_products_in_plain_fp32(name: str, is_told: bool) -> None:
    product = {"kind": "kernel", "name": name, "count": 3, "total_ns": 40}
    other = {"kind": "kernel", "name": "vectorized_elementwise_kernel", "count": 9, "total_ns": 60}
    found = tf.analyze(trace_of(totals=[product, other])).findings
    told = [one.sentence for one in found if one.rule == "tf32-off"]
    claim = "GEMMs in plain FP32, on a GPU that has TF32, take 40.0 % of the time."
    assert told == [claim] * is_told


IN_TF32 = "cutlass_80_tensorop_s1688gemm_128x128_nn_align4"
REDUCED = "ncclDevKernel_AllReduce_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTERED = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"


@pytest.mark.parametrize(
    ("collective", "remedy"),
    [
        (
            REDUCED.format("f32"),
            "Collectives in FP32 (30.0 % of the time) keep their type: to "
            "halve their bytes, too, use bf16_compress_hook with DistributedDataParallel.",
        ),
        (SCATTERED, "use FSDP's mixed precision"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "bf16_compress_hook"),
        (REDUCED.format("bf16"), ""),
    ],
)
def test_collectives_in_fp32_are_told_beside_products_in_tf32(collective: str, remedy: str) -> None:
    parts = ((IN_TF32, 40), (collective, 30), (FUSED, 30))
    totals = [{"name": name, "count": 3, "total_ns": time_ns} for name, time_ns in parts]
    told = of_rule(tf.analyze(trace_of(totals=totals)).findings, "single-precision")
    assert told.sentence == "GEMMs in TF32 take 40.0 % of the time."
    assert remedy in told.remedy
    assert ("Collectives" in told.remedy) == bool(remedy)
    works = [product("[[], []]", 4_000, IN_TF32, types=FLOAT), made(collective, 3_000)]
    one = found([*works, made(FUSED, 3_000)] * 2)["single-precision"]
    assert remedy in one.remedy
    assert ("Collectives" in one.remedy) == bool(remedy)
    not_trained = found([*works, made(ADD, 3_000)] * 2)["single-precision"]
    assert "Collectives" not in not_trained.remedy  # of activations, which autocast makes smaller


def test_collectives_get_the_16_bits_that_the_gpu_has() -> None:
    gathered = made("ncclDevKernel_AllGather_RING_LL", 100)  # of a loss or a metric
    works = [product(SQUARE, 40_000, "volta_sgemm_128x64_nn", types=FLOAT), gathered]
    works += [made(REDUCED.format("f32"), 20_000), made(FUSED, 10_000)]
    told = found(works * 2, device=T4)["single-precision"].remedy
    assert "dtype=torch.float16" in told
    assert "use fp16_compress_hook with DistributedDataParallel" in told
    assert "bf" not in told


def test_totals_in_tf32_beside_others_in_16_bits_are_on_purpose() -> None:
    totals = [{"name": name, "count": 3, "total_ns": 40} for name in (IN_TF32, GEMM, ADD)]
    rules = {one.rule for one in tf.analyze(trace_of(totals=totals)).findings}
    assert "single-precision" not in rules


def test_products_without_launch_records_gain_at_most_what_a_faster_type_may_take_off() -> None:
    """On an A100, BF16 does a product in 19.5 of 312 of the time of FP32 at best."""
    works = [made("ampere_sgemm_64x32_sliced1x4_nt", 800), made(ADD, 200)]
    run = trace(works * 4)
    bare = replace(run, tables={**run.tables, "calls": run.calls.slice(0, 0)})
    one = of_rule(tf.analyze(bare).findings, "single-precision")
    assert one.gain is not None
    assert one.gain.low_ns == 0
    assert one.gain.high_ns == pytest.approx(4 * 800 * US * (1 - 19.5 / 312), abs=8)


@pytest.mark.parametrize(
    ("kernel", "kept", "type_"),
    [
        ("ampere_sgemm_128x64_nt", 19.5 / 312, "FP32"),
        ("ampere_s1688gemm_128x128_tn", 156 / 312, "TF32"),
        ("gemv2T_kernel_val<float>", 1 / 2, "FP32"),  # half of the bytes
    ],
)
def test_products_of_unknown_flops_gain_by_the_rates_of_the_gpu(
    kernel: str, kept: float, type_: str
) -> None:
    """An A100 does 19.5 TFLOP/s in FP32, 156 in TF32 and 312 in BF16."""
    works = [product("[[], []]", 20_000, kernel, types=FLOAT), made(ADD, 5_000)]
    one = found(works * 2)["single-precision"]
    most_ns = 40_000 * US * (1 - kept)
    assert one.gain is not None
    assert (one.gain.low_ns, one.gain.high_ns) == pytest.approx((most_ns / 2, most_ns), rel=0.002)
    assert ("allow TF32" in one.remedy) == (type_ == "FP32")
    claim = f"GEMMs in {type_} take 80.0 % of the time."
    assert one.sentence.startswith(f"{claim} Memory work (20.0 %) may move fewer bytes then, too.")


@pytest.mark.parametrize(
    ("attention_us", "claim"),
    [
        (50, "GEMMs in FP32 and attention in FP32 or TF32 take 80.0 % of the time."),
        (5, "GEMMs in FP32 take 79.5 % of the time."),  # too little to be named, or counted
    ],
)
def test_the_share_of_products_is_of_those_that_are_named(attention_us: int, claim: str) -> None:
    works = [
        made("ampere_sgemm_128x64_nt", 800 - attention_us, ""),
        made("fmha_cutlassF_f32_aligned_64x64_rf_sm80", attention_us // 5, ""),
        made("fmha_cutlassB_f32_aligned_64x64_k64_sm80", attention_us - attention_us // 5, ""),
        made(ADD, 200, ""),
    ]
    assert found(works * 2)["single-precision"].sentence.startswith(claim)


def test_products_beside_copies_gain_at_most_the_time_without_copies() -> None:
    """Four streams compute for 10 ms, and copies to the GPU take 7 ms of these."""
    rows = [
        {
            "name": "ampere_sgemm_64x32_sliced1x4_nt",
            "start_ns": 0,
            "dur_ns": 10_000 * US,
            "stream": n,
        }
        for n in range(4)
    ]
    copy = {"name": "Memcpy HtoD", "kind": "memcpy", "direction": "HtoD", "stream": 9}
    rows.append({**copy, "start_ns": 0, "dur_ns": 7_000 * US, "bytes": 1 << 26})
    found = tf.analyze(trace_of(activities=rows, devices=[A100])).findings
    one = of_rule(found, "single-precision")
    assert one.gain is not None
    assert (one.gain.low_ns, one.gain.high_ns) == (0, 3_000 * US)


@pytest.mark.parametrize(("graph_us", "is_told"), [(900, True), (400, False)])
def test_graphs_recorded_as_a_whole_that_hold_most_of_the_work_are_to_be_opened(
    graph_us: int, *, is_told: bool
) -> None:
    works = [made("own_kernel", 500), made("graph 7", graph_us, form={"kind": "graph"})]
    recorded = trace(works)
    recorded = replace(recorded, source=replace(recorded.source, format="nsys-sqlite"))
    analysis = tf.analyze(recorded)
    remedies = [one.remedy for one in analysis.findings if one.title.startswith("Graphs hold")]
    assert len(remedies) == is_told
    assert all("--cuda-graph-trace=node" in remedy for remedy in remedies)


def test_fused_kernels_that_the_host_launches_late_may_gain_all_that_is_fused() -> None:
    """Without operators no replay removes launches: in it, late ones hold up faster kernels."""
    works, at = [], 100 * US
    for _ in range(4):
        for name in (GEMM, MUL, ADD, COPY, MUL, ADD, GEMM):
            works.append((name, at - 8 * US, at, 90 * US))
            at += 100 * US
    run = trace_of(**launched(*works), devices=[A100], ops=[])
    one = of_rule(tf.analyze(run).findings, "fusable-kernels")
    assert one.gain is not None
    assert one.gain.low_ns == 0
    assert one.gain.high_ns == pytest.approx(4 * (5 - 0.5) * 90 * US, rel=0.01)


@pytest.mark.parametrize(
    ("last", "is_told"),
    [
        ("PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float> >", True),
        ("PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float> >", False),
        ("FusedAdamMathFunctor<float, 4>, PointwiseOp, std::divides<float> >", False),
    ],
)
def test_without_operators_the_quotient_of_adam_tells_its_optimizer(
    last: str, *, is_told: bool
) -> None:
    """Lists of tensors may be scaled elsewhere, too, as to clip gradients."""
    head = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    kernels = [(GEMM, 90), (f"{head}BinaryOpListAlpha>", 90), (f"{head}{last}", 90)]
    works = [
        (name, 0, (100 + 100 * place) * US, us * US) for place, (name, us) in enumerate(kernels * 4)
    ]
    run = trace_of(**launched(*works), devices=[A100], ops=[])
    found_rules = [one.rule for one in tf.analyze(run).findings]
    assert ("unfused-optimizer" in found_rules) is is_told
