"""One statement of a report, with its size and where its evidence stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from traceflops.units import function_name


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one sentence: the largest loss and its share of the chosen window."""

    sentence: str
    loss: str | None = None
    share: float | None = None


Severity = Literal["high", "medium", "low"]

_LEAST: Final[dict[Severity, float]] = {"high": 0.20, "medium": 0.10, "low": 0.03}
"""The share of the device time from which a finding has a severity."""

_LONGEST_NAME, _HEAD = 100, 70
"""Characters of a name in a sentence, and of those the first ones of one that is cut."""

WORTH_SAYING: Final = _LEAST["low"]
"""What takes a smaller share is neither listed nor named in the verdict."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement, by the rule that made it.

    `share` is the part of the device time it is about. `mfu_without` is what MFU would be if that
    time were not spent: the most that mending it can gain; None where MFU is not known exactly.
    `evidence` names the sections of a report that show it, the best first.
    """

    rule: str
    severity: Severity
    sentence: str
    share: float
    mfu_without: float | None
    evidence: tuple[str, ...]


def short_name(label: str) -> str:
    """Return the name of a function, kernel or range as a sentence has it."""
    name = function_name(label)
    cut = f"{name[:_HEAD]}…{name[_HEAD - _LONGEST_NAME + 1 :]}"
    return name if len(name) <= _LONGEST_NAME else cut


def severity_of(share: float) -> Severity | None:
    """Return how much a share of the device time matters, None for one below all of them."""
    return next((name for name, least in _LEAST.items() if share >= least), None)
