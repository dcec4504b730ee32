"""What kind waits are of: that of the call that waited, which codes of some exports contradict.

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
    """Return tables in which waits are of the kind of the call that has their correlation.

    Where most calls contradict a code, waits without such a call that have it are of unknown kind.
    """
    marks, calls = tables["marks"], tables["calls"]
    row = np.flatnonzero(is_one_of(marks["kind"], "sync"))
    known = [_CALL.fullmatch(name) for name in names(calls["name"])]
    if not len(row) or not any(known):
        return dict(tables)
    call = first_of_same(calls, "correlation", marks, row)
    labels = [*WAITS.values(), WAIT]
    kinds = np.array([labels.index(_BY_CALL[one[1]]) if one else -1 for one in known], np.int64)
    told = taken(kinds, taken(codes(calls["name"]), call))
    coded = np.array([labels.index(name) for name in names(marks["sync_kind"])], np.int64)
    coded = coded[codes(marks["sync_kind"])[row]]
    for code in range(len(WAITS)):
        of_code = (coded == code) & (told >= 0)
        if 2 * np.count_nonzero(told[of_code] != code) > np.count_nonzero(of_code):
            coded[(coded == code) & (told < 0)] = labels.index(WAIT)
    kind = np.where(told >= 0, told, coded)
    for column in ("name", "sync_kind"):
        place, texts = codes(marks[column]).astype(np.int64), names(marks[column])
        place[row] = len(texts) + kind
        marks = with_column(marks, column, merged_column(place, [*texts, *labels]))
    return {**tables, "marks": marks}
