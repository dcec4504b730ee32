"""Rewrites the blocks of real output in the README and the documents; `--check` only compares.

A block is marked by a comment, and holds the command and what it prints:

    <!-- output: traceflops summary sample_traces/gpt_ddp_4rank -->
    ```text
    ```

A command may end in ` | head -8`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from traceflops.cli import app

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^<!-- output: traceflops ([^\n]+) -->\n```text\n(.*?)^```$", re.M | re.S)


def documents() -> list[Path]:
    """Return the README and all documents."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def refreshed(text: str) -> str:
    """Return a document with what its commands print today."""
    return _BLOCK.sub(lambda match: _block(match.group(1)), text)


def _block(arguments: str) -> str:
    shown = f"$ traceflops {arguments}\n{output_of(arguments)}"
    return f"<!-- output: traceflops {arguments} -->\n```text\n{shown}```"


def output_of(arguments: str) -> str:
    """Return what a command prints without colours on 100 columns."""
    arguments, _, most = arguments.partition(" | head -")
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "FORCE_COLOR": None, "TTY_COMPATIBLE": None}
    done = CliRunner().invoke(app, shlex.split(arguments), env=plain, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()[: int(most) if most else None]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main() -> int:
    """Rewrite or compare; return 1 where a block is not what its command prints."""
    os.chdir(ROOT)
    check = "--check" in sys.argv[1:]
    stale = 0
    for path in documents():
        old = path.read_text(encoding="utf-8")
        new = refreshed(old)
        if new == old:
            continue
        stale += 1
        if not check:
            path.write_text(new, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'stale' if check else 'rewritten'}\n")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
