"""rocprof's (v1) JSON: a Chrome trace with the true times in its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

_START: Final = re.compile(rb'\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    from traceflops.parsers.rocprof.v1.read import read_v1_json

    for source in sources:
        reading.crew.expect(source.expected_text_bytes)
    return [read_v1_json(source, reading.crew) for source in sources]


ROCPROF_V1_JSON: Final = Format(
    "rocprof (v1) JSON", lambda head: _START.match(head) is not None, _read
)
"""Known by the empty event with which the list begins; no other writer of such lists has one."""
