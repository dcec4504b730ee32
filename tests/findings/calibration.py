"""How often what a report says first is right, by its confidence: the table of docs/trust.md.

    python -m tests.findings.calibration FOLDER...

FOLDERs hold the recordings of the verdict bench, as `ID/NAME` or `ID.EXT`; the classes that the
first statement may have are those of its truths. What is not laid out is not counted.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import traceflops as tf
from tests.conftest import ROOT, shared_file
from traceflops.errors import TraceflopsError
from traceflops.reports.view.findings import headline

PAGE: Final = ROOT / "docs" / "trust.md"
_TABLE: Final = re.compile(r"(<!-- calibration -->)\n.*?\n(<!-- end of calibration -->)", re.S)
_LEVELS: Final = ("high", "medium", "low")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    folders = parser.parse_args().folder
    rows, right, all_rows = Counter[str](), Counter[str](), Counter[bool]()
    for row, path in _laid_out(folders):
        try:
            analysis = tf.analyze(path)
        except TraceflopsError:
            continue  # nothing is said first
        is_right = headline(analysis).cls in row["first"]
        all_rows[is_right] += 1
        best = next(iter(analysis.findings), None)
        if best is not None and best.gain is not None and best.confidence is not None:
            rows[best.confidence.level] += 1
            right[best.confidence.level] += is_right
    lines = ["| confidence | recordings | first statement right |", "|---|---|---|"]
    for level in _LEVELS:
        share = f"{100 * right[level] / rows[level]:.0f} %" if rows[level] else ""
        lines.append(f"| {level} | {rows[level]} | {right[level]} ({share}) |")
    total = sum(all_rows.values())
    lines.append(f"| all | {total} | {all_rows[True]} ({100 * all_rows[True] / total:.0f} %) |")
    table = "\n".join(("", *lines, ""))
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(rf"\g<1>\n{table}\n\g<2>", text), encoding="utf-8")


def _laid_out(folders: list[Path]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield rows of the bench whose first statement is known, with their recordings."""
    truths = shared_file("verdicts/truths.jsonl").read_text(encoding="utf-8")
    for row in map(json.loads, filter(None, truths.splitlines())):
        found = [path for folder in folders for path in folder.glob(f"{row['id']}*")]
        exact = [path for path in found if path.name.partition(".")[0] == row["id"]]
        if exact and row["regime"] != "refuse":
            inside = [*exact[0].iterdir()] if exact[0].is_dir() else exact
            yield row, inside[0] if len(inside) == 1 else exact[0]


if __name__ == "__main__":
    main()
