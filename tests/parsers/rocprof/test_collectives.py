"""Which collective a kernel of RCCL ran, from the calls inside which it was launched."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflops.parsers.shared.collectives import COLLECTIVES, data_type, fill_collectives
from traceflops.parsers.shared.trace_builder import ProcessFacts, TraceBuilder
from traceflops.table.columns import ABSENT

GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
FIELDS = (
    "collective",
    "collective_dtype",
    "collective_in_elements",
    "collective_out_elements",
    "collective_group_size",
)


class Capture:
    """Calls in the order in which they are made, and kernels by the calls that launch them."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.process = self.builder.process("one", ProcessFacts("made.csv"))
        self.device = self.builder.device(0, self.process, 0)
        self.arguments: dict[int, dict[str, str]] = {}

    def add(self, table: str, **cells: Any) -> None:
        rows = self.builder[table]
        columns = {
            name: np.array([rows.names[name][cell]]) if isinstance(cell, str) else cell
            for name, cell in cells.items()
        }
        rows.add(1, process=self.process, **columns)

    def call(
        self, name: str, start: int, end: int, *, thread: int = 1, id_: int = ABSENT, **given: Any
    ) -> None:
        """Add a call of HIP or RCCL, and what it was given."""
        if given:
            self.arguments[self.builder["calls"].count] = given
        api = "rccl" if name.startswith("nccl") else "hip"
        self.add(
            "calls",
            name=name,
            api=api,
            start_ns=start,
            dur_ns=end - start,
            thread=thread,
            correlation=id_,
        )

    def kernel(self, launch: int, id_: int, *, thread: int = 1, name: str = GENERIC) -> None:
        """Add a kernel and the HIP call that launches it at a time."""
        self.call("hipLaunchKernel", launch, launch + 1, thread=thread, id_=id_)
        self.executed(launch + 50, id_, name)

    def executed(self, start: int, id_: int, name: str = GENERIC) -> None:
        """Add a kernel alone."""
        self.add(
            "activities",
            device=self.device,
            kind="kernel",
            name=name,
            start_ns=start,
            dur_ns=9,
            correlation=id_,
        )

    def filled(self) -> list[tuple[Any, ...]]:
        """Return what is known of each kernel in the order in which they start."""
        self.count = fill_collectives(self.builder, self.arguments)
        table = self.builder.finish()["activities"]
        return [tuple(row[field] for field in FIELDS) for row in table.to_pylist()]


NOTHING = (None,) * 5


def test_a_call_names_the_kernel_it_launches_and_says_what_it_moves() -> None:
    capture = Capture()
    capture.call("ncclCommInitRank", 0, 5, newcomm="0x7f1", nranks="8", myrank="3")
    capture.call("ncclAllReduce", 10, 20, count="4096", datatype="ncclBfloat16", comm="0xa")
    capture.kernel(12, 7)
    assert capture.filled() == [("allreduce", "BFloat16", 4096, 4096, 8)]
    assert capture.count == 1


@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        ("ncclAllGather", {"sendcount": "10"}, ("allgather", 10, 40)),
        ("ncclReduceScatter", {"recvcount": "10"}, ("reduce_scatter", 40, 10)),
        ("ncclAllToAll", {"count": "10"}, ("all_to_all", 40, 40)),
        ("ncclBroadcast", {"count": "10", "root": "0"}, ("broadcast", None, 10)),
        ("ncclReduce", {"count": "10", "root": "0"}, ("reduce", 10, None)),
        ("ncclSend", {"count": "10", "peer": "1"}, ("send", 10, 0)),
        ("ncclRecv", {"count": "10", "peer": "1"}, ("recv", 0, 10)),
        ("ncclAllToAllv", {"sendcounts": "0x7ffe"}, ("all_to_allv", None, None)),
        ("ncclAllReduce", {"count": "many"}, ("allreduce", None, None)),
    ],
)
def test_what_each_call_moves(call: str, given: dict[str, Any], expected: tuple[Any, ...]) -> None:
    capture = Capture()
    capture.call("ncclCommInitAll", 0, 5, comms="0x1", ndev="4", devlist="0x2")
    capture.call(call, 10, 20, **given, datatype="7")
    capture.kernel(12, 1)
    name, puts, gets = expected
    assert capture.filled() == [(name, "Float", puts, gets, 4)]


def test_without_arguments_the_kind_is_known_and_nothing_else() -> None:
    capture = Capture()
    capture.call("ncclAllGather", 10, 20)
    capture.kernel(12, 1)
    assert capture.filled() == [("allgather", None, None, None, None)]


def test_without_hip_calls_the_kernel_carries_the_id_of_the_rccl_call() -> None:
    capture = Capture()
    capture.call("ncclReduceScatter", 10, 20, id_=5)
    capture.executed(60, 5)
    assert capture.filled()[0][0] == "reduce_scatter"


def test_a_group_is_launched_by_its_end() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    for start in (2, 4):
        capture.call("ncclAllReduce", start, start + 1, count="5", datatype="6")
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    assert capture.filled() == [("allreduce", "Half", 10, 10, None)]


def test_as_many_kernels_as_equal_calls_ran_one_each() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    for start in (2, 4):
        capture.call("ncclAllReduce", start, start + 1, count="5", datatype="6")
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    capture.kernel(14, 2)
    assert capture.filled() == [("allreduce", "Half", 5, 5, None)] * 2


def test_more_kernels_than_calls_have_no_counts() -> None:
    capture = Capture()
    capture.call("ncclAllReduce", 10, 20, count="5", datatype="6")
    capture.kernel(12, 1)
    capture.kernel(14, 2)
    assert capture.filled() == [("allreduce", "Half", None, None, None)] * 2


def test_sends_and_receives_of_one_group_are_one_exchange() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    capture.call("ncclSend", 2, 3, count="5", datatype="6")
    capture.call("ncclRecv", 4, 5, count="7", datatype="6")
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    assert capture.filled() == [("sendrecv", "Half", 5, 7, None)]


def test_a_group_of_several_kinds_is_ambiguous() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    capture.call("ncclAllGather", 2, 3)
    capture.call("ncclReduceScatter", 4, 5)
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    assert capture.filled() == [NOTHING]
    assert capture.count == 0


def test_groups_inside_groups_are_launched_by_the_outer_end() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    capture.call("ncclGroupStart", 2, 3)
    capture.call("ncclBroadcast", 4, 5)
    capture.call("ncclGroupEnd", 6, 7)
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    assert capture.filled()[0][0] == "broadcast"


def test_the_end_of_a_group_that_began_before_the_capture_tells_nothing() -> None:
    capture = Capture()
    capture.call("ncclAllReduce", 2, 3)
    capture.call("ncclGroupEnd", 10, 30)
    capture.kernel(12, 1)
    capture.call("ncclAllReduce", 40, 50)
    capture.kernel(41, 2)
    assert [row[0] for row in capture.filled()] == [None, "allreduce"]


def test_a_group_that_does_not_end_tells_nothing() -> None:
    capture = Capture()
    capture.call("ncclGroupStart", 0, 1)
    capture.call("ncclAllReduce", 2, 9)
    capture.kernel(4, 1)
    assert capture.filled() == [NOTHING]


def test_calls_inside_a_call_do_not_count() -> None:
    capture = Capture()
    capture.call("ncclAllReduce", 10, 40)
    capture.call("ncclCommGetAsyncError", 11, 12)
    capture.call("ncclGroupStart", 13, 14)
    capture.call("ncclGroupEnd", 15, 16)
    capture.kernel(20, 1)
    assert capture.filled()[0][0] == "allreduce"


def test_what_another_thread_launches_meanwhile_is_not_of_the_call() -> None:
    capture = Capture()
    capture.call("ncclAllReduce", 10, 40)
    capture.kernel(20, 1, thread=2)
    capture.kernel(50, 2)
    assert capture.filled() == [NOTHING, NOTHING]


def test_copies_and_other_kernels_inside_a_call_are_not_collectives() -> None:
    capture = Capture()
    capture.call("ncclAllReduce", 10, 40)
    capture.kernel(20, 1, name="__amd_rocclr_copyBuffer")
    assert capture.filled() == [NOTHING]


def test_communicators_of_several_sizes_are_told_apart_or_not_at_all() -> None:
    capture = Capture()
    capture.call("ncclCommInitRank", 0, 1, newcomm="0xa", nranks="8")
    capture.call("ncclCommInitRankConfig", 2, 3, comm="0xb", nranks="2")
    capture.call("ncclAllReduce", 10, 20, comm="0xb")
    capture.kernel(12, 1)
    capture.call("ncclAllReduce", 30, 40, comm="0xc")
    capture.kernel(32, 2)
    assert [row[-1] for row in capture.filled()] == [2, None]


def test_a_split_communicator_has_a_size_that_no_argument_says() -> None:
    capture = Capture()
    capture.call("ncclCommInitRank", 0, 1, newcomm="0xa", nranks="8")
    capture.call("ncclCommSplit", 2, 3, comm="0xa", color="1", key="0", newcomm="0xb")
    capture.call("ncclAllReduce", 10, 20, comm="0xc")
    capture.kernel(12, 1)
    assert capture.filled()[0][-1] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ncclFloat", "Float"), ("9", "BFloat16"), ("ncclDataType_t::ncclInt64", "Long")],
)
def test_data_types_by_name_or_number(text: str, expected: str) -> None:
    assert data_type(text) == expected


def test_unknown_data_types_stay_unknown() -> None:
    assert data_type(None) is None
    assert data_type("99") is None


NAMES = [*COLLECTIVES, "ncclGroupStart", "ncclGroupEnd", "ncclCommInitRank", "hipMalloc"]


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.integers(0, 60),
            st.integers(-3, 40),
            st.sampled_from([1, 2, ABSENT]),
            st.dictionaries(
                st.sampled_from(["count", "sendcount", "recvcount", "datatype", "comm", "nranks"]),
                st.sampled_from(["7", "-1", "", "9" * 30, "ncclInt8", "0x1", "999999999999999999"]),
            ),
        ),
        max_size=30,
    ),
    launches=st.lists(st.integers(0, 60), max_size=10),
)
def test_no_sequence_of_calls_is_too_odd(calls: list[Any], launches: list[int]) -> None:
    capture = Capture()
    for name, start, length, thread, given_ in calls:
        capture.call(name, start, start + length, thread=thread, **given_)
    for id_, launch in enumerate(launches):
        capture.kernel(launch, id_)
    known = {kind.name for kind in COLLECTIVES.values()} | {"sendrecv", None}
    assert {row[0] for row in capture.filled()} <= known


def test_a_capture_without_rccl_is_left_alone() -> None:
    capture = Capture()
    capture.kernel(12, 1)
    assert capture.filled() == [NOTHING]
    assert Capture().filled() == []


@pytest.mark.parametrize(
    ("made", "used", "expected"),
    [
        # The calls name the place where a communicator is put: there are as many as are used.
        (["0x7f1"], ["0xa"], [8]),
        (["0x7f1", "0x7f2"], ["0xa", "0xb"], [8, 8]),
        # More are used than were made: one of them was made before the capture.
        (["0x7f1"], ["0xa", "0xb"], [None, None]),
        # The calls name communicators themselves: one that none of them made is not known.
        (["0xa"], ["0xa", "0xe"], [8, None]),
        (["0xa", "0xb"], ["0xa", "0xe"], [8, None]),
        # The calls that make them name none: no more may be used than were made.
        ([None], ["0xa"], [8]),
        ([None], ["0xa", "0xb"], [None, None]),
        # A collective does not name its own: it is one of those made.
        (["0xa"], [None], [8]),
    ],
)
def test_ranks_of_a_communicator_that_nobody_made_are_not_guessed(
    made: list[str | None], used: list[str | None], expected: list[int | None]
) -> None:
    capture = Capture()
    for place, communicator in enumerate(made):
        named: dict[str, Any] = {"newcomm": communicator} if communicator is not None else {}
        capture.call("ncclCommInitRank", place, place + 1, **named, nranks="8")
    for place, communicator in enumerate(used):
        start = 100 * (place + 1)
        named = {"comm": communicator} if communicator is not None else {}
        capture.call("ncclAllGather", start, start + 50, sendcount="10", datatype="7", **named)
        capture.kernel(start + 10, place + 1)
    found = capture.filled()
    assert [row[-1] for row in found] == expected
    assert [row[3] for row in found] == [None if ranks is None else 80 for ranks in expected]
