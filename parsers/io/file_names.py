"""What the name of a file tells."""

from __future__ import annotations

import re
from typing import Final

_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)


def rank_in_name(name: str) -> int | None:
    """Return the rank that the name of a file gives, as `run.rank3.sqlite`; None where it does."""
    found = _RANK.search(name)
    return int(found.group(1)) if found else None
