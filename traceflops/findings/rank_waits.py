"""One rank whose collectives of equal size take very different times: it waits for other ranks.

```text
first of the recording |##########|    others of its size |#|  |#|  |#|
```

Hiding or faster links gain little then. Of a first collective that is most of the time, a recording
of one step does not tell whether ranks began apart, or are uneven in each step.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from traceflops.facts import Value, fact
from traceflops.findings.case import Case, share_of_window
from traceflops.findings.finding import Gain
from traceflops.ranks.comm_records import CommRecords
from traceflops.ranks.link_rates import Fastest
from traceflops.table.columns import IntArray

RULE: Final = "exposed-communication"


def waiting_told(
    case: Case,
    records: CommRecords,
    chosen: IntArray,
    like: IntArray,
    fastest: Fastest,
    named: str,
) -> dict[str, Any]:
    """Return what differs in the cause of a rank that waits: its texts, gain and remedy.

    `chosen` are its collectives as rows of `records`, `like` those that are `named`, which take
    most time; of them only the `fastest` may be all transfer.
    """
    took_ns = records.dur_ns[like]
    waited_ns = round((1 - fastest.part) * int(took_ns.sum()))
    windows = max(case.windows_used, 1)
    rank = records.ranks[0] if len(records.ranks) == 1 else None
    values: dict[str, Value] = {
        "share": case.total.components.share("communication") or 0.0,
        "rank": rank,
        "kind": named,
        "waiting": share_of_window(case, waited_ns),
        "least_ns": fastest.least_ns,
    }
    first = like[int(np.argmin(records.start_ns[like]))]
    is_first = windows == 1 and records.start_ns[first] == records.start_ns[chosen].min()
    # More than half of the time in one call, the first of all.
    is_skew = bool(is_first and 2 * records.dur_ns[first] > took_ns.sum())
    first_ns = int(records.dur_ns[first])
    return {
        "name": fact(f"{RULE}.title-waits", **values),
        "claim": fact(f"{RULE}.claim-waits", **values),
        "details": (fact(f"{RULE}.first-waits", kind=named, first_ns=first_ns),) * is_skew,
        "advice": fact(f"{RULE}.{'several-steps' if is_skew else 'balance-ranks'}"),
        "owner": None,  # other ranks are not recorded
        "edits": (),
        "partly": (),
        "on_path": frozenset(),
        "doubts": (fact("doubt.ranks-missing"),),
        "gain": None if is_skew else Gain(0, waited_ns // windows, None),
    }
