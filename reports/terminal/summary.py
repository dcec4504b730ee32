"""The report in a terminal: what matters most, on one screen."""

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
"""Heads of the columns in the table of devices, by component."""
_FIGURES: Final = {"time": 9, "share": 9, "rate": 14}
_PASS: Final = 9
_PASS_LESS: Final = ("Tokens", "Exposed", "MBU", "Comm", "Count", "p99", "Tokens/s")
_OWNER, _OWNER_NAME = 10, 66
_OWNER_LESS: Final = ("Slowest", "Each", "GPU operations", "Calls")
_KERNEL: Final = {"category": 13, **_FIGURES, "count": 8}
_WAIT: Final = {"time": 9, "share": 9}
_WAIT_NAME: Final = 27
_LEAST_BAR: Final = 6
_BESIDE_LABEL: Final = 70
"""Characters that labels of devices leave to the bar and the other columns."""
_SEVERAL_PER_LAUNCH: Final = 1.05
"""GPU operations per launch call that are worth a line: calls such as of graphs launch several."""


class Shown(NamedTuple):
    """The number of rows of each part of the report."""

    findings: int
    kernels: int
    waits: int
    collectives: int
    notes: int


_SCREEN: Final = 40  # lines; rows are left out to keep to it
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
    """Return the lines of the report, with the longest kernels or the owners of a kind (`by`)."""
    style = (style or Style()).wide_enough()
    width = style.width
    before = _before_waits(analysis, style)
    detail = cache(
        lambda waits: [] if is_little(analysis) else [*_devices_in_detail(analysis, style, waits)]
    )
    case = cache(lambda findings: [*case_lines(analysis, style, findings)])
    # Without a timeline, `before` has the counters.
    has_timeline = analysis.untimed is None
    speeds = aggregates.speeds_lines(analysis.measured, _SPEEDS_SHOWN, width)
    counted = list(speeds) if has_timeline else []
    is_counted_run = analysis.recorded == "serialized"  # recorded for the counters
    device_rows = min(len(analysis.devices), _DEVICES_SHOWN) - 1
    notes = _notes(analysis)
    lines: list[Text] = []
    for shown in _SHOWN:
        if by not in (None, KERNEL):
            work = list(_owners(analysis, by, width))
        else:
            # Rows of several devices take the place of kernels.
            most = max(shown.kernels - device_rows, _LEAST_KERNELS)
            work = list(_kernels(analysis, style, _KERNELS_ASKED_FOR if by == KERNEL else most))
        lines = [
            *case(shown.findings),
            *before,
            *_waits(analysis, style, shown.waits),
            *detail(shown.waits > 1),
            *((*counted, *work) if is_counted_run else (*work, *counted)),
            *_collectives(analysis, width, shown.collectives),
            *note_lines(notes, shown.notes, "on the page and in --json", width),
        ]
        if len(lines) <= _SCREEN:
            break
    return fitted(lines, style)


def _before_waits(analysis: Analysis, style: Style) -> list[Text]:
    """Return what only recordings without a timeline have, and the jobs if none is chosen."""
    lines: list[Text] = []
    if analysis.untimed is not None:
        lines += aggregates.counted_lines(analysis.measured, style.width)
        lines += aggregates.untimed_lines(analysis.untimed, style)
    elif not analysis.devices:  # only memory events
        lines += aggregates.memory_lines(analysis.prepared, style.width)
    for job in analysis.jobs if analysis.of_no_job else ():
        lines += headline(f"Job {job.number}  {wording.job_files(job)} ({wording.job_size(job)})")
        lines += paragraph(job.verdict or "", style.width, "", _INDENT)
    return lines


def _notes(analysis: Analysis) -> list[str]:
    """Return the most important notes first, without those that the first lines already say."""
    first_lacks = analysis.measured.lacks[:1]
    says_no_shapes = any(
        lack.how is not None and lack.how.code == NEXT_TIME for lack in first_lacks
    )
    others = wording.notes_by_weight(analysis)[len(wording.doubts(analysis)) :]
    return [note.text for note in others if not (says_no_shapes and note.code == "no-shapes")]


def _devices_in_detail(analysis: Analysis, style: Style, waits: bool) -> Iterator[Text]:
    """Yield passes (with `waits` also the idle time after them), devices, clocks, memory, gaps."""
    width, passes = style.width, serving_table(analysis)
    if passes.rows:
        yield from view_table(passes, _PASS, _PASS_LESS, LEAST_NAME, width, WAITS_ON)
        # Waits are too long for a column. If any is known, theirs is the last one.
        if waits and passes.columns[-1].head == WAITS_ON:
            for kind, *_, wait in passes.rows:
                words = wait if isinstance(wait, str) else ", ".join(wait)
                if wait != UNKNOWN:
                    yield from paragraph(f"Idle after {kind}: {words}", width, indent=_INDENT)
    yield from _devices(analysis, style)
    sampled = gpu_samples_table(analysis, "Clocks and power")
    rows = sampled.rows[:_SAMPLED_SHOWN]
    if rows:
        shown = replace(sampled, rows=rows)
        yield from view_table(shown, _SAMPLED, _SAMPLED_LESS, _NAME_WIDTH, width, THROTTLED_BY)
        if sampled.columns[-1].head == THROTTLED_BY:  # also too long for a column
            for label, *_, reasons in rows:
                words = f"{label}: {reasons}" if reasons != UNKNOWN else ""
                yield from paragraph(words, width, "dim", _INDENT)
        if sampled.total > len(rows):
            more = sampled.total - len(rows)
            yield Text(f"{_INDENT}… {more} more on the page and in --json", "dim")
    if analysis.devices:
        yield from aggregates.snapshot_lines(analysis.prepared, width)
    yield from gap_lines(analysis, style)


def _devices(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield a row per device if there are several; those farthest off in own time come first."""
    if len(analysis.devices) < 2:
        return
    own_ns = who_waits.own_times(analysis)  # by device, the farthest off first
    place_of = {device: place for place, device in enumerate(own_ns)}
    order = sorted(analysis.devices, key=lambda row: place_of.get(row.device, len(place_of)))
    shown = order[:_DEVICES_SHOWN]
    # A row is the label, a bar, and the columns that have room.
    longest_label = max(len(device.label) for device in shown)
    label_width = min(longest_label, max(18, style.width - _BESIDE_LABEL))
    parts = [device.chosen.components.parts() for device in analysis.devices]
    heads = {name: head for name, head in _SHARES.items() if any(part[name] for part in parts)}
    if not wording.knows_exposure(analysis):  # only communication was recorded
        heads = {"communication": "comm"}
    all_widths = {"window": 11}
    all_widths |= {_OWN: 14} if own_ns else {}
    all_widths |= dict.fromkeys(heads.values(), 9)
    less = ("other", "graphs", "window", "memory", "exposed", "start-up", "idle", "compute")
    widths = columns(all_widths, style.width - label_width - 3, less)  # 3: the indent, a space
    left = style.width - label_width - 7 - sum(widths.values())  # with a margin of 4
    bar = min(20, left) if left >= _LEAST_BAR else 0
    yield Text()
    yield from heading(f"{_INDENT}{wording.unit(analysis)}", label_width + 3 + bar, widths)
    labels = cut_to([device.label for device in shown], label_width)
    for device, label in zip(shown, labels, strict=True):
        row, mean = Text(f"{_INDENT}{label} "), device.chosen.components
        looks = [(LOOKS[part], ns) for part, ns in mean.parts().items()]
        row.append_text(style.bar(looks, bar) if mean.window_ns else Text(" " * bar))
        texts = {"window": duration(mean.window_ns)}
        texts |= {head: percent(mean.share(part)) for part, head in heads.items()}
        texts |= {_OWN: duration(own_ns[device.device])} if device.device in own_ns else {}
        yield row.append(cells(texts, widths))
    hidden = len(analysis.devices) - len(shown)
    if hidden:
        yield Text(f"{_INDENT}… {hidden} more on the page and in --json", "dim")
    if own_ns:
        sentences = (who_waits.waiting_sentence(analysis), who_waits.clocks_sentence(analysis))
        yield from paragraph(" ".join(sentences).lstrip(), style.width, "dim", _INDENT)


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
        if not names:  # names have no room in that line: try the next one
            below = _wait_names(row, style.width - 2 * len(_INDENT))
            yield from paragraph(below, style.width, indent=2 * _INDENT)
    # A finding with a cause has its own remedy; start-up happens once and needs none.
    leading = (analysis.verdict.headline, *(one.rule for one in analysis.findings[:1]))
    is_start_up = "start-up" in leading
    if not causes(analysis) and rows[0].remedy and not is_start_up:
        yield from hanging(f"{_INDENT}help: ", f"{capitalized(rows[0].remedy)}.", style.width)
    yield from paragraph(pace_sentence(analysis), style.width)


def _wait_names(row: WaitedFor, room: int) -> str:
    """Return the names of culprits with their tails; only the first name or "" without room."""
    all_names = ", ".join(map(add, row.names, row.tails))
    shown = row.names if cell_len(all_names) <= room else row.names[:1]
    name_room = room - len("".join(row.tails[: len(shown)])) - 2 * (len(shown) - 1)
    names = short_labels(shown, name_room) if name_room >= LEAST_NAME else []
    return ", ".join(map(add, names, row.tails))


def _kernels(analysis: Analysis, style: Style, most: int) -> Iterator[Text]:
    """Yield a row for each of the `most` longest kernels, with the columns that have room."""
    rows = analysis.kernels.slice(0, most).to_pylist()
    if not rows:
        return
    yield Text()
    yield from paragraph(_kernels_title(analysis), style.width, "bold")
    # Operators that only launch take no time for their FLOPs: they have no rate.
    rate_of, mean = {} if analysis.only_launches else rates(analysis.measured), analysis.mean_ns
    figures = [
        (
            row["sub"],
            duration(mean(row["sum_ns"])),
            time_share(row["share"]),
            rate_of.get(row["name"], ""),
            f"{mean_count(mean(row['count']))} ×",
        )
        for row in rows
    ]
    all_widths = widened(_KERNEL, figures)
    if not any(row["name"] in rate_of for row in rows):
        del all_widths["rate"]
    room = style.width - 5  # without the indent, two spaces, and the coloured mark
    widths = columns(all_widths, room - LEAST_NAME, ("count", "category", "rate"))
    name_width = min(_NAME_WIDTH, room - sum(widths.values()))
    names = cut_to([row["name"] or "unknown" for row in rows], name_width)
    for row, name, figures_of_row in zip(rows, names, figures, strict=True):
        texts = dict(zip(_KERNEL, figures_of_row, strict=True))
        line = Text(f"{_INDENT}{name}  ")
        line.append_text(style.drawn(look(row["top"])))
        line.append(f" {row['sub']:<{widths['category'] - 1}}" if "category" in widths else "")
        line.append(cells(texts, {head: widths[head] for head in _FIGURES if head in widths}))
        if "count" in widths:
            line.append(cells(texts, {"count": widths["count"]}), "dim")
        yield line
    launched = analysis.total.activities_per_launch
    if launched is not None and launched > _SEVERAL_PER_LAUNCH:
        yield Text(f"{_INDENT}{ratio(launched)} GPU operations per launch call", "dim")


def _kernels_title(analysis: Analysis) -> str:
    """Return the title of the table of kernels, which says what the shares refer to."""
    number = analysis.kernels.num_rows
    if number == 1:
        title = f"The only {'operator' if analysis.on_host else 'kernel or copy'}"
    else:
        title = (
            f"Top of {count(number)} {'operators' if analysis.on_host else 'kernels and copies'}"
        )
    overlaps = f"; {wording.OVERLAPS}" if wording.overlap(analysis) else ""
    return f"{title} (share of the {wording.time_shared(analysis)}{overlaps})"


def _owners(analysis: Analysis, by: str, width: int) -> Iterator[Text]:
    """Yield the owners with most time and how work is attributed, or how to record owners."""
    table, words = owners_table(analysis, by), OWNER_WORDS[by]
    if not table.rows:
        yield from headline(capitalized(words.owners))
        advice = remedy(analysis, words.lack)
        text = "The trace has none." + (f" To record them: {advice}." if advice else "")
        yield from paragraph(text, width, indent=_INDENT)
        return
    yield from view_table(table, _OWNER, _OWNER_LESS, _OWNER_NAME, width)
    if table.total > len(table.rows):
        yield Text(f"{_INDENT}… {table.total - len(table.rows)} more on the page", "dim")
    yield from paragraph(attribution_sentence(analysis), width)


def _collectives(analysis: Analysis, width: int, most: int) -> Iterator[Text]:
    """Yield a line on each of the `most` longest kinds of collectives, then on pipelines."""
    rows = analysis.collectives
    hidden = len(rows) - most
    for number, row in enumerate(rows[:most], 1):
        message, rate = wording.mean_message(row), bandwidth(row.bytes_per_ns)
        label = f"{wording.collective_label(row)}: {mean_count(analysis.mean_ns(row.count))} ×"
        parts = [label if message == UNKNOWN else f"{label} {message}"]
        # If the bus bandwidth is unknown: the bytes by the whole time, which is partly waiting.
        with_waiting = [f"{rate} with waiting"] if rate != UNKNOWN else []
        parts += list(who_waits.busbw_words(analysis, row)) or with_waiting
        parts.append(duration(analysis.mean_ns(row.sum_ns)))
        if wording.knows_exposure(analysis):
            parts.append(f"{duration(analysis.mean_ns(row.exposed_ns))} exposed")
        if number == most and hidden > 0:  # saves a line of its own
            parts.append(f"{several(hidden, 'kind')} more in --json")
        yield Text(_INDENT + listed(parts, width - len(_INDENT)), "dim")
    for sentence in pipeline_sentences(analysis):
        yield from paragraph(sentence, width)
