"""Marks by which a run tells what it works on: annotations of the host, read and checked.

    record_function("traceflops.tokens|real=30511|padded=32768")
    record_function("traceflops.seqlens|sum=30511|sumsq=98304211|count=14")

`real` tokens are no padding, `padded` are all that are computed; `sum`, `sumsq` and `count` are of
the lengths of packed sequences. What is written otherwise, or cannot be, is left out with a note.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceflops.devices import quoted
from traceflops.flops import why_impossible
from traceflops.table import ABSENT, Note, Trace, codes, distinct, names, numbers
from traceflops.units import does, several

PREFIX: Final = "traceflops."
_KINDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "tokens": (("real",), ("padded",)),
    "seqlens": (("sum", "sumsq"), ("count",)),
}
"""By kind of mark: the numbers it must have, and those it may have."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LONGEST: Final = 200

Sums = dict[str, int]
"""The numbers of a mark by key, such as "real"."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark: when it begins on the host, its kind, and its numbers."""

    start_ns: int
    kind: str
    values: Sums


@dataclass(frozen=True, slots=True)
class RunMarks:
    """The marks of each process that can be used, and notes on those that cannot."""

    of_process: Mapping[int, list[Mark]]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A mark that cannot be used: the code of its note, and what is wrong with it."""

    code: str
    reason: str = ""


def run_marks(trace: Trace) -> RunMarks:
    """Return the marks of a trace by process.

    Only those of the host: the profiler repeats each on the timeline of the device.
    """
    labels = names(trace.marks["name"])
    wanted = [code for code, label in enumerate(labels) if is_ours(label)]
    if not wanted:
        return RunMarks({}, ())
    kinds = names(trace.marks["kind"])
    host = [code for code, kind in enumerate(kinds) if kind == "annotation"]
    label, device = codes(trace.marks["name"]), numbers(trace.marks["device"], ABSENT)
    on_host = np.isin(codes(trace.marks["kind"]), host) & (device == ABSENT)
    rows = np.flatnonzero(np.isin(label, wanted) & on_host)
    process, start = numbers(trace.marks["process"]), numbers(trace.marks["start_ns"])
    read = {code: _read(labels[code]) for code in distinct(label[rows]).tolist()}
    marks: defaultdict[int, list[Mark]] = defaultdict(list)
    refused: Counter[_Refused] = Counter()
    for row in rows.tolist():
        mark = read[int(label[row])]
        if isinstance(mark, _Refused):
            refused[mark] += 1
        else:
            marks[int(process[row])].append(Mark(int(start[row]), *mark))
    return RunMarks(dict(marks), tuple(_notes(refused)))


def is_ours(label: str) -> bool:
    """Return whether a label is a mark, or was meant as one."""
    if label[: len(PREFIX)].lower() != PREFIX:
        return False
    return "|" in label or label.startswith(tuple(f"{PREFIX}{kind}" for kind in _KINDS))


def _read(label: str) -> tuple[str, Sums] | _Refused:
    """Return kind and numbers of a mark, or why it is not used."""
    head, *parts = label[: _LONGEST + 1].split("|")
    kind = head.removeprefix(PREFIX)
    if kind not in _KINDS:
        near = any(kind.startswith(known) for known in _KINDS)
        return _Refused("token-marks-malformed") if near else _Refused("marks-unknown", head)
    needed, allowed = _KINDS[kind]
    sums: Sums = {}
    for part in parts:
        key, _, text = part.partition("=")
        if key not in (*needed, *allowed) or key in sums or not _NUMBER.fullmatch(text):
            return _Refused("token-marks-malformed")
        sums[key] = int(text)
    if len(label) > _LONGEST or not {*needed} <= sums.keys():
        return _Refused("token-marks-malformed")
    problem = _problem(kind, sums)
    return _Refused("token-marks-impossible", problem) if problem else (kind, sums)


def _problem(kind: str, sums: Sums) -> str:
    """Return why a mark cannot be true, "" where it can."""
    if kind == "seqlens":
        return why_impossible(sums["sum"], sums["sumsq"], sums.get("count"))
    real, padded = sums["real"], sums.get("padded")
    if padded is None or real <= padded:
        return ""
    return f"{several(real, 'real token')} {does(real, 'exceed')} the {padded:,} computed"


def _notes(refused: Counter[_Refused]) -> Iterator[Note]:
    """Yield a note per thing that is wrong with marks."""
    for code, text in _TEXTS.items():
        mine = {each.reason: count for each, count in refused.items() if each.code == code}
        if not mine:
            continue
        count = sum(mine.values())
        first = next(iter(mine))
        reason = quoted(first) if code == "marks-unknown" else first
        more = f" (and {len(mine) - 1:,} more)" if len(mine) > 1 else ""
        whole = text.format(marks=several(count, "mark"), reason=f"{reason}{more}")
        yield Note("dropped", code, whole, count)


_SHAPES: Final = " or ".join(
    PREFIX + "|".join((kind, *(f"{key}=N" for key in (*needed, *allowed))))
    for kind, (needed, allowed) in _KINDS.items()
)

_TEXTS: Final = {
    "token-marks-malformed": (
        f"Ignored: {{marks}} for tokens with a format other than {_SHAPES} (whole numbers)."
    ),
    "token-marks-impossible": "Ignored: {marks} for tokens with impossible values: {reason}.",
    "marks-unknown": (
        "Ignored: {marks} of unknown kind, {reason}: known are "
        f"{' and '.join(f'{PREFIX}{kind}' for kind in _KINDS)}."
    ),
}
"""What each note says."""
