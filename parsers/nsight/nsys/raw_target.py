"""What a report says of its GPUs and its clock, as rows of the tables that its export would have.

It stands before and behind the events, among command lines and variables of the environment: only
the fields that are named here are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
"""Since 2001 the nanoseconds since 1970 are more than that; no clock that counts from the start of
a machine is."""


@dataclass(frozen=True, slots=True)
class Target:
    """Rows by table, how many numbers of processes for GPUs are not known, how many machines."""

    tables: dict[str, list[pa.RecordBatch]]
    unknown_numbers: int
    machines: int


def target_tables(head: bytes, tail: bytes, clocks: bytes) -> Target:
    """Return what is known of the GPUs, of what processes call them, and of the calendar."""
    machines, _ = parts_of(tail, _MACHINE)
    hardware = [one for machine in machines for one in parts_of(machine, _HARDWARE)[0]]

    def listed(number: int) -> list[dict[int, Any]]:
        found = (part for one in hardware for part in parts_of(one, number)[0])
        return [last_fields(part) for part in islice(found, _MOST_GPUS)]

    numbers = listed(_NUMBERS)
    # Which of the two is the GPU's own number is not known: both ways must give the same.
    pairs = {tuple(said.get(number, 0) for number in (3, 1, 2)) for said in numbers}
    known = [said for said in numbers if (said.get(3, 0), said.get(2, 0), said.get(1, 0)) in pairs]
    origin = _origin(head, clocks)
    found = {
        "TARGET_INFO_GPU": [_row(said, _OF_GPU, _TEXTS_OF_GPU) for said in listed(_GPU)],
        "TARGET_INFO_CUDA_GPU": [
            _row(said, _OF_OLD_GPU, _TEXTS_OF_OLD_GPU) for said in listed(_OLD_GPU)
        ],
        "TARGET_INFO_CUDA_DEVICE": [_row(said, _OF_NUMBERS) for said in known],
        "TARGET_INFO_SESSION_START_TIME": [] if origin is None else [{"utcEpochNs": origin}],
    }
    tables = {name: [pa.RecordBatch.from_pylist(rows)] for name, rows in found.items() if rows}
    return Target(tables, len(numbers) - len(known), len(machines))


def _row(said: Mapping[int, Any], numbers: Numbers, texts: Numbers = ()) -> dict[str, Any]:
    """Return numbers and texts by name; a number that is left out is 0."""
    found = {name: said.get(number, 0) for number, name in numbers}
    known = {
        name: value if isinstance(value, int) and value < _LATEST else None
        for name, value in found.items()
    }
    return known | {name: message_text(said.get(number)) for number, name in texts}


def _origin(head: bytes, clocks: bytes) -> int | None:
    """Return the nanoseconds since 1970 of the session's time 0; None where they are not known."""
    started, edges = 0, []
    try:
        for number, value in fields(head):
            if number == _OFFSETS and isinstance(value, bytes):
                edges += parts_of(value, 1)[0]
            elif number == _STARTED and isinstance(value, int):
                started = value
    except ValueError:
        return None
    origin = _by_offsets(list(_offsets(edges)))
    return _by_pairs(clocks, started) if origin is None else origin


def _offsets(edges: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """Give pairs of clocks, and how far the first is ahead of the second."""
    for said in map(last_fields, edges):
        digits = message_text(said.get(5))
        number = digits.removeprefix("-")
        if number.isascii() and number.isdecimal() and len(number) <= 20:
            yield said.get(1, 0), said.get(2, 0), int(digits)


def _by_offsets(edges: list[tuple[int, int, int]]) -> int | None:
    """Return what the calendar shows when the clock of the session shows 0."""
    times = {_SESSION: 0}
    for _ in edges:  # no way is longer than there are edges
        for first, second, ahead in edges:
            if first in times:
                times.setdefault(second, times[first] - ahead)
            elif second in times:
                times[first] = times[second] + ahead
    time = signed(times.get(_UTC, 0) % 2**64)
    return time if 0 < time < _LATEST else None


def _by_pairs(clocks: bytes, started: int) -> int | None:
    """Return the same by the newest pair of times of the calendar and of the session's clock.

    The session's clock is the one that shows its own 0 as `started`, or one that shows the same.
    """
    said = [
        last_fields(edge) for one in parts_of(clocks, _PAIRS)[0] for edge in parts_of(one, 1)[0]
    ]
    edges = [(one.get(1), one.get(2), pair) for one in said for pair in _times(one.get(3))]
    mine = {first for first, _, pair in edges if pair == (started, 0)}
    mine |= {first for first, second, pair in edges if second in mine and pair == (0, 0)}
    pairs = [pair for _, second, pair in edges if second in mine and pair[0] > _RECENT_NS]
    if not pairs:
        return None
    first, second = max(pairs)
    return first + started - second


def _times(message: object) -> Iterator[tuple[int, int]]:
    """Give the times that two clocks showed at once."""
    for pair in parts_of(message, 1)[0] if isinstance(message, bytes) else ():
        said = last_fields(pair)
        first, second = said.get(1, 0), said.get(2, 0)
        if isinstance(first, int) and isinstance(second, int):
            yield first, second
