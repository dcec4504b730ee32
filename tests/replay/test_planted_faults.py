"""Faults at random in the simulator: what a replay says of their repair is what is simulated."""

import pytest

from tests.conftest import by_night
from tests.replay.scoreboard import planted


@pytest.mark.parametrize("count", [2, pytest.param(200, marks=by_night())])
def test_intervals_hold_what_repairs_take(count: int) -> None:
    found = planted(count)
    assert sum(one.is_held for one in found) >= 0.95 * count
    assert sum(one.is_close for one in found) >= 0.95 * count
    assert all(one.is_convex for one in found)
