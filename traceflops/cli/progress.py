"""A progress bar by bytes on stderr, shown only on a terminal and only once a second has passed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from traceflops.parsers.io.inputs import ByteSource

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from traceflops.parsers import Watcher

_PATIENCE_S = 1.0


class _Bar:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._label = ""
        self._total: int | None = None

    def watch(self, source: ByteSource, place: int, inputs: int) -> None:
        """Follow the next input."""
        self._label = "reading" if inputs == 1 else f"reading {place + 1} of {inputs}"
        self._total = source.stored_bytes
        source.progress = self.advance

    def advance(self, done: int) -> None:
        """Show how many bytes of the input are read."""
        if self._progress is None:
            if self._clock() - self._began < _PATIENCE_S:
                return
            self._open()
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=done, total=self._total, description=self._label
            )

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(self._label, total=self._total)
        self._progress.start()

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def watching(clock: Callable[[], float] = time.monotonic) -> Iterator[Watcher | None]:
    """Yield what `read` tells of its inputs: a bar on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(clock)
    try:
        yield bar.watch
    finally:
        bar.close()
