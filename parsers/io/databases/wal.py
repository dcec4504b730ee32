"""The write-ahead log beside an SQLite database (-wal): how much of it was ever finished.

SQLite uses a log up to its last finished transaction, and says nothing of what is behind that.
Source: the section "WAL File Format" of SQLite's "Database File Format".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from traceflops.errors import InputError
from traceflops.table.trace import Note
from traceflops.units.words import several

_MAGICS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_MODE_AT: Final = 18
_WAL_MODE: Final = b"\x02\x02"
CUT: Final = "log-cut"


def unfinished_note(log: Path, finished: int) -> Note | None:
    """Return what to say of a log that holds more than so many pages of finished transactions."""
    pages = _pages(log)
    lost = pages - finished
    if lost <= 0:
        return None
    text = (
        "The write-ahead log (-wal) ends within a transaction: it was cut, or its writer was "
        f"still running. The rest ({several(lost, 'page')}) is lost; copy database and log again "
        "when the writer has finished."
    )
    return Note("dropped", CUT, text, lost)


def nothing_left(database: str, notes: Iterable[Note], again: str) -> InputError:
    """Return what to say of a damaged database of which no record can be read.

    `notes` are those on it, `again` is what else than its log can be had again.
    """
    message = f"damaged, with no readable record: {database}"
    if any(note.code == CUT for note in notes):
        reason = " (the write-ahead log that holds them is cut)"
        return InputError(f"{message}{reason}", how_to_copy(database))
    return InputError(message, f"nothing can be recovered; {again}")


def how_to_copy(database: str) -> str:
    """Return what to do about a log of which the copy cannot be read, where the whole one is."""
    return (
        f"copy {database} and {database}-wal again; or run sqlite3 {database} 'PRAGMA "
        f"wal_checkpoint(TRUNCATE)' on the original and copy {database}"
    )


def in_wal_mode(database: Path | None) -> bool:
    """Return whether a database says that it is written with such a log."""
    if database is None:
        return False
    try:
        with database.open("rb") as stream:
            stream.seek(_MODE_AT)
            return stream.read(len(_WAL_MODE)) == _WAL_MODE
    except OSError:
        return False


def _pages(log: Path) -> int:
    """Return how many pages of its present round a log holds, one that is cut among them.

    A log is written from its beginning again and again; pages of earlier rounds have other salts.
    """
    try:
        size = log.stat().st_size
        with log.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            if header[:4] not in _MAGICS or not 512 <= page_bytes <= 65_536:
                return 0
            salts, step = header[16:24], _FRAME_HEADER_BYTES + page_bytes
            pages = -(-(size - _HEADER_BYTES) // step)
            for place in range(pages):
                stream.seek(_HEADER_BYTES + place * step)
                if not salts.startswith(stream.read(_FRAME_HEADER_BYTES)[8:16]):
                    return place
            return pages
    except OSError:
        return 0
