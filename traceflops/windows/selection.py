"""The part of a trace that is to be analysed, and the parsing of options that select it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from traceflops.errors import UsageError
from traceflops.table.patterns import matched_groups

HIDDEN: Final = "…"
"""Stands for the step-mark expression once names are redacted: it may contain some."""
_UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_AS_SHOWN = re.compile(r"\s*+(\d{1,18})\s*+[-\N{EN DASH}]\s*+(\d{1,18})\s*+")
"""A range as reports write it, and as --ranks takes it."""
_RANGE = re.compile(r"\s*+([-+]?\d{1,18})?\s*+(?::\s*+([-+]?\d{1,18})?\s*+)?")
_DURATION = re.compile(r"(\d+)(?:\.(\d+))?\s*(ns|us|µs|ms|s)")
_LONGEST_TIME = 40
"""Characters that the text of a time has at most: more digits would take long to convert."""
_MOST_NUMBERS = 1_000_000
"""Each number of a range is kept; so many cover any real number of ranks or devices."""


class Selection(Struct, frozen=True):
    """Which steps, ranks, devices and time to analyse; None means all of them.

    `steps` is a pair of step numbers, both included, either end open (None). `from_ns` and
    `to_ns` count from the first activity of the trace. `step_mark` is a regular expression: marks
    whose whole name matches it are the steps. `run` is the number of a run, from 1, on GPUs that
    did work of several runs; None for the run with most device time. `job` is the number of a job,
    from 1, if the files are of several.
    """

    steps: tuple[int | None, int | None] | None = None
    ranks: frozenset[int] | None = None
    gpus: frozenset[int] | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    step_mark: str | None = None
    run: int | None = None
    job: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other or are out of range."""
        if self.steps is not None and self.is_time_range:
            raise UsageError("--steps and --from/--to are mutually exclusive", "give one of them")
        if min(self.from_ns or 0, self.to_ns or 0) < 0:
            raise UsageError(
                "--from and --to count from the first GPU operation",
                "negative times are not allowed",
            )
        if self.to_ns is not None and self.to_ns <= (self.from_ns or 0):
            raise UsageError("--to is not after --from", "give a later end")
        for name, number in (("run", self.run), ("job", self.job)):
            if number is not None and number < 1:
                raise UsageError(f"--{name} counts from 1", f"traceflops info lists the {name}s")
        if self.step_mark is not None:
            marked_groups(self.step_mark, ())  # raises if it is no regular expression

    @property
    def is_time_range(self) -> bool:
        """Return whether a time range is chosen instead of steps."""
        return self.from_ns is not None or self.to_ns is not None

    def wants_step(self, number: int) -> bool:
        """Return whether a step number is chosen."""
        if self.steps is None:
            return True
        low, high = self.steps
        return (low is None or number >= low) and (high is None or number <= high)


def marked_groups(text: str, labels: Sequence[str]) -> list[str | None]:
    """Return, per label, what the first group of an expression matches. Raises UsageError."""
    try:
        return matched_groups(text, labels)
    except ValueError as error:
        raise UsageError(
            f"--step-mark is not a valid regular expression: {text!r} ({error})",
            "escape special characters, e.g. 'iteration \\d+'",
        ) from None


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Return the range in `A:B` (or `A-B`), `A:`, `:B` or `A`; both ends are included.

    None is an open end. Raises UsageError if the text is no such range, or if B is less than A.
    """
    text = _AS_SHOWN.sub(r"\1:\2", text) if _AS_SHOWN.fullmatch(text) else text
    match = _RANGE.fullmatch(text)
    groups = match.groups() if match else (None, None)
    first, last = (int(group) if group else None for group in groups)
    if first is None and last is None:
        raise UsageError(
            f"--steps is not a range of step numbers: {text!r}",
            "write A:B (both included), A:, :B or A, e.g. --steps 10:20",
        )
    last = last if ":" in text else first
    if first is not None and last is not None and last < first:
        raise UsageError(f"--steps {text} ends before it begins", "write the smaller number first")
    return first, last


def parse_numbers(option: str, text: str) -> frozenset[int]:
    """Return the numbers in a list such as `0,2,4-7`. Raises UsageError if the text is none."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UsageError(
                f"{option} is not a list of numbers: {text!r}", f"write e.g. {option} 0,2,4-7"
            )
        last = int(high) if dash else int(low)
        if last - int(low) > _MOST_NUMBERS:
            raise UsageError(f"{option} names too many numbers: {text!r}", "give a shorter range")
        numbers.update(range(int(low), last + 1))
    return frozenset(numbers)


def parse_duration(option: str, text: str) -> int:
    """Return a time such as `1.5s`, `200ms` or `30us` in ns. Raises UsageError without a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or len(text) > _LONGEST_TIME:
        raise UsageError(
            f"{option} is not a time with a unit: {text!r}", "write e.g. 1.5s or 200ms"
        )
    whole, decimals, unit = match.groups()
    scale = _UNITS_NS[unit]
    fraction = int(decimals) * scale // 10 ** len(decimals) if decimals else 0
    return int(whole) * scale + fraction
