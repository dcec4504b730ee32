"""One side of a comparison: what an analysis says of a recording.

Figures are sums over the used windows (steps times devices), in whole ns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter
from typing import Final, Protocol

import numpy as np

from traceflops.analysis.result import Analysis
from traceflops.attribution.charged import ChargedKernel, charged_kernels
from traceflops.attribution.culprits import IdleCulprits, idle_culprits
from traceflops.devices.peaks import DeviceSpec
from traceflops.memory.usage import Holder, fullest_gpu, holders, memory_use
from traceflops.mfu.checked.trace_description import counts_of_step
from traceflops.mfu.counted.kernel_speeds import KernelSpeed
from traceflops.table.columns import FloatArray
from traceflops.timeline.records import Components
from traceflops.windows.device_records import NO_DEVICE_RECORDS
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import DeviceReport

_MOST_NAMED: Final = 2


@dataclass(frozen=True, slots=True)
class UsedWindow:
    """A window of one device that the figures are about; `step` is None where it is no step."""

    rank: int | None
    step: int | None
    start_ns: int
    components: Components


@dataclass(frozen=True, slots=True)
class IdlePart:
    """Idle time due to one culprit: its class and name."""

    kind: str
    label: str
    idle_ns: int


@dataclass(frozen=True, slots=True)
class Counted:
    """So many of a unit, such as samples, that a step (or a pass of a server) of so many ns has."""

    count: Fraction
    ns: Fraction


@dataclass(frozen=True, slots=True)
class Side:
    """A recording as it is compared.

    `work` is what kernels were charged, None where single operations are not known. `idle` has the
    culprits; what is left of the idle time has none. `memory_bytes` is the highest peak of a GPU,
    `held` who allocated what it holds then, empty where that is unknown. `counts` are the units of
    work that the recording tells. `late` is, by rank, how long others waited for
    it. `facts` say what was recorded and how, `notes` what was repaired, dropped, assumed or
    is missing: kind, code and text. Where `on_host` is set all work is operators on the CPU.
    `analysis` is that of a recording. What is unknown is None.
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
    analysis: Analysis | None = field(default=None, compare=False, repr=False)

    @property
    def components(self) -> Components:
        """Return the components of all windows, added up."""
        return sum((one.components for one in self.windows), Components())

    @property
    def speeds(self) -> tuple[KernelSpeed, ...]:
        """Return what counters tell of kernels, none of a report that was read again."""
        work = self.analysis.measured.executed.work if self.analysis is not None else None
        return work.speeds if work is not None else ()

    @property
    def ranks(self) -> frozenset[int]:
        """Return the ranks that are known."""
        return frozenset(one.rank for one in self.windows if one.rank is not None)

    @property
    def lacks_records(self) -> bool:
        """Return whether so much work is missing that it may have filled what looks idle."""
        is_lost = any(code == NO_DEVICE_RECORDS for _, code, _ in self.notes)
        return is_lost and not self.idle and self.components.idle_ns > 0

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the numbers of the steps, none where its windows are none."""
        return tuple(sorted({one.step for one in self.windows if one.step is not None}))

    @property
    def mean_ns(self) -> Fraction:
        """Return how long a window is on average; there must be one."""
        return self.per_window(self.components.window_ns)

    def per_window(self, amount: int) -> Fraction:
        """Return a sum over the windows as the mean."""
        return Fraction(amount, len(self.windows))

    def series(self, part: str = "window") -> FloatArray:
        """Return the mean over the devices of each step, of all or of a component; ns."""
        get = attrgetter(f"{part}_ns")
        of_step: defaultdict[int, list[int]] = defaultdict(list)
        for one in self.windows:
            of_step[-1 if one.step is None else one.step].append(get(one.components))
        return np.array([np.mean(times) for _, times in sorted(of_step.items())])

    def series_of(self, work: Sequence[ChargedKernel]) -> FloatArray | None:
        """Return the time of some kernels by step, None where it is not known of each."""
        counts = Counter(one.step for one in self.windows)
        devices = np.array([counts[step] for step in sorted(counts, key=lambda s: s or 0)])
        times = [one.steps_ns for one in work if one.charged_ns]
        if any(one is None or len(one) != len(devices) for one in times):
            return None
        total = np.array([one for one in times if one is not None], dtype=np.int64)
        return np.asarray(total.reshape(len(times), len(devices)).sum(axis=0) / devices)


def side_of(
    analysis: Analysis, name: str | None = None, ranks: Collection[int] | None = None
) -> Side:
    """Return an analysis as it is compared; only some of its ranks where these are given."""
    found, devices, idle = analysis.prepared, analysis.devices, analysis.idle
    work, measured = analysis.charged, analysis.measured
    mfu, flops = measured.mfu, measured.executed.model_flops if measured.mfu is not None else None
    if ranks is not None and found is not None:
        devices = tuple(one for one in devices if one.rank in ranks)
        found = _only(found, {one.device for one in devices})
        times = analysis.ranks and analysis.ranks.by_activity(found.trace.activities.num_rows)
        work = charged_kernels(found, times or None)
        idle_ns = sum(one.chosen.components.idle_ns for one in devices)
        idle, mfu, flops = idle_culprits(found, idle_ns), None, None
    most = fullest_gpu(memory_use(found)) if found is not None else None
    passes = analysis.serving.kinds if ranks is None else ()
    waits = analysis.ranks.by_rank() if analysis.ranks is not None else ()
    fall = measured.waterfall
    windows = _windows(devices)
    counts = counts_of(
        windows,
        counts_of_step(found) if found is not None else {},
        [(one.kind, one.passes, one.tokens, one.cycle_ns) for one in passes],
    )
    return Side(
        name or name_of(analysis),
        windows,
        work,
        _idle(idle),
        None if flops is None else Fraction(flops),
        mfu,
        most.allocated.peak if most is not None else None,
        holders(found, most) if found is not None and most is not None else (),
        counts,
        {one.rank: one.caused_wait_ns for one in waits if one.caused_wait_ns},
        facts_of(
            analysis.source.format,
            analysis.source.tool,
            gpu_names(devices, {one.device: one.match.row for one in analysis.measured.devices}),
            fall.dtypes if fall is not None else (),
            analysis.source.facts,
        ),
        tuple((note.kind, note.code, note.text) for note in analysis.notes),
        analysis.on_host,
        analysis,
    )


def _windows(devices: Iterable[DeviceReport]) -> tuple[UsedWindow, ...]:
    return tuple(
        UsedWindow(one.rank, window.step, window.start_ns, window.account.components)
        for one in devices
        for window in one.windows
        if window.used
    )


def _only(prepared: Prepared, devices: Collection[int]) -> Prepared:
    accounts = {at: one for at, one in prepared.accounts.items() if at in devices}
    return replace(prepared, accounts=accounts)


def counts_of(
    windows: Sequence[UsedWindow],
    of_step: Mapping[str, int | None],
    passes: Iterable[tuple[str | None, int, int | None, int]],
) -> dict[str, Counted]:
    """Return the units of a step that are told, and the tokens of passes by kind.

    `passes` has kind, number of passes, their tokens and the time up to the next ones, in ns.
    """
    total = sum((one.components for one in windows), Components()).window_ns
    found = {}
    if total and all(one.step is not None for one in windows):
        mean = Fraction(total, len(windows))
        found = {unit: Counted(Fraction(count), mean) for unit, count in of_step.items() if count}
    for kind, number, tokens, cycle_ns in passes:
        if kind is not None and tokens and cycle_ns:
            found[f"{kind}_token"] = Counted(Fraction(tokens, number), Fraction(cycle_ns, number))
    return found


def _idle(idle: IdleCulprits) -> tuple[IdlePart, ...]:
    return tuple(IdlePart(one.kind, one.label, one.idle_ns) for one in idle.culprits)


def name_of(given: Analysis | Side) -> str:
    """Return what to call a recording."""
    if isinstance(given, Side):
        return given.name
    return name_of_files([file.name for file in given.source.files])


def name_of_files(files: Sequence[str]) -> str:
    """Return the first file without endings, and how many there are besides."""
    first = files[0].split(".")[0] if files else "recording"
    return first if len(files) < _MOST_NAMED else f"{first} and {len(files) - 1} more"


class _Named(Protocol):
    @property
    def device(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def product(self) -> str | None: ...
    @property
    def architecture(self) -> str | None: ...


def gpu_names(devices: Iterable[_Named], rows: Mapping[int, DeviceSpec | None]) -> list[str]:
    """Return what devices are called: as the table does where it is sure, however they are found.

    So the same GPU has one name, whether or not a recording names it.
    """
    return [
        row.product
        if (row := rows.get(one.device)) is not None
        else one.product or one.architecture or f"unknown {one.type.upper()}"
        for one in devices
    ]


def facts_of(
    format_: str,
    tool: str | None,
    devices: Sequence[str],
    dtypes: Sequence[str],
    told: Mapping[str, str],
) -> dict[str, str]:
    """Return what makes recordings alike or not, in the order in which it matters."""
    gpus = ", ".join(f"{count} x {name}" for name, count in sorted(Counter(devices).items()))
    known = {"GPUs": gpus, "data types": ", ".join(dtypes), "format": format_, "tool": tool or ""}
    known |= {key: str(value) for key, value in sorted(told.items())}
    return {key: value for key, value in known.items() if value}
