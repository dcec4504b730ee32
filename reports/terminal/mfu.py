"""A utilisation in a terminal: the metric with its name, what is behind it, and its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from rich.text import Text

from traceflops.flops import (
    Candidate,
    DescribedWork,
    Entry,
    Explanation,
    Rate,
    RunShape,
    Utilisation,
    share,
)
from traceflops.reports.terminal.summary import NARROWEST, Style, fitted, labelled
from traceflops.reports.view import (
    UNKNOWN,
    cells,
    columns,
    count,
    flops,
    joined,
    ledger_table,
    remarked,
    shorten_middle,
    significant,
    visible,
    wrapped,
)
from traceflops.units import exact_percent, several

EXTRAS = {
    "recompute": "recomputed",
    "algorithmic": "recomputed (flash)",
    "overcompute": "padded or masked",
}
"""What is executed besides the model FLOPs, by the first word of its lines."""

CANDIDATES_SHOWN = 6
_LABEL, _VALUE = 20, 18
_NAME = 60
_SHORTEST = 12
_COLUMNS = {"convention": 17, "MFU": 8, "HFU": 8, "TFLOP/s": 9, "per token": 14}


def render_utilisation(found: Utilisation, style: Style) -> list[Text]:
    """Return the figure, what it is made of, and the ledger."""
    style = _wide_enough(style)
    parts = (
        *_head(found, style),
        Text(),
        *_facts(found, style.width),
        *_ledger(found, style.width),
        *_notes(found, style),
    )
    return [fitted(line, style) for line in parts]


def render_conventions(found: Utilisation, style: Style) -> list[Text]:
    """Return the figures of all conventions side by side, and why some have none."""
    style = _wide_enough(style)
    parts = (*_head(found, style), *conventions_table(found, style), *_notes(found, style))
    return [fitted(line, style) for line in parts]


def conventions_table(found: Utilisation, style: Style) -> Iterator[Text]:
    """Yield a row per convention, and why some have none."""
    widths = columns(_COLUMNS, style.width, ("TFLOP/s", "per token"))
    heads = {name: name for name in _COLUMNS}
    if found.card.is_convolutional:
        heads["per token"] = "sample"
    room = style.width - sum(widths.values()) - 2
    room = room if room >= _SHORTEST and len(widths) == len(_COLUMNS) else 0
    yield Text()
    yield Text(f"{_row(heads, widths)}{'  used by' if room else ''}", "bold")
    for one in found.entries:
        if one.work is not None:
            row = Text(_row(_entry(one, one.work), widths))
            yield row.append(f"  {_start(one.convention.used_by, room)}" if room else "", "dim")
    yield Text()
    yield from _not_computed(found.entries, style)


def render_explanation(found: Utilisation, explained: Explanation, style: Style) -> list[Text]:
    """Return the verdict on a reported figure and the best candidates for it."""
    style = _wide_enough(style)
    shown = explained.likely[:CANDIDATES_SHOWN]
    hidden = len(explained.candidates) - len(shown)
    parts = (
        *(Text(line, "bold") for line in wrapped(explained.sentence, style.width)),
        *run_lines(found, style),
        Text(),
        Text(f"{'gives':>9}{'off':>9}  way to count", "bold"),
        *_candidates(explained, shown, style),
        Text(f"{several(hidden, 'less likely way')} in --json", "dim"),
        *_notes(found, style),
    )
    return [fitted(line, style) for line in parts]


def _wide_enough(style: Style) -> Style:
    return replace(style, width=max(style.width, NARROWEST))


# The head: the figure by its full name, or why there is none; and what was run


def _head(found: Utilisation, style: Style) -> Iterator[Text]:
    for sentence in _sentences(found):
        for line in wrapped(visible(sentence), style.width):
            yield Text(line, "bold")
    yield from run_lines(found, style)


def _sentences(found: Utilisation) -> Iterator[str]:
    """Yield the figure, or why there is none."""
    rate = found.rate
    if rate is not None and found.is_possible:
        yield rate.sentence
    elif rate is not None:
        value = exact_percent(max(rate.mfu, rate.hfu))
        yield f"No MFU: {value} of peak is impossible ({rate.convention})."
    for lack in found.lacks:
        yield f"No MFU: {lack.problem}. To get one: {lack.remedy}."


def run_lines(found: Utilisation, style: Style) -> Iterator[Text]:
    """Yield what was run: model, devices, tokens, time and what of it is trained."""
    yield from (Text(line, "dim") for line in joined(_parts(found), style.width))


def _parts(found: Utilisation) -> Iterator[str]:
    run = found.run
    yield shorten_middle(found.card.name, _NAME)
    yield _devices(found)
    if found.work.tokens is not None:
        yield _sizes(found, run.shape(found.card))
    if found.unit == "step" and found.work.seconds is not None:
        yield f"step {significant(found.work.seconds)} s"
    if run.achieved is not None:
        basis = f" by {run.achieved_basis}" if run.achieved_basis else ""
        yield f"published {significant(run.achieved / 10**12)} TFLOP/s per device{basis}"
    yield from _manner(found)


def _devices(found: Utilisation) -> str:
    spec, number = found.choice.spec, found.run.devices
    if spec is not None:
        return f"{count(number)} × {spec.product}"  # noqa: RUF001
    return several(number, "device")


def _sizes(found: Utilisation, shape: RunShape) -> str:
    if found.card.is_convolutional:
        return several(shape.slot_tokens, "sample")
    if found.unit == "token":
        return "one token"
    if found.unit == "sequence" and shape.slots is not None:
        return f"sequences of {several(shape.slot_tokens, 'token')}{_real(shape)}"
    if shape.slots is None:
        return f"{several(shape.slot_tokens, 'token')} per step{_real(shape)}"
    if len(shape.slots) > 1:
        return f"{count(shape.sequences)} documents of {several(shape.tokens, 'token')}"
    ((length, number),) = shape.slots
    cached = f" after {count(found.run.cached)}" if found.run.cached else ""
    return f"{count(number)} × {several(length, 'token')}{cached}{_real(shape)}"  # noqa: RUF001


def _real(shape: RunShape) -> str:
    if shape.tokens == shape.slot_tokens:
        return ""
    return f", {exact_percent(Fraction(shape.tokens, shape.slot_tokens))} real"


def _manner(found: Utilisation) -> Iterator[str]:
    """Yield in which way it was trained, where that is not the usual one."""
    run = found.run
    if run.forward_only:
        yield "forward only"
    if run.lora is not None:
        yield f"LoRA with {count(run.lora.parameters(found.card))} weights"
    elif run.is_frozen:
        yield "base weights frozen"
    if run.frozen - {"all"}:
        yield f"frozen: {', '.join(sorted(run.frozen - {'all'}))}"
    if run.frozen_layers:
        yield f"first {run.frozen_layers} layers frozen"
    if run.checkpoint.name != "none":
        yield f"checkpointing {run.checkpoint.name}"


def _ledger(found: Utilisation, width: int) -> Iterator[Text]:
    if found.work.is_counted:
        yield Text()
        yield from ledger_table(found.work.ledger, _unit(found), width)


def _unit(found: Utilisation) -> str:
    """Return what the FLOPs are of: a convolutional net has samples, not sequences."""
    return "sample" if found.card.is_convolutional and found.unit != "step" else found.unit


# The facts: everything that the figure is made of


def _facts(found: Utilisation, width: int) -> Iterator[Text]:
    for label, value, remark in _lines(found):
        line = Text(f"{label:<{_LABEL}}{value:<{_VALUE - 1}} ")
        yield from remarked(line, visible(remark), width)


def _lines(found: Utilisation) -> Iterator[tuple[str, str, str]]:
    """Yield the facts as label, value and remark."""
    done, unit = found.work, _unit(found)
    each_one = "sample" if found.card.is_convolutional else "token"
    if found.rate is not None and not found.rate.is_hfu and done.is_counted:
        yield "HFU", exact_percent(found.rate.hfu), _hfu(found.rate)
    if done.tflops_per_device is not None:
        what = "executed" if done.ledger.executed_only else "model"
        yield f"{what} rate", f"{significant(done.tflops_per_device)} TFLOP/s", "per device"
    if done.tokens_per_s is not None:
        each = significant(done.tokens_per_s / done.devices)
        yield "throughput", f"{significant(done.tokens_per_s)} {each_one}s/s", f"{each} per device"
    per_token, basis = done.flops_per_token, f"by {done.ledger.convention}"
    if per_token is not None:
        if unit != each_one:
            yield f"FLOPs per {unit}", flops(done.ledger.figure), basis
        yield f"FLOPs per {each_one}", flops(per_token), basis
    yield from _peak(found)
    if done.tokens is not None:
        yield "parameters", count(found.card.total), _weights(found)


def _hfu(rate: Rate) -> str:
    """Return what HFU has besides MFU, as shares of the peak."""
    parts = [
        f"{exact_percent(share(extra, rate.seconds, rate.devices, rate.peak))} {words}"
        for first, words in EXTRAS.items()
        if (extra := rate.ledger.total(first))
    ]
    return " + ".join(("MFU", *parts)) if parts else "no other executed FLOPs in the description"


def _peak(found: Utilisation) -> Iterator[tuple[str, str, str]]:
    peak, spec = found.choice.peak, found.choice.spec
    if peak is None:
        return
    remark = f"{peak.label}, per {spec.one_device_is if spec is not None else 'device'}"
    if spec is not None and not peak.label.endswith("given"):
        remark += f"; source {spec.confidence}: {spec.source}"
    yield "peak", f"{significant(peak.flops_per_ns / 1000, 5)} TFLOP/s", remark


def _weights(found: Utilisation) -> str:
    card = found.card
    if not card.complete or card.is_convolutional:
        return ""
    who = "each token uses" if card.encoder is None else "encoder and decoder tokens use"
    used = f"{who} {count(card.weights())} weights"
    return f"{count(card.active)} active; {used}" if card.active < card.total else used


def _notes(found: Utilisation, style: Style) -> Iterator[Text]:
    if found.notes:
        yield Text()
    for note in found.notes:
        yield from labelled("note", note, style)


# All conventions


def _entry(one: Entry, work: DescribedWork) -> dict[str, str]:
    rate, per_token = one.rate, work.flops_per_token
    speed = work.tflops_per_device
    texts = (
        one.convention.id,
        _share(rate.mfu) if rate is not None and not rate.is_hfu else UNKNOWN,
        _share(rate.hfu) if rate is not None and work.is_counted else UNKNOWN,
        significant(speed, zeros=True) if speed is not None else UNKNOWN,
        flops(per_token) if per_token is not None else UNKNOWN,
    )
    return dict(zip(_COLUMNS, texts, strict=True))


def _share(value: Fraction) -> str:
    return exact_percent(value) if value <= 1 else "> 100 %"


def _start(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip(' ,;')}…"


def _row(texts: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return a row of the table: the first column to the left, numbers to the right."""
    first, *_ = widths
    return f"{texts[first]:<{widths[first]}}{cells(texts, dict(list(widths.items())[1:]))}"


def _not_computed(entries: Iterable[Entry], style: Style) -> Iterator[Text]:
    """Yield the conventions without a figure, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for one in entries:
        if one.work is None:
            reasons.setdefault(one.problem, []).append(one.convention.id)
    for problem, names in reasons.items():
        for line in wrapped(f"not computed: {', '.join(names)} ({problem})", style.width):
            yield Text(visible(line), "dim")


# A reported figure


def _candidates(explained: Explanation, shown: Iterable[Candidate], style: Style) -> Iterator[Text]:
    for one in shown:
        off = "fits" if one.reproduces else exact_percent(one.error)
        first, *more = wrapped(one.text, style.width - 20)
        gives = explained.shown(one.value)
        yield Text(f"{gives:>9}{off:>9}  {first}", "" if one.reproduces else "dim")
        for line in more:
            yield Text(f"{'':20}{line}", "" if one.reproduces else "dim")
