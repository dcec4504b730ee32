"""From which instant times count: from one for all, or from that of each process."""

import pytest
from msgspec.structs import replace

from tests.build import trace_of
from traceflops.analysis.preparation import prepare
from traceflops.table.trace import Note, Trace
from traceflops.windows.prepared import origins


def two(second_start_ns: int) -> Trace:
    """Return two processes with a device each: work of 100 ns from 1,000 and from another time."""
    starts = (1_000, second_start_ns)
    work = [{"name": "k", "process": n, "device": n, "dur_ns": 100} for n in range(2)]
    return trace_of(
        processes=[{"process": 0}, {"process": 1}],
        devices=[{"device": n, "process": n} for n in range(2)],
        activities=[one | {"start_ns": start} for one, start in zip(work, starts, strict=True)],
    )


def test_one_clock_has_one_origin() -> None:
    found = origins(prepare(two(1_050)))
    assert (found.of_process, found.of_device, found.aligned) == (
        {0: 1_000, 1: 1_000},
        {0: 1_000, 1: 1_000},
        True,
    )


@pytest.mark.parametrize("said", [True, False])
def test_clocks_that_cannot_be_compared_have_one_each(said: bool) -> None:
    """Either a reader says so, or the work of one ends before that of the other begins."""
    trace = two(1_050 if said else 9_000)
    if said:
        trace = replace(trace, notes=(Note("assumed", "clocks-not-aligned", "apart"),))
    found = origins(prepare(trace))
    assert found.of_device == {0: 1_000, 1: 1_050 if said else 9_000}
    assert not found.aligned


def test_without_work_there_is_none() -> None:
    assert origins(prepare(trace_of())).of_process == {}
