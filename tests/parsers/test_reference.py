"""Any well-formed document gives exactly the rows of the reference reader, however it arrives."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import every, examples
from tests.parsers import reference
from tests.parsers.documents import (
    COMPACT,
    LAYOUTS,
    METADATA,
    Layout,
    Token,
    anchored,
    counted,
    events,
    printed,
    read_bytes,
    rows_of,
)

documents = st.lists(events(), max_size=6).map(anchored)
careful = settings(max_examples=examples(250), suppress_health_check=list(HealthCheck))


def expected(data: bytes) -> dict[str, object]:
    return {**counted(reference.read_rows(reference.events_of(reference.loads(data))))}


@careful
@given(documents, st.sampled_from(LAYOUTS), st.sampled_from([1, 2, 7, 64, 4096]))
def test_rows_are_the_references_in_every_layout_and_block_size(
    drawn: list[object], layout: Layout, size: int
) -> None:
    data = printed(drawn, layout, METADATA).data
    trace = read_bytes(data, size)
    assert counted(rows_of(trace)) == expected(data)
    assert not {"json-dropped", "json-repaired", "text-cut", "tail-cut"} & {
        note.code for note in trace.notes
    }


@careful
@given(documents, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(drawn: list[object], order: random.Random) -> None:
    shuffled = []
    for event in drawn:
        assert isinstance(event, dict)
        keys = list(event)
        order.shuffle(keys)
        shuffled.append({key: event[key] for key in keys})
    one = read_bytes(printed(drawn, COMPACT, METADATA).data)
    other = read_bytes(printed(shuffled, COMPACT, METADATA).data, 64)
    assert counted(rows_of(one)) == counted(rows_of(other))


@pytest.mark.parametrize("size", range(1, 200, every(3) * 3))
def test_block_edges_may_fall_anywhere(size: int) -> None:
    nested = [{"ph": "X", "cat": "kernel", "ts": 1, "name": "}, {"}, {"ph": "X"}]
    drawn = anchored(
        [
            {"ph": "X", "cat": "kernel", "name": "a}, {b", "pid": 0, "tid": 7, "ts": 5, "dur": 2},
            {"ph": "X", "cat": "kernel", "pid": 0, "ts": Token("6.001"), "args": {"l": nested}},
            {"ph": "X", "cat": "cuda_runtime", "name": "\U0001f600", "ts": 4, "dur": 1},
        ]
    )
    for layout in LAYOUTS:
        data = printed(drawn, layout, METADATA).data
        assert counted(rows_of(read_bytes(data, size))) == expected(data)


def test_rows_come_in_the_order_of_time() -> None:
    drawn = anchored([{"ph": "X", "cat": "kernel", "name": str(t), "ts": t} for t in (9, 3, 7)])
    trace = read_bytes(printed(drawn, COMPACT, {}).data)
    assert trace.activities["name"].to_pylist() == ["3", "7", "9"]


def test_every_event_is_counted_by_category() -> None:
    drawn = anchored([{"ph": "M", "name": "x"}] * 3 + [{"ph": "X", "cat": "new", "ts": 1}] * 2)
    trace = read_bytes(printed(drawn, COMPACT, {}).data)
    assert trace.source.event_counts == {"cpu_op": 1, "phase M": 3, "new": 2}


def test_an_event_larger_than_many_blocks_is_one_event() -> None:
    shapes = [[n, n] for n in range(20_000)]
    drawn = anchored([{"ph": "X", "cat": "cpu_op", "ts": 2, "args": {"Input Dims": shapes}}])
    data = printed(drawn, COMPACT, {}).data
    assert rows_of(read_bytes(data, 1000))["ops"][1]["input_dims"] == shapes
