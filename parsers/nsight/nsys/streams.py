"""The streams of a report: a number stands for one stream within a process and a context only.

Two contexts of a process that share a GPU and a number are told apart by giving the later one a
number of its own; the streams of several processes are told apart for all formats alike (see
`traceflops.sharedgpus`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from traceflops.devices.stream_numbers import apart
from traceflops.parsers.io.databases.lookup import by_distinct
from traceflops.parsers.nsight.nsys.ids import streams_of
from traceflops.table.columns import IntArray
from traceflops.table.rows import ABSENT

_MOST: Final = 100_000
"""So many streams are told apart; a report with more has invented them."""
_NO_CONTEXT: Final = 0
"""Contexts count from 1."""
_STREAM_BITS: Final = 32
_STREAM: Final = (1 << _STREAM_BITS) - 1
_MOST_CONTEXTS: Final = 1 << 31

Key = tuple[int, int, int]
"""A device by the number that rows have for it, a context and the number of a stream there."""


@dataclass(slots=True)
class Streams:
    """The streams of a report, by the numbers that rows have until the end."""

    _known: dict[Key, int] = field(default_factory=dict)

    def numbers(self, devices: IntArray, contexts: IntArray, streams: IntArray) -> IntArray:
        """Return the numbers of streams until the end; absent where there is no stream."""
        own = streams_of(streams)
        context = np.where((contexts > 0) & (contexts < _MOST_CONTEXTS), contexts, _NO_CONTEXT)
        keys = np.where(own == ABSENT, ABSENT, (context << _STREAM_BITS) | own)
        if not len(keys) or (devices == devices[0]).all():
            return by_distinct(keys, partial(self._number, int(devices[0]) if len(keys) else 0))
        found = np.empty(len(keys), dtype=np.int64)
        for device in np.unique(devices).tolist():
            mine = devices == device
            found[mine] = by_distinct(keys[mine], partial(self._number, device))
        return found

    def _number(self, device: int, key: int, _: int) -> int:
        if key == ABSENT:
            return ABSENT
        known = device, key >> _STREAM_BITS, key & _STREAM
        if known not in self._known and len(self._known) >= _MOST:
            return ABSENT
        return self._known.setdefault(known, len(self._known))

    def settled(self, owners: Mapping[int, tuple[int, int]]) -> tuple[dict[int, int], int]:
        """Return the final number of each stream, and how many have one that is not their own.

        `owners` are the final device and process of each device that rows have.
        """
        alike: defaultdict[tuple[int, int], defaultdict[int, dict[int, list[int]]]]
        alike = defaultdict(lambda: defaultdict(dict))
        for (device, context, stream), local in self._known.items():
            alike[owners[device]][stream].setdefault(context, []).append(local)
        found: dict[int, int] = {}
        moved = 0
        for by_number in alike.values():
            holders = {number: _of_contexts(locals_) for number, locals_ in by_number.items()}
            found |= apart(holders)
            moved += sum(len(streams) - 1 for streams in holders.values())
        return found, moved


def _of_contexts(holders: Mapping[int, list[int]]) -> list[list[int]]:
    """Return the streams by context; one of an unknown context is the first of them."""
    found: list[list[int]] = []
    unknown_first = False
    for context, locals_ in sorted(holders.items()):
        if unknown_first:
            found[-1] += locals_
        else:
            found.append(list(locals_))
        unknown_first = context == _NO_CONTEXT
    return found
