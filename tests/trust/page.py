"""docs/trust.md and its measured parts, each between `<!-- NAME -->` and `<!-- end of NAME -->`."""

import re
from collections.abc import Iterable
from typing import Final

from tests.conftest import ROOT

PAGE: Final = ROOT / "docs" / "trust.md"


def part(name: str) -> str:
    """Return a measured part of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


def put(name: str, lines: Iterable[str]) -> None:
    """Replace a measured part of the page."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = rf"(?s)(<!-- {name} -->)\n.*?(<!-- end of {name} -->)"
    body = "\n".join(("", *lines, ""))
    PAGE.write_text(
        re.sub(pattern, lambda found: f"{found[1]}\n{body}\n{found[2]}", text), encoding="utf-8"
    )


def row(*cells: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*names: str) -> tuple[str, str]:
    """Return the first two lines of a table."""
    return row(*names), f"|{'---|' * len(names)}"


def share(part: int, whole: int) -> str:
    """Return `2 of 4 (50 %)`."""
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "none"
