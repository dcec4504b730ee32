"""Rates given by hand: the unit that was meant, and what they are beside the table's."""

from __future__ import annotations

import pytest

from traceflops.devices.peaks import find
from traceflops.devices.user_rate import given_rate, rate_doubt
from traceflops.errors import UsageError
from traceflops.facts import in_words


@pytest.mark.parametrize(
    ("option", "tflops", "message", "hint"),
    [
        ("--peak", 989e12, "--peak 9.89e+14 TFLOP/s is too large", "use --peak 989"),
        ("--achieved", 400e12, "--achieved 4e+14 TFLOP/s is too large", "use --achieved 400"),
        ("--achieved", 0.24, "--achieved 0.24 TFLOP/s is too small", "for PFLOP/s, use "),
        ("--achieved", 400e3, "--achieved 400000 TFLOP/s is too large", "for GFLOP/s"),
        ("--peak", float("nan"), "--peak nan is not a rate", "--peak 989.4"),
    ],
)
def test_another_unit_is_told(option: str, tflops: float, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        given_rate(tflops, option)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("rate", "dtypes", "words"),
    [
        (989_400, ("bf16",), None),
        (800_000, ("bf16",), None),
        (1_978_900, ("bf16",), "is twice the dense bf16 rate of h100-sxm (989.4): 2:4 sparsity"),
        (1_979_000, ("bf16",), "is twice the dense bf16 rate"),
        (1_978_900, ("fp8",), None),
        (1_979_000, (), "is the dense fp8 rate of h100-sxm, or twice the bf16 one"),
        (3_958_000, (), "is twice the dense fp8 rate of h100-sxm (1978.9)"),
        (9_894_000, ("bf16",), "is 10 times the dense bf16 rate of h100-sxm (989.4)"),
        (312_000, ("bf16",), "is 0.32 times the dense bf16 rate"),
        (989_000, (), None),
        (30_000_000, (), "is 15.16 times the dense fp8 rate"),
        (134_000, ("fp32",), "is 2 times the dense fp32 rate"),
        (989_400, ("fp4",), None),
    ],
)
def test_what_is_odd_beside_the_table(
    rate: int, dtypes: tuple[str, ...], words: str | None
) -> None:
    spec = find("h100-sxm")
    assert spec is not None
    found = rate_doubt(spec, rate, dtypes)
    assert (found is None) == (words is None), found
    assert words is None or (words in in_words(found) and in_words(found).startswith("--peak "))
