"""What keeps a utilisation from being computed, and what would supply it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lack:
    """What is not known, and the option or the way of recording that would tell it."""

    problem: str
    remedy: str
