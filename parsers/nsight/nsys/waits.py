"""Kinds of waits: that of the call that waited, which codes of some exports contradict.

Exports of 2023 and 2024 write 1 for waits for a whole device and 2 for waits for an event or a
stream, beside a table of the codes' names that says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from traceflops.parsers.nsight.nsys.enums import WAIT, WAITS
from traceflops.table import (
    codes,
    first_of_same,
    is_one_of,
    merged_column,
    names,
    taken,
    with_column,
)

_EVENT, _WAIT_EVENT, _STREAM, _CONTEXT = WAITS.values()
_BY_CALL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("EventSynchronize", "EventQuery"), _EVENT),
    "StreamWaitEvent": _WAIT_EVENT,
    **dict.fromkeys(("StreamSynchronize", "StreamQuery"), _STREAM),
    **dict.fromkeys(("DeviceSynchronize", "ThreadSynchronize", "CtxSynchronize"), _CONTEXT),
}
_CALL: Final = re.compile(rf"(?:cuda|cu)({'|'.join(_BY_CALL)})(?:_ptsz|_v\d{{1,6}})*")


def with_kinds_of_calls(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return tables in which waits are of the kind of the call with their correlation.

    Where most calls contradict a code, waits with that code and without such a call are of unknown
    kind.
    """
    marks, calls = tables["marks"], tables["calls"]
    row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    matches = [_CALL.fullmatch(name) for name in names(calls["name"])]
    if not len(row) or not any(matches):
        return dict(tables)
    call = first_of_same(calls, "correlation", marks, row)
    labels = [*WAITS.values(), WAIT]
    by_name = np.array([labels.index(_BY_CALL[m[1]]) if m else -1 for m in matches], np.int64)
    by_call = taken(by_name, taken(codes(calls["name"]), call))
    by_code = np.array([labels.index(name) for name in names(marks["sync_kind"])], np.int64)
    by_code = by_code[codes(marks["sync_kind"])[row]]
    for kind in range(len(WAITS)):
        has_both = (by_code == kind) & (by_call >= 0)
        if 2 * np.count_nonzero(by_call[has_both] != kind) > np.count_nonzero(has_both):
            by_code[(by_code == kind) & (by_call < 0)] = labels.index(WAIT)
    kinds = np.where(by_call >= 0, by_call, by_code)
    for column in ("name", "sync_kind"):
        code, texts = codes(marks[column]).astype(np.int64), names(marks[column])
        code[row] = len(texts) + kinds
        marks = with_column(marks, column, merged_column(code, [*texts, *labels]))
    return {**tables, "marks": marks}
