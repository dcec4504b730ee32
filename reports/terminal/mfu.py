"""The utilisation of a described run in a terminal: the metric, its figures, and its ledger.

A ledger lists the FLOPs of a model line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from rich.text import Text

from traceflops.facts import fact
from traceflops.flops.analytic.explain_reported import Explanation
from traceflops.flops.analytic.rates import share
from traceflops.flops.analytic.run import RunShape
from traceflops.flops.analytic.run_utilisation import Utilisation
from traceflops.reports.terminal.lines import (
    Style,
    cells,
    columns,
    fact_lines,
    fitted,
    hanging,
    joined,
    ledger_table,
    note_lines,
    paragraph,
)
from traceflops.reports.view.figures import UNKNOWN, count, flops, shorten_middle, significant
from traceflops.reports.view.texts import words
from traceflops.reports.view.utilisation import Fact
from traceflops.units import exact_percent, several

_EXTRAS: Final = {
    "recompute": "recomputed",
    "algorithmic": "recomputed (flash)",
    "overcompute": "padded or masked",
}
"""FLOPs executed besides those of the model, by the first word of their lines in the ledger."""

_CANDIDATES_SHOWN: Final = 6
_LABEL: Final = 20
_NAME: Final = 60
_SHORTEST: Final = 12
_COLUMNS: Final = {"convention": 17, "MFU": 8, "HFU": 8, "TFLOP/s": 9, "per token": 14}


def render_utilisation(figures: Utilisation, style: Style) -> list[Text]:
    """Return the lines of a described run: the figure, what it is made of, and the ledger."""
    style = style.wide_enough()
    lines = [*_head(figures, style.width), Text()]
    lines += fact_lines(_facts(figures), style.width, _LABEL)
    if figures.work.is_counted:
        lines += [Text(), *ledger_table(figures.work.ledger, _unit(figures), style.width)]
    return fitted([*lines, *_notes(figures, style.width)], style)


def render_conventions(figures: Utilisation, style: Style) -> list[Text]:
    """Return the figures by all conventions, and why some have none."""
    style = style.wide_enough()
    width = style.width
    lines = (*_head(figures, width), *conventions_table(figures, width), *_notes(figures, width))
    return fitted(lines, style)


def conventions_table(figures: Utilisation, width: int) -> Iterator[Text]:
    """Yield a row per convention, and why some have none."""
    widths = columns(_COLUMNS, width, ("TFLOP/s", "per token"))
    heads = {name: name for name in _COLUMNS}
    if figures.card.is_convolutional:
        heads["per token"] = "sample"
    # The last column, users of the convention, is only shown if all columns have room.
    left = width - sum(widths.values()) - 2
    room = left if left >= _SHORTEST and len(widths) == len(_COLUMNS) else 0
    yield Text()
    yield Text(f"{_row(heads, widths)}{'  used by' if room else ''}", "bold")
    without: dict[str, list[str]] = {}  # conventions without a figure, by the reason
    for entry in figures.entries:
        if entry.work is None:
            without.setdefault(entry.problem, []).append(entry.convention.id)
        else:
            rate, per_token = entry.rate, entry.work.flops_per_token
            speed = entry.work.tflops_per_device
            texts = (
                entry.convention.id,
                _share(rate.mfu) if rate is not None and not rate.is_hfu else UNKNOWN,
                _share(rate.hfu) if rate is not None and entry.work.is_counted else UNKNOWN,
                significant(speed, zeros=True) if speed is not None else UNKNOWN,
                flops(per_token) if per_token is not None else UNKNOWN,
            )
            row = Text(_row(dict(zip(_COLUMNS, texts, strict=True)), widths))
            users = words(fact(f"convention.{entry.convention.id}.used-by"))
            short = users if len(users) <= room else f"{users[: room - 1].rstrip(' ,;')}…"
            yield row.append(f"  {short}" if room else "", "dim")
    yield Text()
    for problem, names in without.items():
        yield from paragraph(f"not computed: {', '.join(names)} ({problem})", width)


def render_explanation(figures: Utilisation, explained: Explanation, style: Style) -> list[Text]:
    """Return the verdict on a reported figure and the best candidates for it."""
    style = style.wide_enough()
    shown = explained.likely[:_CANDIDATES_SHOWN]
    hidden = len(explained.candidates) - len(shown)
    candidates: list[Text] = []
    for candidate in shown:
        error = "fits" if candidate.reproduces else exact_percent(candidate.error)
        head = f"{explained.shown(candidate.value):>9}{error:>9}  "
        text_style = "" if candidate.reproduces else "dim"
        candidates += hanging(head, candidate.text, style.width, text_style)
    lines = (
        *paragraph(explained.sentence, style.width, "bold"),
        *run_lines(figures, style.width),
        Text(),
        Text(f"{'gives':>9}{'off':>9}  way to count", "bold"),
        *candidates,
        *([Text(f"{several(hidden, 'less likely way')} in --json", "dim")] if hidden else []),
        *_notes(figures, style.width),
    )
    return fitted(lines, style)


def _notes(figures: Utilisation, width: int) -> Iterator[Text]:
    notes = [*map(words, figures.notes)]
    return note_lines(notes, len(notes), "", width)


def _head(figures: Utilisation, width: int) -> Iterator[Text]:
    """Yield the metric, or why there is none, and what was run."""
    rate, sentences = figures.rate, []
    if rate is not None and figures.is_possible:
        sentences = [rate.sentence]
    elif rate is not None:
        value = exact_percent(max(rate.mfu, rate.hfu))
        sentences = [f"No MFU: {value} of peak is impossible ({rate.ledger.convention})."]
    for lack in figures.lacks:
        sentences.append(words(fact("missing.line-with-remedy", what=lack.what, how=lack.how)))
    for sentence in sentences:
        yield from paragraph(sentence, width, "bold")
    yield from run_lines(figures, width)


def run_lines(figures: Utilisation, width: int) -> Iterator[Text]:
    """Yield what was run: model, devices, tokens, time, and what differs from usual training."""
    run, spec, work = figures.run, figures.choice.spec, figures.work
    devices = several(run.devices, "device")
    if spec is not None:
        devices = f"{count(run.devices)} × {spec.product}"
    parts = [shorten_middle(figures.card.name, _NAME), devices]
    if work.tokens is not None:
        parts.append(_sizes(figures, run.shape(figures.card)))
    if figures.unit == "step" and work.seconds is not None:
        parts.append(f"step {significant(work.seconds)} s")
    if run.achieved is not None:
        basis = f" by {run.achieved_basis}" if run.achieved_basis else ""
        rate = significant(run.achieved / 10**12)
        parts.append(f"published {rate} TFLOP/s per device{basis}")
    if run.forward_only:
        parts.append("forward only")
    if run.lora is not None:
        parts.append(f"LoRA with {count(run.lora.parameters(figures.card))} weights")
    elif run.is_frozen:
        parts.append("base weights frozen")
    if run.frozen - {"all"}:  # "all" are the base weights
        parts.append(f"frozen: {', '.join(sorted(run.frozen - {'all'}))}")
    if run.frozen_layers:
        parts.append(f"first {run.frozen_layers} layers frozen")
    if run.checkpoint.name != "none":
        parts.append(f"checkpointing {run.checkpoint.name}")
    return joined(parts, width)


def _sizes(figures: Utilisation, shape: RunShape) -> str:
    """Return the size of a step in words: samples, sequences, documents or tokens."""
    real = ""  # the share of tokens that are no padding
    if shape.tokens != shape.slot_tokens:
        real = f", {exact_percent(Fraction(shape.tokens, shape.slot_tokens))} real"
    if figures.card.is_convolutional:
        return several(shape.slot_tokens, "sample")
    if figures.unit == "token":
        return "one token"
    if figures.unit == "sequence" and shape.slots is not None:
        return f"sequences of {several(shape.slot_tokens, 'token')}{real}"
    if shape.slots is None:
        return f"{several(shape.slot_tokens, 'token')} per step{real}"
    if len(shape.slots) > 1:
        return f"{count(shape.sequences)} documents of {several(shape.tokens, 'token')}"
    ((length, number),) = shape.slots
    cached = f" after {count(figures.run.cached)}" if figures.run.cached else ""
    return f"{count(number)} × {several(length, 'token')}{cached}{real}"


def _unit(figures: Utilisation) -> str:
    """Return the unit to which FLOPs refer; a convolutional net has samples, not sequences."""
    return "sample" if figures.card.is_convolutional and figures.unit != "step" else figures.unit


def what_counts(figures: Utilisation) -> str:
    """Return the unit of throughput: samples of a convolutional net, else tokens."""
    return "sample" if figures.card.is_convolutional else "token"


def _facts(figures: Utilisation) -> Iterator[Fact]:
    """Yield the figures from which the metric is computed."""
    work, unit = figures.work, _unit(figures)
    item, rate = what_counts(figures), figures.rate
    # A metric that is HFU was already printed; a published rate does not tell executed FLOPs.
    if rate is not None and not rate.is_hfu and work.is_counted:
        # HFU is MFU and these shares of the peak.
        extras = {label: rate.ledger.total(first_word) for first_word, label in _EXTRAS.items()}
        parts = [
            f"{exact_percent(share(extra, rate.seconds, rate.devices, rate.peak))} {label}"
            for label, extra in extras.items()
            if extra
        ]
        none = "no other executed FLOPs in the description"
        yield Fact("HFU", exact_percent(rate.hfu), " + ".join(("MFU", *parts)) if parts else none)
    if work.tflops_per_device is not None:
        which = "executed" if work.ledger.executed_only else "model"
        yield Fact(f"{which} rate", f"{significant(work.tflops_per_device)} TFLOP/s", "per device")
    if work.tokens_per_s is not None:
        remark = f"{significant(work.tokens_per_s / work.devices)} per device"
        yield Fact("throughput", f"{significant(work.tokens_per_s)} {item}s/s", remark)
    per_token, basis = work.flops_per_token, f"by {work.ledger.convention}"
    if per_token is not None:
        if unit != item:
            yield Fact(f"FLOPs per {unit}", flops(work.ledger.figure), basis)
        yield Fact(f"FLOPs per {item}", flops(per_token), basis)
    peak, spec, card = figures.choice.peak, figures.choice.spec, figures.card
    if peak is not None:
        remark = f"{peak.label}, per {spec.one_device_is if spec is not None else 'device'}"
        if spec is not None and not peak.label.endswith("given"):  # by the user: without a source
            remark += f"; source {spec.confidence}: {spec.source}"
        yield Fact("peak", f"{significant(peak.flops_per_ns / 1000, 5)} TFLOP/s", remark)
    if work.tokens is not None:
        remark = ""
        if card.complete and not card.is_convolutional:
            who = "each token uses" if card.encoder is None else "encoder and decoder tokens use"
            active = f"{count(card.active)} active; " if card.active < card.total else ""
            remark = f"{active}{who} {count(card.weights())} weights"
        yield Fact("parameters", count(card.total), remark)


def _share(value: Fraction) -> str:
    return exact_percent(value) if value <= 1 else "> 100 %"


def _row(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return a row of the table: the first column is aligned left, numbers are aligned right."""
    (first, first_width), *others = widths.items()
    return f"{texts[first]:<{first_width}}{cells(texts, dict(others))}"
