"""What the host did in rocprof's CSV: API calls, ranges and marks of the program."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceflops.parsers.rocprof.tables.work import ids, timed_rows
from traceflops.parsers.shared import UNNAMED, Calls, Cut, Marks, Overheads, ProcessPart, Tally
from traceflops.table import ABSENT, Array, BoolArray, IntArray, Names

_MARK_DOMAINS: Final = ("MARKER", "ROCTX")


def add_calls(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add API calls, and the ranges and marks that stand among them."""
    domains = Names()
    domain = cut.codes("domain", domains, "API")
    counts = np.bincount(domain, minlength=len(domains)).tolist()
    tally.domains.update(dict(zip(domains, counts, strict=True)))
    cut = timed_rows(Cut(cut.count, {**cut.columns, "domain code": domain}), part, tally)
    is_mark = np.array([name.upper().startswith(_MARK_DOMAINS) for name in domains])
    is_mark = is_mark[cut["domain code"]]
    if not is_mark.all():
        some, names = cut.only(~is_mark), part["calls"].names
        Calls(
            rows=some,
            thread=some["thread"],
            name=some.codes("function", names["name"], UNNAMED),
            correlation=ids(some, "correlation"),
            api=names["api"].codes(map(api_of, domains))[some["domain code"]],
        ).add_to(part)
    _add_marks(cut.only(is_mark), part)


def api_of(domain: str) -> str:
    """Return hip of HIP_RUNTIME_API_EXT."""
    return domain.lower().split("_")[0] or "unknown"


def _add_marks(cut: Cut, part: ProcessPart) -> None:
    """Add ranges and instants. Thread 0 stands for no thread."""
    if cut.count:
        role = "function" if cut.has("function") else "message"
        name = cut.codes(role, part["marks"].names["name"], UNNAMED)
        Marks(rows=cut, thread=ids(cut, "thread"), name=name).add_to(part)


def add_scratch(cut: Cut, part: ProcessPart, tally: Tally) -> None:
    """Add the making of scratch memory, for which a queue waits, as overhead of the device."""
    cut = timed_rows(cut, part, tally)
    Overheads(
        rows=cut,
        thread=ids(cut, "thread"),
        device=cut.codes("agent", part.agents, ""),
        stream=cut["queue"],
        name=cut.codes("operation", part["marks"].names["name"], UNNAMED),
    ).add_to(part)


class Pushes:
    """Beginnings and ends of ranges as rocprofv2 writes them, one row each, until all are known.

    Rows of one id belong together: one with a message begins a range, the next without one or with
    the same ends it. A message that nothing ends is a mark.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[ProcessPart, Cut]] = []

    def add(self, cut: Cut, part: ProcessPart, tally: Tally) -> None:
        """Put rows aside."""
        time = cut.numbers("start")
        known = (time != ABSENT) & (time >= 0)
        tally.odd["no-time"] += int((~known).sum())
        self._pieces.append((part, cut.only(known)))

    def finish(self, tally: Tally) -> None:
        """Add what the rows put aside say."""
        by_part: dict[int, list[tuple[ProcessPart, Cut]]] = {}
        for part, cut in self._pieces:
            by_part.setdefault(id(part), []).append((part, cut))
        for pieces in by_part.values():
            self._pair(pieces[0][0], [cut for _, cut in pieces], tally)

    def _pair(self, part: ProcessPart, cuts: list[Cut], tally: Tally) -> None:
        names = part["marks"].names["name"]
        message = np.concatenate([cut.codes("message", names) for cut in cuts])
        columns = {
            role: np.concatenate([cut.numbers(role) for cut in cuts])
            for role in ("start", "marker", "thread")
        }
        order = np.lexsort((columns["start"], columns["marker"]))
        message, time = message[order], columns["start"][order]
        begins, ends = _ranges(columns["marker"][order], message)
        alone = (message >= 0) & ~begins & ~ends
        tally.odd["unpaired"] += int(((message < 0) & ~ends).sum())
        first = np.flatnonzero(begins | alone)
        last = np.where(begins[first], np.minimum(first + 1, len(time) - 1), first)
        part.cover(time[first])
        times = {"start_ns": time[first], "dur_ns": time[last] - time[first]}
        thread = columns["thread"][order][first]
        rows = Cut(len(first), {**times, "thread": thread})
        Marks(rows=rows, thread=ids(rows, "thread"), name=message[first]).add_to(part)


def _ranges(marker: IntArray, message: Array) -> tuple[BoolArray, BoolArray]:
    """Return which rows, in the order of ids and times, begin a range that the next row ends."""
    count = len(marker)
    follows = np.zeros(count, dtype=np.bool_)
    if count < 2:
        return follows, follows.copy()
    same_id = marker[1:] == marker[:-1]
    closes = same_id & (message[:-1] >= 0) & (message[1:] < 0)
    again = same_id & (message[:-1] >= 0) & (message[1:] == message[:-1])
    # In a row of equal messages every other one begins a range, unless the last is ended by a
    # row without message.
    place = np.arange(count)
    run_start = np.maximum.accumulate(np.where(np.append(True, ~again), place, 0))
    follows[:-1] = again & ((place - run_start)[:-1] % 2 == 0)
    free = ~np.append(False, follows[:-1])
    follows[:-1] |= closes & free[:-1]
    return follows, np.append(False, follows[:-1])
