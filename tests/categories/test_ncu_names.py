"""Names as Nsight Compute writes them: without namespaces and casts."""

from __future__ import annotations

import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.categories.kernel_names import from_own_word, same_kernels


@pytest.mark.parametrize(
    ("full", "bare"),
    [
        ("void ns::gemm<(int)4, (bool)1>(ns::T *)", "void gemm<4, 1>(T *)"),
        ("void ns::gemm<(int)4>(T1::Params)", "void gemm<4>(T1::Params)"),
        ("void a::<unnamed>::f<(unsigned long)2>(int)", "void f<2>(int)"),
        ("f(a::B &)::[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)]()",
         "f(B &)::[lambda() (instance 3)]::operator ()() lambda(float) (instance 1)]()"),
    ],
)  # fmt: skip
def test_a_bare_name_is_that_of_the_only_full_one(full: str, bare: str) -> None:
    first, second = same_kernels([full, "void ns::other<(int)4>(int)"], [bare])
    assert second.tolist() == first.tolist()[:1]


def test_of_two_full_names_none_is_certain() -> None:
    first, second = same_kernels(
        ["void a::f<(int)4>(int)", "void b::f<(int)4>(int)"], ["void f<4>(int)"]
    )
    assert not set(first.tolist()) & set(second.tolist())


def test_two_namespaces_are_two_kernels() -> None:
    first, second = same_kernels(["void a::f<(int)4>(int)"], ["void b::f<(int)4>(int)"])
    assert first.tolist() != second.tolist()


def test_instances_of_a_template_stay_apart() -> None:
    first, second = same_kernels(["void a::f<(int)4>(int)"], ["void f<8>(int)"])
    assert first.tolist() != second.tolist()


LAMBDA = "h(at::B const&)::{lambda(float)#1}::operator()() const::{lambda(float)#2}"
LAMBDA_OF_NSYS = (
    "h(const at::B &)::[lambda(float) (instance 1)]::operator ()() const::"
    "[lambda(float) (instance 2)]"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void a::f<4, true, 32u>(float const*)", "void a::f<(int)4, (bool)1, (unsigned int)32>("
         "const float *)"),
        ("void (anonymous namespace)::f<float>(float*)", "void <unnamed>::f<float>(T1 *)"),
        (f"void f<{LAMBDA}, b<3ul> >(int, {LAMBDA}, b<3ul>)",
         f"void f<{LAMBDA_OF_NSYS}, b<(unsigned long)3>>(int, T1, T2)"),
        ("void a::f<false>(a::P)", "void f<0>(P)"),
        ("void a::f<false, float>(a::P, float)", "void f<0, float>(P, T2)"),
    ],
)  # fmt: skip
def test_a_name_may_be_spelled_in_several_ways(one: str, other: str) -> None:
    for ours, theirs in ((one, other), (other, one)):
        first, second = same_kernels([ours, "void x::y<3>(int)"], [theirs, "void x::z<3>(int)"])
        assert second.tolist()[0] == first.tolist()[0]
        assert second.tolist()[1] not in first.tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f<1>(int)", "void f<1>(float)"),
        ("void f<1>(T1, int)", "void f<2>(T1, int)"),
        ("void a::f<true>(int)", "void a::f<(bool)0>(int)"),
        ("void a::f<1>(float)", "void b::f<(int)1>(T1)"),
        ("void f<1>(T1)", "void g<1>(T1)"),
    ],
)
def test_other_names_are_other_kernels(one: str, other: str) -> None:
    first, second = same_kernels([one], [other])
    assert first.tolist() != second.tolist()


def test_names_from_their_own_word_on_leave_out_what_tells_nothing() -> None:
    names = [
        "enable_if<!T7, void>::type kernel<int, float>(T13)",
        "void at::native::gemm<4>(int) [clone .kd]",
        "Cijk_Alik_Bljk_MT64",
        "my kernel 7",
        f"void cutlass::Kernel<Gemm<(Kind)1, {'(int)8, ' * 600}>>(T1)",
    ]
    assert from_own_word(names) == [
        "kernel<int, float>(T13)",
        "gemm<4>(int)",
        "Cijk_Alik_Bljk_MT64",
        "my kernel 7",
        names[-1],
    ]
    alike = ["void a::f<1>(int)", "void b::f<1>(int)"]
    assert from_own_word(alike) == alike


def test_a_namespace_that_ends_like_the_function_is_left_out_whole() -> None:
    assert from_own_word(["rtracer::trace(renv::Scene*)"]) == ["trace(renv::Scene*)"]


@pytest.mark.parametrize("number", ["0001", "0004"])
def test_real_names_of_one_program(number: str) -> None:
    sums = shared_file("traces/nsight/nsys_stats_rtx5090_prefill_cuda_gpu_kern_sum.csv")
    page = shared_file(f"traces/nsight/ncu_rtx5090_kernel{number}_details.csv")
    ours = tf.read(sums).totals["name"].to_pylist()
    theirs = tf.read(page).kernel_counters["name"].unique().to_pylist()
    first, second = same_kernels(ours, theirs)
    assert len(theirs) == 1
    assert first.tolist().count(int(second[0])) == 1
