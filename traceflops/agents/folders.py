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
from traceflops.front.files import captures_beside
from traceflops.parsers.io.places import files_behind, find_inputs
from traceflops.parsers.recognise import recognise

Stamps = tuple[tuple[str, int, int], ...]
"""Files, each with its size and the time of its last change."""
_MOST_OPENED: Final = 500
"""How many files are opened to see what they are: this takes about a second."""


_OUTSIDE: Final = (
    "not below the folders that this server reads",
    "list_files() shows what there is; links may not lead out of these folders",
)


class Folders:
    """Folders that may be read."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take the folders. Raises UsageError where one is none."""
        for name in names:
            if not os.path.isdir(name):
                raise UsageError(f"no such folder: {name}", "name folders that hold traces")
        self._roots = tuple(os.path.realpath(name) for name in names)

    def path(self, name: str) -> str:
        """Return the real path of a name. Raises UsageError where that is outside.

        A relative name is looked up in all folders, in their order.
        """
        inside = [path for root in self._roots if (path := self._inside(os.path.join(root, name)))]
        if not inside:
            raise UsageError(*_OUTSIDE)
        return next(filter(os.path.exists, inside), inside[0])

    def stamps(self, path: str) -> Stamps:
        """Return the files that are read for a path. Raises UsageError where one is outside.

        Beside a database SQLite also reads files whose names begin with its name, and captures of
        graphs beside a trace are read with it.
        """
        captures = captures_beside([path])
        beside = files_behind(str(captures)) if captures is not None else ()
        files = dict.fromkeys(
            (path, *files_behind(path), *sorted(glob(f"{escape(path)}-*")), *beside)
        )
        if not all(map(self._inside, files)):
            raise UsageError(*_OUTSIDE)
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise UsageError(f"neither a file nor a folder: {path}", "list_files shows what is")
        statuses = {file: os.stat(file) for file in files if os.path.exists(file)}
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in statuses.items())

    def listed(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the folders and traces in a folder, or in all, each name as `path` takes it.

        The first files are opened, to see whether they are traces; of further ones all are named.
        """
        opened = 0
        for root in [self.path(folder)] if folder else self._roots:
            if not os.path.isdir(root):
                raise UsageError(f"no such folder: {folder}", "list_files() shows what there is")
            for name in sorted(entry for entry in os.listdir(root) if not entry.startswith(".")):
                real = self._inside(os.path.join(root, name))
                if real is None:
                    continue
                path = os.path.join(folder, name)
                path = path if self.path(path) == real else real  # another folder has that name
                if os.path.isdir(real):
                    yield {"folder": path}
                elif os.path.isfile(real):
                    opened += 1
                    if opened <= _MOST_OPENED and not _is_known(real):
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
            return len(opened) > 1 or any(recognise(source).name for source in opened)
    except InputError:
        return False
