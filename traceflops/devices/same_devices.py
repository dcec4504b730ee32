"""Which devices of several traces are one, and whether they may be of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.devices.device_facts import SeenDevice
from traceflops.devices.device_names import by_name
from traceflops.remedies import NSIGHT, ROCPROF, family
from traceflops.table import EVERYWHERE, IntArray, Trace

_CALENDAR: Final = "calendar"
_MAKERS: Final = {ROCPROF: "amd", NSIGHT: "nvidia"}
"""Whose GPUs a tool records."""
_Model = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Numbering:
    """The devices of several traces in one list.

    `of_traces` are the numbers of each trace's devices in it. `rows` says from where, of all
    devices one behind the other, each of the list comes, and `places` what names it.
    """

    of_traces: list[IntArray]
    rows: IntArray
    places: tuple[str | None, ...]


def identities(trace: Trace) -> list[tuple[str, str] | None]:
    """Return the clock and the place that name each device in all traces, None where they do not.

    For places that are the same everywhere the calendar is clock enough.
    """
    source = trace.source
    calendar = _CALENDAR if source.origin_unix_ns is not None else source.clock
    keys: list[tuple[str, str] | None] = []
    for place in trace.places or (None,) * trace.devices.num_rows:
        clock = calendar if (place or "").startswith(EVERYWHERE) else source.clock
        keys.append((clock, place) if clock is not None and place is not None else None)
    return keys


def number_devices(traces: Sequence[Trace]) -> Numbering:
    """Return numbers for the devices of all traces, the same one for the same device.

    Devices are the same where their traces have the same clock and name the same place.
    """
    counts = [trace.devices.num_rows for trace in traces]
    known: dict[tuple[str, str], int] = {}
    first: list[int] = []
    places: list[str | None] = []
    for trace in traces:
        places += trace.places or (None,) * trace.devices.num_rows
        for row, key in enumerate(identities(trace), len(first)):
            first.append(row if key is None else known.setdefault(key, row))
    rows, number = np.unique(np.array(first, dtype=np.int64), return_inverse=True)
    ends = np.cumsum(counts)
    return Numbering(
        [number[end - count : end] for end, count in zip(ends, counts, strict=True)],
        rows,
        tuple(places[row] for row in rows.tolist()),
    )


def are_of_other_models(first: Trace, second: Trace) -> bool:
    """Return whether no GPU of the one can be of the model of a GPU of the other."""
    return all(_differ(one, other) for one in _models(first) for other in _models(second))


def _differ(first: _Model, second: _Model) -> bool:
    return any(None not in (a, b) and a != b for a, b in zip(first, second, strict=True))


def _models(trace: Trace) -> set[_Model]:
    """Return what is known of each GPU, of the tool's GPUs where the trace names none."""
    seen = [SeenDevice.of(row) for row in trace.devices.to_pylist()] or [SeenDevice()]
    return {_model(one, _MAKERS.get(family(trace.source.format))) for one in seen}


def _model(seen: SeenDevice, maker: str | None) -> _Model:
    """Return maker, architecture and id of a GPU; `maker` is whose GPUs the tool records."""
    spec = None if seen.sharing else by_name(seen.name)
    if spec is not None:
        return spec.vendor, spec.arch, spec.id
    maker = seen.maker() or maker
    compute = seen.compute if maker == "nvidia" else None
    return maker, seen.instruction_set or (compute and "sm{}{}".format(*compute)), None
