"""Rewrites the blocks of real output in the README and the documents; `--check` only compares.

A block is marked by a comment, and holds the command and what it prints:

    <!-- output: traceflops summary sample_traces/gpt_ddp_4rank -->
    ```text
    ```

A command may end in ` | head -8`. A table of rows that the code has is between two comments:

    <!-- table: rules -->
    <!-- end -->
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from traceflops.categories.rules import CONTAINS
from traceflops.cli import app
from traceflops.devices.peaks import DTYPES, load_devices
from traceflops.findings.rules import all_rules
from traceflops.flops.analytic.conventions import CONVENTIONS
from traceflops.reports.view.texts import all_texts

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^<!-- output: traceflops ([^\n]+) -->\n```text\n(.*?)^```$", re.M | re.S)

_TABLE = re.compile(r"^<!-- table: (\w+) -->\n(.*?)^<!-- end -->$", re.M | re.S)
_FIELD = re.compile(r"\{(\w+)[^{}|]*(?:\|([^{}]*))?\}")
_FILLED = {"ranks": "N", "first": "Products", "types": "32-bit types"}
_UNTITLED = {"on-cpu": "All work is on CPUs", "trace-health": "The recording is unfit"}


def documents() -> list[Path]:
    """Return the README and all documents."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def refreshed(text: str) -> str:
    """Return a document with what its commands print today."""
    text = _BLOCK.sub(lambda match: _block(match.group(1)), text)
    return _TABLE.sub(lambda match: _table(match.group(1), text), text)


def _table(name: str, page: str) -> str:
    """Return a table of the code's rows between its comments; `page` has the headings of rules."""
    rows = _ROWS[name](page)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * lines[0].count(" | ") + "---|")
    return "\n".join([f"<!-- table: {name} -->", *lines, "<!-- end -->"])


def _rules(page: str) -> Iterator[tuple[str, ...]]:
    """Yield the rules of findings: id, with a link to its heading; title; when it fires."""
    yield "Rule", "Finding", "Fires when"
    table = all_rules()
    usual = table.shared["idle-cause"]["least_share"]
    for rule, row in table.rules.items():
        title = all_texts().get(f"{rule}.title") or _UNTITLED[rule]
        title = _FIELD.sub(lambda field: field[2] or _FILLED[field[1]], title)
        shown = f"[`{rule}`](#rule-{rule})" if f"\n## Rule `{rule}`\n" in page else f"`{rule}`"
        share = f"{100 * row.thresholds.get('least_share', usual):g} %"
        when = row.when or ("idle time" if "idle" in row.evidence else "time") + " ≥ {share}"
        yield shown, title, when.format(share=share)


def _conventions(_: str) -> Iterator[tuple[str, ...]]:
    """Yield the conventions of MFU, what they count, and who uses them."""
    yield "Id", "Counts", "Used by"
    for name in CONVENTIONS:
        texts = (all_texts()[f"convention.{name}.{field}"] for field in ("counts", "used-by"))
        yield f"`{name}`", *texts


def _categories(_: str) -> Iterator[tuple[str, ...]]:
    yield "Top", "Sub", "Contains"
    for top, subs in CONTAINS.items():
        yield from ((top, f"`{sub}`", what) for sub, what in subs.items())


def _devices(_: str) -> Iterator[tuple[str, ...]]:
    """Yield the vendors of devices, their numbers, and the data types that have a rate."""
    yield "Vendor", "Devices", "Rates of"
    rows = load_devices()
    for vendor in dict.fromkeys(row.vendor for row in rows):
        own = [row for row in rows if row.vendor == vendor]
        types = [dtype for dtype in DTYPES if any(dtype in row.dense for row in own)]
        yield vendor, str(len(own)), ", ".join(f"`{dtype}`" for dtype in types)


_ROWS = {
    "rules": _rules,
    "categories": _categories,
    "devices": _devices,
    "conventions": _conventions,
}


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
