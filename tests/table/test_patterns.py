"""Expressions of users: what they find, and that no expression and no name makes them slow."""

import pytest

from traceflops.table.patterns import matched_groups, matches

HOSTILE = "a" * 20_000 + "b"


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*c", "(a*)*c", "(.*)(.*)(.*)(.*)c", "(a?){50}a{50}c"]
)
def test_nested_repeats_cost_no_more_than_others(pattern: str) -> None:
    """Backtracking would take longer than the age of the universe."""
    assert matches(pattern, [HOSTILE]).tolist() == [False]
    assert matched_groups(pattern, [HOSTILE]) == [None]


def test_an_expression_is_found_anywhere() -> None:
    texts = ["a softmax b", "SoftMax", "soft", ""]
    assert matches("soft.*x", texts).tolist() == [True, False, False, False]
    assert matches("soft.*x", texts, ignore_case=True).tolist() == [True, True, False, False]
    assert matches("^$", texts).tolist() == [False, False, False, True]


def test_a_group_is_told_of_texts_that_match_as_a_whole() -> None:
    texts = ["step 12", "a step 12", "step x", "step 3\n"]
    assert matched_groups(r"step (\d+)", texts) == ["12", None, None, None]
    assert matched_groups(r"step (\d+)|step (x)", texts) == ["12", None, "", None]
    assert matched_groups(r"step \d+", texts) == ["", None, None, None]
    assert matched_groups(r"(\d+)", []) == matched_groups("a", []) == []


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "a(?=b)", r"(a)\1", "\udcff", "a{2000}"])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|surrogates"):
        matches(pattern, [""])
    with pytest.raises(ValueError, match=r"regular expression|surrogates"):
        matched_groups(pattern, [""])
