"""Boundaries: of shares after a change of time, odd clocks, stretches of time, roof and host."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from tests.build import trace_of
from traceflops import Selection
from traceflops.analysis.preparation import prepare
from traceflops.mfu.budget import DevicePeaks, ShareRange
from traceflops.mfu.checked.reconciliation import Reconciliation
from traceflops.mfu.roof_times import Measured, verdict
from traceflops.mfu.traced.coverage import chosen_activities


@pytest.mark.parametrize(
    ("least_ns", "most_ns", "expected"),
    [
        (50, 80, ("50.0 %", "80.0 %")),
        (30, 80, ("50.0 %", "100.0 %")),  # 133 % are none
        (40, 40, ("100.0 %", "100.0 %")),
        (39, 39, None),
        (0, 80, None),
    ],
)
def test_a_share_after_a_change_is_no_more_than_all(
    least_ns: int, most_ns: int, expected: tuple[str, str] | None
) -> None:
    """What takes 100 ns has 40 % of the peak, and not more."""
    share = ShareRange(Fraction(40, 100), Fraction(40, 100))
    found = share.after(100, least_ns, most_ns)
    exact = found and tuple(f"{float(100 * one):.1f} %" for one in (found.least, found.most))
    assert exact == expected


@pytest.mark.parametrize(
    ("percent", "is_said"), [(94, True), (95, False), (100, False), (130, False), (131, True)]
)
def test_a_clock_is_odd_below_95_and_above_130_percent_of_the_table(
    percent: int, is_said: bool
) -> None:
    peak = 100_000
    match: Any = SimpleNamespace(
        by_clock=Fraction(peak * percent, 100),
        spec=SimpleNamespace(peak=lambda _: peak, product="X", flops_per_clock=1_024),
        seen=SimpleNamespace(clock_hz=10**9, counted_units=lambda: "100 SMs"),
    )
    note = DevicePeaks(0, match, {}, None, False).clock_note
    assert (note is not None) is is_said
    if note is not None:
        assert ("% more than" if percent > 100 else "% less than") in note.text


def test_work_that_begins_where_a_stretch_ends_is_not_in_it() -> None:
    rows = [{"name": "k", "start_ns": at, "dur_ns": 10} for at in (0, 100, 200, 300)]
    prepared = prepare(trace_of(activities=rows), Selection(from_ns=100, to_ns=200))
    assert chosen_activities(prepared).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("flops", "bound"), [(599, "memory"), (600, "memory"), (601, "compute")])
def test_at_the_balance_of_a_device_the_nearer_roof_is_the_memory(flops: int, bound: str) -> None:
    """900 FLOP and 3 bytes per ns: 300 FLOP per byte."""
    found = verdict(Measured(flops, 2, 1), 900, 3)
    assert found is not None
    assert (found.bound, found.basis) == (bound, "shapes")


@pytest.mark.parametrize(("host_ns", "mfu"), [(40, None), (50, 1), (100, Fraction(1, 2))])
def test_over_the_markers_of_the_host_the_mfu_is_at_most_all(
    host_ns: int, mfu: Fraction | None
) -> None:
    """Half of the peak over 100 ns of devices: the host ran ahead if its markers are below 50."""
    described: Any = SimpleNamespace(rate=SimpleNamespace(mfu=Fraction(1, 2), is_hfu=False))
    job: Any = SimpleNamespace(window_ns=100, host_ns=host_ns)
    measured: Any = None
    found = Reconciliation(described, job, None, None, (), measured)
    assert (found.host_mfu, found.host_ran_ahead) == (mfu, mfu is None)
