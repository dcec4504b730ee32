"""What must hold of a summary that somebody hands in: figures of one recording fit each other.

Names carry units, so that the name of a figure bounds it. What refers to a device, a group or a
step is checked against those in the summary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from traceflops.attribution.kernels import KERNEL_TOTALS
from traceflops.flops.mfu_waterfall import FAMILIES, UNSPLIT
from traceflops.ranks.collectives import KINDS
from traceflops.ranks.comm_groups import MOST_RANKS
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.late_causes import KernelSums
from traceflops.table.columns import ABSENT, LIMIT_NS, IntArray
from traceflops.table.packed import LARGEST, check_trace, checked, require
from traceflops.table.schema import arrow_schema
from traceflops.table.trace import Trace
from traceflops.timeline.records import COMPONENTS, EMPTY_ACCOUNT, Account
from traceflops.windows.records import DeviceReport

if TYPE_CHECKING:
    from traceflops.analysis.rank_summary import RankSummary

_SIGNED: Final = frozenset(
    {"start_ns", "end_ns", "origin_unix_ns", "step", "before_step", "seen", "used", "long_steps"}
)
_FAMILIES: Final = (*FAMILIES, UNSPLIT)
_WITHOUT_NUMBERS: Final = frozenset({NoneType, str, bool, float, pa.Table})
_ELSEWHERE: Final = (Trace, CommRecords, KernelSums)
_OF_GROUPS: Final = ("which", "call", "stream", "other_side")
_OF_RECORDS: Final = (
    *("place", "row", "kind", "group", "peer", "sequence", "elements", "received", "bytes"),
    *("step", "start_ns", "end_ns", "busy_ns"),
)
_OF_LEADS: Final = ("lead_ns", "is_starved", "phase", "count")
_MOST_MEMBERS: Final = 1 << 22
"""So many ranks the groups of one rank list, at most, all together."""
_BY_NAME: Final = ("count", "time_ns", "threads", "given")


def check_summary(summary: RankSummary) -> None:
    """Raise ValueError where figures of a summary cannot be, or contradict each other."""
    for name in ("processes", "devices"):
        checked(summary.trace.table(name), arrow_schema(name))
    check_trace(summary.trace)
    require(not summary.trace.jobs)
    checked(summary.kernels, KERNEL_TOTALS)
    devices = summary.trace.devices.num_rows
    _check_numbers(summary)
    for device in summary.reports:
        _check_report(device)
    reported = [device.device for device in summary.reports]
    require(sorted(reported) == sorted(summary.records.devices) == sorted(set(reported)))
    activities = sum(device.chosen.activities for device in summary.reports)
    require(sum(summary.kernels["count"].to_pylist()) == activities)
    _check_records(summary.records)
    _check_choices(summary, len(reported))
    if summary.launches is not None:
        leads = summary.launches.leads
        _check_columns([getattr(leads, name) for name in _OF_LEADS])
        require(len(leads.count) and _within(leads.count, 1, LARGEST) and _sums_fit(leads.count))
        require(set(summary.launches.devices) <= set(range(devices)))
    _check_utilisation(summary, set(reported))


def _check_utilisation(summary: RankSummary, reported: set[int]) -> None:
    """Check peaks, FLOPs and bytes; `reported` are the devices that have a report."""
    require(summary.budgets or summary.lacks)  # without MFU it says why
    of_devices = {peak.device for peak in summary.peaks}
    require(not reported or of_devices == reported)  # a graph capture reports no device
    require(all(rate > 0 for peak in summary.peaks for rate in peak.rates.values()))
    for cell in summary.cells:
        require(cell.device in reported and cell.component in COMPONENTS)
        require(cell.line.split(".")[0] in _FAMILIES)
    for budget in summary.budgets:
        require(set(budget.components) <= set(COMPONENTS))
        require(budget.uncounted_ns <= budget.components.get("compute", 0))
        for work in budget.work:
            require(work.family in _FAMILIES and work.component in COMPONENTS)
            require(budget.peaks.get(work.dtype, 0) > 0)
    for roof in (summary.roofs.memory, summary.roofs.compute):
        require(min(roof.excess_ns, roof.bytes_ns) >= 0)


def _check_numbers(summary: RankSummary) -> None:
    """Check each number by its name, whatever it is in; other checks look into `_ELSEWHERE`."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    _find_numbers(summary, "", found)
    trace = summary.trace
    counts = {"device": trace.devices.num_rows, "process": trace.processes.num_rows}
    for name, values in found.items():
        # Any other number must fit in 64 bits, with its sign.
        stop = counts.get(name, LIMIT_NS if name.endswith("_ns") else 2 * LARGEST)
        require((-LIMIT_NS if name in _SIGNED else 0) <= min(values) and max(values) < stop)


def _find_numbers(value: Any, name: str, found: Mapping[str, list[int]]) -> None:
    """Add each number in a value that has a name to the numbers found by name."""
    kind = type(value)
    if kind is int:
        found[name].append(value)
    elif kind in _WITHOUT_NUMBERS:
        pass
    elif kind is tuple:
        for item in value:
            _find_numbers(item, name, found)
    elif issubclass(kind, Struct):
        for field in kind.__struct_fields__ if kind not in _ELSEWHERE else ():
            item = getattr(value, field)
            if type(item) is int:  # most are
                found[field].append(item)
            else:
                _find_numbers(item, field, found)
    elif issubclass(kind, Mapping):
        for item in value.values():
            _find_numbers(item, name, found)


def _check_report(device: DeviceReport) -> None:
    """Check that the parts of a device add up, and that its windows are in order inside it."""
    whole = device.whole
    # The first step may begin at its mark, before all work.
    last_ns = min([whole.start_ns, *(window.start_ns for window in device.windows[:1])])
    exposed_ns, hidden_ns = whole.exposed_communication_ns, whole.hidden_communication_ns
    require(exposed_ns + hidden_ns == whole.communication.union_ns)
    _check_account(whole.account, whole.span_ns)
    components = whole.account.components
    require(components.idle_ns + components.start_up_ns == whole.idle_ns)
    require(whole.busy_ns <= whole.sum_ns)
    for window in device.windows:
        require(last_ns <= window.start_ns <= window.end_ns <= whole.end_ns)
        _check_account(window.account, window.dur_ns)
        last_ns = window.end_ns
    used = [window.account for window in device.windows if window.used]
    require(device.chosen == reduce(add, used, EMPTY_ACCOUNT))
    for gap in device.gaps:
        require(gap.device == device.device and gap.causes.idle_ns + gap.start_up_ns == gap.dur_ns)
        require(min(gap.causes.launch_latency_parts().values()) >= 0)


def _check_account(account: Account, window_ns: int) -> None:
    components, causes = account.components, account.idle_causes
    require(components.window_ns == window_ns and causes.idle_ns == components.idle_ns)
    require(min(causes.launch_latency_parts().values()) >= 0)
    require(account.launched_activities <= account.activities)


def _check_records(records: CommRecords) -> None:
    """Check the collectives: one row of each column per record, within what sums can hold."""
    ranks = len(records.ranks)
    require(len(records.alone) == ranks)
    require(len(records.work) == len(records.devices) in (0, ranks))  # a projection has none
    _check_columns(
        [
            *(getattr(records, name) for name in _OF_RECORDS),
            *(getattr(records.told, name) for name in _OF_GROUPS),
        ]
    )
    require(_within(records.place, 0, ranks) and _within(records.kind, -1, len(KINDS)))
    require(_within(records.told.which, 0, len(records.told.known)))
    lists = (listed for _, listed, *_ in records.told.known if isinstance(listed, tuple))
    runs = [range(*run) for listed in lists for run in listed]
    require(all(run and 0 <= end < MOST_RANKS for run in runs for end in (run[0], run[-1])))
    require(sum(map(len, runs)) < _MOST_MEMBERS)
    times = (records.start_ns, records.end_ns, records.busy_ns)
    require(all(_within(time, -LIMIT_NS, LIMIT_NS) for time in times))
    require((records.end_ns >= records.start_ns).all() and (records.busy_ns >= 0).all())
    for name in ("elements", "received", "bytes"):
        amounts = getattr(records, name)
        amounts = amounts[amounts != ABSENT]
        require(_within(amounts, -1, LARGEST) and _sums_fit(amounts))
    for intervals in (*records.alone, *records.work):
        _check_columns([intervals.start_ns, intervals.end_ns])
        edges = np.stack([intervals.start_ns, intervals.end_ns], axis=1).ravel()
        require(_within(edges, -LIMIT_NS, LIMIT_NS) and (np.diff(edges) > 0).all())


def _check_choices(summary: RankSummary, devices: int) -> None:
    """Check the figures of all steps together, and of each long step by itself."""
    choices = 1 + len(summary.long_steps)
    require(len(summary.work) == len(summary.idle_of) == choices)
    require(all(len(culprits) == devices for culprits in summary.idle_of))
    for sums in summary.work:
        require(len(set(sums.names)) == len(sums.names) and sums.received.shape == (devices,))
        for column in (*(getattr(sums, name) for name in _BY_NAME), sums.received):
            require(_within(column, 0, LARGEST) and _sums_fit(column))
        shapes = {getattr(sums, name).shape for name in _BY_NAME}
        require(shapes == {(devices, len(sums.names))})


def _check_columns(columns: Sequence[IntArray]) -> None:
    require(len({column.shape for column in columns}) == 1 and columns[0].ndim == 1)


def _within(values: IntArray, least: int, stop: int) -> bool:
    return not values.size or (int(values.min()) >= least and int(values.max()) < stop)


def _sums_fit(values: IntArray) -> bool:
    return float(values.sum(dtype=np.float64)) < LARGEST
