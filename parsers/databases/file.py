"""Where the database of an input lies on disk, so that SQLite can open it and nothing is written.

SQLite wants a file. One that is packed or comes through a pipe is unpacked into a temporary file;
one whose last transactions lie in a log beside it is copied together with that log.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceflops.errors import InputError
from traceflops.parsers.inputs import ByteSource
from traceflops.trace import Note

MAGIC: Final = b"SQLite format 3\x00"

_HEADER_BYTES: Final = 100
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
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
    if plain is not None and log is None:
        yield _measured(plain, ())
        return
    with _temporary_folder(source) as folder:
        if plain is None:
            copy, notes = _unpacked(source, folder)
        else:
            assert log is not None
            copy, notes = log.apply(plain, folder)
        yield _measured(copy, tuple(notes))


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


def _measured(path: Path, notes: tuple[Note, ...]) -> PlacedFile:
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
    size = path.stat().st_size
    return PlacedFile(path, size, max(0, _stated_bytes(header) - size), notes)


def _stated_bytes(header: bytes) -> int:
    """Return how large a database is by its own header; 0 where that is not stated or not valid."""
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0  # written by a version that does not keep the size
    page_bytes = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65_536 if page_bytes == 1 else page_bytes)


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
    text = (
        f"{source.cut[0].upper()}{source.cut[1:]}: what lies behind that in the database is lost."
    )
    return path, [Note("dropped", "input-cut", text)]


def _no_room(source: ByteSource, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(
        f"cannot unpack: {source.name} (in {tempfile.gettempdir()}: {reason})",
        "unpack it where there is room and give the database itself, or set TMPDIR",
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
        except (OSError, sqlite3.Error):
            return plain, [self.unread]
        return copy, [self.applied] if changed else []


def _copy(path: Path, to: Path) -> None:
    if path.stat().st_size > shutil.disk_usage(to.parent).free - _SPARE_BYTES:
        raise OSError
    shutil.copyfile(path, to)


def _recover(copy: Path, statements: tuple[str, ...]) -> bool:
    """Let SQLite recover a copy; return whether there was anything to recover."""
    with closing(sqlite3.connect(copy, isolation_level=None)) as database:
        rows = [database.execute(statement).fetchone() for statement in statements]
    return rows[0] is not None and rows[0][-1] > 0


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
            "The last transactions lay in a log beside the database (-wal); they were read with "
            "it, from a copy.",
        ),
        Note(
            "missing",
            "log-unread",
            "A log of transactions (-wal) lies beside the database and could not be read with it: "
            "the last rows are missing. Copy both to a disk with room and run there: sqlite3 COPY "
            "'PRAGMA wal_checkpoint(TRUNCATE)'",
        ),
    )


_UNFINISHED = (
    "A transaction was not finished when the file was taken (a -journal lies beside it): its "
    "writer was stopped, or is still running. "
)


def _rollback_journal(path: Path, *, usable: bool) -> _Log:
    taken_back = f"{_UNFINISHED}It was taken back in a copy, so the last rows may be missing."
    as_it_is = f"{_UNFINISHED}The database was read as it is, so its last rows may be incomplete."
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
