"""The folders below which an agent may have files read: whatever it names, nothing else is opened.

Links are followed first, so that one that leads out is refused. Of what is outside nothing is said,
not even whether it is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from glob import escape, glob
from pathlib import Path
from typing import Any, Final

from traceflops.errors import InputError, UsageError
from traceflops.parsers.io import files_behind, find_inputs
from traceflops.parsers.recognise import recognise

Stamps = tuple[tuple[str, int, int], ...]
"""Files, each with its size and the time of its last change."""


_MOST_LOOKED_AT: Final = 500
"""To look at so many files takes about a second."""


class Folders:
    """Folders that may be read."""

    def __init__(self, given: Sequence[str]) -> None:
        """Take the folders. Raises UsageError where one is none."""
        for name in given:
            if not os.path.isdir(name):
                raise UsageError(f"no such folder: {name}", "name folders that hold traces")
        self._roots = tuple(os.path.realpath(name) for name in given)

    def place(self, name: str) -> str:
        """Return the real path of a name. Raises UsageError where that is outside.

        A relative name is looked up in all folders, in their order.
        """
        inside = [path for root in self._roots if (path := self._inside(os.path.join(root, name)))]
        if not inside:
            raise _outside()
        return next(filter(os.path.exists, inside), inside[0])

    def stamps(self, path: str) -> Stamps:
        """Return the files that are read for a path. Raises UsageError where one is outside.

        SQLite also reads files beside a database, whose names begin with that of the database.
        """
        files = dict.fromkeys((path, *files_behind(path), *sorted(glob(f"{escape(path)}-*"))))
        if not all(map(self._inside, files)):
            raise _outside()
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise UsageError(f"neither a file nor a folder: {path}", "list_files shows what is")
        known = [(file, os.stat(file)) for file in files if os.path.exists(file)]
        return tuple((file, status.st_size, status.st_mtime_ns) for file, status in known)

    def listed(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the folders and traces in a folder, or in all, each name as `place` takes it.

        What the first files are is looked at; of so many more all are named.
        """
        looked_at = 0
        for root in [self.place(folder)] if folder else self._roots:
            if not os.path.isdir(root):
                raise UsageError(f"no such folder: {folder}", "list_files() shows what there is")
            for name in sorted(one for one in os.listdir(root) if not one.startswith(".")):
                real = self._inside(os.path.join(root, name))
                if real is None:
                    continue
                path = os.path.join(folder, name)
                path = path if self.place(path) == real else real  # another folder has that name
                if os.path.isdir(real):
                    yield {"folder": path}
                elif os.path.isfile(real):
                    looked_at += 1
                    if looked_at <= _MOST_LOOKED_AT and not _is_known(real):
                        continue
                    yield {"file": path, "bytes": os.path.getsize(real)}

    def without(self, text: str) -> str:
        """Return a text in which paths begin below the folders."""
        for root in sorted({*self._roots} - {os.sep}, key=len, reverse=True):
            text = text.replace(os.path.join(root, ""), "").replace(root, ".")
        return text

    def _inside(self, path: str) -> str | None:
        """Return where a path leads to, None where that is outside or no path can be so."""
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError):  # it holds a zero byte, say
            return None
        return real if any(Path(real).is_relative_to(root) for root in self._roots) else None


def _is_known(file: str) -> bool:
    """Return whether a file is in a format that is known by its first bytes, or an archive."""
    try:
        sources, _ = find_inputs(file)
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(source)) for source in sources]
            return len(opened) > 1 or any(recognise(one).name for one in opened)
    except InputError:
        return False


def _outside() -> UsageError:
    hint = "list_files() shows what there is; links may not lead out of these folders"
    return UsageError("not below the folders that this server reads", hint)
