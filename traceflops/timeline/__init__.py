"""Time on one device: each ns of a window is in exactly one component, idle time has its causes.

    LinkedTrace            trace, links, categories; its DeviceAccount takes one device:
        |
        |   stream 7   |--gemm--|      |-copy-|         |--gemm--|
        |   stream 9        |---all-reduce----|
        v
    Timeline               compute  ##########            ........    ##########
    (device_span.py)       memory             ......######
                           exposed comm.      ######              the rest is hidden
                           idle                           ########  gaps
        |  idle.py: what did the activity that ends a gap wait for?
        v
    IdleTime               host_late | queued | in_launch_call | stream_wait | launch_to_start
        |  accounts(start_ns, end_ns): any windows [start, end)
        v
    Account (records.py)   components sum to the window, causes to its idle time

Instants are sets of [start, end) in int64 ns (intervals.py). Traces without a timeline have sums
by name instead (aggregates.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.timeline.account import DeviceAccount, LinkedTrace
    from traceflops.timeline.aggregates import Untimed, untimed
    from traceflops.timeline.device_span import WORK, DeviceRows, is_top, whole_span
    from traceflops.timeline.host_work import (
        COPIES_MISSING,
        SplitWork,
        lacks_copies,
        ran_on_cpu,
        split_work,
        with_fine_times,
        with_host_activities,
        with_known_idle,
    )
    from traceflops.timeline.idle import ENDLESS, LONGEST_START_NS
    from traceflops.timeline.intervals import NEVER, Intervals, latest_end_before
    from traceflops.timeline.records import (
        COMPONENTS,
        EMPTY_ACCOUNT,
        Account,
        Components,
        Gap,
        GapCulprit,
        WholeSpan,
        Window,
        WindowRole,
    )
else:
    __getattr__ = lazy(__name__, __file__)
