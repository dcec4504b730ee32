"""A GPU that stood still: work that was queued starts late, or a launch takes long, equally so.

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
from traceflops.findings.finding import Finding, Row, severity_of, short_name
from traceflops.findings.losses import Loss
from traceflops.findings.rules import statement
from traceflops.findings.uneven_launches import launches_of
from traceflops.table.columns import IntArray, codes, names
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
    launches = launches_of(prepared)
    known = launches.only(launches.group >= 0)
    order = np.lexsort((known.ns, known.group))
    _, first, group, count = np.unique(
        known.group[order], return_index=True, return_inverse=True, return_counts=True
    )
    usual_ns = known.ns[order][first + (count - 1) // 2][group]  # the lower median
    row, over_ns = known.row[order], known.ns[order] - usual_ns
    slow = (count[group] >= limits["least_runs"]) & (over_ns >= limits["least_ns"])
    slow &= over_ns > limits["many_times"] * usual_ns
    if not slow.any():
        return None
    gaps_ns = _gaps_before_queued_work(prepared)
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


def _gaps_before_queued_work(prepared: Prepared) -> IntArray:
    """Return the lengths of gaps, in ns, before which the work after them had been launched."""
    found = [np.empty(0, dtype=np.int64)]
    for number, account in prepared.accounts.items():
        work = account.work
        reach_ns = np.maximum.accumulate(work.end_ns)[:-1]
        starts_ns = work.start_ns[1:]
        # Stream waits of unknown end wait for earlier work as well, and none of that runs in a gap.
        held_ns = np.where(work.waited_until_ns == ENDLESS, NEVER, work.waited_until_ns)
        ready_ns = np.maximum(work.call_start_ns, held_ns)[1:]
        is_chosen = chosen_time(prepared.windows[number]).contains(starts_ns)
        is_queued = (account.timed_call[1:] >= 0) & (ready_ns <= reach_ns)
        found.append((starts_ns - reach_ns)[is_chosen & is_queued & (starts_ns > reach_ns)])
    return np.concatenate(found)


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
