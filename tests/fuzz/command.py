"""Runs the command line in this process, and keeps all that it says and how it ends."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer.main

_FRAME = re.compile(r'File "(?:.*/)?((?:traceflops|parsers|reports)/[^"]+)", line \d+, in (\S+)')


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: object
    stdout: str
    stderr: str
    seconds: float
    where: str = ""


class CommandLine:
    """Runs commands one after the other.

    The output of the process itself is redirected for good, so that nothing is missed that C code
    or a child process prints. To be used only in a process that exists for this.
    """

    def __init__(self) -> None:
        typer.main.get_command = cache(typer.main.get_command)  # half the time of a small input
        for number in (1, 2):
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), number)

    def __call__(self, words: list[str], stdin: Path | None = None) -> Outcome:
        """Return how a command ended, and where it went wrong if it did."""
        outcome = self._once(words, stdin)
        if outcome.code not in (0, 3):
            with _environment("TRACEFLOPS_DEBUG", "1"):
                again = self._once([*words, *(["--force"] if "-o" in words else [])], stdin)
            frames = _FRAME.findall(again.stderr)
            where = " < ".join(f"{file}:{name}" for file, name in reversed(frames[-3:]))
            return Outcome(outcome.code, outcome.stdout, outcome.stderr, outcome.seconds, where)
        return outcome

    def _once(self, words: list[str], stdin: Path | None) -> Outcome:
        for number in (1, 2):
            os.ftruncate(number, 0)
            os.lseek(number, 0, os.SEEK_SET)
        began = time.perf_counter()
        with _streams(words, stdin):
            code = _main()
        seconds = time.perf_counter() - began
        return Outcome(code, _written(1), _written(2), seconds)


def _main() -> object:
    """Run the command line as the installed script does; return its exit code."""
    from traceflops.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:  # what the interpreter does with it
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _streams(words: list[str], stdin: Path | None) -> Iterator[None]:
    """Give the command its words and fresh streams; each warning is shown again."""
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["traceflops", *words]
    with (
        open(stdin or os.devnull, encoding="utf-8") as sys.stdin,
        open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
        open(2, "w", encoding="utf-8", closefd=False) as sys.stderr,
        warnings.catch_warnings(),
    ):
        try:
            yield
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = kept


def _written(number: int) -> str:
    size = os.lseek(number, 0, os.SEEK_END)
    return os.pread(number, size, 0).decode(errors="replace")


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
