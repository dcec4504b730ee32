"""What to say of counters and of how they and paired runs were joined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from traceflops.mfu.counters.counterwork import CounterWork
from traceflops.mfu.counters.crosscheck import CrossCheck
from traceflops.mfu.figures import percent
from traceflops.mfu.pairing.joins import Join
from traceflops.mfu.pairing.kernelmatching import KNOWN, How
from traceflops.mfu.peak.seen import shown
from traceflops.trace import Note

_WAYS: Final[dict[How, str]] = {
    "dispatch": "as the same dispatch",
    "order": "in order of launch",
    "step": "in order within the step",
    "alike": "by name and size, as all alike did the same",
    "between": "by name and size, between the least and the most that those alike did",
}
_MOST_NAMED: Final = 3


def counter_notes(work: CounterWork) -> Iterator[Note]:
    """Yield what is missing or assumed in the counters themselves."""
    if count := int(np.count_nonzero(work.partial)):
        text = (
            f"Of {_launches(count, 'counted ')} some data types of matrix "
            "work were counted and others not: their FLOPs are unknown, not the part that was "
            "counted."
        )
        yield Note("missing", "counters-partial", text, count)
    if count := int(np.count_nonzero(work.homeless)):
        text = (
            f"Nothing tells the architecture of the device that {_launches(count)} were counted "
            "on, so it is not known whether all data types of its matrix units were counted: "
            "their FLOPs are unknown. Name the device with --device (traceflops devices lists "
            "them), or give the list of agents that the profiler wrote beside the counters."
        )
        yield Note("missing", "counters-without-device", text, count)
    if count := int(np.count_nonzero(work.rounded)):
        text = (
            f"Counters of {_launches(count)} have decimals, as they are means "
            "over passes: FLOPs are rounded to whole ones."
        )
        yield Note("assumed", "counters-rounded", text, count)
    if count := int(np.count_nonzero(work.disputed)):
        text = (
            f"Passes disagree on the matrix work of {_launches(count)}, so "
            "its FLOPs are unknown: the program did not do the same in each."
        )
        yield Note("missing", "counters-disagree", text, count)
    if names := work.counted.uneven:
        text = (
            f"The passes of the counted run do not launch {_listed(names)} equally often or in "
            "the same size, so their counters are not put together; those of the first pass count."
        )
        yield Note("assumed", "passes-uneven", text, len(names))
    if count := int(np.count_nonzero(work.uncounted)):
        text = (
            f"By its name the kernel of {_launches(count)} computes in XF32, whose counter "
            "(SQ_INSTS_VALU_MFMA_MOPS_XF32) was not read: its FLOPs are unknown."
        )
        yield Note("missing", "counters-without-xf32", text, count)


def join_notes(join: Join, launches: int) -> Iterator[Note]:
    """Yield how launches got their FLOPs; `launches` are those of the other recording."""
    if not join.launches:
        return
    which = _which(join)
    ways = ", ".join(
        f"{part.launches:,} {_WAYS[part.how]}" for part in join.parts if part.how in KNOWN
    )
    of = _launches(join.launches)
    share = percent(join.share) if join.share is not None else "none"
    how = f": {ways}" if ways else ""
    text = (
        f"{which} tells the FLOPs of {join.known:,} of {of} of compute kernels ({share} of their "
        f"time){how}. "
        "Times are those of the timed run."
    )
    yield Note("assumed", f"{join.origin}-joined", text, join.known)
    if count := join.count("ambiguous"):
        text = (
            f"FLOPs of {_launches(count)} stay unknown: launches of one name "
            f"and size did different work in {which[0].lower()}{which[1:]}, which has them in "
            "another order, or only some of them."
        )
        yield Note("missing", f"{join.origin}-ambiguous", text, count)
    if count := join.count("absent"):
        text = (
            f"{_launches(count)} of compute kernels {'has' if count == 1 else 'have'} no "
            f"counterpart of the same name and size among the {_launches(launches)} of "
            f"{which[0].lower()}{which[1:]}."
        )
        yield Note("missing", f"{join.origin}-absent", text, count)


def _which(join: Join) -> str:
    what = "The paired trace" if join.origin == "pair" else "The counted run"
    if not join.file:
        return what
    of = "of " if _SEVERAL.fullmatch(join.file) else ""
    return f"{what} {of}{shown(join.file)}"


_SEVERAL: Final = re.compile(r"[\d,]+ files")
"""What stands for the name of a recording of several files."""

SAME_RUN: Final = Note(
    "assumed",
    "counted-while-timed",
    "Counters were read in the run whose times are shown: kernels then run one by one, so idle "
    "time and overlap are not those of a normal run.",
)
"""What readers say themselves where they see it; of a trace without notes its ids tell it."""

FABRIC: Final = Note(
    "assumed",
    "fabric-bytes",
    "Bytes of kernels are those counted at the fabric. A cache behind it (Infinity Cache) may have "
    "served part of them, so they can exceed what the memory does.",
)


MEMORY: Final = Note(
    "assumed",
    "memory-bytes",
    "Bytes of kernels are those that the device's memory read and wrote. Nsight Compute empties "
    "the caches before each kernel, so in the timed run they may have been fewer.",
)


def check_notes(check: CrossCheck | None) -> Iterator[Note]:
    """Yield that counters and shapes differ, where they do by more than 2 %."""
    if check is None or check.agree:
        return
    more = "more" if check.difference > 0 else "less"
    why = (
        "tiles that stand out over a matrix are computed whole, and what is no operator counts, too"
        if check.difference > 0
        else "a kernel may use another algorithm (Winograd), or the two runs differ"
    )
    text = (
        f"Counters say {percent(abs(check.difference))} {more} FLOPs than shapes, over "
        f"{_launches(check.launches)} of which both tell them ({why}). They "
        f"differ most in {shown(check.kernel)}. Ledger and MFU are by shapes."
    )
    yield Note("assumed", "counters-differ-from-shapes", text, check.launches)


def _launches(count: int, what: str = "") -> str:
    return f"{count:,} {what}{'launch' if count == 1 else 'launches'}"


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(shown(name) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{some} and {more:,} more kernels" if more > 0 else some
