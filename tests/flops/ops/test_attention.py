"""Attention cores: FLOPs by counted pairs, bounds where a trace does not tell, bytes."""

from typing import Any

import pytest

from tests.flops.ops.made import BF16, core, parts, why_unknown, work_of

# Batch 3, 4 heads of 16, 40 tokens: 3 * 40 * 41 / 2 = 2,460 causal pairs per head
Q = [3, 4, 40, 16]
PAIRS = 3 * 40 * 41 // 2
CAUSAL, FULL = 2 * PAIRS * 4 * 32, 2 * (3 * 40 * 40) * 4 * 32
assert (PAIRS, CAUSAL, FULL) == (2_460, 629_760, 1_228_800)


def given(length: int, **values: object) -> list[object]:
    """Return values of so many arguments, those named `_3` and so on at their places."""
    placed = {int(place.removeprefix("_")): value for place, value in values.items()}
    return [placed.get(place) for place in range(length)]


HEADS_FIRST = [
    ("scaled_dot_product_attention", 8, 5),
    ("_scaled_dot_product_flash_attention", 7, 4),
    ("_scaled_dot_product_flash_attention", 10, 7),  # the quantized overload
    ("_scaled_dot_product_efficient_attention", 8, 6),
    ("_scaled_dot_product_cudnn_attention", 9, 6),
    ("_scaled_dot_product_fused_attention_overrideable", 8, 5),
    ("_scaled_dot_product_flash_attention_for_cpu", 7, 4),
]


@pytest.mark.parametrize(("name", "count", "place"), HEADS_FIRST)
@pytest.mark.parametrize(("causal", "flops"), [(True, CAUSAL), (False, FULL)])
def test_forward(name: str, count: int, place: int, causal: bool, flops: int) -> None:
    work = work_of(
        name, [Q, Q, Q, *[[]] * (count - 3)], values=given(count, **{f"_{place}": causal})
    )
    assert parts(work) == {"forward": flops}
    assert work.exact
    assert core(work).causal is causal
    assert work.kind == "attention"


BACKWARD = [
    ("_scaled_dot_product_flash_attention_backward", 15, 11),
    ("_scaled_dot_product_efficient_attention_backward", 13, 11),
    ("_scaled_dot_product_cudnn_attention_backward", 16, 14),
    ("_scaled_dot_product_fused_attention_overrideable_backward", 17, 13),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", 10, 7),
]


@pytest.mark.parametrize(("name", "count", "place"), BACKWARD)
@pytest.mark.parametrize("causal", [True, False])
def test_backward(name: str, count: int, place: int, causal: bool) -> None:
    dims = [Q, Q, Q, Q, *[[]] * (count - 4)]
    work = work_of(name, dims, values=given(count, **{f"_{place}": causal}))
    forward = CAUSAL if causal else FULL
    # four products, and the scores once more: 2 pairs H 16 of 2 pairs H 32
    assert parts(work) == {"backward": 2 * forward, "algorithmic": forward // 2}
    assert work.exact
    assert work.kind == "attention_backward"


def test_the_reference_transformer() -> None:
    """Two layers: 1,259,520 forward, 2,519,040 backward and 629,760 of scores again."""
    values = given(7, _4=True)
    forward = work_of("_scaled_dot_product_flash_attention_for_cpu", [Q] * 3, values=values)
    values = given(10, _7=True)
    backward = work_of(
        "_scaled_dot_product_flash_attention_for_cpu_backward", [Q] * 4, values=values
    )
    assert 2 * forward.flops == 1_259_520
    assert {name: 2 * flops for name, flops in parts(backward).items()} == {
        "backward": 2_519_040,
        "algorithmic": 629_760,
    }


def test_shared_keys_save_bytes_and_no_flops() -> None:
    q, kv = [2, 8, 10, 16], [2, 2, 10, 16]
    name, values = "_scaled_dot_product_flash_attention", given(7, _4=False)
    shared = work_of(name, [q, kv, kv], BF16, values)
    own = work_of(name, [q, q, q], BF16, values)
    assert shared.flops == own.flops == 2 * (2 * 100) * 8 * 32
    statistics = 4 * 2 * 8 * 10
    assert own.min_bytes == 2 * 4 * 2560 + statistics
    assert shared.min_bytes == 2 * (2 * 2560 + 2 * 640) + statistics
    assert (core(shared).heads, core(shared).kv_heads) == (8, 2)


def test_scores_and_values_of_different_sizes() -> None:
    q, k, v = [1, 4, 6, 192], [1, 4, 9, 192], [1, 4, 9, 128]
    name = "_scaled_dot_product_cudnn_attention"
    forward = work_of(name, [q, k, v], values=given(9, _6=False))
    assert forward.flops == 2 * 54 * 4 * (192 + 128)
    dims = [[1, 4, 6, 128], q, k, v]
    backward = work_of(f"{name}_backward", dims, values=given(16, _14=False))
    assert parts(backward) == {
        "backward": 4 * 54 * 4 * (192 + 128),
        "algorithmic": 2 * 54 * 4 * 192,
    }


def test_where_the_lengths_differ_torch_aligns_at_the_top_and_flash_at_the_bottom() -> None:
    q, k = [1, 1, 3, 8], [1, 1, 7, 8]
    top = work_of("_scaled_dot_product_efficient_attention", [q, k, k], values=given(8, _6=True))
    bottom = work_of("_scaled_dot_product_flash_attention", [q, k, k], values=given(7, _4=True))
    assert (core(top).pairs, core(bottom).pairs) == (1 + 2 + 3, 5 + 6 + 7)


def test_bytes_of_a_backward() -> None:
    # q, k, v, o, do read, dq, dk, dv written, and the statistics
    values = given(15, _11=True)
    work = work_of("_scaled_dot_product_flash_attention_backward", [Q] * 4, BF16, values)
    assert work.min_bytes == 2 * 8 * (3 * 4 * 40 * 16) + 4 * 3 * 4 * 40
    assert work.dtype == "bf16"


def test_statistics_are_not_written_where_they_are_not_asked_for() -> None:
    name = "_scaled_dot_product_efficient_attention"
    sizes = [
        work_of(name, [Q, Q, Q], BF16, given(8, _6=True, _4=wanted)).min_bytes
        for wanted in (True, False)
    ]
    assert sizes == [2 * 4 * 7680 + 4 * 480, 2 * 4 * 7680]


def test_without_recorded_values_the_mask_is_open() -> None:
    work = work_of("_scaled_dot_product_flash_attention", [Q, Q, Q])
    assert (work.at_least, work.flops) == (CAUSAL, FULL)
    assert (core(work).causal, work.notes) == (None, ("mask-not-recorded",))


def test_without_recorded_values_a_window_may_leave_one_key_each() -> None:
    dims = [[3, 40, 4, 16]] * 3
    work = work_of("flash_attn::_flash_attn_forward", dims)
    assert (core(work).pairs_at_least, core(work).pairs) == (3 * 40, 3 * 1600)


def test_a_mask_given_as_a_tensor_is_computed_in_full() -> None:
    dims = [Q, Q, Q, [3, 4, 40, 40]]
    work = work_of(
        "_scaled_dot_product_efficient_attention",
        dims,
        BF16,
        given(8, _6=False, _4=True),
        [[1, 1, 1, 1]] * 3 + [[0, 0, 40, 1]],
    )
    assert (work.flops, work.notes) == (FULL, ("mask-tensor",))
    strided = 1 + 2 + 3 + 39 + 15  # operands that overlap, as strides of 1 say
    assert work.min_bytes == 2 * (3 * strided + 7680) + 4 * 480 + 2 * 1600


def test_an_unfused_attention_computes_what_the_mask_hides() -> None:
    values = given(9, _5=True)
    work = work_of("_scaled_dot_product_attention_math", [Q, Q, Q], values=values)
    assert parts(work) == {"forward": CAUSAL, "mask": FULL - CAUSAL}
    assert work.flops == FULL == 2 * 2 * (3 * 4) * 40 * 40 * 16  # two bmm


# [B, S, H, D], with windows of keys to the left and right of the query
DENSE = [
    ("_flash_attention_forward", 17, 8, (11, 12)),
    ("flash_attn::_flash_attn_forward", 11, 5, (6, 7)),
    ("flash_attn_3::fwd", 34, 24, (25, 26)),
    ("aiter::mha_fwd", 13, 5, (6, 7)),
    ("aiter::fmha_v3_fwd", 13, 5, (6, 7)),
    ("FlashAttnFunc", 12, 5, None),
]


@pytest.mark.parametrize(("name", "count", "place", "window"), DENSE)
def test_tokens_first(name: str, count: int, place: int, window: Any) -> None:
    dims = [[3, 40, 4, 16], [3, 40, 2, 16], [3, 40, 2, 16]]
    values = given(count, **{f"_{place}": True})
    assert work_of(name, dims, values=values).flops == CAUSAL
    if window is None:
        return
    values[window[0]], values[window[1]] = 9, 0
    # 10 keys each, but 1 + 2 + ... + 9 of the first nine queries
    pairs = 3 * (40 * 10 - 45)
    assert core(work_of(name, dims, values=values)).pairs == pairs
    values[window[0]], values[window[1]] = -1, -1
    assert core(work_of(name, dims, values=values)).pairs == PAIRS
    values[place] = False
    values[window[0]], values[window[1]] = 1, 1  # a band of three, cut at both ends
    assert core(work_of(name, dims, values=values)).pairs == 3 * (3 * 40 - 2)


DENSE_BACKWARD = [
    ("_flash_attention_backward", 17, 11),
    ("flash_attn::_flash_attn_backward", 18, 11),
    ("flash_attn_3::bwd", 21, 16),
    ("aiter::mha_bwd", 18, 8),
    ("aiter::fmha_v3_bwd", 20, 8),
    ("aiter::_flash_attn_backward", 17, 11),
    ("aiter::_flash_attn_backward", 19, 12),  # with the gradient of a bias
]


@pytest.mark.parametrize(("name", "count", "place"), DENSE_BACKWARD)
def test_tokens_first_backward(name: str, count: int, place: int) -> None:
    dims = [[3, 40, 4, 16]] * 4
    values = given(count, **{f"_{place}": True})
    values[place + 1] = values[place + 2] = -1
    assert parts(work_of(name, dims, values=values)) == {
        "backward": 2 * CAUSAL,
        "algorithmic": CAUSAL // 2,
    }


@pytest.mark.parametrize(
    ("kind", "window", "pairs"),
    [
        (0, None, 21),
        (1, None, 1 + 2 + 3),
        (2, None, 5 + 6 + 7),
        (2, 4, 12),
        (1, 2, 1 + 2 + 2),
        (2, 0, 18),
        (7, None, None),
    ],
)
def test_masks_by_number(kind: int, window: int | None, pairs: int | None) -> None:
    dims = [[1, 3, 1, 8], [1, 7, 1, 8], [1, 7, 1, 8]]
    name = "_efficient_attention_forward"
    work = work_of(name, dims, values=given(14, _9=kind, _13=window))
    dims = [[1, 3, 1, 8], *dims]
    backward = work_of(
        "_efficient_attention_backward", dims, values=given(20, _14=kind, _18=window)
    )
    if pairs is None:
        assert work.notes == backward.notes == ("mask-not-recorded",)
        return
    assert core(work).pairs == core(backward).pairs == pairs


# 5 documents of 100 tokens in all, the longest of 40: at most 40, 40, 20; at least 20 each
MOST = 2 * (40 * 41 // 2) + 20 * 21 // 2
LEAST = 5 * (20 * 21 // 2)
PACKED = [
    ("_flash_attention_forward", (3, 4), (5, 6), 8),
    ("flash_attn::_flash_attn_varlen_forward", (3, 4), (5, 6), 9),
    ("flash_attn_3::fwd", (7, 8), (12, 13), 24),
    ("aiter::mha_varlen_fwd", (3, 4), (5, 6), 12),
    ("aiter::mha_varlen_fwd", (3, 4), (5, 6), 11),
    ("aiter::mha_varlen_fwd", (3, 4), (5, 6), 10),
    ("aiter::fmha_v3_varlen_fwd", (3, 4), (5, 6), 12),
    ("_flash_attention_backward", (6, 7), (8, 9), 11),
    ("flash_attn::_flash_attn_varlen_backward", (9, 10), (11, 12), 15),
    ("flash_attn_3::bwd", (9, 10), (13, 14), 16),
    ("aiter::mha_varlen_bwd", (6, 7), (8, 9), 13),
    ("aiter::fmha_v3_varlen_bwd", (6, 7), (8, 9), 13),
]


def packed(
    offsets: tuple[int, int], longest: tuple[int, int], causal: int, backward: bool, **sizes: Any
) -> tuple[list[Any], list[object]]:
    """Return dims and values of packed sequences: 5 of 100 tokens, the longest of 40."""
    sizes = {"q": 100, "k": 100, "longest_q": 40, "longest_k": 40, "documents": 5, **sizes}
    dims: list[Any] = [[]] * 30
    first = int(backward)
    dims[0] = dims[first] = [sizes["q"], 4, 16]
    dims[first + 1] = dims[first + 2] = [sizes["k"], 2, 16]
    dims[offsets[0]] = dims[offsets[1]] = [sizes["documents"] + 1]
    values: list[object] = [None] * 30
    values[longest[0]], values[longest[1]] = sizes["longest_q"], sizes["longest_k"]
    values[causal], values[causal + 1], values[causal + 2] = True, -1, -1
    return dims, values


@pytest.mark.parametrize(("name", "offsets", "longest", "causal"), PACKED)
def test_packed_sequences_have_bounds(name: str, offsets: Any, longest: Any, causal: int) -> None:
    backward = "backward" in name or "bwd" in name
    dims, values = packed(offsets, longest, causal, backward)
    work = work_of(name, dims, values=values)
    assert (core(work).pairs_at_least, core(work).pairs) == (LEAST, MOST)
    assert core(work).documents == 5
    assert work.notes == ("variable-lengths",)
    per_pair = 2 * 4 * 32
    factor = 5 if backward else 2  # backward: 2 + 2 + 1/2 times 2 pairs H d ...
    assert (work.flops * 2, work.at_least * 2) == (
        MOST * per_pair * factor,
        LEAST * per_pair * factor,
    )


def test_the_packed_bounds_hold_for_the_efficient_op() -> None:
    dims: list[Any] = [[1, 100, 4, 16], [1, 100, 4, 16], [1, 100, 4, 16], [], [6], [6]]
    values = given(14, _6=40, _7=40, _9=1)
    work = work_of("_efficient_attention_forward", dims, values=values)
    assert (core(work).pairs_at_least, core(work).pairs) == (LEAST, MOST)


@pytest.mark.parametrize(
    ("sizes", "bounds"),
    [
        ({"documents": 1, "longest_q": 100, "longest_k": 100}, (5050, 5050)),
        ({"longest_q": 20, "longest_k": 20}, (5 * 210, 5 * 210)),  # all must be equally long
        ({"longest_q": None, "longest_k": None}, (LEAST, 5050)),
        ({"longest_q": 900, "longest_k": 900}, (LEAST, 5050)),
        # one new token for each of 5 sequences sees all cached ones: exact
        ({"q": 5, "k": 700, "longest_q": 1, "longest_k": 300}, (700, 700)),
        # other lengths of keys: at most all queries see the longest
        ({"q": 10, "k": 700, "longest_q": 8, "longest_k": 300}, (0, 3000)),
        ({"q": 10, "k": 70, "longest_q": 2, "longest_k": 300}, (0, 140)),
        ({"documents": 0, "q": 0, "k": 0}, (0, 0)),
    ],
)
def test_bounds(sizes: dict[str, Any], bounds: tuple[int, int]) -> None:
    dims, values = packed((3, 4), (5, 6), 9, False, **sizes)
    work = work_of("flash_attn::_flash_attn_varlen_forward", dims, values=values)
    assert (core(work).pairs_at_least, core(work).pairs) == bounds


def test_a_window_in_packed_sequences() -> None:
    dims, values = packed((3, 4), (5, 6), 9, False)
    values[10], values[11] = 9, 0
    work = work_of("flash_attn::_flash_attn_varlen_forward", dims, values=values)
    assert core(work).pairs == 2 * (400 - 45) + (200 - 45)
    assert core(work).pairs_at_least == 5 * (200 - 45)


def test_keys_used_in_part_have_no_lower_bound() -> None:
    dims, values = packed((3, 4), (5, 6), 9, False)
    dims[17] = [5]
    work = work_of("flash_attn::_flash_attn_varlen_forward", dims, values=values)
    assert (core(work).pairs_at_least, core(work).pairs) == (0, MOST)


def test_cached_keys_are_not_in_the_trace() -> None:
    for name in ("vllm::unified_attention_with_output", "aiter::mha_batch_prefill"):
        assert why_unknown(name, [[888, 8, 64]] * 4) == "not-in-trace"
    dims, values = packed((3, 4), (5, 6), 9, False)
    dims[1] = dims[2] = [50, 16, 2, 16]  # pages
    name = "flash_attn::_flash_attn_varlen_forward"
    assert why_unknown(name, dims, values=values) == "not-in-trace"
    dims, values = packed((3, 4), (5, 6), 9, False)
    dims[15] = [5, 10]  # a table of pages
    assert why_unknown(name, dims, values=values) == "not-in-trace"
    dims = [[2, 1, 4, 16], [2, 900, 4, 16], [2, 900, 4, 16], *[[]] * 31]
    dims[11] = [2]  # how much of the cache is used
    assert why_unknown("flash_attn_3::fwd", dims, values=given(34, _24=True)) == "not-in-trace"


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ([Q, Q], "no-shapes"),
        ([Q, Q, [3, 4, 41, 16]], "odd-shapes"),
        ([Q, [3, 4, 40, 8], Q], "odd-shapes"),
        ([Q, [2, 4, 40, 16], [2, 4, 40, 16]], "odd-shapes"),
        ([Q, [3, 3, 40, 16], [3, 3, 40, 16]], "odd-shapes"),
        ([Q, [3, 0, 40, 16], [3, 0, 40, 16]], "odd-shapes"),
        ([[16], [16], [16]], "odd-shapes"),
        ([[2**40, 4, 2**40, 16]] * 3, "too-large"),
    ],
)
def test_shapes_that_do_not_fit(dims: Any, reason: str) -> None:
    name, values = "_scaled_dot_product_flash_attention", given(7, _4=True)
    assert why_unknown(name, dims, values=values) == reason
    if reason == "odd-shapes" and len(dims[0]) == 4:
        tokens = [[b, s, h, d] for b, h, s, d in dims]
        name, values = "flash_attn::_flash_attn_forward", given(11, _5=True)
        assert why_unknown(name, tokens, values=values) == reason


def test_packed_shapes_that_do_not_fit() -> None:
    name = "flash_attn::_flash_attn_varlen_forward"
    for change in ({0: [100, 16]}, {0: [2, 50, 4, 16]}, {3: [6, 1]}, {1: [99, 2, 16]}):
        dims, values = packed((3, 4), (5, 6), 9, False)
        for place, shape in change.items():
            dims[place] = shape
        assert why_unknown(name, dims, values=values) == "odd-shapes"


def test_operands_without_heads_or_batch() -> None:
    name, values = "scaled_dot_product_attention", given(8, _5=True)
    assert work_of(name, [[40, 16]] * 3, values=values).flops == CAUSAL // 12
    assert work_of(name, [[4, 40, 16]] * 3, values=values).flops == CAUSAL // 3
    assert work_of(name, [[3, 2, 4, 40, 16]] * 3, values=values).flops == 2 * CAUSAL
    assert work_of(name, [[3, 0, 40, 16]] * 3, values=values).flops == 0
