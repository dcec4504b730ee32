"""Who communicates: groups by name, ranks and calls in common, what they are for, sequence."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.build import trace_of
from tests.conftest import shared_file
from traceflops import read
from traceflops.analysis.preparation import prepare
from traceflops.privacy.placeholders import Placeholders
from traceflops.privacy.redact import Redaction
from traceflops.ranks.comm_groups import CommGroup, Runs, peers, role_in, runs_in
from traceflops.ranks.matching import matched as matches_of
from traceflops.ranks.who_waits import RankReport, rank_report
from traceflops.table.columns import ABSENT
from traceflops.table.trace import Trace
from traceflops.windows.selection import Selection

KERNEL = "ncclDevKernel_Generic_1"
Facts = Mapping[str, Any]


def job(ranks: Sequence[Sequence[Facts]], **tables: Any) -> Trace:
    """Return a job in which each rank runs these collectives, one every 100 ns, 50 ns long.

    Those with a sequence number run in its order.

    A fact is a column of a collective without `collective_`; `kind` is the collective.
    """
    rows = [
        {
            "process": rank,
            "device": rank,
            "name": KERNEL,
            "start_ns": 100 * facts.get("sequence", turn),
            "dur_ns": 50,
            "collective": facts.get("kind", "allreduce"),
            **{
                name if name == "external_id" else f"collective_{name}": value
                for name, value in facts.items()
                if name != "kind"
            },
        }
        for rank, calls in enumerate(ranks)
        for turn, facts in enumerate(calls)
    ]
    return trace_of(
        processes=[{"process": rank, "rank": rank} for rank in range(len(ranks))],
        devices=[{"device": rank, "process": rank} for rank in range(len(ranks))],
        activities=rows,
        **tables,
    )


@pytest.mark.parametrize(
    ("listed", "runs"),
    [
        ("[0, 1, 2, 3]", ((0, 4, 1),)),
        ("[1, 9, 17]", ((1, 25, 8),)),
        ("[3, 2, 1, 0]", ((3, -1, -1),)),
        ("[5]", ((5, 6, 1),)),
        ("[7, 7, 2]", ((7, 8, 1), (7, -3, -5))),
        ("[]", ()),
    ],
)
def test_listed_ranks_are_runs_of_numbers(listed: str, runs: Runs) -> None:
    assert runs_in(listed) == runs
    assert [*chain.from_iterable(range(*run) for run in runs)] == json.loads(listed)


@pytest.mark.parametrize("text", ["[0, 1, ...", "[0, -1]", "0-7", '["0"]', f"[{2**31}]"])
def test_what_is_no_list_of_ranks_stays_as_it_is(text: str) -> None:
    assert runs_in(text) == text


def test_numbers_of_ranks_may_be_far_apart() -> None:
    ranks, place = (0, 5, 2**31 - 1), np.arange(3)
    number = np.array([5, 2**31 - 1, 4])  # there is no rank 4
    found = peers(number, np.zeros_like(place), [CommGroup("all", None, None)], place, ranks)
    assert found.tolist() == [1, 2, -1]


def report(trace: Trace) -> RankReport:
    return rank_report(prepare(trace, Selection()))


def found_groups(trace: Trace) -> set[tuple[str, tuple[int, ...] | None, str | None]]:
    return {(one.name, one.ranks, one.role) for one in report(trace).records.groups}


def matched(trace: Trace) -> list[tuple[str, list[int]]]:
    """Return group and ranks of each matched collective."""
    records, found = report(trace).records, report(trace).matches
    return [
        (
            records.groups[int(records.group[found.collective == one][0])].name,
            [records.ranks[at] for at in records.place[found.collective == one].tolist()],
        )
        for one in range(found.count)
    ]


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("mesh_dp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_tp", "tp"),
        ("mesh_pp", "pp"),
        ("mesh_cp", "cp"),
        ("mesh_dim_0", None),
        ("default_pg", None),
        ("undefined", None),
        ("17", None),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("tp:0", "tp"),
        ("https", None),
        ("expertise", None),
        ("stop", None),
    ],
)
def test_whole_words_tell_what_a_group_is_for(text: str, role: str | None) -> None:
    assert role_in(text) == role


def test_the_description_tells_more_than_the_name() -> None:
    call = {"group": "3", "group_ranks": "[0, 1]", "group_size": 2, "description": "mesh_tp"}
    trace = job([[call], [call]])
    assert found_groups(trace) == {("3", (0, 1), "tp")}
    (collective,) = report(trace).collectives()
    assert (collective.group, collective.role) == ("3", "tp")


def test_groups_of_one_name_on_different_ranks_are_different() -> None:
    near, far = ({"group": "tp", "group_ranks": ranks} for ranks in ("[0, 1]", "[2, 3]"))
    assert matched(job([[near], [near], [far], [far]])) == [("tp", [0, 1]), ("tp", [2, 3])]


def test_calls_in_common_tell_groups_of_one_name_apart_whose_ranks_are_not_listed() -> None:
    one, other = ({"group": "tp", "group_size": 2, "call": call} for call in (11, -5))
    trace = job([[one], [other], [one], [other]])
    assert sorted(matched(trace)) == [("tp", [0, 2]), ("tp", [1, 3])]
    assert found_groups(trace) == {("tp", (0, 2), "tp"), ("tp", (1, 3), "tp")}


def test_without_calls_in_common_groups_of_one_name_have_no_match() -> None:
    call = {"group": "tp", "group_size": 2}
    found = report(job([[call]] * 4))
    assert (found.matches.count, found.unmatched) == (0, 4)


def test_sequence_numbers_match_what_the_order_does_not() -> None:
    def calls(*numbers: int) -> list[Facts]:
        return [{"group": "0", "group_ranks": "[0, 1]", "sequence": one} for one in numbers]

    found = report(job([calls(4, 5, 7), calls(5, 6, 7)]))
    sequence = found.records.sequence[found.matches.collective >= 0].tolist()
    assert (found.matches.count, sequence) == (2, [5, 7, 5, 7])


@pytest.mark.parametrize("second", ["'3'", "''", "'0'"])
def test_a_second_input_that_is_the_same_in_all_calls_is_no_sequence_number(second: str) -> None:
    inputs = f"['', {second}, '']".replace("'", '"')
    op = {"start_ns": 0, "dur_ns": 10, "name": "record_param_comms", "collective": "allreduce"}
    ops = [
        {**op, "process": rank, "external_id": at, "concrete_inputs": inputs}
        for rank in (0, 1)
        for at in (1, 2, 3)
    ]
    call = {"group": "0", "group_ranks": "[0, 1]"}
    calls = [call | {"external_id": at} for at in (1, 2, 3)]
    assert report(job([calls, calls], ops=ops)).matches.count == 3


def test_what_the_kernel_does_not_say_its_op_does() -> None:
    told = {
        "collective": "allreduce",
        "collective_dtype": "Float",
        "collective_in_elements": 1000,
        "collective_out_elements": 1000,
        "collective_group": "0",
        "collective_group_ranks": "[0, 1]",
        "collective_group_size": 2,
        "collective_sequence": 9,
        "collective_description": "mesh_dp",
    }
    op = {"start_ns": 0, "dur_ns": 10, "name": "record_param_comms", "external_id": 1}
    ops = [{**op, **told, "process": rank} for rank in (0, 1)]
    calls = [{"kind": None, "external_id": 1}]
    found = report(job([calls, calls], ops=ops))
    (collective,) = found.collectives()
    assert (collective.kind, collective.group, collective.role) == ("all_reduce", "0", "dp")
    assert collective.bytes == 4000
    assert found.records.sequence.tolist() == [9, 9]


@pytest.mark.parametrize(
    ("dims", "types", "elements", "bytes_"),
    [
        ("[[3,4]]", '["float"]', 12, 48),
        ("[[[3,4],[5]]]", '["c10::BFloat16"]', 17, 34),
        ("[[8],[2]]", '["signed char","signed char"]', 10, 10),
        ("[[24]]", '["long int"]', 24, 192),
        ("[[8],[2]]", '["float","int8"]', 10, None),
        ("[[8]]", '["somebody\'s"]', 8, None),
        ("[[]]", '["float"]', None, None),
        (None, None, None, None),
    ],
)
@pytest.mark.parametrize("kernels", [1, 2])
def test_what_only_the_annotation_says_is_of_its_one_kernel(
    dims: str | None, types: str | None, elements: int | None, bytes_: int | None, kernels: int
) -> None:
    mark = {"start_ns": 0, "dur_ns": 10, "name": "nccl:all_reduce", "thread": 1}
    of_both = {"input_dims": dims, "input_types": types}
    rows = [
        {"process": rank, "correlation": one, "start_ns": 100 * one}
        for rank in (0, 1)
        for one in range(kernels)
    ]
    trace = trace_of(
        processes=[{"process": rank, "rank": rank} for rank in (0, 1)],
        devices=[{"device": rank, "process": rank} for rank in (0, 1)],
        activities=[{**row, "device": row["process"], "name": KERNEL, "dur_ns": 9} for row in rows],
        calls=[row | {"start_ns": 2 + row["correlation"]} for row in rows],
        marks=[{**mark, **of_both, "process": rank} for rank in (0, 1)],
    )
    records = report(trace).records
    known = kernels == 1
    assert {*records.elements.tolist()} == {elements if known and elements else ABSENT}
    assert {*records.bytes.tolist()} == {bytes_ if known and bytes_ else ABSENT}


def test_a_redacted_job_has_the_same_roles() -> None:
    def call(description: str) -> Facts:
        return {"group": "3", "group_ranks": "[0, 1]", "description": description}

    for description, shown in (
        ("mesh_dp_replicate", "mesh_dp_replicate"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "EXPERT_MODEL_PARALLEL_GROUP"),
        ("mesh_secret", "group 1"),
    ):
        trace = Redaction(Placeholders()).trace(job([[call(description)], [call(description)]]))
        assert {*trace.activities["collective_description"].to_pylist()} == {shown}


def test_real_kernels_have_groups_with_ranks() -> None:
    files = ["pytorch/a100_hta_nccl_rank0.json.gz", "pytorch/mi300x_resnet18_ddp_train.json.gz"]
    for file, size in zip(files, (2, 8), strict=True):
        activities = read([str(shared_file(f"traces/{file}"))]).activities
        described = {*activities["collective_description"].to_pylist()} - {None}
        ranks = {*activities["collective_group_ranks"].to_pylist()} - {None}
        assert (described, ranks) == ({"default_pg"}, {str([*range(size)])})


@pytest.mark.parametrize(
    ("teams", "ahead_ns"),
    [
        ([[0, 1], [2, 3]], [0, 0, 0, 0]),
        ([[0, 2], [1, 3]], [0, 0, 0, 0]),
        ([[0, 1, 2, 3]], [0, 0, 0, 0]),
        ([[0, 1, 2, 3]], [0, 10**7, 0, 10**7]),  # as many clocks as there could be groups
    ],
)
def test_on_one_stream_those_are_a_group_that_wait_for_each_other(
    teams: Sequence[Sequence[int]], ahead_ns: Sequence[int]
) -> None:
    found = on_one_stream(teams, ahead_ns, turns=12)
    assert (found.matches.count, found.unmatched) == (12 * len(teams), 0)
    assert found.by_ends == (len(teams) > 1)
    assert teams_of(found) == {tuple(team) for team in teams}


def test_of_many_kernels_the_first_ones_tell_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    match = Mock(side_effect=matches_of)
    monkeypatch.setattr("traceflops.ranks.partners.matched", match)
    found = on_one_stream([[0, 2], [1, 3]], [0] * 4, turns=250)
    assert (found.matches.count, found.unmatched, found.by_ends) == (500, 0, True)
    assert teams_of(found) == {(0, 2), (1, 3)}
    sizes = {len(call.args[0].groups): len(call.args[0]) for call in match.call_args_list}
    assert sizes == {1: 4 * 200, 2: 4 * 250}


def on_one_stream(
    teams: Sequence[Sequence[int]], ahead_ns: Sequence[int], turns: int
) -> RankReport:
    """Return the report of teams of four ranks that meet so often; clocks are so far ahead."""
    random, rows = Random(1), []
    for turn in range(turns):
        start = [100_000 * turn + random.randint(0, 20_000) for _ in ahead_ns]
        for team in teams:
            end = max(start[rank] for rank in team) + 30_000
            for rank in team:
                dur = end + random.randint(0, 400) - start[rank]
                place = {"process": rank, "device": rank, "start_ns": start[rank] + ahead_ns[rank]}
                rows.append({**place, "name": "ncclDevKernel_AllReduce_Sum", "dur_ns": dur})
    return report(
        trace_of(
            processes=[{"process": rank, "rank": rank} for rank in range(4)],
            devices=[{"device": rank, "process": rank} for rank in range(4)],
            activities=rows,
        )
    )


def teams_of(found: RankReport) -> set[tuple[int, ...]]:
    """Return the ranks of each group that has kernels."""
    where = found.records
    return {tuple(sorted({*where.place[where.group == one].tolist()})) for one in where.group}
