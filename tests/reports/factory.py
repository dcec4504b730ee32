"""Analyses made by hand for the tests of the reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa
from msgspec.structs import replace

from tests.build import trace_of
from tests.conftest import ROOT
from traceflops.analysis.preparation import prepare
from traceflops.analysis.result import Analysis
from traceflops.facts import quoted
from traceflops.findings.finding import Confidence, Finding, Gain, Row, Verdict, Where
from traceflops.mfu.measurement import Measurement, measure
from traceflops.parsers.reading import read
from traceflops.table.trace import Note, Source, SourceFile
from traceflops.timeline.records import (
    EMPTY_ACCOUNT,
    Account,
    Components,
    Copies,
    Gap,
    IdleCauses,
    Sums,
    WholeSpan,
    Window,
)
from traceflops.windows.records import DeviceReport, StepChoice
from traceflops.windows.selection import Selection

MS = 1_000_000
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x=\'',
    "[red]",
    "{{7*7}}",
    "$$x$$",
    "\\(x\\)",
    "x" * 10_000,
    "\u202egnp.exe",
    "\u05d0\u05d1\u05d2 kernel",
    "lone \ud800 surrogate",
    "nul \0 escape \x1b[31m",
    "<!-- --> <![CDATA[",
    "javascript:alert(1)",
    "@value{custom} $name",
)
"""Names that would act somewhere if they were not made harmless."""

NAMES = (
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_cublas", "compute", "gemm"),
    ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>", "compute", "attention"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "communication", "collective"),
    ("triton_red_fused__to_copy_add_mul_native_layer_norm_3", "memory", "fused_norm"),
    ("void at::native::vectorized_elementwise_kernel<4>", "memory", "elementwise"),
    ("my_kernel", "other", "other"),
)


def account(
    compute: int = 182, memory: int = 61, communication: int = 74, idle: int = 23, other: int = 2
) -> Account:
    """Return an account with parts in milliseconds."""
    ms = 1_000_000
    parts = Components(compute * ms, memory * ms, other * ms, 0, communication * ms, 0, idle * ms)
    causes = IdleCauses(idle * ms - idle * ms // 3, idle * ms // 3, 0, 0)
    return Account(parts, causes, 16 * ms, 1_200, 1_180, 900)


def windows(steps: int, slow: int | None = None, first_used: int = 1) -> tuple[Window, ...]:
    """Return a device's windows: `before`, the steps, `after`."""
    found = [_window("before", None, 0, account(1, 1, 0, 40, 0), used=False)]
    for number in range(steps):
        long = 96 if number == slow else 0
        mine = account(180 + number % 5, 60, 74 + long, 23 - number % 7)
        found.append(_window("step", number, found[-1].end_ns, mine, used=number >= first_used))
    found.append(_window("after", None, found[-1].end_ns, account(0, 2, 0, 5, 0), used=False))
    return tuple(found)


def _window(role: str, step: int | None, start_ns: int, mine: Account, *, used: bool) -> Window:
    left_out = None if used or role != "step" else quoted("warm-up: 1.35 x the median")
    end_ns = start_ns + mine.components.window_ns
    launched = mine.activities if step is not None else None
    return Window(role, step, start_ns, end_ns, used, left_out, launched, False, mine)  # type: ignore[arg-type]


def whole(span_ns: int, mine: Account) -> WholeSpan:
    """Return the figures of a whole span."""
    sums = Sums(1_200, span_ns // 2, span_ns // 2)
    return WholeSpan(
        start_ns=0,
        end_ns=span_ns,
        busy_ns=span_ns - span_ns // 9,
        sum_ns=span_ns,
        streams=3,
        zero_length=0,
        same_stream_overlaps=2,
        same_stream_overlap_max_ns=1_500,
        kinds={"kernel": sums, "memcpy": Sums(12, 40_000, 40_000)},
        categories={"compute": sums},
        communication=sums,
        exposed_communication_ns=span_ns // 5,
        hidden_communication_ns=span_ns // 20,
        copies={"HtoD": Copies(10, 4_096_000, 30_000), "DtoD": Copies(2, None, 10_000)},
        unlinked={"kernel": 20},
        account=mine,
    )


def device(
    number: int = 0,
    mine: Sequence[Window] = (),
    names: tuple[str, str, str, str] = ("gemm", "nccl", "cudaLaunchKernel", "aten::mm"),
    product: str | None = "NVIDIA H100 80GB HBM3",
    file: str = "rank0.json.gz",
) -> DeviceReport:
    """Return a device with the given windows."""
    mine = tuple(mine)
    chosen = sum((window.account for window in mine if window.used), EMPTY_ACCOUNT)
    gaps = tuple(
        Gap(number, 5_000_000 * i, 4_100_000 - i * 300_000, i, *names, IdleCauses(4_000_000 - i, i))
        for i in range(6)
    )
    span = mine[-1].end_ns if mine else 0
    return DeviceReport(
        device=number,
        rank=number,
        process=number,
        file=file,
        type="gpu",
        local_id=number % 8,
        product=product,
        memory_bytes=85_899_345_920,
        sm_count=132,
        whole=whole(span, chosen),
        windows=mine,
        chosen=chosen,
        gaps=gaps if mine else (),
    )


def kernel_table(names: Sequence[tuple[str, str, str]], window_ns: int) -> pa.Table:
    """Return a kernel table; each name has less time than the one before."""
    sums = [max(window_ns // (3 + 2 * i), 1) for i in range(len(names))]
    return pa.table(
        {
            "name": _texts([name for name, _, _ in names]),
            "kind": ["kernel"] * len(names),
            "top": [top for _, top, _ in names],
            "sub": [sub for _, _, sub in names],
            "rule": ["by-name"] * len(names),
            "count": pa.array([120 + i for i in range(len(names))], pa.int64()),
            "sum_ns": pa.array(sums, pa.int64()),
            "mean_ns": pa.array([n // 100 for n in sums], pa.int64()),
            "min_ns": pa.array([n // 300 for n in sums], pa.int64()),
            "max_ns": pa.array([n // 50 for n in sums], pa.int64()),
            "share": pa.array([n / max(window_ns, 1) for n in sums], pa.float64()),
        }
    )


def _texts(names: Sequence[str]) -> pa.Array:
    """Return strings as a parser hands them over: what is no UTF-8 cannot be in Arrow."""
    return pa.array([n.encode("utf-8", "backslashreplace").decode() for n in names], pa.string())


def category_table(kernels: pa.Table) -> pa.Table:
    """Return a category table that fits a kernel table."""
    grouped = kernels.group_by(["top", "sub"]).aggregate(
        [("count", "sum"), ("sum_ns", "sum"), ("share", "sum")]
    )
    named = grouped.rename_columns(["top", "sub", "count", "sum_ns", "share"])
    return named.sort_by([("sum_ns", "descending")])


def analysis(
    devices: Sequence[DeviceReport] | None = None,
    names: Sequence[tuple[str, str, str]] = NAMES,
    notes: Sequence[Note] = (),
    files: Sequence[str] = ("rank0.json.gz",),
) -> Analysis:
    """Return an analysis of the given devices: by default one with 24 steps, 23 of them used."""
    devices = [device(0, windows(24, slow=17))] if devices is None else devices
    total = sum((d.chosen for d in devices), EMPTY_ACCOUNT)
    steps = [w for d in devices for w in d.steps]
    kernels = kernel_table(names, total.components.window_ns)
    share = total.components.share("communication")
    found = share is not None
    return Analysis(
        source=Source("pytorch", tuple(SourceFile(f, 1_771_264, 20_000_000) for f in files)),
        selection=Selection(),
        verdict=Verdict(
            (
                quoted(
                    f"The largest loss is exposed communication: {share:.0%} of each step."
                    if found
                    else "This trace has no GPU operations."
                ),
            ),
            "communication" if found else "no-gpu-work",
            "communication" if found else None,
            share,
        ),
        steps=StepChoice(
            "markers" if steps else "none",
            "ProfilerStep markers" if steps else "no steps found; the whole trace is one window",
            tuple(sorted({w.step for w in steps if w.step is not None})),
            tuple(sorted({w.step for w in steps if w.step is not None and w.used})),
            sorted(w.dur_ns for w in steps)[len(steps) // 2] if steps else None,
        ),
        devices=tuple(devices),
        total=total,
        kernels=kernels,
        categories=category_table(kernels),
        notes=tuple(notes),
        measured=measured(bool(devices)),
        prepared=prepare(trace_of()),
        has_events=False,
    )


@cache
def measured(some: bool) -> Measurement:
    """Return what a sample says of utilisation, or a trace without anything."""
    sample = read([ROOT / "sample_traces" / "gpt_1rank.json.gz"])
    return measure(prepare(sample if some else trace_of()))


def ranks(number: int, steps: int = 6) -> Analysis:
    """Return an analysis of several ranks."""
    files = [f"rank{i}.json.gz" for i in range(number)]
    made = [device(i, windows(steps, slow=i % steps), file=f) for i, f in enumerate(files)]
    return analysis(made, files=files)


def without_steps() -> Analysis:
    """Return an analysis with one window and no steps."""
    mine = account()
    window = Window("span", None, 0, mine.components.window_ns, True, None, None, False, mine)
    return analysis([device(0, [window])])


def without_devices() -> Analysis:
    """Return an analysis of a trace in which no device worked."""
    empty = analysis([], names=())
    counts = {"cpu_op": 1_234, "python_function": 99_000}
    return replace(empty, source=replace(empty.source, event_counts=counts))


def hostile() -> Analysis:
    """Return an analysis in which every text of the trace is hostile."""
    names = [(text, "memory", "elementwise") for text in HOSTILE]
    devices = [
        device(i, windows(25), names=(text, text, text, text), product=text, file=text)
        for i, text in enumerate(HOSTILE)
    ]
    made = analysis(
        [replace(d, rank=None, type=d.file) for d in devices],
        names=names,
        notes=[Note("assumed", "a-code", text, 3, text) for text in HOSTILE],
        files=HOSTILE,
    )
    counts = dict.fromkeys(HOSTILE, 1)
    found = replace(
        made,
        source=replace(
            made.source,
            tool=HOSTILE[0],
            facts=dict.fromkeys(HOSTILE, HOSTILE[1]),
            event_counts=counts,
        ),
        verdict=Verdict((quoted(HOSTILE[0]),), "communication", HOSTILE[1], 0.2),
        steps=replace(made.steps, text=HOSTILE[0]),
    )
    vars(found)["findings"] = tuple(_hostile_findings())
    return found


def _hostile_findings() -> Iterator[Finding]:
    """Yield one that is the title, then causes with their places."""
    first = quoted(HOSTILE[0])
    yield Finding("a", "high", 0.5, first, first, advice=quoted(HOSTILE[1]))
    for text in HOSTILE:
        yield Finding(
            rule=text,
            severity="high",
            share=0.5,
            name=quoted(text),
            claim=quoted(text),
            advice=quoted(text),
            gain=Gain(MS, 2 * MS, MS),
            confidence=Confidence("low", (quoted(text),)),
            rows=(Row(text, MS, 1),),
            where=Where(file=text, line=1, module=text),
        )
