"""How sure a difference of mean step times is: a 95 % interval that allows for correlated steps.

Both sides are taken to be autoregressive of first order, with one correlation r of a step with the
next and a variance each. Given r, the difference of the means is distributed as Student's t (Welch
1947, Satterthwaite 1946) with the variance of the mean of correlated steps (Bayley and Hammersley
1946). Ten steps do not tell r well, so no single r is chosen: the t distributions of all r are
mixed by how well each r explains the steps (Zellner and Tiao 1964), and by a prior. What the first
steps of both sides have in common is a start and not noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from traceflops.table.columns import FloatArray

LEVEL: Final = 0.95
_LEAST: Final = 2
"""Steps of a side: one has no spread."""
_R: Final = (np.arange(40) + 0.5) / 20 - 1
"""The correlations that are tried, from -1 to 1."""
_PRIOR: Final = 1.4
"""The prior is 1 - r² to this power: more would see smaller changes, and cover too little."""
_MOST_FREEDOM: Final = 10_000.0
_GRID: Final = 4_001
_HALVINGS: Final = 50


class Interval(Struct, frozen=True):
    """The 95 % confidence interval of a difference of means; ns."""

    low_ns: float
    high_ns: float

    def __iter__(self) -> Iterator[float]:
        """Yield the lower and the upper end."""
        yield from (self.low_ns, self.high_ns)

    @property
    def holds_zero(self) -> bool:
        """Return whether there may be no difference at all."""
        return self.low_ns <= 0 <= self.high_ns

    def around(self, middle: float) -> Interval:
        """Return an interval of the same width around another difference."""
        half = (self.high_ns - self.low_ns) / 2
        return Interval(middle - half, middle + half)


def interval(before: FloatArray, after: FloatArray) -> Interval | None:
    """Return the interval of the difference of two means, None where a side has one step only."""
    if min(len(before), len(after)) < _LEAST:
        return None
    point = float(after.mean() - before.mean())
    if min(len(before), len(after)) > _LEAST:  # of two steps, the rest would be one
        # The excess of the first step over the rest may be alike on both sides, as queues fill:
        # that is no noise. So each side keeps a share of their difference: / sqrt(2), not / 2, as
        # the squares of two independent excesses then keep their sum on average.
        rest_before, rest_after = before[1:].mean(), after[1:].mean()
        excess_before, excess_after = before[0] - rest_before, after[0] - rest_after
        noise = (excess_after - excess_before) / np.sqrt(2)
        before = np.append(rest_before - noise, before[1:])
        after = np.append(rest_after + noise, after[1:])
    # A side whose steps all take the same time adds no uncertainty.
    sides = [_of_mean(series) for series in (before, after) if np.ptp(series)]
    if not sides:
        return Interval(point, point)
    # Weights of the correlations: prior times likelihood on both sides.
    log_weight = _PRIOR * np.log(1 - _R**2) + sum(likelihood for likelihood, _, _ in sides)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    # Per correlation: the variance of the difference, and its degrees of freedom (Welch).
    total_variance = sum(variance for _, variance, _ in sides)
    freedom = total_variance**2 / sum(variance**2 / degrees for _, variance, degrees in sides)
    half = _half(weight, np.sqrt(total_variance), _dot(weight, freedom))
    return Interval(point - half, point + half)


def _dot(left: FloatArray, right: FloatArray | float) -> float:
    """Return the sum of products; BLAS rounds it otherwise where memory is aligned otherwise."""
    return float((left * right).sum())


def _of_mean(series: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    """Return, per correlation in _R, the log likelihood and the variance of the mean.

    The series is taken as x[t] = mean + r (x[t - 1] - mean) + shock[t], with independent shocks of
    one variance. The last value is the number of degrees of freedom.
    """
    r, steps, deviation = _R, len(series), series - series.mean()
    squares, products = _dot(deviation, deviation), _dot(deviation[1:], deviation[:-1])
    first, last = float(deviation[0]), float(deviation[-1])
    # The sum of the squared shocks; first about the mean of the series, then about the mean that is
    # most likely given r. `information` is what the series tells about that mean.
    information = (1 - r) * (steps - (steps - 2) * r)
    shocks = squares + r**2 * (squares - (first**2 + last**2)) - 2 * r * products
    shocks -= (r * (1 - r) * (first + last)) ** 2 / information
    # The likelihood, integrated over the mean and the variance of the shocks.
    log_likelihood = (np.log(1 - r**2) - np.log(information) - (steps - 1) * np.log(shocks)) / 2
    # By how much correlation inflates the variance of the mean.
    inflation = (1 + r) / (1 - r) - 2 * r * (1 - r**steps) / (steps * (1 - r) ** 2)
    variance = shocks / (steps - 1) / (1 - r**2) * inflation / steps
    return log_likelihood, variance, steps - 1


def _half(weight: FloatArray, error: FloatArray, freedom: float) -> float:
    """Return the half width that holds 95 % of a mixture of t distributions, by bisection.

    The mixture has one distribution per correlation, with a `weight` and a standard `error`; all
    have the same degrees of freedom (`freedom`).
    """
    angles, below = _student(round(min(max(freedom, 1.0), _MOST_FREEDOM), 1))
    low, high = 0.0, quantile(freedom) * float(error.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The share of each distribution that is closer to 0 than `middle` (see `_student`).
        t = middle / error
        inside = np.interp(np.arctan(t / freedom**0.5), angles, below)
        low, high = (middle, high) if _dot(weight, inside) < LEVEL else (low, middle)
    return high


def quantile(freedom: float) -> float:
    """Return within how many standard errors Student's t is with a probability of 95 %."""
    freedom = round(min(max(freedom, 1.0), _MOST_FREEDOM), 1)
    angle, below = _student(freedom)
    return float(freedom**0.5 * np.tan(np.interp(LEVEL, below, angle)))


@lru_cache(maxsize=1_024)
def _student(freedom: float) -> tuple[FloatArray, FloatArray]:
    """Return angles, and the probability that the absolute value of Student's t is below each.

    With t = sqrt(freedom) tan(angle), the density by angle is cos(angle) ** (freedom - 1).
    """
    angle = np.linspace(0, np.pi / 2, _GRID)
    density = np.cos(angle) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return angle, below / below[-1]
