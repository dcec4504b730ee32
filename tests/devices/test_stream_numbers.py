"""Numbers for streams that share one: the first keeps it, the others get free ones."""

from __future__ import annotations

from traceflops.devices.processes import apart


def test_the_first_keeps_its_number_and_others_get_the_next_free_ones() -> None:
    found = apart({7: [["a"], ["b", "c"]], 3: [["d"], ["e"]]})
    assert found == {"d": 3, "e": 8, "a": 7, "b": 9, "c": 9}


def test_there_is_room_for_streams_beside_the_largest_number_of_all() -> None:
    largest = 2**63 - 1
    found = apart({largest: [["a"], ["b"]], 0: [["c"], ["d"]]})
    assert (found["a"], found["c"]) == (largest, 0)
    assert sorted((found["b"], found["d"])) == [1, 2]
