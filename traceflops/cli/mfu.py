"""`traceflops mfu`: how much of the machine a run uses, traced or described."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import failures, terminal_style
from traceflops.cli.mfu_answer import AnswerOptions
from traceflops.cli.mfu_options import (
    DeviceOptions,
    ModelOptions,
    TimeOptions,
    TokenOptions,
    TrainingOptions,
    run_of,
)
from traceflops.cli.mfu_trace import Description, mfu_of_traces, refuse_time
from traceflops.cli.options import Json, Pair, Privacy, Question, ReadingOptions, grouped
from traceflops.cli.printing import print_lines, say, say_object
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.flops import Utilisation

EXAMPLES = (
    "traceflops mfu trace.json.gz",
    "traceflops mfu ranks/ --peak 989.4",
    "traceflops mfu ranks/ --model llama-3-8b --batch 128 --seq 8192",
    "traceflops mfu results.db --pair trace.json.gz",
    "traceflops mfu --model llama-3-8b --batch 128 --seq 8192 --step-time 9.31 --gpus 8 "
    "--device h100-sxm --dtype bf16",
    "traceflops mfu --params 405e9 --tokens 1024 --step-time 30 --gpus 8 --peak 1300 --lora",
    "traceflops mfu --model palm-540b --seq 2048 --tokens-per-s 238300 --gpus 6144 "
    "--device tpu-v4 --dtype bf16 --reported 46.2%",
    "traceflops mfu --model config.json --batch 1 --seq 4096",
)


@grouped
def mfu(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACE...]",
            help=(
                "Trace files or a folder. Times and devices come from the trace; so do FLOPs, "
                "unless a model is given."
            ),
            show_default=False,
        ),
    ] = None,
    *,
    model: ModelOptions,
    tokens: TokenOptions,
    time: TimeOptions,
    devices: DeviceOptions,
    training: TrainingOptions,
    answer: AnswerOptions,
    pair: Pair = None,
    json: Json = False,
    question: Question,
    privacy: Privacy,
    reading: ReadingOptions,
) -> None:
    """Compute MFU, HFU and FLOPs from a trace, or from a description of a run."""
    with failures(reading, privacy):
        if model.list_models:
            _print_models(json)
            return
        if traces:
            refuse_time(time)
            described = Description(model, tokens, devices, training, answer)
            mfu_of_traces(traces, question, reading, described, pair, privacy=privacy, json=json)
            return
        if pair is not None:
            raise UsageError("--pair needs a trace", "traceflops mfu TRACE --pair FILE")
        if question != Question():
            raise UsageError("no trace to select from", "name one: traceflops mfu TRACE")
        if privacy != Privacy():
            option = privacy.words()[0]
            raise UsageError(f"{option} needs a trace", "name one: traceflops mfu TRACE")
        answer.check()
        figures = _utilisation(model, tokens, time, devices, training, answer.convention)
        _answer(figures, answer, json=json)


def _answer(figures: Utilisation, answer: AnswerOptions, *, json: bool) -> None:
    """Print what is asked; a figure that cannot be is refused, beside all conventions if asked."""
    problem = _impossible(figures) if not answer.explains else None
    if problem is None or answer.all_conventions:
        _print(figures, answer, json=json)
    if problem is not None:
        raise problem


def _impossible(figures: Utilisation) -> InputError | None:
    """Return why a figure cannot be, None where it can."""
    try:
        figures.check()
    except InputError as error:
        return error
    return None


def _utilisation(
    model: ModelOptions,
    tokens: TokenOptions,
    time: TimeOptions,
    devices: DeviceOptions,
    training: TrainingOptions,
    name: str | None,
) -> Utilisation:
    from traceflops.flops import choose_peak, utilisation

    card = model.card()
    run = run_of(card, tokens, time, devices, training)
    choice = choose_peak(devices.device, devices.tflops, devices.dtype)
    return utilisation(card, run, choice, name)


def _print(figures: Utilisation, answer: AnswerOptions, *, json: bool) -> None:
    explanation = answer.explanation(figures, figures.lacks) if answer.explains else None
    if json:
        from traceflops.reports.json import mfu_object

        say_object(mfu_object(figures, explanation))
        return
    from traceflops.reports.terminal import (
        render_conventions,
        render_explanation,
        render_utilisation,
    )

    style = terminal_style()
    if explanation is not None:
        lines = render_explanation(figures, explanation, style)
    elif answer.all_conventions:
        lines = render_conventions(figures, style)
    else:
        lines = render_utilisation(figures, style)
    print_lines(lines)


def _print_models(json: bool) -> None:
    from traceflops.flops import listed_models
    from traceflops.reports.json import models_object

    models = listed_models()
    if json:
        say_object(models_object(models))
        return
    width = max(len(name) for name, _ in models)
    rows: Iterable[str] = (f"{name:<{width}}  {card.name}" for name, card in models)
    say("\n".join(rows))
