"""Who waits for whom: independent values of real jobs, and jobs small enough to work out."""

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sample_traces.config import RunConfig
from sample_traces.emit_pytorch import write_pytorch
from sample_traces.kineto_text import KinetoOptions
from sample_traces.simulate import simulate
from tests.build import trace_of
from tests.conftest import shared_file
from tests.parsers.nsight.test_recipe import write as write_recipe
from traceflops import analyze, read
from traceflops.analysis.preparation import prepare
from traceflops.ranks.clocks import _bounds
from traceflops.ranks.matching import Matches
from traceflops.ranks.who_waits import RankReport, rank_report
from traceflops.reports.json.devices import ranks_object
from traceflops.reports.view.who_waits import clocks_sentence
from traceflops.windows.selection import Selection

JOBS = {
    "hta2": ("pytorch/hta_sampled_rank0.json.gz", "pytorch/hta_sampled_rank1.json.gz"),
    "h100x2": ("nsight/nsys_h100x2_mfu_before.sqlite",),
}
REDUCE, SPREAD = "ncclDevKernel_AllReduce_Sum", "ncclDevKernel_Broadcast"
Kernel = tuple[str, int, int] | tuple[str, int, int, int]
"""A name, start and end in microseconds, and the elements of a collective."""


def report_of(*ranks: Sequence[Kernel], **facts: Any) -> RankReport:
    """Return the report of kernels by rank; one of a framework is in group "dp"."""
    rows = [
        {
            "process": rank,
            "device": rank,
            "name": name,
            "start_ns": 1_000 * start,
            "dur_ns": 1_000 * (end - start),
            "stream": 20 if name in (REDUCE, SPREAD) else 7,
            **(facts if name in (REDUCE, SPREAD) else {}),
            **({"collective_in_elements": elements[0]} if elements else {}),
        }
        for rank, kernels in enumerate(ranks)
        for name, start, end, *elements in kernels
    ]
    trace = trace_of(
        processes=[{"process": rank, "rank": rank} for rank in range(len(ranks))],
        devices=[{"device": rank, "process": rank} for rank in range(len(ranks))],
        activities=rows,
    )
    return rank_report(prepare(trace, Selection()))


def test_of_one_rank_nothing_waits() -> None:
    report = report_of([(REDUCE, 0, 9)])
    assert not report.are_several and report.by_activity(1) is None
    assert (report.span_ns, report.unmatched, report.cycles.count) == (0, 0, 1)
    answers = (report.by_rank(), report.rates(), report.experts(), list(report.collectives()))
    assert answers == ([],) * 4


def waits_of(report: RankReport) -> list[tuple[int, ...]]:
    """Return wait, exposed wait, transfer and caused wait by rank, in microseconds."""
    return [
        tuple(
            ns // 1_000
            for ns in (one.wait_ns, one.exposed_wait_ns, one.transfer_ns, one.caused_wait_ns)
        )
        for one in report.by_rank()
    ]


@pytest.mark.parametrize("name", JOBS)
def test_independent_values(name: str) -> None:
    expected = json.loads(shared_file("ranks/expected_ranks.json").read_text())[name]
    files = [str(shared_file(f"traces/{path}")) for path in JOBS[name]]
    report = rank_report(prepare(read(files), Selection()))
    alignment = report.alignment
    assert alignment.residual_median_ns == int(expected["alignment"]["res_median"])
    assert alignment.residual_p95_ns == int(expected["alignment"]["res_p95"])
    assert dict(enumerate(alignment.offset_ns.tolist())) == {
        int(rank): offset for rank, offset in expected["offsets_ns"].items()
    }
    assert (report.matches.count, report.unmatched) == (expected["matched"], expected["unmatched"])
    assert report.partial == expected["partial_group"]
    by_rank = report.by_rank()
    for key in ("wait_ns", "exposed_wait_ns", "transfer_ns", "caused_wait_ns", "marginal_ns"):
        values = {str(one.rank): getattr(one, key) for one in by_rank}
        assert values == expected[key], key
    kinds: defaultdict[str, int] = defaultdict(int)
    for one in report.collectives():
        kinds[one.kind] += 1
    assert kinds == expected["matched_kinds"]
    for step in report.cycles.steps:
        if (known := expected["steps"].get(f"ProfilerStep#{step}")) is not None:
            place = report.cycles.steps.index(step)
            assert int(report.cycles.length_ns[place]) == known["T_ns"]
            assert report.cycles.slowdown[place] == pytest.approx(known["S"], abs=1e-4)


@pytest.mark.parametrize("name", JOBS)
def test_independent_collectives(name: str) -> None:
    files = [str(shared_file(f"traces/{path}")) for path in JOBS[name]]
    report = rank_report(prepare(read(files), Selection()))
    expected: defaultdict[int, dict[str, Any]] = defaultdict(lambda: {"wait": 0, "transfer": 0})
    with shared_file(f"ranks/expected_{name}.csv").open() as file:
        for row in csv.DictReader(file):
            one = expected[int(row["index"])]
            one["wait"] += int(row["wait_ns"])
            one["transfer"] += int(row["transfer_ns"])
            one |= {"kind": row["kind"], "last": int(row["last_rank"]), "tie": row["tie"] == "1"}
    found = {
        one.index: {
            "wait": one.wait_ns,
            "transfer": one.transfer_ns,
            "kind": one.kind,
            "last": one.last_rank,
            "tie": one.tie,
        }
        for one in report.collectives()
    }
    assert found == expected


def test_the_last_rank_does_not_wait_and_causes_the_waiting() -> None:
    report = report_of(
        [("gemm", 0, 10), (REDUCE, 10, 50)],
        [("gemm", 0, 10), (REDUCE, 12, 50), ("other", 20, 25)],
        [("gemm", 0, 40), (REDUCE, 40, 50)],
    )
    assert waits_of(report) == [(30, 30, 10, 0), (28, 23, 10, 0), (0, 0, 10, 58)]
    (collective,) = report.collectives()
    assert (collective.last_rank, collective.margin_ns) == (2, 28_000)


def test_who_waits_for_whom_and_when_each_came() -> None:
    report = report_of(
        [("gemm", 0, 10), (REDUCE, 10, 50)],
        [("gemm", 0, 10), (REDUCE, 12, 50)],
        [("gemm", 0, 40), (REDUCE, 40, 50)],
    )
    few, none = np.array([0, 2]), np.array([], dtype=np.int64)
    assert report.waited_for(few, few).tolist() == [[0, 30_000, 0], [0, 0, 0], [0, 28_000, 0]]
    assert report.waited_for(few, none).tolist() == [[30_000], [0], [28_000]]
    assert [(one.rank, one.from_ns, one.wait_ns) for one in report.turns(0)] == [
        (0, 0, 30_000),
        (1, 2_000, 28_000),
        (2, 30_000, 0),
    ]


def test_what_is_before_the_first_cycle_counts_in_the_sums_of_all_only() -> None:
    report = report_of(
        [(REDUCE, 0, 40), (REDUCE, 100, 140), (REDUCE, 200, 240)],
        [(REDUCE, 30, 40), (REDUCE, 100, 140), (REDUCE, 210, 240)],
        [(REDUCE, 0, 40), (REDUCE, 100, 140), (REDUCE, 201, 240)],
    )
    assert [one.wait_ns for one in report.by_rank()] == [40_000, 0, 39_000]
    inside = report.in_cycles()
    assert [one.wait_ns for one in inside.by_rank()] == [10_000, 0, 9_000]
    assert [one.caused_wait_ns for one in inside.by_rank()] == [0, 19_000, 0]
    # Own times are 190, 200 and 191 µs of a cycle of 200 µs.
    assert report.farthest() == [1, 0, 2]


def test_a_rank_beyond_the_number_of_ranks_tells_that_others_are_missing() -> None:
    for ranks, world, is_partial in (
        ((0, 1), None, False),
        ((0, 2), None, True),
        ((0, 2), 2, False),
    ):
        rows = [
            {"process": at, "device": at, "name": REDUCE, "start_ns": 0, "dur_ns": 9}
            for at in range(2)
        ]
        trace = trace_of(
            processes=[
                {"process": at, "rank": rank, "world_size": world} for at, rank in enumerate(ranks)
            ],
            devices=[{"device": at, "process": at} for at in range(2)],
            activities=rows,
        )
        report = rank_report(prepare(trace, Selection()))
        assert report.partial is is_partial


def test_clocks_that_do_not_compare_have_no_cycles() -> None:
    day = 86_400_000_000
    each = [(SPREAD, at, at + 40) for at in (0, 100, 200)]
    report = report_of(each, [(name, at + day, at + day + 30) for name, at, _ in each])
    assert not report.comparable
    assert (report.cycles.steps, report.cycles.overall) == ((), None)
    assert waits_of(report) == [(30, 30, 90, 0), (0, 0, 90, 30)]


def test_the_root_of_a_broadcast_that_leaves_early_does_not_wait() -> None:
    report = report_of([(SPREAD, 0, 5), ("gemm", 5, 20)], [("gemm", 0, 8), (SPREAD, 8, 12)])
    assert waits_of(report) == [(0, 0, 5, 0), (0, 0, 4, 0)]


def test_clocks_are_aligned_on_the_ends_of_collectives() -> None:
    late = 320_000
    starts = [100 * turn for turn in range(8)]
    report = report_of(
        [(REDUCE, at, at + 40) for at in starts],
        [(REDUCE, at + late + 30, at + late + 40) for at in starts],
    )
    assert report.alignment.offset_ns.tolist() == [-160_000_000, 160_000_000]
    assert report.alignment.residual_p95_ns == 0
    assert waits_of(report) == [(240, 240, 80, 0), (0, 0, 80, 240)]


def in_groups(ahead: Sequence[int], turns: Sequence[tuple[int, int, str, str]]) -> RankReport:
    """Return the report of all-reduces on clocks that are ahead by so many microseconds.

    By rank: start and end in microseconds, group and its ranks, in JSON.
    """
    rows = [
        {
            "process": rank,
            "device": rank,
            "name": REDUCE,
            "start_ns": 1_000 * (start + ahead[rank]),
            "dur_ns": 1_000 * (end - start),
            "collective": "allreduce",
            "collective_group": group,
            "collective_group_ranks": members,
        }
        for rank in range(len(ahead))
        for start, end, group, members in turns
        if rank in json.loads(members)
    ]
    trace = trace_of(
        processes=[{"process": rank, "rank": rank} for rank in range(len(ahead))],
        devices=[{"device": rank, "process": rank} for rank in range(len(ahead))],
        activities=rows,
    )
    return rank_report(prepare(trace, Selection()))


def test_one_collective_ties_the_clocks_of_two_hosts() -> None:
    pairs = [(at, at + 40, "tp", two) for at in (0, 100) for two in ("[0, 1]", "[2, 3]")]
    report = in_groups([0, 0, 50_000, 50_000], [*pairs, (200, 260, "dp", "[0, 1, 2, 3]")])
    found = report.matches
    assert (found.count, report.unmatched, found.impossible) == (5, 0, 0)
    assert {one.wait_ns for one in report.by_rank()} == {0}
    assert report.alignment.residual_p95_ns == 0


def test_cycles_between_pairs_are_in_the_order_of_aligned_time() -> None:
    turns = [
        (at, at + 40, group, two)
        for at, group, pairs in (
            (0, "tp", ("[0, 1]", "[2, 3]")),
            (100, "dp", ("[0, 2]", "[1, 3]")),
            (200, "tp", ("[0, 1]", "[2, 3]")),
        )
        for two in pairs
    ]
    # The clock of rank 0 puts its collectives behind those of rank 1 and 3.
    report = in_groups([50_000, 0, 0, 0], turns)
    assert report.cycles.length_ns.tolist() == [100_000, 100_000]
    assert report.slow is None


def test_early_ends_of_a_broadcast_are_no_error_of_the_clocks() -> None:
    # The root leaves 30 us before the other rank comes; both leave all-reduces together.
    both = [
        ([(REDUCE, at, at + 20), (SPREAD, at + 20, at + 25)], [(REDUCE, at + 8, at + 20)])
        for at in range(0, 400, 100)
    ]
    ranks = [[kernel for turn in both for kernel in turn[rank]] for rank in (0, 1)]
    ranks[1] += [(SPREAD, at + 55, at + 60) for at in range(0, 400, 100)]
    alignment = (report := report_of(*ranks)).alignment
    assert report.matches.count == 8
    assert (alignment.residual_p95_ns, alignment.is_possible) == (0, True)
    assert [one.last_rank for one in report.collectives() if not one.tie] == [1] * 8


GATHER = "ncclDevKernel_AllGather_RING_LL"


@pytest.mark.parametrize(("apart", "tie"), [(0, False), (300, True)])
def test_clocks_that_would_have_a_rank_leave_too_early_say_nobody_was_late(
    apart: int, tie: bool
) -> None:
    report = report_of(
        [(GATHER, at, at + 40) for at in range(0, 500, 100)],
        [(GATHER, at + 30 + apart, at + 40 + apart) for at in range(0, 500, 100)],
    )
    assert (report.alignment.basis, report.matches.count) == ("", 5)
    assert {one.tie for one in report.collectives()} == {tie}
    assert waits_of(report) == [(150, 150, 50, 0), (0, 0, 50, 150)]


@pytest.mark.parametrize("recorded_from", [40_000, 200_000])
def test_exchanges_launched_before_the_recording_are_of_the_kind_of_their_name(
    recorded_from: int,
) -> None:
    exchange, reduce = "ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce"
    rows = [
        {
            "process": rank,
            "device": rank,
            "name": name,
            "start_ns": at + 1_000 * rank,
            "dur_ns": 9_000 - 1_000 * rank,
            "stream": 20,
            # Of rank 1 the first two, or all, have no launch, so nothing says what they are.
            "collective": None if rank and at < recorded_from else kind,
        }
        for rank in (0, 1)
        for at, (name, kind) in zip(
            range(0, 120_000, 20_000),
            3 * [(exchange, "all_to_all"), (reduce, "allreduce")],
            strict=True,
        )
    ]
    report = rank_report(
        prepare(
            trace_of(
                processes=[{"process": rank, "rank": rank} for rank in (0, 1)],
                devices=[{"device": rank, "process": rank} for rank in (0, 1)],
                activities=rows,
            ),
            Selection(),
        )
    )
    assert [one.kind for one in report.collectives()] == ["all_to_all", "all_reduce"] * 3


def test_exchanges_that_nothing_but_their_name_tells_are_no_all_reduces() -> None:
    exchange, reduce = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "ncclKernel_AllReduce_RING_LL"
    turns = [(0, exchange), (100, reduce), (200, reduce), (300, exchange), (400, reduce)]
    report = report_of(*([(name, at, at + 40) for at, name in turns] for _ in range(3)))
    kinds = [one.kind for one in report.collectives()]
    assert kinds == ["send_recv", "all_reduce", "all_reduce", "send_recv", "all_reduce"]


def test_ranges_projected_on_gpus_stand_for_the_kernels_of_collectives(tmp_path: Path) -> None:
    # Two processes whose clocks start 7 ms apart; nested ranges of one kernel are one.
    module = "TSL:XlaModule:#hlo_module=jit_step#"
    rows = [(module, 0, 400), ("TSL:Thunk:#name=reduce_sum,hlo_op=fusion.1#", 15, 5)]
    for at, op in ((10, "all-reduce-start"), (110, "all-gather.3"), (210, "all-reduce.1")):
        rows += [(f"TSL:Thunk:#hlo_op={op}#", at, 50), ("NCCL:ncclGroupEnd", at, 50)]
    rows += [("nccl:all_reduce", 310, 50), ("NCCL:ncclAllReduce", 310, 50)]
    for process, (offset, wait) in enumerate(((0, 20), (7_000, 0))):
        path = write_recipe(
            tmp_path / str(process),
            {
                "Name": [name for name, *_ in rows],
                "Projected Start": [
                    1_000 * (start + offset + (20 - wait) * (length == 50))
                    for _, start, length in rows
                ],
                "Projected Duration": [
                    1_000 * (length - (20 - wait) * (length == 50)) for *_, length in rows
                ],
                "PID": [40 + process] * len(rows),
                "TID": [1] * len(rows),
                "Rank": [0] * len(rows),
            },
        )
        assert path.is_file()
    report = rank_report(prepare(read(tmp_path), Selection()))
    assert [one.kind for one in report.collectives()] == [
        "all_reduce",
        "all_gather",
        "all_reduce",
        "all_reduce",
    ]
    assert report.alignment.offset_ns.tolist() == [-3_500_000, 3_500_000]
    # The fusion runs for 5 us while the first process waits in the first collective.
    assert waits_of(report) == [(80, 75, 120, 0), (0, 0, 120, 80)]
    assert "wait for rank 1" in analyze(read(tmp_path)).verdict.sentence


def test_a_collective_that_one_rank_lacks_has_no_match() -> None:
    each = [(REDUCE, at, at + 40) for at in range(0, 1_000, 100)]
    report = report_of(each, [*each[:4], *each[5:]])
    assert (report.matches.count, report.unmatched) == (9, 1)
    assert waits_of(report) == [(0, 0, 360, 0), (0, 0, 360, 0)]


def test_without_collectives_nothing_bounds_the_clocks() -> None:
    alignment = ranks_object(report_of([("gemm", 0, 9)], [("gemm", 0, 9)]))["alignment"]
    bounds = [(one["error_at_least_ns"], one["error_at_most_ns"]) for one in alignment["offsets"]]
    assert bounds == [(None, None)] * 2


def test_a_record_that_is_alone_in_its_collective_bounds_no_clock() -> None:
    """The collective of ranks 0 and 1 ends at 50 for both, and begins at 0 and 10."""
    records: Any = SimpleNamespace(ranks=(0, 1), place=np.array([0, 1, 0]))
    matches = Matches(np.array([0, 0, 1]), 2, 0)
    start, end = np.array([0, 10, 20]), np.array([50, 50, 30])
    lowest, highest = _bounds(records, matches, np.arange(3), start, end)
    assert (lowest.tolist(), highest.tolist()) == ([-40, -50], [50, 40])


def test_an_extra_kernel_just_before_a_collective_is_not_it() -> None:
    each = [(REDUCE, at, at + 50) for at in range(0, 1_000, 100)]
    late = [(REDUCE, at + 30, at + 50) for at in range(0, 1_000, 100)]
    report = report_of(each, [*late[:4], (REDUCE, 405, 420), *late[4:]])
    assert (report.matches.count, report.unmatched) == (10, 1)
    assert waits_of(report) == [(300, 300, 200, 0), (0, 0, 200, 300)]


def test_kernels_of_unequal_size_are_not_one_collective() -> None:
    # Both ranks have six, of sizes 1, 2, 1, 2, ...: the second began to record one later.
    sizes = [1, 2, 1, 3, 1, 2, 4]
    each = [(REDUCE, at, at + 40, size) for at, size in zip(range(0, 700, 100), sizes, strict=True)]
    report = report_of(each[:6], [(n, a + 7_000, e + 7_000, size) for n, a, e, size in each[1:]])
    assert report.matches.count == 5
    sizes_of = report.records.elements[report.waits.row].reshape(-1, 2)
    assert (sizes_of[:, 0] == sizes_of[:, 1]).all()


def test_bandwidth_is_that_of_the_transfer() -> None:
    facts = {
        "collective": "allreduce",
        "collective_dtype": "Float",
        "collective_in_elements": 1_000_000,
        "collective_out_elements": 1_000_000,
        "collective_group": "dp",
        "collective_group_size": 2,
    }
    (rate,) = report_of([(REDUCE, 0, 50)], [(REDUCE, 30, 50)], **facts).rates()
    assert (rate.bytes, rate.count, rate.group, rate.ranks) == (4_000_000, 1, "dp", 2)
    assert rate.algorithm == pytest.approx(4_000_000 / 20_000)
    assert rate.bus == rate.algorithm  # 2 (n - 1) / n of two ranks
    assert (
        report_of(
            [(REDUCE, 0, 50)], [(REDUCE, 30, 50)], **facts | {"collective_group_size": 4}
        ).rates()
        == []
    )


@pytest.mark.parametrize("percent", [100, 112])
def test_the_slow_rank_is_blamed_and_a_healthy_job_blames_nobody(
    percent: int, tmp_path: Path
) -> None:
    config = RunConfig(ranks=4, steps=6, layers=1, straggler_rank=2, straggler_percent=percent)
    write_pytorch(simulate(config), tmp_path)
    report = rank_report(prepare(read(tmp_path), Selection()))
    assert (report.matches.count, report.unmatched) == (6 * config.gradient_buckets, 0)
    slow = report.slow
    if percent == 100:
        assert slow is None
    else:
        assert slow is not None
        assert (slow.rank, slow.cause, slow.sporadic) == (2, "slow_clock", False)
        assert slow.factor == pytest.approx(1.12, abs=0.02)


def test_a_late_rank_that_nothing_numbers_is_told_by_its_file(tmp_path: Path) -> None:
    run = simulate(RunConfig(ranks=3, steps=4, layers=1, straggler_rank=1, straggler_percent=130))
    for metadata in (True, False):
        options = KinetoOptions(rank_metadata=metadata, compression="none")
        for at, file in enumerate(sorted(write_pytorch(run, tmp_path, options))):
            file.rename(tmp_path / f"node_{4_100 + at}.16.pt.trace.json")
        analysis = analyze(read(tmp_path))
        assert analysis.ranks.slow is not None
        assert ("rank 1 is node_4101.16.pt" in clocks_sentence(analysis)) != metadata


def test_a_rank_is_blamed_for_waiting_in_two_collectives_at_once() -> None:
    """Neither is exposed, as the other runs; both together are."""
    ranks = [
        [
            kernel
            for at in range(0, 6_000, 1_000)
            for kernel in (
                ("gemm", at, at + work),
                (REDUCE, at + work, at + 800),
                (SPREAD, at + work, at + 810),
            )
        ]
        for work in (500, 500, 700)
    ]
    report = report_of(*ranks)
    assert [one.exposed_wait_ns for one in report.by_rank()] == [0, 0, 0]
    assert report.slow is not None and report.slow.rank == 2
    # Five cycles from one end to the next; the GPUs of the others stand still for 200 us in each.
    assert report.slow.lost_ns_per_step == 5 * 200_000
    assert (report.slow.own_ns, report.slow.busy_ns) == (1_000_000, 1_000_000)


def test_a_margin_up_to_twice_the_error_of_the_clocks_is_a_tie() -> None:
    """Ends lie 1 us from their middle; starts 1, 2 and 3 us apart."""
    apart = [2, 2, -2, -2, 2, -2, -2, 2, 2, -2, 2, -2]
    report = report_of(
        [(REDUCE, 100 * at, 100 * at + 40) for at in range(12)],
        [(REDUCE, 100 * at + 1 + at % 3, 100 * at + 40 + us) for at, us in enumerate(apart)],
    )
    assert report.alignment.residual_p95_ns == 1_000
    assert [(one.margin_ns, one.tie) for one in report.collectives()] == [
        (1_000, True),
        (2_000, True),
        (3_000, False),
    ] * 4


def test_the_error_of_the_clocks_is_that_of_nearly_all_ends() -> None:
    """Of 40 collectives three end 6 us apart on the two ranks, all others together."""
    report = report_of(
        [(REDUCE, 100 * at, 100 * at + 40) for at in range(40)],
        [(REDUCE, 100 * at + 5, 100 * at + 40 + 6 * (at % 13 == 5)) for at in range(40)],
    )
    assert report.alignment.residual_median_ns == 0
    assert report.alignment.residual_p95_ns == 3_000
