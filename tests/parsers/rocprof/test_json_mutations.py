"""Damaged JSON of rocprof is read or refused: a trace or an InputError, nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceflops as tf
from tests.conftest import every, examples, some
from tests.parsers.documents import read_one
from tests.parsers.rocprof import jsonfile as v3
from tests.parsers.rocprof import test_json_v1 as v1
from traceflops.errors import InputError
from traceflops.parsers.io.worker_pool import WorkerPool
from traceflops.parsers.rocprof.v1_read import read_v1_json
from traceflops.parsers.rocprof.v3json_run import read_v3_json

START = v3.START


def rich_v3() -> bytes:
    one = v3.process(
        v3.dispatch(START, START + 5, 1, graph={"graph_exec_id": 1, "graph_node_id": 2}),
        v3.dispatch(START + 9, START + 50, 2, kernel_id=3),
        hip_api=[v3.call(START + 3, START + 4, "HIP_RUNTIME_API", "hipLaunchKernel", 2)],
        rccl_api=[v3.call(START, START + 8, "RCCL_API", "ncclAllReduce", 1)],
        memory_copy=[v3.copy(START, START + 1, "MEMORY_COPY_HOST_TO_DEVICE", v3.CPU, v3.GPU)],
        marker_api=[v3.call(START, START + 9, "MARKER_CORE_API", "roctxMarkA", 5)],
        messages={5: "step"},
        countings=[v3.counted(1, (1, 2.0), (1, 3.0))],
        counters={1: "SQ_WAVES"},
    )
    return json.dumps(v3.document(one, one)).encode()


def rich_v1() -> bytes:
    at = v1.AT
    return v1.text(
        v1.kernel(at, at + 5, SQ_WAVES="4.0"),
        v1.work(at, at + 10, "CopyHostToDevice", 1, stream=0),
        v1.call(at - 9_000, at - 8_000, "hipMemcpyAsync"),
        v1.event("s", 0, 7, {"BeginNs": at, "EndNs": at + 1, "pid": 7, "tid": 7, "Name": "s"}),
        v1.arrow(0, at // 1000 - 9, at // 1000, (1, 0)),
    )


SEEDS = {"v3": rich_v3(), "v1": rich_v1()}
JUNK = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\0", b"\xff", b"1e999", b"-", b"null"]
VALUES: list[Any] = [
    -1,
    0,
    2**31,
    2**53 + 1,
    2**62,
    2**63,
    2**64,
    10**30,
    1.5,
    True,
    None,
    "7",
    "x",
    [],
    {},
]


def read_anything(seed: str, data: bytes, block_bytes: int) -> None:
    """Read a text by its reader in blocks, and by what it looks like; analyse what comes out."""
    try:
        if seed == "v3":
            read_v3_json(v3.source(data), WorkerPool(), block_bytes)
        else:
            read_v1_json(v3.source(data), WorkerPool(), block_bytes)
    except InputError as error:
        assert error.message.isprintable()
    try:
        trace = read_one(v3.source(data))
    except InputError as error:
        assert error.hint
        return
    assert all(note.text.endswith(".") for note in trace.notes)
    if trace.activities.num_rows:
        assert tf.analyze(trace).to_json()


@pytest.mark.parametrize("seed", SEEDS)
@settings(max_examples=examples(120))
@given(data=st.data())
def test_damaged_bytes(seed: str, data: st.DataObject) -> None:
    text = bytearray(SEEDS[seed])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        how = data.draw(st.sampled_from(["flip", "cut out", "put in", "end", "repeat"]))
        if how == "flip" and at < len(text):
            text[at] = data.draw(st.integers(0, 255))
        elif how == "cut out":
            del text[at : at + data.draw(st.integers(1, 300))]
        elif how == "put in":
            text[at:at] = data.draw(st.sampled_from(JUNK))
        elif how == "end":
            del text[at:]
        else:
            text[at:at] = text[max(0, at - 200) : at]
    read_anything(seed, bytes(text), data.draw(st.sampled_from([1, 500, 1 << 22])))


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_that_are_no_text_in_every_key(seed: str) -> None:
    for key in sorted(set(re.findall(rb'"([^"]+)"\s*:', SEEDS[seed])))[:: every(25)]:
        for odd in (b"\xff", b"\\ud800", b"\\u0000"):
            changed = SEEDS[seed].replace(b'"' + key + b'"', b'"' + odd + key + b'"')
            read_anything(seed, changed, 1 << 22)


@settings(max_examples=examples(120))
@given(data=st.data())
def test_odd_values(data: st.DataObject) -> None:
    """Sound JSON in which some values are of another kind, missing or without measure."""
    document = json.loads(SEEDS["v3"])
    for _ in range(data.draw(st.integers(1, 6))):
        _change(document, data)
    read_anything("v3", json.dumps(document).encode(), 1 << 22)


def _change(value: Any, data: st.DataObject) -> None:
    """Go down to some place of a value and change what stands there."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 9)):
            value = inner
            continue
        if data.draw(st.integers(0, 4)):
            value[key] = data.draw(st.sampled_from(VALUES))
        else:
            del value[key]
        return


@pytest.mark.parametrize("odd", some([2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 1e308], 4))
def test_numbers_without_measure_in_every_field(odd: float) -> None:
    for name in (
        "x",
        "handle",
        "kernel_id",
        "dispatch_id",
        "kind",
        "operation",
        "bytes",
        "node_id",
    ):
        parts = SEEDS["v3"].decode().split(f'"{name}": ')
        changed = f'"{name}": {odd}, "was": '.join(parts)
        read_anything("v3", changed.encode(), 1 << 22)
    for name in ("gpu-id", "pid", "tid", "queue-id", "BeginNs", "dev-id", "grd", "wgr", "SQ_WAVES"):
        changed = SEEDS["v1"].decode().replace(f'"{name}":"', f'"{name}":"{odd}","was":"')
        read_anything("v1", changed.encode(), 1 << 22)
