"""What an analysis says, as frozen values. Times are integer nanoseconds, shares are 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import nlargest
from operator import add, attrgetter
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from traceflops.devices.processes import ranks_text
from traceflops.idlecauses import IdleCauses
from traceflops.trace import Note, Source
from traceflops.windows.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from traceflops.findings.finding import Finding
    from traceflops.launchcalls import State
    from traceflops.mfu.measurement import Measurement
    from traceflops.prepare import Prepared
    from traceflops.untimed import Untimed

COMPONENTS = ("compute", "memory", "other", "graph", "communication", "idle")
"""Where a nanosecond of a window goes, first match first; communication here is exposed."""

_COMPONENTS_NS = attrgetter(*(f"{name}_ns" for name in COMPONENTS))


@dataclass(frozen=True, slots=True)
class Components:
    """One window of one device, each nanosecond in exactly one part.

    `communication_ns` is exposed communication: nothing else ran on that device meanwhile.
    """

    compute_ns: int = 0
    memory_ns: int = 0
    other_ns: int = 0
    graph_ns: int = 0
    communication_ns: int = 0
    idle_ns: int = 0

    @property
    def window_ns(self) -> int:
        """Return the length of the window: the sum of the parts."""
        return sum(_COMPONENTS_NS(self))

    def parts(self) -> dict[str, int]:
        """Return the parts by component, in the order of COMPONENTS."""
        return dict(zip(COMPONENTS, _COMPONENTS_NS(self), strict=True))

    def share(self, component: str) -> float | None:
        """Return a part as share of the window, None for a window without length."""
        total = self.window_ns
        return self.parts()[component] / total if total else None

    def __add__(self, other: Components) -> Components:
        """Return the sum, part by part."""
        return Components(*map(add, _COMPONENTS_NS(self), _COMPONENTS_NS(other)))


@dataclass(frozen=True, slots=True)
class Account:
    """What happened in one window, or in several added up, on one device or several.

    `activities` are those that start in the window, `launches` the distinct calls that launched
    them; `launches` is None where the trace has no calls.
    """

    components: Components
    idle_causes: IdleCauses
    hidden_communication_ns: int
    activities: int
    launched_activities: int
    launches: int | None

    @property
    def knows_idle(self) -> bool:
        """Return whether most of the idle time cannot have been filled by work not in the trace."""
        return 2 * self.idle_causes.unrecorded_ns <= self.components.idle_ns

    @property
    def with_idle_unrecorded(self) -> Account:
        """Return the same where any of the idle time may be work that is not in the trace."""
        return replace(self, idle_causes=self.idle_causes.unrecorded)

    @property
    def activities_per_launch(self) -> float | None:
        """Return how many activities one launch brought on average; None without launches."""
        return self.launched_activities / self.launches if self.launches else None

    def __add__(self, other: Account) -> Account:
        """Return the account of both, added up."""
        known = self.launches is not None and other.launches is not None
        return Account(
            self.components + other.components,
            self.idle_causes + other.idle_causes,
            self.hidden_communication_ns + other.hidden_communication_ns,
            self.activities + other.activities,
            self.launched_activities + other.launched_activities,
            (self.launches or 0) + (other.launches or 0) if known else None,
        )


EMPTY_ACCOUNT = Account(Components(), IdleCauses(), 0, 0, 0, 0)

WindowRole = Literal["before", "step", "between", "after", "span", "range"]


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one device's time and its account.

    `step` is the step's number for role `step`. `used` says whether it is part of the chosen
    window; `left_out` why not. `launched` counts the activities launched in the step (wherever
    they ran); `unfinished` is True where that is fewer than in the other steps.
    """

    role: WindowRole
    step: int | None
    start_ns: int
    end_ns: int
    used: bool
    left_out: str | None
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


@dataclass(frozen=True, slots=True)
class Sums:
    """Activities of one kind or category over the whole span of one device.

    `sum_ns` counts overlapping time twice, `union_ns` once.
    """

    count: int
    sum_ns: int
    union_ns: int


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one direction; `bytes` is None where no record says."""

    count: int
    bytes: int | None
    sum_ns: int


@dataclass(frozen=True, slots=True)
class WholeSpan:
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


@dataclass(frozen=True, slots=True)
class Gap:
    """One stretch in which a device did nothing, inside the chosen window.

    `after` and `before` name the activity that ended and the one that ended the wait; `call` and
    `op` are what launched the latter, and `waited_for` the work that its stream waited for. Names
    are "" where the trace has none. `step` is the step in whose window it begins, `before_step` the
    one whose first activity ends it: the window ends there, so it is that step that came late.
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


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device: what it is, its whole span, its windows and the chosen ones added up.

    Unknown properties are None; `partition` says which part of a card it is. `chosen` is the
    account of the windows with `used` set. `ranks` are those of all processes that worked on it,
    of which `rank` is that of the one it is listed for. `owner` is what stands for the process in
    the label, "" for its ranks or file; `apart` is what else tells the device from others.
    """

    device: int
    rank: int | None
    process: int
    file: str
    type: str
    local_id: int
    product: str | None
    memory_bytes: int | None
    sm_count: int | None
    whole: WholeSpan
    windows: tuple[Window, ...]
    chosen: Account
    gaps: tuple[Gap, ...]
    owner: str = ""
    apart: str = ""
    architecture: str | None = None
    partition: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def rank_text(self) -> str:
        """Return the ranks that worked on the device in words, "" where none is known."""
        return ranks_text(self.ranks or ((self.rank,) if self.rank is not None else ()))

    @property
    def with_idle_unrecorded(self) -> DeviceReport:
        """Return the same where any of the idle time may be work that is not in the trace."""
        return replace(
            self,
            whole=replace(self.whole, account=self.whole.account.with_idle_unrecorded),
            windows=tuple(
                replace(one, account=one.account.with_idle_unrecorded) for one in self.windows
            ),
            chosen=self.chosen.with_idle_unrecorded,
            gaps=tuple(replace(gap, causes=gap.causes.unrecorded) for gap in self.gaps),
        )

    @property
    def label(self) -> str:
        """Return what to call the device in a table."""
        owner = self.rank_text or self.file
        device = self.type if self.type == "cpu" else f"{self.type} {self.local_id}"
        apart = f" · {self.apart}" if self.apart else ""
        return f"{self.owner or owner} · {device}{apart}"

    @property
    def steps(self) -> tuple[Window, ...]:
        """Return the windows that are steps."""
        return tuple(window for window in self.windows if window.role == "step")


@dataclass(frozen=True, slots=True)
class StepChoice:
    """How steps were found and which of them the figures are about.

    `source` is markers, mark-regex, annotation, optimizer, copies, signature or none; `text`
    says it in words. `seen` and `used` are step numbers, merged over the ranks. `typical_ns` is the
    median time of the steps used, None where none is used or windows have no accounts yet.
    """

    source: str
    text: str
    seen: tuple[int, ...]
    used: tuple[int, ...]
    typical_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one sentence: the largest loss and its share of the chosen window."""

    sentence: str
    loss: str | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Collective:
    """Kernels of one kind of collective among so many ranks, in the chosen windows.

    `sum_ns` is their time inside the windows and `exposed_ns` the part in which nothing else ran
    on their device; collectives that run at the same time count each. `bytes` are those of the
    messages of `sized` of them, whose durations are `sized_ns`. Unknown is None.
    """

    collective: str | None
    ranks: int | None
    count: int
    sum_ns: int
    exposed_ns: int
    sized: int
    bytes: int | None
    sized_ns: int

    @property
    def bytes_per_ns(self) -> float | None:
        """Return bytes of messages by the time of their kernels: GB/s as NCCL counts (algbw)."""
        return self.bytes / self.sized_ns if self.bytes is not None and self.sized_ns else None


@dataclass(frozen=True, slots=True)
class JobReport:
    """One of several jobs that the files are of.

    `files` are the names of its files, `ranks` the known ranks. `chosen` says that the report is of
    this job. Where it is of none, `devices` is how many GPUs did work, `total` the account of their
    chosen windows and `verdict` the sentence on it; else they are None.
    """

    number: int
    format: str
    files: tuple[str, ...]
    ranks: tuple[int, ...]
    chosen: bool
    devices: int | None = None
    total: Account | None = None
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything a report shows.

    `kernels` has a row per distinct kernel (or copy) name in the chosen windows, `categories`
    one per (top, sub); see `traceflops.kernels` for their columns. `measured` is what the trace
    says of utilisation, `untimed` what a trace without a timeline says. `findings` are sorted by
    what they cost. `collectives` are there where the trace says which of them a kernel ran.
    `jobs` are there where the files are of several jobs; where none of them is chosen, nothing else
    is known but the source and the notes. `recorded` says whether the launch calls have device
    records: where they do not, nothing is judged. `prepared` is what all of it was computed from,
    for reports that show single events; None where that was not kept.
    """

    source: Source
    selection: Selection
    verdict: Verdict
    steps: StepChoice
    devices: tuple[DeviceReport, ...]
    total: Account
    kernels: pa.Table
    categories: pa.Table
    notes: tuple[Note, ...]
    measured: Measurement
    untimed: Untimed | None = None
    findings: tuple[Finding, ...] = ()
    collectives: tuple[Collective, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    recorded: State = "complete"
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    @property
    def of_no_job(self) -> bool:
        """Return whether the files are of several jobs and none of them is chosen."""
        return bool(self.jobs) and not any(job.chosen for job in self.jobs)

    @property
    def components(self) -> Components:
        """Return the components of the chosen windows of all devices, added up."""
        return self.total.components

    @property
    def windows_used(self) -> int:
        """Return how many windows the figures are added up over: steps times devices, as a rule."""
        return sum(window.used for device in self.devices for window in device.windows)

    @property
    def devices_used(self) -> tuple[DeviceReport, ...]:
        """Return the devices that the figures are about: those with a chosen window."""
        return tuple(d for d in self.devices if any(window.used for window in d.windows))

    @property
    def on_host(self) -> bool:
        """Return whether all work is operators on the CPU: then nothing is said of a device."""
        return bool(self.devices) and all(device.type == "cpu" for device in self.devices)

    def mean_ns(self, total_ns: int) -> float:
        """Return a time of all chosen windows as the mean per window."""
        return total_ns / max(self.windows_used, 1)

    def gaps(self, most: int = 10) -> tuple[Gap, ...]:
        """Return the longest gaps of all devices."""
        all_gaps = (gap for device in self.devices for gap in device.gaps)
        return tuple(nlargest(most, all_gaps, key=attrgetter("dur_ns")))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the kernel table, so that `pyarrow.table(analysis)` and its peers work."""
        return self.kernels.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return the kernel table as a DataFrame."""
        frame: pd.DataFrame = self.kernels.to_pandas()
        return frame

    def to_json(self) -> str:
        """Return the report as JSON (schema traceflops.report/1)."""
        from traceflops.reports.json.report import render_json

        return render_json(self)

    def _repr_html_(self) -> str:
        """Return the page in a frame, as notebooks show it."""
        from traceflops.reports.page.html import framed

        return framed(self)

    def save(self, path: str | Path) -> None:
        """Write the report as .html, .json, .md or .zip, replacing only a report of ours."""
        from traceflops.reports.write import save

        save(self, path)

    def __repr__(self) -> str:
        """Return the verdict in one line."""
        return f"<Analysis of {len(self.devices)} device(s): {self.verdict.sentence}>"
