"""One side of a comparison: what an analysis says of a recording.

Figures are sums over the used windows (steps times devices), in whole ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from traceflops.analysis.result import Analysis
from traceflops.attribution.charged import ChargedKernel, charged_kernels
from traceflops.attribution.culprits import idle_culprits
from traceflops.devices.peaks import DeviceSpec
from traceflops.findings.finding import Finding, Gain
from traceflops.findings.verdicts import NO_DURATIONS
from traceflops.memory.usage import Holder, fullest_gpu, holders, memory_use
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.table.columns import FloatArray
from traceflops.timeline.records import Components
from traceflops.windows.device_records import NO_DEVICE_RECORDS

Amount = Annotated[int, Meta(ge=0, le=2**53)]
"""Times of up to three months, in ns, and counts: so that sums of them have room."""


class UsedWindow(Struct, frozen=True):
    """A window of one device that the figures are about; `step` is None if it is no step."""

    rank: int | None
    step: int | None
    start_ns: int
    components: Components


class IdlePart(Struct, frozen=True, rename={"kind": "class"}):
    """Idle time due to one culprit: its class and name, as in the JSON of a report."""

    kind: str
    label: str
    idle_ns: Amount


class Counted(Struct, frozen=True):
    """The number of a unit, such as samples, in a step or serving pass, and its time in ns."""

    count: Fraction
    ns: Fraction


class Told(Struct, frozen=True):
    """A finding as the JSON of a report has it: by what its promise is judged.

    `rows` are the names of its evidence, `edits` those of what-if that stand for its remedy.
    """

    rule: str
    title: str
    share: float
    gain: Gain | None
    rows: tuple[str, ...]
    edits: tuple[str, ...]


class Side(Struct, frozen=True):
    """A recording as it is compared; what is unknown is None.

    `work` is what kernels were charged, None if single operations are not known. `idle` are the
    idle times with a culprit. `memory_bytes` is the highest peak of a GPU, `held` who allocated
    what it holds then (empty if unknown). `counts` are the units of work by name. `late` is, by
    rank, how long others waited for it. `facts` say what was recorded and how; `notes` (kind, code,
    text) what was repaired, dropped, assumed or is missing. With `on_host`, all work is operators
    on the CPU. With `lacks_durations`, GPU time is unknown. `op_flops` are the FLOPs of all windows
    by operator, of those that have any. `analysis` is None for a report.
    """

    name: str
    windows: tuple[UsedWindow, ...]
    work: tuple[ChargedKernel, ...] | None
    idle: tuple[IdlePart, ...]
    model_flops: Fraction | None = None
    mfu: Fraction | None = None
    memory_bytes: int | None = None
    held: tuple[Holder, ...] = ()
    counts: Mapping[str, Counted] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[str, str, str], ...] = ()
    on_host: bool = False
    lacks_durations: bool = False
    findings: tuple[Told, ...] = ()
    op_flops: Mapping[str, Fraction] = field(default_factory=dict)
    analysis: Analysis | None = None

    @property
    def components(self) -> Components:
        """Return the components of all windows, added up."""
        return sum((window.components for window in self.windows), Components())

    @property
    def speeds(self) -> tuple[KernelSpeed, ...]:
        """Return what counters tell of kernels, none of a report that was read again."""
        return self.analysis.measured.speeds if self.analysis is not None else ()

    @property
    def ranks(self) -> frozenset[int]:
        """Return the ranks that are known."""
        return frozenset(window.rank for window in self.windows if window.rank is not None)

    @property
    def lacks_records(self) -> bool:
        """Return whether lost device records may have filled the time that looks idle."""
        is_lost = any(code == NO_DEVICE_RECORDS for _, code, _ in self.notes)
        return is_lost and not self.idle and self.components.idle_ns > 0

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the numbers of the steps, none where its windows are none."""
        return tuple(sorted({window.step for window in self.windows if window.step is not None}))

    @property
    def mean_ns(self) -> Fraction:
        """Return how long a window is on average; there must be one."""
        return self.per_window(self.components.window_ns)

    def per_window(self, amount: int | Fraction) -> Fraction:
        """Return a sum over the windows as the mean."""
        return Fraction(amount) / len(self.windows)

    def series(self, part: str = "window") -> FloatArray:
        """Return, by step, the mean over its devices of a component, or of the window; ns."""
        get = attrgetter(f"{part}_ns")
        of_step: defaultdict[int, list[int]] = defaultdict(list)
        for window in self.windows:
            of_step[-1 if window.step is None else window.step].append(get(window.components))
        return np.array([np.mean(times) for _, times in sorted(of_step.items())])

    def series_of(self, work: Sequence[ChargedKernel]) -> FloatArray | None:
        """Return, per step, the mean time of some kernels over its devices in ns.

        2 steps on 2 devices; `steps_ns` of two kernels are (6, 8) and (4, 4) -> (10, 12) / 2.
        None if a kernel with charged time has no time for each step.
        """
        window_count = Counter(window.step for window in self.windows)
        # Without steps, there is only the step None.
        steps = sorted(window_count, key=lambda step: step or 0)
        devices = np.array([window_count[step] for step in steps])
        times_ns = [kernel.steps_ns for kernel in work if kernel.charged_ns]
        known_ns = [times for times in times_ns if times is not None and len(times) == len(devices)]
        if len(known_ns) < len(times_ns):
            return None
        table = np.array(known_ns, dtype=np.int64).reshape(len(known_ns), len(devices))
        return np.asarray(table.sum(axis=0) / devices)


def side_of(
    analysis: Analysis, name: str | None = None, ranks: Collection[int] | None = None
) -> Side:
    """Return an analysis as a side.

    Of some `ranks` only, if given: then without figures that are of all ranks (MFU, FLOPs, passes).
    Summaries cannot be divided: their sums are of all ranks.
    """
    prepared = analysis.prepared
    devices = analysis.devices
    idle = analysis.idle
    work = analysis.charged
    measured = analysis.measured
    mfu = measured.mfu
    # Without an MFU, FLOPs are not compared, either: they may cover only a part of the work.
    flops = measured.executed.model_flops if mfu is not None else None
    passes = analysis.serving.kinds
    if ranks is not None:
        devices = tuple(device for device in devices if device.rank in ranks)
        accounts = {device.device: prepared.accounts[device.device] for device in devices}
        prepared = replace(prepared, accounts=accounts)
        wait_times = analysis.ranks.by_activity(prepared.trace.activities.num_rows)
        work = charged_kernels(prepared, wait_times)
        idle_ns = sum(device.chosen.components.idle_ns for device in devices)
        idle = idle_culprits(prepared, idle_ns)
        mfu = flops = None
        passes = ()
    windows = tuple(
        UsedWindow(device.rank, window.step, window.start_ns, window.account.components)
        for device in devices
        for window in device.windows
        if window.used
    )
    fullest = fullest_gpu(memory_use(prepared))
    # Of all ranks: the chosen ones may have waited for one of the others.
    waits = analysis.ranks.by_rank()
    rows = {peak.device: peak.match.row for peak in measured.devices}
    dtypes = measured.waterfall.dtypes if measured.waterfall is not None else ()
    return Side(
        name=name or name_of(analysis),
        windows=windows,
        work=work,
        idle=tuple(IdlePart(part.kind, part.label, part.idle_ns) for part in idle.culprits),
        model_flops=None if flops is None else Fraction(flops),
        mfu=mfu,
        memory_bytes=fullest.allocated.peak if fullest is not None else None,
        held=holders(prepared, fullest) if fullest is not None else (),
        counts=counts_of(windows, analysis.step_counts, passes),
        late={wait.rank: wait.caused_wait_ns for wait in waits if wait.caused_wait_ns},
        facts=facts_of(analysis.source, devices, rows, dtypes),
        notes=tuple((note.kind, note.code, note.text) for note in analysis.notes),
        on_host=analysis.on_host,
        lacks_durations=any(part.code == NO_DURATIONS for part in analysis.verdict.parts),
        findings=tuple(map(_told, analysis.findings)),
        op_flops={row.name: Fraction(row.measured.flops or 0) for row in measured.ops},
        analysis=analysis,
    )


def _told(finding: Finding) -> Told:
    names = tuple(row.name for row in finding.rows)
    return Told(finding.rule, finding.title, finding.share, finding.gain, names, finding.edits)


def counts_of(
    windows: Sequence[UsedWindow], of_step: Mapping[str, int | None], passes: Iterable[Any]
) -> dict[str, Counted]:
    """Return the number of each unit in a step or pass, with its time: samples, tokens, ...

    `of_step` are the units of a step, `passes` the kinds of passes of an analysis or of a report.
    """
    total_ns = sum((window.components for window in windows), Components()).window_ns
    counts = {}
    if total_ns and all(window.step is not None for window in windows):
        step_ns = Fraction(total_ns, len(windows))
        counts = {unit: Counted(Fraction(n), step_ns) for unit, n in of_step.items() if n}
    for kind in passes:
        if kind.kind is not None and kind.passes and kind.tokens and kind.cycle_ns:
            tokens, ns = Fraction(kind.tokens, kind.passes), Fraction(kind.cycle_ns, kind.passes)
            counts[f"{kind.kind}_token"] = Counted(tokens, ns)
    return counts


def name_of(given: Analysis | Side) -> str:
    """Return what to call a recording."""
    return given.name if isinstance(given, Side) else name_of_source(given.source)


def name_of_source(source: Any) -> str:
    """Return the first file of a source without endings, and how many there are besides."""
    first = source.files[0].name.split(".")[0] if source.files else "recording"
    others = len(source.files) - 1
    return first if others < 1 else f"{first} and {others} more"


def facts_of(
    source: Any,
    devices: Iterable[Any],
    rows: Mapping[int, DeviceSpec | None],
    dtypes: Sequence[str],
) -> dict[str, str]:
    """Return facts by which recordings are alike or not, the most important first.

    Source and devices are those of an analysis or of a report. A device is named by its row of the
    table of devices, if `rows` has it, else as recorded.
    """
    names = Counter[str]()
    for device in devices:
        row = rows.get(device.device)
        recorded = device.product or device.architecture or f"unknown {device.type.upper()}"
        names[recorded if row is None else row.product] += 1
    gpus = ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))
    facts = {"GPUs": gpus, "data types": ", ".join(dtypes), "format": source.format}
    facts |= {"tool": source.tool or ""}
    facts |= {key: str(value) for key, value in sorted(source.facts.items())}
    return {key: value for key, value in facts.items() if value}
