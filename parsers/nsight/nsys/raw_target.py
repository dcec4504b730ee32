"""The GPUs and the clock of a report, as rows of the tables that its export would have.

They stand before and behind the events, among command lines and variables of the environment: only
the fields named here are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from traceflops.parsers.io import fields, last_fields, message_text, parts_of, signed
from traceflops.parsers.nsight.nsys.raw_events import Numbers

_MACHINE, _HARDWARE = 1, 2
_OLD_GPU, _GPU, _NUMBERS = 1, 7, 9
_MOST_GPUS: Final = 4_096
_OF_GPU: Final[Numbers] = (
    *((1, "id"), (11, "totalMemory"), (13, "clockRate"), (14, "smCount"), (30, "threadsPerWarp")),
    *((15, "cuDevice"), (41, "computeMajor"), (42, "computeMinor")),
)
_TEXTS_OF_GPU: Final[Numbers] = ((2, "name"), (3, "busLocation"), (5, "uuid"))
_OF_OLD_GPU: Final[Numbers] = (
    *((3, "globalMemorySize"), (6, "numThreadsPerWarp"), (7, "coreClockRate")),
    *((9, "numMultiprocessors"), (22, "computeCapabilityMajor"), (23, "computeCapabilityMinor")),
    *((24, "deviceId"), (25, "pid")),
)
"""GPUs as reports of 2020 and 2021 list them, by process."""
_TEXTS_OF_OLD_GPU: Final[Numbers] = ((1, "name"),)
_OF_NUMBERS: Final[Numbers] = ((1, "gpuId"), (2, "cudaId"), (3, "pid"))
_OFFSETS, _STARTED = 16, 17
_SESSION, _UTC = 7, 9
_PAIRS: Final = 2
_LATEST: Final = 2**62
_RECENT_NS: Final = 10**18
"""Times since 1970 are later than that since 2001; those since the start of a machine never are."""


@dataclass(frozen=True, slots=True)
class Target:
    """Rows by table, the number of unknown ordinals of GPUs, and the number of machines."""

    tables: dict[str, list[pa.RecordBatch]]
    unknown_numbers: int
    machines: int


def target_tables(head: bytes, tail: bytes, clocks: bytes) -> Target:
    """Return what is known of the GPUs, of their ordinals in processes, and of the calendar."""
    machines, _ = parts_of(tail, _MACHINE)
    hardware = [part for machine in machines for part in parts_of(machine, _HARDWARE)[0]]

    def listed(key: int) -> list[dict[int, Any]]:
        parts = (part for own in hardware for part in parts_of(own, key)[0])
        return [last_fields(part) for part in islice(parts, _MOST_GPUS)]

    numbers = listed(_NUMBERS)
    # Which of the two is the GPU's own number is unknown: both orders must give the same.
    pairs = {tuple(row.get(key, 0) for key in (3, 1, 2)) for row in numbers}
    known = [row for row in numbers if (row.get(3, 0), row.get(2, 0), row.get(1, 0)) in pairs]
    origin = _origin(head, clocks)
    rows = {
        "TARGET_INFO_GPU": [_row(gpu, _OF_GPU, _TEXTS_OF_GPU) for gpu in listed(_GPU)],
        "TARGET_INFO_CUDA_GPU": [
            _row(gpu, _OF_OLD_GPU, _TEXTS_OF_OLD_GPU) for gpu in listed(_OLD_GPU)
        ],
        "TARGET_INFO_CUDA_DEVICE": [_row(row, _OF_NUMBERS) for row in known],
        "TARGET_INFO_SESSION_START_TIME": [] if origin is None else [{"utcEpochNs": origin}],
    }
    tables = {name: [pa.RecordBatch.from_pylist(some)] for name, some in rows.items() if some}
    return Target(tables, len(numbers) - len(known), len(machines))


def _row(message: Mapping[int, Any], numbers: Numbers, texts: Numbers = ()) -> dict[str, Any]:
    """Return numbers and texts by name; a number that is left out is 0."""
    row: dict[str, Any] = {}
    for key, name in numbers:
        value = message.get(key, 0)
        row[name] = value if isinstance(value, int) and value < _LATEST else None
    return row | {name: message_text(message.get(key)) for key, name in texts}


def _origin(head: bytes, clocks: bytes) -> int | None:
    """Return the session's time 0 in ns since 1970; None where it is unknown."""
    started, messages = 0, []
    try:
        for key, value in fields(head):
            if key == _OFFSETS and isinstance(value, bytes):
                messages += parts_of(value, 1)[0]
            elif key == _STARTED and isinstance(value, int):
                started = value
    except ValueError:
        return None
    origin = _by_offsets(messages)
    return _by_pairs(clocks, started) if origin is None else origin


def _by_offsets(messages: list[bytes]) -> int | None:
    """Return the calendar's time when the session's clock shows 0.

    A message gives two clocks and how far the first is ahead of the second.
    """
    edges: list[tuple[int, int, int]] = []
    for offset in map(last_fields, messages):
        digits = message_text(offset.get(5))
        number = digits.removeprefix("-")
        if number.isascii() and number.isdecimal() and len(number) <= 20:
            edges.append((offset.get(1, 0), offset.get(2, 0), int(digits)))
    times = {_SESSION: 0}
    for _ in edges:  # no path is longer than there are edges
        for first, second, ahead in edges:
            if first in times:
                times.setdefault(second, times[first] - ahead)
            elif second in times:
                times[first] = times[second] + ahead
    time = signed(times.get(_UTC, 0) % 2**64)
    return time if 0 < time < _LATEST else None


def _by_pairs(clocks: bytes, started: int) -> int | None:
    """Return the same from the newest pair of times of the calendar and of the session's clock.

    The session's clock is the one that shows its own 0 as `started`, or one that shows the same.
    """
    edges: list[tuple[Any, Any, tuple[int, int]]] = []
    messages = (part for own in parts_of(clocks, _PAIRS)[0] for part in parts_of(own, 1)[0])
    for edge in map(last_fields, messages):
        times = edge.get(3)
        for pair in map(last_fields, parts_of(times, 1)[0] if isinstance(times, bytes) else ()):
            at_once = pair.get(1, 0), pair.get(2, 0)
            if all(isinstance(time, int) for time in at_once):
                edges.append((edge.get(1), edge.get(2), at_once))
    own = {first for first, _, pair in edges if pair == (started, 0)}
    own |= {first for first, second, pair in edges if second in own and pair == (0, 0)}
    pairs = [pair for _, second, pair in edges if second in own and pair[0] > _RECENT_NS]
    if not pairs:
        return None
    calendar, session = max(pairs)
    return calendar + started - session
