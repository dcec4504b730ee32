"""Tries inputs in a process of its own, which is ended where it hangs or takes too much memory."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.cases import INPUT, OUTPUT, Case, Maker, Order
from tests.fuzz.checks import problems
from tests.fuzz.command import CommandLine, Outcome

LIMIT_S = 10.0
"""More processor time than this is a hang; so is more than BLOCKED times it on the clock."""
BLOCKED = 6
MEMORY_BYTES = 3 << 30
_SCHEMA_EVERY = 2
# Forked from a process that has imported all this once and runs nothing.
_SPACE = multiprocessing.get_context("forkserver")
_SPACE.set_forkserver_preload(["tests.fuzz.bench", "traceflops.cli.report"])

Runner = Callable[[list[str], Path | None], Outcome]
"""Runs a command, with a file as standard input or none."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one input. `problem` is None where all is well."""

    order: Order
    problem: str | None
    seconds: float
    code: object = None
    peak_mb: float = 0.0

    @property
    def kind(self) -> str:
        """The problem without what differs from input to input, to tell kinds apart."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"| of \S+ is| < .*", "…", self.problem or "")
        return re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:200]


@dataclass(frozen=True, slots=True)
class Job:
    """What a bench is to know: where inputs come from, what runs them, and its limits.

    `start` is called in the new process and returns what runs commands.
    """

    maker: Maker
    start: Callable[[], Runner] = CommandLine
    limit_s: float = LIMIT_S
    memory_bytes: int = MEMORY_BYTES


class Bench:
    """One process that tries one input at a time; it is started again when it had to be ended."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._order: Order | None = None
        self._deadline = 0.0
        self._open()

    def _open(self) -> None:
        self.connection, there = _SPACE.Pipe()
        self._folder = tempfile.mkdtemp(prefix="fuzz-")
        words = (there, self._job, Path(self._folder))
        self._process = _SPACE.Process(target=_serve, args=words, daemon=True)
        self._process.start()
        there.close()
        self._began = 0.0
        if not self.connection.poll(60):
            raise RuntimeError("a process did not start")
        self.connection.recv()

    @property
    def deadline(self) -> float:
        """When the present input is a hang, on the clock of time.monotonic."""
        return self._deadline

    def give(self, order: Order) -> None:
        """Begin an input."""
        self._order = order
        self._began = time.monotonic()
        self._deadline = self._began + BLOCKED * self._job.limit_s
        self.connection.send(order)

    def take(self) -> Result | None:
        """Return what became of the input, None while it is tried."""
        assert self._order is not None
        if self.connection.poll():
            try:
                result: Result = self.connection.recv()
            except (EOFError, OSError):
                return self._ended(self._order)
            return result
        if time.monotonic() < self._deadline:
            return None
        return self._lost(self._order, self._hang)

    @property
    def _hang(self) -> str:
        return f"a hang: over {self._job.limit_s:g} s"

    def _ended(self, order: Order) -> Result:
        self._process.join(10)
        code = self._process.exitcode
        if code == -signal.SIGPROF:
            return self._lost(order, self._hang)
        how = signal.Signals(-code).name if code is not None and code < 0 else f"code {code}"
        return self._lost(order, f"the process died: {how}")

    def _lost(self, order: Order, problem: str) -> Result:
        """Return what became of an input that took the process with it; start another."""
        seconds = time.monotonic() - self._began
        self.close()
        self._open()
        return Result(order, problem, seconds)

    def ask(self, order: Order) -> Result:
        """Try one input to its end."""
        self.give(order)
        while (result := self.take()) is None:
            self.connection.poll(max(0.0, self._deadline - time.monotonic()))
        return result

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()
        shutil.rmtree(self._folder)


def _serve(connection: Connection, job: Job, folder: Path) -> None:
    """Answer orders until nobody asks any more."""
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    os.environ.pop("TRACEFLOPS_DEBUG", None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    run = job.start()
    connection.send("ready")
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_tried(job.maker.make(order), order, run, folder, job.limit_s))


def _tried(case: Case, order: Order, run: Runner, folder: Path, limit_s: float) -> Result:
    """Return what became of an input; nothing of it is left."""
    place = folder / "case"
    place.mkdir()
    try:
        words, stdin = lay_out(case, place)
        # What is busy for too long is ended by the system; what waits for ever, by the bench.
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        outcome = run(words, stdin)
        signal.setitimer(signal.ITIMER_PROF, 0)
        output = Path(words[words.index("-o") + 1]) if "-o" in words else place
        thorough = case.number % _SCHEMA_EVERY == 0
        found = problems(words, outcome, output, thorough)
    finally:
        shutil.rmtree(place)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Result(order, found[0] if found else None, outcome.seconds, outcome.code, peak)


def lay_out(case: Case, folder: Path) -> tuple[list[str], Path | None]:
    """Write the files of an input; return the command, and what is its standard input."""
    inputs = folder / "input"
    inputs.mkdir(parents=True)
    for name, data in case.files.items():
        (inputs / name).write_bytes(data)
    path = inputs if len(case.files) > 1 else inputs / next(iter(case.files))
    names = {INPUT: str(path), OUTPUT: str(folder / "output")}
    words = []
    for word in case.command:
        for name, value in names.items():
            word = word.replace(name, value)
        words.append(word)
    return words, path if "-" in case.command else None
