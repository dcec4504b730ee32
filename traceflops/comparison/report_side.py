"""The JSON of a report as a side of a comparison: it says what the analysis behind it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, Final, Literal

import msgspec

from traceflops.attribution.charged import OF_KERNEL, ChargedKernel
from traceflops.comparison.side import (
    IdlePart,
    Side,
    UsedWindow,
    counts_of,
    facts_of,
    gpu_names,
    name_of_files,
)
from traceflops.devices.peaks import DeviceSpec, find
from traceflops.errors import InputError
from traceflops.memory.usage import Holder
from traceflops.timeline.records import COMPONENTS, Components

REPORT: Final = "traceflops.report/1"
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Times of up to three months, in ns, and counts: so that sums of them have room."""
Instant = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Component = Literal["compute", "memory", "other", "graph", "communication"]


class _Plain(msgspec.Struct, frozen=True):
    """What is read of an object of a report; other fields are ignored."""


class _Window(_Plain, frozen=True):
    used: bool
    step: Instant | None
    start_ns: Instant
    components_ns: dict[str, Amount]


class _Device(_Plain, frozen=True):
    rank: Instant | None
    type: str
    product: str | None
    windows: list[_Window]
    architecture: str | None = None
    device: int = -1


class _File(_Plain, frozen=True):
    name: str


class _Source(_Plain, frozen=True):
    format: str
    files: list[_File]
    tool: str | None
    facts: dict[str, str]


class _Charged(_Plain, frozen=True, kw_only=True):
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


class _Kernel(_Plain, frozen=True):
    name: str
    kind: str
    top: Component
    sub: str
    rule: str
    charged_ns: Amount | None = None
    charged: list[_Charged] = []


class _Culprit(_Plain, frozen=True, rename={"kind": "class"}):
    kind: str
    label: str
    idle_ns: Amount


class _Idle(_Plain, frozen=True):
    culprits: list[_Culprit]


class _Line(_Plain, frozen=True):
    line: str
    amount_text: str


class _Waterfall(_Plain, frozen=True):
    dtypes: list[str]
    budget_text: str
    lines: list[_Line]


class _PeakOf(_Plain, frozen=True):
    device: int
    id: str | None
    confirmed: bool

    @property
    def row(self) -> DeviceSpec | None:
        """Return the row of the table, None where that is not known for sure."""
        return find(self.id) if self.confirmed and self.id is not None else None


class _Utilisation(_Plain, frozen=True):
    mfu: float | None
    model_flops_text: str | None = None
    waterfall: _Waterfall | None = None
    peaks: list[_PeakOf] = []


class _Series(_Plain, frozen=True):
    peak_bytes: Instant


class _Holder(_Plain, frozen=True):
    op: str
    scope: str
    bytes: Amount
    blocks: Amount
    recorded: bool


class _Memory(_Plain, frozen=True):
    on_host: bool
    is_total: bool
    allocated: _Series
    at_peak: list[_Holder] = []


class _Waits(_Plain, frozen=True):
    rank: Instant
    caused_wait_ns: Amount


class _PassKind(_Plain, frozen=True):
    kind: str | None
    passes: Amount
    tokens: Amount | None
    cycle_ns: Amount


class _Ranks(_Plain, frozen=True):
    waits: list[_Waits]


class _Note(_Plain, frozen=True):
    kind: str
    code: str
    text: str


class _Report(_Plain, frozen=True):
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


_READER: Final = msgspec.json.Decoder(_Report)


def side_of_report(content: bytes, name: str | None = None) -> Side:
    """Return the JSON of a report as it is compared. Raises InputError where it is none."""
    try:
        report = _READER.decode(content)
        if report.schema != REPORT:
            raise ValueError(report.schema)
        return _side(report, name)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, KeyError) as error:
        hint = "write it with traceflops report TRACE -o base.json"
        raise InputError(f"no report of {REPORT} ({str(error)[:200]})", hint) from None


def _side(report: _Report, name: str | None) -> Side:
    use, is_split = report.utilisation, report.utilisation.mfu is not None
    fall, flops = use.waterfall, use.model_flops_text
    peak, held = _peak(report.memory)
    waits = report.ranks.waits if report.ranks is not None else ()
    windows = tuple(
        UsedWindow(one.rank, window.step, window.start_ns, _components(window.components_ns))
        for one in report.devices
        for window in one.windows
        if window.used
    )
    return Side(
        name or name_of_files([file.name for file in report.source.files]),
        windows,
        _work(report.kernels),
        tuple(IdlePart(one.kind, one.label, one.idle_ns) for one in report.idle.culprits),
        Fraction(flops) if flops is not None and is_split else None,
        _share(fall, "useful") if fall is not None and is_split else None,
        peak,
        held,
        counts_of(
            windows,
            report.step_counts or {},
            [msgspec.structs.astuple(one) for one in report.pass_kinds if one.passes],
        ),
        {one.rank: one.caused_wait_ns for one in waits if one.caused_wait_ns},
        facts_of(
            report.source.format,
            report.source.tool,
            gpu_names(report.devices, {p.device: p.row for p in report.utilisation.peaks}),
            fall.dtypes if fall is not None else (),
            report.source.facts,
        ),
        tuple((note.kind, note.code, note.text) for note in report.notes),
        bool(report.devices) and all(one.type == "cpu" for one in report.devices),
    )


def _peak(memory: Sequence[_Memory]) -> tuple[int | None, tuple[Holder, ...]]:
    """Return the highest peak of a GPU, and who allocated what it holds then."""
    known = (one for one in memory if one.is_total and not one.on_host)
    most = max(known, key=lambda one: one.allocated.peak_bytes, default=None)
    if most is None:
        return None, ()
    held = tuple(Holder(*msgspec.structs.astuple(one)) for one in most.at_peak)
    peak = most.allocated.peak_bytes
    if held and sum(one.bytes for one in held) != peak:
        raise ValueError(f"what is held at the peak does not sum to {peak:,} bytes")
    return peak, held


def _components(ns: Mapping[str, int]) -> Components:
    return Components(**{f"{name}_ns": ns[name] for name in COMPONENTS})


def _work(kernels: Sequence[_Kernel]) -> tuple[ChargedKernel, ...] | None:
    """Return what kernels were charged, None where a report of an older version does not say."""
    if any(one.charged_ns is None for one in kernels):
        return None
    rows = (
        ChargedKernel(*(getattr(one, name) for name in OF_KERNEL), *msgspec.structs.astuple(row))
        for one in kernels
        for row in one.charged
    )
    return tuple(sorted(rows, key=attrgetter("order")))


def _share(fall: _Waterfall, line: str) -> Fraction | None:
    amounts = {one.line: one.amount_text for one in fall.lines}
    budget = Fraction(fall.budget_text)
    return Fraction(amounts[line]) / budget if line in amounts and budget else None
