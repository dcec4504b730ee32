"""What autograd's own thread launches belongs to the range around the backward call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.build import trace_of
from traceflops import Trace
from traceflops.analysis.preparation import prepare
from traceflops.attribution.device_work import Launched, annotated

MAIN, ENGINE, LOADER = 1, 2, 3
NODE = "autograd::engine::evaluate_function: MmBackward0"


def event(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start, "dur_ns": end - start, **more}


def made(
    launches: list[tuple[int, int]],
    ranges: list[tuple[str, int, int, int]],
    ops: list[dict[str, Any]] | None = None,
) -> Trace:
    """Return a kernel per launch (thread, time) and ranges (name, thread, start, end)."""
    numbered = [*enumerate(launches, 1)]
    return trace_of(
        marks=[event(name, start, end, thread=thread) for name, thread, start, end in ranges],
        ops=ops or [],
        calls=[
            {"thread": thread, "start_ns": at, "dur_ns": 2, "correlation": n}
            for n, (thread, at) in numbered
        ],
        activities=[
            {"name": "k", "start_ns": at + 5, "dur_ns": 9, "correlation": n}
            for n, (_, at) in numbered
        ],
    )


def around(trace: Trace) -> list[str | None]:
    """Return the range of each kernel, in the order of their starts."""
    prepared = prepare(trace)
    code, texts = annotated(Launched.of(prepared, np.arange(trace.activities.num_rows)))
    return [texts[one] if one >= 0 else None for one in code.tolist()]


FORWARD = ("forward", MAIN, 0, 100)
BACKWARD = ("loss.backward", MAIN, 100, 300)
FORWARD_OP = event("aten::mm", 10, 30, thread=MAIN, sequence=5)
BACKWARD_OP = event(NODE, 190, 260, thread=ENGINE, sequence=5, forward_thread=1)
IN_BOTH = [(MAIN, 20), (ENGINE, 200)]

CASES: dict[str, tuple[Trace, list[str | None]]] = {
    "calls alone": (made(IN_BOTH, [FORWARD, BACKWARD]), ["forward", "loss.backward"]),
    "operators": (
        made(IN_BOTH, [FORWARD, BACKWARD], [FORWARD_OP, BACKWARD_OP]),
        ["forward", "loss.backward"],
    ),
    "the forward operator where none is around the backward call": (
        made(IN_BOTH, [FORWARD], [FORWARD_OP, BACKWARD_OP]),
        ["forward", "forward"],
    ),
    "the inner range of the forward operator in one around both": (
        made(IN_BOTH, [("train", MAIN, 0, 400), FORWARD], [FORWARD_OP, BACKWARD_OP]),
        ["forward", "forward"],
    ),
    "nodes without numbers": (
        made(IN_BOTH, [("phase 2", MAIN, 100, 300)], [event(NODE, 190, 260, thread=ENGINE)]),
        [None, "phase 2"],
    ),
    "a range that does not say so, while the other thread waits": (
        made([(MAIN, 20), (ENGINE, 200), (ENGINE, 210)], [FORWARD, ("phase 2", MAIN, 100, 300)]),
        ["forward", "phase 2", "phase 2"],
    ),
    "a thread that launches between the calls of the other": (
        made([(MAIN, 10), (LOADER, 20), (MAIN, 30), (LOADER, 40), (MAIN, 50)], [FORWARD]),
        ["forward", None, "forward", None, "forward"],
    ),
    "a range of a thread that launches less": (
        made(
            [(MAIN, 20), (MAIN, 30), (ENGINE, 200)],
            [FORWARD, BACKWARD, ("grad bucket", LOADER, 150, 250)],
        ),
        ["forward", "forward", "loss.backward"],
    ),
    "its own range": (
        made([*IN_BOTH, (ENGINE, 230)], [FORWARD, BACKWARD, ("hook", ENGINE, 190, 210)]),
        ["forward", "hook", "loss.backward"],
    ),
    "a range of a thread that loads data": (
        made([(LOADER, 5), *((MAIN, 20 + n) for n in range(20))], [("load", LOADER, 0, 300)]),
        ["load", *[None] * 20],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_backward_work_belongs_to_the_range_around_the_call(case: str) -> None:
    trace, expected = CASES[case]
    assert around(trace) == expected
