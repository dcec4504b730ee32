"""What the terminal and the page say in the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.outside_work import slow_steps
from traceflops.devices.jobs import JobReport
from traceflops.devices.missing_input import skipped
from traceflops.devices.side_records import MEMORY_SNAPSHOT
from traceflops.facts import Value, fact
from traceflops.ranks.collectives import KINDS, Collective
from traceflops.reports.view import figures
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Account, Gap
from traceflops.units import PART_NAMES, several
from traceflops.windows.periodicity import SOURCES
from traceflops.windows.records import DeviceReport, StepChoice
from traceflops.windows.step_times import STANDS_OUT, StepSpread, late_after

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.table.trace import Note

_MOST_FILES, _MOST_RANGES, _MOST_PRODUCTS = 8, 8, 4
_KINDS: Final = ("repaired", "dropped", "missing", "assumed")
"""Kinds of notes, the gravest first: the order of notes that affect the same share of the time."""
_SLOW_BY: Final = {**PART_NAMES, **CLASSES}
"""Names of what makes steps slow: components, and classes of idle time."""
_SLOW_ON_CPU: Final = {**_SLOW_BY, "other": "dispatch and uncategorized operators"}
"""The same if the work is operators on the CPU: they run no kernels."""


def some_files(names: Sequence[str], most: int) -> str:
    """Return the names of the first `most` files, shortened: "a.json, b.json and 3 more"."""
    if not names:
        return "no file"
    shown = ", ".join(figures.shorten_middle(name, 60) for name in names[:most])
    return figures.and_more(shown, len(names) - most)


def products(analysis: Analysis) -> str:
    """Return the devices by product, "8 × NVIDIA H100"; without devices, what was recorded."""
    devices = analysis.devices
    if analysis.recorded == "capture":
        return "graph capture"
    if analysis.untimed:
        named = Counter(analysis.prepared.trace.devices["product"].drop_null().to_pylist())
        return " · ".join(filter(None, (_numbered(named), "no timeline")))
    if not devices:
        if analysis.source.format == MEMORY_SNAPSHOT:
            return "memory snapshot"
        if analysis.gpu_samples:
            return "samples"
        operators = analysis.prepared.trace.ops.num_rows
        readable = "readable " if skipped(analysis.notes, operators) else ""
        return f"no {readable}GPU operations"
    if all(device.type == "cpu" for device in devices):
        return f"CPU operators of {numbered(len(devices), 'process')}"
    matches = {peaks.device: peaks.match for peaks in analysis.measured.devices}
    devices_of_name: Counter[str] = Counter()
    for device in devices:
        match = matches.get(device.device)
        if match is not None:  # a device of the catalogue
            name = match.name(device.type)
        else:
            name = device.product or f"unknown {device.architecture or device.type.upper()}"
        is_known = match is not None and match.spec is not None
        if device.type == "gpu" and not (is_known or device.product or device.architecture):
            name += " (--device names it)"
        devices_of_name[name + (f" ({device.partition})" if device.partition else "")] += 1
    return _numbered(devices_of_name)


def _numbered(devices_of_name: Counter[str]) -> str:
    """Return names of devices with their numbers, most common first, "" for none."""
    most_common = devices_of_name.most_common(_MOST_PRODUCTS)
    shown = ", ".join(
        f"{number} × {figures.shorten_middle(name, 60)}" for name, number in most_common
    )
    hidden = len(devices_of_name) - len(most_common)
    return f"{shown} and {several(hidden, 'other model')}" if hidden else shown


def job_files(job: JobReport) -> str:
    """Return the names of a job's first two files, and how many more there are."""
    return some_files(job.files, 2)


def job_size(job: JobReport) -> str:
    """Return the GPUs of a job, its time and its idle share: "2 GPUs, 1.2 s, 40.0 % idle"."""
    if not job.devices or job.total is None:
        return "no GPU work with known times"
    components = job.total.components
    idle = f"{figures.percent(components.share('idle'))} {component_label('idle', job.total)}"
    return f"{numbered(job.devices, 'GPU')}, {figures.duration(components.window_ns)}, {idle}"


def knows_exposure(analysis: Analysis) -> bool:
    """Return whether exposed communication is known: not if only collectives were recorded."""
    return analysis.recorded != "collectives"


def component_label(name: str, total: Account) -> str:
    """Return the name of a component; "idle or not recorded" if idle time may be missing work."""
    may_be_work = name == "idle" and not total.knows_idle
    return f"{LOOKS[name].label}{' or not recorded' if may_be_work else ''}"


def ranks(devices: Sequence[DeviceReport]) -> str:
    """Return the ranks of all devices as "rank 3" or "ranks 0-7", "" if none is known."""
    ranks_or_none = {rank for device in devices for rank in device.ranks or (device.rank,)}
    numbers = sorted(rank for rank in ranks_or_none if rank is not None)
    if not numbers:
        return ""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {number_ranges(numbers)}"


def some_ranks(analysis: Analysis) -> str:
    """Return which ranks of a larger job are here: "ranks 0-2 of 4", "" if all are, or unknown."""
    worlds = set(analysis.prepared.trace.processes["world_size"].to_pylist()) - {None}
    every = {rank for device in analysis.devices for rank in device.ranks or (device.rank,)}
    known = {rank for rank in every if rank is not None}
    if len(worlds) != 1 or known != every or not known or max(known) >= max(worlds):
        return ""
    return f"{ranks(analysis.devices)} of {max(worlds)}" if len(known) < max(worlds) else ""


def process_label(devices: Sequence[DeviceReport], process: int, unknown: str) -> str:
    """Return the rank or other owner of a process's devices, `unknown` if it has no device."""
    device = next((device for device in devices if device.process == process), None)
    if device is None:
        return unknown
    # A single rank in a single file has no owner: its number would distinguish nothing.
    has_rank = device.owner and device.rank is not None
    owner = f"rank {device.rank}" if has_rank else device.owner
    return " · ".join(filter(None, (owner, device.apart)))


def steps_used(analysis: Analysis) -> str:
    """Return how many of the steps are used and which, the share of work left out, slow steps."""
    steps, share = analysis.steps, analysis.left_out
    if not steps.seen:
        return "no steps found" if analysis.devices else ""
    text = steps_counted(analysis)
    if steps.used:
        text += f" ({number_ranges(steps.used)})"
    if share is not None:
        device = "CPU" if analysis.on_host else "GPU"
        text += words(fact("steps.left-out", share=share, device=device))

    slow = [window for device in analysis.devices for window in slow_steps(device.windows)]
    slow_numbers = sorted({window.step for window in slow if window.step is not None})
    if slow_numbers:
        longest_ns = max(window.dur_ns for window in slow)
        # The text of "steps.slow" has one part for a single step and one for several.
        is_single = len(slow_numbers) == 1
        numbers_key, time_key = ("one", "one_ns") if is_single else ("several", "most_ns")
        values: dict[str, Value] = {numbers_key: number_ranges(slow_numbers), time_key: longest_ns}
        names = _SLOW_ON_CPU if analysis.on_host else _SLOW_BY
        text += words(fact("steps.slow", what=names.get(analysis.slow_by or ""), **values))
    return text


def steps_counted(analysis: Analysis) -> str:
    """Return how many of the steps are used: "8 of 10 steps", "8 of 10 inferred steps"."""
    steps = analysis.steps
    step = "inferred step" if steps.source in SOURCES else "step"
    return f"{figures.count(len(steps.used))} of {several(len(steps.seen), step)}"


def notes_by_weight(analysis: Analysis) -> list[Note]:
    """Return the notes by the share of the time they affect, the largest first, then by kind."""
    return sorted(analysis.notes, key=lambda note: (-note.share, _KINDS.index(note.kind)))


def doubts(analysis: Analysis) -> list[str]:
    """Return the texts of notes that affect all of the time: they cast doubt on every figure."""
    return [note.text for note in notes_by_weight(analysis) if note.share >= 1]


def selected(analysis: Analysis) -> str:
    """Return which part of the recording the user selected, "" for all of it."""
    chosen = analysis.selection
    if chosen.is_time_range:
        start = figures.place(chosen.from_ns or 0)
        end = figures.place(chosen.to_ns) if chosen.to_ns is not None else "the end"
        return f"selected: {start} to {end}"
    options = {
        "steps": chosen.steps,
        "ranks": chosen.ranks,
        "GPUs": chosen.gpus,
        "runs": chosen.run,
    }
    given = " and ".join(name for name, value in options.items() if value is not None)
    run = _run_shown(analysis) if chosen.run is None else ""
    job = f"job {chosen.job} of {len(analysis.jobs)}" if analysis.jobs and chosen.job else ""
    return ", ".join(filter(None, (job, run, f"selected {given}" if given else "")))


def _run_shown(analysis: Analysis) -> str:
    """Return which of several runs in sequence the figures cover, "" if there is one."""
    runs = analysis.prepared.trace.runs
    shown = {runs[device.device][1] for device in analysis.devices} if runs else set()
    most = max((number for _, number in runs), default=1)
    return f"only run {number_ranges(shown)} of {most} (see --run)" if shown else ""


def provenance(analysis: Analysis, most_files: int = _MOST_FILES) -> list[str]:
    """Return what was analyzed: tool, files, devices, ranks, steps, selection, each if known.

    Devices are left out while the user has yet to choose one of several jobs.
    """
    source = analysis.source
    parts = [
        figures.shorten_middle(source.tool or f"{source.format} trace", 60),
        some_files([file.name for file in source.files], most_files),
        "" if analysis.of_no_job else products(analysis),
        some_ranks(analysis) or ranks(analysis.devices),
        steps_used(analysis),
        selected(analysis),
    ]
    return list(filter(None, parts))


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, "0-3, 7" with an en dash, and "…" after _MOST_RANGES of them."""
    ranges: list[list[int]] = []  # the first and the last number of each
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = ranges[:_MOST_RANGES]
    texts = [f"{a}" if a == b else f"{a}\N{EN DASH}{b}" for a, b in shown]
    return ", ".join(texts) + (", …" if len(ranges) > _MOST_RANGES else "")


def unit(analysis: Analysis) -> str:
    """Return the noun for a device: "GPU", or "process" in a CPU-only recording."""
    return "process" if analysis.on_host else "GPU"


def window(analysis: Analysis) -> str:
    """Return the noun for an analyzed stretch of time: "step", or "window" without steps."""
    return "step" if analysis.steps.used else "window"


def each(analysis: Analysis) -> str:
    """Return what a mean time refers to: "per step and GPU", "" if there is a single window."""
    if not analysis.steps.used:
        return f"per {unit(analysis)}" if analysis.windows_used > 1 else ""
    return f"per step and {unit(analysis)}"


def _since(steps: StepChoice) -> str:
    """Return which part of a program without steps was analyzed: a range, or after start-up."""
    return f"in {steps.measured}" if steps.measured else "after start-up"


def time_shared(analysis: Analysis) -> str:
    """Return the time of which kernels take their shares: "step time", "total time", ..."""
    if analysis.recorded == "serialized":  # the profiler causes the time between kernels
        return "time of GPU work"
    if analysis.steps.after_start_up:
        return f"time {_since(analysis.steps)}"
    if analysis.steps.used:
        return "step time"
    # If most of the recording is outside the window, "total" would say too much.
    return "window" if analysis.outside is not None and analysis.outside.is_most else "total time"


OVERLAPS: Final = "overlaps count twice"


def overlap(analysis: Analysis) -> bool:
    """Return whether overlaps, which count twice, give a kernel or category a share above 1."""
    for by_time in (analysis.kernels, analysis.categories):  # the first row is the largest
        for row in by_time.slice(0, 1).to_pylist():
            if (row["share"] or 0) > 1:
                return True
    return False


def basis(analysis: Analysis) -> str:
    """Return what times are averages over: "Averages per step and GPU (8 steps × 2 GPUs)"."""
    devices = several(len(analysis.devices_used), unit(analysis))
    windows, steps = analysis.windows_used, analysis.steps
    if not steps.used:
        part = f" {_since(steps)}" if steps.after_start_up else ""
        is_mean = windows > 1
        return f"Averages {each(analysis)}{part} ({devices})" if is_mean else f"One window{part}"
    if windows == len(steps.used) * len(analysis.devices_used):  # every device used every step
        return f"Averages {each(analysis)} ({several(len(steps.used), 'step')} × {devices})"
    return f"Averages {each(analysis)} ({several(windows, 'step')} on {devices})"


def step_times(analysis: Analysis) -> list[str]:
    """Return the mean, 95th percentile and longest of the step times, as texts; none for one step.

    With few steps there is no percentile; with many, the longest is told only if it stands out.
    """
    spread = analysis.spread
    if spread is None or len(spread.used) < 2:
        return []
    texts = [f"mean {figures.duration(spread.mean_ns)}"]
    if spread.p95_ns is not None:
        texts.append(f"p95 {figures.duration(spread.p95_ns)}")
    which = f"step {spread.longest.step}"
    if spread.outstanding:
        late = _late(analysis, spread)
        which += f", {_times_median(spread)}{f', idle before step {late[0]}' if late else ''}"
    if spread.outstanding or spread.p95_ns is None:
        texts.append(f"longest {figures.duration(spread.longest.ns)} ({which})")
    return texts


def uneven_steps(analysis: Analysis) -> str:
    """Return sentences on steps that stand out, grow or shrink steadily, "" if none does."""
    spread = analysis.spread
    if spread is None:
        return ""
    sentences = []
    if spread.outstanding:
        times = ", ".join((f"median {figures.duration(spread.median_ns)}", *step_times(analysis)))
        sentences.append(f"Used steps: {times}.")
    if (growth := spread.growth) is not None:
        code = "steps.grow" if growth.first_ns < growth.last_ns else "steps.shrink"
        sentences.append(words(fact(code, **growth._asdict())))
    return " ".join(sentences)


def longest_step(analysis: Analysis) -> str:
    """Return a sentence on the longest step and how many stand out, "" for less than two steps."""
    spread = analysis.spread
    if spread is None or len(spread.used) < 2:
        return ""
    number = spread.longest.step
    text = f"Longest used step: {number} ({figures.duration(spread.longest.ns)}"
    text += f", {_times_median(spread)})" if spread.outstanding else ")"
    if spread.outstanding > 1:
        text += f"; {figures.count(spread.outstanding)} exceed {float(STANDS_OUT):g} × the median"
    if late := _late(analysis, spread):
        next_step, idle_ns = late
        text += f". It ends with {figures.duration(idle_ns)} of idle time before step {next_step}"
    return f"{text}."


def _late(analysis: Analysis, spread: StepSpread) -> tuple[int, int] | None:
    """Return the step after the longest and the idle ns before it, None if these do not matter."""
    return late_after(analysis.devices, spread.longest.step, spread.longest.ns - spread.median_ns)


def gap_place(gap: Gap) -> str:
    """Return where a gap is: before the step that it delays, else within a step."""
    if gap.before_step is not None:
        return f"before step {gap.before_step}"
    return "no step" if gap.step is None else f"step {gap.step}"


def _times_median(spread: StepSpread) -> str:
    return f"{figures.ratio(spread.longest.ns / spread.median_ns)} × the median"


def numbered(number: int, what: str) -> str:
    """Return "one step", "5 steps" or "2 activities": a number in a sentence, with its noun."""
    return f"one {what}" if number == 1 else several(number, what)


def listed(texts: Iterable[str]) -> str:
    """Return texts as people list them: "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def collective_label(row: Collective) -> str:
    """Return the kind of a collective and its number of ranks: "all-reduce, 8 ranks"."""
    recorded = (row.collective or "unknown").lstrip("_")  # PyTorch records "_allgather_base"
    name = recorded.replace("_", " ")
    for kind in KINDS:
        if start := re.match(kind.replace("_", "_?"), recorded):  # "allgather" is "all_gather"
            name = kind.replace("_", "-") + recorded[start.end() :].replace("_", " ")
            break
    return name if row.ranks is None else f"{name}, {numbered(row.ranks, 'rank')}"


def mean_message(row: Collective) -> str:
    """Return the mean size of the messages whose size is known, a dash if none is."""
    return figures.size(None if row.bytes is None else round(row.bytes / row.sized))
