"""The tables of an analysis by name: those of its report, and those of the recording, extended.

`activities` is the table of the recording with columns for rank, step, category, operator and
module; `steps` and `gaps` show where the time of each device went. Slow ones are made on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.idle_slices import GapParts, gap_parts
from traceflops.attribution.launching_ops import ops_that_launched
from traceflops.attribution.named_slices import main_culprits
from traceflops.attribution.scopes import launch_scopes
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_records import communication_kinds
from traceflops.table.arrays import ABSENT, BoolArray, IntArray
from traceflops.table.columns import (
    NAME_TYPE,
    codes,
    dictionary_column,
    flag_column,
    merged_column,
    names,
    nullable,
    number_column,
    numbers,
)
from traceflops.table.nesting import taken
from traceflops.table.schema import Column
from traceflops.timeline.records import COMPONENTS, Window
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport, chosen_time

_ADDED: Final = {
    "rank": "rank of its process",
    "step": "step of the window that it starts in",
    "used": "whether that window is part of the report",
    "top": "category",
    "sub": "category within `top`",
    "op_row": "row of the table ops that launched it",
    "op": "name of that operator",
    "call": "name of the call that launched it",
    "collective": "collective by the framework (allreduce), else its kind (all_reduce)",
    "module": "nn.Modules around its launch or its forward operator, else the annotation",
}
"""The columns added to activities, with their meanings."""
_COMPONENTS: Final = {
    "compute": "time in which a compute kernel runs",
    "memory": "time in which memory work runs, and no compute",
    "other": "time in which other work runs, and none of the former",
    "graph": "time in which a graph of unknown kernels runs, and none of the former",
    "communication": "exposed communication: time in which nothing else runs",
    "start_up": "idle while starting up",
    "idle": "other time in which nothing runs; the seven sum to dur_ns",
}
_OF_DEVICE: Final = (
    Column("rank", pa.int64(), "rank of the device's process"),
    Column("device", pa.int32(), "row of the devices table"),
)
_STEPS: Final = (
    *_OF_DEVICE,
    Column("step", pa.int64(), "number of the step"),
    Column("start_ns", pa.int64(), "start of its window on the trace's clock", "ns"),
    Column("dur_ns", pa.int64(), "duration of its window", "ns"),
    Column("used", pa.bool_(), "whether the step is part of the report"),
    *(Column(f"{name}_ns", pa.int64(), _COMPONENTS[name], "ns") for name in COMPONENTS),
)
_GAPS: Final = (
    *_OF_DEVICE,
    Column("step", pa.int64(), "step of the window that it starts in"),
    Column("start_ns", pa.int64(), "start on the trace's clock", "ns"),
    Column("dur_ns", pa.int64(), "idle time in the windows used", "ns"),
    Column("class", NAME_TYPE, "what the host did for most of it, see culprits.md; null: unknown"),
    Column("culprit", NAME_TYPE, "function, operator, annotation or call that has most of that"),
    Column("kernel_before", NAME_TYPE, "name of the activity whose end began it"),
    Column("kernel_after", NAME_TYPE, "name of the activity whose start ended it"),
)
STEPS: Final = pa.schema([column.field() for column in _STEPS])
GAPS: Final = pa.schema([column.field() for column in _GAPS])


class OnDemand(Struct, frozen=True, dict=True):
    """A table that is made when its rows are read; other libraries read only its schema first."""

    schema: pa.Schema
    make: Callable[[], pa.Table]

    @cached_property
    def table(self) -> pa.Table:
        """Return the table, made once."""
        return self.make()

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Tables(Mapping[str, pa.Table]):
    """Tables by name. `sources` has an OnDemand in place of a table that takes time."""

    def __init__(self, sources: Mapping[str, pa.Table | OnDemand]) -> None:
        self.sources = sources

    def __getitem__(self, name: str) -> pa.Table:
        source = self.sources[name]
        return source.table if isinstance(source, OnDemand) else source

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        return f"<Tables {', '.join(self)}>"


def tables_of(
    report: Mapping[str, pa.Table],
    devices: Sequence[DeviceReport],
    prepared: Prepared,
    *,
    has_events: bool,
) -> Tables:
    """Return the tables of a report, and those of the recording if it has events."""
    sources: dict[str, pa.Table | OnDemand] = dict(report)
    sources["steps"] = OnDemand(STEPS, partial(_step_table, devices))
    if not has_events:
        return Tables(sources)
    sources["gaps"] = OnDemand(GAPS, partial(_gap_table, prepared, devices))
    ranks = prepared.trace.ranks
    for name, table in prepared.trace.to_arrow().items():
        if "rank" not in table.column_names:
            field = pa.field("rank", pa.int64(), metadata={"meaning": _ADDED["rank"]})
            table = table.append_column(field, _ranks_of(table, ranks))
        if name == "ops":  # `op_row` of activities refers to it
            field = pa.field("op_row", pa.int64(), metadata={"meaning": "row of this table"})
            table = table.append_column(field, number_column(np.arange(table.num_rows)))
        sources[name] = table
    sources["activities"] = _activity_table(prepared)
    return Tables(sources)


def _activity_table(prepared: Prepared) -> pa.Table:
    """Return the table `activities` with the columns of _ADDED; unknown is null."""
    trace, linked = prepared.trace, prepared.as_launched.linked
    table, categorised = trace.activities, linked.categorised
    rows = np.arange(table.num_rows)
    call, op = linked.links.call_of_activity, ops_that_launched(prepared.as_launched, rows)
    scopes = launch_scopes(linked, call, op, prepared.selection.step_mark)
    step, used = np.full(len(rows), ABSENT, np.int64), np.zeros(len(rows), np.bool_)
    for device, account in prepared.accounts.items():
        row, start_ns = account.rows.row, account.rows.start_ns
        step[row], used[row] = _windows_at(prepared.windows[device], start_ns)
    recorded, kind = linked.trace.activities["collective"], communication_kinds(linked)
    texts, code = names(recorded), codes(recorded)
    # Collectives that are not recorded get the name of their kind: KINDS follow the texts.
    of_kind = np.where(kind >= 0, kind + len(texts), -1)
    columns = {
        "rank": _ranks_of(table, trace.ranks),
        "step": nullable(step),
        "used": flag_column(used),
        "top": merged_column(categorised.category, categorised.top()),
        "sub": merged_column(categorised.category, [c.sub for c in categorised.categories]),
        "op_row": nullable(np.where(op >= 0, op, ABSENT)),
        "op": _names_in(linked.trace.ops, op),
        "call": _names_in(linked.trace.calls, call),
        "module": merged_column(scopes.scope, scopes.texts),
        "collective": merged_column(np.where(code >= 0, code, of_kind), [*texts, *KINDS]),
    }
    for name, column in columns.items():
        field = pa.field(name, column.type, metadata={"meaning": _ADDED[name]})
        index = table.schema.get_field_index(name)
        if index < 0:
            table = table.append_column(field, column)
        else:
            table = table.set_column(index, field, column)
    return table


def _windows_at(windows: tuple[Window, ...], time_ns: IntArray) -> tuple[IntArray, BoolArray]:
    """Return, per time, the step whose window has it (else ABSENT), and whether it is chosen."""
    edges = [
        (window.start_ns, window.end_ns, ABSENT if window.step is None else window.step)
        for window in windows
        if window.role != "range"
    ]
    begin, end, number = np.array(edges, np.int64).reshape(-1, 3).T
    last = np.searchsorted(begin, time_ns, side="right") - 1
    step = np.where(time_ns < taken(end, last, ABSENT), taken(number, last, ABSENT), ABSENT)
    return step, chosen_time(windows).contains(time_ns)


def _ranks_of(table: pa.Table, ranks: Sequence[int | None]) -> pa.Array:
    """Return the rank of the process of each row; `ranks` are by process."""
    by_process = np.array([ABSENT if rank is None else rank for rank in ranks], np.int64)
    return nullable(taken(by_process, numbers(table["process"]), ABSENT))


def _names_in(table: pa.Table, rows: IntArray) -> pa.Array:
    """Return the names in rows of a table, null for row -1."""
    return dictionary_column(taken(codes(table["name"]), rows), names(table["name"]))


def _step_table(devices: Sequence[DeviceReport]) -> pa.Table:
    """Return a row per device and step, including steps that are not chosen."""
    rows = [
        {
            "rank": device.rank,
            "device": device.device,
            "step": step.step,
            "start_ns": step.start_ns,
            "dur_ns": step.dur_ns,
            "used": step.used,
            **{f"{name}_ns": ns for name, ns in step.account.components.parts().items()},
        }
        for device in devices
        for step in device.steps
    ]
    return pa.Table.from_pylist(rows, STEPS)


def _gap_table(prepared: Prepared, devices: Sequence[DeviceReport]) -> pa.Table:
    """Return a row per gap between the activities of a device, in the chosen windows."""
    ranks = {device.device: ABSENT if device.rank is None else device.rank for device in devices}
    parts: list[GapParts] = []
    figures: list[IntArray] = []  # per device, rows of: rank, device, step, activity before the gap
    for device, account in prepared.accounts.items():
        windows = prepared.windows[device]
        gaps = gap_parts(account, chosen_time(windows))
        before = account.ended_at(gaps.gap_start_ns)
        rank_of, device_of = (np.full_like(before, value) for value in (ranks[device], device))
        step, _ = _windows_at(windows, gaps.start_ns)
        parts.append(gaps)
        figures.append(np.stack([rank_of, device_of, step, before]))
    if not parts:
        return GAPS.empty_table()
    gaps, activities = GapParts.joined(parts), prepared.trace.activities
    rank_of, device_of, step, before = np.concatenate(figures, axis=1)
    culprit, culprits = main_culprits(prepared, gaps)
    is_named = np.array([*(label != "" for _, label in culprits), False])
    columns = [
        nullable(rank_of),
        number_column(device_of, pa.int32()),
        nullable(step),
        nullable(gaps.start_ns),
        nullable(gaps.end_ns - gaps.start_ns),
        merged_column(culprit, [kind for kind, _ in culprits]),
        merged_column(np.where(is_named[culprit], culprit, -1), [label for _, label in culprits]),
        _names_in(activities, before),
        _names_in(activities, gaps.activity),
    ]
    return pa.Table.from_arrays(columns, schema=GAPS)
