"""Sets aside what cannot be true of a recording: impossible times, and records written twice.

The rules are in docs/damage.md. They know no format; every reader's trace goes through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.columns import BoolArray, IntArray, codes, number_column, numbers
from traceflops.errors import InputError
from traceflops.rows import ABSENT
from traceflops.trace import Note, Trace

DAY_NS: Final = 86_400 * 10**9
_UNSET_AWAY_NS: Final = 600 * 10**9
_LONGEST_NS: Final = 2**53
"""104 days: below it no sum of times can leave an int64."""
_UNITS: Final = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
_RANGES: Final = ("activities", "calls", "ops", "marks")
_A_SLIP: Final = 0.1
"""What is more than this share of the records is no slip of the recording."""
_SURELY_APART_NS: Final = 3_000
"""Two records of this length cannot begin in the same tick, even if ticks are microseconds."""


@dataclass(slots=True)
class _Kept:
    """Which rows of each table are kept, and the device time of those that are not."""

    rows: dict[str, BoolArray] = field(default_factory=dict)

    def without(self, table: str, wrong: BoolArray) -> None:
        self.rows[table] = self.rows.get(table, np.True_) & ~wrong

    def apply(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        out = dict(tables)
        for name, keep in self.rows.items():
            if not keep.all():
                out[name] = tables[name].take(number_column(np.flatnonzero(keep), pa.int64()))
        return out


def plausible(trace: Trace) -> Trace:
    """Return the trace without what cannot be true, with notes that say how much that was.

    Raises InputError where the times as a whole are no times.
    """
    trace = _without_impossible_times(trace)
    _check_sums(trace)
    return _without_repeats(trace)


def _without_impossible_times(trace: Trace) -> Trace:
    ranges = {name: trace.table(name) for name in _RANGES if trace.table(name).num_rows}
    if not ranges:
        return trace
    starts = {name: numbers(table["start_ns"]) for name, table in ranges.items()}
    lengths = {name: numbers(table["dur_ns"]) for name, table in ranges.items()}
    low, high = _main_stretch(list(starts.values()))
    far = {name: (start < low) | (start > high) for name, start in starts.items()}
    if not _few(far):
        return replace(trace, notes=(*trace.notes, _apart_note(trace, far)))
    most_ns = max(DAY_NS, high - low)
    long = {name: ~far[name] & (lengths[name] > most_ns) for name in ranges}
    if sum(bool(wrong.any()) for wrong in long.values()) > 1 or not _few(long):
        # What lasts that long on the host as well as on the device is a hang, not a slip.
        long = {name: np.zeros_like(wrong) for name, wrong in long.items()}
    kept = _Kept()
    for name in ranges:
        kept.without(name, far[name] | long[name])
    times = numbers(trace.counters["time_ns"])
    kept.without("counters", (times < low - DAY_NS) | (times > high + DAY_NS))
    device_ns = 0
    if "activities" in ranges:
        device_ns = sum(lengths["activities"][~kept.rows["activities"]].tolist())
    notes = tuple(_time_notes(trace, _count(far), _count(long), device_ns))
    return replace(trace, tables=kept.apply(trace.tables), notes=(*trace.notes, *notes))


def _count(rows: Mapping[str, BoolArray]) -> int:
    return sum(int(chosen.sum()) for chosen in rows.values())


def _few(rows: Mapping[str, BoolArray]) -> bool:
    """Return whether rows are so few that they can be a slip, and not all of the device's."""
    total = sum(map(len, rows.values()))
    device = rows.get("activities", np.zeros(1, dtype=np.bool_))
    return _count(rows) <= max(1, total * _A_SLIP) and not bool(device.all())


def _apart_note(trace: Trace, far: Mapping[str, BoolArray]) -> Note:
    return Note(
        "assumed",
        "times-apart",
        f"{_count(far):,} records begin a day or more from the others: the recording paused, or a "
        "clock was wrong. They are too many to be set aside, so spans and idle time may hold that "
        "pause; choose a part with --from and --to.",
        _count(far),
        _file(trace),
    )


def _main_stretch(columns: list[IntArray]) -> tuple[int, int]:
    """Return the first and the last start of the stretch in which most records begin.

    Stretches are apart where nothing begins for a day. A start of exactly 0 is what a profiler
    writes for a time that it does not have; it is one where nothing else begins for 10 minutes.
    """
    first, last = min(int(c.min()) for c in columns), max(int(c.max()) for c in columns)
    if last - first <= (_UNSET_AWAY_NS if first == 0 else DAY_NS):
        return first, last
    starts = np.sort(np.concatenate(columns))
    breaks = np.diff(starts) > DAY_NS
    unset = int(np.searchsorted(starts, 0, side="right"))
    if first == 0 and unset < len(starts):
        breaks[unset - 1] |= starts[unset] > _UNSET_AWAY_NS
    edges = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(starts)]])
    longest = int(np.argmax(np.diff(edges)))
    return int(starts[edges[longest]]), int(starts[edges[longest + 1] - 1])


def _time_notes(trace: Trace, far: int, too_long: int, device_ns: int) -> Iterator[Note]:
    if not far + too_long:
        return
    parts = []
    if far:
        parts.append(
            f"{far:,} begin more than a day from the others, or at a time that was not set"
        )
    if too_long:
        parts.append(f"{too_long:,} last more than a day and longer than the recording")
    yield Note(
        "dropped",
        "set-aside",
        f"{far + too_long:,} records with impossible times were set aside: {'; '.join(parts)} "
        f"({_amount(device_ns)} of device work).",
        far + too_long,
        _file(trace),
    )


def _check_sums(trace: Trace) -> None:
    """Raise InputError where times add up to what no recording holds."""
    for name in _RANGES:
        table = trace.table(name)
        if not table.num_rows:
            continue
        start, length = numbers(table["start_ns"]), numbers(table["dur_ns"])
        span = int(start.max()) - int(start.min())
        total = float(length.sum(dtype=np.float64)) if name == "activities" else 0.0
        if max(span, int(length.max()), total) > _LONGEST_NS:
            raise InputError(
                f"the times in it add up to more than 104 days: {_file(trace)}",
                "ts and dur must be microseconds; convert them if the writer used another unit",
            )


def _without_repeats(trace: Trace) -> Trace:
    """Drop activities and calls that are written more than once."""
    kept = _Kept()
    repeats = {
        "activities": _repeats(trace.activities, ("device", "stream", "correlation", "graph_node")),
        "calls": _repeats(trace.calls, ("thread", "correlation", "external_id")),
    }
    for name, again in repeats.items():
        kept.without(name, again)
    counts = {name: int(again.sum()) for name, again in repeats.items()}
    if not any(counts.values()):
        return trace
    lengths = numbers(trace.activities["dur_ns"])[repeats["activities"]]
    note = Note(
        "repaired",
        "written-twice",
        "Records of the same launch, name and times stand in the file more than once; each counts "
        f"once ({counts['activities']:,} activities left out, {_amount(int(lengths.sum()))} of "
        f"device work, and {counts['calls']:,} calls).",
        sum(counts.values()),
        _file(trace),
    )
    return replace(trace, tables=kept.apply(trace.tables), notes=(*trace.notes, note))


def _repeats(table: pa.Table, ids: tuple[str, ...]) -> BoolArray:
    """Return the rows that repeat one before them, if any does that is long enough to tell."""
    if table.num_rows < 2:
        return np.zeros(table.num_rows, dtype=np.bool_)
    length = numbers(table["dur_ns"])
    columns = [numbers(table["start_ns"]), length, codes(table["name"])]
    columns += [numbers(table[name], ABSENT) for name in ids]
    # Rows are in the order of their times and ids, so those that are the same stand together.
    same = numbers(table["correlation"], ABSENT)[1:] != ABSENT
    for values in columns:
        same &= values[1:] == values[:-1]
    again = np.append(False, same & (length[1:] > 0))
    if not (again & (length >= _SURELY_APART_NS)).any():
        again[:] = False
    return again


def _amount(ns: int) -> str:
    """Return a time in the largest unit of which it holds one."""
    unit, size = next((u for u in _UNITS if ns >= u[1]), _UNITS[-1])
    return f"{ns / size:,.3f} {unit}"


def _file(trace: Trace) -> str:
    return trace.source.files[0].name
