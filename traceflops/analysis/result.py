"""The result of an analysis, as frozen values.

An `Analysis` has four layers, from facts to judgement:

* the input: `source`, `notes` (also those of later steps), `jobs` (of files of several jobs);
* the time: per device a `DeviceReport` with its windows, of which those with `used` set are
  chosen; `total` is the account of the chosen windows of all devices, added up. Its components
  are disjoint and their sum is exactly the length of these windows;
* the work in the chosen windows: `kernels` has a row per distinct name, `categories` one per
  (top, sub), `collectives` one per kind of communication, `measured` has FLOPs and bytes;
* the judgement: `headline` is one sentence, `findings` are causes, the best first.

Times are integer nanoseconds, shares are 0 to 1, and what is unknown is None, never 0. Fields are
computed from `prepared`, properties from fields; cached ones read the recording when first used.
"""

from __future__ import annotations

from functools import cached_property
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from traceflops.attribution import host_calls
from traceflops.attribution.charged import ChargedKernel, charged_kernels
from traceflops.attribution.culprits import NO_CULPRITS, IdleCulprits
from traceflops.attribution.device_work import DeviceWork, attributed_work
from traceflops.attribution.launch_lead import HostBound, Launches
from traceflops.attribution.outside_work import OutsideGpuWork, longer_by, outside_gpu_work
from traceflops.devices.jobs import JobReport
from traceflops.errors import UsageError
from traceflops.facts import Fact, fact, quoted
from traceflops.findings.case import NO_RULES, FindingRules
from traceflops.findings.unrecorded_gpu import LACKS_GPU
from traceflops.gpu_samples import GpuSamples, gpu_samples
from traceflops.mfu.serving_passes import NO_SERVING, Serving
from traceflops.mfu.traced.work_tables import activity_flops
from traceflops.ranks.who_waits import NO_RANKS, RankReport
from traceflops.recording.inventory import missing_from
from traceflops.table.trace import Note, Source, note_of
from traceflops.timeline.records import Account, Components, Gap
from traceflops.windows.records import DeviceReport, StepChoice
from traceflops.windows.selection import Selection
from traceflops.windows.step_times import StepSpread, spread_of

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from traceflops.analysis.tables import Tables
    from traceflops.attribution.culprits import Culprit
    from traceflops.attribution.device_work import ModuleWork
    from traceflops.findings.finding import Finding, Verdict
    from traceflops.mfu.measurement import Measurement
    from traceflops.ranks.collectives import Collective
    from traceflops.recording.inventory import Missing
    from traceflops.replay.what_if import Replay
    from traceflops.reports import Plots
    from traceflops.timeline.aggregates import Untimed
    from traceflops.windows.device_records import State
    from traceflops.windows.prepared import Prepared


_MUCH_LEFT_OUT: Final = 0.2


class Analysis(Struct, frozen=True, dict=True):
    """Everything a report shows; `kernel_table` describes the columns of `kernels`, `categories`.

    `untimed` has the sums of a trace without a timeline. `collectives` is empty if the trace does
    not tell which collective a kernel ran. `jobs` is empty unless the files are of several jobs; if
    none of these is chosen, only the source and the notes have data. `recorded` is whether the
    launch calls have device records: if not, nothing is judged. `idle` is what the host did in the
    idle time of the chosen windows, `host_bound` whether it is fast enough for the devices,
    `launches` the time of launching. `serving` has the passes that a serving engine annotates.
    `ranks` is who waits for whom, NO_RANKS with one rank. `finding_rules` are the user's.

    `prepared` is the recording. If `has_events` is False (summaries; several jobs of which none is
    chosen), its tables are empty, and what is computed from them is empty: `summed_operators` and
    `summed_synchronisations` are then those of the summaries.
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
    prepared: Prepared
    untimed: Untimed | None = None
    losses: tuple[Finding, ...] = ()
    collectives: tuple[Collective, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    recorded: State = "complete"
    idle: IdleCulprits = NO_CULPRITS
    host_bound: HostBound | None = None
    launches: Launches | None = None
    summed_operators: tuple[host_calls.HostOperator, ...] = ()
    summed_synchronisations: tuple[host_calls.Synchronisation, ...] = ()
    serving: Serving = NO_SERVING
    ranks: RankReport = NO_RANKS
    finding_rules: FindingRules = NO_RULES
    has_events: bool = True

    @cached_property
    def host_operators(self) -> tuple[host_calls.HostOperator, ...]:
        """Return the operators of launching threads, the longest own time first."""
        return self.summed_operators or host_calls.host_operators(self.prepared)

    @cached_property
    def synchronisations(self) -> tuple[host_calls.Synchronisation, ...]:
        """Return the calls in which the host waited for the devices, the longest first."""
        return self.summed_synchronisations or host_calls.synchronisations(self.prepared)

    @cached_property
    def spread(self) -> StepSpread | None:
        """Return how the chosen steps differ, None without any."""
        return spread_of(self.devices)

    @cached_property
    def slow_by(self) -> str | None:
        """Return the main cause why the steps left out are longer, None if unknown."""
        return longer_by(self.prepared, self.devices) if self.has_events else None

    @cached_property
    def outside(self) -> OutsideGpuWork | None:
        """Return the recorded time outside the GPU's work; None if little, or with a selection."""
        is_default = self.has_events and self.selection == Selection()
        return outside_gpu_work(self.prepared) if is_default else None

    @property
    def left_out(self) -> float | None:
        """Return the share of the work that is in no chosen step, if it is worth telling.

        It is not, and the result None, if the user selected something, or if the share is little
        more than the share of the steps that are not chosen.
        """
        busy_ns = sum(device.whole.busy_ns for device in self.devices)
        parts, steps = self.total.components, self.steps
        used_ns = parts.window_ns - parts.start_up_ns - parts.idle_ns
        share = 1 - used_ns / busy_ns if busy_ns else 0.0
        share_of_steps = 1 - len(steps.used) / max(len(steps.seen), 1)
        is_much = share - share_of_steps >= _MUCH_LEFT_OUT
        return share if is_much and self.selection == Selection() else None

    @cached_property
    def step_counts(self) -> dict[str, int | None]:
        """Return the samples and tokens of a step of the whole job, None for what is unknown."""
        if not self.has_events:
            return {}
        from traceflops.mfu.checked.trace_description import counts_of_step

        return counts_of_step(self.prepared)

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        """Return what the recording lacks although its tool can record it; () for summaries."""
        return missing_from(self.prepared.trace) if self.has_events else ()

    @cached_property
    def memory_operations(self) -> tuple[host_calls.MemoryOperation, ...]:
        """Return copies, fills and allocations."""
        return host_calls.memory_operations(self.prepared)

    @cached_property
    def gpu_samples(self) -> tuple[GpuSamples, ...]:
        """Return the samples of clocks, power and temperature of each GPU."""
        return gpu_samples(self.prepared)

    @cached_property
    def attribution(self) -> DeviceWork | None:
        """Return the work of the devices by operator and module, None without any."""
        recorded = self.prepared.as_launched
        return attributed_work(recorded, activity_flops(self.measured.executed))

    @cached_property
    def charged(self) -> tuple[ChargedKernel, ...] | None:
        """Return the time charged to each kernel by launcher; None for summaries."""
        if not self.has_events:
            return None
        count, ranks = self.prepared.trace.activities.num_rows, self.ranks
        return charged_kernels(self.prepared, ranks.by_activity(count))

    @cached_property
    def replay(self) -> Replay | None:
        """Return the recording for what-if questions, None for summaries. Raises UsageError."""
        if not self.has_events:
            return None
        from traceflops.replay.what_if import Replay

        phases = self.measured.executed.phases
        return Replay(self.prepared, self.ranks, phases, self.measured.mfu_range)

    @cached_property
    def replay_or_reason(self) -> tuple[Replay | None, Fact | None]:
        """Return the recording ready for what-if questions and None, or None and why not."""
        try:
            if self.replay is None:
                return None, fact("replay.of-summary")
            self.replay.check()
        except UsageError as error:
            return None, quoted(error.message)
        return self.replay, None

    @cached_property
    def program(self) -> frozenset[str]:
        """Return the facts of the program that choose remedies, such as "torch" or "amd"."""
        from traceflops.findings.case import program_of

        return program_of(self)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Return the causes with their gains, the best first; then the other findings."""
        from traceflops.findings.diagnosis import diagnosed

        return diagnosed(self)

    @property
    def headline(self) -> str:
        """Return the first sentence of the report."""
        from traceflops.reports import opening

        return opening(self).title

    @property
    def of_no_job(self) -> bool:
        """Return whether the files are of several jobs and none of them is chosen."""
        return bool(self.jobs) and not any(job.chosen for job in self.jobs)

    @property
    def components(self) -> Components:
        """Return the components of the chosen windows of all devices, added up."""
        return self.total.components

    @cached_property
    def windows_used(self) -> int:
        """Return the number of windows that the figures sum over, usually steps times devices."""
        return sum(window.used for device in self.devices for window in device.windows)

    @property
    def devices_used(self) -> tuple[DeviceReport, ...]:
        """Return the devices that the figures sum over: those with a chosen window."""
        return tuple(d for d in self.devices if any(window.used for window in d.windows))

    @property
    def on_host(self) -> bool:
        """Return whether all work is operators on the CPU: then reports show no device."""
        return bool(self.devices) and all(device.type == "cpu" for device in self.devices)

    @property
    def only_launches(self) -> bool:
        """Return whether all CPU operators only launch GPU work that is not recorded."""
        is_said = any(part.code in LACKS_GPU for part in self.verdict.parts)  # also of a cut file
        return self.on_host and (is_said or self.verdict.headline == "records-missing")

    def mean_ns(self, total_ns: int) -> float:
        """Return a time of all chosen windows as the mean per window."""
        return total_ns / max(self.windows_used, 1)

    def gaps(self, most: int = 10) -> tuple[Gap, ...]:
        """Return the longest gaps of all devices."""
        all_gaps = (gap for device in self.devices for gap in device.gaps)
        return tuple(nlargest(most, all_gaps, key=attrgetter("dur_ns")))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the kernel table, so that `pyarrow.table(analysis)` and the like work."""
        return self.kernels.__arrow_c_stream__(requested_schema)

    @property
    def mfu(self) -> float | None:
        """Return the model FLOPs utilisation, 0.4 for 40 %; None if unknown."""
        mfu = self.measured.mfu
        return None if mfu is None else float(mfu)

    @property
    def step_time_ns(self) -> int | None:
        """Return the median step time in ns, None without steps."""
        return self.steps.typical_ns

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """Return the causes of the GPUs' idle time in the chosen windows, the longest first."""
        return self.idle.culprits

    @property
    def modules(self) -> tuple[ModuleWork, ...]:
        """Return the nn.Modules by the GPU time that they launched, most first."""
        return self.attribution.modules if self.attribution is not None else ()

    @cached_property
    def tables(self) -> Tables:
        """Return all tables by name: those of the report, and those of the recording.

        `kernels`, `categories`, `steps` and `gaps` are the report's. `activities` have rank, step,
        category, op and module as columns. See `tf.schema(analysis)`.
        Raises UsageError for files of several jobs, of which none is chosen.
        """
        if self.of_no_job:
            raise UsageError(self.verdict.sentence, "choose one with job=1 or --job 1")
        from traceflops.analysis.tables import tables_of

        report = {"kernels": self.kernels, "categories": self.categories}
        return tables_of(report, self.devices, self.prepared, has_events=self.has_events)

    def to_pandas(self, table: str = "kernels") -> pd.DataFrame:
        """Return a table as a DataFrame. Raises UsageError for an unknown name."""
        if table not in self.tables:
            raise UsageError(f"no table {table!r}", f"choose from {', '.join(self.tables)}")
        frame: pd.DataFrame = self.tables[table].to_pandas()
        return frame

    def to_json(self) -> str:
        """Return the report as JSON (schema traceflops.report/1)."""
        from traceflops.reports import render_json

        return render_json(self)

    def _repr_html_(self) -> str:
        """Return the analysis as HTML for notebooks: verdict, time of a step, and advice."""
        from traceflops.reports import card

        return card(self)

    @property
    def plot(self) -> Plots:
        """Return its charts as HoloViews elements: `plot.steps()`, `.ranks()`, `.roofline()`."""
        from traceflops.reports import Plots

        return Plots(self)

    def save(self, path: str | Path) -> None:
        """Write the report as .html, .json, .md or .zip, replacing only a report of ours."""
        from traceflops.reports import save

        save(self, path)

    def sql(self, query: str) -> pa.Table:
        """Return the result of an SQL query over `tables`, by DuckDB. Raises UsageError."""
        from traceflops.analysis.sql import run_sql

        return run_sql(self.tables.sources, query)

    def __repr__(self) -> str:
        return f"<Analysis of {len(self.devices)} device(s): {self.verdict.sentence}>"


def with_finding_rules(analysis: Analysis, rules: FindingRules) -> Analysis:
    """Return an analysis whose findings follow the user's rules, with a note on these."""
    changes = rules.changes
    notes = (note_of("assumed", "finding-rules", changes=changes),) if changes else ()
    return replace(analysis, finding_rules=rules, notes=(*analysis.notes, *notes))
