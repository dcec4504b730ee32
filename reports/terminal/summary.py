"""The report in a terminal: what matters, in a screenful."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import add
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.attribution.device_work_tables import KERNEL
from traceflops.devices.missing_input import NEXT_TIME
from traceflops.ranks.collectives import Collective
from traceflops.remedies import remedy
from traceflops.reports.terminal.aggregates import (
    counted_lines,
    memory_lines,
    snapshot_lines,
    speeds_lines,
    untimed_lines,
)
from traceflops.reports.terminal.case import case_lines
from traceflops.reports.terminal.gaps import gap_lines
from traceflops.reports.terminal.lines import (
    LEAST_NAME,
    Style,
    cells,
    columns,
    cut_to,
    fitted,
    hanging,
    heading,
    headline,
    listed,
    note_lines,
    paragraph,
    view_table,
    widened,
)
from traceflops.reports.view.culprits import WaitedFor, pace_sentence, waited_for
from traceflops.reports.view.figures import (
    UNKNOWN,
    count,
    duration,
    mean_count,
    percent,
    ratio,
    time_share,
)
from traceflops.reports.view.findings import causes
from traceflops.reports.view.gpu_samples import THROTTLED_BY, gpu_samples_table
from traceflops.reports.view.owners import OWNER_WORDS, attribution_sentence, owners_table
from traceflops.reports.view.palette import LOOKS, look
from traceflops.reports.view.pipelines import pipeline_sentences
from traceflops.reports.view.serving import WAITS_ON, serving_table
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.utilisation import rates
from traceflops.reports.view.who_waits import (
    busbw_words,
    clocks_sentence,
    own_times,
    waiting_sentence,
)
from traceflops.reports.view.wording import (
    OVERLAPS,
    collective_label,
    collective_rate,
    doubts,
    job_files,
    job_size,
    knows_exposure,
    mean_message,
    notes_by_weight,
    overlap,
    time_shared,
    unit,
)
from traceflops.timeline.records import COMPONENTS, Account
from traceflops.units import capitalized, several
from traceflops.windows.records import DeviceReport

_KERNELS_SHOWN: Final = 5
_LEAST_KERNELS: Final = 2
_KERNELS_ASKED_FOR: Final = 20
_SPEEDS_SHOWN: Final = 3
_OWN: Final = "own per step"
_COLLECTIVES_SHOWN: Final = 2
_DEVICES_SHOWN: Final = 4
_NOTES_SHOWN: Final = 2
_WAITS_SHOWN: Final = 3
_SAMPLED_SHOWN: Final = 8
_SAMPLED_LESS: Final = ("Memory clock", "Samples", "Limit", "Memory", "Busy", "Temperature")
_NAME_WIDTH: Final = 52
_INDENT: Final = "  "
_SHARES: Final = {
    **{name: name for name in ("compute", "memory", "other")},
    "graph": "graphs",
    "communication": "exposed",
    "start_up": "start-up",
    "idle": "idle",
}
"""The head of the column that a device has for a component."""
_FIGURES: Final = {"time": 9, "share": 9, "rate": 14}
_PASS: Final = 9
_PASS_LESS: Final = ("Tokens", "Exposed", "MBU", "Comm", "Count", "p99", "Tokens/s")
_OWNER, _OWNER_NAME = 10, 66
_OWNER_LESS: Final = ("Slowest", "Each", "Count")
_KERNEL: Final = {"category": 13, **_FIGURES, "count": 8}
_WAIT: Final = {"time": 9, "share": 9}
_WAIT_NAME: Final = 27
_LEAST_BAR: Final = 6


def render_terminal(
    analysis: Analysis, style: Style | None = None, by: str | None = None
) -> list[Text]:
    """Return the lines of the report, with the work `by` module etc. instead of few kernels."""
    style = (style or Style()).wide_enough()
    counted = [*_counted(analysis, style.width)]
    is_first = analysis.recorded == "serialized"
    lines = (
        *case_lines(analysis, style),
        *_untimed(analysis, style),
        *_jobs(analysis, style),
        *_waits(analysis, style),
        *_passes(analysis, style.width),
        *_devices(analysis, style),
        *_sampled(analysis, style.width),
        *_snapshot(analysis, style.width),
        *gap_lines(analysis, style),
        *(counted if is_first else ()),
        *_work(analysis, by, style),
        *(() if is_first else counted),
        *_collectives(analysis, style.width),
        *note_lines(_unsaid(analysis), _NOTES_SHOWN, "on the page and in --json", style.width),
    )
    return fitted(lines, style)


def _bar(account: Account, style: Style, width: int = 100) -> Text:
    parts = account.components.parts()
    return style.bar([(LOOKS[name], parts[name]) for name in COMPONENTS], width)


def _devices(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield a row per device, where there are several; those farthest off first."""
    if len(analysis.devices) < 2:
        return
    own = own_times(analysis)
    turn = {device: place for place, device in enumerate(own)}
    order = sorted(analysis.devices, key=lambda device: turn.get(device.device, len(turn)))
    shown = order[:_DEVICES_SHOWN]
    label = min(max(len(device.label) for device in shown), max(18, style.width - 70))
    parts = [device.chosen.components.parts() for device in analysis.devices]
    heads = {name: head for name, head in _SHARES.items() if any(one[name] for one in parts)}
    if not knows_exposure(analysis):
        heads = {"communication": "comm"}
    widths = {"window": 11, **({_OWN: 14} if own else {}), **dict.fromkeys(heads.values(), 9)}
    less = ("other", "graphs", "window", "memory", "exposed", "start-up", "idle", "compute")
    widths = columns(widths, style.width - label - 3, less)
    bar = min(20, style.width - label - 7 - sum(widths.values()))
    bar = bar if bar >= _LEAST_BAR else 0
    yield Text()
    yield from heading(f"{_INDENT}{unit(analysis)}", label + 3 + bar, widths)
    for device, name in zip(shown, cut_to([one.label for one in shown], label), strict=True):
        row = Text(f"{_INDENT}{name} ")
        has_time = device.chosen.components.window_ns
        row.append_text(_bar(device.chosen, style, bar) if has_time else Text(" " * bar))
        texts = {_OWN: duration(own[device.device])} if device.device in own else {}
        yield row.append(cells(_device_cells(device, heads) | texts, widths))
    hidden = len(analysis.devices) - len(shown)
    if hidden:
        yield Text(f"{_INDENT}… {hidden} more on the page and in --json", "dim")
    if own and analysis.ranks is not None:
        said = f"{waiting_sentence(analysis)} {clocks_sentence(analysis)}".lstrip()
        yield from paragraph(said, style.width, "dim", _INDENT)


def _device_cells(device: DeviceReport, heads: Mapping[str, str]) -> dict[str, str]:
    parts = device.chosen.components
    shares = {head: percent(parts.share(name)) for name, head in heads.items()}
    return {"window": duration(parts.window_ns), **shares}


def _waits(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield what the GPUs wait on, a line per class of culprit."""
    rows = waited_for(analysis)[:_WAITS_SHOWN]
    if not rows:
        return
    yield from headline("GPU waits on (share of the idle time)")
    widths = columns(_WAIT, style.width - len(_INDENT) - _WAIT_NAME, ("time",))
    for row in rows:
        line = Text(f"{_INDENT}{row.words:<{_WAIT_NAME}}")
        texts = {"time": duration(row.mean_ns), "share": percent(row.share)}
        line.append(f"{cells(texts, widths)}  ")
        names = _wait_names(row, style.width - line.cell_len)
        line.append(names, "dim").rstrip()
        yield line
        if not names:
            below = _wait_names(row, style.width - 2 * len(_INDENT))
            yield from paragraph(below, style.width, indent=2 * _INDENT)
    if not causes(analysis) and analysis.verdict.headline != "start-up":
        yield from hanging(f"{_INDENT}help: ", f"{capitalized(rows[0].remedy)}.", style.width)
    yield from paragraph(pace_sentence(analysis), style.width)


def _wait_names(row: WaitedFor, room: int) -> str:
    """Return as many of the names, each with what is said of it, as there is room for."""
    every = ", ".join(map(add, row.names, row.tails))
    shown = row.names if cell_len(every) <= room else row.names[:1]
    room -= len("".join(row.tails[: len(shown)])) + 2 * (len(shown) - 1)
    names = short_labels(shown, room) if room >= LEAST_NAME else []
    return ", ".join(map(add, names, row.tails))


def _passes(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield the passes of a serving engine by kind, and what the GPU waits on between them."""
    table = serving_table(analysis)
    if not table.rows:
        return
    yield from view_table(table, _PASS, _PASS_LESS, LEAST_NAME, width, WAITS_ON)
    for kind, *_, wait in table.rows if table.columns[-1].head == WAITS_ON else ():
        words = wait if isinstance(wait, str) else ", ".join(wait)
        if wait != UNKNOWN:
            yield from paragraph(f"Idle after {kind}: {words}", width, indent=_INDENT)


def _sampled(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield clocks and power of the GPUs, the slowest first, and why they are slow."""
    table = gpu_samples_table(analysis, "Clocks and power")
    if not table.rows:
        return
    shown = replace(table, rows=table.rows[:_SAMPLED_SHOWN])
    yield from view_table(shown, 9, _SAMPLED_LESS, _NAME_WIDTH, width, THROTTLED_BY)
    for label, *_, reasons in shown.rows if table.columns[-1].head == THROTTLED_BY else ():
        words = f"{label}: {reasons}" if reasons != UNKNOWN else ""
        yield from paragraph(words, width, "dim", _INDENT)
    if table.total > len(shown.rows):
        yield Text(f"{_INDENT}… {table.total - len(shown.rows)} more", "dim")


def _snapshot(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield the memory of the fullest GPU, where a snapshot was joined."""
    if analysis.prepared is not None and analysis.devices:
        yield from snapshot_lines(analysis.prepared, width)


def _jobs(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the jobs that the files are of, where none of them is chosen."""
    for job in analysis.jobs if analysis.of_no_job else ():
        yield from headline(f"Job {job.number}  {job_files(job)} ({job_size(job)})")
        yield from paragraph(job.verdict or "", style.width, "", _INDENT)


def _untimed(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield what there is of a trace without a timeline."""
    if analysis.untimed is not None:
        yield from counted_lines(analysis.measured, style.width)
        yield from untimed_lines(analysis.untimed, style)
    elif analysis.prepared is not None and not analysis.devices:
        yield from memory_lines(analysis.prepared, style.width)


def _counted(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield how near their limits kernels came whose counters were read beside a timeline."""
    if analysis.untimed is None:
        yield from speeds_lines(analysis.measured, _SPEEDS_SHOWN, width)


def _work(analysis: Analysis, by: str | None, style: Style) -> Iterator[Text]:
    if by == KERNEL:
        return _kernels(analysis, style, _KERNELS_ASKED_FOR)
    if by is not None:
        return _owners(analysis, by, style.width)
    rows_of_devices = min(len(analysis.devices), _DEVICES_SHOWN) - 1  # they take the room
    return _kernels(analysis, style, max(_KERNELS_SHOWN - rows_of_devices, _LEAST_KERNELS))


def _kernels(analysis: Analysis, style: Style, most: int) -> Iterator[Text]:
    """Yield a row for each of the `most` longest kernels, with the columns that fit the width."""
    rows = analysis.kernels.slice(0, most).to_pylist()
    if not rows:
        return
    yield Text()
    yield from paragraph(_title_of_kernels(analysis), style.width, "bold")
    known = rates(analysis.measured)
    every = [_kernel_cells(row, analysis.mean_ns, known.get(row["name"], "")) for row in rows]
    widths = widened(_KERNEL, every)
    if not any(row["name"] in known for row in rows):
        del widths["rate"]
    widths = columns(widths, style.width - 5 - LEAST_NAME, ("count", "category", "rate"))
    width = min(_NAME_WIDTH, style.width - 5 - sum(widths.values()))
    names = cut_to([row["name"] or "unknown" for row in rows], width)
    for row, name, figures in zip(rows, names, every, strict=True):
        texts = dict(zip(_KERNEL, figures, strict=True))
        line = Text(f"{_INDENT}{name}  ")
        line.append_text(style.drawn(look(row["top"])))
        line.append(f" {row['sub']:<{widths['category'] - 1}}" if "category" in widths else "")
        line.append(cells(texts, {head: widths[head] for head in _FIGURES if head in widths}))
        rest = {head: width for head, width in widths.items() if head == "count"}
        yield line.append(cells(texts, rest), "dim")
    launched = analysis.total.activities_per_launch
    if launched is not None and launched > 1.05:
        yield Text(f"{_INDENT}{ratio(launched)} GPU operations per launch call", "dim")


def _owners(analysis: Analysis, by: str, width: int) -> Iterator[Text]:
    """Yield the owners with most time, and how much is attributed at all."""
    table, words = owners_table(analysis, by), OWNER_WORDS[by]
    if not table.rows:
        yield from headline(capitalized(words.owners))
        advice = remedy(analysis, words.lack)
        text = "The trace has none." + (f" To record them: {advice}." if advice else "")
        yield from paragraph(text, width, indent=_INDENT)
        return
    yield from view_table(table, _OWNER, _OWNER_LESS, _OWNER_NAME, width)
    if table.total > len(table.rows):
        yield Text(f"{_INDENT}… {table.total - len(table.rows)} more", "dim")
    yield from paragraph(attribution_sentence(analysis), width)


def _kernel_cells(
    row: Mapping[str, Any], mean: Callable[[int], float], rate: str
) -> tuple[str, ...]:
    time, share = duration(mean(row["sum_ns"])), time_share(row["share"])
    return row["sub"], time, share, rate, f"{mean_count(mean(row['count']))} ×"


def _title_of_kernels(analysis: Analysis) -> str:
    number, twice = analysis.kernels.num_rows, f"; {OVERLAPS}" * overlap(analysis)
    of = f" (share of the {time_shared(analysis)}{twice})"
    if number == 1:
        return f"The only {'operator' if analysis.on_host else 'kernel or copy'}{of}"
    return f"Top of {count(number)} {'operators' if analysis.on_host else 'kernels and copies'}{of}"


def _collectives(analysis: Analysis, width: int) -> Iterator[Text]:
    """Yield what the longest kinds of collectives moved, a line for each; then pipelines."""
    rows = analysis.collectives
    more = len(rows) - _COLLECTIVES_SHOWN
    for place, row in enumerate(rows[:_COLLECTIVES_SHOWN]):
        busbw = list(busbw_words(analysis, row))
        parts = list(_of_collective(row, busbw, analysis.mean_ns))
        if knows_exposure(analysis):
            parts.append(f"{duration(analysis.mean_ns(row.exposed_ns))} exposed")
        if place == _COLLECTIVES_SHOWN - 1 and more > 0:
            parts.append(f"{several(more, 'kind')} more")
        yield Text(_INDENT + listed(parts, width - len(_INDENT)), "dim")
    for sentence in pipeline_sentences(analysis):
        yield from paragraph(sentence, width)


def _of_collective(
    row: Collective, busbw: list[str], mean: Callable[[int], float]
) -> Iterator[str]:
    message, rate = mean_message(row), collective_rate(row)
    times = f"{mean_count(mean(row.count))} ×"
    yield f"{collective_label(row)}: {times}{'' if message == UNKNOWN else f' {message}'}"
    yield from busbw or ([f"{rate} with waiting"] if rate != UNKNOWN else [])
    yield duration(mean(row.sum_ns))


def _unsaid(analysis: Analysis) -> list[str]:
    """Return the notes but for those that the first lines already say."""
    hows = [lack.how for lack in analysis.measured.lacks[:1] if lack.how is not None]
    said = any(how.code == NEXT_TIME for how in hows)
    notes = notes_by_weight(analysis)[len(doubts(analysis)) :]
    return [note.text for note in notes if not (said and note.code == "no-shapes")]
