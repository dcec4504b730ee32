"""Reports into files: chosen by suffix, never half-written, never over somebody else's file."""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from traceflops.errors import UsageError
from traceflops.reports.authored import NOTHING, Authored
from traceflops.results import Analysis

_BEGINS = {
    ".html": rb"<!doctype html>\n<html lang=\"en\">\n<head>\n[^\x00]*?content=\"traceflops ",
    ".json": rb"\{\s*\"schema\": \"traceflops\.report/",
    ".md": rb"<!-- traceflops\.report/",
}
"""How a report of ours begins, by suffix; an archive says it at its end."""

_IN_ARCHIVE = b"traceflops.report/"
_LOOKED_AT = 1 << 16
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)


def _html(analysis: Analysis, command: str | None, authored: Authored) -> bytes:
    from traceflops.reports.page.html import render_html

    return render_html(analysis, command, authored).encode()


def _json(analysis: Analysis, _: str | None, __: Authored) -> bytes:
    from traceflops.reports.json.report import render_json

    return render_json(analysis).encode() + b"\n"


def _markdown(analysis: Analysis, command: str | None, authored: Authored) -> bytes:
    from traceflops.reports.commandline import base_names
    from traceflops.reports.markdown import render_markdown

    shown = base_names(command) if command else None
    return render_markdown(analysis, shown, authored).encode()


def _zip(analysis: Analysis, command: str | None, authored: Authored) -> bytes:
    """Return all other forms in an archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"traceflops.report/1"
        for suffix, render in RENDERERS.items():
            if render is not _zip:
                member = zipfile.ZipInfo(f"report{suffix}", _FIRST_DATE)
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, render(analysis, command, authored))
    return content.getvalue()


RENDERERS: dict[str, Callable[[Analysis, str | None, Authored], bytes]] = {
    ".html": _html,
    ".json": _json,
    ".md": _markdown,
    ".zip": _zip,
}
"""What writes a report, by the suffix of the file."""


def save(
    analysis: Analysis,
    path: str | Path,
    *,
    force: bool = False,
    command: str | None = None,
    authored: Authored = NOTHING,
) -> Path:
    """Write the report; return its path. Raises UsageError where that is not possible.

    `authored` is the author's title and notes, for the forms that people read.
    """
    target = Path(path)
    check_target(target, force=force)
    write_whole(target, RENDERERS[target.suffix.lower()](analysis, command, authored))
    return target


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that has no renderer, no folder, or is a file that is not ours."""
    if target.suffix.lower() not in RENDERERS:
        raise UsageError(
            f"cannot write a report as {target.suffix or 'a file without suffix'}: {target}",
            f"give a name that ends in {', '.join(RENDERERS)}",
        )
    check_place(target)
    if target.exists() and not force and not _is_ours(target):
        raise UsageError(
            f"will not overwrite a file that is not a report of ours: {target}",
            "choose another name with -o, or give --force",
        )


def check_new(target: Path, *, force: bool) -> None:
    """Refuse a target that cannot be, or that is there already."""
    check_place(target)
    if target.exists() and not force:
        raise UsageError(f"already there: {target}", "choose another name with -o, or give --force")


def check_place(target: Path) -> None:
    """Refuse a target whose folder does not exist or that is itself a folder."""
    if target.is_dir():
        raise UsageError(f"is a folder: {target}", "give the name of a file with -o")
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}", "make the folder first")


def _is_ours(target: Path) -> bool:
    """Return whether a file begins, or as an archive ends, as a report of ours does."""
    try:
        with target.open("rb") as file:
            begins = file.read(_LOOKED_AT)
            file.seek(-min(_LOOKED_AT, target.stat().st_size), os.SEEK_END)
            ends = file.read()
    except OSError:
        return False
    suffix = target.suffix.lower()
    if suffix == ".zip":
        return _IN_ARCHIVE in ends
    return re.match(_BEGINS[suffix], begins) is not None


def write_whole(target: Path, content: bytes) -> None:
    """Write a file so that it is whole or not there."""
    write_pieces(target, (content,))


def write_pieces(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file under another name and rename it, so that it is whole or not there."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:60]}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException as error:
        with suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError):
            raise _unwritable(target, error) from None
        raise


def _unwritable(target: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write: {target} ({error.strerror or error})",
        "choose a place that is writable and has room with -o",
    )
