"""Rule `small-pieces`: data goes to the GPU in small pieces, each with an allocation of its own.

    |alloc|  |fill| |copy| |wait|    |alloc|  |fill| |copy| |wait|    ...
    |<--------- a piece --------->|

The calls are of one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceflops.attribution.host_events import has_fact
from traceflops.findings.calls_alone import outermost
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.copy_sizes import small_copies
from traceflops.findings.finding import Cause, Gain
from traceflops.table.columns import IntArray, codes, names, numbers, thread_columns
from traceflops.table.grouping import joint_codes, ranked
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

_RULE: Final = "small-pieces"
_MOVES: Final = frozenset({"copy", "memset"})


def small_pieces(case: Case) -> Iterator[Cause]:
    """Give a cause if most of the time the same calls allocate and copy small pieces, in turn.

    Nothing where kernels do more than fill memory: they may need each piece before the next.
    """
    subs = {row.category.sub for row in case.measured.kernels}
    if case.prepared is None or len(case.devices) != 1 or not subs or not subs <= _MOVES:
        return
    row = _calls(case.prepared)
    calls = case.prepared.trace.calls
    name = codes(calls["name"])[row]
    start_ns, dur_ns = (numbers(calls[column])[row] for column in ("start_ns", "dur_ns"))
    begin = np.flatnonzero(has_fact(calls["name"], "allocates")[row])
    distances, counts = np.unique(np.diff(begin), return_counts=True)
    if not len(counts):
        return
    size = int(distances[counts.argmax()])
    begin = begin[:-1][np.diff(begin) == size]
    places = begin[:, np.newaxis] + np.arange(size)
    pieces, each, counts = np.unique(name[places], axis=0, return_inverse=True, return_counts=True)
    alike = each.reshape(-1) == counts.argmax()
    piece_ns = (start_ns[begin + size] - start_ns[begin])[alike]
    called_ns, count = int(dur_ns[places[alike]].sum()), int(counts.max())
    # A pause after some pieces is none of their time.
    each_ns = min(int(np.median(piece_ns)), int(piece_ns.sum()) // count)
    whole_ns = each_ns * count
    sizes, values = small_copies(case)
    share, least = share_of_window(case, whole_ns), limit(case, _RULE, "least_share")
    if count < limit(case, _RULE, "least_pieces") or share < least or not sizes:
        return
    labels = names(calls["name"])
    told = tuple(labels[code] for code in pieces[counts.argmax()].tolist())
    values = {**values, "count": count, "each_ns": each_ns, "calls": told}
    windows = case.windows_used
    called_ns -= called_ns // count  # one of them stays
    gain = Gain(called_ns // windows, whole_ns // windows, None)
    yield cause(case, _RULE, share, values, gain=gain)


def _calls(prepared: Prepared) -> IntArray:
    """Return the calls in the windows, of the thread that allocates most, in order, none nested."""
    calls = prepared.trace.calls
    (windows,) = prepared.windows.values()
    inside = chosen_time(windows).contains(numbers(calls["start_ns"]))
    allocates = has_fact(calls["name"], "allocates") & inside
    if not allocates.any():
        return np.empty(0, np.int64)
    _, thread = ranked(joint_codes(*thread_columns(calls)))
    busiest = np.bincount(thread[allocates]).argmax()
    return outermost(calls, np.flatnonzero(inside & (thread == busiest)))
