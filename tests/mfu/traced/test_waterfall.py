"""The split of a budget: exact, whatever the figures, and negative lines are named."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.errors import UsageError
from traceflops.facts import fact
from traceflops.flops.mfu_waterfall import FAMILIES, LINES, DeviceBudget, Portion, waterfall
from traceflops.timeline.records import COMPONENTS

DTYPES = ("bf16", "fp8", "tf32")
TIMES = st.integers(0, 10**15)
PORTIONS = st.builds(
    Portion,
    family=st.sampled_from(FAMILIES),
    component=st.sampled_from(COMPONENTS),
    dtype=st.sampled_from(DTYPES),
    flops=st.integers(0, 10**21),
)


@st.composite
def budgets(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES) -> DeviceBudget:
    components = {name: draw(TIMES) for name in COMPONENTS}
    work = [one for one in draw(st.lists(PORTIONS, max_size=6)) if one.dtype in dtypes]
    peaks = {dtype: draw(st.integers(1, 10**7)) for dtype in dtypes}
    uncounted = draw(st.integers(0, components["compute"]))
    return DeviceBudget(components, uncounted, tuple(work), peaks)


@given(st.lists(budgets(), min_size=1, max_size=4))
def test_lines_sum_to_the_budget_with_any_data_types(devices: list[DeviceBudget]) -> None:
    split = waterfall(devices, "bf16")
    assert tuple(line.name for line in split.lines) == LINES
    assert sum(line.amount for line in split.lines) == split.budget
    assert len(split.errors) == sum(line.amount < 0 for line in split.lines)
    if split.budget:
        assert sum(split.share(name) or 0 for name in LINES) == 1


@given(st.lists(budgets(("bf16",)), min_size=1, max_size=4))
def test_with_one_data_type_the_budget_is_devices_times_window_times_peak(
    devices: list[DeviceBudget],
) -> None:
    split = waterfall(devices, "bf16")
    assert split.unit == "FLOP"
    assert split.budget == sum(one.peaks["bf16"] * one.window_ns for one in devices)
    portions = [portion for one in devices for portion in one.work]
    assert split.amount("useful") == sum(p.flops for p in portions if p.family == "model")
    done = sum(portion.flops for portion in portions)
    losses = sum(split.amount(name) for name in LINES[4:])
    assert losses == split.budget - done


@given(budgets(("bf16",)))
def test_both_forms_agree_on_one_data_type(device: DeviceBudget) -> None:
    """A second type that takes no time changes nothing but the unit."""
    alone = waterfall([device], "bf16")
    peaks = {**device.peaks, "fp8": 2 * device.peaks["bf16"]}
    one = Portion("model", "compute", "fp8", 2)
    same = Portion("model", "compute", "bf16", 1)
    mixed = waterfall(
        [DeviceBudget(device.components, device.uncounted_ns, (*device.work, one), peaks)]
    )
    plain = waterfall(
        [DeviceBudget(device.components, device.uncounted_ns, (*device.work, same), peaks)]
    )
    if alone.budget:
        assert [mixed.share(name) for name in LINES] == [plain.share(name) for name in LINES]


def test_a_step_by_hand() -> None:
    components = dict(zip(COMPONENTS, (60, 20, 5, 0, 10, 3, 2), strict=True))
    work = (
        Portion("model", "compute", "bf16", 30_000),
        Portion("recompute", "compute", "bf16", 8_000),
        Portion("algorithmic", "compute", "bf16", 1_000),
        Portion("overcompute", "other", "bf16", 500),
    )
    split = waterfall([DeviceBudget(components, 4, work, {"bf16": 1_000})])
    assert {line.name: line.amount for line in split.lines} == {
        "useful": 30_000,
        "recompute": 8_000,
        "algorithmic": 1_000,
        "overcompute": 500,
        "unattributed": 4_000,
        "inefficiency": 56_000 - 39_000,
        "memory": 20_000,
        "other": 4_500,
        "graph": 0,
        "communication": 10_000,
        "start_up": 3_000,
        "idle": 2_000,
    }
    assert (split.mfu, split.hfu) == (Fraction(30, 100), Fraction(395, 1000))
    assert split.errors == ()


def test_two_data_types_by_hand() -> None:
    components = dict.fromkeys(COMPONENTS, 0) | {"compute": 100}
    work = (
        Portion("model", "compute", "bf16", 30_000),
        Portion("model", "compute", "fp8", 30_000),
    )
    split = waterfall([DeviceBudget(components, 0, work, {"bf16": 1_000, "fp8": 1_500})])
    assert split.mfu == Fraction(30 + 20, 100)
    assert split.share("inefficiency") == Fraction(50, 100)


def test_work_above_the_peak_is_an_error_and_not_clipped() -> None:
    components = dict.fromkeys(COMPONENTS, 0) | {"compute": 10, "idle": 5}
    work = (Portion("model", "compute", "bf16", 12_000),)
    split = waterfall([DeviceBudget(components, 0, work, {"bf16": 1_000})])
    assert split.amount("inefficiency") == -2_000
    error = fact("waterfall.negative", line="inefficiency", amount=-2_000, unit="FLOP")
    assert split.errors == (error,)
    assert sum(line.amount for line in split.lines) == split.budget == 15_000


def test_a_missing_peak_is_an_error_that_names_the_type() -> None:
    work = (Portion("model", "compute", "tf32-or-fp32", 1),)
    with pytest.raises(UsageError, match="the peak of tf32-or-fp32 is unknown"):
        waterfall([DeviceBudget({"compute": 1}, 0, work, {"tf32": 1})])
    with pytest.raises(UsageError, match="no FLOPs were counted"):
        waterfall([DeviceBudget({"compute": 1}, 0, (), {"tf32": 1})])
    with pytest.raises(ValueError, match="part of the compute time"):
        waterfall([DeviceBudget({"compute": 1}, 2, (), {"tf32": 1})], "tf32")
    assert waterfall([]).budget == 0
    assert waterfall([]).hfu is None
