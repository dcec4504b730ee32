"""The folders below which an agent may have files read: nothing else is opened, whatever it names.

Links are followed first, so one that leads out is refused. A refusal tells nothing of what is
outside, not even whether it exists.
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
"""Files, each with its size and the time of its last change in ns."""
_MOST_OPENED: Final = 500
"""So many files per listing are opened to see what they are, which takes about a second."""

_OUTSIDE: Final = (
    "not below the folders that this server reads",
    "list_files() shows what there is; links may not lead out of these folders",
)


class Folders:
    """Folders that may be read, and checks that a path stays inside them."""

    def __init__(self, names: Sequence[str]) -> None:
        """Store the real paths of the folders. Raises UsageError if one is not a folder."""
        for name in names:
            if not os.path.isdir(name):
                raise UsageError(f"no such folder: {name}", "name folders that hold traces")
        self._roots = tuple(os.path.realpath(name) for name in names)

    def path(self, name: str) -> str:
        """Return the real path of a name. Raises UsageError if it is outside.

        A relative name is looked up in all folders, in their order. If it exists in none, its path
        in the first folder is returned.
        """
        inside = [path for root in self._roots if (path := self._inside(os.path.join(root, name)))]
        if not inside:
            raise UsageError(*_OUTSIDE)
        return next(filter(os.path.exists, inside), inside[0])

    def stamps(self, path: str) -> Stamps:
        """Return the files that are read for a path. Raises UsageError if one is outside.

        These include files that SQLite reads beside a database, whose names begin with that of the
        database and "-", and captures of graphs beside a trace.
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
        """Yield the folders and traces in a folder ("" for all roots), named as `path` takes them.

        The first _MOST_OPENED files are opened, and left out if they are no traces. Later files are
        listed unopened.
        """
        opened = 0
        for root in [self.path(folder)] if folder else self._roots:
            if not os.path.isdir(root):
                raise UsageError(f"no such folder: {folder}", "list_files() shows what there is")
            for name in sorted(entry for entry in os.listdir(root) if not entry.startswith(".")):
                real = self._inside(os.path.join(root, name))
                if real is None:  # a link that leads out of the folders
                    continue
                path = os.path.join(folder, name)
                # If another root has that name, too, `path` would find the other one.
                path = path if self.path(path) == real else real
                if os.path.isdir(real):
                    yield {"folder": path}
                elif os.path.isfile(real):
                    opened += 1
                    if opened <= _MOST_OPENED and not _is_known(real):
                        continue
                    yield {"file": path, "bytes": os.path.getsize(real)}

    def without(self, text: str) -> str:
        """Return a text with the folders removed from the paths in it; a folder itself is "."."""
        for root in sorted({*self._roots} - {os.sep}, key=len, reverse=True):
            text = text.replace(os.path.join(root, ""), "").replace(root, ".")
        return text

    def _inside(self, path: str) -> str | None:
        """Return the real path, None if it is outside or no valid path."""
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError):  # e.g. a zero byte
            return None
        return real if any(Path(real).is_relative_to(root) for root in self._roots) else None


def _is_known(file: str) -> bool:
    """Return whether a file is an archive of several, or its first bytes are of a known format."""
    try:
        sources, _ = find_inputs(file)
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(source)) for source in sources]
            return len(opened) > 1 or any(recognise(source).name for source in opened)
    except InputError:
        return False
