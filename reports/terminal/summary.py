"""The report in a terminal: what matters, in a screenful."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import add
from typing import Final, NamedTuple

from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis.result import Analysis
from traceflops.attribution.device_work_tables import KERNEL
from traceflops.devices.missing_input import NEXT_TIME
from traceflops.remedies import remedy
from traceflops.reports.terminal import aggregates
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
from traceflops.reports.view import who_waits, wording
from traceflops.reports.view.culprits import WaitedFor, pace_sentence, waited_for
from traceflops.reports.view.figures import (
    UNKNOWN,
    bandwidth,
    count,
    duration,
    mean_count,
    percent,
    ratio,
    time_share,
)
from traceflops.reports.view.findings import causes, is_little
from traceflops.reports.view.gpu_samples import THROTTLED_BY, gpu_samples_table
from traceflops.reports.view.owners import OWNER_WORDS, attribution_sentence, owners_table
from traceflops.reports.view.palette import LOOKS, look
from traceflops.reports.view.pipelines import pipeline_sentences
from traceflops.reports.view.serving import WAITS_ON, serving_table
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.utilisation import rates
from traceflops.units import capitalized, several

_LEAST_KERNELS: Final = 1
_KERNELS_ASKED_FOR: Final = 20
_SPEEDS_SHOWN: Final = 3
_OWN: Final = "own per step"
_DEVICES_SHOWN: Final = 4
_SAMPLED_SHOWN: Final = 8
_SAMPLED: Final = 9
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
"""By component the head of its column in the table of devices."""
_FIGURES: Final = {"time": 9, "share": 9, "rate": 14}
_PASS: Final = 9
_PASS_LESS: Final = ("Tokens", "Exposed", "MBU", "Comm", "Count", "p99", "Tokens/s")
_OWNER, _OWNER_NAME = 10, 66
_OWNER_LESS: Final = ("Slowest", "Each", "Count")
_KERNEL: Final = {"category": 13, **_FIGURES, "count": 8}
_WAIT: Final = {"time": 9, "share": 9}
_WAIT_NAME: Final = 27
_LEAST_BAR: Final = 6
_BESIDE_LABEL: Final = 70
"""The room that long labels leave to the bar and the columns of the table of devices."""
_SEVERAL_PER_LAUNCH: Final = 1.05
"""GPU operations per launch call above which they are told: calls, as of graphs, launch several."""


class Shown(NamedTuple):
    """How many rows of each part are shown."""

    findings: int
    kernels: int
    waits: int
    collectives: int
    notes: int


_SCREEN: Final = 40  # a report takes at most so many lines, if showing fewer rows achieves that
_SHOWN: Final = (
    Shown(findings=3, kernels=5, waits=3, collectives=2, notes=2),
    Shown(findings=3, kernels=5, waits=3, collectives=1, notes=1),
    Shown(findings=3, kernels=3, waits=2, collectives=1, notes=1),
    Shown(findings=2, kernels=3, waits=2, collectives=1, notes=1),
    Shown(findings=2, kernels=2, waits=1, collectives=1, notes=0),
    Shown(findings=1, kernels=1, waits=1, collectives=0, notes=0),
)
"""Tried in this order until the report fits on the screen."""


def render_terminal(
    analysis: Analysis, style: Style | None = None, by: str | None = None
) -> list[Text]:
    """Return the lines of the report, with the owners of a kind (`by`) or the longest kernels."""
    style = (style or Style()).wide_enough()
    # Of a recording without a timeline there are totals and counters, or only memory events; of
    # jobs of which none is chosen a line for each.
    first: list[Text] = []
    if analysis.untimed is not None:
        first += aggregates.counted_lines(analysis.measured, style.width)
        first += aggregates.untimed_lines(analysis.untimed, style)
    elif analysis.prepared is not None and not analysis.devices:
        first += aggregates.memory_lines(analysis.prepared, style.width)
    for job in analysis.jobs if analysis.of_no_job else ():
        first += headline(f"Job {job.number}  {wording.job_files(job)} ({wording.job_size(job)})")
        first += paragraph(job.verdict or "", style.width, "", _INDENT)
    detail = cache(
        lambda waits: [] if is_little(analysis) else [*_devices_in_detail(analysis, style, waits)]
    )
    counted: list[Text] = []
    if analysis.untimed is None:  # counters were read beside a timeline; else `first` has them
        counted = [*aggregates.speeds_lines(analysis.measured, _SPEEDS_SHOWN, style.width)]
    is_first = analysis.recorded == "serialized"  # recorded for the counters
    case = cache(lambda findings: [*case_lines(analysis, style, findings)])
    rows_of_devices = min(len(analysis.devices), _DEVICES_SHOWN) - 1  # which kernels give way to
    # The weightiest notes, without those that the first lines have said.
    hows = [lack.how for lack in analysis.measured.lacks[:1] if lack.how is not None]
    is_said = any(how.code == NEXT_TIME for how in hows)
    others = wording.notes_by_weight(analysis)[len(wording.doubts(analysis)) :]
    notes = [note.text for note in others if not (is_said and note.code == "no-shapes")]
    lines: list[Text] = []
    for shown in _SHOWN:
        if by not in (None, KERNEL):
            work = list(_owners(analysis, by, style.width))
        else:
            most = max(shown.kernels - rows_of_devices, _LEAST_KERNELS)
            work = list(_kernels(analysis, style, _KERNELS_ASKED_FOR if by == KERNEL else most))
        lines = [
            *case(shown.findings),
            *first,
            *_waits(analysis, style, shown.waits),
            *detail(shown.waits > 1),  # the waits of passes go with the waits of all
            *((*counted, *work) if is_first else (*work, *counted)),
            *_collectives(analysis, style.width, shown.collectives),
            *note_lines(notes, shown.notes, "on the page and in --json", style.width),
        ]
        if len(lines) <= _SCREEN:
            break
    return fitted(lines, style)


def _devices_in_detail(analysis: Analysis, style: Style, waits: bool) -> Iterator[Text]:
    """Yield passes (with `waits` also the idle time after them), devices, clocks, memory, gaps."""
    width, passes = style.width, serving_table(analysis)
    if passes.rows:
        yield from view_table(passes, _PASS, _PASS_LESS, LEAST_NAME, width, WAITS_ON)
    # The last column, if it is that of waits, is too long for a table.
    has_waits = waits and bool(passes.rows) and passes.columns[-1].head == WAITS_ON
    for kind, *_, wait in passes.rows if has_waits else ():
        words = wait if isinstance(wait, str) else ", ".join(wait)
        if wait != UNKNOWN:
            yield from paragraph(f"Idle after {kind}: {words}", width, indent=_INDENT)
    yield from _devices(analysis, style)
    sampled = gpu_samples_table(analysis, "Clocks and power")
    rows = sampled.rows[:_SAMPLED_SHOWN]
    if rows:
        shown = replace(sampled, rows=rows)
        yield from view_table(shown, _SAMPLED, _SAMPLED_LESS, _NAME_WIDTH, width, THROTTLED_BY)
        has_reasons = sampled.columns[-1].head == THROTTLED_BY  # also too long
        for label, *_, reasons in rows if has_reasons else ():
            words = f"{label}: {reasons}" if reasons != UNKNOWN else ""
            yield from paragraph(words, width, "dim", _INDENT)
        if sampled.total > len(rows):
            yield Text(f"{_INDENT}… {sampled.total - len(rows)} more", "dim")
    if analysis.prepared is not None and analysis.devices:
        yield from aggregates.snapshot_lines(analysis.recording, width)
    yield from gap_lines(analysis, style)


def _devices(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield a row per device if there are several; those farthest off in own time come first."""
    if len(analysis.devices) < 2:
        return
    own = who_waits.own_times(analysis)  # ns by device, the farthest off first
    turn = {device: place for place, device in enumerate(own)}
    order = sorted(analysis.devices, key=lambda device: turn.get(device.device, len(turn)))
    shown = order[:_DEVICES_SHOWN]
    # The label, a bar, and the columns that have room.
    label = min(max(len(device.label) for device in shown), max(18, style.width - _BESIDE_LABEL))
    parts = [device.chosen.components.parts() for device in analysis.devices]
    heads = {name: head for name, head in _SHARES.items() if any(part[name] for part in parts)}
    if not wording.knows_exposure(analysis):  # only communication was recorded
        heads = {"communication": "comm"}
    widths = {"window": 11, **({_OWN: 14} if own else {}), **dict.fromkeys(heads.values(), 9)}
    less = ("other", "graphs", "window", "memory", "exposed", "start-up", "idle", "compute")
    widths = columns(widths, style.width - label - 3, less)  # 3: the indent, a space behind it
    bar = min(20, style.width - label - 7 - sum(widths.values()))  # at most 20, and a margin of 4
    bar = bar if bar >= _LEAST_BAR else 0
    yield Text()
    yield from heading(f"{_INDENT}{wording.unit(analysis)}", label + 3 + bar, widths)
    for device, name in zip(shown, cut_to([one.label for one in shown], label), strict=True):
        row, mean = Text(f"{_INDENT}{name} "), device.chosen.components
        looks = [(LOOKS[part], ns) for part, ns in mean.parts().items()]
        row.append_text(style.bar(looks, bar) if mean.window_ns else Text(" " * bar))
        texts = {"window": duration(mean.window_ns)}
        texts |= {head: percent(mean.share(part)) for part, head in heads.items()}
        texts |= {_OWN: duration(own[device.device])} if device.device in own else {}
        yield row.append(cells(texts, widths))
    hidden = len(analysis.devices) - len(shown)
    if hidden:
        yield Text(f"{_INDENT}… {hidden} more on the page and in --json", "dim")
    if own and analysis.ranks is not None:
        sentences = (
            f"{who_waits.waiting_sentence(analysis)} {who_waits.clocks_sentence(analysis)}".lstrip()
        )
        yield from paragraph(sentences, style.width, "dim", _INDENT)


def _waits(analysis: Analysis, style: Style, most: int) -> Iterator[Text]:
    """Yield what the GPUs wait on, a line per class of culprits, and the remedy of the first."""
    rows = waited_for(analysis)[:most]
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
        if not names:  # no room behind: a line of its own
            below = _wait_names(row, style.width - 2 * len(_INDENT))
            yield from paragraph(below, style.width, indent=2 * _INDENT)
    # A finding with a cause has its own remedy; start-up happens once, so it needs none.
    is_start_up = analysis.verdict.headline == "start-up"
    if not causes(analysis) and rows[0].remedy and not is_start_up:
        yield from hanging(f"{_INDENT}help: ", f"{capitalized(rows[0].remedy)}.", style.width)
    yield from paragraph(pace_sentence(analysis), style.width)


def _wait_names(row: WaitedFor, room: int) -> str:
    """Return the names of culprits, each with its tail, or the first one shortened, or ""."""
    all_names = ", ".join(map(add, row.names, row.tails))
    shown = row.names if cell_len(all_names) <= room else row.names[:1]
    room -= len("".join(row.tails[: len(shown)])) + 2 * (len(shown) - 1)
    names = short_labels(shown, room) if room >= LEAST_NAME else []
    return ", ".join(map(add, names, row.tails))


def _kernels(analysis: Analysis, style: Style, most: int) -> Iterator[Text]:
    """Yield a row for each of the `most` longest kernels, with the columns that fit the width."""
    rows = analysis.kernels.slice(0, most).to_pylist()
    if not rows:
        return
    yield Text()
    number = analysis.kernels.num_rows
    what = "operators" if analysis.on_host else "kernels and copies"
    title = f"Top of {count(number)} {what}"
    if number == 1:
        title = f"The only {'operator' if analysis.on_host else 'kernel or copy'}"
    twice = f"; {wording.OVERLAPS}" * wording.overlap(analysis)
    title = f"{title} (share of the {wording.time_shared(analysis)}{twice})"
    yield from paragraph(title, style.width, "bold")
    # The time of operators that only launch is not that of their FLOPs.
    known, mean = {} if analysis.only_launches else rates(analysis.measured), analysis.mean_ns
    figures = [
        (
            row["sub"],
            duration(mean(row["sum_ns"])),
            time_share(row["share"]),
            known.get(row["name"], ""),
            f"{mean_count(mean(row['count']))} ×",
        )
        for row in rows
    ]
    # The widths of the columns that have room; names get the rest.
    widths = widened(_KERNEL, figures)
    if not any(row["name"] in known for row in rows):
        del widths["rate"]
    room = style.width - 5  # without the indent, two spaces, and the coloured mark
    widths = columns(widths, room - LEAST_NAME, ("count", "category", "rate"))
    width = min(_NAME_WIDTH, room - sum(widths.values()))
    names = cut_to([row["name"] or "unknown" for row in rows], width)
    for row, name, figures_of_row in zip(rows, names, figures, strict=True):
        texts = dict(zip(_KERNEL, figures_of_row, strict=True))
        line = Text(f"{_INDENT}{name}  ")
        line.append_text(style.drawn(look(row["top"])))
        line.append(f" {row['sub']:<{widths['category'] - 1}}" if "category" in widths else "")
        line.append(cells(texts, {head: widths[head] for head in _FIGURES if head in widths}))
        rest = {head: width for head, width in widths.items() if head == "count"}
        yield line.append(cells(texts, rest), "dim")
    launched = analysis.total.activities_per_launch
    if launched is not None and launched > _SEVERAL_PER_LAUNCH:
        yield Text(f"{_INDENT}{ratio(launched)} GPU operations per launch call", "dim")


def _owners(analysis: Analysis, by: str, width: int) -> Iterator[Text]:
    """Yield the owners with the most time and how much is attributed, or how to record them."""
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


def _collectives(analysis: Analysis, width: int, most: int) -> Iterator[Text]:
    """Yield a line on each of the `most` longest kinds of collectives, then on pipelines."""
    rows = analysis.collectives
    more = len(rows) - most
    for place, row in enumerate(rows[:most]):
        message, rate = wording.mean_message(row), bandwidth(row.bytes_per_ns)
        times = f"{mean_count(analysis.mean_ns(row.count))} ×"
        parts = [
            f"{wording.collective_label(row)}: {times}{'' if message == UNKNOWN else f' {message}'}"
        ]
        # Without a bus bandwidth, the bytes by the whole time, which is partly waiting.
        with_waiting = [f"{rate} with waiting"] if rate != UNKNOWN else []
        parts += list(who_waits.busbw_words(analysis, row)) or with_waiting
        parts.append(duration(analysis.mean_ns(row.sum_ns)))
        if wording.knows_exposure(analysis):
            parts.append(f"{duration(analysis.mean_ns(row.exposed_ns))} exposed")
        if place == most - 1 and more > 0:  # on the last line, as it needs none of its own
            parts.append(f"{several(more, 'kind')} more")
        yield Text(_INDENT + listed(parts, width - len(_INDENT)), "dim")
    for sentence in pipeline_sentences(analysis):
        yield from paragraph(sentence, width)
