"""Kernels of serving engines in replayed graphs: cached attention and products of experts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.build import trace_of
from tests.conftest import shared_file
from tests.mfu.counting import MI300X
from tests.mfu.test_pair import measured, mm, ways
from traceflops.analysis.recipe import analyze
from traceflops.mfu.measurement import Measurement
from traceflops.parsers.reading import read
from traceflops.table.trace import Trace

ATTENTION = "paged_attention_kernel"
HEADS, KV_HEADS, SIZE = 8, 2, 64
PER_PAIR = 4 * HEADS * SIZE  # scores and output, a multiply and an add each
Q, CACHE = [4, HEADS, SIZE], [100, 1, KV_HEADS, SIZE]
RAGGED = {
    "name": "engine::attention_paged_attention_ragged_7",
    "input_dims": json.dumps([Q, [999], Q, CACHE, CACHE, [5]]),
    "input_types": json.dumps(["c10::BFloat16", "unsigned char", *["c10::BFloat16"] * 3, "int"]),
}
UNIFIED = {
    "name": "vllm::unified_attention_with_output",
    "input_dims": json.dumps([Q, [4, KV_HEADS, SIZE], [4, KV_HEADS, SIZE], Q]),
    "input_types": json.dumps(["c10::BFloat16"] * 4),
}


def decode(keys: int, sequences: int = 4, queries: int = 4) -> str:
    return f"execute_4_context_0(sq0sk0)_generation_{sequences}(sq{queries}sk{keys})"


def capture(
    op: dict[str, Any], *kernels: tuple[str, int], inside: tuple[dict[str, Any], ...] = ()
) -> Trace:
    """Return a capture of a product and of an op that launches some kernels: name and grid."""
    ops = [mm(8, 8, 8, 0), {**op, "start_ns": 1_000, "dur_ns": 1_000}]
    ops += [{**one, "start_ns": 1_010, "dur_ns": 10} for one in inside]
    calls: list[dict[str, Any]] = [{"start_ns": 10, "correlation": 1, "kernel": "Cijk_product"}]
    for nth, (name, grid) in enumerate(kernels, 2):
        size = {"grid": [grid, 1, 1], "block": [256, 1, 1]}
        calls.append({"start_ns": 1_000 + 100 * nth, "correlation": nth, "kernel": name} | size)
    return trace_of(ops=ops, calls=calls, devices=[MI300X])


def replay(*passes: str, kernels: tuple[tuple[str, int], ...]) -> Trace:
    """Return a replay of the captured graph in each of these passes."""
    marks, calls, activities = [], [], []
    for nth, name in enumerate(passes):
        at = nth * 100_000
        marks.append({"name": name, "start_ns": at, "dur_ns": 90_000})
        calls.append({"name": "hipGraphLaunch", "start_ns": at + 10, "correlation": nth + 1})
        for place, (kernel, grid) in enumerate((("Cijk_product", 0), *kernels)):
            size = {"grid": [grid, 1, 1], "block": [256, 1, 1]} if grid else {}
            start = at + 1_000 + 10_000 * place
            activities.append(
                {"name": kernel, "start_ns": start, "dur_ns": 9_000, "correlation": nth + 1} | size
            )
    return trace_of(marks=marks, calls=calls, activities=activities, devices=[MI300X])


def attention(found: Measurement) -> tuple[int | None, int | None, int | None]:
    """Return the most and the least FLOPs of the attention kernel, and its bytes."""
    (row,) = [row for row in found.kernels if row.name == ATTENTION]
    return row.measured.flops, row.measured.least_flops, row.measured.min_bytes


KERNELS = ((ATTENTION, 4), ("paged_attention_reduce_kernel", 4))


def test_the_annotation_of_each_pass_gives_the_keys_of_its_attention() -> None:
    """Queries and result once; each key and value of two heads once."""
    found = measured(
        replay(decode(1_000), decode(1_004), kernels=KERNELS), capture(RAGGED, *KERNELS)
    )
    flops = PER_PAIR * 2_004
    moved = 2 * (2 * 2 * 4 * HEADS * SIZE + 2_004 * 2 * KV_HEADS * SIZE)
    assert attention(found) == (flops, flops, moved)
    assert ways(found) == {"replay": 6}
    assert found.executed.executed_flops == flops + 2 * 2 * 8**3


@pytest.mark.parametrize(
    "name",
    [
        "step",
        decode(1_000, queries=8),
        "execute_4_context_4(sq64sk64)_generation_0(sq0sk0)",
    ],
)
def test_without_one_query_per_sequence_in_the_annotation_attention_is_unknown(name: str) -> None:
    found = measured(replay(name, kernels=KERNELS), capture(RAGGED, *KERNELS))
    assert attention(found) == (None, None, None)
    assert ways(found) == {"replay": 2, "uncounted": 1}


def test_more_flops_than_an_int64_holds_are_unknown() -> None:
    wide = {**RAGGED, "input_dims": json.dumps([Q, [9], *[[4, 1024, 512]] * 3])}
    trace = replay(decode(10**15 - 1), kernels=KERNELS)
    assert attention(measured(trace, capture(wide, *KERNELS))) == (None, None, None)


def test_a_window_that_no_argument_shows_leaves_a_range() -> None:
    found = measured(replay(decode(1_000), kernels=KERNELS), capture(UNIFIED, *KERNELS))
    assert attention(found) == (PER_PAIR * 1_000, 0, None)
    assert "window-unknown" in {note.code for note in found.notes}


TOKENS, EXPERTS, TOP, HIDDEN = 32, 32, 4, 384
MOE = {
    "name": "vllm::moe_forward",
    "input_dims": json.dumps([[TOKENS, HIDDEN], [TOKENS, EXPERTS], [], []]),
    "input_types": json.dumps(["c10::BFloat16", "c10::BFloat16", "", ""]),
}
TOPK = {
    "name": "TopK",
    "input_dims": json.dumps([[TOKENS, EXPERTS], [], []]),
    "concrete_inputs": json.dumps(["", str(TOP), "True"]),
}
# 128 rows in tiles of 16, of 32 experts: at worst 31 with one row, and 97 rows of one more.
ROW_TILES = 31 + 7
UP = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu"
DOWN = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"


def experts(up: int, down: int, *inside: dict[str, Any], op: dict[str, Any] = MOE) -> Measurement:
    kernels = ((UP, up), (DOWN, down))
    return measured(replay(decode(9), kernels=kernels), capture(op, *kernels, inside=inside))


def test_grids_of_expert_products_give_their_width_to_within_a_tile() -> None:
    """Six tiles of 128 columns: 641 to 768, of which the second product has half."""
    found = experts(ROW_TILES * 6, ROW_TILES * 3, TOPK)
    rows = {row.name: row.measured for row in found.kernels}
    gates = 2 * TOKENS * TOP * HIDDEN
    assert (rows[UP].least_flops, rows[UP].flops) == (gates * 641, gates * 768)
    assert (rows[DOWN].least_flops, rows[DOWN].flops) == (gates * 321, gates * 384)
    assert rows[UP].min_bytes is rows[DOWN].min_bytes is None
    assert "experts-by-grid" in {note.code for note in found.notes}


@pytest.mark.parametrize(
    ("up", "down", "inside"),
    [
        pytest.param(ROW_TILES * 6, ROW_TILES * 4, (TOPK,), id="wider than the hidden size"),
        pytest.param(ROW_TILES * 6 + 1, ROW_TILES * 3, (TOPK,), id="no whole tiles"),
        pytest.param(ROW_TILES * 6, ROW_TILES * 3, (), id="routing not recorded"),
        pytest.param(304, 304, (TOPK,), id="a grid of as many as there are units"),
    ],
)
def test_expert_products_whose_grids_do_not_fit_are_unknown(
    up: int, down: int, inside: tuple[dict[str, Any], ...]
) -> None:
    found = experts(up, down, *inside)
    assert ways(found) == {"replay": 1, "uncounted": 2}
    assert found.executed.executed_flops == 2 * 8**3


GATED = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_rM_TN_transOut_swiGlu_dynBatch_sm100f"
PLAIN = "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_rM_TN_transOut_dynBatch_sm100f"


def eager(*layers: tuple[dict[str, Any], tuple[tuple[str, list[int]], ...]], mark: str) -> Trace:
    """Return one pass in which ops launch kernels, each of a name and grid."""
    ops, calls, activities = [], [], []
    for nth, (op, kernels) in enumerate(layers):
        at = 10_000 * nth
        ops.append({**op, "start_ns": at, "dur_ns": 9_000})
        for place, (name, grid) in enumerate(kernels):
            launch = {"start_ns": at + 100 * place, "correlation": 10 * nth + place + 1}
            calls.append({"name": "launch", "dur_ns": 50, **launch})
            size = {"grid": grid, "block": [256, 1, 1]}
            start = {"start_ns": at + 1_000 * place + 500, "dur_ns": 900}
            activities.append({"name": name, **launch, **start, **size})
    passes = [{"name": mark, "start_ns": 0, "dur_ns": 10_000 * len(layers)}]
    return trace_of(ops=ops, calls=calls, activities=activities, marks=passes, devices=[MI300X])


def layer(tokens: int, tiles: int, *, up: int = 8, down: int = 24) -> Any:
    """Return the experts of a layer: 128 of them, a hidden size of 3,072, and two products."""
    dims = json.dumps([[tokens, 3072], [tokens, 128], []])
    kernels = ((GATED, [up, tiles, 1]), (PLAIN, [down, tiles, 1]))
    return {**MOE, "input_dims": dims}, kernels


def of_experts(found: Measurement) -> dict[str, tuple[int | None, int | None]]:
    rows = (row for row in found.kernels if row.name in (GATED, PLAIN))
    return {row.name: (row.measured.flops, row.measured.least_flops) for row in rows}


def test_grids_of_batched_products_give_experts_per_token_and_width() -> None:
    """888 tokens by 4 of 128 experts: at worst 128 with one row, and 214 tiles of 16 rows more.

    Eight tiles of 128 columns are two of an expert's width, which is a multiple of 128: 512.
    """
    found = measured(eager(layer(888, 128 + 214), mark="step"))
    products = 2 * 888 * 4 * 3072 * 512
    assert of_experts(found) == {GATED: (2 * products,) * 2, PLAIN: (products,) * 2}
    assert found.executed.flops_by_type == {"fp8": 3 * products}
    assert found.sources == ("trace",)
    assert found.executed.coverage == 1
    assert [note.code for note in found.notes if note.code.startswith("experts")] == [
        "experts-exact"
    ]


def test_launches_beside_the_products_move_rows_and_tokens() -> None:
    """Results of 3,552 rows are read and 888 written; 888 tokens become FP8, a scale for 32."""
    finalize = (
        "void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<half, 4> >()"
    )
    quantize = (
        "void tensorrt_llm::kernels::quantize_with_block_size<"
        "(tensorrt_llm::BlockScaleQuantizationType)2, __nv_bfloat16, 32, true>(int)"
    )
    op, kernels = layer(888, 342)
    beside = ((quantize, [740, 1, 1]), *kernels, (finalize, [888, 1, 1]))
    found = {row.name: row.measured for row in measured(eager((op, beside), mark="step")).kernels}
    assert found[finalize].min_bytes == 2 * 3072 * (888 * 4 + 888)
    assert found[quantize].min_bytes == 888 * (3072 * 3 + 3072 // 32)
    assert found[finalize].flops == found[quantize].flops == 0


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([layer(4, 16)], id="few rows: all experts, or some of them, may be here"),
        pytest.param([layer(888, 128 + 215)], id="no whole number of experts per token"),
        pytest.param([layer(888, 16 + 221)], id="16 of the 128 experts are here"),
        pytest.param([layer(888, 342, down=25)], id="another hidden size"),
        pytest.param([layer(888, 342), layer(888, 128 + 269)], id="layers that disagree"),
    ],
)
def test_batched_products_that_leave_several_routings_are_unknown(layers: list[Any]) -> None:
    found = measured(eager(*layers, mark="step"))
    assert found.executed.executed_flops == 0
    assert {one.kernel for one in found.executed.outside.unattributed} == {GATED, PLAIN}


def test_layers_alike_tell_the_routing_of_one_with_few_rows() -> None:
    found = measured(eager(layer(888, 342), layer(4, 16), mark="step"))
    assert found.executed.executed_flops == 3 * 2 * (888 + 4) * 4 * 3072 * 512


def test_sums_in_the_annotation_give_the_pairs_of_a_mixed_pass() -> None:
    """Three tokens after 2 cached ones, and one after 6: 3 + 4 + 5 and 7 keys."""
    op = {**RAGGED, "input_dims": json.dumps([Q, [9], Q, CACHE, CACHE, [5]])}
    found = measured(eager((op, ((ATTENTION, [4, 1, 1]),)), mark=MIXED))
    moved = 2 * (2 * 4 * HEADS * SIZE + 12 * 2 * KV_HEADS * SIZE)
    assert attention(found) == (PER_PAIR * 19, PER_PAIR * 19, moved)
    unknown = measured(eager((op, ((ATTENTION, [4, 1, 1]),)), mark="execute_context_1(3)"))
    assert attention(unknown) == (None, None, None)


FLASH = {"name": "_vllm_fa3_C::fwd", "input_types": json.dumps(["c10::BFloat16"] * 3)}
MIXED = "execute_4_context_1(sq3sk5sqsq9sqsk15)_generation_1(sq1sk7sqsq1sqsk7)"


def flash(causal: bool, window: int, cache: list[int] = CACHE) -> dict[str, Any]:
    values = ["", "", *[""] * 22, str(causal), str(window), "0"]
    dims = json.dumps([Q, cache, cache])
    return {**FLASH, "input_dims": dims, "concrete_inputs": json.dumps(values)}


@pytest.mark.parametrize(
    ("op", "least"),
    [
        pytest.param(flash(True, -1), 19, id="no window"),
        pytest.param(flash(True, 127), 0, id="a window may hide keys"),
        pytest.param(flash(False, -1), None, id="a part of all keys"),
        pytest.param(flash(True, -1, Q), None, id="no cache, as in a vision tower"),
    ],
)
def test_flash_attention_tells_whether_it_has_a_window(op: dict[str, Any], least: int) -> None:
    found = measured(eager((op, ((ATTENTION, [4, 1, 1]),)), mark=MIXED))
    known = least is not None
    flops = (PER_PAIR * 19, PER_PAIR * least) if known else (None, None)
    assert attention(found)[:2] == flops


def test_paged_attention_has_the_heads_of_its_arguments() -> None:
    """A cache of vLLM: blocks x heads x size / 8 x slots x 8, and blocks x heads x size x slots."""
    caches = [[99, KV_HEADS, SIZE // 8, 16, 8], [99, KV_HEADS, SIZE, 16]]
    op = {
        "name": "_C::paged_attention_v1",
        "input_dims": json.dumps([Q, Q, *caches, []]),
        "input_types": json.dumps([*["c10::BFloat16"] * 4, "Scalar"]),
        "concrete_inputs": json.dumps(["", "", "", "", str(KV_HEADS)]),
    }
    found = measured(eager((op, ((ATTENTION, [4, 1, 1]),)), mark=decode(1_000)))
    moved = 2 * (2 * 4 * HEADS * SIZE + 1_000 * 2 * KV_HEADS * SIZE)
    assert attention(found) == (PER_PAIR * 1_000, PER_PAIR * 1_000, moved)


def test_a_public_eager_prefill_has_the_flops_of_its_experts() -> None:
    """gpt-oss-120b on eight devices: 36 layers, 4 of 128 experts of 2,880, 888 tokens.

    vLLM pads the hidden size to 3,072, and the 360 columns of a device to 512.
    """
    trace = read([shared_file("traces/pytorch/b200_vllm_gptoss_prefill.json.gz")])
    measurement = analyze(trace).measured
    assert measurement.roofs.memory.known_ns > 0.8 * measurement.roofs.memory.time_ns
    found = measurement.executed
    dense = 888 * 36 * (2880 * 640 + 512 * 2880 + 2880 * 128) + 2880 * 201_088 // 8
    padded = 888 * 36 * 4 * 3 * 3072 * 512
    assert found.flops_by_type == {"bf16": 2 * dense, "fp8": 2 * padded}
    assert padded > 888 * 36 * 4 * 3 * 2880 * 360
    assert found.coverage is not None
    assert found.coverage > 0.9
    assert {one.why for one in found.outside.unattributed} == {"not-in-trace"}


PER_LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288
QWEN3_8B = 36 * PER_LAYER + 4096 * 151_936
"""Weights of its products, as its card has them."""


def test_a_public_capture_tells_the_flops_of_its_graph() -> None:
    """One decode of 32 sequences with 32,785 keys, in 36 layers of 32 heads of 128."""
    found = public("sglang_qwen3")
    assert found.executed.executed_flops == 2 * 32 * QWEN3_8B + 36 * 4 * 32 * 128 * 32_785
    assert found.executed.executed_at_least == found.executed.executed_flops
    assert found.executed.coverage == 1
    assert ways(found) == {"replay": 217}
    assert found.inference is not None
    (decode,) = found.inference.phases
    least = 2 * (QWEN3_8B + 36 * 32_785 * 2 * 8 * 128)
    assert least < decode.moved.total < 1.05 * least
    assert decode.mbu is not None
    assert decode.coverage is not None
    assert decode.coverage > 0.95
    assert decode.flops == found.executed.executed_flops


def test_a_public_capture_of_fused_experts_tells_the_flops_of_its_graph() -> None:
    """gpt-oss-20b: 24 layers, 32 experts of 2,880, which vLLM pads to 3,072 and 2,944 columns."""
    found = public("vllm_gptoss")
    products = 32 * (24 * (2880 * 5120 + 4096 * 2880 + 2880 * 32) + 2880 * 201_088)
    of_experts = 24 * 32 * 4 * 3072 * 2944 * 3
    cached = 24 * 4 * 64 * 64 * 55_086
    assert found.executed.executed_flops == 2 * (products + of_experts) + cached
    assert found.executed.executed_at_least >= 2 * (products + 24 * 32 * 4 * 3072 * 2880 * 3)
    assert found.executed.coverage == 1
    assert ways(found) == {"replay": 156}


@pytest.mark.parametrize("name", ["sglang_qwen3", "vllm_gptoss"])
def test_redaction_hides_nothing_that_tells_flops(name: str) -> None:
    found, hidden = public(name), public(name, redact=True)
    assert hidden.executed.executed_flops == found.executed.executed_flops
    assert hidden.executed.coverage == 1


def public(name: str, *, redact: bool = False) -> Measurement:
    graph, captured = (
        read([shared_file(f"traces/pytorch/mi300x_{name}_decode_{one}.json.gz")])
        for one in ("graph", "capture")
    )
    return analyze(graph, pair=captured, redact=redact).measured


def test_both_kernels_of_fused_experts_are_their_operator_s() -> None:
    """One operator runs another with the same arguments, which launches both products."""
    dims = [[5, 8], [3, 12, 8], [3, 8, 6], [5, 2], [5, 2]]
    types = ["c10::BFloat16"] * 3 + ["float", "int"]
    shapes = {"input_dims": json.dumps(dims), "input_types": json.dumps(types)}
    trace = trace_of(
        ops=[
            {"name": "vllm::rocm_aiter_fused_moe", "start_ns": 0, "dur_ns": 900, **shapes},
            {"name": "aiter::fused_moe_", "start_ns": 10, "dur_ns": 800, **shapes},
        ],
        calls=[{"start_ns": 100 * at, "dur_ns": 9, "correlation": at} for at in (1, 2)],
        activities=[
            {
                "name": "ck::kernel_moe_gemm",
                "start_ns": 1_000 * at,
                "dur_ns": 900,
                "correlation": at,
            }
            for at in (1, 2)
        ],
        devices=[MI300X],
    )
    found = measured(trace).executed
    assert found.executed_flops == 2 * 10 * (8 * 12 + 6 * 8)
    assert found.coverage == 1
