"""Provides the database of an input as a file that SQLite can open, without changing the original.

If it is compressed, piped or has a log of transactions beside it, that is a temporary copy.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

from msgspec import Struct

from traceflops.errors import InputError
from traceflops.parsers.io.database_scan import FAULTS
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.io.notes import NoteTable
from traceflops.table.trace import Note
from traceflops.units import capitalized

MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_WAL_MAGICS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_SPARE_BYTES: Final = 64 << 20  # free space that a copy must leave on its disk
_UNFINISHED: Final = (
    "The database has an unfinished transaction (a -journal file): its writer was stopped or is "
    "still running. "
)
_NOTES: Final = NoteTable(
    repaired={
        "log-applied": "The last transactions were read from the write-ahead log (-wal) beside the "
        "database.",
        "journal-applied": f"{_UNFINISHED}It was rolled back in a copy, so the last rows may be "
        "missing.",
    },
    dropped={
        "input-cut": "{cut}: the rest of the database is lost.",
        "log-cut": (
            "The write-ahead log (-wal) ends within a transaction: it was cut, or its writer was "
            "still running.",
            "The rest ({count} [page|pages]) is lost; copy database and log again when the writer "
            "has finished.",
        ),
    },
    missing={
        "log-unread": "The write-ahead log (-wal) beside the database could not be read, so the "
        "last rows are missing. Copy both files to a disk with enough space and run there: sqlite3 "
        "COPY 'PRAGMA wal_checkpoint(TRUNCATE)'",
        "journal-unread": f"{_UNFINISHED}The database was read unchanged, so the last rows may be "
        "incomplete.",
    },
)


class PlacedFile(Struct, frozen=True):
    """A database on disk: its path, size, how many bytes are missing at its end, notes on it."""

    path: Path
    bytes: int
    missing_bytes: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def uri(self) -> str:
        """The URI for SQLite: read-only, without locks, without looking for logs."""
        return f"{self.path.as_uri()}?mode=ro&immutable=1"


@contextmanager
def placed(source: ByteSource) -> Iterator[PlacedFile]:
    """Provide the file of a database in a context. Raises InputError without room for a copy."""
    # As SQLite does, look for a log beside the file itself. A compressed file has none.
    plain = source.path.resolve() if source.path is not None else None
    if plain is not None and not _first_bytes(plain).startswith(MAGIC):
        plain = None
    log = None
    if plain is not None:
        if _first_bytes(_beside(plain, "-wal")):
            log = "-wal"
        # Without this magic the transaction of a journal is finished: ignore it.
        elif _first_bytes(_beside(plain, "-journal")).startswith(_JOURNAL_MAGIC):
            log = "-journal"
        # A log or a partial last page makes a copy necessary: the original is never changed.
        _, partial_bytes, missing = _extent(plain)
        if log is None and not partial_bytes:
            yield PlacedFile(plain, plain.stat().st_size, missing)
            return
    with ExitStack() as temporary:
        try:
            folder = Path(
                temporary.enter_context(
                    TemporaryDirectory(prefix="traceflops-", ignore_cleanup_errors=True)
                )
            )
            file = _copied(source, plain, log, folder)
        except OSError as error:
            raise InputError(
                f"cannot unpack: {source.label} (in {gettempdir()}: {error.strerror or error})",
                "unpack it on a disk with enough space and give the database, or set TMPDIR",
            ) from None
        yield file


def _copied(source: ByteSource, plain: Path | None, log: str | None, folder: Path) -> PlacedFile:
    """Return a copy: the database unpacked, or with its log applied, or cut at its last whole page.

    `plain` is the original if not compressed, `log` its log's suffix. Raises OSError without room.
    """
    copy, notes = folder / "database", list[Note]()
    path = copy if plain is None else plain
    if plain is None:
        _check_room(source.stored_bytes or 0, folder)
        with copy.open("wb") as out:
            for block in source.blocks():
                out.write(block)
        if source.cut is not None:
            notes.append(_NOTES.note("input-cut", cut=capitalized(source.cut)))
    elif log is not None:
        path, notes = _with_log(plain, log, copy)
    whole_bytes, partial_bytes, missing = _extent(path)
    if partial_bytes:
        # SQLite would read the missing part of the last page as zeros, and give partial rows.
        if path != copy:
            _copy(path, copy)
        os.truncate(copy, whole_bytes)
        path = copy
    return PlacedFile(path, path.stat().st_size, missing, tuple(notes))


def _extent(path: Path) -> tuple[int, int, int]:
    """Return the bytes of a database: in whole pages, in a partial last page, missing at its end.

    The header tells them; if it is not plausible, all bytes count as whole pages.
    """
    header = _first_bytes(path)
    size = path.stat().st_size
    # A page has 512 bytes or a larger power of two; two bytes cannot hold 65,536: 1 stands for it.
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    is_power_of_two = page_bytes & (page_bytes - 1) == 0
    if len(header) < _HEADER_BYTES or page_bytes < 512 or not is_power_of_two:
        return size, 0, 0
    # A cut within the first page is left as it is: nothing would remain.
    partial = size % page_bytes if size > page_bytes else 0
    # The size in the header is valid only if the change counter beside it is that of the file.
    is_stated = header[24:28] == header[92:96]
    stated = int.from_bytes(header[28:32], "big") * page_bytes if is_stated else 0
    if not stated:
        return size - partial, partial, page_bytes - partial if partial else 0
    # Bytes behind the stated size are not of the database: they may end within a page.
    return size - partial, partial if size < stated else 0, max(0, stated - size)


def _beside(database: Path, end: str) -> Path:
    return database.with_name(database.name + end)


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, b"" if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(_HEADER_BYTES)
    except OSError:
        return b""


def _with_log(database: Path, end: str, copy: Path) -> tuple[Path, list[Note]]:
    """Return the copy, with the log (suffix `end`) applied, or else the original; and notes."""
    log, code = _beside(database, end), {"-wal": "log", "-journal": "journal"}[end]
    try:
        # Refuse a journal that names another file (it ends with the magic): SQLite would delete it.
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - len(_JOURNAL_MAGIC)))
            if stream.read() == _JOURNAL_MAGIC:
                raise OSError
        _copy(database, copy)
        _copy(log, _beside(copy, end))
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            if end == "-journal":  # any query rolls the transaction back
                changed = len(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall())
            else:
                row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                connection.execute("PRAGMA journal_mode=DELETE").fetchone()
                changed = max(0, int(row[-1]))  # pages that were applied, -1 without a log
    except (OSError, *FAULTS):
        return database, [_NOTES.note(f"{code}-unread")]
    notes = [_NOTES.note(f"{code}-applied")] if changed else []
    lost = _pages(log) - changed  # 0 or less for a journal, which has no such pages
    return copy, [*notes, *([_NOTES.note("log-cut", lost)] if lost > 0 else [])]


def _check_room(needed_bytes: int, folder: Path) -> None:
    if needed_bytes > shutil.disk_usage(folder).free - _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy(path: Path, to: Path) -> None:
    _check_room(path.stat().st_size, to.parent)
    shutil.copyfile(path, to)


def nothing_left(database: str, notes: Iterable[Note], again: str) -> InputError:
    """Return the error for a database without a readable record; a cut log may be why."""
    message = f"damaged, with no readable record: {database}"
    if any(note.code == "log-cut" for note in notes):
        reason = " (the write-ahead log that holds them is cut)"
        return InputError(f"{message}{reason}", how_to_copy(database))
    return InputError(message, f"nothing can be recovered; {again}")


def how_to_copy(database: str) -> str:
    """Return the hint how to copy a database together with its log."""
    return (
        f"copy {database} and {database}-wal again; or run sqlite3 {database} 'PRAGMA "
        f"wal_checkpoint(TRUNCATE)' on the original and copy {database}"
    )


def in_wal_mode(database: Path | None) -> bool:
    """Return whether the header of a database says that it uses a write-ahead log."""
    header = _first_bytes(database) if database is not None else b""
    return header[18:].startswith(b"\x02\x02")


def _pages(log: Path) -> int:
    """Return the number of pages of a write-ahead log's current round, a partial last one included.

    SQLite applies only finished transactions, so a larger number shows that some are lost. A log is
    rewritten from its beginning; pages of earlier rounds have other salts.
    Source: the section "WAL File Format" of SQLite's "Database File Format".
    """
    try:
        size = log.stat().st_size
        with log.open("rb") as stream:
            header = stream.read(_WAL_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            if header[:4] not in _WAL_MAGICS or not 512 <= page_bytes <= 65_536:
                return 0
            salts, step = header[16:24], _FRAME_HEADER_BYTES + page_bytes
            pages = -(-(size - _WAL_HEADER_BYTES) // step)
            for page in range(pages):
                stream.seek(_WAL_HEADER_BYTES + page * step)
                if not salts.startswith(stream.read(_FRAME_HEADER_BYTES)[8:16]):
                    return page
            return pages
    except OSError:
        return 0
