"""Reports into files: chosen by suffix, never half-written, never over somebody else's file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from traceflops.errors import UsageError
from traceflops.results import Analysis

_OURS = (b"traceflops.report/", b'content="traceflops')
_LOOKED_AT = 1 << 16


def _html(analysis: Analysis, command: str | None) -> str:
    from traceflops.reports.html import render_html

    return render_html(analysis, command)


def _json(analysis: Analysis, _: str | None) -> str:
    from traceflops.reports.json import render_json

    return render_json(analysis) + "\n"


RENDERERS: dict[str, Callable[[Analysis, str | None], str]] = {".html": _html, ".json": _json}
"""What writes a report, by the suffix of the file."""


def save(
    analysis: Analysis, path: str | Path, *, force: bool = False, command: str | None = None
) -> Path:
    """Write the report; return its path. Raises UsageError where that is not possible."""
    target = Path(path)
    check_target(target, force=force)
    write_whole(target, RENDERERS[target.suffix.lower()](analysis, command).encode())
    return target


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that has no renderer, no folder, or is a file that is not ours."""
    if target.suffix.lower() not in RENDERERS:
        raise UsageError(
            f"cannot write a report as {target.suffix or 'a file without suffix'}: {target}",
            f"give a name that ends in {' or '.join(RENDERERS)}",
        )
    check_place(target)
    if target.exists() and not force and not _is_ours(target):
        raise UsageError(
            f"will not overwrite a file that is not a report of ours: {target}",
            "choose another name with -o, or give --force",
        )


def check_place(target: Path) -> None:
    """Refuse a target whose folder does not exist or that is itself a folder."""
    if target.is_dir():
        raise UsageError(f"is a folder: {target}", "give the name of a file with -o")
    if not target.parent.is_dir():
        raise UsageError(f"no such folder: {target.parent}", "make the folder first")


def _is_ours(target: Path) -> bool:
    try:
        with target.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except OSError:
        return False
    return any(sign in head for sign in _OURS)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that it is whole or not there."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:60]}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
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
