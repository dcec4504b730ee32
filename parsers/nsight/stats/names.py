"""What names of device work in reports of `nsys stats` tell: copies, their directions, fills."""

from __future__ import annotations

import re
from typing import Final

UNNAMED_RANGE: Final = "(unnamed range)"
_OPERATION: Final = re.compile(r"\[(?:CUDA|Unified) .*\]|\[.*(?:memcpy|memset).*\]", re.I)
_ENDS: Final = {"h": "H", "d": "D", "p": "P", "a": "D"}
_WAY: Final = re.compile(
    r"\b(host|device|peer|array|[HDPA])[- ]?to[- ]?(host|device|peer|array|[HDPA])\b", re.I
)
_PEER: Final = re.compile(r"\bP2P\b|peer", re.I)
_MIGRATION: Final = "migration"
_UNIFIED: Final = re.compile(r"\bunified\b", re.I)


def kind_of(name: str) -> str:
    """Return kernel, memcpy or memset: what has this name on the device."""
    if not _OPERATION.fullmatch(name):
        return "kernel"
    return "memset" if "memset" in name.lower() else "memcpy"


def direction_of(name: str) -> str | None:
    """Return the direction of a copy by its name, such as [CUDA memcpy Host-to-Device].

    As in databases, those that the driver made for unified memory begin with `migration`.
    """
    if kind_of(name) != "memcpy":
        return None
    way = _way(name)
    if _UNIFIED.search(name) is None:
        return way
    return _MIGRATION if way is None else f"{_MIGRATION} {way}"


def _way(name: str) -> str | None:
    found = _WAY.search(name)
    if found is None:
        return "PtoP" if _PEER.search(name) else None
    ends = [_ENDS[end[0].lower()] for end in found.groups()]
    return "PtoP" if "P" in ends else f"{ends[0]}to{ends[1]}"
