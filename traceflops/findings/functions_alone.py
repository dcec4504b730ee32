"""What Python functions tell of a process in which no operator ran: waiting, and for whom."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from traceflops.facts import Fact, fact
from traceflops.table.patterns import FUNCTION_WAITS

_FRONT_ENDS: Final = {
    "vLLM": re.compile(r"(^|/)vllm/(v1/engine/(async_llm|core_client)|entrypoints/)"),
    "SGLang": re.compile(r"(^|/)sglang/srt/(managers/tokenizer_manager|entrypoints/http_server)"),
}
"""Functions of the processes that take requests, by engine; others run the model."""


def functions_alone(rows: pa.Table) -> tuple[Fact, ...]:
    """Return how much of the time of functions is waiting, and where operators may be recorded.

    `rows` are the functions by name, with their own times in all. If the functions are those of the
    front end of a serving engine, the engine is named: its operators run in another process.
    """
    names, times = rows["name"].to_pylist(), rows["sum_ns"].to_pylist()
    all_ns = sum(times)
    waits_ns = sum(ns for name, ns in zip(names, times, strict=True) if FUNCTION_WAITS.search(name))
    fits = (
        engine for engine, own in _FRONT_ENDS.items() if any(own.search(name) for name in names)
    )
    waits = (fact("verdict.functions-wait", share=waits_ns / all_ns),) if waits_ns else ()
    return (*waits, fact("verdict.functions-elsewhere", engine=next(fits, None)))
