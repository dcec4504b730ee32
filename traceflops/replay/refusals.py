"""Reasons not to replay a recording: what it holds is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.errors import UsageError
from traceflops.table.columns import matching, numbers
from traceflops.windows.prepared import Prepared

_OF_MTIA: Final = "runFunction"  # how the names of calls begin that start work on MTIA devices
_WITH_CALLS: Final = "record the calls of the CPU, too"
_MOST_UNLAUNCHED: Final = 0.5
"""Above this share of time of work without a launch, the host explains too little to replay."""


def refused(reason: str, hint: str) -> UsageError:
    """Return the error that refuses to replay a recording."""
    return UsageError(f"what-if needs more than this recording holds: {reason}", hint)


def refusals(prepared: Prepared) -> Iterator[UsageError]:
    """Yield an error for each reason why a recording cannot be replayed.

    Of reasons that say the same or follow from one another, only the first is given.
    """
    trace = prepared.trace
    types = {*trace.devices["type"].to_pylist()}
    if prepared.untimed is not None:
        yield refused(
            "it has sums by kernel, without a timeline", "record a timeline of GPU and CPU"
        )
    if not prepared.accounts or types == {"cpu"}:
        yield refused("no work of a GPU has times", "record a timeline of the GPU")
        return
    if prepared.launch_records.state == "collectives":
        yield refused("only collectives are recorded", "record all work of the GPU")
    elif prepared.launch_records.state == "serialized":
        yield refused("kernels ran one by one for counters", "record a run without counters")
    elif prepared.launch_records.timed.lack():
        yield refused("durations of GPU work are missing", "record them")
    # Not judged: many launches have no record of their work. Replays of graphs without a record are
    # counted apart, by the time in which they may have run.
    elif not (prepared.launch_records.is_judged and prepared.knows_replays):
        yield refused("GPU work of many launches is missing", "record all of it")
    if prepared.devices_left:
        yield refused("one process has too many GPUs to follow them all", "select some with --gpu")
    rows = np.concatenate([account.rows.row for account in prepared.accounts.values()])
    if prepared.linked.clock_offsets[numbers(trace.activities["process"])[rows]].any():
        yield refused("CPU and GPU clocks disagree", "record with the current driver and profiler")
    if matching(trace.calls["name"], lambda name: name.startswith(_OF_MTIA)).any():
        yield refused("it is of MTIA, whose queues are not understood", "record on a GPU")
    if not any(window.used for windows in prepared.windows.values() for window in windows):
        yield refused(
            "no step is selected", "select steps with --steps or a time with --from and --to"
        )
    unlaunched = prepared.linked.links.call_of_activity[rows] < 0
    time = numbers(trace.activities["dur_ns"])[rows]
    if time[unlaunched].sum() > _MOST_UNLAUNCHED * time.sum():
        yield refused("most GPU work has no recorded launch", _WITH_CALLS)
    elif not numbers(trace.calls["dur_ns"]).any():
        yield refused("launches have no calls of the CPU, only their moments", _WITH_CALLS)
