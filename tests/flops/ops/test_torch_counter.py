"""Against torch.utils.flop_counter on random shapes: equal, or different for a stated reason.

Where the counts differ on purpose:

* causal and windowed attention: torch counts all pairs, the table the pairs that are attended;
* the weight gradient of a grouped convolution: torch counts it `groups` times over;
* complex products: torch counts a complex multiply-add as one of two real operations;
* `cudnn_convolution`: torch reads `benchmark` where other convolutions say whether they are
  transposed, so only without it the counts agree; `_slow_conv2d_forward`: the same mistake leaves
  its formula an argument short, and it cannot be called at all;
* `_efficient_attention`: its tensors are [B, S, H, D], and unless they are packed torch's formula
  takes them as [B, H, S, D], so the table is held against the formula on transposed shapes;
* packed sequences: torch has the lengths, a trace has not, so the table gives bounds around them.

Torch has no formula for grouped products, matrix-vector products, linear, matmul and the attention
of the CPU, and calls the scores that a backward computes again part of the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils import flop_counter

from tests.build import table_of
from tests.conftest import examples
from tests.flops.ops.dispatched import Dispatched, dispatched, row_of
from traceflops.flops.ops.count import count_ops
from traceflops.flops.ops.table import RULES
from traceflops.flops.ops.work import Core, Correlation, Work

aten: Any = torch.ops.aten
counter: Any = flop_counter
SIZES = st.integers(1, 9)
SIZES_OR_NONE = st.integers(0, 9)


def on_meta(*shape: int, **options: Any) -> torch.Tensor:
    return torch.empty(shape, device="meta", **options)


def work_of_row(row: dict[str, Any]) -> Work:
    counted = count_ops(table_of("ops", [row]))
    work = counted.works[int(counted.place[0])]
    assert isinstance(work, Work), (row, work)
    return work


def modelled(calls: list[Dispatched]) -> Iterator[tuple[Dispatched, Work]]:
    """Yield the calls that torch has a formula for, and their work by the table."""
    for call in calls:
        if call.flops is not None:
            yield call, work_of_row(call.row)


def check_equal(run: Callable[[], object]) -> None:
    pairs = list(modelled(dispatched(run)))
    assert pairs
    for call, work in pairs:
        assert (work.flops, work.at_least) == (call.flops, call.flops), call.name


@given(SIZES_OR_NONE, SIZES_OR_NONE, SIZES_OR_NONE, SIZES_OR_NONE, st.booleans())
def test_products(batch: int, m: int, n: int, k: int, transposed: bool) -> None:
    a, b = on_meta(m, k), on_meta(n, k).t() if transposed else on_meta(k, n)
    check_equal(lambda: aten.mm(a, b))
    check_equal(lambda: aten.addmm(on_meta(n), a, b, beta=0.5))
    many, others = on_meta(batch, m, k), on_meta(batch, k, n)
    check_equal(lambda: aten.bmm(many, others))
    check_equal(lambda: aten.baddbmm(on_meta(batch, m, n), many, others))


@given(SIZES, SIZES, SIZES)
def test_scaled_products(m: int, n: int, k: int) -> None:
    a = on_meta(16 * m, 16 * k, dtype=torch.float8_e4m3fn)
    b = on_meta(16 * n, 16 * k, dtype=torch.float8_e4m3fn).t()
    scale = on_meta(1)
    check_equal(lambda: aten._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Draw an input, a weight and the options of a convolution in one to three dimensions."""
    spatial = draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=spatial, max_size=spatial))

    groups, per_in, per_out = (draw(st.integers(1, 3)) for _ in range(3))
    transposed = draw(st.booleans())
    stride, dilation = each(1, 3), each(1, 2)
    kernel, padding = each(1, 3), each(0, 2)
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    size = each(5, 8)
    x = on_meta(draw(st.integers(1, 3)), groups * per_in, *size, requires_grad=draw(st.booleans()))
    shape = (groups * per_in, per_out) if transposed else (groups * per_out, per_in)
    w = on_meta(*shape, *kernel, requires_grad=True)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        options["output_padding"] = extra
    return x, w, options


@settings(max_examples=examples(150))
@given(convolutions(), st.booleans())
def test_convolutions_and_their_gradients(
    drawn: tuple[torch.Tensor, torch.Tensor, dict[str, Any]], biased: bool
) -> None:
    x, w, options = drawn
    transposed = "output_padding" in options
    name = f"conv{'_transpose' * transposed}{x.dim() - 2}d"
    channels = w.shape[1] * options["groups"] if transposed else w.shape[0]
    bias = on_meta(channels, requires_grad=True) if biased else None
    calls = dispatched(lambda: getattr(F, name)(x, w, bias, **options).sum().backward())
    works = {call.name: (call, work) for call, work in modelled(calls)}
    forward, forward_work = works["aten::convolution"]
    assert forward_work.flops == forward.flops
    backward, work = works["aten::convolution_backward"]
    parts = {part.name: part.flops for part in work.parts}
    wanted = {"weight_grad"} | ({"input_grad"} if x.requires_grad else set())
    assert set(parts) == wanted
    assert set(parts.values()) == {forward_work.flops}
    # torch leaves out that each group sees only its own channels of the gradient
    as_torch = parts.get("input_grad", 0) + options["groups"] * parts["weight_grad"]
    assert as_torch == backward.flops
    geometry = work.signature
    assert isinstance(geometry, Correlation)
    assert geometry.groups == options["groups"]
    assert geometry.transposed is transposed


def backend_arguments(name: str, w: torch.Tensor, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a backend's convolution takes behind input and weight."""
    stride, padding, dilation = (options[key] for key in ("stride", "padding", "dilation"))
    transposed = "output_padding" in options
    extra = options.get("output_padding", [0] * (w.dim() - 2))
    if name == "cudnn_convolution":
        return padding, stride, dilation, options["groups"], False, False, False
    usual = (None, stride, padding, dilation, transposed, extra, options["groups"])
    return (*usual, False, False, False, False) if name == "_convolution" else usual


@given(
    convolutions(),
    st.sampled_from(["_convolution", "cudnn_convolution", "convolution_overrideable"]),
)
def test_convolutions_of_backends(
    drawn: tuple[torch.Tensor, torch.Tensor, dict[str, Any]], name: str
) -> None:
    x, w, options = drawn
    transposed = "output_padding" in options
    assume(not (transposed and name == "cudnn_convolution"))  # that is an op of its own
    func = getattr(aten, name).default
    arguments = (x, w, *backend_arguments(name, w, options))
    out = getattr(F, f"conv{'_transpose' * transposed}{x.dim() - 2}d")(x, w, None, **options)
    theirs = counter.flop_registry[func.overloadpacket](*arguments, out_val=out)
    assert work_of_row(row_of(func, arguments, {})).flops == theirs


def test_the_slow_convolution_where_torch_has_no_count() -> None:
    x, w = on_meta(2, 4, 7, 7), on_meta(6, 4, 3, 3)
    func = aten._slow_conv2d_forward.default
    arguments = (x, w, [3, 3], None, [1, 1], [0, 0])
    out = F.conv2d(x, w)
    with pytest.raises(TypeError, match="transposed"):
        counter.flop_registry[func.overloadpacket](*arguments, out_val=out)
    theirs = counter.conv_flop_count(x.shape, w.shape, out.shape)
    assert work_of_row(row_of(func, arguments, {})).flops == theirs


@st.composite
def heads(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw query, key and value [B, H, S, D], keys perhaps shared by several heads."""
    batch, shared, kv_heads = (draw(st.integers(1, 3)) for _ in range(3))
    queries, keys = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    size = 8 * draw(st.integers(1, 3))
    q = on_meta(batch, shared * kv_heads, queries, size, dtype=torch.bfloat16)
    k = on_meta(batch, kv_heads, keys, size, dtype=torch.bfloat16)
    return q, k, on_meta(batch, kv_heads, keys, 8 * draw(st.integers(1, 3)), dtype=torch.bfloat16)


FORWARD = [
    (aten._scaled_dot_product_flash_attention.default, lambda c: (0.0, c, False)),
    (aten._scaled_dot_product_efficient_attention.default, lambda c: (None, True, 0.0, c)),
    (aten._scaled_dot_product_cudnn_attention.default, lambda c: (None, True, 0.0, c, False)),
]
BACKWARD = [
    (
        aten._scaled_dot_product_flash_attention_backward.default,
        lambda o, c: (o, None, None, None, 9, 9, 0.0, c, None, None),
    ),
    (
        aten._scaled_dot_product_efficient_attention_backward.default,
        lambda o, c: (None, o, None, None, None, 0.0, [True, True, True, False], c),
    ),
    (
        aten._scaled_dot_product_cudnn_attention_backward.default,
        lambda o, c: (o, None, None, None, None, None, None, 9, 9, 0.0, c),
    ),
]


def seen(queries: int, keys: int, bottom_right: bool) -> int:
    """Count the pairs of a causal mask one by one."""
    shift = keys - queries if bottom_right else 0
    return sum(j <= i + shift for i in range(queries) for j in range(keys))


@given(heads(), st.sampled_from(FORWARD), st.booleans())
def test_attention(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], form: Any, causal: bool
) -> None:
    func, rest = form
    q, k, v = qkv
    work = work_of_row(row_of(func, (*qkv, *rest(causal)), {}))
    theirs = counter.flop_registry[func.overloadpacket](*qkv, *rest(causal))
    assert theirs == counter.sdpa_flop_count(q.shape, k.shape, v.shape)
    pairs = q.shape[2] * k.shape[2]
    mine = seen(q.shape[2], k.shape[2], "flash" in str(func)) if causal else pairs
    assert work.flops * pairs == theirs * mine
    assert work.exact


@given(heads(), st.sampled_from(BACKWARD), st.booleans())
def test_attention_backward(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], form: Any, causal: bool
) -> None:
    func, rest = form
    q, k, v = qkv
    gradient = on_meta(*q.shape[:3], v.shape[3], dtype=torch.bfloat16)
    arguments = (gradient, *qkv, *rest(gradient, causal))
    work = work_of_row(row_of(func, arguments, {}))
    theirs = counter.flop_registry[func.overloadpacket](*arguments)
    assert theirs == counter.sdpa_backward_flop_count(gradient.shape, q.shape, k.shape, v.shape)
    pairs = q.shape[2] * k.shape[2]
    mine = seen(q.shape[2], k.shape[2], "flash" in str(func)) if causal else pairs
    assert work.flops * pairs == theirs * mine
    scores = 2 * q.shape[0] * q.shape[1] * mine * q.shape[3]
    assert {part.name: part.flops for part in work.parts} == {
        "backward": work.flops - scores,
        "algorithmic": scores,
    }


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_packed_sequences_lie_within_the_bounds(
    lengths: list[int], kv_heads: int, causal: bool, backward: bool
) -> None:
    total, longest = sum(lengths), max(lengths)
    q, k = on_meta(total, 2 * kv_heads, 8), on_meta(total, kv_heads, 8)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    packed = (offsets, offsets, longest, longest, 0.0, causal)
    func = aten._flash_attention_forward.default
    arguments: tuple[Any, ...] = (q, k, k, *packed, False)
    if backward:
        func = aten._flash_attention_backward.default
        arguments = (q, q, k, k, q, None, *packed, None, None)
    work = work_of_row(row_of(func, arguments, {}))
    core = work.signature
    assert isinstance(core, Core)
    assert core.documents == len(lengths)
    true = sum(n * (n + 1) // 2 if causal else n * n for n in lengths)
    assert core.pairs_at_least <= true <= core.pairs
    theirs = counter.flop_registry[func.overloadpacket](*arguments)
    per_pair = 2 * core.heads * 16 * 5 // 2 if backward else 2 * core.heads * 16
    assert theirs == sum(n * n for n in lengths) * per_pair
    assert work.flops == core.pairs * per_pair
    if len(set(lengths)) == 1:
        assert work.exact


@given(heads(), st.booleans(), st.booleans())
def test_memory_efficient_attention(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], causal: bool, backward: bool
) -> None:
    q, _, _ = qkv
    heads, size = q.shape[1], qkv[2].shape[3]
    # This op has [B, S, H, D], and as many heads of keys as of queries.
    keys = qkv[1].shape[2]
    q = q.transpose(1, 2)
    k = on_meta(q.shape[0], keys, heads, q.shape[3], dtype=torch.bfloat16)
    v = on_meta(q.shape[0], keys, heads, size, dtype=torch.bfloat16)
    mask = 1 if causal else 0
    func = aten._efficient_attention_forward.default
    arguments: tuple[Any, ...] = (q, k, v, None, None, None, None, None, 0.0, mask)
    if backward:
        gradient = on_meta(*q.shape[:3], size, dtype=torch.bfloat16)
        func = aten._efficient_attention_backward.default
        tail = (None, None, q.shape[1], keys, gradient, 0.0, gradient, gradient, mask, False)
        arguments = (gradient, q, k, v, None, gradient, *tail)
    work = work_of_row(row_of(func, arguments, {}))
    by_heads = [one.transpose(1, 2).shape for one in (q, k, v)]
    theirs = counter.sdpa_flop_count(*by_heads)
    if backward:
        theirs = counter.sdpa_backward_flop_count(gradient.transpose(1, 2).shape, *by_heads)
    pairs = q.shape[1] * keys
    mine = seen(q.shape[1], keys, False) if causal else pairs
    assert work.flops * pairs == theirs * mine
    assert work.exact
    same = [on_meta(2, 3, 3, 8) for _ in range(3)]  # where it does not matter which is which
    registered = counter.flop_registry[aten._efficient_attention_forward]
    dense = (*same, None, None, None, None, None, 0.0, 0)
    row = row_of(aten._efficient_attention_forward.default, dense, {})
    assert work_of_row(row).flops == registered(*dense)


@given(SIZES, SIZES, SIZES)
def test_a_complex_product_is_four_times_what_torch_says(m: int, n: int, k: int) -> None:
    a, b = on_meta(m, k, dtype=torch.complex64), on_meta(k, n, dtype=torch.complex64)
    [(call, work)] = list(modelled(dispatched(lambda: aten.mm(a, b))))
    assert call.flops
    assert work.flops == 4 * call.flops


NOT_AS_OPS = {"flex_attention", "flex_attention_backward"}
"""Torch counts them where they are traced; a profiler sees the kernels that they become."""


def test_the_table_has_every_op_that_torch_has_a_formula_for() -> None:
    names = {str(target).removeprefix("aten.") for target in counter.flop_registry}
    aten_names = {name for name in names if f"aten::{name}" in RULES}
    assert {name.rpartition(".")[2] for name in names - aten_names} <= NOT_AS_OPS


@given(SIZES, SIZES, SIZES, SIZES)
def test_wrappers_count_what_the_ops_below_them_count(b: int, s: int, n: int, k: int) -> None:
    assume(k > 1)
    x, w = torch.empty(b, s, k), torch.empty(n, k)
    wrapper = row_of(aten.linear.default, (x, w, None), {})
    inner = [work.flops for _, work in modelled(dispatched(lambda: F.linear(x, w)))]
    assert [work_of_row(wrapper).flops] == inner
    wrapper = row_of(aten.matmul.default, (x, w.t()), {})
    assert [work_of_row(wrapper).flops] == inner


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_unbatched_convolutions_are_one_sample(spatial: int) -> None:
    x, w = torch.empty(4, *[7] * spatial), torch.empty(6, 2, *[3] * spatial)
    func = getattr(aten, f"conv{spatial}d").default
    wrapper = work_of_row(row_of(func, (x, w), {"groups": 2}))
    inner = [work.flops for _, work in modelled(dispatched(lambda: func(x, w, groups=2)))]
    assert [wrapper.flops] == inner
