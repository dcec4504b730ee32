"""`python -m tests.same_output record FOLDER`, then `compare FOLDER`: what users see is the same.

Records what the commands print and write for every sample, fixture and shared trace, to compare it
after a change of the structure. What it records stays in the given folder: it is not committed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from typer.testing import CliRunner

from tests.conftest import ROOT, SAMPLES
from traceflops.cli import app

_LINES_SHOWN = 12
_COLUMNS_SHOWN = 400
_COMMANDS: Final = {
    "summary.txt": ("summary", "{trace}"),
    "summary.json": ("summary", "{trace}", "--json"),
    "info.txt": ("info", "{trace}"),
    "mfu.txt": ("mfu", "{trace}"),
    "mfu.json": ("mfu", "{trace}", "--json"),
    "what_if.txt": ("what-if", "{trace}", "sync=0", "launch_latency=0", "communication=hidden"),
    "check.txt": ("check", "{trace}", "--min-mfu", "0.3", "--no-finding", "low"),
    "query.txt": ("query", "{trace}", "select * from activities order by all limit 20"),
    "compare.txt": ("compare", "{before}", "{trace}"),
    "compare.json": ("compare", "{before}", "{trace}", "--json"),
    "report.txt": ("report", "{trace}", "-o", "{out}/report.html"),
    "report.md.txt": ("report", "{trace}", "-o", "{out}/report.md"),
    "export.txt": ("export", "{trace}", "-o", "{out}/tables", "--format", "csv"),
    "reduce.txt": ("reduce", "{trace}", "-o", "{out}/reduced"),
    "reduced.txt": ("summary", "{out}/reduced"),
    "reduced.json": ("summary", "{out}/reduced", "--json"),
    "reduced_report.txt": ("report", "{out}/reduced", "-o", "{out}/reduced.html"),
    "reduced_compare.txt": ("compare", "{out}/reduced", "{trace}"),
}
"""What is run on each input, in this order; `before` is the input before it in the list."""


class Input(NamedTuple):
    """What is read, under the name of a folder, and the input before it."""

    name: str
    path: Path
    before: Path


def inputs() -> Iterator[Input]:
    """Yield files, and folders that are read as one."""
    places = {"samples": SAMPLES, "fixtures": ROOT / "tests" / "fixtures"}
    if shared := os.environ.get("TRACEFLOPS_SHARED"):
        places["traces"] = Path(shared) / "traces"
        places["verdicts"] = Path(shared) / "verdicts" / "files"
    for place, folder in places.items():
        paths = [path for path in sorted(folder.rglob("*")) if _is_input(path)]
        for before, path in pairwise([*paths[:1], *paths]):
            name = re.sub(r"\W+", "_", f"{place}/{path.relative_to(folder)}")
            yield Input(name, path, before)


def _is_input(path: Path) -> bool:
    if path.suffix in (".py", ".md", ".toml") or "expected" in path.name:
        return False
    if {"__pycache__", "LICENSES"} & set(path.parts):
        return False
    return path.is_file() or any(child.is_file() for child in path.iterdir())


def outputs(trace: Input) -> Iterator[tuple[str, bytes]]:
    """Yield what each command says of an input, and what it writes, under a name."""
    for columns in (80, 120):
        yield f"summary.{columns}.txt", _run(columns, "summary", str(trace.path))
    with tempfile.TemporaryDirectory() as folder:
        for name, command in _COMMANDS.items():
            words = [
                word.format(trace=trace.path, before=trace.before, out=folder) for word in command
            ]
            yield name, _run(100, *words).replace(folder.encode(), b"OUT")
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".html", ".md", ".csv"):
                yield path.name, path.read_bytes()


def _run(columns: int, *words: str) -> bytes:
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    result = CliRunner().invoke(app, list(words), env=environment)
    text = result.output.replace(str(ROOT), ".")
    return f"{text}\nexit code {result.exit_code}\n".encode()


def record(folder: Path, trace: Input) -> tuple[int, int]:
    """Write the outputs of an input; return their number, and none that differ."""
    count = 0
    for kind, content in outputs(trace):
        target = folder / trace.name / kind
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        count += 1
    return count, 0


def compare(folder: Path, trace: Input) -> tuple[int, int]:
    """Print how the outputs of an input differ; return their number, and of those that do."""
    after = dict(outputs(trace))
    recorded = {path.name for path in (folder / trace.name).glob("*")}
    kinds = sorted(recorded | set(after))
    return len(kinds), sum(
        _differs(folder / trace.name / kind, after.get(kind, b"")) for kind in kinds
    )


def _differs(before: Path, after: bytes) -> bool:
    old = before.read_bytes() if before.exists() else b""
    if old == after:
        return False
    one, other = (text.decode(errors="replace").splitlines() for text in (old, after))
    changed = [*difflib.unified_diff(one, other, lineterm="", n=0)][2 : 2 + _LINES_SHOWN]
    head = f"== {before.parent.name}/{before.name}"
    print("\n".join([head, *(line[:_COLUMNS_SHOWN] for line in changed)]), flush=True)
    return True


def main() -> int:
    """Record or compare; return 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.same_output", description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="inputs with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    work = partial(record if asked.what == "record" else compare, asked.folder)
    with ProcessPoolExecutor(asked.jobs) as pool:
        counts = [*pool.map(work, [one for one in inputs() if asked.only in one.name])]
    count, different = (sum(figures) for figures in zip(*counts, strict=True))
    print(f"{count:,} outputs, {different:,} different")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
