"""What cannot be true of a recording, at the limits of the rules of docs/damage.md."""

import numpy as np
import pytest

from tests.build import launched, trace_of
from traceflops.parsers.shared.amounts import without_impossible_amounts
from traceflops.parsers.shared.repeats import without_repeats
from traceflops.parsers.shared.sanity_checks import overrunning


@pytest.mark.parametrize("gap_ns", [0, 5_000])
def test_one_end_that_is_wrong_shows_in_a_stream_that_never_runs_dry(gap_ns: int) -> None:
    """Forty kernels of 10 us, of which one seems to take 10 ms."""
    works = [
        ("k", 1_000 * at, (10_000 + gap_ns) * at + 1_000_000, 10_000_000 if at == 5 else 10_000)
        for at in range(40)
    ]
    run = launched(*works)
    for call in run["calls"]:
        call["name"] = "cudaLaunchKernel"
    assert np.flatnonzero(overrunning(trace_of(**run))).tolist() == [5]


def test_amounts_from_9_petabytes_on_are_impossible() -> None:
    rows = [
        {"name": "Memcpy", "kind": "memcpy", "start_ns": 100 * at, "bytes": size}
        for at, size in enumerate((2**53 - 1, 2**53, 0, -1))
    ]
    found = without_impossible_amounts(trace_of(activities=rows))
    assert found.activities["bytes"].to_pylist() == [2**53 - 1, None, 0, None]
    assert [note.count for note in found.notes] == [2]


@pytest.mark.parametrize(("dur_ns", "rows"), [(3_000, 2), (2_999, 3)])
def test_records_of_3_us_that_are_the_same_are_one(dur_ns: int, rows: int) -> None:
    """Shorter ones may be branches of a graph by a clock of whole microseconds."""
    one = {"name": "k", "start_ns": 1_001, "dur_ns": dur_ns, "correlation": 7}
    other = {**one, "start_ns": 9_000, "correlation": 8}
    found = without_repeats(trace_of(activities=[one, one, other]))
    assert found.activities.num_rows == rows
