"""The PyTorch profiler's traces (Kineto JSON)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.pytorch.reader import read_pytorch
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.table.trace import Trace

__all__ = ["PYTORCH", "read_pytorch"]

_STACKS_BELOW_BYTES: Final = 4 * 10**9
_JSON_START: Final = re.compile(rb"\s*[\[{]")


def _read(sources: Sequence[ByteSource], reading: Reading) -> list[Trace]:
    return [_read_one(source, reading) for source in sources]


def _read_one(source: ByteSource, reading: Reading) -> Trace:
    expected = source.expected_text_bytes
    reading.crew.expect(expected)
    keep = reading.python_stacks
    stacks = expected <= _STACKS_BELOW_BYTES if keep is None else keep
    return read_pytorch(source, reading.crew, python_stacks=stacks)


PYTORCH: Final = Format("PyTorch", lambda head: _JSON_START.match(head) is not None, _read)
"""Any JSON may be one: asked last."""
