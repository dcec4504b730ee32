"""Which kernels of two sides are one work, and the parts of the difference, to the nanosecond."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from traceflops.attribution.charged import ChargedKernel
from traceflops.comparison.difference import apportioned
from traceflops.comparison.matching import family
from traceflops.comparison.result import Comparison, compare
from traceflops.comparison.side import IdlePart, Side, UsedWindow
from traceflops.timeline.records import Components

GEMM: dict[str, Any] = {"top": "compute", "sub": "gemm"}
ADD: dict[str, Any] = {"top": "memory", "sub": "elementwise"}
REDUCE: dict[str, Any] = {
    "top": "communication",
    "sub": "collective",
    "scope": "nccl:all_reduce",
    "group": "dp",
}


def kernel(name: str, ns: int, count: int = 1, **more: Any) -> ChargedKernel:
    """Return what a kernel was charged; unless said otherwise a product of an unknown launch."""
    given: dict[str, Any] = {
        **dict.fromkeys(("op", "shapes", "scope", "group", "wait_ns", "at_ns", "steps_ns")),
        "kind": "kernel",
        "rule": "r",
        "backward": False,
        "others": 0,
    }
    return ChargedKernel(**{**given, **GEMM, **more}, name=name, count=count, charged_ns=ns)


def side(name: str, *work: ChargedKernel, steps: int = 1, idle: tuple[IdlePart, ...] = ()) -> Side:
    """Return a side of so many steps with this work and idle time, all in the first of them."""
    times = dict.fromkeys((f"{one.top}_ns" for one in work), 0)
    for one in work:
        times[f"{one.top}_ns"] += one.charged_ns
    times["idle_ns"] = sum(one.idle_ns for one in idle)
    windows = [UsedWindow(0, 0, 0, Components(**times))]
    windows += [UsedWindow(0, step, 10**6 * step, Components()) for step in range(1, steps)]
    return Side(name, tuple(windows), work, idle)


def parts(found: Comparison) -> dict[tuple[str, str], int]:
    assert sum(found.components.values()) == found.difference_ns
    by_component = dict.fromkeys(found.components, 0)
    for cause in found.causes:
        assert sum(part.ns for part in cause.parts) == cause.ns
        by_component[cause.component] += cause.ns
    assert by_component == found.components
    return {(cause.kind, cause.subject): cause.ns for cause in found.causes}


def ways(found: Comparison) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    def names(work: tuple[ChargedKernel, ...]) -> tuple[str, ...]:
        return tuple(sorted(one.name for one in work))

    return {(one.way, names(one.before), names(one.after)) for one in found.matches}


@given(
    exact=st.lists(st.fractions(-1000, 1000, max_denominator=99), min_size=1, max_size=20),
    slack=st.fractions(-1, 1, max_denominator=7),
)
@settings(max_examples=examples(500))
def test_whole_parts_sum_to_the_total_and_are_next_to_the_exact_ones(
    exact: list[Fraction], slack: Fraction
) -> None:
    total = round(sum(exact) + slack / 2)
    whole = apportioned(exact, total)
    assert sum(whole) == total
    assert all(abs(a - b) <= 2 for a, b in zip(whole, exact, strict=True))


works = st.lists(
    st.builds(
        lambda name, ns, count, top, scope: kernel(name, ns, count, **top, scope=scope),
        st.sampled_from(["k1", "k2", "k3", "k<4>"]),
        st.integers(0, 10**6),
        st.integers(0, 5),
        st.sampled_from([GEMM, ADD]),
        st.sampled_from(["GPT/Block", "GPT/MLP", None]),
    ),
    max_size=8,
    unique_by=lambda one: (one.name, one.top, one.scope),
)
culprits = st.lists(
    st.builds(
        IdlePart,
        st.sampled_from(["data_input", "eager_overhead"]),
        st.sampled_from(["a", "b 1", "b 2"]),
        st.integers(0, 10**5),
    ),
    max_size=3,
)


@given(works, works, culprits, culprits, st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=examples(1000))
def test_the_parts_sum_to_the_difference_whatever_the_sides_are(
    old: list[ChargedKernel],
    new: list[ChargedKernel],
    idle: list[IdlePart],
    other: list[IdlePart],
    steps: int,
    more: int,
) -> None:
    known = kernel("known", 10**6)
    before = side("a", known, *old, steps=steps, idle=tuple(idle))
    after = side("b", known, *new, steps=more, idle=tuple(other))
    found = compare(before, after)
    parts(found)
    mean = [Fraction(one.components.window_ns, n) for one, n in ((before, steps), (after, more))]
    assert abs(found.difference_ns - (mean[1] - mean[0])) < 1
    matched = [id(k) for match in found.matches for k in match.work]
    assert sorted(matched) == sorted(map(id, [known, *old, known, *new]))
    assert compare(after, before).difference_ns == -found.difference_ns


def test_time_per_call_and_number_of_calls_are_told_apart() -> None:
    before = side("a", kernel("k", 1_000, 10), steps=1)
    after = side("b", kernel("k", 2_640, 24), steps=2)
    found = compare(before, after)
    # 10 calls of 100 ns became 12 of 110: two more at 100, and 12 of them 10 longer.
    assert parts(found) == {("calls", "gemm"): 200, ("pace", "gemm"): 120}
    assert "200 ns more in 2 more calls of gemm kernels (k)" in found.sentence


def test_waiting_and_transfers_are_told_apart() -> None:
    before = side("a", kernel("nccl", 900, 3, **REDUCE, wait_ns=300))
    after = side("b", kernel("nccl", 1_900, 3, **REDUCE, wait_ns=1_200))
    after = Side(after.name, after.windows, after.work, (), late={3: 90, 5: 10})
    found = compare(before, after)
    subject = "all_reduce of group dp"
    assert parts(found) == {("wait", subject): 900, ("pace", subject): 100}
    assert "900 ns more waiting for rank 3 in all_reduce of group dp" in found.sentence
    assert "100 ns more in slower transfers of all_reduce of group dp" in found.sentence


def test_idle_time_is_compared_by_culprit_and_the_rest_is_said() -> None:
    work = kernel("k", 100)
    before = side("a", work, idle=(IdlePart("data_input", "next (a.py:7)", 500),))
    after = side("b", work, idle=(IdlePart("data_input", "next (a.py:9)", 50),))
    window = UsedWindow(0, 0, 0, Components(compute_ns=100, idle_ns=80))
    after = Side(after.name, (window,), after.work, after.idle)
    found = compare(before, after)
    assert parts(found) == {("idle", "data_input"): -450, ("idle", "no culprit"): 30}


def test_idle_time_without_culprits_on_one_side_is_not_told_apart() -> None:
    work = kernel("k", 100)
    known = (IdlePart("data_input", "next (a.py:7)", 500),)
    before, after = side("a", work, idle=known), side("b", work)
    window = UsedWindow(0, 0, 0, Components(compute_ns=100, idle_ns=620))
    for mine in ((), (IdlePart("data_input", "next (a.py:7)", 300),)):  # none, less than half
        after = Side(after.name, (window,), after.work, mine)
        found = compare(before, after)
        assert parts(found) == {("untold", "idle"): 120}
        assert found.sentence.endswith(": 120 ns more idle time.")


def in_steps(name: str, idle_ns: list[int], work: ChargedKernel, *idle: IdlePart) -> Side:
    """Return a side of steps with so much idle time each, and the same work."""
    each = work.charged_ns // len(idle_ns)
    windows = (
        UsedWindow(0, step, 10**6 * step, Components(compute_ns=each, idle_ns=ns))
        for step, ns in enumerate(idle_ns)
    )
    return Side(name, tuple(windows), (work,), idle)


def test_where_no_cause_is_sure_but_their_component_is_it_is_the_reason() -> None:
    before, after = [900, 1_100, 1_000, 950, 1_050], [1_700, 2_600, 1_500, 2_400, 2_050]
    each = [
        (IdlePart("launch", "a", total // 2), IdlePart("data_input", "b", total // 2))
        for total in (sum(before), sum(after))
    ]
    steps = {"steps_ns": (100,) * 5}, {"steps_ns": (110,) * 5}
    sides = (
        in_steps("a", before, kernel("k", 500, 5, **steps[0]), *each[0]),
        in_steps("b", after, kernel("k", 550, 5, **steps[1]), *each[1]),
    )
    found = compare(*sides)
    noise = {cause.kind: cause.is_noise for cause in found.causes}
    assert noise == {"idle": True, "pace": False}
    assert found.sentence.endswith(": 1.05 µs more idle time.")
    # A component within the spread hides no sure cause of it.
    wild = in_steps("c", [700, 1_900] * 2 + [900], kernel("k", 550, 5, **steps[1]))
    (reason,) = compare(sides[0], wild).reasons
    assert reason.causes[0].kind == "pace"
    # A sure cause that explains most of the difference needs no other.
    alone = compare(sides[0], in_steps("c", before, kernel("k", 5_500, 5, steps_ns=(1_100,) * 5)))
    assert alone.sentence.endswith(": 1.00 µs more in slower gemm kernels at equal calls (k).")


def test_other_kernels_whose_interval_holds_0_are_within_the_spread() -> None:
    op: dict[str, Any] = {"op": "aten::mm", "shapes": "[[8,8]]"}
    before = in_steps("a", [0] * 5, kernel("old", 500, 5, steps_ns=(100, 20, 180, 60, 140), **op))
    after = in_steps("b", [0] * 5, kernel("new", 550, 5, steps_ns=(110, 30, 190, 70, 150), **op))
    (cause,) = compare(before, after).causes
    assert cause.kind == "replaced" and cause.is_noise


SHAPES = "[[8,16],[16,4]]"
MM: dict[str, Any] = {"op": "aten::mm", "shapes": SHAPES, "scope": "GPT/Linear"}


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [
        ({}, {}, "name"),
        ({**MM}, {**MM, "shapes": "[[16,16],[16,4]]"}, "name"),
        ({"name": "gemm_128x64", **MM}, {"name": "cijk_MT64", **MM}, "operator and shape"),
        (
            {"name": "gemm_128x64", **MM},
            {"name": "cijk_MT64", **MM, "scope": None},
            "operator and shape",
        ),
        (
            {"name": "gemm_128x64", **MM},
            {"name": "cijk", **MM, "shapes": None},
            "operator and module",
        ),
        ({"name": "ampere_gemm_128x64_nn"}, {"name": "ampere_gemm_64x64_tn"}, "name without sizes"),
        (
            {"name": "void a::run<float, 4>(int)"},
            {"name": "void b::run<half, 8>(int, int)"},
            "name without sizes",
        ),
        ({"name": "x", "op": "aten::mm"}, {"name": "y", "op": "aten::mm"}, "operator"),
        (
            {"name": "x", "scope": "GPT/MLP"},
            {"name": "y", "op": "my::op", "scope": "GPT/MLP"},
            "module",
        ),
        ({"name": "x"}, {"name": "y"}, None),
    ],
)
def test_kernels_are_matched_by_what_is_most_certain(
    old: dict[str, Any], new: dict[str, Any], way: str | None
) -> None:
    known = kernel("known", 1_000, op="known")
    old, new = ({"name": "k", "ns": 100, **one} for one in (old, new))
    found = compare(side("a", known, kernel(**old)), side("b", known, kernel(**new)))
    if way is None:
        expected = {("", (old["name"],), ()), ("", (), (new["name"],))}
    else:
        expected = {(way, (old["name"],), (new["name"],))}
    assert ways(found) - {("name", ("known",), ("known",))} == expected


def test_what_is_certain_is_not_taken_by_what_is_less_certain() -> None:
    before = side("a", kernel("x", 100, **MM), kernel("y", 100, op="aten::mm"))
    after = side("b", kernel("y", 300, op="aten::mm"), kernel("z", 100, **MM))
    assert ways(compare(before, after)) == {
        ("name", ("y",), ("y",)),
        ("operator and shape", ("x",), ("z",)),
    }


def test_kernels_that_became_one_are_told_so() -> None:
    known = kernel("known", 1_000)
    six = [kernel(f"elementwise_{name}", 100, scope="GPT/MLP", **ADD) for name in "abcdef"]
    one = kernel("triton_fused", 150, scope="GPT/MLP", **ADD)
    found = compare(side("a", known, *six), side("b", known, one))
    assert parts(found) == {("replaced", "elementwise"): -450}
    assert "450 ns less where 6 elementwise kernels became 1 under GPT/MLP" in found.sentence


def test_calls_that_moved_to_another_kernel_stay_with_their_operator() -> None:
    before = side("a", kernel("wgrad", 2_700, 27, **MM))
    after = side("b", kernel("wgrad", 1_600, 16, **MM), kernel("scudnn", 900, 11, **MM))
    found = compare(before, after)
    assert parts(found) == {("replaced", "gemm"): -200}
    assert ways(found) == {("operator and shape", ("wgrad",), ("scudnn", "wgrad"))}


def test_recordings_of_two_vendors_are_matched_by_operator_and_shape() -> None:
    nvidia = [
        kernel("sm90_xmma_gemm", 500, **MM),
        kernel("void at::native::elementwise", 100, op="aten::add", shapes=SHAPES, **ADD),
    ]
    amd = [
        kernel("Cijk_Ailk_Bljk", 700, **MM),
        kernel("rocm_elementwise", 90, op="aten::add", shapes=SHAPES, **ADD),
    ]
    found = compare(side("h100", *nvidia), side("mi300x", *amd))
    assert {way for way, _, _ in ways(found)} == {"operator and shape"}
    assert parts(found) == {("replaced", "gemm"): 200, ("replaced", "elementwise"): -10}


def test_names_differ_by_tile_template_and_layout_only() -> None:
    assert family("ampere_sgemm_128x64_nn") == family("ampere_sgemm_64x32_tn")
    assert family("void ns::run<float, 4>(int*)") == family("void other::run<half>(int*, long)")
    assert family("ampere_sgemm_128x64_nn") != family("ampere_hgemm_128x64_nn")


def test_an_operator_is_the_same_work_in_another_library() -> None:
    old = [
        kernel("volta_scudnn_winograd", 500, op="aten::cudnn_convolution"),
        kernel("cudnn::bn_fw_tr", 90, op="aten::cudnn_batch_norm", at_ns=None),
        kernel("flash_fwd_kernel", 300, op="aten::_flash_attention_forward"),
    ]
    new = [
        kernel("miopenSp3AsmConv", 300, op="aten::miopen_convolution"),
        kernel("MIOpenBatchNormFwd", 60, op="aten::native_batch_norm", at_ns=None),
        kernel("fmha_cutlassF_bf16", 800, op="aten::_efficient_attention_forward"),
    ]
    found = compare(side("a", *old), side("b", *new))
    assert ways(found) == {
        ("operator of another library", (one.name,), (other.name,))
        for one, other in zip(old, new, strict=True)
    }


def test_calls_in_a_new_place_are_more_calls_and_no_new_kernel() -> None:
    block = kernel("gemm", 400, 4, **MM)
    again = kernel("gemm", 410, 4, op="my::checkpoint", scope="GPT/Block")
    found = compare(side("a", block), side("b", block, again))
    assert parts(found) == {("calls", "gemm"): 410}
    assert found.sentence.endswith(
        ": 410 ns more in 4 more calls of gemm kernels (gemm) under GPT/Block."
    )


def test_kernels_of_one_name_and_several_shapes_show_another_batch() -> None:
    """As CPUs do, and GPUs where layers share a kernel: names alone do not pair their shapes."""

    def batch(size: int) -> tuple[ChargedKernel, ...]:
        shapes = (f"[[{size},64],[64,{width}]]" for width in (16, 4))
        return tuple(kernel("mm", 9, op="aten::mm", shapes=shape) for shape in shapes)

    found = compare(side("before", *batch(32)), side("after", *batch(64)))
    told = [(one.what, one.before, one.after) for one in found.unlike]
    assert ("shape of an input", "32 x 64", "64 x 64") in told
    assert not compare(side("before", *batch(32)), side("after", *reversed(batch(32)))).unlike
