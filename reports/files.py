"""Writes files atomically, and never over a file that traceflops did not write.

A file is written beside its target under another name (`.NAME.*.traceflops-part`) and then renamed.
A link is followed: its target is replaced, the link stays. A link to a missing file is only
followed with --force. Parts that a killed run left behind are removed by a later run that writes
the same file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final

from traceflops.errors import MORE_MEMORY, UsageError
from traceflops.table.packed import PACK

_BEGINS = {
    ".html": rb"<!doctype html>\n<html lang=\"en\">\n<head>\n[^\x00]*?content=\"traceflops ",
    ".json": rb"\{\s*\"schema\": \"traceflops\.(?:report|comparisons?)/",
    ".md": rb"<!-- traceflops\.(?:report|comparison)/|---\nname: traceflops\n",
    ".py": rb'"""[^\x00]{1,2000}\nWritten by traceflops\.',
    ".xml": rb"<testsuites name=\"traceflops check\"",
}
"""Patterns of how our reports begin, by suffix; an archive has its mark at the end."""
MARK: Final = b"traceflops.output/1"
"""The mark in our files: of tables near the end, of timelines near the beginning."""
_HEADER: Final = re.compile(rb'"[a-z]\w*"(?:,"[a-z]\w*")+\n')
"""The first line of our tables as CSV, which cannot have a mark."""
_IN_ARCHIVE: Final = b"traceflops.report/"
_END_BYTES: Final = 1 << 16  # how much of each end of a file is searched for marks
_UNFINISHED: Final = ".traceflops-part"
_ABANDONED_S: Final = 24 * 3600
_LONGEST_STEM: Final = 60
_REMEDIES: Final = {
    errno.ENOMEM: MORE_MEMORY,
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or choose another place"
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "choose a place for which you have permission"
    ),
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "choose a place inside a folder",
}


def check_replaced(target: Path, *, force: bool) -> None:
    """Raise UsageError if a target cannot be written, or unless forced, is a file not by us."""
    check_place(target)
    if target.is_symlink() and not target.exists() and not force:
        raise UsageError(
            f"a link to a file that does not exist: {target}",
            "choose another name with -o, or give --force to make that file",
        )
    if target.exists() and not force and not is_ours(target):
        raise UsageError(
            f"will not overwrite a file that traceflops did not write: {target}",
            "choose another name with -o, or give --force",
        )


def check_place(target: Path) -> None:
    """Raise UsageError if no file can be written there: no folder, no permission, no file."""
    try:
        real = _real(target)
        if real.is_dir():
            raise UsageError(f"a folder, not a file: {target}", "give a file name with -o")
        if real.exists() and not real.is_file():
            raise UsageError(f"not a regular file: {target}", "give another file name with -o")
        if not real.parent.is_dir():
            raise UsageError(f"no such folder: {real.parent}", "create the folder first")
        if not os.access(real.parent, os.W_OK | os.X_OK):
            raise _unwritable(target, PermissionError(errno.EACCES, "no write permission"))
    except OSError as error:
        raise _unwritable(target, error) from None


def _real(target: Path) -> Path:
    """Return the file itself: the target of a link. Raises UsageError for a loop of links."""
    try:
        real = target.resolve()
    except RuntimeError:  # Python before 3.13 raises this for a loop
        real = target
    if real.is_symlink():
        raise UsageError(f"a link that leads to itself: {target}", "give another name with -o")
    return real


def is_report(target: Path) -> bool:
    """Return whether traceflops wrote a file as a report, by its beginning or as an archive."""
    suffix, (beginning, end) = target.suffix.lower(), _both_ends(target)
    if suffix == ".zip":
        return _IN_ARCHIVE in end
    return suffix in _BEGINS and re.match(_BEGINS[suffix], beginning) is not None


def is_ours(target: Path) -> bool:
    """Return whether traceflops wrote a file: a report, a table, a timeline or a pack."""
    suffix, (beginning, end) = target.suffix.lower(), _both_ends(target)
    if suffix == ".gz":
        with suppress(zlib.error):
            beginning = zlib.decompressobj(wbits=31).decompress(beginning, _END_BYTES)  # 31: gzip
    is_marked = {
        ".csv": _HEADER.match(beginning) is not None,
        ".tfpack": PACK.encode() in beginning,
        **dict.fromkeys((".json", ".gz"), MARK in beginning),
        **dict.fromkeys((".parquet", ".arrow"), MARK in end),
    }
    return is_marked.get(suffix, False) or is_report(target)


def ends_in(target: Path, mark: bytes) -> bool:
    """Return whether a file ends with a mark."""
    _, end = _both_ends(target)
    return end.endswith(mark)


def _both_ends(target: Path) -> tuple[bytes, bytes]:
    """Return the first and the last _END_BYTES of a file, b"" if it cannot be read."""
    try:
        if not target.is_file():
            return b"", b""
        with target.open("rb") as file:
            beginning = file.read(_END_BYTES)
            file.seek(-min(_END_BYTES, target.stat().st_size), os.SEEK_END)
            return beginning, file.read()
    except OSError:
        return b"", b""


def write_pieces(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically. Raises UsageError if it cannot be written."""
    write_together([(target, pieces)])


def write_together(files: Iterable[tuple[Path, Iterable[bytes]]]) -> None:
    """Write several files, all of them or no new one. Raises UsageError if that is impossible."""
    target_of: dict[Path, Path] = {}  # by the name under which a file is written at first
    new: list[Path] = []
    try:
        for target, pieces in files:
            try:
                _write_beside(_real(target), pieces, target_of)
            except OSError as error:
                raise _unwritable(target, error) from None
        for part, target in target_of.items():
            try:
                if not target.exists():
                    new.append(target)
                part.replace(target)
            except OSError as error:
                raise _unwritable(target, error) from None
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    finally:
        for part in target_of:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _write_beside(target: Path, pieces: Iterable[bytes], target_of: dict[Path, Path]) -> None:
    """Write a file under another name, which is added to `target_of`; give it its permissions."""
    stem = os.fsencode(target.name)[:_LONGEST_STEM].decode(sys.getfilesystemencoding(), "ignore")
    # Remove parts that killed runs left behind; runs of younger parts may still be writing.
    with suppress(OSError):  # the folder may be writable, but not readable
        for sibling in target.parent.iterdir():
            is_part = sibling.name.startswith(f".{stem}.") and sibling.name.endswith(_UNFINISHED)
            if is_part and time.time() - sibling.stat().st_mtime > _ABANDONED_S:
                sibling.unlink()
    part = target.with_name(f".{stem}.{token_hex(8)}{_UNFINISHED}")
    target_of[part] = target  # before the part exists, as a signal may come at any time
    with open(part, "xb", opener=partial(os.open, mode=0o600)) as file:  # not yet for others
        file.writelines(pieces)
    try:
        permissions = stat.S_IMODE(target.stat().st_mode)
    except OSError:
        umask = os.umask(0)  # it can only be read by setting it
        os.umask(umask)
        permissions = 0o666 & ~umask
    part.chmod(permissions)


def _unwritable(target: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write: {target} ({error.strerror or error})", remedy(error))


def remedy(error: OSError) -> str:
    """Return what to do about an error of reading or writing a file."""
    return _REMEDIES.get(error.errno or 0, "choose another place")
