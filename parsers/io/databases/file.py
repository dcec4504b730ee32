"""Where the database of an input lies on disk, so that SQLite can open it and nothing is written.

SQLite wants a file. One that is packed or comes through a pipe is unpacked into a temporary file;
one whose last transactions lie in a log beside it is copied together with that log.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceflops.errors import InputError
from traceflops.parsers.io.databases.salvage import FAULTS
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table import Note
from traceflops.units import several

MAGIC: Final = b"SQLite format 3\x00"

_HEADER_BYTES: Final = 100
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_BLOCK_BYTES: Final = 1 << 20
_SPARE_BYTES: Final = 64 << 20
"""So much room is left on the disk that a copy is made on."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A database on disk: its path, size, the bytes missing at its end, and what was done to it."""

    path: Path
    bytes: int
    missing_bytes: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def uri(self) -> str:
        """Return what SQLite opens: read-only, without locks, without looking for logs."""
        return f"{self.path.as_uri()}?mode=ro&immutable=1"


@contextmanager
def placed(source: ByteSource) -> Iterator[PlacedFile]:
    """Give the file of a database; copies are deleted when the context ends.

    Raises InputError where there is no room for a copy that cannot be avoided.
    """
    plain = _plain(source)
    log = _log_beside(plain) if plain is not None else None
    if plain is not None and log is None and not _extent(plain).rest:
        yield _measured(plain, ())
        return
    with _temporary_folder(source) as folder:
        path, notes = plain, list[Note]()
        if path is None:
            path, notes = _unpacked(source, folder)
        elif log is not None:
            path, notes = log.apply(path, folder)
        extent = _extent(path)
        if extent.rest:
            path = _of_whole_pages(source, path, extent, folder)
        yield _measured(path, tuple(notes), extent.missing)


def _plain(source: ByteSource) -> Path | None:
    """Return the path of an input that is a database as it is, not compressed."""
    if source.path is None:
        return None
    try:
        # Links are followed as SQLite does: a log lies beside the file itself.
        path = source.path.resolve()
        with path.open("rb") as stream:
            return path if stream.read(len(MAGIC)) == MAGIC else None
    except OSError:
        return None  # reading it as a stream will say what is wrong


def _measured(path: Path, notes: tuple[Note, ...], missing: int | None = None) -> PlacedFile:
    if missing is None:
        missing = _extent(path).missing
    return PlacedFile(path, path.stat().st_size, missing, notes)


@dataclass(frozen=True, slots=True)
class _Extent:
    """How far a database reaches.

    Its bytes in whole pages, what is there behind them of a page that belongs to it, and the bytes
    that are missing at its end.
    """

    whole: int
    rest: int
    missing: int


def _extent(path: Path) -> _Extent:
    """Return how far a database reaches by its header, as far as that can be right."""
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
    size = path.stat().st_size
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    is_known = len(header) == _HEADER_BYTES and page_bytes >= 512
    if not is_known or page_bytes & (page_bytes - 1):
        return _Extent(size, 0, 0)
    # A version that does not keep the size leaves an old one, which another number tells.
    is_stated = header[24:28] == header[92:96]
    stated = int.from_bytes(header[28:32], "big") * page_bytes if is_stated else 0
    rest = size % page_bytes if size > page_bytes else 0
    if not stated:
        return _Extent(size - rest, rest, page_bytes - rest if rest else 0)
    return _Extent(size - rest, rest if size < stated else 0, max(0, stated - size))


def _of_whole_pages(source: ByteSource, path: Path, extent: _Extent, folder: Path) -> Path:
    """Return a copy that ends with the last whole page: SQLite takes what lacks of one for zeros.

    Rows of it would then be half there. Raises InputError where there is no room for a copy.
    """
    copy = folder / "whole-pages"
    try:
        if path.parent == folder:
            os.truncate(path, extent.whole)
            return path
        _copy(path, copy, extent.whole)
    except OSError as error:
        raise _no_room(source, error) from None
    return copy


@contextmanager
def _temporary_folder(source: ByteSource) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="traceflops-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_room(source, error) from None
    with folder as name:
        yield Path(name)


def _unpacked(source: ByteSource, folder: Path) -> tuple[Path, list[Note]]:
    path = folder / "database"
    try:
        with path.open("wb") as out:
            for block in source.blocks():
                out.write(block)
    except OSError as error:
        raise _no_room(source, error) from None
    if source.cut is None:
        return path, []
    text = f"{source.cut[0].upper()}{source.cut[1:]}: the rest of the database is lost."
    return path, [Note("dropped", "input-cut", text)]


def _no_room(source: ByteSource, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(
        f"cannot unpack: {source.label} (in {tempfile.gettempdir()}: {reason})",
        "unpack it on a disk with enough space and give the database, or set TMPDIR",
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """A file beside a database that holds transactions: how to apply it, and what to say then.

    The first of the statements gives 0 or less where there was nothing to recover.
    """

    path: Path
    statements: tuple[str, ...]
    applied: Note
    unread: Note
    usable: bool = True

    def apply(self, plain: Path, folder: Path) -> tuple[Path, list[Note]]:
        """Return a copy of the database to which the log was applied, or the file as it is."""
        copy = folder / "database"
        try:
            if not self.usable:
                raise OSError
            _copy(plain, copy)
            _copy(self.path, copy.with_name(copy.name + self.path.name[len(plain.name) :]))
            changed = _recover(copy, self.statements)
        except (OSError, *FAULTS):
            return plain, [self.unread]
        cut = unfinished_note(self.path, changed)
        return copy, [*([self.applied] if changed else []), *([cut] if cut is not None else [])]


def _copy(path: Path, to: Path, first_bytes: int | None = None) -> None:
    size = path.stat().st_size if first_bytes is None else first_bytes
    if size > shutil.disk_usage(to.parent).free - _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if first_bytes is None:
        shutil.copyfile(path, to)
        return
    with path.open("rb") as stream, to.open("wb") as out:
        while size and (block := stream.read(min(size, _BLOCK_BYTES))):
            size -= out.write(block)


def _recover(copy: Path, statements: tuple[str, ...]) -> int:
    """Let SQLite recover a copy; return what the first statement gives, 0 where it gives less."""
    with closing(sqlite3.connect(copy, isolation_level=None)) as database:
        rows = [database.execute(statement).fetchone() for statement in statements]
    return max(0, rows[0][-1]) if rows[0] is not None else 0


def _log_beside(path: Path) -> _Log | None:
    """Return the log of transactions that lies beside a database, if it holds any."""
    wal, journal = (path.with_name(path.name + end) for end in ("-wal", "-journal"))
    if _ends(wal) is not None:
        return _write_ahead_log(wal)
    ends = _ends(journal)
    if ends is None or ends[0] != _JOURNAL_MAGIC:
        return None  # nothing in it counts: its transaction was finished
    # A journal that names a further file makes SQLite look for that, and delete it.
    return _rollback_journal(journal, usable=ends[1] != _JOURNAL_MAGIC)


def _write_ahead_log(path: Path) -> _Log:
    return _Log(
        path,
        # The first gives as its last number how many pages came from the log.
        ("PRAGMA wal_checkpoint(PASSIVE)", "PRAGMA journal_mode=DELETE"),
        Note(
            "repaired",
            "log-applied",
            "The last transactions were read from the write-ahead log (-wal) beside the database.",
        ),
        Note(
            "missing",
            "log-unread",
            "The write-ahead log (-wal) beside the database could not be read, so the last rows "
            "are missing. Copy both files to a disk with enough space and run there: sqlite3 COPY "
            "'PRAGMA wal_checkpoint(TRUNCATE)'",
        ),
    )


_UNFINISHED = (
    "The database has an unfinished transaction (a -journal file): its writer was stopped or is "
    "still running. "
)


def _rollback_journal(path: Path, *, usable: bool) -> _Log:
    taken_back = f"{_UNFINISHED}It was rolled back in a copy, so the last rows may be missing."
    as_it_is = f"{_UNFINISHED}The database was read unchanged, so the last rows may be incomplete."
    return _Log(
        path,
        ("SELECT 1 FROM sqlite_schema LIMIT 1",),
        Note("repaired", "journal-applied", taken_back),
        Note("missing", "journal-unread", as_it_is),
        usable,
    )


def _ends(path: Path) -> tuple[bytes, bytes] | None:
    """Return the first and the last bytes of a file; None where it is empty or not there."""
    size = len(_JOURNAL_MAGIC)
    try:
        with path.open("rb") as stream:
            head = stream.read(size)
            stream.seek(max(0, path.stat().st_size - size))
            return (head, stream.read(size)) if head else None
    except OSError:
        return None


# The write-ahead log beside an SQLite database (-wal): how much of it was ever finished.
#
# SQLite uses a log up to its last finished transaction, and says nothing of what is behind that.
# Source: the section "WAL File Format" of SQLite's "Database File Format".


_MAGICS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


_WAL_HEADER_BYTES: Final = 32


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
            header = stream.read(_WAL_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            if header[:4] not in _MAGICS or not 512 <= page_bytes <= 65_536:
                return 0
            salts, step = header[16:24], _FRAME_HEADER_BYTES + page_bytes
            pages = -(-(size - _WAL_HEADER_BYTES) // step)
            for place in range(pages):
                stream.seek(_WAL_HEADER_BYTES + place * step)
                if not salts.startswith(stream.read(_FRAME_HEADER_BYTES)[8:16]):
                    return place
            return pages
    except OSError:
        return 0
