"""Names as Nsight Compute writes them: without namespaces and casts."""

from __future__ import annotations

import pytest

import traceflops as tf
from tests.conftest import shared_file
from traceflops.mfu.kernelnames import same_kernels


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


@pytest.mark.parametrize("number", ["0001", "0004"])
def test_real_names_of_one_program(number: str) -> None:
    sums = shared_file("traces/nsight/nsys_stats_rtx5090_prefill_cuda_gpu_kern_sum.csv")
    page = shared_file(f"traces/nsight/ncu_rtx5090_kernel{number}_details.csv")
    ours = tf.read(sums).totals["name"].to_pylist()
    theirs = tf.read(page).kernel_counters["name"].unique().to_pylist()
    first, second = same_kernels(ours, theirs)
    assert len(theirs) == 1
    assert first.tolist().count(int(second[0])) == 1
