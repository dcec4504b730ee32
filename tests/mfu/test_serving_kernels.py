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
from traceflops.parsers import read
from traceflops.table import Trace

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
