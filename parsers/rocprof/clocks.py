"""What names the clock of a machine where the files do not name the machine."""

from __future__ import annotations

import hashlib


def clock_of_folder(root: str) -> str | None:
    """Return what names the clock of the machine whose folder it is, without naming the folder."""
    if root in ("", "."):
        return None
    return f"folder {hashlib.sha256(root.encode()).hexdigest()[:16]}"
