"""What names the clock of a machine and its devices, without naming the machine."""

from __future__ import annotations

import hashlib
from typing import Final

from traceflops.table.trace import Note

SEVERAL_MACHINES: Final = Note(
    "assumed",
    "clocks-not-aligned",
    "The file covers several machines whose clocks are not aligned. Times cannot be compared "
    "between machines; figures of each machine are unaffected.",
)


def clock_of(machine: str | None, host: str | None) -> str | None:
    """Return the name of a machine's clock: a digest, since neither id nor name is to be shared.

    Both count: machines that were set up as copies of one have the same id.
    """
    if not machine and not host:
        return None
    name = "\n".join((machine or "", host or ""))
    return f"machine {_digest(name)}"


def clock_of_folder(root: str) -> str | None:
    """Return what names the clock of the machine whose folder it is, without naming the folder."""
    if root in ("", "."):
        return None
    return f"folder {_digest(root)}"


def place_of_node(node: int) -> str | None:
    """Return what names a device among those of its machine, by its node there."""
    return f"node {node}" if node >= 0 else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
