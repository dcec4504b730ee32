"""What rules read: the fields of an analysis, with thresholds that a user may change."""
# ruff: noqa: D102 (the docstring of Case says what its properties are)

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from msgspec import Struct, field

from traceflops.accelerators import CUDA, accelerator
from traceflops.categories.programs import facts_of_program
from traceflops.findings.rules import cause_of, thresholds
from traceflops.remedies import NSIGHT, PYTORCH, ROCPROF, family
from traceflops.table.columns import names
from traceflops.table.grouping import group_sums, ranked
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import latest_end_before
from traceflops.units import several
from traceflops.windows.records import chosen_time

if TYPE_CHECKING:
    from traceflops.attribution.culprits import IdleCulprits
    from traceflops.attribution.host_calls import Synchronisation
    from traceflops.attribution.launch_lead import HostBound, Launches
    from traceflops.facts import Fact, Value
    from traceflops.findings.finding import Candidate, Cause, Finding
    from traceflops.gpu_samples import GpuSamples
    from traceflops.mfu.measurement import Measurement
    from traceflops.mfu.serving_passes import Serving
    from traceflops.ranks.who_waits import RankReport
    from traceflops.recording.inventory import Missing
    from traceflops.replay.what_if import Replay
    from traceflops.table.trace import Note, Source, Trace
    from traceflops.timeline.aggregates import Untimed
    from traceflops.timeline.records import Account, Gap
    from traceflops.windows.device_records import State
    from traceflops.windows.prepared import Prepared
    from traceflops.windows.records import DeviceReport, StepChoice
    from traceflops.windows.step_times import StepSpread

Rule = Callable[["Case"], Iterator["Cause | Candidate"]]
"""A function that yields the causes it finds; a Candidate is a cause as a user's rule states it."""
_ABOVE_0: Final = 1e-18
"""A positive number below the share of any recorded time: it stands for "more than nothing"."""


class FindingRules(Struct, frozen=True):
    """What a user changes: thresholds by rule and name, ids of rules to silence, own rules."""

    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    own: tuple[Rule, ...] = ()

    def limits(self, rule: str) -> Mapping[str, float]:
        """Return the thresholds of a rule by name: the user's, else those of `rules.toml`.

        A user's 0 becomes _ABOVE_0, so that a share of 0 never makes a finding.
        """
        own = self.thresholds.get(rule, {}).items()
        return {**thresholds()[rule], **{name: max(value, _ABOVE_0) for name, value in own}}

    @property
    def changes(self) -> str:
        """Return in words how many rules and thresholds are changed, "" if none is."""
        changed = sum(map(len, self.thresholds.values()))
        parts = (
            f"{several(changed, 'threshold')} changed" if changed else "",
            f"{several(len(self.silent), 'rule')} silent" if self.silent else "",
            f"{several(len(self.own), 'rule')} added" if self.own else "",
        )
        return ", ".join(filter(None, parts))


NO_RULES: Final[FindingRules] = FindingRules()


class Case(Protocol):
    """The analysis of one recording, as rules read it.

    total             the time of the chosen windows of all devices
    idle              what the host did in idle time
    host_bound        whether the host is fast enough
    synchronisations  the calls in which the host waits for a GPU
    spread            how the steps used differ, None if none is used
    notes             what was repaired, dropped or assumed
    recorded          whether launches have device records
    untimed           what a recording without a timeline tells
    has_events        whether `prepared` has the events; if not, it is empty, and figures are sums
    missing           what the recording lacks although its tool can record it
    losses            what takes the time
    windows_used      how many windows are chosen
    of_no_job         whether the files are of several jobs and the user chose none
    on_host           whether all work is on the CPU
    program           the facts of the program that choose a remedy; see `program_of`
    replay_or_reason  the recording ready for what-if, or None and why it is not
    """

    @property
    def source(self) -> Source: ...
    @property
    def steps(self) -> StepChoice: ...
    @property
    def total(self) -> Account: ...
    @property
    def measured(self) -> Measurement: ...
    @property
    def idle(self) -> IdleCulprits: ...
    @property
    def host_bound(self) -> HostBound | None: ...
    @property
    def synchronisations(self) -> tuple[Synchronisation, ...]: ...
    @property
    def launches(self) -> Launches | None: ...
    @property
    def devices(self) -> tuple[DeviceReport, ...]: ...
    @property
    def spread(self) -> StepSpread | None: ...
    @property
    def serving(self) -> Serving: ...
    @property
    def ranks(self) -> RankReport: ...
    @property
    def notes(self) -> tuple[Note, ...]: ...
    @property
    def gpu_samples(self) -> tuple[GpuSamples, ...]: ...
    @property
    def recorded(self) -> State: ...
    @property
    def untimed(self) -> Untimed | None: ...
    @property
    def prepared(self) -> Prepared: ...
    @property
    def has_events(self) -> bool: ...
    @property
    def missing(self) -> tuple[Missing, ...]: ...
    @property
    def losses(self) -> tuple[Finding, ...]: ...
    @property
    def finding_rules(self) -> FindingRules: ...
    @property
    def windows_used(self) -> int: ...
    @property
    def of_no_job(self) -> bool: ...
    @property
    def on_host(self) -> bool: ...
    @property
    def program(self) -> frozenset[str]: ...
    @property
    def replay_or_reason(self) -> tuple[Replay | None, Fact | None]: ...

    def gaps(self, most: int = 10) -> tuple[Gap, ...]:
        """Return the longest gaps of all devices."""


def limit(case: Case, rule: str, name: str) -> float:
    """Return one threshold of a rule: the user's, else that of `rules.toml`."""
    return case.finding_rules.limits(rule)[name]


def cause(
    case: Case,
    rule: str,
    share: float,
    values: Mapping[str, Value] | None = None,
    details: tuple[Fact, ...] = (),
    knows: frozenset[str] = frozenset(),
    **changes: Any,
) -> Cause:
    """Return a cause by the row of its rule; see `cause_of`.

    `knows` are facts that choose the remedy, besides those of the program.
    """
    return cause_of(case.program | knows, rule, share, values, details, **changes)


def share_of_window(case: Case, time_ns: int) -> float:
    """Return a time as a share of the chosen windows of all devices."""
    window_ns = case.total.components.window_ns
    return time_ns / window_ns if window_ns else 0.0


def without_work_ns(case: Case) -> int:
    """Return for how many ns of the chosen windows each device's busiest stream lacks work, summed.

    Communication is no work here. Start-up is left out, because it happens only once.
    """
    prepared, busy_ns = case.prepared, 0
    for device, account in prepared.accounts.items():
        row, stream = account.rows.row, prepared.linked.columns.stream
        works = np.flatnonzero(~is_top(prepared.linked.categorised, "communication", row))
        start, end = account.rows.start_ns[works], account.rows.end_ns[works]
        _, stream_number = ranked(stream[row[works]])
        # Begin after all earlier work of the stream, so that overlaps count once.
        start = np.maximum(start, latest_end_before(stream_number, start, end))
        chosen = chosen_time(prepared.windows[device])
        inside_ns = chosen.length_within(start, np.maximum(start, end))
        of_stream = group_sums(stream_number, inside_ns, int(stream_number.max(initial=-1)) + 1)
        busy_ns += int(of_stream.max(initial=0))
    components = case.total.components
    return components.window_ns - components.start_up_ns - busy_ns


_AMD_WARP: Final = 64  # lanes of a warp on some AMD GPUs; NVIDIA's have 32
_RDNA: Final = 10  # the first gfx version of RDNA
_VOLTA: Final = 7  # Nsight Compute and Triton need this major compute capability


def program_of(case: Case) -> frozenset[str]:
    """Return the names of facts about the program, on which the choice of remedies depends.

    torch      it runs PyTorch, as the profiler or the names of kernels show
    ml         a framework, engine or library of machine learning runs
    tensorrt   TensorRT runs
    openacc    its kernels are loops of OpenACC, by their names
    compiled   torch.compile has made some of its code
    one-region this code is one region, compiled once, so that there is no graph break
    graphs     it launches graphs
    trains     a backward pass or an optimizer runs
    serves     a serving engine annotates its passes
    amd        the GPUs are AMD's, as the profiler, the devices or the calls show
    nvidia     the GPUs are NVIDIA's
    radeon     GPUs of AMD are Radeons, which rocprof-compute does not profile
    old-nvidia all GPUs are older than Volta: no Nsight Compute, no Triton (torch.compile)
    other-gpu  the accelerators are neither AMD's nor NVIDIA's (XPU, MTIA, HPU)
    """
    if case.has_events:
        serves = {"serves"} if case.serving.passes else set[str]()
        return program_of_trace(case.prepared.trace) | serves
    known = {PYTORCH: ["torch", "ml"], ROCPROF: ["amd"]}.get(family(case.source.format), [])
    of_others = accelerator(case.source.event_counts) != CUDA
    return frozenset([*known, *(["other-gpu"] if of_others else [])])


def program_of_trace(trace: Trace) -> frozenset[str]:
    """Return the facts of the program of a trace; see `program_of`."""
    capabilities = filter(None, trace.devices["compute_major"].to_pylist())
    holds = {
        **facts_of_program(trace),
        "old-nvidia": max(capabilities, default=_VOLTA) < _VOLTA,
        "radeon": gpus_of(trace) == "amd" and _has_radeon(trace),
    }
    return frozenset({*(name for name in holds if holds[name]), gpus_of(trace)} - {""})


def _has_radeon(trace: Trace) -> bool:
    """Return whether a GPU of AMD is of RDNA: gfx10 or later."""
    versions = trace.devices["compute_major"].to_pylist()
    return max(filter(None, versions), default=0) >= _RDNA or any(
        name.startswith("gfx1") for name in names(trace.devices["architecture"])
    )


def gpus_of(trace: Trace) -> str:
    """Return who made the GPUs: "amd", "nvidia", "other-gpu", or "" if the trace does not tell."""
    tool, calls = family(trace.source.format), names(trace.calls["name"])
    if accelerator(trace.source.event_counts) != CUDA:  # PyTorch records ROCm as CUDA, too
        return "other-gpu"
    if (
        tool == ROCPROF
        or _AMD_WARP in trace.devices["warp_size"].to_pylist()
        or any(name.startswith("gfx") for name in names(trace.devices["architecture"]))
        or any(name.startswith("hip") for name in calls)
    ):
        return "amd"
    return "nvidia" if tool == NSIGHT or any(name.startswith("cu") for name in calls) else ""
