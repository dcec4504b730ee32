"""What a command costs: wall and CPU time, and the peak memory of all its processes together."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from tests.conftest import ROOT

_EVERY_S = 0.02
_REST = 19
"""So much longer than a look takes is the rest after it: looking is work for a core, too."""
_SUMS_UP = all(
    Path("/proc", str(os.getpid()), name).exists()
    for name in ("smaps_rollup", f"task/{os.getpid()}/children")
)

MEMORY = (
    "the largest sum of PSS over the process and all its descendants, looked at every 20 ms or, "
    "where that takes longer than 1 ms, for 5 % of the time"
    if _SUMS_UP
    else "the largest RSS of a single process: this system does not tell more"
)
"""What the memory of a cost is on this system."""


class Failed(Exception):
    """A command did not end well; the message has what it wrote to stderr."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took: wall and CPU seconds, peak memory in MB, and what it printed.

    CPU seconds include those of all processes that the command started and waited for.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str = ""


def best(words: list[str], runs: int) -> Cost:
    """Return the run with the least wall time, with the memory of the first run.

    Memory is looked at in the first run only, so that the others are not disturbed by it.
    """
    first = run(words)
    costs = [first, *(run(words, watched=False) for _ in range(runs - 1))]
    return replace(min(costs, key=lambda cost: cost.wall_s), peak_mb=first.peak_mb)


def run(words: list[str], *, watched: bool = True) -> Cost:
    """Run a command at the root of the repository and return its cost. Raises Failed."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        began = time.perf_counter()
        child = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=complaints)
        watch = _Watch(child.pid) if watched and _SUMS_UP else None
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        sum_mb = watch.stop() if watch else 0.0
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise Failed(f"{_start(words)} ended with {child.returncode}:\n{_text(complaints)}")
        largest_mb = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
        cpu = usage.ru_utime + usage.ru_stime
        return Cost(wall, cpu, sum_mb or largest_mb, _text(output))


def _start(words: list[str]) -> str:
    return " ".join(words)[:200]


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _Watch:
    """Looks at the memory of a process and its descendants until it is stopped."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the peak in MB."""
        self._over.set()
        self._thread.join()
        return self._peak_bytes / 1e6

    def _look(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            now = sum(_pss_bytes(process) for process in _family(self._root))
            self._peak_bytes = max(self._peak_bytes, now)
            self._over.wait(max(_EVERY_S, _REST * (time.perf_counter() - began)))


def _family(process: int) -> Iterator[int]:
    """Yield a process and its descendants; some may have ended by then."""
    yield process
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        for child in _read(listed).split():
            yield from _family(int(child))


def _pss_bytes(process: int) -> int:
    for line in _read(Path(f"/proc/{process}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
