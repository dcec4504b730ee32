"""The report in a terminal: what matters, in a screenful."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from traceflops.analysis import Analysis
from traceflops.devices import NEXT_TIME
from traceflops.reports.terminal.aggregates import collective_lines, untimed_lines
from traceflops.reports.view import (
    CAUSE_LABELS,
    LEAST_NAME,
    LOOKS,
    Look,
    apportioned,
    basis,
    cells,
    columns,
    component_label,
    count,
    counted_lines,
    duration,
    gap_place,
    heading,
    job_files,
    job_size,
    joined,
    look,
    percent,
    products,
    ratio,
    selected,
    short_labels,
    shorten_middle,
    steps_used,
    uneven_steps,
    unit,
    visible,
    waited_for,
    why_not,
    wrapped,
)
from traceflops.table import Note
from traceflops.timeline import COMPONENTS, Account, Gap
from traceflops.units import several
from traceflops.windows import DeviceReport

_KERNELS_SHOWN = 5
_DEVICES_SHOWN = 8
_NOTES_SHOWN = 4
_WAITS_SHOWN = 4
_NAME_WIDTH = 52
_INDENT = "  "
_SHARES = ("compute", "memory", "communication", "idle")
_ALWAYS = ("compute", "memory", "communication", "idle")
_ON_HOST = ("compute", "memory", "idle")
_HEADS = {"communication": "exposed"}
NARROWEST = 40
"""Rows are laid out for at least so many columns; a narrower terminal wraps them."""
_TIMES = {"time": 10, "share": 9}
_KERNEL = {"category": 16, **_TIMES, "count": 10}
_GAP = {"where": 16, "cause": 21, "device": 19}
_LEAST_UNTIL, _LEAST_BAR = 8, 6


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal can show: its width in columns, Unicode, colour."""

    width: int = 100
    unicode: bool = True
    colour: bool = True

    def fill(self, a_look: Look) -> str:
        """Return the character that fills a component's part of a bar."""
        if not self.unicode:
            return a_look.ascii
        return "█" if self.colour and a_look.hatch is None else a_look.block

    def drawn(self, a_look: Look, cells: int = 1) -> Text:
        """Return a component's part of a bar."""
        return Text(self.fill(a_look) * cells, a_look.colour if self.colour else "")

    def plain(self, text: str) -> str:
        """Return text in characters the terminal has."""
        if self.unicode:
            return text
        swaps = {"–": "-", "·": "|", "×": "x", "µ": "u", "…": "~", "→": "->"}  # noqa: RUF001
        for fancy, simple in swaps.items():
            text = text.replace(fancy, simple)
        return text.encode("ascii", errors="replace").decode()


def render_terminal(analysis: Analysis, style: Style | None = None) -> list[Text]:
    """Return the lines of the report."""
    style = style or Style()
    style = replace(style, width=max(style.width, NARROWEST))
    lines = [
        *_head(analysis, style),
        *_untimed(analysis, style),
        *_jobs(analysis, style),
        *([Text()] if analysis.devices else []),
        *_parts(analysis, style),
        *_waits(analysis, style),
        *_devices(analysis, style),
        *_gaps(analysis, style),
        *_kernels(analysis, style),
        *collective_lines(analysis, _listed, style.width),
        *_notes(analysis, style),
    ]
    return [fitted(line, style) for line in lines]


def fitted(line: Text, style: Style) -> Text:
    """Return a line in characters the terminal has, no wider than it."""
    if not style.unicode:
        plain = Text()
        for segment, span in _segments(line):
            plain.append(style.plain(segment), span)
        line = plain
    if line.cell_len > style.width:
        line.rstrip()
    if line.cell_len > style.width:
        mark = style.plain("…")
        line.truncate(style.width - len(mark), overflow="crop")
        line.append(mark)
    return line


def _segments(line: Text) -> Iterator[tuple[str, str]]:
    """Yield the runs of a line that share a style; lines here are built by appending runs."""
    done = 0
    for span in sorted(line.spans, key=lambda span: span.start):
        if span.start > done:
            yield line.plain[done : span.start], ""
        yield line.plain[span.start : span.end], str(span.style)
        done = span.end
    yield line.plain[done:], ""


def _head(analysis: Analysis, style: Style) -> Iterator[Text]:
    for line in wrapped(analysis.verdict.sentence, style.width):
        yield Text(line, "bold")
    yield from provenance(analysis, style)
    for sentence in why_not(analysis.measured)[: 1 if analysis.devices else 0]:
        for line in wrapped(visible(sentence), style.width):
            yield Text(line, "dim")


def provenance(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield what the figures are of: devices, steps, selection, files."""
    parts = [part for part in _provenance(analysis) if part]
    yield from (Text(line, "dim") for line in joined(parts, style.width))


def _provenance(analysis: Analysis) -> Iterator[str]:
    if not analysis.of_no_job:
        yield products(analysis)
    typical = analysis.steps.typical_ns
    if typical is not None:
        yield f"median step {duration(typical)}"
    if not analysis.selection.is_time_range:
        yield steps_used(analysis)
    yield selected(analysis)
    files = analysis.source.files
    yield shorten_middle(files[0].name, 40) if len(files) == 1 else f"{len(files)} files"


def _parts(analysis: Analysis, style: Style) -> Iterator[Text]:
    total = analysis.total
    if not total.components.window_ns:
        return
    yield _bar(total, style, min(style.width, 100))
    for name in COMPONENTS:
        ns = total.components.parts()[name]
        if ns or name in (_ON_HOST if analysis.on_host else _ALWAYS):
            yield _part(name, ns, analysis, style)
    for text in (f"{basis(analysis)}.", uneven_steps(analysis)):
        for line in wrapped(text, style.width):
            yield Text(line, "dim")


def _bar(account: Account, style: Style, width: int) -> Text:
    bar = Text()
    cells_of = apportioned(list(account.components.parts().values()), width)
    for name, number in zip(COMPONENTS, cells_of, strict=True):
        bar.append_text(style.drawn(LOOKS[name], number))
    return bar


def _part(name: str, ns: int, analysis: Analysis, style: Style) -> Text:
    a_look = LOOKS[name]
    line = Text()
    line.append_text(style.drawn(a_look))
    line.append(f" {component_label(name, analysis.total):<22}")
    widths = columns(_TIMES, style.width - line.cell_len, ["time"])
    if "time" in widths:
        line.append(f"{duration(analysis.mean_ns(ns)):>10}")
    line.append(f"{percent(analysis.components.share(name)):>9}  ", "bold")
    line.append(_listed(_details(name, analysis), style.width - cell_len(line.plain)), "dim")
    return line


def _listed(items: Iterable[str], width: int) -> str:
    """Return as many of the items as fit in `width` columns, separated by commas."""
    text = ""
    for item in items:
        longer = f"{text}, {item}" if text else item
        if cell_len(longer) > width:
            break
        text = longer
    return text


def _details(name: str, analysis: Analysis) -> Iterator[str]:
    """Yield what a component consists of, as means like the component, the largest first."""
    if name == "idle" and analysis.on_host:
        return
    if name == "idle":
        causes = analysis.total.idle_causes.detailed()
        for cause, ns in sorted(causes.items(), key=lambda item: -item[1]):
            if ns:
                yield f"{CAUSE_LABELS[cause]} {duration(analysis.mean_ns(ns))}"
        return
    hidden = analysis.total.hidden_communication_ns
    if name == "communication" and hidden:
        yield f"{duration(analysis.mean_ns(hidden))} more hidden"
    for row in analysis.categories.to_pylist():
        if row["top"] == name and row["sum_ns"]:
            yield f"{row['sub']} {duration(analysis.mean_ns(row['sum_ns']))}"


def _devices(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield a row per device, where there are several."""
    if len(analysis.devices) < 2:
        return
    shown = analysis.devices[:_DEVICES_SHOWN]
    label = min(max(len(device.label) for device in shown), max(18, style.width - 70))
    widths = {"window": 11, **{_HEADS.get(name, name): 9 for name in _SHARES}}
    widths = columns(widths, style.width - label - 3, ("window", "memory", "exposed"))
    bar = min(20, style.width - label - 7 - sum(widths.values()))
    bar = bar if bar >= _LEAST_BAR else 0
    yield Text()
    yield from heading(f"{_INDENT}{unit(analysis)}", label + 3 + bar, widths)
    for device, name in zip(shown, cut_to([one.label for one in shown], label), strict=True):
        row = Text(f"{_INDENT}{name} ")
        has_time = device.chosen.components.window_ns
        row.append_text(_bar(device.chosen, style, bar) if has_time else Text(" " * bar))
        yield row.append(cells(_device_cells(device), widths))
    hidden = len(analysis.devices) - len(shown)
    if hidden:
        yield Text(f"{_INDENT}… {hidden} more on the page and in --json", "dim")


def _device_cells(device: DeviceReport) -> dict[str, str]:
    found = device.chosen.components
    shares = {_HEADS.get(name, name): percent(found.share(name)) for name in _SHARES}
    return {"window": duration(found.window_ns), **shares}


def _waits(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield what the GPUs wait on, a line per class of culprit."""
    rows = waited_for(analysis)[:_WAITS_SHOWN]
    if not rows:
        return
    yield Text()
    yield Text.assemble(("GPU waits on", "bold"), ("  (share of the idle time)", "dim"))
    for row in rows:
        line = Text(f"{_INDENT}{row.words:<27}")
        line.append(f"{duration(analysis.mean_ns(row.idle_ns)):>9}{percent(row.share):>9}  ")
        gaps = several(row.gaps, "gap") if row.gaps else ""
        room = style.width - line.cell_len - len(gaps) - 2
        each = room // max(len(row.names), 1) - 2
        names = short_labels(row.names, each) if each > _LEAST_UNTIL else []
        yield line.append(", ".join(filter(None, (*names, gaps))), "dim")


def _jobs(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield the jobs that the files are of, where none of them is chosen."""
    for job in analysis.jobs if analysis.of_no_job else ():
        yield Text()
        yield Text(f"Job {job.number}  {job_files(job)} ({job_size(job)})", "bold")
        for line in wrapped(visible(job.verdict or ""), style.width - len(_INDENT)):
            yield Text(f"{_INDENT}{line}")


def _untimed(analysis: Analysis, style: Style) -> Iterator[Text]:
    """Yield what there is of a trace without a timeline."""
    if analysis.untimed is not None:
        found = analysis.untimed
        yield from counted_lines(analysis.measured, style.width)
        yield from untimed_lines(found, cut_to, style.drawn, screen=style.width)


def _gaps(analysis: Analysis, style: Style) -> Iterator[Text]:
    gaps = analysis.gaps(2)
    idle = analysis.components.share("idle")
    if not gaps or idle is None or idle < 0.02 or waited_for(analysis):
        return
    yield Text()
    yield Text("Longest gaps", "bold")
    known = {"where": analysis.steps.seen, "cause": not analysis.on_host}
    known["device"] = len(analysis.devices) > 1
    widths = {name: width for name, width in _GAP.items() if known[name]}
    widths = columns(widths, style.width - 13, ("device", "where"))
    texts = _gap_texts(gaps, style.width - 13 - sum(widths.values()))
    labels = [device.label for device in analysis.devices]
    devices = dict(zip(labels, cut_to(labels, _GAP["device"] - 1), strict=True))
    of_device = {device.device: devices[device.label] for device in analysis.devices}
    for gap, text in zip(gaps, texts, strict=True):
        row = Text(f"{_INDENT}{duration(gap.dur_ns):>9}  ")
        row.append(f"{gap_place(gap):<16}" if "where" in widths else "")
        row.append(f"{CAUSE_LABELS[gap.causes.largest]:<20} " if "cause" in widths else "")
        row.append(f"{of_device[gap.device]} " if "device" in widths else "", "dim")
        yield row.append(text, "dim")


def _gap_texts(gaps: Sequence[Gap], room: int) -> list[str]:
    """Return until what each gap lasted and what was waited for, as far as there is room."""
    waits = any(gap.waited_for for gap in gaps)
    room -= len("until ")
    width = (room - len(", waited for ")) // 2 if waits else room
    if width < _LEAST_UNTIL:
        return [""] * len(gaps)
    names = [gap.op or gap.before for gap in gaps]
    short = short_labels([*names, *(gap.waited_for for gap in gaps)], width)
    return [
        f"until {until}{f', waited for {waited}' if gap.waited_for else ''}"
        for gap, until, waited in zip(gaps, short, short[len(gaps) :], strict=False)
    ]


def _kernels(analysis: Analysis, style: Style) -> Iterator[Text]:
    rows = analysis.kernels.slice(0, _KERNELS_SHOWN).to_pylist()
    if not rows:
        return
    yield Text()
    yield Text(_title_of_kernels(analysis), "bold")
    widths = columns(_KERNEL, style.width - 5 - LEAST_NAME, ("count", "category"))
    width = min(_NAME_WIDTH, style.width - 5 - sum(widths.values()))
    for row, name in zip(rows, cut_to([row["name"] for row in rows], width), strict=True):
        line = Text(f"{_INDENT}{name}  ")
        line.append_text(style.drawn(look(row["top"])))
        line.append(f" {row['sub']:<15}" if "category" in widths else "")
        line.append(f"{duration(row['sum_ns']):>10}{percent(row['share']):>9}")
        yield line.append(f"{count(row['count']):>8} ×" if "count" in widths else "", "dim")  # noqa: RUF001
    launched = analysis.total.activities_per_launch
    if launched is not None and launched > 1.05:
        yield Text(f"{_INDENT}{ratio(launched)} GPU operations per launch call", "dim")


def _title_of_kernels(analysis: Analysis) -> str:
    number = analysis.kernels.num_rows
    if number == 1:
        return "The only operator" if analysis.on_host else "The only kernel or copy"
    return f"Top of {count(number)} {'operators' if analysis.on_host else 'kernels and copies'}"


def _notes(analysis: Analysis, style: Style) -> Iterator[Text]:
    notes = _unsaid(analysis)
    if notes:
        yield Text()
    for note in notes[:_NOTES_SHOWN]:
        yield from labelled("note", note.text, style)
    hidden = len(notes) - _NOTES_SHOWN
    if hidden > 0:
        yield Text(f"note {several(hidden, 'more note')} on the page and in --json", "dim")


def _unsaid(analysis: Analysis) -> list[Note]:
    """Return the notes but for the one that the line on the missing MFU already says."""
    said = any(lack.remedy == NEXT_TIME for lack in analysis.measured.lacks[:1])
    return [note for note in analysis.notes if not (said and note.code == "no-shapes")]


def labelled(label: str, text: str, style: Style) -> Iterator[Text]:
    """Yield a text after a bold label, its further lines indented as far."""
    indent = " " * (len(label) + 1)
    for place, line in enumerate(wrapped(visible(text), style.width - len(indent))):
        yield Text.assemble((indent, "") if place else (f"{label} ", "bold"), line)


def cut_to(names: Sequence[str], width: int) -> list[str]:
    """Return the names of a table in exactly `width` cells each; see `short_labels`."""
    room = width
    short = short_labels(names, room)
    while room > 1 and any(cell_len(label) > width for label in short):  # some signs are wide
        room -= 1
        short = short_labels(names, room)
    return [label + " " * (width - cell_len(label)) for label in short]
