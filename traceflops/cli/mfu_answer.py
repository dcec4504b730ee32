"""What `traceflops mfu` is asked: by which rule, one or all, or how a figure came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from traceflops.cli.options import Text, flag, option
from traceflops.errors import UsageError
from traceflops.units import one_of

if TYPE_CHECKING:
    from traceflops.devices import MissingInput
    from traceflops.flops import Explanation, Utilisation


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What to answer."""

    HEADING: ClassVar = "Output"

    convention: Annotated[
        Text,
        option("ID", "Counting convention. Default: exact-causal; with --params 6N, frozen 4N."),
    ] = None
    all_conventions: Annotated[
        bool, flag("Print the figures of all conventions.", "--all-conventions")
    ] = False
    reported: Annotated[Text, option("PERCENT", "Explain a published or logged MFU: 46.2%.")] = None
    reported_hfu: Annotated[Text, option("PERCENT", "Explain a published or logged HFU.")] = None

    ignore_description: Annotated[
        bool,
        flag(
            "Ignore the trace's own description of its run, and its annotations.",
            "--ignore-description",
        ),
    ] = False

    def check(self) -> None:
        """Refuse options that exclude each other."""
        one_of({"--reported": self.reported, "--reported-hfu": self.reported_hfu})

    @property
    def explains(self) -> bool:
        """Return whether a figure is to be explained."""
        return self.reported is not None or self.reported_hfu is not None

    @property
    def asks(self) -> bool:
        """Return whether something is asked that only a description answers."""
        return self.explains or self.all_conventions or self.convention is not None

    def explanation(self, figures: Utilisation, lacks: Sequence[MissingInput]) -> Explanation:
        """Return how the reported figure came about. Raises UsageError where something lacks."""
        from traceflops.flops import explain, other_peaks
        from traceflops.units import parse_reported

        metric: Literal["mfu", "hfu"] = "mfu" if self.reported is not None else "hfu"
        option = "--reported" if metric == "mfu" else "--reported-hfu"
        reported = parse_reported(option, self.reported or self.reported_hfu or "")
        choice = figures.choice
        if lacks and (figures.rate is None or choice.peak is None):
            problem = f"a reported figure needs more to explain: {lacks[0].problem}"
            raise UsageError(problem, lacks[0].remedy)
        assert choice.peak is not None, "a peak that is not there is lacking"
        return explain(
            figures.card, figures.run, reported, choice.peak, other_peaks(choice), metric
        )
