"""Copies and fills of memory by kind, and the calls that allocate and free it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from traceflops.attribution.host_names import told
from traceflops.attribution.sync_calls import calls_inside
from traceflops.table import ABSENT, codes, exact_sums, group_rows, is_one_of, names, numbers
from traceflops.windows import Prepared

_KINDS: Final = ("memcpy", "memset")
_HOST_MEMORY: Final = re.compile(r"\b(Pageable|Pinned)\b")
_MEMORIES: Final = ("pageable", "pinned", None)


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """Copies of one direction, fills, or calls of one name, in the chosen windows.

    `kind` is memcpy, memset or call; `name` the direction, "" where there is none, or the call.
    `memory` is the kind of the host's, `pageable` or `pinned`. `sum_ns` is the time inside the
    windows, overlaps twice; `bytes`, `largest_bytes` and `bytes_per_ns` are of those that begin
    there and tell their size. What is not known is None.
    """

    kind: str
    name: str
    memory: str | None
    count: int
    sum_ns: int
    bytes: int | None = None
    largest_bytes: int | None = None
    bytes_per_ns: float | None = None


def memory_operations(prepared: Prepared) -> tuple[MemoryOperation, ...]:
    """Return copies and fills by kind, then calls that allocate or free; the longest first."""
    return tuple(
        one
        for found in (_on_device(prepared), _allocations(prepared))
        for one in sorted(found, key=attrgetter("sum_ns"), reverse=True)
    )


def _on_device(prepared: Prepared) -> Iterator[MemoryOperation]:
    activities, chosen = prepared.trace.activities, prepared.chosen
    mine = np.flatnonzero(is_one_of(activities["kind"], *_KINDS)[chosen.row])
    row, starts = chosen.row[mine], chosen.starts_inside[mine]
    kind, direction = codes(activities["kind"])[row], codes(activities["direction"])[row]
    memory = np.array([*map(_memory, names(activities["name"])), -1])[codes(activities["name"])]
    group, first = group_rows((kind, direction, memory[row]))
    size, lasting = numbers(activities["bytes"], ABSENT)[row], numbers(activities["dur_ns"])[row]
    sized = starts * (size >= 0)
    columns = (starts, chosen.inside_ns[mine], sized, size * sized, lasting * sized)
    sums = (exact_sums(group, one, len(first)) for one in columns)
    largest = np.full(len(first), ABSENT)
    np.maximum.at(largest, group, np.where(sized > 0, size, ABSENT))
    kinds, ways = names(activities["kind"]), [*names(activities["direction"]), ""]
    for at, most, (count, ns, known, moved, took_ns) in zip(
        first.tolist(), largest.tolist(), zip(*sums, strict=True), strict=True
    ):
        of = (kinds[kind[at]], ways[direction[at]], _MEMORIES[memory[row[at]]], count, ns)
        rate = moved / took_ns if took_ns else None
        yield MemoryOperation(*of, *((moved, most, rate) if known else ()))


def _memory(name: str) -> int:
    """Return the place of the memory of the host that a name tells, -1 for none."""
    found = _HOST_MEMORY.search(name)
    return _MEMORIES.index(found[0].lower()) if found else -1


def _allocations(prepared: Prepared) -> Iterator[MemoryOperation]:
    if not prepared.accounts:
        return
    wanted = told(prepared.trace.calls["name"], "allocates")
    events, event, inside_ns = calls_inside(prepared, wanted)
    name = events.name[event]
    columns = (np.ones_like(event), inside_ns)
    sums = (exact_sums(name, one, len(events.labels)) for one in columns)
    for label, count, ns in zip(events.labels, *sums, strict=True):
        if count:
            yield MemoryOperation("call", label, None, count, ns)
