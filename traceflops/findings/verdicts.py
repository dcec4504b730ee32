"""The verdict at the top: how much of the devices was used, what is lost, what is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from traceflops.attribution.kernels import MOVES, kind_of
from traceflops.devices.missing_input import NOTHING_LAUNCHED
from traceflops.facts import Fact, fact, quoted
from traceflops.findings.finding import WORTH_SAYING, Verdict, severity_of
from traceflops.findings.longest_kernel import (
    kernel_with_most,
)
from traceflops.findings.losses import Loss
from traceflops.findings.nothing_recorded import NO_PROGRAM
from traceflops.findings.on_cpu import OnCpu
from traceflops.mfu.measurement import Measurement
from traceflops.mfu.traced.coverage import TOO_LITTLE
from traceflops.remedies import METRIC, Recording, cut_files
from traceflops.table.trace import Trace
from traceflops.timeline.records import Account
from traceflops.units import PART_NAMES
from traceflops.windows.device_records import MATERIAL, LaunchRecords
from traceflops.windows.records import StepChoice

_NOT_WORKING: Final = frozenset({"idle", "communication", "standstill"})
"""Surely lost, whatever the other work is: if large, these stand before what cannot be judged."""

NO_DURATIONS: Final = "verdict.no-durations"
"""The code of the statement that it is unknown how long the GPU works."""
_MOSTLY_BUSY, _OVERLAP = 0.95, 1.01
_NEXT_TO_NOTHING: Final = 1_000
"""A busy time of less than one part in so many is told as "<0.1 %", without "at least"."""
_FILLS: Final = quoted("fills")
"""The gloss of memory work in a program that only sets up its memory."""
_MOST: Final = 0.5


def verdict(
    total: Account,
    of: Fact,
    devices: int,
    measured: Measurement | None = None,
    *,
    losses: Sequence[Loss],
    on_cpu: OnCpu | None = None,
    late_rank: Fact | None = None,
) -> Verdict:
    """Return what the chosen windows lose most time to, and what cannot be judged.

    All that is not compute is lost; with known FLOPs, also what compute loses against its peak. The
    loss stands first unless something that cannot be judged takes more, and the GPU is hardly idle
    or communicating. `losses` are sorted, the largest first; `on_cpu` tells what leads if all work
    is operators on the CPU; `late_rank` is the statement on the rank or link that holds others up;
    `of` names the time that shares are of.
    """
    early = _without_gpu_work(total, devices, measured, losses, on_cpu)
    if early is not None:
        return early
    large = [loss for loss in losses if loss.share >= WORTH_SAYING]
    judged = [loss for loss in large if not loss.unknown][:2]  # a short verdict names two
    unknown = _unknown(total, measured, large)
    figure = measured.figure if measured is not None else None
    figures = (fact("verdict.figure", text=figure),) if figure else ()
    lead = (*figures, *filter(None, [late_rank]))
    most_unknown = max((share for share, _ in unknown), default=0.0)
    unknown_facts = tuple(statement for _, facts in unknown for statement in facts)
    is_surely_lost = any(
        loss.name in _NOT_WORKING and severity_of(loss.share) == "high" for loss in judged
    )
    if judged and (is_surely_lost or judged[0].share >= most_unknown):
        has_waterfall = measured is not None and measured.waterfall is not None
        shown = [loss.brief() for loss in judged] if late_rank else judged
        parts = _taken(shown, of)
        # Losses are known to be the largest only if all time is judged.
        if has_waterfall and not unknown:
            first, second = shown[0].sized(of), [loss.sized() for loss in shown[1:]]
            code = "largest-two" if second else "largest"
            values = {"first": first, **({"second": second[0]} if second else {})}
            parts = (Fact(f"verdict.{code}", values),)
        headline = "straggler" if late_rank else judged[0].headline
        led = () if late_rank else _mostly_busy(total, measured, of, devices)
        statements = (*lead, *led, *parts, *_at_peak(shown, of), *unknown_facts)
        return Verdict(statements, headline, judged[0].name, judged[0].share)
    busy = _busy(total, of, devices, on_host=on_cpu is not None, is_all=not (large or unknown))
    parts = (*_taken(judged, None), *_at_peak(judged, of))
    headline = "straggler" if late_rank else _class_of_busy(total, large)
    return Verdict((*lead, busy, *unknown_facts, *parts), headline)


def _without_gpu_work(
    total: Account,
    devices: int,
    measured: Measurement | None,
    losses: Sequence[Loss],
    on_cpu: OnCpu | None,
) -> Verdict | None:
    """Return the verdict if no GPU does any work in the chosen windows, None if one does.

    Filling memory is no work of a program. It is told only if it takes most of the time: otherwise
    the usual verdict tells why the GPU is idle.
    """
    components = total.components
    if not devices:
        return Verdict((fact("verdict.no-gpu-operations"),), "no-gpu-work")
    if components.window_ns == 0:
        return Verdict((fact("verdict.no-window"),), "no-gpu-work")
    # With a figure of MFU, the CPU is the device that is judged.
    if on_cpu is not None and (measured is None or measured.figure is None):
        if measured is not None and NOTHING_LAUNCHED in measured.lacks:
            return Verdict((fact("verdict.on-cpu-no-launches"), *on_cpu.leads), "no-gpu-work")
        if (lacks := on_cpu.gpu.lacks) is not None:
            return Verdict((lacks, *on_cpu.leads), "records-missing")
        return Verdict((*on_cpu.leads, fact("verdict.on-cpu")), "no-gpu-work")
    are_fills = any((loss.name, loss.gloss) == ("memory", _FILLS) for loss in losses)
    rest_ns = components.window_ns - components.memory_ns - components.idle_ns
    has_other_work = rest_ns != components.start_up_ns
    if are_fills and not has_other_work and (components.share("memory") or 0) > _MOST:
        return Verdict((fact("verdict.only-fills", time_ns=components.memory_ns),), "no-gpu-work")
    return None


def _class_of_busy(total: Account, losses: Sequence[Loss]) -> str:
    """Return the class of a report on a busy device: the class of what takes most of the time.

    Idle time counts only if it is more than half of all time.
    """
    share = {name: total.components.share(name) or 0.0 for name in total.components.parts()}
    of_idle = (one.headline for one in losses if one.name == "idle" and one.has_class)
    if 2 * share["idle"] > 1:
        return next(of_idle, "idle-unknown")
    of_loss = {loss.name: loss.headline for loss in losses}
    classes = {"compute": "gpu-compute", "other": "gpu-compute", "graph": "gpu-compute"} | of_loss
    del share["idle"], share["start_up"]
    return classes.get(max(share, key=lambda name: share[name]), "gpu-compute")


def basis_of(steps: StepChoice, part_ns: int = 0) -> Fact:
    """Return the name of the time that shares are of, for texts.

    `part_ns` is the length of the recording if it is a window of a longer run, else 0.
    """
    if steps.after_start_up:
        return fact("basis.range" if steps.measured else "basis.after", range=steps.measured)
    if part_ns and not steps.used:
        return fact("basis.window", window_ns=part_ns)
    return fact("basis.step" if steps.used else "basis.total")


def records_verdict(
    records: LaunchRecords,
    how: str,
    late_rank: Fact | None = None,
    on_cpu: OnCpu | None = None,
    called: tuple[Fact, ...] = (),
    newest: str | None = None,
) -> Verdict | None:
    """Return the verdict if too much is not recorded to judge anything, else None.

    `how` is the clause on how to record it, or ""; `late_rank` the statement on the rank that holds
    others up, which needs only recorded work; `on_cpu` tells what the CPU did, `called` what takes
    the time of a host without operators. `newest` is the newest driver that the profiler knows, if
    that of the system is newer.
    """
    late = tuple(filter(None, [late_rank]))
    match records.state:
        case "missing":
            values = {"newest": newest} if newest else {"how": how}
            missing = fact("verdict.records-missing", calls=records.words, **values)
            host = (*on_cpu.leads, *on_cpu.gpu.waits) if on_cpu is not None else ()
            return Verdict((missing, *called, *host), "records-missing")
        case "incomplete" if records.timed.lack():
            timed = records.timed
            untimed = fact(NO_DURATIONS, unknown=timed.lost, operations=timed.calls)
            return Verdict((untimed, *late), "records-missing")
        case "incomplete":
            lost, words = records.lost, records.words
            incomplete = fact("verdict.records-incomplete", lost=lost, calls=words, how=how)
            launches = (records.kernel + records.graph).calls
            why = (fact("verdict.no-kernel", launches=launches),) * records.lacks_all_kernels
            return Verdict((incomplete, *why, *called, *late), "records-missing")
        case "collectives":
            return Verdict((fact("verdict.only-collectives"), *late), "records-missing")
        case "capture":
            calls = records.calls + records.captured
            capture = fact("verdict.capture", captured=records.captured, calls=calls)
            return Verdict((capture,), "withheld")
    return None


def serialized_verdict(
    records: LaunchRecords, measured: Measurement, trace: Trace
) -> Verdict | None:
    """Return which kernel takes most of the time if kernels were recorded one by one, else None.

    In such a recording only the times of kernels are those of the program.
    """
    most = kernel_with_most(measured, trace) if records.state == "serialized" else ()
    unread = trace.source.event_counts.get(METRIC)
    metrics = (fact("verdict.metrics-unread", count=unread),) if unread else ()
    return Verdict((*most, *metrics, fact("verdict.serialized")), "no-timeline") if most else None


def lost_graphs(records: LaunchRecords, total: Account) -> Fact | None:
    """Return how many graph launches have no record, None if their work takes hardly any time."""
    is_much = total.idle_causes.unrecorded_ns > MATERIAL * total.components.window_ns
    if not (is_much and records.is_judged and records.graph.lack()):
        return None
    return fact("verdict.lost-graphs", lost=records.graph.lost, calls=records.graph.calls)


def led_by(later: Verdict, lack: Fact | None) -> Verdict:
    """Return the verdict with what the recording lacks, right behind the utilisation."""
    if lack is None:
        return later
    figures = tuple(part for part in later.parts if part.code == "verdict.figure")
    others = tuple(part for part in later.parts if part not in figures)
    others = () if lack.code == NO_PROGRAM else others  # all else is of the profiler
    headline = "cut-file" if lack.code.startswith("verdict.cut") else "records-missing"
    return replace(later, parts=(*figures, lack, *others), headline=headline)


def cut_file(of: Recording) -> Fact | None:
    """Return the statement that a file is cut off, None if none is."""
    named = cut_files(of)
    if not named or len(of.source.files) == 1:
        return fact("verdict.cut") if named else None
    code = "verdict.cut-several" if len(named) > 1 else "verdict.cut-one"
    return fact(code, count=len(named), file=next(iter(named)))


def jobs_verdict(count: int) -> Verdict:
    """Return the verdict on files of several jobs, which have no figures in common."""
    return Verdict((fact("verdict.jobs", count=count),), "jobs")


def _taken(lost: Sequence[Loss], of: Fact | None) -> tuple[Fact, ...]:
    """Return the shares of losses; only the first statement names what shares are of."""
    return tuple(loss.claim(of if number == 0 else None) for number, loss in enumerate(lost))


def _at_peak(lost: Sequence[Loss], of: Fact) -> tuple[Fact, ...]:
    """Return what the losses of known bytes need at the peak."""
    return tuple(part for loss in lost for part in loss.at_peak(of))


def _unknown(
    total: Account, measured: Measurement | None, losses: Sequence[Loss]
) -> list[tuple[float, tuple[Fact, ...]]]:
    """Return the shares that cannot be judged, each with its statements, the largest first.

    Compute without a waterfall is one of them.
    """
    parts = [
        (loss.share, (loss.unjudged(), *loss.details))
        for loss in losses
        if loss.unknown is not None
    ]
    share = (total.components.share("compute") or 0.0) - sum(loss.of_compute for loss in losses)
    if share >= WORTH_SAYING and (measured is None or measured.waterfall is None):
        coverage = measured.executed.coverage if measured is not None else None
        code = "compute-no-mfu" if coverage else "compute"
        if coverage and coverage < TOO_LITTLE:
            code = "compute-little-known"
        parts.append((share, (fact(f"verdict.{code}", share=share, known=coverage),)))
    return sorted(parts, key=lambda pair: -pair[0])


def _mostly_busy(
    total: Account, measured: Measurement | None, of: Fact, devices: int
) -> tuple[Fact, ...]:
    """Return the statement that GPUs are hardly ever idle, with the kind of most kernels.

    The kind is left out if kernels overlap: its time is no part of the busy time then. If copies or
    fills lead, the loss tells it all, and nothing is returned. The time of convolutions is a lower
    bound if GEMMs run, too: convolution libraries call these.
    """
    components = total.components
    busy_ns = components.window_ns - components.start_up_ns - components.idle_ns
    if busy_ns < _MOSTLY_BUSY * components.window_ns:
        return ()
    times = Counter[str]()
    for row in measured.kernels if measured is not None else ():
        times[row.category.sub] += row.sum_ns if row.category.top in ("compute", "memory") else 0
    kind, most_ns = next(iter(times.most_common(1)), ("", 0))
    if MOVES.get(kind):
        return ()
    is_part = most_ns > 0 and times.total() <= _OVERLAP * busy_ns
    led = most_ns / components.window_ns if is_part else None
    is_least = kind == "convolution" and times["gemm"] > 0
    code = f"verdict.mostly-busy-gpu{'s' if devices > 1 else ''}"
    share = busy_ns / components.window_ns
    known = {"least" if is_least else "led": led, "kind": kind_of(kind) if led else None}
    return (Fact(code, {"share": share, "of": of, "led": None, "least": None, **known}),)


def _busy(total: Account, of: Fact, devices: int, *, on_host: bool, is_all: bool) -> Fact:
    """Return the share of busy time, and what most of it is if it is too little for a statement.

    With `is_all` there is no other statement, so not much time can be unrecorded.
    """
    busy = total.components.parts()
    del busy["idle"], busy["start_up"]
    window_ns, most = total.components.window_ns, max(busy, key=lambda name: busy[name])
    busy_ns = sum(busy.values())
    unrecorded_ns = total.idle_causes.unrecorded_ns  # the GPU may be busy then, too
    is_more = busy_ns * _NEXT_TO_NOTHING > window_ns
    is_least = unrecorded_ns >= WORTH_SAYING * window_ns and is_more
    has_statement = busy[most] >= WORTH_SAYING * window_ns or not busy[most]
    how = "only" if is_all else "at-least" if is_least else ""
    who = f"{'cpu' if on_host else 'gpu'}{'s' if devices > 1 else ''}"
    return fact(
        "-".join(filter(None, ("verdict.busy", how, who))),
        share=busy_ns / window_ns,
        of=of,
        most=None if has_statement else PART_NAMES[most],
        least=WORTH_SAYING,
    )
