"""Rows of CSV that end before their table does, filled up with empty fields."""

from __future__ import annotations

import numpy as np

from traceflops.parsers.io.csvfiles.lines import lines_of


def filled(text: bytes, separator: str, columns: int, least: int) -> bytes:
    """Return lines of CSV in which sound rows of `least` fields or more have all `columns`."""
    data = np.frombuffer(text, np.uint8)
    lines = lines_of(data, ord(separator))
    lacking = columns - 1 - lines.separators
    short = lines.sound & (lacking > 0) & (lines.separators >= least - 1)
    if not short.any():
        return text
    places = np.repeat(lines.stop[short], lacking[short])
    return np.insert(data, places, ord(separator)).tobytes()
