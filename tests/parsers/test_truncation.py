"""A document cut anywhere: what is complete is used, the loss is said, nothing else is raised."""

import gzip
import json
import random
import zlib

import pytest

from tests.conftest import every
from tests.parsers import reference
from tests.parsers.documents import (
    LAYOUTS,
    METADATA,
    Document,
    Layout,
    Token,
    anchored,
    codes,
    counted,
    printed,
    read_bytes,
    rows_of,
)
from traceflops.errors import InputError

NESTED = [{"ph": "X", "cat": "kernel", "ts": 1, "name": "}, {"}, {"ph": "X", "l": [[], {}]}]
EVENTS = anchored(
    [
        {"ph": "X", "cat": "kernel", "name": "a}, {b", "pid": 0, "tid": 7, "ts": 5, "dur": 2},
        {"ph": "X", "cat": "kernel", "pid": 0, "ts": Token("6.001"), "args": {"l": NESTED}},
        {"ph": "X", "cat": "cuda_runtime", "name": '\U0001f600\\"]}', "ts": 4, "dur": 1},
        {"ph": "s", "cat": "ac2g", "id": 9, "ts": 5},
        {"ph": "X", "cat": "cpu_op", "name": "mm", "ts": 3, "args": {"Input Dims": [[1], []]}},
    ]
)
SAYS_SO = {"text-cut", "tail-cut", "input-cut"}


def check_cut(document: Document, text: bytes, what_was_read: bytes, size: int = 1 << 20) -> None:
    """Assert that a cut file gives the events whose text is whole, and says that it was cut."""
    whole = sum(end <= len(text) for end in document.ends)
    events = reference.events_of(reference.loads(document.data))[:whole]
    try:
        trace = read_bytes(what_was_read, size)
    except InputError as error:
        assert not events
        assert "\n" not in error.message
        assert error.hint
        return
    assert counted(rows_of(trace)) == counted(reference.read_rows(events))
    if text.rstrip() != document.data.rstrip():
        assert SAYS_SO & codes(trace), text[-40:]


@pytest.mark.parametrize(("layout", "step"), [*zip(LAYOUTS, [1, 7, 5, 3, 7, 7, 1], strict=True)])
def test_a_document_cut_anywhere(layout: Layout, step: int) -> None:
    document = printed(EVENTS, layout, METADATA)
    for cut in range(0, len(document.data), every(8) * step):
        text = document.data[:cut]
        check_cut(document, text, text)


@pytest.mark.parametrize("size", [1, 5, 64, 300])
def test_a_cut_document_in_small_blocks(size: int) -> None:
    document = printed(EVENTS, LAYOUTS[3], METADATA)
    for cut in range(0, len(document.data), every(3) * 7):
        text = document.data[:cut]
        check_cut(document, text, text, size)


def big_document() -> Document:
    order = random.Random(1)
    drawn = [
        {"ph": "X", "cat": "kernel", "name": f"k{order.random()}", "pid": 0, "ts": n, "dur": 1}
        for n in range(600)
    ]
    return printed(anchored(drawn), LAYOUTS[1], METADATA)


def test_a_gzip_cut_anywhere() -> None:
    document = big_document()
    packed = gzip.compress(document.data, mtime=0)
    for cut in [*range(40), *range(40, len(packed), 997), *range(len(packed) - 12, len(packed))]:
        text = zlib.decompressobj(wbits=31).decompress(packed[:cut]) if cut else b""
        if cut >= 2:
            check_cut(document, text, packed[:cut])


def test_the_note_of_a_cut_says_how_much_was_lost() -> None:
    document = printed(EVENTS, LAYOUTS[0], METADATA)
    trace = read_bytes(document.data[: document.ends[2] + 20])
    (note,) = [note for note in trace.notes if note.code == "text-cut"]
    assert note.count == 19  # all but the comma
    assert note.kind == "dropped"
    assert note.file == "trace.json"


def test_metadata_before_a_cut_is_used() -> None:
    document = printed(EVENTS, LAYOUTS[0], METADATA)
    trace = read_bytes(document.data[: document.ends[2] + 20])
    assert trace.ranks == (3,)
    assert trace.source.origin_unix_ns == METADATA["baseTimeNanoseconds"]


def test_metadata_behind_the_events_is_used_up_to_the_cut() -> None:
    data = printed(EVENTS, LAYOUTS[2], METADATA).data
    assert data.index(b'"distributedInfo"') > data.index(b'"traceEvents"')
    trace = read_bytes(data[: data.index(b'"baseTimeNanoseconds"') + 30])
    assert trace.ranks == (3,)
    assert trace.source.origin_unix_ns is None
    assert "tail-cut" in codes(trace)


@pytest.mark.parametrize("end", ["]", "]\n", "", "\n", ",", ",\n"])
def test_missing_closing_brackets_lose_no_event(end: str) -> None:
    data = json.dumps({"traceEvents": EVENTS[:2]}).removesuffix("]}")
    trace = read_bytes((data + end).encode())
    assert trace.activities["name"].to_pylist() == ["a}, {b"]
    assert SAYS_SO & codes(trace)
