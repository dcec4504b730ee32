"""Names from strangers: nothing raises, nothing hangs, and the answer is always an allowed one."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.categories.classify import load
from traceflops.categories.rules import SUBS, Decision

CLASSIFIER = load()
PIECES = st.sampled_from(
    [
        "_Z",
        "N",
        "12",
        "9999",
        "<",
        ">",
        "(",
        ")",
        "::",
        " ",
        "\n",
        "_",
        "aA",
        "E",
        "\u202e",
        "\ud800",
    ]
) | st.sampled_from(
    [
        "gemm",
        "void ",
        "std::enable_if<",
        "at::native::",
        "elementwise_kernel",
        "cub::",
        "{anonymous}",
    ]
)
ANYTHING = st.text(st.characters(), max_size=300) | st.lists(PIECES, max_size=60).map("".join)


def check(decision: Decision) -> None:
    assert decision.category.sub in SUBS[decision.category.top]
    assert decision.rule and decision.because and decision.source == "built-in"
    assert len(decision.looked_at) <= 200


@given(ANYTHING)
def test_any_kernel_name(name: str) -> None:
    check(CLASSIFIER.kernel(name))
    assert load().kernel(name) == CLASSIFIER.kernel(name)


@given(ANYTHING)
def test_any_operator_name(name: str) -> None:
    check(CLASSIFIER.op(name))
    assert load().op(name) == CLASSIFIER.op(name)


@pytest.mark.parametrize(
    "name",
    [
        "a" * 1_000_000,
        "_a" * 500_000,
        "aA" * 500_000,
        "<" * 1_000_000,
        "std::enable_if<" * 100_000,
        "_Z" + "9" * 1_000_000,
        "_Z" + "1a" * 500_000,
        "at::native::elementwise_kernel<" + "index_" * 200_000,
        "cub::kernel<" + "reduce_" * 200_000,
        "triton_red_fused_" + "layer_nor_" * 100_000,
        "rocblas_" * 200_000,
        "\u202e" * 1_000_000,
        " " * 1_000_000,
        "\n" * 1_000_000,
        "\ud800" * 1_000,
    ],
    ids=lambda name: repr(name[:12]),
)
def test_monstrous_names(name: str) -> None:
    check(CLASSIFIER.kernel(name))
    check(CLASSIFIER.op(name))


def test_a_name_decides_alone() -> None:
    """What was asked before, with the same head, changes nothing."""
    names = ["void cutlass::Kernel<x_gemm>()", "void cutlass::Kernel<x_fprop>()", "Kernel"]
    together = load()
    assert [together.kernel(name) for name in names] == [load().kernel(name) for name in names]


def test_import_stays_light() -> None:
    code = "import sys; from traceflops.categories.classify import load; load().kernel('x')"
    code += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"pandas", "rich", "typer", "pyarrow", "numpy"} & set(done.stdout.split()) == set()
