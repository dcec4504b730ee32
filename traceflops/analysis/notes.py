"""The notes that an analysis makes: what is missing or assumed in what it shows of a trace.

A note has a kind (`missing`: the trace lacks it; `assumed`: a guess that may be wrong), a code, one
or two sentences, and how many records it is about. Shown first are those of the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceflops.categories import Categorised
from traceflops.mfu import Measurement
from traceflops.plugins import packages
from traceflops.recording import profiler_time
from traceflops.remedies import remedy
from traceflops.table import Note, Trace, numbers
from traceflops.timeline import DeviceAccount, LinkedTrace
from traceflops.units import listed, several, some_of, time_amount
from traceflops.windows import DeviceReport, LaunchRecords, Prepared, records_notes

OF_DEVICES = ("unlinked", "overlap-on-stream", "earlier-work-missing", "no-calls")
"""Notes that are told by the reports of devices alone."""
_ON_MODELS = ("gpu-unknown", "device-ambiguous")
"""Notes of readers that no longer hold where the user says which GPU it is."""
_FEW_OVERLAPS = 0.01
_DAY_NS = 86_400 * 10**9
_CALLS_SAID = ("calls-missing", "calls-of-unknown-process", "process-unknown")
"""Notes of readers that say which calls are not known, or whose."""


def notes_of(
    prepared: Prepared, devices: Sequence[DeviceReport], measured: Measurement
) -> tuple[Note, ...]:
    """Return the notes of a trace and of all that was computed from it, in the order shown."""
    linked, trace = prepared.linked, prepared.linked.trace
    is_told = bool(measured.devices) and all(d.match.how == "given" for d in measured.devices)
    records = prepared.launch_records
    # Lost launches of graphs are counted anew, in the chosen time.
    said = {*(_ON_MODELS * is_told), *(("graph-launches-lost",) * (records.graph.lost > 0))}
    return (
        *_package_notes(),
        *(note for note in trace.notes if note.code not in said),
        *prepared.plan.notes,
        *_link_notes(trace, devices),
        *_overlap_notes(devices),
        *_earlier_work_notes(devices, prepared.unseen_ns, is_judged=records.is_judged),
        *_no_calls_notes(trace, devices),
        *_name_notes(linked.categorised),
        *_clock_notes(linked),
        *records_notes(
            records,
            on_host=bool(devices),
            share=_lost_share(records, devices),
        ),
        *_profiler_notes(trace, prepared.accounts),
        *(prepared.replays.notes if prepared.replays is not None else ()),
        *measured.notes,
    )


def _lost_share(records: LaunchRecords, devices: Sequence[DeviceReport]) -> float | None:
    """Return the share of the chosen time of work without record, if it is like that with one."""
    window_ns = sum(device.chosen.components.window_ns for device in devices)
    lost_ns = 0
    for calls, kind in (
        (records.kernel, "kernel"),
        (records.graph, "graph"),
        (records.copy, "memcpy"),
    ):
        sums = [device.whole.kinds[kind] for device in devices if kind in device.whole.kinds]
        count = sum(one.count for one in sums)
        if calls.lost and not count:
            return None
        lost_ns += calls.lost * sum(one.sum_ns for one in sums) // max(count, 1)
    return lost_ns / window_ns if window_ns else None


def is_said(trace: Trace, *codes: str) -> bool:
    """Return whether a trace comes with a note of one of these codes."""
    return any(note.code in codes for note in trace.notes)


def _link_notes(trace: Trace, devices: Sequence[DeviceReport]) -> Iterator[Note]:
    """Say how many activities have no launch record, unless the reader of the trace said so.

    Sums are over the devices shown.
    """
    unlinked = sum(sum((device.whole.unlinked or {}).values()) for device in devices)
    if unlinked and not is_said(trace, *_CALLS_SAID):
        text = (
            f"{some_of(unlinked, _operations(devices), 'GPU operation', 'have')} no launch record: "
            "their step and operator are unknown."
        )
        yield Note("missing", "unlinked", text, unlinked)


def _operations(devices: Sequence[DeviceReport]) -> int:
    return sum(sums.count for device in devices for sums in device.whole.kinds.values())


def _no_calls_notes(trace: Trace, devices: Sequence[DeviceReport]) -> Iterator[Note]:
    without = any(d.type != "cpu" and d.whole.unlinked is None for d in devices)
    if without and not is_said(trace, "no-calls", *_CALLS_SAID):
        how = remedy(trace, "calls")
        text = (
            "The trace has no CPU API calls. Work cannot be linked to operators, and the causes of "
            "idle time are unknown."
        )
        yield Note("missing", "no-calls", f"{text} To record them: {how}." if how else text)


def _overlap_notes(devices: Sequence[DeviceReport]) -> Iterator[Note]:
    devices = [device for device in devices if device.type != "cpu"]
    count = sum(device.whole.same_stream_overlaps for device in devices)
    total = _operations(devices)
    if count > _FEW_OVERLAPS * total:
        longest = max(device.whole.same_stream_overlap_max_ns for device in devices)
        text = (
            f"{some_of(count, total, 'GPU operation', 'start')} before the previous one on "
            f"their stream ends (by up to {time_amount(longest)}). Some hardware allows "
            "this; a clock that jumped back looks the same. No time counts twice."
        )
        yield Note("assumed", "overlap-on-stream", text, count)


def _earlier_work_notes(
    devices: Sequence[DeviceReport], unseen_ns: Mapping[int, int], *, is_judged: bool
) -> Iterator[Note]:
    """Say how long work without a record may have run; of graphs that is given by device.

    Where too many records are lost to judge idle time, all of it may be lost work.
    """
    unknown_ns = [
        device.chosen.idle_causes.unrecorded_ns - unseen_ns.get(device.device, 0)
        for device in devices
    ]
    window_ns = sum(device.chosen.components.window_ns for device in devices)
    if is_judged and (count := sum(ns > 0 for ns in unknown_ns)):
        text = (
            f"On {several(count, 'GPU')} recorded work starts long after its launch call "
            f"({time_amount(sum(unknown_ns))} of idle time), and no recorded wait explains it. "
            "Earlier work or waits may be missing, so the cause of that idle time is unknown."
        )
        share = sum(unknown_ns) / max(window_ns, 1)
        yield Note("missing", "earlier-work-missing", text, count, share=share)
    if count := sum(ns > 0 for ns in unseen_ns.values()):
        replays_ns = sum(unseen_ns.values())
        text = (
            f"On {several(count, 'GPU')} graphs whose launches have no GPU record may have run for "
            f"up to {time_amount(replays_ns)} of the idle time, whose cause is unknown."
        )
        share = replays_ns / max(window_ns, 1)
        yield Note("missing", "replays-unrecorded", text, count, share=share)


def _name_notes(categorised: Categorised) -> Iterator[Note]:
    if count := categorised.names_left:
        text = (
            f"Too many names: {count:,} with little time each are uncategorized "
            f"({time_amount(categorised.time_left_ns)})."
        )
        yield Note("assumed", "too-many-names", text, count)


def _clock_notes(linked: LinkedTrace) -> Iterator[Note]:
    call, process = linked.links.call_of_activity, numbers(linked.trace.activities["process"])
    offsets = linked.clock_offsets
    if apart := int(np.count_nonzero(offsets)):
        yield _clocks_apart(int(offsets[np.argmax(np.abs(offsets))]), apart)
    launched = np.flatnonzero((call >= 0) & (offsets[process] == 0))
    begun = numbers(linked.trace.activities["start_ns"])[launched]
    early = numbers(linked.trace.calls["start_ns"])[call[launched]] - begun
    if count := int(np.count_nonzero(early > 0)):
        text = (
            f"{some_of(count, len(launched), 'launched GPU operation', 'start')} before "
            f"their launch call, by up to {time_amount(int(early.max()))}: CPU and GPU clocks "
            "disagree. Causes of nearby idle time are approximate."
        )
        yield Note("assumed", "device-before-launch", text, count)


def _clocks_apart(offset_ns: int, processes: int) -> Note:
    """Return that times of CPU and GPU do not compare; `offset_ns` is the largest offset."""
    whose = f" of {several(processes, 'process')}" if processes > 1 else ""
    how = "after" if offset_ns > 0 else "before"
    days = abs(offset_ns) / _DAY_NS
    length = f"{days:,.1f} days" if days >= 1 else time_amount(abs(offset_ns))
    text = (
        f"CPU and GPU clocks{whose} disagree by {length} or more: all GPU work starts that long "
        f"{how} its launch. Causes of idle time and launch latency are unknown; times on the "
        "GPU's own clock hold."
    )
    return Note("missing", "clocks-apart", text, processes)


def _profiler_notes(trace: Trace, accounts: Mapping[int, DeviceAccount]) -> tuple[Note, ...]:
    """Return what to say of the time in which the profiler held up the program."""
    found = profiler_time(trace, accounts)
    if not found.idle_ns:
        return ()
    whose = "the GPU" if len(accounts) == 1 else "at least one GPU of its process"
    text = (
        f"The profiler itself ran {several(found.times, 'time')} on the CPU, "
        f"{time_amount(found.spent_ns)} total; {whose} was idle for "
        f"{time_amount(found.idle_ns)} of that. Without the profiler this idle time may not occur."
    )
    return (Note("assumed", "profiler-overhead", text, found.times),)


def _package_notes() -> Iterator[Note]:
    """Say what installed packages add, since figures and findings may depend on it."""
    for package, kinds in packages().items():
        text = f"From the package {package}: {listed(kinds)}. Without it, the report may differ."
        yield Note("assumed", "package", text)
