"""The launches of kernels in one run: in the order of each process, their work and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.flops.mfu_waterfall import UNSPLIT
from traceflops.mfu.traced.coverage import in_chosen_window, on_chosen_device, window_of_activity
from traceflops.table import columns
from traceflops.table.builder import TableBuilder
from traceflops.table.columns import ABSENT, UNKNOWN_SIZE, BoolArray, IntArray, axes, codes, numbers
from traceflops.table.grouping import distinct, places_in_runs
from traceflops.table.links import recorded_calls
from traceflops.table.nesting import taken
from traceflops.table.trace import Trace, note_of
from traceflops.windows.prepared import Prepared

_MOST_THREADS: Final = 2.0**62
"""Launches with more threads are damaged records; their number might not fit an int64."""
Origin = Literal["counters", "pair", "shapes"]
"""The source of work: hardware counters, shapes of a paired trace, or shapes of this trace."""
ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)
UNSPLIT_LINE: Final = f"{UNSPLIT}.matrix"
"""FLOPs of matrix units: model work, recomputation and padding together."""
UNKNOWN: Final = -1  # of a kind, bytes or FLOPs


class KernelRule(Struct, frozen=True):
    """A message of a rule of the profiler on some launches, in the profiler's words.

    Of several launches, the message is that of the largest estimate. `speedup_share` is 0 to 1: of
    the kind "global", the part of the kernel's time that can be saved; of "local", the gain of
    efficiency only in the part of the device that the rule is about.
    """

    rule: str | None
    section: str | None
    kind: str | None
    text: str
    launches: int
    speedup_share: float | None
    speedup_kind: str | None

    def estimate(self) -> tuple[bool, float]:
        """Return a sort key: estimates of the whole kernel's time count more."""
        return self.speedup_kind == "global", self.speedup_share or 0.0


class Launches(Struct, frozen=True):
    """Launches of kernels, one row each, those of a process in the order in which it made them.

    `row` is the row in the table that they are from, `name` an index of `names`. `threads` is the
    number of threads of the launch in whole blocks, `block` that of one block, `grid` the product
    of the recorded grid, which tools of AMD give in threads for some launches and in blocks for
    others. `grid_axes` and `block_axes` are the sizes x y z. Sizes that are not recorded are
    UNKNOWN_SIZE. `window` is a number of the step and device of the launch, -1 for none; `used` is
    whether that step is chosen. `ranks` is by process.
    """

    row: IntArray
    process: IntArray
    name: IntArray
    names: list[str]
    threads: IntArray
    block: IntArray
    grid: IntArray
    grid_axes: IntArray
    block_axes: IntArray
    window: IntArray
    used: BoolArray
    ranks: Mapping[int, int | None]

    @property
    def count(self) -> int:
        """Return the number of launches."""
        return len(self.row)


def launches_of(prepared: Prepared) -> Launches:
    """Return the kernels on the chosen devices, by process and then in the order of launch."""
    activities = prepared.trace.activities
    process, device = numbers(activities["process"]), numbers(activities["device"])
    is_kernel = on_chosen_device(prepared) & columns.is_one_of(activities["kind"], "kernel")
    rows = np.flatnonzero(is_kernel)
    # Sort by correlation if all launches of a process have one, else by start.
    correlation = numbers(activities["correlation"], ABSENT)[rows]
    by_start = distinct(process[rows][correlation == ABSENT])  # processes
    launch_order = np.where(np.isin(process[rows], by_start), 0, correlation)
    start_ns = numbers(activities["start_ns"])[rows]
    rows = rows[np.lexsort((start_ns, launch_order, process[rows]))]
    # A window is numbered within its device, `step` among those of all devices: device 0 has the
    # windows "before", "step", "step", device 1 "step", "after" -> steps [-1 1 2] and [3 -1]
    window = window_of_activity(prepared)
    windows_before, step = 0, np.full(len(window), -1, dtype=np.int64)
    for number, windows in prepared.windows.items():
        of_device = device == number
        numbered = enumerate(windows, windows_before)
        step_of_window = [index if one.role == "step" else -1 for index, one in numbered]
        step[of_device] = taken(np.array(step_of_window, dtype=np.int64), window[of_device])
        windows_before += len(windows)
    grid_axes, block_axes = (axes(activities[name])[rows] for name in ("grid", "block"))
    grid, block = columns.product_of(grid_axes), columns.product_of(block_axes)
    threads = grid.astype(np.float64) * block  # float: the product of two int64 may wrap
    is_sized = (grid > 0) & (block > 0) & (threads < _MOST_THREADS)
    return Launches(
        rows,
        process[rows],
        codes(activities["name"])[rows],
        columns.names(activities["name"]),
        threads=np.where(is_sized, grid * block, UNKNOWN_SIZE),
        block=block,
        grid=grid,
        grid_axes=grid_axes,
        block_axes=block_axes,
        window=step[rows],
        used=in_chosen_window(prepared, window)[rows],
        ranks=dict(enumerate(prepared.trace.ranks)),
    )


def rank_in_group(group: IntArray) -> IntArray:
    """Return the number of earlier rows of the same group: [0 1 0 0] -> [0 0 1 2]."""
    by_group, ranks = np.argsort(group, kind="stable"), np.empty(len(group), dtype=np.int64)
    ranks[by_group] = places_in_runs(group[by_group])
    return ranks


class CachedKeys(Struct, frozen=True):
    """Bytes of an attention: `own` of query and output, `per_key` of a cached key; or None."""

    own: int | None = None
    per_key: int | None = None

    def bytes(self, keys: int) -> int:
        """Return the bytes moved for a number of keys, or UNKNOWN."""
        if self.own is None or self.per_key is None:
            return UNKNOWN
        return self.own + self.per_key * keys


class WorkPart(Struct, frozen=True):
    """FLOPs of one ledger line and data type; `flops` is the most and `at_least` the least.

    With `cached` they are FLOPs per pair of query and key; the serving pass has the pairs.
    """

    line: str
    dtype: str
    flops: int
    at_least: int
    cached: CachedKeys | None = None

    def times(self, pairs: int) -> WorkPart:
        """Return the part for a number of (query, key) pairs."""
        return WorkPart(self.line, self.dtype, self.flops * pairs, self.at_least * pairs)


Kind = tuple[WorkPart, ...]  # all FLOPs of a launch; empty if it does no matrix work


class LaunchWork(Struct, frozen=True):
    """Launches, and the kind (an index of `kinds`), bytes and vector FLOPs of each, or UNKNOWN."""

    origin: Origin
    launches: Launches
    kind: IntArray
    kinds: tuple[Kind, ...]
    size: IntArray
    vector: IntArray


def between(kinds: Sequence[Kind]) -> Kind:
    """Return one kind with the range of FLOPs by line; the least is 0 if a kind lacks the line."""
    # One kind has 30 FLOPs in bf16, another 50 in bf16 and 10 in fp8: bf16 30 to 50, fp8 0 to 10.
    counts: dict[tuple[str, str], list[WorkPart]] = {}
    for kind in kinds:
        for part in kind:
            counts.setdefault((part.line, part.dtype), []).append(part)
    ranges = []
    for (line, dtype), parts in counts.items():
        least = min(part.at_least for part in parts) if len(parts) == len(kinds) else 0
        ranges.append(WorkPart(line, dtype, max(part.flops for part in parts), least))
    return tuple(ranges)


def common(kinds: Sequence[Kind]) -> Kind | None:
    """Return one kind for kinds of equal FLOPs; None if their FLOPs differ.

    1. If FLOPs are per pair of query and key, the totals may differ: None.
    2. If the FLOPs of each family (model, ...) are equal, its line has the words that all kinds
       share: model.matmul for model.matmul.forward and model.matmul.weight_grad.
    3. If only the totals are equal, all FLOPs have the line UNSPLIT_LINE.
    """
    if any(part.cached is not None for kind in kinds for part in kind):
        return None
    by_family = [_sums(kind, lambda part: part.line.split(".")[0]) for kind in kinds]
    if all(sums == by_family[0] for sums in by_family):
        parts = []
        for (family, dtype), (most, least) in by_family[0].items():
            lines = [part.line.split(".") for kind in kinds for part in kind]
            of_family = [words for words in lines if words[0] == family]
            common_words = of_family[0]
            while any(words[: len(common_words)] != common_words for words in of_family):
                common_words = common_words[:-1]
            parts.append(WorkPart(".".join(common_words), dtype, most, least))
        return tuple(parts)
    totals = [_sums(kind, lambda _: UNSPLIT_LINE) for kind in kinds]
    if any(sums != totals[0] for sums in totals):
        return None
    return tuple(WorkPart(line, dtype, *counts) for (line, dtype), counts in totals[0].items())


def _sums(kind: Kind, name: Callable[[WorkPart], str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the most and the least FLOPs of a kind, by the `name` of parts and by data type."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for part in kind:
        most, least = sums.get((name(part), part.dtype), (0, 0))
        sums[name(part), part.dtype] = (most + part.flops, least + part.at_least)
    return sums


def exact_flops(kinds: Sequence[Kind], kind: IntArray) -> IntArray:
    """Return the FLOPs of launches (`kind` is an index of `kinds`, or -1), UNKNOWN if inexact."""
    flops = []
    for parts in kinds:
        is_exact = all(part.flops == part.at_least and part.cached is None for part in parts)
        flops.append(sum(part.flops for part in parts) if is_exact else UNKNOWN)
    return np.array([*flops, UNKNOWN], dtype=np.int64)[kind]  # kind -1 takes the last element


def with_captured_launches(trace: Trace) -> Trace:
    """Return the trace with a kernel of no duration for each launch call without a kernel record.

    Such calls are captured into a graph: nothing runs yet. Calls of HIP name their kernel, so a
    trace of a capture tells which operator launched which kernel. The shapes of these operators
    give the work of the kernels of the replayed graph.
    """
    calls, devices = trace.calls, trace.devices
    names_kernel = codes(calls["kernel"]) >= 0
    is_linked = numbers(calls["correlation"], ABSENT) != ABSENT
    rows = np.flatnonzero(names_kernel & is_linked & ~recorded_calls(trace))
    if not len(rows):
        return trace
    # A process without a device gets one.
    process = numbers(calls["process"])[rows]
    without = np.setdiff1d(distinct(process), numbers(devices["process"]))
    if len(without):
        added = TableBuilder("devices")
        device_rows, gpu = devices.num_rows + np.arange(len(without)), added.names["type"]["gpu"]
        types = np.full(len(without), gpu)
        added.add(len(without), device=device_rows, process=without, local_id=0, type=types)
        devices = pa.concat_tables([devices, added.finish()]).unify_dictionaries().combine_chunks()
    # Each kernel is on the first device of its process.
    # processes of devices [3 0 3] -> owner [0 3], first [1 0]: a kernel of process 3 is on device 0
    owner, first = np.unique(numbers(devices["process"]), return_index=True)
    kernels = TableBuilder("activities")
    sizes = ((name, axes(calls[name])) for name in ("grid", "block"))
    labels = columns.names(calls["kernel"])
    kernels.add(
        len(rows),
        process=process,
        device=first[np.searchsorted(owner, process)],
        kind=np.full(len(rows), kernels.names["kind"]["kernel"]),
        name=kernels.names["name"].codes(labels)[codes(calls["kernel"])[rows]],
        start_ns=numbers(calls["start_ns"])[rows],
        dur_ns=0,
        **{name: numbers(calls[name], ABSENT)[rows] for name in ("correlation", "external_id")},
        **{name: np.where(sides > 0, sides, ABSENT)[rows] for name, sides in sizes},
    )
    both = [trace.activities, kernels.finish()]
    activities = pa.concat_tables(both).unify_dictionaries().combine_chunks()
    by_start = np.argsort(numbers(activities["start_ns"]), kind="stable")
    activities = columns.take_rows(activities, by_start)
    note = note_of("assumed", "captured-launches", count=len(rows))
    tables = {**trace.tables, "devices": devices, "activities": activities}
    return replace(trace, tables=tables, notes=(*trace.notes, note))
