"""The notes of an analysis: what is missing or assumed in its figures.

A note has a kind (`missing`: the trace lacks data; `assumed`: a guess that may be wrong), a code,
one or two sentences, and the number of records it is about. The reader's notes come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceflops.facts import fact
from traceflops.mfu.measurement import Measurement
from traceflops.plugins import packages
from traceflops.recording.inventory import profiler_time
from traceflops.remedies import remedy
from traceflops.table.columns import matching, numbers
from traceflops.table.patterns import BEGINS_PROGRAM
from traceflops.table.trace import Note, Trace, note_of
from traceflops.timeline.account import LinkedTrace
from traceflops.timeline.records import EMPTY_ACCOUNT
from traceflops.units import listed, time_amount
from traceflops.windows.device_records import LaunchRecords, records_notes
from traceflops.windows.prepared import MOST_DEVICES, Prepared
from traceflops.windows.records import DeviceReport, chosen_time

_AMID, _LATE = "earlier-work-missing", "late-starts"
OF_DEVICES = ("unlinked", "overlap-on-stream", _AMID, _LATE, "no-calls")
"""Notes that depend only on the reports of devices, so that summaries need not hold them."""
_ON_MODELS = ("gpu-unknown", "device-ambiguous")
"""Notes of readers that no longer hold if the user names the GPU."""
_WITHOUT_WORK = "no-device-work"
"""A note of readers that is left out if the verdict knows that a GPU worked."""
_FEW_OVERLAPS = 0.01
_DAY_NS = 86_400 * 10**9
_ON_CALLS = ("calls-missing", "calls-of-unknown-process", "process-unknown")
"""Notes of readers on calls that are missing or of an unknown process."""


def notes_of(
    prepared: Prepared, devices: Sequence[DeviceReport], measured: Measurement
) -> tuple[Note, ...]:
    """Return the notes of a trace and of all that was computed from it, in the order shown."""
    linked, trace = prepared.linked, prepared.linked.trace
    records = prepared.launch_records
    outdated: set[str] = set()
    if measured.devices and all(device.match.how == "given" for device in measured.devices):
        outdated.update(_ON_MODELS)
    if records.graph.lost > 0:  # counted again below, in the chosen time
        outdated.add("graph-launches-lost")
    if any(lack.wants_gpu_records for lack in measured.lacks):
        outdated.add(_WITHOUT_WORK)
    # The time in which the profiler delayed the program.
    profiler = profiler_time(trace, prepared.accounts)
    code = "profiler-overhead" if len(prepared.accounts) == 1 else "profiler-overhead.of-several"
    spent_ns, idle_ns = profiler.spent_ns, profiler.idle_ns
    delayed = note_of("assumed", code, count=profiler.times, spent_ns=spent_ns, idle_ns=idle_ns)
    left_out = []  # names and devices beyond a limit
    if count := linked.categorised.names_left:
        ns = linked.categorised.time_left_ns
        left_out.append(note_of("assumed", "too-many-names", count=count, ns=ns))
    if count := prepared.devices_left:
        left_out.append(note_of("missing", "too-many-devices", count=count, most=MOST_DEVICES))
    # Figures and findings may depend on what installed packages add.
    of_packages = packages().items()
    return (
        *(note_of("assumed", "package", name=n, adds=listed(kinds)) for n, kinds in of_packages),
        *(note for note in trace.notes if note.code not in outdated),
        *prepared.plan.notes,
        *_device_notes(prepared, devices),
        *left_out,
        *_clock_notes(linked, devices),
        # `on_host` matters only if no GPU is recorded: then all devices are CPUs.
        *records_notes(records, on_host=bool(devices), share=_lost_share(records, devices)),
        *([delayed] if profiler.idle_ns else ()),
        *(prepared.replays.notes if prepared.replays is not None else ()),
        *measured.notes,
    )


def _lost_share(records: LaunchRecords, devices: Sequence[DeviceReport]) -> float | None:
    """Return lost work, at mean times, as a share of the chosen time; or None if unknown."""
    window_ns = sum(device.chosen.components.window_ns for device in devices)
    lost_ns = 0
    kinds = {"kernel": records.kernel, "graph": records.graph, "memcpy": records.copy}
    for kind, calls in kinds.items():
        sums = [device.whole.kinds[kind] for device in devices if kind in device.whole.kinds]
        count = sum(of_device.count for of_device in sums)
        if calls.lost and not count:
            return None
        lost_ns += calls.lost * sum(of_device.sum_ns for of_device in sums) // max(count, 1)
    return lost_ns / window_ns if window_ns else None


def is_said(trace: Trace, *codes: str) -> bool:
    """Return whether a trace has a note with one of these codes."""
    return any(note.code in codes for note in trace.notes)


def _device_notes(prepared: Prepared, devices: Sequence[DeviceReport]) -> Iterator[Note]:
    """Yield notes on missing or odd work of devices, unless the reader already noted it."""
    trace = prepared.linked.trace
    operations = sum(sums.count for device in devices for sums in device.whole.kinds.values())
    unlinked = sum(sum((device.whole.unlinked or {}).values()) for device in devices)
    if unlinked and not is_said(trace, *_ON_CALLS):
        yield note_of("missing", "unlinked", count=unlinked, of=operations)
    gpus = [device.whole for device in devices if device.type != "cpu"]
    total = sum(sums.count for whole in gpus for sums in whole.kinds.values())
    if (count := sum(whole.same_stream_overlaps for whole in gpus)) > _FEW_OVERLAPS * total:
        longest = max(whole.same_stream_overlap_max_ns for whole in gpus)
        yield note_of("assumed", "overlap-on-stream", count=count, of=total, longest_ns=longest)
    # Idle time in which unrecorded work may have run: graphs (`unseen_ns`), or others. There is no
    # note on others if idle time is not judged, as all of it may be lost work.
    unseen_ns = prepared.unseen_ns
    unknown_ns = [
        device.chosen.idle_causes.unrecorded_ns - unseen_ns.get(device.device, 0)
        for device in devices
    ]
    window_ns = max(sum(device.chosen.components.window_ns for device in devices), 1)
    if (count := sum(ns > 0 for ns in unknown_ns)) and prepared.launch_records.is_judged:
        code = _AMID if _began_amid_work(prepared) else _LATE
        late_ns, cost = sum(unknown_ns), fact(f"advice.{code}")
        share = late_ns / window_ns
        yield note_of("missing", code, count=count, share=share, advice=cost, late_ns=late_ns)
    if count := sum(ns > 0 for ns in unseen_ns.values()):
        most_ns = sum(unseen_ns.values())
        share = most_ns / window_ns
        yield note_of("missing", "replays-unrecorded", count=count, most_ns=most_ns, share=share)
    # `unlinked` is None if a process has no calls that could be linked.
    if any(whole.unlinked is None for whole in gpus) and not is_said(trace, "no-calls", *_ON_CALLS):
        cost = fact("advice.no-calls", how=remedy(trace, "calls"))
        yield note_of("missing", "no-calls", advice=cost)


def _began_amid_work(prepared: Prepared) -> bool:
    """Return whether work that starts late may wait for work from before the recording.

    So it is if most of that time is before the first recorded work of a stream, and no call that
    only begins a program is recorded.
    """
    trace = prepared.trace
    if matching(trace.calls["name"], BEGINS_PROGRAM.match).any():
        return False
    late_ns = first_ns = 0
    for device, account in prepared.accounts.items():
        late = account.idle.by_cause["unrecorded"].intersect(chosen_time(prepared.windows[device]))
        _, first = np.unique(account.rows.columns.stream[account.rows.row], return_index=True)
        is_first = np.isin(late.end_ns, account.rows.start_ns[first])
        late_ns += late.length_ns
        first_ns += int((late.end_ns - late.start_ns)[is_first].sum())
    return 2 * first_ns > late_ns


def _clock_notes(linked: LinkedTrace, devices: Sequence[DeviceReport]) -> Iterator[Note]:
    """Yield notes on clocks of CPU and GPU that disagree: always, or for some operations."""
    call, process = linked.links.call_of_activity, numbers(linked.trace.activities["process"])
    offsets = linked.clock_offsets
    if count := int(np.count_nonzero(offsets)):
        offset_ns = int(offsets[np.argmax(np.abs(offsets))])
        code = "clocks-apart" if offset_ns > 0 else "clocks-apart.before"
        days = abs(offset_ns) / _DAY_NS
        length = f"{days:,.1f} days" if days >= 1 else time_amount(abs(offset_ns))
        cost, several = fact("advice.clocks-apart"), count if count > 1 else None
        total = sum((device.chosen for device in devices), EMPTY_ACCOUNT).components
        yield note_of(
            "missing",
            code,
            count=count,
            share=total.share("idle") or 0.0,
            advice=cost,
            processes=several,
            length=length,
        )
    launched = np.flatnonzero((call >= 0) & (offsets[process] == 0))
    start = numbers(linked.trace.activities["start_ns"])[launched]
    early_ns = numbers(linked.trace.calls["start_ns"])[call[launched]] - start
    if count := int(np.count_nonzero(early_ns > 0)):
        code, cost = "device-before-launch", fact("advice.device-before-launch")
        all_count, most_ns = len(launched), int(early_ns.max())
        yield note_of("assumed", code, count=count, advice=cost, of=all_count, most_ns=most_ns)
