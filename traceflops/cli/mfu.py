"""`traceflops mfu`: how much of the machine a run uses, traced or described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traceflops.cli.common import failures, terminal_style
from traceflops.cli.defaults import from_file
from traceflops.cli.mfu_options import Description, TimeOptions
from traceflops.cli.options import (
    Json,
    Pair,
    Privacy,
    Question,
    ReadingOptions,
    changed,
    grouped,
    typed,
)
from traceflops.cli.printing import print_lines, say, say_object
from traceflops.cli.reading import check_pair, read_job, read_pair
from traceflops.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from traceflops.analysis import Analysis
    from traceflops.flops import Explanation, ModelCard, Run, Utilisation
    from traceflops.mfu import Measurement, PeakOptions, Reconciliation
    from traceflops.privacy import Placeholders
    from traceflops.reports.terminal import Style
    from traceflops.table import Note, Trace
    from traceflops.windows import Prepared, Selection

    Wanted = tuple[ModelCard, Run] | None

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
    described: Description,
    pair: Pair = None,
    json: Json = False,
    question: Question,
    privacy: Privacy,
    reading: ReadingOptions,
) -> None:
    """Compute MFU, HFU and FLOPs of a trace or a described run."""
    with failures(reading, privacy):
        if described.model.list_models:
            _print_models(json)
        elif traces:
            _refuse_time(described.time)
            described = described.beside_trace(from_file())
            _answer_traced(traces, question, reading, described, pair, privacy, json)
        else:
            _refuse_without_trace(pair, question, privacy)
            _answer_described(described, json)


def _print_models(json: bool) -> None:
    from traceflops.flops import listed_models
    from traceflops.reports.json import models_object

    models = listed_models()
    if json:
        say_object(models_object(models))
        return
    width = max(len(name) for name, _ in models)
    say("\n".join(f"{name:<{width}}  {card.name}" for name, card in models))


def _print(
    json: bool, as_object: Callable[[], dict[str, Any]], as_lines: Callable[[Style], list[Text]]
) -> None:
    if json:
        say_object(as_object())
    else:
        print_lines(as_lines(terminal_style()))


# A run that is described


def _refuse_without_trace(pair: list[str] | None, question: Question, privacy: Privacy) -> None:
    """Refuse options that say what to take of a trace; defaults of a file do not apply."""
    if pair:
        raise UsageError("--pair needs a trace", "traceflops mfu TRACE --pair FILE")
    if not changed(question) <= from_file():
        raise UsageError("no trace to select from", "name one: traceflops mfu TRACE")
    for name in sorted(changed(privacy) - from_file()):
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} needs a trace", "name one: traceflops mfu TRACE")


def _answer_described(described: Description, json: bool) -> None:
    """Print what is asked; a figure that cannot be is refused, beside all conventions if asked."""
    from traceflops.flops import choose_peak, utilisation

    answer, devices = described.answer, described.devices
    answer.check()
    card, run = described.card_and_run()
    choice = choose_peak(devices.device, devices.tflops, devices.dtype)
    figures = utilisation(card, run, choice, answer.convention)
    problem = _impossible(figures) if not answer.explains else None
    if problem is None or answer.all_conventions:
        explained = answer.explanation(figures, figures.lacks) if answer.explains else None
        _print_figures(figures, explained, answer.all_conventions, json)
    if problem is not None:
        raise problem


def _impossible(figures: Utilisation) -> InputError | None:
    """Return why a figure cannot be, None where it can."""
    try:
        figures.check()
    except InputError as error:
        return error
    return None


def _print_figures(
    figures: Utilisation, explained: Explanation | None, all_conventions: bool, json: bool
) -> None:
    from traceflops.reports.json import mfu_object
    from traceflops.reports.terminal import (
        render_conventions,
        render_explanation,
        render_utilisation,
    )

    def lines(style: Style) -> list[Text]:
        if explained is not None:
            return render_explanation(figures, explained, style)
        return (render_conventions if all_conventions else render_utilisation)(figures, style)

    _print(json, lambda: mfu_object(figures, explained), lines)


# A run that is traced, and a description beside it


def _refuse_time(time: TimeOptions) -> None:
    """Refuse options that say how long a step took: the trace does."""
    for option, value in typed(time).items():
        if value is not None:
            raise UsageError(
                f"{option} and a trace are mutually exclusive", "the trace provides the time"
            )


def _answer_traced(
    traces: list[str],
    question: Question,
    reading: ReadingOptions,
    described: Description,
    pair: list[str] | None,
    privacy: Privacy,
    json: bool,
) -> None:
    """Print the utilisation of traces, with the peaks and the description that the options give."""
    from traceflops.analysis import analysis_of, prepare_pair, with_removed, with_replays
    from traceflops.devices import check_decided
    from traceflops.mfu import measure, without_description, without_marked_padding

    answer = described.answer
    answer.check()
    privacy.check()
    check_pair(pair, traces)
    # Before the trace is read: a slip in an option should not cost the time of reading.
    given = described.card_and_run() if described.model.is_given else None
    peaks, selection = _peaks(described), question.selection()
    trace = read_job(traces, reading, selection.job)
    check_decided(trace, "MFU")
    if answer.ignore_description:
        trace = without_description(trace)
    names = privacy.placeholders()
    prepared, wanted, notes = _prepared(trace, selection, described, given, privacy, names)
    other, kept = read_pair(pair, traces, trace, reading), privacy.include_environment
    asked: Any = {"include_environment": kept, "placeholders": names}
    paired = prepare_pair(other, **asked) if other is not None else None
    prepared = with_replays(prepared, paired)
    measured = measure(prepared, peaks, paired)
    checked = _reconciled(measured, prepared, described, *wanted) if wanted is not None else None
    known = checked.measured if checked is not None else without_marked_padding(measured, prepared)
    analysis = analysis_of(prepared, peaks, known)
    analysis = replace(analysis, notes=(*notes, *analysis.notes))
    analysis = with_removed(analysis, names) if names is not None else analysis
    _print_measured(analysis, checked, described, json)


def _peaks(described: Description) -> PeakOptions:
    from traceflops.mfu import PeakOptions

    rate = described.devices.tflops
    return PeakOptions(described.devices.device, float(rate) if rate is not None else None)


def _prepared(
    trace: Trace,
    selection: Selection,
    described: Description,
    given: Wanted,
    privacy: Privacy,
    names: Placeholders | None,
) -> tuple[Prepared, Wanted, tuple[Note, ...]]:
    """Return a trace ready for questions, model and run, and the notes on these.

    What the trace says of its run is understood first; then names are replaced, in notes, too.
    """
    from traceflops.analysis import prepare

    kept = privacy.include_environment
    prepared = prepare(trace, selection, include_environment=kept)
    wanted, notes = _wanted(prepared, described, given)
    if names is None:
        return prepared, wanted, notes
    if wanted is not None:
        wanted = _unnamed(wanted[0], names, described=given is None), wanted[1]
    trace = replace(trace, notes=(*notes, *trace.notes))
    shown = prepare(trace, selection, include_environment=kept, placeholders=names)
    return shown, wanted, ()


def _unnamed(card: ModelCard, names: Placeholders, *, described: bool) -> ModelCard:
    """Return a card without a name of the author's; models that everybody knows keep theirs."""
    from traceflops.flops import is_public

    if described:
        return replace(card, name="the model of the trace's description")
    return card if is_public(card) else replace(card, name=names.whole("model", card.name))


def _wanted(
    prepared: Prepared, described: Description, given: Wanted
) -> tuple[Wanted, tuple[Note, ...]]:
    """Return model and run, the options before what the trace says itself, and notes on them."""
    from traceflops.mfu import SelfDescribed, self_described

    card = given[0] if given is not None else None
    said = self_described(prepared, card, described.words(), described.answer.convention)
    if isinstance(said, SelfDescribed):
        return (said.card, said.run), said.notes
    if given is None:
        described.refuse_without_run(said.problem)
    return given, said.notes


def _reconciled(
    measured: Measurement, prepared: Prepared, described: Description, card: ModelCard, run: Run
) -> Reconciliation:
    from traceflops.mfu import reconcile

    # Without the option, the trace's own description may say how many there are.
    known = described.devices.gpus is not None or run.devices > 1
    convention = described.answer.convention
    return reconcile(measured, prepared, card, run, convention, run.devices if known else None)


def _print_measured(
    analysis: Analysis, checked: Reconciliation | None, described: Description, json: bool
) -> None:
    from traceflops.reports.json import utilisation_object
    from traceflops.reports.terminal import (
        render_explanation,
        render_measured,
        render_measured_conventions,
    )

    answer, explained = described.answer, None
    if checked is not None and answer.explains:
        explained = answer.explanation(checked.described, checked.lacks)

    def lines(style: Style) -> list[Text]:
        if checked is not None and explained is not None:
            return render_explanation(checked.in_doubt, explained, style)
        if checked is not None and answer.all_conventions:
            return render_measured_conventions(analysis, style, checked)
        return render_measured(analysis, style, checked)

    _print(json, lambda: utilisation_object(analysis, checked, explained), lines)
