"""The JSON of a report as a side of a comparison, equal to that of the analysis behind it.

    report.json -> the part of it that a comparison needs -> Side

The structs here are these parts, with the report's names of fields. Other fields are not read, so
older and newer reports may have fewer or more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Struct

from traceflops.attribution.charged import OF_KERNEL, ChargedKernel
from traceflops.comparison import side
from traceflops.comparison.side import Amount, IdlePart, Side, Told, UsedWindow
from traceflops.devices.peaks import find
from traceflops.errors import InputError
from traceflops.findings.finding import Gain
from traceflops.findings.verdicts import NO_DURATIONS
from traceflops.memory.usage import Holder
from traceflops.timeline.records import COMPONENTS, Components

REPORT: Final = "traceflops.report/1"
Instant = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Exact = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]+(/[0-9]+)?$")]
"""A number such as 7 or 7/2; one such as 1e999999999 would take for ever to read."""
Component = Literal["compute", "memory", "other", "graph", "communication"]

_MOST_SIGNS: Final = 200
"""So many characters of an error in the report are shown."""


class _Window(Struct):
    used: bool
    step: Instant | None
    start_ns: Instant
    components_ns: dict[str, Amount]


class _Device(Struct):
    rank: Instant | None
    type: str
    product: str | None
    windows: list[_Window]
    architecture: str | None = None
    device: int = -1


class _File(Struct):
    name: str


class _Source(Struct):
    format: str
    files: list[_File]
    tool: str | None
    facts: dict[str, str]


class _Charged(Struct, kw_only=True):
    """A row of what a kernel is charged: the fields of `ChargedKernel` behind those of kernels."""

    op: str | None = None
    shapes: str | None = None
    scope: str | None = None
    backward: bool = False
    group: str | None = None
    others: Amount = 0
    count: Amount
    charged_ns: Amount
    wait_ns: Amount | None = None
    at_ns: Amount | None = None
    steps_ns: tuple[Amount, ...] | None = None


class _Kernel(Struct):
    name: str
    kind: str
    top: Component
    sub: str
    rule: str
    charged_ns: Amount | None = None
    charged: list[_Charged] = []


class _Idle(Struct, frozen=True):
    culprits: list[IdlePart]


class _Line(Struct):
    line: str
    amount_text: Exact


class _Waterfall(Struct):
    dtypes: list[str]
    budget_text: Exact
    lines: list[_Line]


class _DevicePeak(Struct):
    device: int
    id: str | None
    confirmed: bool


class _Op(Struct):
    name: str
    flops_text: Exact | None = None


class _Gain(Struct):
    low_ns: Instant
    high_ns: Instant
    point_ns: Instant | None = None
    may_be_more: bool = False
    most_ns: Amount | None = None
    further_ns: Amount = 0


class _Row(Struct):
    name: str


class _Finding(Struct):
    rule: str
    title: str
    share: float
    gain: _Gain | None = None
    rows: list[_Row] = []
    edits: tuple[str, ...] = ()

    @property
    def told(self) -> Told:
        """Return what a promise is judged by."""
        gain = Gain(**msgspec.structs.asdict(self.gain)) if self.gain is not None else None
        names = tuple(row.name for row in self.rows)
        return Told(self.rule, self.title, self.share, gain, names, self.edits)


class _Utilisation(Struct):
    mfu: float | None
    model_flops_text: Exact | None = None
    waterfall: _Waterfall | None = None
    peaks: list[_DevicePeak] = []
    ops: list[_Op] = []


class _Series(Struct):
    peak_bytes: Instant


class _Holder(Struct):
    op: str
    scope: str
    bytes: Amount
    blocks: Amount
    recorded: bool


class _Memory(Struct):
    on_host: bool
    is_total: bool
    allocated: _Series
    at_peak: list[_Holder] = []


class _Waits(Struct):
    rank: Instant
    caused_wait_ns: Amount


class _PassKind(Struct):
    kind: str | None
    passes: Amount
    tokens: Amount | None
    cycle_ns: Amount


class _Ranks(Struct):
    waits: list[_Waits]


class _Note(Struct):
    kind: str
    code: str
    text: str


class _Headline(Struct):
    code: str | None = None


class _Report(Struct):
    schema: str
    source: _Source
    devices: list[_Device]
    kernels: list[_Kernel]
    utilisation: _Utilisation
    idle: _Idle = _Idle([])
    memory: list[_Memory] = []
    step_counts: dict[str, Amount | None] | None = None
    pass_kinds: list[_PassKind] = []
    ranks: _Ranks | None = None
    notes: list[_Note] = []
    headline: _Headline | None = None
    findings: list[_Finding] = []


def side_of_report(content: bytes, name: str | None = None) -> Side:
    """Return the side that a report's JSON describes. Raises InputError if it is no report."""
    try:
        report = msgspec.json.decode(content, type=_Report)
        if report.schema != REPORT:
            raise ValueError(report.schema)
        return _side(report, name)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, KeyError) as error:
        hint = "write it with traceflops report TRACE -o base.json"
        raise InputError(f"no report of {REPORT} ({str(error)[:_MOST_SIGNS]})", hint) from None


def _side(report: _Report, name: str | None) -> Side:
    """Return a report as a side. Raises ValueError or the like if its values are impossible."""
    windows = []
    for device in report.devices:
        for window in filter(attrgetter("used"), device.windows):
            ns = {"start_up": 0} | window.components_ns  # older reports have no start-up
            components = Components(**{f"{part}_ns": ns[part] for part in COMPONENTS})
            windows.append(UsedWindow(device.rank, window.step, window.start_ns, components))
    utilisation, source = report.utilisation, report.source
    # The exact MFU is the useful line of the waterfall as a share of its budget.
    waterfall = utilisation.waterfall
    mfu = Fraction(0)
    if waterfall is not None and utilisation.mfu is not None:
        amounts = {line.line: line.amount_text for line in waterfall.lines}
        if budget := Fraction(waterfall.budget_text):
            mfu = Fraction(amounts.get("useful", 0)) / budget
    # Without MFU, FLOPs are not compared, either.
    flops = utilisation.model_flops_text if utilisation.mfu is not None else None
    specs = {
        peak.device: find(peak.id) if peak.confirmed and peak.id is not None else None
        for peak in utilisation.peaks
    }
    dtypes = waterfall.dtypes if waterfall is not None else ()
    waits = report.ranks.waits if report.ranks is not None else ()
    memory_bytes, held = _peak_memory(report.memory)
    return Side(
        name=name or side.name_of_source(source),
        windows=tuple(windows),
        work=_work(report.kernels),
        idle=tuple(report.idle.culprits),
        model_flops=Fraction(flops) if flops is not None else None,
        mfu=mfu or None,  # 0: without MFU
        memory_bytes=memory_bytes,
        held=held,
        counts=side.counts_of(windows, report.step_counts or {}, report.pass_kinds),
        late={rank.rank: rank.caused_wait_ns for rank in waits if rank.caused_wait_ns},
        facts=side.facts_of(source, report.devices, specs, dtypes),
        notes=tuple((note.kind, note.code, note.text) for note in report.notes),
        on_host=bool(report.devices) and all(gpu.type == "cpu" for gpu in report.devices),
        lacks_durations=report.headline is not None and report.headline.code == NO_DURATIONS,
        findings=tuple(finding.told for finding in report.findings),
        op_flops={op.name: Fraction(op.flops_text or 0) for op in utilisation.ops},
    )


def _work(kernels: Sequence[_Kernel]) -> tuple[ChargedKernel, ...] | None:
    """Return what kernels were charged; None for older reports, which do not say it."""
    if any(kernel.charged_ns is None for kernel in kernels):
        return None
    rows = (
        ChargedKernel(
            *(getattr(kernel, name) for name in OF_KERNEL), *msgspec.structs.astuple(charged)
        )
        for kernel in kernels
        for charged in kernel.charged
    )
    return tuple(sorted(rows, key=attrgetter("order")))


def _peak_memory(memory: Sequence[_Memory]) -> tuple[int | None, tuple[Holder, ...]]:
    """Return the highest peak of a GPU in bytes, and who holds it. Raises ValueError."""
    totals = (use for use in memory if use.is_total and not use.on_host)
    highest = max(totals, key=lambda use: use.allocated.peak_bytes, default=None)
    if highest is None:
        return None, ()
    holders = tuple(Holder(*msgspec.structs.astuple(holder)) for holder in highest.at_peak)
    peak = highest.allocated.peak_bytes
    if holders and sum(holder.bytes for holder in holders) != peak:
        raise ValueError(f"what is held at the peak does not sum to {peak:,} bytes")
    return peak, holders
