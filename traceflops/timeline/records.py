"""Windows of a device and their contents as frozen values: accounts, components, causes, gaps.

Times are integer ns, shares 0 to 1. The seven components of a window are disjoint and sum to its
length; idle causes sum to its idle time. Accounts of windows and devices add up.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import astuple, replace

from traceflops.facts import Fact
from traceflops.table.columns import Additive

WORK = ("compute", "memory", "other", "graph", "communication")
"""The components that are work, in their order of precedence; communication here is exposed."""
COMPONENTS = (*WORK, "start_up", "idle")
"""The parts of a window, as the fields of Components; each ns belongs to the first that applies."""
IDLE_CAUSES: Final = ("host_late", "queued", "launch_latency", "unknown")


class IdleCauses(Additive, frozen=True):
    """Idle time by what the next activity was waiting for; the causes sum to the idle time.

    host_late: its launch call had not begun. queued: launched, held back by another stream.
    launch_latency: launched, its stream free, not yet started. unknown: no launch in the trace.

    `in_launch_call_ns` and `stream_wait_ns` are parts of the launch latency. `unrecorded_ns` is the
    part of the unknown in which launched work waited for something that is not in the trace.
    """

    host_late_ns: int = 0
    queued_ns: int = 0
    launch_latency_ns: int = 0
    unknown_ns: int = 0
    in_launch_call_ns: int = 0
    stream_wait_ns: int = 0
    unrecorded_ns: int = 0

    @property
    def idle_ns(self) -> int:
        """Return the idle time: the sum of the causes."""
        return sum(self.parts().values())

    @property
    def unrecorded(self) -> IdleCauses:
        """Return the same idle time as unrecorded: work that is not in the trace may fill it."""
        return IdleCauses(unknown_ns=self.idle_ns, unrecorded_ns=self.idle_ns)

    def parts(self) -> dict[str, int]:
        """Return the ns by cause, in the order of IDLE_CAUSES."""
        return {name: getattr(self, f"{name}_ns") for name in IDLE_CAUSES}

    def launch_latency_parts(self) -> dict[str, int]:
        """Return the ns of launch latency in the launch call, in a stream wait, and after both."""
        after = self.launch_latency_ns - self.in_launch_call_ns - self.stream_wait_ns
        return {
            "in_launch_call": self.in_launch_call_ns,
            "stream_wait": self.stream_wait_ns,
            "launch_to_start": after,
        }

    def detailed(self) -> dict[str, int]:
        """Return the ns by cause, with the launch latency split into its parts."""
        before = {"host_late": self.host_late_ns, "queued": self.queued_ns}
        return {**before, **self.launch_latency_parts(), "unknown": self.unknown_ns}

    @property
    def largest(self) -> str:
        """Return the cause with most time, of those that `detailed` returns."""
        return max(self.detailed().items(), key=lambda item: item[1])[0]


class Components(Additive, frozen=True):
    """The components of one window of one device; each ns is in exactly one.

    `communication_ns` is exposed communication: nothing else ran on the device meanwhile. Nothing
    ran in `idle_ns`, nor in `start_up_ns`, when the program started up.
    """

    compute_ns: int = 0
    memory_ns: int = 0
    other_ns: int = 0
    graph_ns: int = 0
    communication_ns: int = 0
    start_up_ns: int = 0
    idle_ns: int = 0

    @property
    def window_ns(self) -> int:
        """Return the length of the window: the sum of the parts."""
        return sum(astuple(self))

    def parts(self) -> dict[str, int]:
        """Return the ns by component, in the order of COMPONENTS."""
        return dict(zip(COMPONENTS, astuple(self), strict=True))

    def share(self, component: str) -> float | None:
        """Return a component as share of the window, None for a window without length."""
        total = self.window_ns
        return self.parts()[component] / total if total else None


class Account(Struct, frozen=True):
    """The account of one window, or the sum of several windows and devices.

    `activities` start in the window; `launches` are their distinct calls, None if none is known.
    """

    components: Components
    idle_causes: IdleCauses
    hidden_communication_ns: int
    activities: int
    launched_activities: int
    launches: int | None

    @property
    def knows_idle(self) -> bool:
        """Return whether at most half of the idle time may be work that is not in the trace."""
        return 2 * self.idle_causes.unrecorded_ns <= self.components.idle_ns

    @property
    def with_idle_unrecorded(self) -> Account:
        """Return the same account with all idle time unrecorded; see IdleCauses."""
        return replace(self, idle_causes=self.idle_causes.unrecorded)

    @property
    def activities_per_launch(self) -> float | None:
        """Return the mean number of activities per launch, None without launches."""
        return self.launched_activities / self.launches if self.launches else None

    def __add__(self, other: Account) -> Account:
        """Add up two windows; the number of launches is unknown if it is for one of them."""
        have_calls = self.launches is not None and other.launches is not None
        return Account(
            self.components + other.components,
            self.idle_causes + other.idle_causes,
            self.hidden_communication_ns + other.hidden_communication_ns,
            self.activities + other.activities,
            self.launched_activities + other.launched_activities,
            (self.launches or 0) + (other.launches or 0) if have_calls else None,
        )


EMPTY_ACCOUNT = Account(Components(), IdleCauses(), 0, 0, 0, 0)
WindowRole = Literal["before", "step", "between", "after", "span", "range"]


class Window(Struct, frozen=True):
    """A window of one device and its account.

    `step` is the number of the step, None for other roles. `used` says whether figures are about
    this window, `left_out` why not. `launched` counts the activities that the step launched, in
    whichever window they ran; `unfinished`: these are fewer than in the other steps.
    """

    role: WindowRole
    step: int | None
    start_ns: int
    end_ns: int
    used: bool
    left_out: Fact | None
    launched: int | None
    unfinished: bool
    account: Account

    @property
    def dur_ns(self) -> int:
        """Return the length of the window."""
        return self.end_ns - self.start_ns

    @property
    def label(self) -> str:
        """Return what to call the window in a table."""
        return f"step {self.step}" if self.step is not None else self.role


class Sums(Struct, frozen=True):
    """Activities of one kind or category on a device; `union_ns` counts overlapping time once."""

    count: int
    sum_ns: int
    union_ns: int


class Copies(Struct, frozen=True):
    """Copies of one direction; `bytes` is None where no record states them."""

    count: int
    bytes: int | None
    sum_ns: int


class WholeSpan(Struct, frozen=True):
    """The figures of one device over everything recorded of it.

    `kinds` is keyed by activity kind, `categories` by "top" and "top/sub". `communication`
    covers kernels and peer copies. `unlinked` counts, by kind, the activities without a launch
    record; it is None where the trace has no calls at all.
    """

    start_ns: int
    end_ns: int
    busy_ns: int
    sum_ns: int
    streams: int
    zero_length: int
    same_stream_overlaps: int
    same_stream_overlap_max_ns: int
    kinds: dict[str, Sums]
    categories: dict[str, Sums]
    communication: Sums
    exposed_communication_ns: int
    hidden_communication_ns: int
    copies: dict[str, Copies]
    unlinked: dict[str, int] | None
    account: Account

    @property
    def span_ns(self) -> int:
        """Return the time from the first start to the last end."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """Return the time of the span in which no activity ran."""
        return self.span_ns - self.busy_ns


class GapCulprit(Struct, frozen=True):
    """Time of one gap by culprit: its class (of `attribution.CLASSES`) and name."""

    kind: str
    label: str
    idle_ns: int


class Gap(Struct, frozen=True):
    """A time in which a device was idle, inside the chosen window.

    `after` names the activity before the gap and `before` the one that ends it; `call` and `op`
    launched the latter, and its stream waited for `waited_for`. Names are "" where unknown. The gap
    begins in the window of `step`. If the first activity of another step ends it, this step is
    `before_step`, which so came late. The causes and `start_up_ns`, the part in which the program
    started up, sum to `dur_ns`. `culprits` are what the host did meanwhile, the class with most
    time first.
    """

    device: int
    start_ns: int
    dur_ns: int
    step: int | None
    after: str
    before: str
    call: str
    op: str
    causes: IdleCauses
    waited_for: str = ""
    before_step: int | None = None
    start_up_ns: int = 0
    culprits: tuple[GapCulprit, ...] = ()

    @property
    def unexplained_ns(self) -> int:
        """Return the time without a culprit."""
        return self.dur_ns - sum(culprit.idle_ns for culprit in self.culprits)
