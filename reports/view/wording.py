"""What the terminal and the page say in the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceflops.attribution.idle_classes import CLASSES
from traceflops.attribution.slow_steps import slow_steps
from traceflops.devices.jobs import JobReport
from traceflops.devices.side_records import MEMORY_SNAPSHOT
from traceflops.facts import Fact, fact
from traceflops.ranks.collectives import KINDS, Collective
from traceflops.reports.view.figures import (
    UNKNOWN,
    bandwidth,
    count,
    duration,
    percent,
    place,
    ratio,
    shorten_middle,
    size,
)
from traceflops.reports.view.palette import LOOKS
from traceflops.reports.view.texts import words
from traceflops.timeline.records import Account, Gap
from traceflops.units import PART_NAMES, several
from traceflops.windows.periodicity import SOURCES
from traceflops.windows.records import DeviceReport
from traceflops.windows.step_times import STANDS_OUT, StepSpread, late_after

if TYPE_CHECKING:
    from traceflops.analysis.result import Analysis
    from traceflops.devices.matching import Match
    from traceflops.table.trace import Note

_MOST = 8
_KINDS: Final = ("repaired", "dropped", "missing", "assumed")
"""Kinds of notes, those first that matter most where the time they are about is not known."""
_TWO = 2


def some_files(names: Sequence[str], most: int) -> str:
    """Return the names of files, at most so many of them."""
    if not names:
        return "no file"
    shown = ", ".join(shorten_middle(name, 60) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {count(more)} more" if more > 0 else shown


_MOST_WIDTH: Final = 160
_INNER_WIDTH: Final = 60
_MOST_TYPES: Final = 6
_SHORT_TYPES: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "int64",
    "int": "int32",
    "unsigned char": "uint8",
    "signed char": "int8",
}
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "TensorList", "GenericList", "Device"})


def products(analysis: Analysis) -> str:
    """Return how many devices of which products there are."""
    devices = analysis.devices
    if analysis.recorded == "capture":
        return "graph capture"
    if analysis.untimed:
        return "no timeline"
    if not devices:
        if analysis.source.format == MEMORY_SNAPSHOT:
            return "memory snapshot"
        return "samples" if analysis.gpu_samples else "no GPU operations"
    if all(device.type == "cpu" for device in devices):
        return f"CPU operators of {numbered(len(devices), 'process')}"
    matches = {a_device.device: a_device.match for a_device in analysis.measured.devices}
    products = Counter(_product(device, matches.get(device.device)) for device in devices)
    named = [f"{number} × {shorten_middle(name, 60)}" for name, number in products.most_common(4)]
    more = f" and {several(len(products) - 4, 'other model')}" if len(products) > 4 else ""
    return ", ".join(named) + more


def _product(device: DeviceReport, match: Match | None) -> str:
    """Return what a device is: its product, or at least its architecture, and its partition."""
    name = device.product or f"unknown {device.architecture or device.type.upper()}"
    name = match.name(device.type) if match is not None else name
    return name + (f" ({device.partition})" if device.partition else "")


def job_files(job: JobReport) -> str:
    """Return the files of a job in a few words."""
    return some_files(job.files, 2)


def job_size(job: JobReport) -> str:
    """Return how many GPUs a job has and for how long: "2 GPUs, 1.2 s, 40.0 % idle"."""
    if not job.devices or job.total is None:
        return "no GPU work with known times"
    components = job.total.components
    idle = f"{percent(components.share('idle'))} {component_label('idle', job.total)}"
    return f"{numbered(job.devices, 'GPU')}, {duration(components.window_ns)}, {idle}"


def knows_exposure(analysis: Analysis) -> bool:
    """Return whether work that may hide communication is recorded, too."""
    return analysis.recorded != "collectives"


def component_label(name: str, total: Account) -> str:
    """Return what to call a component; idle time may be work of which there is no record."""
    return LOOKS[name].label + ("" if name != "idle" or total.knows_idle else " or not recorded")


def ranks(devices: Sequence[DeviceReport]) -> str:
    """Return which ranks are shown, "" where none is known."""
    every = {rank for device in devices for rank in device.ranks or (device.rank,)}
    known = sorted(rank for rank in every if rank is not None)
    if not known:
        return ""
    return f"rank {known[0]}" if len(known) == 1 else f"ranks {number_ranges(known)}"


def process_label(devices: Sequence[DeviceReport], process: int, unknown: str) -> str:
    """Return what the labels of a process's devices begin with, `unknown` without a device."""
    mine = next((one for one in devices if one.process == process), None)
    if mine is None:
        return unknown
    owner = f"rank {mine.rank}" if mine.owner and mine.rank is not None else mine.owner
    return " · ".join(filter(None, (owner, mine.apart)))


def steps_used(analysis: Analysis) -> str:
    """Return how many of the steps seen are used, and which."""
    steps = analysis.steps
    if not steps.seen:
        return "no steps found" if analysis.devices else ""
    which = f" ({number_ranges(steps.used)})" if steps.used else ""
    left = analysis.left_out
    device = "CPU" if analysis.on_host else "GPU"
    left_out = fact("steps.left-out", share=left, device=device)
    more = words(left_out if left is not None else None)
    return f"{steps_counted(analysis)}{which}{more}{words(_slow(analysis))}"


def _slow(analysis: Analysis) -> Fact | None:
    """Return which steps are left out because they are slower than the others, None for none."""
    slow = [one for device in analysis.devices for one in slow_steps(device.windows)]
    numbers = sorted({one.step for one in slow if one.step is not None})
    if not numbers:
        return None
    longest_ns, is_one = max(one.dur_ns for one in slow), len(numbers) == 1
    return fact(
        "steps.slow",
        one=number_ranges(numbers) if is_one else None,
        several=None if is_one else number_ranges(numbers),
        one_ns=longest_ns if is_one else None,
        most_ns=None if is_one else longest_ns,
        what={**PART_NAMES, **CLASSES}.get(analysis.slow_by or ""),
    )


def steps_counted(analysis: Analysis) -> str:
    """Return how many of the steps seen are used, and whether they are no marked ones."""
    steps = analysis.steps
    step = "inferred step" if steps.source in SOURCES else "step"
    return f"{count(len(steps.used))} of {several(len(steps.seen), step)}"


def notes_by_weight(analysis: Analysis) -> list[Note]:
    """Return the notes: first those about the largest shares of the time, then by kind."""
    return sorted(analysis.notes, key=lambda note: (-note.share, _KINDS.index(note.kind)))


def doubts(analysis: Analysis) -> list[str]:
    """Return the notes that are about all of the time: what must be known before any figure."""
    return [note.text for note in notes_by_weight(analysis) if note.share >= 1]


def selected(analysis: Analysis) -> str:
    """Return what the user chose to look at, "" for everything."""
    chosen = analysis.selection
    if chosen.is_time_range:
        start = place(chosen.from_ns or 0)
        end = place(chosen.to_ns) if chosen.to_ns is not None else "the end"
        return f"selected: {start} to {end}"
    names = ("steps", chosen.steps), ("ranks", chosen.ranks), ("GPUs", chosen.gpus)
    given = [name for name, value in (*names, ("runs", chosen.run)) if value is not None]
    some = f"selected {' and '.join(given)}" if given else ""
    job = f"job {chosen.job} of {len(analysis.jobs)}" if analysis.jobs and chosen.job else ""
    return ", ".join(filter(None, (job, some)))


def provenance(analysis: Analysis, most_files: int = _MOST) -> list[str]:
    """Return where the figures come from: tool, files, devices, ranks, steps, selection."""
    source = analysis.source
    parts = [
        shorten_middle(source.tool or f"{source.format} trace", 60),
        some_files([file.name for file in source.files], most_files),
        "" if analysis.of_no_job else products(analysis),
        ranks(analysis.devices),
        steps_used(analysis),
        selected(analysis),
    ]
    return list(filter(None, parts))


def number_ranges(numbers: Iterable[int], most: int = _MOST) -> str:
    """Return numbers as ranges, "0-3, 7" (with en dashes), at most so many of them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(a) if a == b else f"{a}{UNKNOWN}{b}" for a, b in ranges[:most]]
    return ", ".join(texts) + (", …" if len(ranges) > most else "")


def unit(analysis: Analysis) -> str:
    """Return what a device is called: a GPU, or the process of a run without one."""
    return "process" if analysis.on_host else "GPU"


def each(analysis: Analysis) -> str:
    """Return of what a time is the mean: "per step and GPU", "" where there is one window."""
    if not analysis.steps.used:
        return f"per {unit(analysis)}" if analysis.windows_used > 1 else ""
    return f"per step and {unit(analysis)}"


def time_shared(analysis: Analysis) -> str:
    """Return what the shares of kernels are of; where kernels overlap they add up to more."""
    if analysis.recorded == "serialized":
        return "time of GPU work"
    if analysis.steps.after_start_up:
        return "time after start-up"
    if analysis.steps.used:
        return "step time"
    return "window" if analysis.outside is not None and analysis.outside.is_most else "total time"


OVERLAPS: Final = "overlaps count twice"


def overlap(analysis: Analysis) -> bool:
    """Return whether kernels or categories take more than all the time, so that they overlap."""
    first = (table.slice(0, 1).to_pylist() for table in (analysis.kernels, analysis.categories))
    return any((row["share"] or 0) > 1 for rows in first for row in rows)


def basis(analysis: Analysis) -> str:
    """Return over what the times of components are averages, in words."""
    devices = several(len(analysis.devices_used), unit(analysis))
    used = analysis.windows_used
    if not analysis.steps.used:
        after = " after start-up" if analysis.steps.after_start_up else ""
        return f"Averages {each(analysis)}{after} ({devices})" if used > 1 else f"One window{after}"
    steps = several(len(analysis.steps.used), "step")
    is_whole = used == len(analysis.steps.used) * len(analysis.devices_used)
    over = f"{steps} × {devices}" if is_whole else f"{several(used, 'step')} on {devices}"
    return f"Averages {each(analysis)} ({over})"


def step_times(analysis: Analysis) -> list[str]:
    """Return what stands beside the median step: the mean, and how far the longest ones reach.

    Of many steps that is the time within which 95 % of them are; the longest is named where it
    stands out, or where there are few.
    """
    spread = analysis.spread
    if spread is None or len(spread.used) < _TWO:
        return []
    words = [f"mean {duration(spread.mean_ns)}"]
    if spread.p95_ns is not None:
        words.append(f"p95 {duration(spread.p95_ns)}")
    if spread.outstanding or spread.p95_ns is None:
        words.append(f"longest {duration(spread.longest.ns)} (step {_longest(analysis, spread)})")
    return words


def uneven_steps(analysis: Analysis) -> str:
    """Return how far the steps used are from their median, "" where none stands out."""
    spread = analysis.spread
    if spread is None or not spread.outstanding:
        return ""
    return f"Used steps: median {duration(spread.median_ns)}, {', '.join(step_times(analysis))}."


def longest_step(analysis: Analysis) -> str:
    """Return which of the steps used is the longest and how many stand out, "" without two."""
    spread = analysis.spread
    if spread is None or len(spread.used) < _TWO:
        return ""
    number = spread.longest.step
    text = f"Longest used step: {number} ({duration(spread.longest.ns)}"
    text += f", {_times_median(spread)})" if spread.outstanding else ")"
    if spread.outstanding > 1:
        least = float(STANDS_OUT)
        text += f"; {count(spread.outstanding)} exceed {least:g} × the median"
    if late := _late(analysis, spread):
        text += f". It ends with {duration(late[1])} of idle time before step {late[0]}"
    return f"{text}."


def _late(analysis: Analysis, spread: StepSpread) -> tuple[int, int] | None:
    """Return the step after the longest and the idle time before it, where that made it long."""
    return late_after(analysis.devices, spread.longest.step, spread.longest.ns - spread.median_ns)


def gap_place(gap: Gap) -> str:
    """Return where a gap is: before the step that it delays, else in a step."""
    if gap.before_step is not None:
        return f"before step {gap.before_step}"
    return "no step" if gap.step is None else f"step {gap.step}"


def _longest(analysis: Analysis, spread: StepSpread) -> str:
    number = str(spread.longest.step)
    if not spread.outstanding:
        return number
    late = _late(analysis, spread)
    idle = f", idle before step {late[0]}" if late else ""
    return f"{number}, {_times_median(spread)}{idle}"


def _times_median(spread: StepSpread) -> str:
    return f"{ratio(spread.longest.ns / spread.median_ns)} × the median"


def numbered(number: int, what: str) -> str:
    """Return "one step", "5 steps" or "2 activities": a number in a sentence, with its noun."""
    return f"one {what}" if number == 1 else several(number, what)


def listed(texts: Iterable[str]) -> str:
    """Return texts as people list them: "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def collective_label(row: Collective) -> str:
    """Return a kind of collective, by its usual name, and its ranks: "all-reduce, 8 ranks"."""
    told = (row.collective or "unknown").lstrip("_")
    of_name = ((kind, re.match(kind.replace("_", "_?"), told)) for kind in KINDS)
    kind, found = next(((kind, found) for kind, found in of_name if found), ("", None))
    rest = told[found.end() if found else 0 :].replace("_", " ")
    kind = f"{kind.replace('_', '-')}{rest}"
    return kind if row.ranks is None else f"{kind}, {numbered(row.ranks, 'rank')}"


def mean_message(row: Collective) -> str:
    """Return the mean size of messages of a kind of collective; a dash where it is not known."""
    return size(None if row.bytes is None else round(row.bytes / row.sized))


def collective_rate(row: Collective) -> str:
    """Return the bytes of messages by the time of their kernels: "5.2 GB/s"."""
    return bandwidth(row.bytes_per_ns)


def shape_words(text: str, width: int = _MOST_WIDTH) -> str:
    """Return shapes recorded as JSON in words: "8×1024, 1024×4096 and 3 more"; else the text.

    Those that do not fit into about so many characters are counted; only a shape that is longer
    than that alone is cut.
    """
    shapes = _decoded(text)
    if shapes is None:
        return shorten_middle(text, width)
    return _first([word for shape in shapes if (word := _shape(shape))], width)


def type_words(text: str) -> str:
    """Return the different element types recorded as JSON, such as "bf16, int64"."""
    types = _decoded(text)
    if types is None:
        return shorten_middle(text, _MOST_WIDTH)
    tensors = [name for name in types if isinstance(name, str) and name not in _NO_TENSORS]
    shown = dict.fromkeys(_SHORT_TYPES.get(name, shorten_middle(name, 30)) for name in tensors)
    return _and_more(", ".join(list(shown)[:_MOST_TYPES]), len(shown) - _MOST_TYPES)


def _shape(shape: Any) -> str:
    if not isinstance(shape, list) or not shape:
        return ""
    if not any(isinstance(size, list) for size in shape):
        return "×".join(map(str, shape))
    inner = _first([word for each in shape if (word := _shape(each))], _INNER_WIDTH)
    if not inner:
        return ""
    return f"{count(len(shape))} tensors ({inner})" if len(shape) > 1 else f"({inner})"


def _first(words: Sequence[str], width: int) -> str:
    """Return the first words that fit, at least one, and how many more there are."""
    kept, used = 0, 0
    for word in words:
        used += len(word) + 2
        if kept and used > width:
            break
        kept += 1
    return _and_more(shorten_middle(", ".join(words[:kept]), width), len(words) - kept)


def _and_more(text: str, more: int) -> str:
    return f"{text} and {count(more)} more" if more > 0 else text


def _decoded(text: str) -> list[Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, list) else None
