"""What the simulator promises about every run."""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from sample_traces.config import RunConfig
from sample_traces.kernels import Kernels
from sample_traces.parallel import all_groups, groups_of
from sample_traces.plants import PLANTS
from sample_traces.records import Activity, Run
from sample_traces.simulate import simulate
from sample_traces.truth import ALL_RECORDED, model_flops, told, truth, waits_of
from tests.conftest import examples
from tests.samples.strategies import run_configs

_few = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])


def by_stream(activities: tuple[Activity, ...]) -> dict[int, list[Activity]]:
    streams = defaultdict(list)
    for activity in activities:
        streams[activity.stream].append(activity)
    return streams


def only_rank(**changes: Any) -> Run:
    settings: dict[str, Any] = {"steps": 2, "hidden": 256, "sequence": 256, **changes}
    return simulate(RunConfig(**settings))


@_few
@given(run_configs())
def test_same_config_same_run(config: RunConfig) -> None:
    assert simulate(config) == simulate(config)


def test_another_seed_gives_other_times() -> None:
    assert only_rank(seed=1).ranks != only_rank(seed=2).ranks


@_few
@given(run_configs(opaque_graphs=True))
def test_work_never_starts_before_its_call_reaches_the_device(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        for activity in rank.activities:
            if activity.call is not None:
                call = rank.calls[activity.call]
                assert activity.start_ns >= call.start_ns + config.launch_latency_ns
                assert activity.correlation == call.correlation
                assert (activity.step, activity.stream) == (call.step, call.stream)


@_few
@given(run_configs(programmatic_launch=False, twin_kernels=False))
def test_streams_run_in_order(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        for stream in by_stream(rank.activities).values():
            for before, after in pairwise(stream):
                assert after.start_ns >= before.end_ns + config.dispatch_gap_ns
                assert after.correlation >= before.correlation


@pytest.mark.parametrize("stress", ["programmatic_launch", "twin_kernels"])
def test_stress_overlaps_kernels_of_one_stream(stress: str) -> None:
    (rank,) = only_rank(hidden=1024, sequence=1024, host_op_ns=1_000, **{stress: True}).ranks
    pairs = list(pairwise(by_stream(rank.activities)[7]))
    assert any(after.start_ns < before.end_ns for before, after in pairs)
    twins = [(a, b) for a, b in pairs if (a.start_ns, a.dur_ns) == (b.start_ns, b.dur_ns)]
    assert bool(twins) == (stress == "twin_kernels")
    assert all(a.correlation != b.correlation for a, b in twins)


def test_zero_length_kernels_on_demand() -> None:
    for asked in (False, True):
        (rank,) = only_rank(zero_length_kernels=asked).ranks
        assert any(activity.dur_ns == 0 for activity in rank.activities) == asked


@_few
@given(run_configs(cuda_graph=False))
def test_matrix_shapes_of_ops_give_the_flops_of_their_kernels(config: RunConfig) -> None:
    products = 0
    rank = simulate(config).ranks[0]
    for activity in rank.activities:
        if activity.work.sub != "gemm" or activity.op is None:
            continue
        op = rank.ops[activity.op]
        left, right = op.inputs[-4:-2] if op.name == "aten::addmm" else op.inputs
        (m, k), (k_again, n) = left.shape, right.shape
        assert k == k_again
        assert activity.work.flops == 2 * m * n * k
        products += 1
    # Forward and two gradients of four projections per layer and of the head.
    assert products == 3 * (4 * config.layers + 1) * config.steps


@_few
@given(run_configs(cuda_graph=False, twin_kernels=False))
def test_backward_of_a_projection_gives_gradients_of_input_and_weight(config: RunConfig) -> None:
    rank = simulate(config).ranks[0]
    gradients = defaultdict(list)
    for op in rank.ops:
        if op.name == "aten::mm" and op.parent is not None:
            left, right = op.inputs
            gradients[rank.ops[op.parent]].append((left.shape[0], right.shape[1]))
    forward = {op.sequence: op for op in rank.ops if not op.is_backward}
    backward = [op for op in gradients if op.is_backward]
    assert len(backward) == config.steps * (4 * config.layers + 1)
    for op in backward:
        product = forward[op.sequence]
        x, weight_t = product.inputs[-4:-2] if product.name == "aten::addmm" else product.inputs
        assert gradients[op] == [x.shape, weight_t.shape[::-1]]


@_few
@given(run_configs(ranks=2, programmatic_launch=False))
def test_the_optimizer_waits_for_the_gradients_of_all_ranks(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        for step in config.step_numbers:
            launched = [activity for activity in rank.activities if activity.step == step]
            exchanged = max(a.end_ns for a in launched if a.collective is not None)
            optimizer = min(a.start_ns for a in launched if a.work.sub == "optimizer")
            assert optimizer >= exchanged + config.event_wait_ns


@_few
@given(run_configs(lead_in=False, opaque_graphs=True))
def test_executed_flops_are_the_model_plus_one_recomputed_attention_product(
    config: RunConfig,
) -> None:
    pairs = config.batch * config.sequence * (config.sequence + 1) // 2
    recomputed = 2 * config.layers * config.hidden * pairs
    for device in truth(simulate(config)).ranks:
        for step in device.steps():
            assert step.flops == model_flops(config) + recomputed


def test_durations_follow_from_the_machine() -> None:
    config = RunConfig(peak_flops_per_s=10**12, gemm_percent=50, memory_percent=100)
    kernels = Kernels(config)
    assert kernels.gemm(1000, 1000, 1000, "TN").dur_ns == 4_000_000
    moved = 3 * 10**9 * config.element_bytes
    expected = (moved * 10**9 + config.hbm_bytes_per_s // 2) // config.hbm_bytes_per_s
    assert kernels.add(10**9).dur_ns == expected
    assert kernels.add(1).dur_ns == config.kernel_floor_ns


def test_without_noise_kernels_take_their_computed_time() -> None:
    (rank,) = only_rank(noise_permille=0).ranks
    assert all(activity.dur_ns == activity.work.dur_ns for activity in rank.activities)


@_few
@given(run_configs())
def test_ops_and_marks_nest(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        for op in rank.ops:
            if op.parent is not None:
                parent = rank.ops[op.parent]
                assert parent.start_ns < op.start_ns
                assert op.end_ns < parent.end_ns
                assert op.thread == parent.thread
        for call in rank.calls:
            if call.op is not None:
                op = rank.ops[call.op]
                assert op.start_ns < call.start_ns < call.end_ns < op.end_ns
        steps = [mark for mark in rank.marks if mark.kind == "step"]
        names = [f"ProfilerStep#{number}" for number in config.step_numbers]
        assert [mark.name for mark in steps] == names
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(steps))


@_few
@given(run_configs(lead_in=False))
def test_collectives_end_together_on_all_ranks(config: RunConfig) -> None:
    ends = []
    for rank in simulate(config).ranks:
        collectives = [a for a in rank.activities if a.collective is not None]
        ends.append([activity.end_ns for activity in collectives])
    assert all(rank_ends == ends[0] for rank_ends in ends)
    assert bool(ends[0]) == (config.ranks > 1)


@_few
@given(run_configs(lead_in=False))
def test_buckets_hold_every_gradient_once(config: RunConfig) -> None:
    rank = simulate(config).ranks[0]
    elements = sum(a.collective.elements for a in rank.activities if a.collective is not None)
    width, vocab = config.hidden, config.vocab
    layer = 12 * width * width + 13 * width
    parameters = config.layers * layer + (2 * vocab + config.sequence + 2) * width
    assert elements == (config.steps * parameters if config.ranks > 1 else 0)


def test_overlap_hides_communication_that_is_exposed_otherwise() -> None:
    hidden = {}
    for overlap in (False, True):
        run = simulate(RunConfig(ranks=2, overlap=overlap, link_bytes_per_s=10**11))
        hidden[overlap] = truth(run).ranks[0].hidden_communication_ns
    assert hidden[False] == 0
    assert hidden[True] > 1_000_000


def test_the_other_ranks_wait_for_a_straggler() -> None:
    run = simulate(RunConfig(ranks=3, straggler_rank=1, straggler_percent=150))
    exposed = [device.components["communication"] for device in truth(run).ranks]
    assert min(exposed[0], exposed[2]) > 2 * exposed[1]


def test_a_data_stall_makes_the_host_late() -> None:
    stalled = only_rank(steps=3, data_stall_steps=(1,), data_stall_ns=5_000_000)
    calm = only_rank(steps=3)
    late = [truth(run).ranks[0].steps()[1].idle_causes["host_late"] for run in (stalled, calm)]
    # The stall delays step 1, which begins at its mark.
    assert late[0] - late[1] > 4_500_000


def test_lead_in_has_no_calls_and_trailing_copy_no_step() -> None:
    (rank,) = only_rank(lead_in=True, trailing_copy=True).ranks
    unlinked = [activity for activity in rank.activities if activity.call is None]
    assert unlinked
    assert all(a.step is None and a.op is None for a in unlinked)
    last = rank.activities[-1]
    assert (last.work.name, last.step) == ("Memcpy DtoH (Device -> Pinned)", None)
    assert last.call is not None


def test_a_graph_is_one_call_with_many_kernels() -> None:
    (rank,) = only_rank(cuda_graph=True).ranks
    calls = [i for i, call in enumerate(rank.calls) if call.name == "cudaGraphLaunch"]
    assert len(calls) == 2
    nodes = [a for a in rank.activities if a.call == calls[0]]
    assert [activity.graph_node for activity in nodes] == list(range(1, len(nodes) + 1))
    assert len(nodes) > 30
    (rank,) = only_rank(cuda_graph=True, opaque_graph=True).ranks
    assert [a.component for a in rank.activities].count("graph") == 2


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_plant_keeps_the_device_idle_for_its_time(name: str) -> None:
    run = only_rank(plants=(name,), plant_ns=500_000, noise_permille=0)
    (rank,), (device,) = run.ranks, truth(run).ranks
    longest = max(device.gaps, key=lambda gap: gap.end_ns - gap.start_ns)
    assert 500_000 <= longest.end_ns - longest.start_ns < 800_000
    both = (told(longest, rank, ALL_RECORDED - {one}) for one in ("python", "system"))
    known = [one.idle_ns.values() for one in both if one]
    assert max(max(sums) for sums in known) >= 490_000
    assert all(sum(sums) <= longest.end_ns - longest.start_ns for sums in known)


@_few
@given(run_configs(ranks=2, launch_limit=3, twin_kernels=False))
def test_no_more_launches_are_unfinished_than_may_be(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        ended: dict[int, int] = {}
        for activity in rank.activities:
            if activity.call is not None:
                ended[activity.call] = max(ended.get(activity.call, 0), activity.end_ns)
        launches = sorted(ended)
        for before, call in zip(launches, launches[3:], strict=False):
            assert rank.calls[call].end_ns > ended[before]


@_few
@given(run_configs())
def test_memory_is_given_back_at_the_end_of_every_step(config: RunConfig) -> None:
    for rank in simulate(config).ranks:
        total = 0
        for allocation in rank.allocations:
            total += allocation.bytes
            assert allocation.total_bytes == total >= 0
        assert total == 0


def test_ranks_are_in_groups_of_every_dimension() -> None:
    config = RunConfig(ranks=8, tensor_ranks=2, expert_ranks=2, stages=2)
    groups = {group.ranks: group.description for group in all_groups(config)}
    expected: dict[tuple[int, ...], str] = {
        tuple(range(8)): "default_pg",
        **dict.fromkeys([(0, 2), (1, 3), (4, 6), (5, 7)], "mesh_dp"),
        **dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], "mesh_tp"),
        **dict.fromkeys([(0, 4), (1, 5), (2, 6), (3, 7)], "mesh_pp"),
    }
    assert groups == expected
    # Experts are shared by the ranks that have other data.
    assert groups_of(config, 5)["ep"] == groups_of(config, 5)["dp"]


def test_all_parts_of_a_batch_pass_the_stages_forth_and_then_back() -> None:
    run = simulate(RunConfig(ranks=3, steps=1, stages=3, microbatches=2, layers=1, hidden=64))
    ways = [tuple(one.rank for one in met.present) for met in run.meetings]
    assert Counter(ways) == Counter([(0, 1), (1, 2), (2, 1), (1, 0)] * 2)
    forth = max(at for at, way in enumerate(ways) if way == (1, 2))
    assert forth < min(at for at, way in enumerate(ways) if way == (2, 1))
    # The last stage waits until the first part has passed the others.
    first = next(met for met in run.meetings if met.present[1].rank == 2)
    waits = [waits_of(first)[one.rank, one.correlation].wait_ns for one in first.present]
    assert waits[0] == 0 < waits[1]


def test_a_rank_may_differ_in_anything() -> None:
    own = {1: {"batch": 8, "unrecorded": (0,), "clock_offset_ns": 5, "clock_drift_ppb": 10**6}}
    run = simulate(RunConfig(ranks=2, steps=1, layers=1, on_rank=own))
    usual, other = run.ranks
    assert other.origin_unix_ns == usual.origin_unix_ns + 5
    assert len(other.activities) == len(usual.activities) - 1
    met = next(one for one in run.meetings[1:])
    kernel = next(a for a in other.activities if a.correlation == met.present[1].correlation)
    start_ns = met.present[1].start_ns
    assert kernel.start_ns == start_ns + start_ns // 1000
    assert other.activities[3].dur_ns > usual.activities[3].dur_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 2}, "groups must divide the ranks"),
        ({"on_rank": {1: {}}}, "on_rank must name ranks"),
        ({"cuda_graph": True, "microbatches": 2}, "one microbatch"),
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"noise_permille": -1}, "noise_permille must be at least 0"),
        ({"noise_permille": 1000}, "noise_permille must be below 1000"),
        ({"hidden": 100, "heads": 3}, "multiple of heads"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"straggler_rank": 1}, "straggler_rank must be a rank"),
        ({"opaque_graph": True}, "opaque_graph needs cuda_graph"),
        ({"data_stall_steps": (9,)}, "data_stall_steps must be among the steps"),
    ],
)
def test_config_refuses_nonsense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig(**changes)
