"""Text in Markdown that is shown as it is: no markup, mention, issue, emoji or link."""

from __future__ import annotations

import re
from typing import Final

from traceflops.reports.view import visible

_LONGEST: Final = 2_000
_SIGNS: Final = re.compile(r"[&<>*_`\[\]|\\~@#$!]|:(?=//|[\w+-]+:)|(?<=[wW])\.(?=\w)")
_BEGINS: Final = "@#:."


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    shown = visible(text[:_LONGEST]).strip()
    return _SIGNS.sub(lambda sign: _entity(sign.group()), shown)


def _entity(sign: str) -> str:
    """Return a sign as an entity.

    Mentions, issues and the like are looked for once more in what the entities have become, so a
    space of no width follows the signs that begin them.
    """
    return f"&#{ord(sign)};" + ("&#8203;" if sign in _BEGINS else "")


def code(text: str) -> str:
    """Return text as a code span that can stand in a table."""
    shown = visible(text).replace("|", "\N{BROKEN BAR}").strip() or " "
    fence = "`" * (longest_run(shown) + 1)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"


def first_of_line(text: str) -> str:
    """Return a line whose first sign does not make it something else."""
    return re.sub(r"^(?:[-+=](?=\s|[-=]|$)|\d+[.)](?=\s|$))", _entities, text)


def _entities(found: re.Match[str]) -> str:
    return "".join(f"&#{ord(sign)};" for sign in found.group())


def longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
