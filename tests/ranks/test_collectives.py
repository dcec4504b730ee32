"""What kernels of collectives moved, on traces whose every nanosecond and byte is known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.build import trace_of
from traceflops import analyze
from traceflops.ranks.collectives import Collective
from traceflops.reports.view.wording import collective_label

NCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nt"


def talk(start: int, dur: int, kind: str | None = "allreduce", **more: Any) -> dict[str, Any]:
    told = {
        "collective": kind,
        "collective_dtype": "BFloat16",
        "collective_in_elements": 1000,
        "collective_out_elements": 1000,
        "collective_group_size": 8,
    }
    row = {"name": NCCL, "start_ns": start, "dur_ns": dur, "stream": 9}
    return row | (told if kind else {}) | more


def collectives(*activities: dict[str, Any]) -> tuple[Collective, ...]:
    return analyze(trace_of(activities=list(activities))).collectives


def test_kind_ranks_bytes_time_and_exposed_time() -> None:
    gemm = {"name": GEMM, "start_ns": 100, "dur_ns": 50}
    (row,) = collectives(gemm, talk(120, 100), talk(300, 40, collective_in_elements=500))
    # The GEMM covers [120, 150) of the first; of the second the larger side counts.
    assert row == Collective("allreduce", 8, 2, 140, 70 + 40, 2, 2 * 1000 * 2, 140)
    assert row.bytes_per_ns == 4000 / 140


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"collective_dtype": "Float", "collective_out_elements": 8000}, 32_000),
        ({"collective_dtype": "Float8_e4m3fn"}, 1000),
        ({"collective_dtype": "Complex of somebody"}, None),
        ({"collective_dtype": None}, None),
        ({"collective_in_elements": None}, None),
        ({"collective_in_elements": None, "collective": "broadcast"}, 2000),
        ({"collective_out_elements": None, "collective": "reduce"}, 2000),
        ({"collective_out_elements": None, "collective": "gather"}, None),
        ({"collective_in_elements": 2**62}, None),
        ({"collective_in_elements": 0, "collective_out_elements": 0}, 0),
    ],
)
def test_bytes_are_elements_by_their_size_or_unknown(
    told: dict[str, Any], expected: int | None
) -> None:
    (row,) = collectives(talk(0, 10, **told))
    assert (row.bytes, row.sized) == (expected, 0 if expected is None else 1)
    assert (row.bytes_per_ns is None) == (expected is None)


def test_kinds_and_ranks_have_rows_of_their_own_the_longest_first() -> None:
    rows = collectives(
        talk(0, 10),
        talk(20, 30, collective_group_size=2),
        talk(60, 15, "broadcast", collective_group_size=None),
        talk(80, 5, None),
    )
    assert [(row.collective, row.ranks, row.sum_ns) for row in rows] == [
        ("allreduce", 2, 30),
        ("broadcast", None, 15),
        ("allreduce", 8, 10),
        (None, None, 5),
    ]


def test_where_no_kernel_says_what_it_ran_there_is_no_table() -> None:
    assert collectives(talk(0, 10, None)) == ()
    assert collectives({"name": GEMM, "start_ns": 0}) == ()


def test_the_name_of_a_kernel_tells_where_nothing_else_does() -> None:
    own = {"name": "multimem_all_reduce_kernel<c10::BFloat16, 16>"}
    rows = collectives(talk(0, 10), talk(20, 30, None, **own), talk(60, 5, None))
    assert [(row.collective, row.ranks, row.sum_ns) for row in rows] == [
        ("all_reduce", None, 30),
        ("allreduce", 8, 10),
        (None, None, 5),
    ]
    labels = ["all-reduce", "all-reduce, 8 ranks", "unknown"]
    assert [collective_label(row) for row in rows] == labels


def test_of_several_kernels_of_one_op_the_sizes_are_not_known() -> None:
    rows = collectives(talk(0, 10, external_id=4), talk(20, 10, external_id=4), talk(40, 10))
    assert [(row.count, row.sized, row.bytes) for row in rows] == [(3, 1, 2000)]


def test_the_json_report_has_them() -> None:
    gemm = {"name": GEMM, "start_ns": 0, "dur_ns": 100}
    analysis = analyze(trace_of(activities=[gemm, talk(100, 100)]))
    (row,) = json.loads(analysis.to_json())["collectives"]
    assert row == {
        "collective": "allreduce",
        "ranks": 8,
        "count": 1,
        "sum_ns": 100,
        "share": 0.5,
        "exposed_ns": 100,
        "sized": 1,
        "bytes": 2000,
        "sized_ns": 100,
        "bytes_per_ns": 20.0,
    }
