"""Why a utilisation cannot be computed, and what would supply the missing input.

    MissingInput(fact("missing.no-shapes"), fact("missing.next-time", how="record_shapes=True"))

`reports/view/texts.toml` has the words, below [missing].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from traceflops.accelerators import tracers
from traceflops.devices.counter_formulas import Family
from traceflops.facts import Fact, fact, in_words, quoted
from traceflops.remedies import GPUS_LISTED, KINETO, advice, is_cut_off
from traceflops.table.columns import names
from traceflops.table.schema import DEVICE_KINDS
from traceflops.table.trace import Note, Trace

NEXT_TIME: Final = "missing.next-time"  # the code of advice on a later recording
NO_WORK, _IF_GPU = "missing.no-gpu-operations", "missing.if-gpu"
_FEW: Final = 100
_RECORDS: Final = ("no-time", "no-category", "odd-phase", "unknown-category")
"""Codes of notes on skipped records, with their number."""
_LOST: Final = (
    *(*_RECORDS, "rows-lost", "json-dropped", "set-aside", "file-not-read", "tables-unread"),
    *("tables-damaged", "packets-packed"),
)
GIVE_PEAK: Final = fact("missing.give-peak")
PAIR: Final = fact("missing.pair")  # advice: describe the run, or pair a trace with shapes
_PAIR_OR_COUNT: Final = fact("missing.pair-or-count")
_DESCRIBE: Final = fact("missing.describe")
_DESCRIBE_OR_COUNT: Final = fact("missing.describe-or-count")


class MissingInput(Struct, frozen=True):
    """What is missing, and the option or way of recording that would supply it, if any."""

    what: Fact
    how: Fact | None = None

    @property
    def problem(self) -> str:
        """Return what is missing, in words."""
        return in_words(self.what)

    @property
    def remedy(self) -> str:
        """Return what would supply it, in words; "" if nothing would."""
        return in_words(self.how)

    @property
    def wants_gpu_records(self) -> bool:
        """Return whether a GPU certainly worked, but its work was not recorded."""
        how = self.how.code if self.how is not None else _IF_GPU
        return self.what.code == NO_WORK and how != _IF_GPU


NOT_SPLIT: Final = MissingInput(fact("missing.not-split"), PAIR)
NO_MATRIX_WORK: Final = MissingInput(fact("missing.no-matrix-work"), fact("missing.vector-units"))
NOT_ML: Final = MissingInput(fact("missing.not-ml"))
NO_MODEL: Final = MissingInput(fact("missing.no-model"))
NONE_KNOWN: Final = MissingInput(fact("missing.no-known-model"))
UNLESS_ASKED: Final = (NOT_ML, NO_MODEL, NONE_KNOWN)
"""Reports show these only on request of an MFU."""
TO_GPU: Final = fact("missing.move-to-gpu")
NOTHING_LAUNCHED: Final = MissingInput(fact("missing.nothing-launched"), TO_GPU)
ON_MPS: Final = MissingInput(fact(NO_WORK), fact("missing.on-mps"))


def _uncounted(families: Sequence[Family | None]) -> str | None:
    """Return the hardware if counters of no device tell FLOPs, None if those of some do."""
    of_devices = [family for family in families if family is not None]
    counts = any(family.counts_matrix_work for family in of_devices)
    return of_devices[0].hardware if of_devices and not counts else None


def without_shapes(
    tool: str, families: Sequence[Family | None], *, is_xla: bool = False
) -> MissingInput:
    """Return why an export without operators tells no FLOPs; `families` are of its devices.

    A program of XLA has no PyTorch trace to pair.
    """
    uncounted = _uncounted(families)
    what = fact("missing.tool-shapes", tool=tool, uncounted=uncounted)
    counted, other = (_DESCRIBE_OR_COUNT, _DESCRIBE) if is_xla else (_PAIR_OR_COUNT, PAIR)
    return MissingInput(what, counted if uncounted is None else other)


def other_counters(families: Sequence[Family | None]) -> MissingInput:
    """Return what is missing if counters were read, but none that tells FLOPs."""
    if (hardware := _uncounted(families)) is not None:
        return MissingInput(fact("missing.uncounted", hardware=hardware), PAIR)
    return MissingInput(fact("missing.other-counters"), _PAIR_OR_COUNT)


def skipped(notes: Iterable[Note], operators: int) -> Fact | None:
    """Return a fact on skipped records that may have been a GPU's work, None without any."""
    lost = (note for note in notes if note.code in _LOST)
    counts = [note.count if note.code in _RECORDS else None for note in lost]
    if None in counts:
        return fact("missing.skipped-some")
    count = sum(filter(None, counts))
    # A program on a GPU launches more than one kernel per _FEW operators.
    is_enough = count and _FEW * count >= operators
    return fact("missing.skipped", count=count) if is_enough else None


def without_times(trace: Trace, how: str) -> MissingInput:
    """Return why a trace without timed device work has no utilisation; `how` is the advice."""
    kinds = set(names(trace.totals["kind"])) if trace.totals.num_rows else set()
    if not kinds & set(DEVICE_KINDS):
        if (why := skipped(trace.notes, trace.ops.num_rows)) is not None:
            return MissingInput(fact("missing.none-read", why=why))
        return MissingInput(fact(NO_WORK), fact(_IF_GPU, how=how) if how else None)
    is_nsys = trace.source.format == "nsys stats"
    export = fact("missing.use-sqlite" if is_nsys else "missing.use-kernel-trace")
    return MissingInput(fact("missing.only-sums"), export)


def unrecorded(trace: Trace) -> MissingInput:
    """Return why a trace has no utilisation if a GPU was used, but nothing of it is recorded.

    The profiler may not have been asked for it; or its tracer failed, if the header lists GPUs; or
    it was built without a tracer, if the header has no list.
    """
    how, facts = advice(trace, "device work"), trace.source.facts
    tracer, older = tracers(trace.source)
    why = None
    if facts.get(GPUS_LISTED, "0") != "0":
        why = fact("missing.nothing-came", tracer=tracer, older=older)
    elif KINETO in facts and GPUS_LISTED not in facts:
        why = fact("missing.cannot-trace")
    used = fact("missing.used-gpu", how=how, why=None if is_cut_off(trace) else why)
    return MissingInput(fact(NO_WORK), used if how else None)


def counters_incomplete(families: Sequence[Family | None], missing: Sequence[str]) -> MissingInput:
    """Return why counters that were read tell no FLOPs; `missing` names those to read."""
    counting = [family for family in families if family is not None and family.counts_matrix_work]
    if not any(families):
        return MissingInput(fact("missing.unknown-gpu"), fact("missing.name-device"))
    if not counting:  # these devices do not count the work of matrix units
        return other_counters(families)
    what = fact("missing.counters", counters=tuple(missing) or (fact("missing.any-counter"),))
    return MissingInput(what, quoted(counting[0].recording))
