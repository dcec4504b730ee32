"""`traceflops mfu`: how much of the machine a run uses, traced or described."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.cli.common import print_lines, say, say_object, terminal_style
from traceflops.cli.mfu_options import Description
from traceflops.cli.options import Json, Pair, TraceOptions, argument, changed, typed
from traceflops.cli.usage import FROM_FILE
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from traceflops.flops.analytic.run import Run
    from traceflops.flops.model.card import ModelCard
    from traceflops.privacy.placeholders import Placeholders
    from traceflops.table.trace import Note, Trace
    from traceflops.windows.prepared import Prepared

    CardAndRun = tuple[ModelCard, Run] | None

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


def mfu(
    traces: list[str] | None = argument(
        "[TRACE...]",
        "Trace files or a folder. Times and devices come from the trace; so do FLOPs, "
        "unless a model is given.",
        default=None,
    ),
    *,
    described: Description,
    pair: Pair = None,
    json: Json = False,
    asked: TraceOptions,
) -> None:
    """Compute MFU, HFU and FLOPs of a trace or a described run."""
    if described.model.list_models:
        from traceflops.flops.model.models import listed_models
        from traceflops.reports.json.mfu import models_object

        models = listed_models()
        width = max(len(name) for name, _ in models)
        if json:
            say_object(models_object(models))
        else:
            say("\n".join(f"{name:<{width}}  {card.name}" for name, card in models))
    elif traces:
        for option, value in typed(described.time).items():
            if value is not None:
                problem = f"{option} and a trace are mutually exclusive"
                raise UsageError(problem, "the trace provides the time")
        described = described.beside_trace(FROM_FILE.get())
        _answer_traced(traces, asked, described, pair, json)
    else:
        # Options for traces are refused, but defaults from a file are ignored.
        if pair:
            raise UsageError("--pair needs a trace", "traceflops mfu TRACE --pair FILE")
        if not changed(asked.question) <= FROM_FILE.get():
            raise UsageError("no trace to select from", "name one: traceflops mfu TRACE")
        for name in sorted(changed(asked.privacy) - FROM_FILE.get()):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} needs a trace", "name one: traceflops mfu TRACE")
        _answer_described(described, json)


def _answer_described(described: Description, json: bool) -> None:
    """Print the answer for a described run; raises InputError if the run is impossible."""
    from traceflops.flops.analytic.run_utilisation import choose_peak, utilisation
    from traceflops.reports.json.mfu import mfu_object
    from traceflops.reports.terminal.mfu import (
        render_conventions,
        render_explanation,
        render_utilisation,
    )

    answer, devices = described.answer, described.devices
    answer.check()
    card, run = described.card_and_run()
    choice = choose_peak(devices.device, devices.tflops, devices.dtype)
    figures = utilisation(card, run, choice, answer.convention)
    # An explanation says why a figure is impossible: then it is no error. A list of all conventions
    # shows which of them are possible, so the error comes after it.
    problem = None
    if not answer.explains:
        try:
            figures.check()
        except InputError as error:
            problem = error
            if not answer.all_conventions:
                raise
    explained = answer.explanation(figures, figures.lacks) if answer.explains else None

    if json:
        say_object(mfu_object(figures, explained))
    elif explained is not None:
        print_lines(render_explanation(figures, explained, terminal_style()))
    else:
        render = render_conventions if answer.all_conventions else render_utilisation
        print_lines(render(figures, terminal_style()))
    if problem is not None:
        raise problem


def _answer_traced(
    traces: list[str], asked: TraceOptions, described: Description, pair: Pair, json: bool
) -> None:
    """Print the utilisation of traces, with the peaks and the description that the options give."""
    from msgspec.structs import replace

    from traceflops.analysis.preparation import prepare_pair, with_replays
    from traceflops.analysis.recipe import analysis_of, with_removed
    from traceflops.devices.jobs import check_decided
    from traceflops.front.files import check_pair, read_pair
    from traceflops.mfu.budget import PeakOptions
    from traceflops.mfu.checked.reconciliation import reconcile
    from traceflops.mfu.checked.trace_description import without_description
    from traceflops.mfu.measurement import measure
    from traceflops.reports.json.mfu import utilisation_object
    from traceflops.reports.terminal.measured import render_measured, render_measured_conventions
    from traceflops.reports.terminal.mfu import render_explanation
    from traceflops.reports.view.figures import as_float

    # Options are checked before the trace is read, which may take long.
    answer, devices = described.answer, described.devices
    answer.check()
    check_pair(pair, traces)
    has_model = described.model.model is not None or described.model.params is not None
    given = described.card_and_run() if has_model else None
    peaks = PeakOptions(devices.device, as_float(devices.tflops))
    selection = asked.selection()

    trace = asked.reading.read_job(traces, selection.job)
    check_decided(trace, "MFU")
    if answer.ignore_description:
        trace = without_description(trace)
    names, kept = asked.privacy.placeholders(), asked.privacy.include_environment
    prepared, card_and_run, notes = _prepared(trace, asked, described, given, names)
    paired = None
    if (other := read_pair(pair, traces, trace, asked.reading.read)) is not None:
        paired = prepare_pair(other, include_environment=kept, placeholders=names)
    prepared = with_replays(prepared, paired)
    measured = measure(prepared, peaks, paired)
    checked = explained = None
    if card_and_run is not None:
        card, run = card_and_run
        # Without the option, the trace's own description may say how many devices there are.
        count = run.devices if devices.gpus is not None or run.devices > 1 else None
        checked = reconcile(measured, prepared, card, run, answer.convention, count)
        if answer.explains:
            explained = answer.explanation(checked.described, checked.lacks)
    analysis = analysis_of(prepared, peaks, measured)
    analysis = replace(analysis, notes=(*notes, *analysis.notes))
    analysis = with_removed(analysis, names) if names is not None else analysis
    if json:
        say_object(utilisation_object(analysis, checked, explained))
    elif checked is not None and explained is not None:
        # As described, with the note that the trace disagrees, if it does.
        print_lines(render_explanation(checked.in_doubt, explained, terminal_style()))
    elif checked is not None and answer.all_conventions:
        print_lines(render_measured_conventions(analysis, terminal_style(), checked))
    else:
        print_lines(render_measured(analysis, terminal_style(), checked))


def _prepared(
    trace: Trace,
    asked: TraceOptions,
    described: Description,
    given: CardAndRun,
    names: Placeholders | None,
) -> tuple[Prepared, CardAndRun, tuple[Note, ...]]:
    """Return a prepared trace, the model and run, and the notes on the trace's own description.

    The trace's own description names the model and run unless options did (`given`). It is read
    before `names` replace names; then its notes become those of the trace, and none are returned.
    """
    from msgspec.structs import replace

    from traceflops.analysis.preparation import prepare
    from traceflops.flops.model.models import is_public
    from traceflops.mfu.checked.trace_description import SelfDescribed, self_described

    selection, kept = asked.selection(), asked.privacy.include_environment
    prepared = prepare(trace, selection, include_environment=kept)
    card = given[0] if given is not None else None
    own = self_described(prepared, card, described.words(), described.answer.convention)
    if isinstance(own, SelfDescribed):
        card_and_run: CardAndRun = (own.card, own.run)
    else:
        card_and_run = given
        if given is None:
            described.refuse_without_run(own.problem)
    if names is None:
        return prepared, card_and_run, own.notes
    if card_and_run is not None:
        card, run = card_and_run
        if given is None:
            card = replace(card, name="the model of the trace's description")
        elif not is_public(card):  # models that everybody knows keep their names
            card = replace(card, name=names.whole("model", card.name))
        card_and_run = card, run
    trace = replace(trace, notes=(*own.notes, *trace.notes))
    shown = prepare(trace, selection, include_environment=kept, placeholders=names)
    return shown, card_and_run, ()
