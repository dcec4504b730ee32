"""`traceflops mfu TRACE`: what a trace shows of utilisation, and a description beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from traceflops.cli.common import check_pair, read_pair, read_trace, terminal_style
from traceflops.cli.mfu_answer import AnswerOptions
from traceflops.cli.mfu_options import (
    DeviceOptions,
    ModelOptions,
    TimeOptions,
    TokenOptions,
    TrainingOptions,
    run_of,
    words_of,
)
from traceflops.cli.options import typed
from traceflops.cli.printing import print_lines, say_object
from traceflops.errors import TraceflopsError, UsageError
from traceflops.units import DESCRIPTION_WORDS

if TYPE_CHECKING:
    from traceflops.analysis import Analysis
    from traceflops.cli.options import Privacy, Question, ReadingOptions
    from traceflops.flops import Explanation, ModelCard, Run
    from traceflops.mfu import Measurement, PeakOptions, Reconciliation, Words
    from traceflops.privacy import Placeholders
    from traceflops.table import Note, Trace
    from traceflops.windows import Prepared, Selection

_UNNAMED_MODEL = "the model of the trace's description"
ADD_MODEL = "add --model NAME, --model config.json or --params 8e9, or remove it"


@dataclass(frozen=True, slots=True)
class Description:
    """What the options say of the run in a trace, and what is asked about it."""

    model: ModelOptions
    tokens: TokenOptions
    devices: DeviceOptions
    training: TrainingOptions
    answer: AnswerOptions

    def is_given(self) -> bool:
        """Return whether the options name a model."""
        return self.model.model is not None or self.model.params is not None

    def refuse_without_model(self) -> None:
        """Raise UsageError where options describe a run of which no model is known."""
        for option, value in self._options().items():
            if value not in (None, False):
                raise UsageError(f"{option} describes a run, but no model is given", ADD_MODEL)

    def refuse_without_run(self, problem: TraceflopsError | None) -> None:
        """Raise UsageError where options describe a run of which too little is known.

        `problem` is what the trace's own description lacks, None where it names no model.
        """
        if problem is None:
            self.refuse_without_model()
        elif self.answer.asks or not _OF_THE_RUN.isdisjoint(self.words().values):
            raise problem

    def words(self) -> Words:
        """Return what the options say of the run, in the words that a trace uses, too."""
        gpus_and_dtype = replace(self.devices, device=None, peak=None)
        return words_of(self.model, self.tokens, self.training, gpus_and_dtype)

    def card_and_run(self) -> tuple[ModelCard, Run]:
        """Return the model and a step of its run; the trace has the time."""
        card = self.model.card()
        return card, run_of(card, self.tokens, TimeOptions(), self.devices, self.training)

    def _options(self) -> dict[str, Any]:
        """Return the options that say something of a run, and what they say."""
        devices = replace(self.devices, device=None, peak=None)
        answer = replace(self.answer, ignore_description=False)
        return typed(self.model, self.tokens, self.training, answer, devices)


_OF_THE_RUN = frozenset(DESCRIPTION_WORDS) - {"gpus", "dtype"}


def refuse_time(time: TimeOptions) -> None:
    """Refuse options that say how long a step took: the trace does."""
    for option, value in typed(time).items():
        if value is not None:
            raise UsageError(
                f"{option} and a trace are mutually exclusive", "the trace provides the time"
            )


def peak_options(devices: DeviceOptions) -> PeakOptions:
    """Return what the options say of the devices."""
    from traceflops.mfu import PeakOptions

    rate = devices.tflops
    return PeakOptions(devices.device, float(rate) if rate is not None else None)


def mfu_of_traces(
    traces: list[str],
    question: Question,
    reading: ReadingOptions,
    described: Description,
    pair: str | None = None,
    *,
    privacy: Privacy,
    json: bool,
) -> None:
    """Print the utilisation of traces, with the peaks and the description that the options give."""
    from traceflops.analysis import analysis_of, prepare_pair, with_removed
    from traceflops.devices import check_decided, of_job
    from traceflops.mfu import measure, without_description, without_marked_padding

    described.answer.check()
    privacy.check()
    check_pair(pair, traces)
    # Before the trace is read: a slip in an option should not cost the time of reading.
    given = described.card_and_run() if described.is_given() else None
    peaks, selection = peak_options(described.devices), question.selection()
    trace = of_job(read_trace(traces, reading), selection.job)
    check_decided(trace, "MFU")
    if described.answer.ignore_description:
        trace = without_description(trace)
    names = privacy.placeholders()
    prepared, wanted, notes = _prepared(trace, selection, described, given, privacy, names)
    other = read_pair(pair, reading)
    kept = privacy.include_environment
    asked: Any = {"include_environment": kept, "placeholders": names}
    paired = prepare_pair(other, **asked) if other is not None else None
    measured = measure(prepared, peaks, paired)
    checked = _reconciled(measured, prepared, described, *wanted) if wanted is not None else None
    known = checked.measured if checked is not None else without_marked_padding(measured, prepared)
    analysis = analysis_of(prepared, peaks, known)
    analysis = replace(analysis, notes=(*notes, *analysis.notes))
    analysis = with_removed(analysis, names) if names is not None else analysis
    explained = None
    if checked is not None and described.answer.explains:
        explained = described.answer.explanation(checked.described, checked.lacks)
    _print(
        analysis, checked, explained, all_conventions=described.answer.all_conventions, json=json
    )


def _prepared(
    trace: Trace,
    selection: Selection,
    described: Description,
    given: tuple[ModelCard, Run] | None,
    privacy: Privacy,
    names: Placeholders | None,
) -> tuple[Prepared, tuple[ModelCard, Run] | None, tuple[Note, ...]]:
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
        return replace(card, name=_UNNAMED_MODEL)
    if is_public(card):
        return card
    return replace(card, name=names.whole("model", card.name))


def _wanted(
    prepared: Prepared, described: Description, given: tuple[ModelCard, Run] | None
) -> tuple[tuple[ModelCard, Run] | None, tuple[Note, ...]]:
    """Return model and run, the options before what the trace says itself, and notes on them."""
    from traceflops.mfu import SelfDescribed, self_described

    card, answer = given[0] if given is not None else None, described.answer
    said = self_described(prepared, card, described.words(), answer.convention)
    if isinstance(said, SelfDescribed):
        return (said.card, said.run), said.notes
    if given is None:
        described.refuse_without_run(said.problem)
    return given, said.notes


def _reconciled(
    measured: Measurement, prepared: Prepared, described: Description, card: ModelCard, run: Run
) -> Reconciliation:
    from traceflops.mfu import reconcile

    gpus = described.devices.count if described.devices.gpus is not None else None
    if gpus is None and run.devices > 1:  # the trace's own description says so
        gpus = run.devices
    return reconcile(measured, prepared, card, run, described.answer.convention, gpus)


def _print(
    analysis: Analysis,
    checked: Reconciliation | None,
    explained: Explanation | None,
    *,
    all_conventions: bool,
    json: bool,
) -> None:
    if json:
        from traceflops.reports.json import utilisation_object

        say_object(utilisation_object(analysis, checked, explained))
        return
    from traceflops.reports.terminal import (
        render_explanation,
        render_measured,
        render_measured_conventions,
    )

    style = terminal_style()
    if checked is not None and explained is not None:
        lines = render_explanation(checked.in_doubt, explained, style)
    elif checked is not None and all_conventions:
        lines = render_measured_conventions(analysis, style, checked)
    else:
        lines = render_measured(analysis, style, checked)
    print_lines(lines)
