"""Time on one device: each ns of a window is in exactly one component, idle time has its causes.

Takes the activities of a device; gives disjoint intervals, and accounts whose parts sum exactly.
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
        Whole,
        lacks_copies,
        ran_on_cpu,
        whole_work,
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
