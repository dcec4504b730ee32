"""`traceflops mfu`: how much of the machine a run uses, traced or described."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.cli.common import failures, print_lines, terminal_style
from traceflops.cli.mfuoptions import (
    DeviceOptions,
    ModelOptions,
    TimeOptions,
    TokenOptions,
    TrainingOptions,
    one_of,
    run_of,
)
from traceflops.cli.mfutrace import Description, mfu_of_traces, refuse_time
from traceflops.cli.options import AS_USUAL, EVERYTHING, Json, Question, Reading, grouped
from traceflops.errors import UsageError

if TYPE_CHECKING:
    from traceflops.mfu.explaining import Explanation
    from traceflops.mfu.utilisation import Utilisation

EXAMPLES = (
    "Examples: traceflops mfu trace.json.gz | traceflops mfu ranks/ --peak 989.4 | "
    "traceflops mfu ranks/ --model llama-3-8b --batch 128 --seq 8192 | "
    "traceflops mfu --model llama-3-8b --batch 128 --seq 8192 --step-time 9.31 --gpus 8 "
    "--device h100-sxm --dtype bf16 | traceflops mfu --params 405e9 --tokens 1024 --step-time 30 "
    "--gpus 8 --peak 1300 --lora | traceflops mfu --model palm-540b --seq 2048 --tokens-per-s "
    "238300 --gpus 6144 --device tpu-v4 --dtype bf16 --reported 46.2% | traceflops mfu --model "
    "config.json --batch 1 --seq 4096"
)
_QUESTION = "What to answer"

MODEL, TOKENS, TIME = ModelOptions(), TokenOptions(), TimeOptions()
DEVICES, TRAINING = DeviceOptions(), TrainingOptions()


@grouped
def mfu(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACE...]",
            help="Trace files or a folder of them: then times and devices are the trace's, and the "
            "FLOPs, too, unless a model says what they should be.",
            show_default=False,
        ),
    ] = None,
    model: ModelOptions = MODEL,
    tokens: TokenOptions = TOKENS,
    time: TimeOptions = TIME,
    devices: DeviceOptions = DEVICES,
    training: TrainingOptions = TRAINING,
    convention: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Rule for counting. Default: exact-causal; with --params 6N, frozen 4N.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    all_conventions: Annotated[
        bool,
        typer.Option(
            "--all-conventions",
            help="Print the figures of all conventions side by side.",
            rich_help_panel=_QUESTION,
        ),
    ] = False,
    reported: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Say how a published or logged MFU came about: 46.2%.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    reported_hfu: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="The same for an HFU.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    json: Json = False,
    question: Question = EVERYTHING,
    reading: Reading = AS_USUAL,
) -> None:
    """Compute MFU, HFU and FLOPs of a trace, or of a run from its description."""
    with failures(reading):
        if model.list_models:
            _print_models(json)
            return
        if traces:
            refuse_time(time)
            described = Description(
                model,
                tokens,
                devices,
                training,
                convention,
                all_conventions,
                reported,
                reported_hfu,
            )
            mfu_of_traces(traces, question, reading, described, json=json)
            return
        if question != EVERYTHING:
            raise UsageError("no trace is given to choose from", "name one: traceflops mfu TRACE")
        one_of({"--reported": reported, "--reported-hfu": reported_hfu})
        found = _utilisation(model, tokens, time, devices, training, convention)
        explanation = None
        if reported is not None or reported_hfu is not None:
            explanation = _explanation(found, reported, reported_hfu)
        else:
            found.check()
        _print(found, explanation, all_conventions=all_conventions, json=json)


def _utilisation(
    model: ModelOptions,
    tokens: TokenOptions,
    time: TimeOptions,
    devices: DeviceOptions,
    training: TrainingOptions,
    name: str | None,
) -> Utilisation:
    from traceflops.mfu.peakchoice import choose_peak
    from traceflops.mfu.utilisation import utilisation

    card = model.card()
    run = run_of(card, tokens, time, devices, training)
    choice = choose_peak(devices.device, devices.tflops, devices.dtype)
    return utilisation(card, run, choice, name)


def _explanation(found: Utilisation, mfu: str | None, hfu: str | None) -> Explanation:
    from traceflops.mfu.explaining import explain
    from traceflops.mfu.peakchoice import other_peaks
    from traceflops.mfu.quantities import parse_reported

    reported = (
        parse_reported("--reported", mfu)
        if mfu is not None
        else parse_reported("--reported-hfu", hfu or "")
    )
    if found.lacks:
        lack = found.lacks[0]
        raise UsageError(f"a reported figure needs more to explain: {lack.problem}", lack.remedy)
    choice = found.choice
    assert choice.peak is not None, "a peak that is not there is lacking"
    others = other_peaks(choice)
    metric = "mfu" if mfu is not None else "hfu"
    return explain(found.card, found.run, reported, choice.peak, others, metric)  # type: ignore[arg-type]


def _print(
    found: Utilisation, explanation: Explanation | None, *, all_conventions: bool, json: bool
) -> None:
    if json:
        from traceflops.reports.json import encode
        from traceflops.reports.mfujson import mfu_object

        typer.echo(encode(mfu_object(found, explanation)))
        return
    from traceflops.reports.mfuterminal import (
        render_conventions,
        render_explanation,
        render_utilisation,
    )

    style = terminal_style()
    if explanation is not None:
        lines = render_explanation(found, explanation, style)
    elif all_conventions:
        lines = render_conventions(found, style)
    else:
        lines = render_utilisation(found, style)
    print_lines(lines)


def _print_models(json: bool) -> None:
    from traceflops.mfu.models import listed_models
    from traceflops.reports.json import encode
    from traceflops.reports.mfujson import models_object

    models = listed_models()
    if json:
        typer.echo(encode(models_object(models)))
        return
    width = max(len(name) for name, _ in models)
    rows: Iterable[str] = (f"{name:<{width}}  {card.name}" for name, card in models)
    typer.echo("\n".join(rows))
