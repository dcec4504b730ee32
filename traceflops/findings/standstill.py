"""A GPU that is held up: identical launches differ, or it stood still, equally long each time.

```text
|k|k|......gap......|k|k|......gap......|k|kkkkkkkkkkkkkkkkk|k|      all but k and | are lost
     work is queued      work is queued     one launch of k
```

One thing stopped the GPU each time: neither that kernel is slow, nor what came before the gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceflops.characters import kernel_name
from traceflops.facts import Fact, Value, fact
from traceflops.findings.case import Case
from traceflops.findings.finding import Finding, Row, severity_of, short_name
from traceflops.findings.launch_geometry import identical_launches
from traceflops.findings.losses import Loss
from traceflops.findings.main_kernel import MAIN_KERNEL
from traceflops.findings.rules import statement
from traceflops.table.columns import Columns, IntArray, axes, codes, is_one_of, names, numbers
from traceflops.table.grouping import group_sums
from traceflops.timeline.device_span import is_top
from traceflops.timeline.intervals import ENDLESS, NEVER
from traceflops.windows.prepared import Prepared
from traceflops.windows.records import chosen_time

STANDSTILL: Final = "standstill"
_IDLE, _COMPUTE = "idle", "compute"


class Standstill(NamedTuple):
    """How often and how long a GPU stood still, with one kernel that was running meanwhile.

    `gaps` and `launches` are numbers of times, `gaps_ns` and `launches_ns` their time; `usual_ns`
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
        """Return all of the time."""
        return self.gaps_ns + self.launches_ns


def standstill(prepared: Prepared, limits: Mapping[str, float]) -> Standstill | None:
    """Return how long the GPUs stood still; None if nothing shows that they did.

    Launches that take many times as long as identical ones, and gaps before queued work, show it
    if they are equally long beyond what is usual, and other such gaps are not as many.
    """
    known, first, count = _identical(_launches(prepared))
    usual_ns = known.ns[first + (count - 1) // 2]  # the lower median
    row, over_ns = known.row, known.ns - usual_ns
    slow = (count >= limits["least_runs"]) & (over_ns >= limits["least_ns"])
    slow &= over_ns > limits["many_times"] * usual_ns
    if not slow.any():
        return None
    # Lengths of gaps before which the work after them had been launched
    gaps = [np.empty(0, dtype=np.int64)]
    for number, account in prepared.accounts.items():
        work = account.work
        reach_ns, starts_ns = np.maximum.accumulate(work.end_ns)[:-1], work.start_ns[1:]
        # Stream waits of unknown end wait for earlier work as well, and none of that runs in a gap.
        held_ns = np.where(work.waited_until_ns == ENDLESS, NEVER, work.waited_until_ns)
        ready_ns = np.maximum(work.call_start_ns, held_ns)[1:]
        is_chosen = chosen_time(prepared.windows[number]).contains(starts_ns)
        is_queued = (account.timed_call[1:] >= 0) & (ready_ns <= reach_ns)
        gaps.append((starts_ns - reach_ns)[is_chosen & is_queued & (starts_ns > reach_ns)])
    gaps_ns = np.concatenate(gaps)
    row, over_ns, usual_ns = row[slow], over_ns[slow], usual_ns[slow]
    # The length that most have, of those that launches have.
    lengths = np.sort(np.concatenate([over_ns, gaps_ns]))
    low, high = ((1 + sign * limits["alike"]) * over_ns for sign in (-1, 1))
    alike = np.searchsorted(lengths, high, side="right") - np.searchsorted(lengths, low)
    best = int(alike.argmax())
    in_gaps = gaps_ns[(low[best] <= gaps_ns) & (gaps_ns <= high[best])]
    in_launches = over_ns[(low[best] <= over_ns) & (over_ns <= high[best])]
    as_long = int((2 * gaps_ns >= over_ns[best]).sum())
    if not len(in_gaps) or alike[best] < limits["least_times"] or 2 * len(in_gaps) < as_long:
        return None
    name, categorised = prepared.trace.activities["name"], prepared.linked.categorised
    label = kernel_name(names(name)[codes(name)[row[best]]])
    top = categorised.categories[int(categorised.category[row[best]])].top
    sums = int(in_gaps.sum()), int(in_launches.sum())
    return Standstill(len(in_gaps), len(in_launches), *sums, label, int(usual_ns[best]), top)


def with_standstill(
    losses: Sequence[Loss], still: Standstill | None, window_ns: int
) -> tuple[Loss, ...]:
    """Return losses with a standstill as one of its own: it is neither idle nor slow work."""
    if still is None or severity_of(still.all_ns / window_ns) is None:
        return tuple(losses)
    work = "inefficiency" if still.top == _COMPUTE else still.top
    left = {_IDLE: still.gaps_ns / window_ns, work: still.launches_ns / window_ns}
    gloss = Fact("loss.stalls", _values(still))
    share = still.all_ns / window_ns
    part = fact("loss.standstill")
    found = list[Loss]()
    # Of idle time, what nothing recorded explains comes first.
    for loss in sorted(losses, key=lambda loss: loss.unknown is None):
        taken = min(left.get(loss.name, 0.0), loss.share)
        left[loss.name] = left.get(loss.name, 0.0) - taken
        if 2 * taken > loss.share:  # what it mostly is was said of the standstill
            plain = {"gloss": None, "details": (), "advice": None, "rule": ""}
            loss = replace(loss, **plain) if loss.name == _IDLE else loss
        if loss.share > taken:
            found.append(replace(loss, share=loss.share - taken))
    # Compute of unknown efficiency is no loss that it could be taken from.
    compute = left[work] if still.top == _COMPUTE else 0.0
    stalls = Loss(STANDSTILL, part, True, share, gloss=gloss, rule=STANDSTILL, of_compute=compute)
    found.append(stalls)
    return tuple(sorted(found, key=lambda loss: -loss.share))


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
    """Return findings without those that sell a standstill as late starts or as a slow kernel."""
    if still is None:
        return [*findings]
    name = still.rows[0].name
    rest = [
        one
        for one in findings
        if (one.rule != "device-wait" or one.share > 2 * still.share)
        and name not in [row.name for row in one.rows[:1]]
    ]
    return [*rest, still]


_TENTH: Final = 10


class KernelLaunches(Columns, frozen=True):
    """Launches of kernels: row of activities, time in ns, and a number that identical ones share.

    Of a grid that fits the GPU at once and has no shapes that number is -1: persistent kernels have
    it for all sizes.
    """

    row: IntArray
    ns: IntArray
    group: IntArray


def _identical(launches: KernelLaunches) -> tuple[KernelLaunches, IntArray, IntArray]:
    """Return launches of which identical ones are known, by group and time.

    And, per launch, the place of the first of its group and how many there are.
    """
    known = launches.only(launches.group >= 0)
    known = known.only(np.lexsort((known.ns, known.group)))
    _, first, group, count = np.unique(
        known.group, return_index=True, return_inverse=True, return_counts=True
    )
    return known, first[group], count[group]


def uneven_launches(case: Case) -> Finding | None:
    """Return that identical launches take many times as long as the fastest tenth of them.

    They do the same work unless data decide it, so something outside holds up the GPU: faster
    kernels are no remedy. None where that is little of the time, or of few kernels.
    """
    if case.prepared is None:
        return None
    limits = case.finding_rules.limits(MAIN_KERNEL)
    launches = _launches(case.prepared)
    known, first, count = _identical(launches)
    fast_ns = np.maximum(known.ns[first + count // _TENTH], 1)
    is_slow = (known.ns > limits["many_times"] * fast_ns) & (count >= limits["least_runs"])
    slow = known.only(is_slow)
    name = codes(case.prepared.trace.activities["name"])[slow.row]
    kernels, index = np.unique(name, return_inverse=True)
    slow_ns, all_ns = int(slow.ns.sum()), int(launches.ns.sum())
    if slow_ns < limits["least_slow"] * all_ns or len(kernels) < limits["least_kernels"]:
        return None
    by_kernel = group_sums(index, slow.ns, len(kernels))
    largest = int(by_kernel.argmax())
    times = slow.ns // fast_ns[is_slow]
    labels = names(case.prepared.trace.activities["name"])
    largest_name = short_name(kernel_name(labels[kernels[largest]]))
    share = min(slow_ns / case.total.components.window_ns, 1.0)
    values: dict[str, Value] = {
        "share": share,
        "times": int(times[index == largest].max()),
        "name": largest_name,
        "kernels": len(kernels),
        "many": int(limits["many_times"]),
    }
    return statement(
        MAIN_KERNEL,
        share,
        values,
        name=Fact(f"{MAIN_KERNEL}.title-uneven", values),
        claim=Fact(f"{MAIN_KERNEL}.claim-uneven", values),
        details=(Fact(f"{MAIN_KERNEL}.uneven-most", values),),
        advice=fact(f"{MAIN_KERNEL}.remedy.uneven"),
        rows=(Row(largest_name, int(by_kernel[largest])),),
    )


def _launches(prepared: Prepared) -> KernelLaunches:
    """Return the launches of kernels in the chosen windows, without those that communicate.

    Identical launches have the same `group`; it is -1 where the size of the work is unknown.
    """
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
