"""Rule `fills`: the GPU clears memory for much of the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceflops.attribution.host_calls import memory_operations
from traceflops.findings.case import Case, cause, limit, share_of_window
from traceflops.findings.device_memory import times_alone_ns
from traceflops.findings.finding import Cause, Gain, Row, row_name
from traceflops.table.columns import is_one_of

_RULE: Final = "fills"
_FILL: Final = "memset"


def fills(case: Case) -> Iterator[Cause]:
    """Give a cause if the GPU does nothing but fill memory for too long, beside other work."""
    if case.prepared is None:
        return
    is_fill = is_one_of(case.prepared.trace.activities["kind"], _FILL)
    alone_ns, others_ns = times_alone_ns(case.prepared, is_fill)
    share = share_of_window(case, alone_ns)
    if share < limit(case, _RULE, "least_share") or not others_ns:
        return
    own = [one for one in memory_operations(case.prepared) if one.kind == _FILL]
    count = sum(one.count for one in own)
    # Rate and size are told of one kind of fills only.
    size, rate = (own[0].bytes, own[0].bytes_per_ns) if len(own) == 1 else (None, None)
    yield cause(
        case,
        _RULE,
        share,
        {"count": count, "bytes": size, "rate": rate if size is not None else None},
        rows=tuple(
            Row(row_name(row.name), row.sum_ns, row.count)
            for row in case.measured.kernels
            if row.category.sub == _FILL
        ),
        gain=Gain(0, alone_ns // case.windows_used, None),
    )
