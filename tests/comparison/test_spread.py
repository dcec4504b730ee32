"""The interval of the difference of mean step times: how often it holds the truth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import examples, some
from traceflops.comparison.spread import Interval, interval, quantile
from traceflops.table.columns import FloatArray

PAIRS = 10_000
TABLE = {1: 12.706, 2: 4.303, 5: 2.571, 9: 2.262, 18: 2.101, 100: 1.984}
"""Of Student's t at 97.5 %, as printed in tables."""


@pytest.mark.parametrize(("freedom", "t"), TABLE.items())
def test_the_quantile_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert quantile(float(freedom)) == pytest.approx(t, abs=0.001)


def correlated(random: np.random.Generator, pairs: int, steps: int, with_next: float) -> FloatArray:
    """Return series of steps each of which has a correlation with the next; variance 1, mean 0."""
    shocks = random.standard_normal((pairs, steps))
    found = np.empty_like(shocks)
    found[:, 0] = shocks[:, 0]
    for step in range(1, steps):
        found[:, step] = with_next * found[:, step - 1]
        found[:, step] += np.sqrt(1 - with_next**2) * shocks[:, step]
    return found


@pytest.mark.parametrize(
    ("steps", "with_next", "least"),
    some(
        (
            *((10, 0.0, 0.95), (20, 0.0, 0.95), (50, 0.0, 0.95)),
            *((10, 0.2, 0.95), (20, 0.2, 0.945), (50, 0.2, 0.945)),
            *((10, 0.4, 0.93), (20, 0.4, 0.94), (50, 0.4, 0.945)),
            *((20, 0.6, 0.92), (50, 0.6, 0.94)),
        ),
        3,
    ),
)
def test_the_interval_holds_the_truth_in_93_to_97_percent(
    steps: int, with_next: float, least: float
) -> None:
    """`least` is by simulation, less three standard errors of so many pairs."""
    pairs = examples(PAIRS)
    random = np.random.default_rng(round(1000 * with_next) + steps)
    before, after = (correlated(random, pairs, steps, with_next) for _ in range(2))
    held = sum(
        found.holds_zero
        for one in zip(before, after, strict=True)
        if (found := interval(*one)) is not None
    )
    error = 3 * (0.05 * 0.95 / pairs) ** 0.5
    assert least - error < held / pairs < 0.97 + error


@pytest.mark.parametrize("with_next", [0.0, 0.4])
def test_five_standard_errors_of_the_difference_are_seen(with_next: float) -> None:
    """In 95 % of the pairs of ten steps; with a known spread it would be 99.9 %."""
    pairs, steps = examples(PAIRS), 10
    random = np.random.default_rng(5)
    before, after = (correlated(random, pairs, steps, with_next) for _ in range(2))
    lag = np.arange(1, steps)
    inflation = 1 + 2 * ((1 - lag / steps) * with_next**lag).sum()
    change = 5 * (2 * inflation / steps) ** 0.5
    found = [interval(*one) for one in zip(before, after + change, strict=True)]
    missed = sum(one is not None and one.holds_zero for one in found)
    assert missed / pairs < 0.05 + 3 * (0.05 * 0.95 / pairs) ** 0.5


def test_sides_of_different_length_and_spread_are_compared() -> None:
    random = np.random.default_rng(6)
    pairs = examples(PAIRS)
    held = 0
    for _ in range(pairs):
        found = interval(random.normal(0, 5, 8), random.normal(0, 1, 40))
        held += found is not None and found.holds_zero
    assert 0.93 < held / pairs < 0.98


def test_one_step_has_no_interval_and_equal_steps_a_sharp_one() -> None:
    many = np.array([5.0, 6.0, 7.0])
    assert interval(np.array([5.0]), many) is None
    assert interval(many, np.array([5.0])) is None
    assert interval(np.full(3, 5.0), np.full(4, 7.0)) == Interval(2.0, 2.0)


def test_the_interval_is_that_of_all_correlations_by_how_well_they_explain_the_steps() -> None:
    """Drawn: a correlation by its likelihood, from whole matrices, then a t of that one."""
    random = np.random.default_rng(8)
    # The first steps are the mean of the others: what they have in common, and what not, is 0.
    sides = np.array([5.0, 4.0, 6.0, 5.0, 3.0, 7.0]), np.array([7.4, 8.0, 8.5, 6.0, 7.0, 7.5])
    trial = np.linspace(-0.995, 0.995, 200)
    weight, error = (1 - trial**2) ** 1.4, np.zeros((2, len(trial)))
    for at, r in enumerate(trial):
        for side, steps in enumerate(sides):
            ones, apart = np.ones(len(steps)), np.subtract.outer(*[np.arange(len(steps))] * 2)
            variance = r ** np.abs(apart) / (1 - r**2)
            inverse = np.linalg.inv(variance)
            known = ones @ inverse @ ones
            shocks = steps - ones @ inverse @ steps / known
            squares = shocks @ inverse @ shocks
            freedom = len(steps) - 1
            weight[at] *= (np.linalg.det(variance) * known) ** -0.5 * squares ** (-freedom / 2)
            error[side, at] = squares / freedom * variance.mean()
    drawn = random.choice(len(trial), 400_000, p=weight / weight.sum())
    total = error.sum(axis=0)
    freedom = total**2 / (error**2 / 5).sum(axis=0)
    far = np.abs(random.standard_t(freedom[drawn])) * total[drawn] ** 0.5
    found = interval(*sides)
    assert found is not None
    assert found.high_ns - found.low_ns == pytest.approx(2 * np.quantile(far, 0.95), rel=0.02)


def test_a_start_that_both_have_is_no_noise() -> None:
    random = np.random.default_rng(9)
    held = missed = 0
    for _ in range(pairs := examples(PAIRS)):
        before, after = random.normal(0, 1, (2, 10))
        before[0] += 5
        after[0] += 5
        found, seen = interval(before, after), interval(before, after + 5 * 0.2**0.5)
        assert found is not None and seen is not None
        held += found.holds_zero
        missed += seen.holds_zero
    error = 3 * (0.05 * 0.95 / pairs) ** 0.5
    assert 0.95 - error < held / pairs < 0.97 + error
    assert missed / pairs < 0.06 + error


def test_a_start_of_one_side_alone_stays_noise() -> None:
    even = np.array([4.0, 6.0, 5.0, 4.5, 5.5] * 2)
    late = np.append(25.0, even[1:])
    common, alone = interval(late, late + 1), interval(late, even)
    assert common is not None and alone is not None
    widths = [one.high_ns - one.low_ns for one in (common, alone)]
    assert widths[1] > 5 * widths[0]
