"""A recording of Python functions alone: their own time, waiting, and where operators run."""

from typing import Any

import traceflops as tf
from tests.build import trace_of

MS = 1_000_000
QUEUE = "<built-in method get of _queue.SimpleQueue object at 0xe3faa6368c70>"


def function(name: str, start_ms: int, dur_ms: int, thread: int = 1) -> dict[str, Any]:
    times = {"start_ns": start_ms * MS, "dur_ns": dur_ms * MS}
    return {"name": name, "kind": "python", "thread": thread, **times}


def test_functions_are_told_by_their_own_time() -> None:
    handler = "x.py(1): f"
    frames = [
        function("threading.py(1030): _bootstrap", 0, 100),
        function(QUEUE, 0, 99),
        function(handler, 0, 20, thread=2),
        function("y.py(2): decode", 5, 10, thread=2),
    ]
    found = tf.analyze(trace_of(devices=[], marks=frames))
    assert found.untimed is not None
    rows = found.untimed.rows.to_pylist()
    # Of 120 ms of both threads 99 are waiting; the bootstrap itself takes 1 of its 100.
    assert [(row["kind"], row["name"], row["sum_ns"] // MS) for row in rows] == [
        ("python", handler, 10),
        ("python", "y.py(2): decode", 10),
        ("python", "threading.py(1030): _bootstrap", 1),
        ("python", QUEUE, 99),
    ]
