"""Steps by the repeated signature: found where a step repeats, never where only its layers do."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import analyze
from traceflops.windows.repetition import Order, Rounds, repeated_signature

HEAD, TAIL, EXTRA = 1000, 2000, 3000


def order_of(names: list[int], pauses: dict[int, int] | None = None) -> Order:
    """Return activities of 8 ns each, 2 ns apart, after which `pauses` by place are added."""
    start = np.arange(len(names), dtype=np.int64) * 10
    for place, pause in (pauses or {}).items():
        start[place:] += pause
    return Order(np.array(names, dtype=np.int64), start, start + 8)


def step_of(layers: int, kernels: int, head: int = 2, tail: int = 3) -> list[int]:
    """Return the names of one step: a head, equal layers, a tail."""
    first, last = range(HEAD, HEAD + head), range(TAIL, TAIL + tail)
    return [*first, *list(range(kernels)) * layers, *last]


def rounds_of(names: list[int], pauses: dict[int, int] | None = None) -> Rounds:
    found = repeated_signature(order_of(names, pauses))
    assert found is not None
    return found


layered = st.builds(step_of, st.integers(3, 80), st.integers(4, 30), st.integers(1, 4))


@given(step=layered, steps=st.integers(4, 12), before=st.integers(0, 60), after=st.integers(0, 60))
def test_every_round_is_one_step(step: list[int], steps: int, before: int, after: int) -> None:
    warm = [EXTRA + k for k in range(before)]
    names = [*warm, *step * steps, *range(EXTRA + 100, EXTRA + 100 + after)]
    if 2 * len(step) * (steps - 1) < len(names):
        return  # rounds must be most of what is there
    found = rounds_of(names)
    assert found.length == len(step)
    assert len(found) in (steps - 1, steps)
    assert set(np.diff(found.begin)) == {len(step)}


@given(
    layers=st.integers(3, 200),
    kernels=st.integers(4, 40),
    head=st.integers(0, 4),
    steps=st.integers(1, 2),
)
def test_the_layers_of_one_step_or_two_are_no_steps(
    layers: int, kernels: int, head: int, steps: int
) -> None:
    assert repeated_signature(order_of(step_of(layers, kernels, head) * steps)) is None


@given(st.data())
def test_random_sequences_have_no_steps(data: st.DataObject) -> None:
    kinds = data.draw(st.integers(1, 400))
    count = data.draw(st.integers(1, 4000))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    names = random.integers(0, kinds, count)
    assert repeated_signature(order_of(names.tolist())) is None


@pytest.mark.parametrize("kinds", [2, 30, 300, 3000])
def test_long_random_sequences_have_no_steps(kinds: int) -> None:
    names = np.random.default_rng(7).zipf(1.3, 200_000) % kinds
    assert repeated_signature(order_of(names.tolist())) is None


@given(
    step=layered,
    steps=st.integers(6, 12),
    share=st.floats(0, 0.01),
    seed=st.integers(0, 2**32),
)
def test_lost_activities_and_odd_ones_do_not_hide_the_steps(
    step: list[int], steps: int, share: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    names = np.array(step * steps)
    names = names[random.random(len(names)) >= share]
    odd = random.random(len(names)) < share
    names[odd] = random.integers(0, 20, int(odd.sum()))
    found = repeated_signature(order_of(names.tolist()))
    if found is not None:  # with few anchors they may all be hit
        assert abs(found.length - len(step)) <= 0.05 * len(step) + 2
        assert steps - 4 <= len(found) <= steps


@given(
    kernels=st.integers(6, 20),
    layers=st.integers(8, 40),
    steps=st.integers(4, 10),
    late=st.integers(0, 30),
    seed=st.integers(0, 2**32),
)
def test_two_streams_that_drift_against_each_other(
    kernels: int, layers: int, steps: int, late: int, seed: int
) -> None:
    step = step_of(layers, kernels)
    main = np.arange(len(step) * steps) * 10
    every = np.arange(kernels, len(main), kernels)
    other = main[every] + np.random.default_rng(seed).integers(0, late * 10 + 1, len(every))
    start = np.concatenate([main, other + 5])
    names = np.concatenate([step * steps, np.full(len(every), EXTRA)])
    order = np.argsort(start, kind="stable")
    found = repeated_signature(Order(names[order], start[order], start[order] + 4))
    assert found is not None
    assert abs(found.length - len(step) * (1 + 1 / kernels)) <= 0.05 * len(step)
    assert len(found) in (steps - 1, steps)


NORM, OTHER_ATTENTION = 50, 51


@pytest.mark.parametrize("turns", [2, 4, 6])
def test_layers_that_take_turns_are_no_steps(turns: int) -> None:
    """Each layer has two norms, and one of `turns` layers has another attention."""
    layer = [NORM, 1, 2, 3, 4, NORM, 5, 6, 7, 8]
    group = [*layer * (turns - 1), *(OTHER_ATTENTION if name == 3 else name for name in layer)]
    assert repeated_signature(order_of([HEAD, *group * 12, TAIL])) is None


def test_rounds_that_one_call_launched_are_no_steps() -> None:
    """A graph of six blocks, each of three equal layers and five kernels more: one launch."""
    order = order_of(step_of(3, 6) * 6)
    by_graph = replace(order, call=np.zeros(len(order.name), dtype=np.int64))
    assert repeated_signature(order) is not None
    assert repeated_signature(by_graph) is None
    each_step = np.arange(len(order.name), dtype=np.int64) // (len(order.name) // 6)
    assert repeated_signature(replace(order, call=each_step)) is not None


def test_gradient_accumulation_is_one_step() -> None:
    step = [*step_of(12, 10) * 4, *range(EXTRA, EXTRA + 20)]
    assert rounds_of(step * 5).length == len(step)


def test_what_is_logged_every_tenth_step_makes_no_longer_step() -> None:
    step = step_of(24, 15)
    names = [*([*step * 10, EXTRA, EXTRA + 1]) * 5]
    assert rounds_of(names).length == len(step)


def test_rounds_that_are_too_many_for_layers_are_steps() -> None:
    iteration = [*range(6)]
    assert rounds_of(iteration * 300).length == 6
    assert repeated_signature(order_of(iteration * 250)) is None


def test_rounds_that_are_too_long_for_layers_are_steps() -> None:
    long = np.random.default_rng(3).integers(0, 90, 400).tolist()
    assert rounds_of([*long, 99] * 5).length == 401


@pytest.mark.parametrize("names", [[], [1], [1] * 5000, [1, 2] * 3000, [1, 2, 3] * 3000])
def test_loops_of_so_few_kernels_are_no_steps(names: list[int]) -> None:
    assert repeated_signature(order_of(names)) is None


def test_steps_begin_where_the_device_waits_longest() -> None:
    step = step_of(10, 6)
    begins = [9 + len(step) * k for k in range(6)]
    found = rounds_of([*range(EXTRA, EXTRA + 9), *step * 6], dict.fromkeys(begins, 500))
    assert found.begin.tolist() == begins


def test_the_last_step_may_end_with_the_last_activity() -> None:
    step = step_of(10, 6, head=0, tail=4)
    names = step * 6
    begins = [len(step) * k for k in range(6)]
    found = rounds_of(names, dict.fromkeys(begins, 500))
    assert found.begin[-1] == len(names)


def test_the_analysis_says_how_steps_were_found() -> None:
    rows = [
        {"name": f"kernel {name}", "start_ns": 1000 + 10 * at}
        for at, name in enumerate(step_of(6, 5) * 6)
    ]
    analysis = analyze(trace_of(activities=rows))
    assert analysis.steps.source == "signature"
    assert "35 GPU operations" in analysis.steps.text
    (note,) = [note for note in analysis.notes if note.code == "steps-inferred"]
    assert "repetition on the GPU: each step is one round" in note.text
    windows = analysis.devices[0].windows
    assert all(a.end_ns == b.start_ns for a, b in pairwise(windows))
    assert windows[-1].end_ns == analysis.devices[0].whole.end_ns


def test_every_device_must_repeat() -> None:
    rows = [
        {"name": f"kernel {name}", "start_ns": 1000 + 10 * at}
        for at, name in enumerate(step_of(6, 5) * 6)
    ]
    rows.append({"name": "alone", "start_ns": 0, "device": 1})
    devices = [{}, {"device": 1, "local_id": 1}]
    assert analyze(trace_of(activities=rows, devices=devices)).steps.source == "none"
