"""What keeps a utilisation from being computed, and what would supply it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceflops.table.columns import names
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import Trace
from traceflops.units import does, several, uncapitalized

if TYPE_CHECKING:
    from traceflops.devices.counter_formulas import Family

NEXT_TIME: Final = "next time"
"""How advice on a later recording ends."""
GIVE_PEAK: Final = (
    "--peak TFLOPS sets one for all data types (traceflops recipe peak measures it), "
    "--device ID selects one (traceflops devices)"
)
DESCRIBE: Final = "traceflops mfu TRACE --model NAME --batch N --seq N"
"""How a run is described; its steps have to be there for that."""

ASK: Final = (
    "--device selects a row of the table, --peak sets a rate (traceflops recipe peak measures it)"
)
"""How a sentence on a device whose rates are not known ends: with the options that tell them."""

_OPTIONS, _ONE_OPTION = ": --device ", "; --peak sets one"

PAIR: Final = f"describe the run ({DESCRIBE}), or add with --pair a PyTorch trace with shapes"


@dataclass(frozen=True, slots=True)
class MissingInput:
    """What is not known, and the option or the way of recording that would tell it."""

    problem: str
    remedy: str


NOT_SPLIT: Final = MissingInput(
    "counters do not split executed FLOPs into model work, recomputation and "
    "padding; they give HFU only",
    PAIR,
)

NO_MATRIX_WORK: Final = MissingInput(
    "according to counters, no kernel used matrix units",
    "vector units are not part of MFU or HFU",
)


NOT_ML: Final = MissingInput("nothing in the recording is of machine learning", "")
"""What reports do not say unless they are asked for an MFU."""


def without_rates(explanation: str) -> MissingInput:
    """Return that a device's rates are unknown; options at the end are the remedy."""
    text = uncapitalized(explanation.removesuffix(".").removesuffix(_ONE_OPTION))
    problem, mark, options = text.rpartition(_OPTIONS)
    if not mark:
        return MissingInput(text, GIVE_PEAK)
    remedy = f"{_OPTIONS.removeprefix(': ')}{options}"
    return MissingInput(problem, GIVE_PEAK if remedy == ASK else remedy)


def without_shapes(tool: str, families: Sequence[Family | None]) -> MissingInput:
    """Return why an export without operators tells no FLOPs; `families` are of its devices."""
    known = [family for family in families if family is not None]
    problem = f"{tool} records no shapes, so FLOPs are unknown"
    if known and not any(family.counts_matrix_work for family in known):
        problem += f", and counters of {known[0].hardware} do not count matrix work"
        return MissingInput(problem, PAIR)
    return MissingInput(problem, f"{PAIR}, or its counters (docs/counters.md)")


def other_counters(families: Sequence[Family | None]) -> MissingInput:
    """Return that counters were read, and none of those that tell FLOPs."""
    known = [family for family in families if family is not None]
    if known and not any(family.counts_matrix_work for family in known):
        return MissingInput(f"counters of {known[0].hardware} do not count matrix work", PAIR)
    problem = "none of the recorded counters counts matrix work"
    return MissingInput(problem, f"{PAIR}, or its counters (docs/counters.md)")


NOTHING_LAUNCHED: Final = MissingInput(
    "nothing was launched on a GPU", "move model and inputs to the GPU"
)


def without_times(trace: Trace, how: str) -> MissingInput:
    """Return why a trace without records of device work has no utilisation, and `how` it would."""
    kinds = set(names(trace.totals["kind"])) if trace.totals.num_rows else set()
    if not kinds & set(DEVICE_KINDS):
        return MissingInput("the trace has no GPU operations", how)
    return MissingInput(
        "the trace has only sums by name, without kernel times",
        "use the profile's SQLite export or cuda_gpu_trace"
        if trace.source.format == "nsys stats"
        else "use the records of each kernel (a kernel trace), not statistics",
    )


def counters_alone(launches: int, how: str) -> MissingInput:
    """Return why counters alone make no utilisation, and `how` the tool at hand records times."""
    return MissingInput(
        f"{several(launches, 'launch')} {does(launches, 'have')} counters but no times, because "
        "reading counters serializes kernels",
        f"record times in another run{f' ({how})' if how else ''} and combine both: traceflops "
        "summary TIMED --pair COUNTERS",
    )


def counters_incomplete(families: Sequence[Family | None], missing: Sequence[str]) -> MissingInput:
    """Return why counters that were read tell no FLOPs, and which would."""
    known = [family for family in families if family is not None]
    counting = [family for family in known if family.counts_matrix_work]
    if not known:
        return MissingInput(
            "the counters come from an unknown GPU, so it is unclear which add up",
            "name it with --device ID",
        )
    if not counting:
        return other_counters(families)
    names = ", ".join(missing) or "a counter of each launch"
    return MissingInput(f"missing counters of matrix work: {names}", counting[0].recording)
