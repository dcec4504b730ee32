"""Rule `standstill`: a GPU stands still, equally long each time.

```text
|k|k|......gap......|k|k|......gap......|k|kkkkkkkkkkkkkkkkk|k|      all but k and | are lost
     work is queued      work is queued     one launch of k
```

The same thing stops the GPU each time: neither that kernel is slow, nor what comes before the gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceflops.characters import kernel_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings.finding import Finding, Row, severity_of, short_name
from traceflops.findings.launch_geometry import identical_launches
from traceflops.findings.losses import Loss
from traceflops.findings.rules import statement
from traceflops.table.columns import Columns, IntArray, axes, codes, is_one_of, names, numbers
from traceflops.table.grouping import differ_from_before
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import ENDLESS, NEVER
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

STANDSTILL: Final = "standstill"
_IDLE, _COMPUTE = "idle", "compute"


class Standstill(NamedTuple):
    """How often and how long GPUs stood still in gaps and during launches, and one such kernel.

    `gaps` and `launches` are counts, `gaps_ns` and `launches_ns` the time lost in them; `usual_ns`
    is what identical launches of the kernel `name` take, and `top` its kind of work.
    """

    gaps: int
    launches: int
    gaps_ns: int
    launches_ns: int
    name: str
    usual_ns: int
    top: str

    @property
    def all_ns(self) -> int:
        """Return the time lost in gaps and launches together."""
        return self.gaps_ns + self.launches_ns


def standstill(prepared: Prepared, limits: Mapping[str, float]) -> Standstill | None:
    """Return how long the GPUs stood still; None if nothing shows that they did.

    Two things show it: gaps before queued work, and launches that take many times as long as
    identical ones. Many of them must be equally long; of gaps that are half as long or longer, at
    least half must have that length.
    """
    known, first, count = _identical(_launches(prepared))
    usual_ns = known.ns[first + (count - 1) // 2]  # the lower median
    over_ns = known.ns - usual_ns
    is_slow = (count >= limits["least_runs"]) & (over_ns >= limits["least_ns"])
    is_slow &= over_ns > limits["many_times"] * usual_ns
    if not is_slow.any():
        return None
    row, over_ns, usual_ns = known.row[is_slow], over_ns[is_slow], usual_ns[is_slow]
    gaps_ns = _queued_gaps(prepared)
    # Of the lengths that launches have, the one that most launches and gaps share, about
    lengths = np.sort(np.concatenate([over_ns, gaps_ns]))
    low, high = ((1 + sign * limits["alike"]) * over_ns for sign in (-1, 1))
    alike = np.searchsorted(lengths, high, side="right") - np.searchsorted(lengths, low)
    best = int(alike.argmax())
    in_gaps = gaps_ns[(low[best] <= gaps_ns) & (gaps_ns <= high[best])]
    in_launches = over_ns[(low[best] <= over_ns) & (over_ns <= high[best])]
    long_gaps = int((2 * gaps_ns >= over_ns[best]).sum())
    if not len(in_gaps) or alike[best] < limits["least_times"] or 2 * len(in_gaps) < long_gaps:
        return None
    name, categorised = prepared.trace.activities["name"], prepared.linked.categorised
    label = kernel_name(names(name)[codes(name)[row[best]]])
    top = categorised.categories[int(categorised.category[row[best]])].top
    sums = int(in_gaps.sum()), int(in_launches.sum())
    return Standstill(len(in_gaps), len(in_launches), *sums, label, int(usual_ns[best]), top)


def _queued_gaps(prepared: Prepared) -> IntArray:
    """Return the lengths (ns) of gaps of all devices whose next work was ready before the gap."""
    gaps = [np.empty(0, dtype=np.int64)]
    for device, account in prepared.accounts.items():
        work = account.work
        latest_end, next_start = np.maximum.accumulate(work.end_ns)[:-1], work.start_ns[1:]
        # A stream wait of unknown end waits for earlier work, too, and none of that runs in a gap.
        held_ns = np.where(work.waited_until_ns == ENDLESS, NEVER, work.waited_until_ns)
        ready_ns = np.maximum(work.call_start_ns, held_ns)[1:]
        is_chosen = chosen_time(prepared.windows[device]).contains(next_start)
        is_queued = (account.timed_call[1:] >= 0) & (ready_ns <= latest_end)
        gaps.append((next_start - latest_end)[is_chosen & is_queued & (next_start > latest_end)])
    return np.concatenate(gaps)


def with_standstill(
    losses: Sequence[Loss], still: Standstill | None, window_ns: int
) -> tuple[Loss, ...]:
    """Return losses with a standstill as a loss of its own: it is neither idle nor slow work."""
    if still is None or severity_of(still.all_ns / window_ns) is None:
        return tuple(losses)
    work = "inefficiency" if still.top == _COMPUTE else still.top
    # The shares that the standstill takes from other losses, first from unexplained idle time
    left = {_IDLE: still.gaps_ns / window_ns, work: still.launches_ns / window_ns}
    others = list[Loss]()
    for loss in sorted(losses, key=lambda loss: loss.unknown is None):
        taken = min(left.get(loss.name, 0.0), loss.share)
        left[loss.name] = left.get(loss.name, 0.0) - taken
        if loss.name == _IDLE and 2 * taken > loss.share:  # its words are about the standstill
            loss = replace(loss, gloss=None, details=(), advice=None, rule="")
        if loss.share > taken:
            others.append(replace(loss, share=loss.share - taken))
    stalls = Loss(
        STANDSTILL,
        fact("loss.standstill"),
        True,
        still.all_ns / window_ns,
        gloss=Fact("loss.stalls", _values(still)),
        rule=STANDSTILL,
        # Compute of unknown efficiency is no loss from which the share could be taken.
        of_compute=left[work] if still.top == _COMPUTE else 0.0,
    )
    return tuple(sorted([*others, stalls], key=lambda loss: -loss.share))


def standstill_findings(still: Standstill | None, window_ns: int) -> tuple[Finding, ...]:
    """Return at most one finding: how often a GPU stood still, without a gain."""
    if still is None or severity_of(share := still.all_ns / window_ns) is None:
        return ()
    advice = fact(f"{STANDSTILL}.remedy.alone")
    rows = (Row(short_name(still.name), still.launches_ns, still.launches),)
    return (statement(STANDSTILL, share, _values(still), advice=advice, rows=rows),)


def _values(still: Standstill) -> dict[str, Value]:
    """Return the values for the texts about a standstill."""
    return {
        "count": still.gaps + still.launches,
        "gaps": still.gaps,
        "launches": still.launches,
        "name": short_name(still.name),
        "usual_ns": still.usual_ns,
        "mean_ns": still.all_ns // (still.gaps + still.launches),
    }


def without_stalled(findings: Sequence[Finding], still: Finding | None) -> list[Finding]:
    """Return findings and a standstill, without those that call it late work or a slow kernel."""
    if still is None:
        return [*findings]
    name = still.rows[0].name
    others = [
        finding
        for finding in findings
        if (finding.rule != "device-wait" or finding.share > 2 * still.share)
        and name not in [row.name for row in finding.rows[:1]]
    ]
    return [*others, still]


class KernelLaunches(Columns, frozen=True):
    """Launches of kernels: their rows in activities, times, and a number per identical launches.

    The number `group` is -1 if the size of the work is unknown (`identical_launches`).
    """

    row: IntArray
    ns: IntArray
    group: IntArray


def _identical(launches: KernelLaunches) -> tuple[KernelLaunches, IntArray, IntArray]:
    """Return the launches of known groups sorted by group and time, and two columns per launch.

    These are the index of the first launch of its group, and the size of the group.
    """
    known = launches.only(launches.group >= 0)
    known = known.only(np.lexsort((known.ns, known.group)))
    first = np.flatnonzero(differ_from_before(known.group))
    count = np.diff(np.append(first, len(known.group)))
    return known, np.repeat(first, count), np.repeat(count, count)


def _launches(prepared: Prepared) -> KernelLaunches:
    """Return the launches of kernels in the chosen windows, without those that communicate."""
    table, categorised = prepared.trace.activities, prepared.linked.categorised
    is_kernel = is_one_of(table["kind"], "kernel")
    rows = [np.empty(0, dtype=np.int64)]
    for number, account in prepared.accounts.items():
        inside = chosen_time(prepared.windows[number]).contains(account.rows.start_ns)
        rows.append(account.rows.row[inside])
    row = np.concatenate(rows)
    row = row[is_kernel[row] & ~is_top(categorised, "communication", row)]
    group, is_sized = identical_launches(prepared, row)
    is_known = is_sized & (axes(table["grid"])[row] > 0).all(axis=1)
    return KernelLaunches(row, numbers(table["dur_ns"])[row], np.where(is_known, group, -1))
