"""Arrow record batches of untrusted files: checked in full before anything reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from traceflops.parsers.inputs import ByteSource

UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
"""What reading a damaged Arrow or Parquet file may raise."""
_BYTES_A_VALUE: Final = 8


def sound(batches: Iterable[pa.RecordBatch], source: ByteSource) -> Iterator[pa.RecordBatch]:
    """Give the batches of a file, each checked in full: its offsets, lengths, codes and texts.

    Raises one of UNREADABLE at the first that is damaged, and InputError where the file expands
    to far more than a trace does.
    """
    expanded_bytes = 0
    for batch in batches:
        values_bytes = batch.num_rows * max(batch.num_columns, 1) * _BYTES_A_VALUE
        source.refuse_expansion(expanded_bytes + values_bytes)
        batch.validate(full=True)
        expanded_bytes += max(values_bytes, batch.nbytes)
        yield batch
