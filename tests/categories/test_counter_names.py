"""Names of kernels in two runs: which are one kernel's for certain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.categories.kernel_names import plain_name, same_kernels, short_name

FULL = "void at::native::vectorized_elementwise_kernel<4, at::Add<float> >(int, at::Add<float>)"
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS_3AddIfEEEEviT0_"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gemm", "gemm.kd"),
        ("gemm(float*)", "gemm(float*) [clone .kd]"),
        ("f<a<b> >(int, int)", "f<a<b>>(int,int)"),
        ('"gemm"', "gemm"),
        (" gemm ", "gemm"),
        ("void (anonymous namespace)::f<int>(int)", "void (anonymous namespace)::f< int >( int )"),
    ],
)
def test_one_name_in_two_spellings(one: str, other: str) -> None:
    assert plain_name(one) == plain_name(other)
    assert same_kernels([one], [other])[0].tolist() == same_kernels([one], [other])[1].tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [("unsigned int", "unsignedint"), ("f<1>", "f<2>"), ("f", "f.kdx"), ("a", "A")],
)
def test_two_names_stay_two(one: str, other: str) -> None:
    first, second = same_kernels([one], [other])
    assert plain_name(one) != plain_name(other)
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (FULL, "vectorized_elementwise_kernel"),
        (MANGLED, "vectorized_elementwise_kernel"),
        (f"{MANGLED}.kd", "vectorized_elementwise_kernel"),
        ("_Z15addition_kernelIfEvPT_PKS0_S3_ii", "addition_kernel"),
        ("addition_kernel(float*, int) [clone .kd]", "addition_kernel"),
        ("__amd_rocclr_copyBuffer", "__amd_rocclr_copyBuffer"),
        ("std::enable_if<(a > b), int>::type foo<x>(y)", "foo"),
        ("", ""),
        ("((((", "(((("),
        (">>>", ""),
    ],
)
def test_names_are_cut_as_the_tool_cuts_them(name: str, short: str) -> None:
    assert short_name(name) == short


def pairs(first: list[str], second: list[str]) -> set[tuple[str, str]]:
    """Return which names of two runs are one kernel's."""
    ours, theirs = (codes.tolist() for codes in same_kernels(first, second))
    return {
        (one, other)
        for one, code in zip(first, ours, strict=True)
        for other, another in zip(second, theirs, strict=True)
        if code == another
    }


def test_a_cut_or_mangled_name_is_that_of_the_only_full_one() -> None:
    short = "vectorized_elementwise_kernel"
    assert pairs([FULL, "gemm"], [short, "gemm"]) == {(FULL, short), ("gemm", "gemm")}
    assert pairs([FULL], [f"{MANGLED}.kd"]) == {(FULL, f"{MANGLED}.kd")}
    assert pairs([short], [MANGLED]) == {(short, MANGLED)}


def test_of_several_with_one_ending_none_is_certain() -> None:
    short, other = "vectorized_elementwise_kernel", FULL.replace("<4", "<8")
    assert pairs([FULL, other], [short]) == set()
    assert pairs([FULL, other], [MANGLED]) == set()
    assert pairs([FULL], [short, MANGLED]) == set()
    assert pairs([FULL], [other]) == set(), "instances of a template are kernels of their own"


def test_namespaces_of_a_mangled_name_have_to_be_there() -> None:
    assert pairs(["void b::gemm<float>(int)"], ["_ZN1a4gemmIfEEvi"]) == set()
    assert pairs(["void xa::gemm<float>(int)"], ["_ZN1a4gemmIfEEvi"]) == set()
    name = "void (anonymous namespace)::softmax<float>(int)"
    assert pairs([name], ["_ZN12_GLOBAL__N_17softmaxIfEEvi"]) == {
        (name, "_ZN12_GLOBAL__N_17softmaxIfEEvi")
    }


@given(st.lists(st.text(max_size=40), max_size=8), st.lists(st.text(max_size=40), max_size=8))
def test_any_names_can_be_compared(first: list[str], second: list[str]) -> None:
    ours, theirs = same_kernels(first, second)
    assert (len(ours), len(theirs)) == (len(first), len(second))
    for name in {*first} & {*second}:
        assert (name, name) in pairs(first, second)


def test_long_and_many_names_cost_no_more_than_they_are() -> None:
    long = "f" + "<" * 200_000
    assert pairs([long], [long]) == {(long, long)}
    many = [f"kernel_{n}" for n in range(30_000)]
    ours, theirs = same_kernels(many, [f"{name}.kd" for name in many])
    assert ours.tolist() == theirs.tolist()
