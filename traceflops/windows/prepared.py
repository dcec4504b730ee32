"""TODO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from traceflops.table.trace import Trace
from traceflops.timeline.account import DeviceAccount, LinkedTrace
from traceflops.timeline.aggregates import Untimed
from traceflops.timeline.records import Window
from traceflops.windows.choice import StepPlan
from traceflops.windows.chosen import InWindows, chosen_activities
from traceflops.windows.device_records import LaunchRecords, chosen_calls, launch_records
from traceflops.windows.selection import Selection


@dataclass(frozen=True)  # without slots, so that there is a place for what is found on demand
class Prepared:
    """What every report of a trace starts from.

    `accounts` and `windows` are by row of the devices table, only the devices that the selection
    asks for. `untimed` is what a trace without a timeline says.
    """

    selection: Selection
    linked: LinkedTrace
    accounts: Mapping[int, DeviceAccount]
    plan: StepPlan
    windows: Mapping[int, tuple[Window, ...]]
    untimed: Untimed | None = None

    @property
    def trace(self) -> Trace:
        """Return the trace, with its operators as activities where it has no device work."""
        return self.linked.trace

    @cached_property
    def chosen(self) -> InWindows:
        """Return the activities of all devices in their chosen windows."""
        return chosen_activities(self.accounts, self.windows)

    @cached_property
    def launch_records(self) -> LaunchRecords:
        """Return how many launch calls have a device record."""
        asked = chosen_calls(self.trace, self.selection, self.accounts, self.windows)
        return launch_records(self.trace, self.untimed, asked)
