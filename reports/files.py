"""Files that are whole or not there, and never written over somebody else's.

A file is written beside its place under a name of its own (`.NAME.*.traceflops-part`) and then
renamed. A link is followed: what it leads to is replaced, the link stays; one that leads to nothing
only where that is forced. What a killed run left behind is removed by a later one that writes the
same file.
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
    ".md": rb"<!-- traceflops\.(?:report|comparison)/",
    ".xml": rb"<testsuites name=\"traceflops check\"",
}
"""How a report of ours begins, by suffix; an archive says it at its end."""
MARK: Final = b"traceflops.output/1"
"""What tables (at the end) and timelines (at the beginning) of ours say in their files."""
_HEADER: Final = re.compile(rb'"[a-z]\w*"(?:,"[a-z]\w*")+\n')
"""How a table of ours begins as CSV, in which no mark has a place."""
_IN_ARCHIVE: Final = b"traceflops.report/"
_LOOKED_AT: Final = 1 << 16
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
    """Refuse a target that cannot be, or that is a file of somebody else unless forced."""
    check_place(target)
    if target.is_symlink() and not target.exists() and not force:  # its place was not asked for
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
    """Refuse a target where no file can be: its folder is not there or closed, or it is no file."""
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
    """Return the file that is meant: of a link, what it leads to."""
    try:
        real = target.resolve()
    except RuntimeError:  # what Python before 3.13 says of a link that leads to itself
        real = target
    if real.is_symlink():
        raise UsageError(f"a link that leads to itself: {target}", "give another name with -o")
    return real


def is_report(target: Path) -> bool:
    """Return whether a file is a report of ours: it begins, or as an archive ends, as these do."""
    suffix, (begins, ends) = target.suffix.lower(), _both_ends(target)
    if suffix == ".zip":
        return _IN_ARCHIVE in ends
    return suffix in _BEGINS and re.match(_BEGINS[suffix], begins) is not None


def is_ours(target: Path) -> bool:
    """Return whether traceflops wrote a file: a report, a table or a timeline."""
    suffix, (begins, ends) = target.suffix.lower(), _both_ends(target)
    if suffix == ".gz":
        with suppress(zlib.error):
            begins = zlib.decompressobj(wbits=31).decompress(begins, _LOOKED_AT)  # 31: gzip
    marked = {".csv": _HEADER.match(begins) is not None}
    marked |= dict.fromkeys((".json", ".gz"), MARK in begins)
    marked |= dict.fromkeys((".parquet", ".arrow"), MARK in ends)
    marked[".tfpack"] = PACK.encode() in begins
    return marked.get(suffix, False) or is_report(target)


def ends_in(target: Path, mark: bytes) -> bool:
    """Return whether a file ends so."""
    return _both_ends(target)[1].endswith(mark)


def _both_ends(target: Path) -> tuple[bytes, bytes]:
    """Return how a file begins and ends; nothing where it cannot be read."""
    try:
        if not target.is_file():
            return b"", b""
        with target.open("rb") as file:
            begins = file.read(_LOOKED_AT)
            file.seek(-min(_LOOKED_AT, target.stat().st_size), os.SEEK_END)
            return begins, file.read()
    except OSError:
        return b"", b""


def write_pieces(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file under another name and rename it, so that it is whole or not there."""
    write_together([(target, pieces)])


def write_together(files: Iterable[tuple[Path, Iterable[bytes]]]) -> None:
    """Write files so that all of them are whole, or none is new."""
    unfinished: dict[Path, Path] = {}  # what files will be, by the name that they are written as
    new: list[Path] = []
    try:
        for target, pieces in files:
            try:
                _write_beside(_real(target), pieces, unfinished)
            except OSError as error:
                raise _unwritable(target, error) from None
        for name, real in unfinished.items():
            try:
                if not real.exists():
                    new.append(real)
                name.replace(real)
            except OSError as error:
                raise _unwritable(real, error) from None
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    finally:
        for name in unfinished:
            with suppress(OSError):
                name.unlink(missing_ok=True)


def _write_beside(target: Path, pieces: Iterable[bytes], unfinished: dict[Path, Path]) -> None:
    """Write what is to become a file; until it is whole, only its owner may read it."""
    stem = os.fsencode(target.name)[:_LONGEST_STEM].decode(sys.getfilesystemencoding(), "ignore")
    # What runs that were killed left of it goes; those of today may still be at work.
    with suppress(OSError):  # a folder may be writable and not be listed
        for beside in target.parent.iterdir():
            is_part = beside.name.startswith(f".{stem}.") and beside.name.endswith(_UNFINISHED)
            if is_part and time.time() - beside.stat().st_mtime > _ABANDONED_S:
                beside.unlink()
    name = target.with_name(f".{stem}.{token_hex(8)}{_UNFINISHED}")
    unfinished[name] = target  # before it is there: a signal may come at any time
    with open(name, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.writelines(pieces)
    try:
        rights = stat.S_IMODE(target.stat().st_mode)
    except OSError:
        umask = os.umask(0)  # it can only be read by setting it
        os.umask(umask)
        rights = 0o666 & ~umask
    name.chmod(rights)


def _unwritable(target: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write: {target} ({error.strerror or error})", remedy(error))


def remedy(error: OSError) -> str:
    """Return what to do where a file could not be read or written."""
    return _REMEDIES.get(error.errno or 0, "choose another place")
