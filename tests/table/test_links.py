"""From device work back to its cause, and what the cause says of the category."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops import Trace, analyze
from traceflops.categories import activities
from traceflops.categories.activities import categorise
from traceflops.categories.classify import load
from traceflops.table.links import link


def category_of(trace: Trace, place: int = 0) -> tuple[str, str, str]:
    found = categorise(trace, link(trace), load())
    category = found.categories[found.category[place]]
    return category.top, category.sub, found.rules[found.rule[place]]


def kernel(name: str = "k", **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": 100, "correlation": 1, **more}


def test_of_several_calls_with_one_correlation_the_earliest_launched() -> None:
    calls = [{"start_ns": 50, "correlation": 1}, {"start_ns": 40, "correlation": 1}]
    assert link(trace_of(activities=[kernel()], calls=calls)).call_of_activity.tolist() == [1]


def test_one_call_may_launch_many() -> None:
    trace = trace_of(activities=[kernel(), kernel()], calls=[{"start_ns": 1, "correlation": 1}])
    assert link(trace).call_of_activity.tolist() == [0, 0]


def test_correlations_count_within_a_process_only() -> None:
    trace = trace_of(
        processes=[{}, {"process": 1}],
        activities=[kernel(process=1)],
        calls=[
            {"start_ns": 50, "correlation": 1},
            {"start_ns": 60, "correlation": 1, "process": 1},
        ],
    )
    assert link(trace).call_of_activity.tolist() == [1]


def test_no_correlation_links_to_nothing() -> None:
    trace = trace_of(activities=[kernel(correlation=None)], calls=[{"start_ns": 50}])
    assert link(trace).call_of_activity.tolist() == [-1]


def test_the_op_is_the_innermost_one_of_the_calls_thread() -> None:
    ops = [
        {"name": "outer", "start_ns": 0, "dur_ns": 100},
        {"name": "inner", "start_ns": 40, "dur_ns": 20},
        {"name": "elsewhere", "start_ns": 45, "dur_ns": 10, "thread": 2},
    ]
    calls = [{"start_ns": 50, "correlation": 1}]
    assert link(trace_of(activities=[kernel()], calls=calls, ops=ops)).op_of_activity.tolist() == [
        1
    ]


def test_the_external_id_helps_where_no_op_is_around() -> None:
    ops = [{"name": "op", "start_ns": 0, "dur_ns": 10, "external_id": 77}]
    calls = [{"start_ns": 50, "correlation": 1, "external_id": 77}]
    by_call = link(trace_of(activities=[kernel()], calls=calls, ops=ops))
    assert by_call.op_of_activity.tolist() == [0]
    by_activity = link(trace_of(activities=[kernel(external_id=77)], ops=ops))
    assert by_activity.op_of_activity.tolist() == [0]
    around = [*ops, {"name": "around", "start_ns": 45, "dur_ns": 10}]
    assert link(trace_of(activities=[kernel()], calls=calls, ops=around)).op_of_call.tolist() == [1]


def test_the_kind_of_record_beats_the_name() -> None:
    for kind, expected in (
        ("memcpy", ("memory", "copy", "kind-memcpy")),
        ("memset", ("memory", "memset", "kind-memset")),
        ("graph", ("graph", "graph", "kind-graph")),
    ):
        assert category_of(trace_of(activities=[kernel("ncclKernel", kind=kind)])) == expected


def test_a_copy_between_devices_is_communication() -> None:
    row = kernel("Memcpy PtoP", kind="memcpy", direction="PtoP")
    assert category_of(trace_of(activities=[row]))[:2] == ("communication", "point_to_point")


def test_a_kernel_launched_by_a_collective_op_is_communication() -> None:
    ops = [{"name": "record_param_comms", "start_ns": 0, "dur_ns": 100, "collective": "allreduce"}]
    trace = trace_of(
        activities=[kernel("vectorized_elementwise_kernel<4>")],
        calls=[{"start_ns": 50, "correlation": 1}],
        ops=ops,
    )
    assert category_of(trace) == ("communication", "collective", "collective-metadata")


@pytest.mark.parametrize(
    ("name", "collective", "sub"),
    [
        ("ncclDevKernel_Generic_1(x)", "send", "point_to_point"),
        ("ncclDevKernel_Generic_1(x)", "sendrecv", "point_to_point"),
        ("ncclDevKernel_Generic_1(x)", "allgather", "collective"),
        (
            "ncclDevKernel_SendRecv(x)",
            "all_to_all",
            "point_to_point",
        ),
    ],
)
def test_what_was_called_says_more_than_a_generic_name(
    name: str, collective: str, sub: str
) -> None:
    found = category_of(trace_of(activities=[kernel(name, collective=collective)]))
    assert found[:2] == ("communication", sub)


def test_an_op_inside_a_collective_op_is_no_collective() -> None:
    ops = [
        {"name": "record_param_comms", "start_ns": 0, "dur_ns": 100},
        {"name": "aten::add", "start_ns": 40, "dur_ns": 20},
    ]
    trace = trace_of(
        activities=[kernel("vectorized_elementwise_kernel<4>")],
        calls=[{"start_ns": 50, "correlation": 1}],
        ops=ops,
    )
    assert category_of(trace)[0] == "memory"


def test_a_kernels_own_collective_metadata_decides_and_names_the_sub() -> None:
    trace = trace_of(activities=[kernel("custom", collective="send")])
    assert category_of(trace)[:2] == ("communication", "point_to_point")
    trace = trace_of(activities=[kernel("custom", collective="_allgather_base")])
    assert category_of(trace)[:2] == ("communication", "collective")


def test_a_device_clock_that_is_behind_is_said() -> None:
    early = kernel("early", start_ns=90, correlation=1)
    late = kernel("late", start_ns=400, correlation=2)
    calls = [{"start_ns": 100, "correlation": 1}, {"start_ns": 200, "correlation": 2}]
    trace = trace_of(activities=[early, late], calls=calls)
    notes = [note for note in analyze(trace).notes if note.code == "device-before-launch"]
    assert [note.count for note in notes] == [1]
    assert "by up to 10 ns:" in notes[0].text


@pytest.mark.parametrize(
    ("step_ns", "count", "longest"),
    [(100, None, ""), (99, 99, "up to 1 ns"), (40, 99, "up to 60 ns")],
)
def test_work_that_overlaps_on_its_stream_is_said(
    step_ns: int, count: int | None, longest: str
) -> None:
    activities = [kernel("k", start_ns=n * step_ns, dur_ns=100) for n in range(100)]
    notes = [n for n in analyze(trace_of(activities=activities)).notes if "overlap" in n.code]
    assert [note.count for note in notes] == ([count] if count else [])
    assert all(longest in note.text for note in notes)


def test_of_too_many_names_those_with_most_time_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activities, "_MOST_NAMES", 2)
    work = [
        kernel("ampere_sgemm_1", start_ns=0, dur_ns=50),
        kernel("ampere_sgemm_2", start_ns=100, dur_ns=10),
        kernel("ampere_sgemm_3", start_ns=200, dur_ns=40),
        kernel("Memcpy", start_ns=300, dur_ns=5, kind="memcpy"),
    ]
    found = analyze(trace_of(activities=work))
    tops = {row["name"]: row["top"] for row in found.kernels.to_pylist()}
    assert tops == {
        "ampere_sgemm_1": "compute",
        "ampere_sgemm_2": "other",
        "ampere_sgemm_3": "compute",
        "Memcpy": "memory",
    }
    note = next(note for note in found.notes if note.code == "too-many-names")
    assert note.count == 2
    assert "(10 ns)" in note.text


def test_a_name_of_ops_that_were_all_set_aside_means_nothing() -> None:
    trace = trace_of(activities=[kernel()], ops=[{"name": "record_param_comms", "start_ns": 0}])
    without = replace(trace, tables={**trace.tables, "ops": trace.ops.slice(0, 0)})
    assert category_of(without) == category_of(trace_of(activities=[kernel()]))


@pytest.mark.parametrize(
    ("op_ns", "correlation", "called", "expected"),
    [
        (50, 7, False, 0),
        (150, 7, False, -1),
        (50, 5, False, -1),
        (50, 5, True, 0),
    ],
    ids=["before", "begins later", "the correlation is no op", "but a call has it"],
)
def test_an_op_by_external_id(op_ns: int, correlation: int, called: bool, expected: int) -> None:
    """Kineto writes the correlation as external id where it knows no op."""
    calls = [{"start_ns": 60, "correlation": correlation, "thread": 2, "external_id": 5}]
    trace = trace_of(
        activities=[kernel(correlation=correlation, external_id=5)],
        ops=[{"name": "aten::mm", "start_ns": op_ns, "dur_ns": 20, "external_id": 5}],
        calls=calls if called else [],
    )
    assert link(trace).op_of_activity.tolist() == [expected]
