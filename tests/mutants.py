"""Sixty small faults in the program, each of which the tests of its own room must find.

    python -m tests.mutants [--only WORD]

`mutants.txt` lists them: a file and the tests that must find the fault, the text that stands there
(once), and the fault that takes its place. Each is put into a copy of the sources, and its tests
run there until one fails. A fault that survives is a hole in the tests. Run it by night, and after
tests were removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.conftest import ROOT

_LONGEST_S: Final = 1_200
"""A fault that makes its tests run for longer is found, too."""


class Mutant(NamedTuple):
    """A fault: its file and tests below the repository, what stands there, what takes its place."""

    path: str
    tests: tuple[str, ...]
    old: str
    new: str


def mutants() -> list[Mutant]:
    """Return all mutants of the list."""
    found = []
    for block in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n"):
        head, old, new = block.strip().split("\n")
        path, *tests = head.split()
        found.append(Mutant(path, tuple(tests), old.removeprefix("- "), new.removeprefix("+ ")))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Try the chosen mutants; return 1 where one is not killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", default="", metavar="WORD", help="those with this in their lines")
    only = parser.parse_args(words).only
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=left_out)
        for number, mutant in enumerate(mutants(), 1):
            if only in f"{mutant.path} {mutant.old}":
                end = tried(mutant, copy, number)
                ends[end] += 1
                sys.stdout.write(f"{end:9} {mutant.path}: {mutant.old} -> {mutant.new}\n")
                sys.stdout.flush()
    sys.stdout.write(", ".join(f"{count} {end}" for end, count in ends.most_common()) + "\n")
    return int({*ends} != {"killed"})


def tried(mutant: Mutant, copy: Path, number: int) -> str:
    """Return "killed", "survived", "stale", or "broken" where the tests do not run at all."""
    path = copy / mutant.path
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(mutant.old) != 1:
        return "stale"
    _write(path, text.replace(mutant.old, mutant.new), 2 * number)
    pytest = (sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")
    try:
        done = subprocess.run(
            [*pytest, *mutant.tests],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "ci"},
            capture_output=True,
            check=False,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        _write(path, text, 2 * number + 1)
    return {0: "survived", 1: "killed"}.get(done.returncode, "broken")


def _write(path: Path, text: str, tick: int) -> None:
    """Write a file with a time of its own: Python must see within a second that it changed."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1_000_000_000 + tick, 1_000_000_000 + tick))


if __name__ == "__main__":
    sys.exit(main())
