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
from pathlib import Path

from typer.testing import CliRunner

from tests.conftest import ROOT, SAMPLES
from traceflops.cli import app

_LINES_SHOWN = 12


def inputs() -> Iterator[tuple[str, Path]]:
    """Yield what is read, under a name: files, and folders that are read as one."""
    places = {"samples": SAMPLES, "fixtures": ROOT / "tests" / "fixtures"}
    if shared := os.environ.get("TRACEFLOPS_SHARED"):
        places["shared"] = Path(shared) / "traces"
    for name, place in places.items():
        for path in sorted(place.rglob("*")):
            if path.suffix in (".py", ".md", ".toml") or "expected" in path.name:
                continue
            if {"__pycache__", "LICENSES"} & set(path.parts):
                continue
            if path.is_file() or any(one.is_file() for one in path.iterdir()):
                yield re.sub(r"\W+", "_", f"{name}/{path.relative_to(place)}"), path


def outputs(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what each command says of an input, and what it writes, under a name."""
    for columns in (80, 120):
        yield f"summary.{columns}.txt", _run(columns, "summary", str(path))
    yield "summary.json", _run(100, "summary", str(path), "--json")
    with tempfile.TemporaryDirectory() as folder:
        report, tables = Path(folder, "report.md"), Path(folder, "tables")
        _run(100, "report", str(path), "-o", str(report))
        _run(100, "export", str(path), "-o", str(tables), "--format", "csv")
        for one in (report, *sorted(tables.glob("*"))):
            yield one.name, one.read_bytes() if one.exists() else b""


def _run(columns: int, *words: str) -> bytes:
    environment = {**os.environ, "COLUMNS": str(columns)}
    result = CliRunner().invoke(app, list(words), env=environment)
    text = result.output.replace(str(ROOT), ".")
    return f"{text}\nexit code {result.exit_code}\n".encode()


def compare(name: str, before: Path, after: bytes) -> bool:
    """Print how an output differs from the recorded one; return whether it does."""
    old = before.read_bytes() if before.exists() else b""
    if old == after:
        return False
    lines = [text.decode(errors="replace").splitlines() for text in (old, after)]
    print(f"== {name}")
    changed = list(difflib.unified_diff(lines[0], lines[1], lineterm="", n=0))
    print("\n".join(changed[2 : 2 + _LINES_SHOWN]))
    return True


def main() -> int:
    """Record or compare; return 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.same_output", description=__doc__)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="inputs with this in their name")
    asked = parser.parse_args()
    count = different = 0
    for name, path in inputs():
        if asked.only not in name:
            continue
        for kind, content in outputs(path):
            count += 1
            target = asked.folder / name / kind
            if asked.what == "compare":
                different += compare(f"{name}/{kind}", target, content)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    print(f"{count:,} outputs, {different:,} different")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
