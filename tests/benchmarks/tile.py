"""Large traces: a bundled sample repeated end to end, with times, ids and step numbers made new."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from sample_traces.kineto_text import Digits, render
from tests.conftest import SAMPLES

SAMPLE = SAMPLES / "gpt_1rank.json.gz"

Layout = Literal["profiler", "indented", "compact", "lines"]
LAYOUTS: Final[dict[Layout, str]] = {
    "profiler": "as the profiler writes it",
    "indented": "indented by two, as json.dump writes it",
    "compact": "compact",
    "lines": "an event per line, CRLF",
}
"""How the same events can be written."""

_IDS = frozenset(
    {
        "correlation",
        "External id",
        "Record function id",
        "Ev Idx",
        "Python id",
        "Python parent id",
        "Sequence number",
        "wait_on_cuda_event_record_corr_id",
    }
)
_IDS_APART = 10_000_000
_STEP = "ProfilerStep#"
_SLOT = re.compile(r"@@(\d+)@@")
_SPARE_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was written: millions of bytes of text (before packing) and events."""

    path: Path
    mb: float
    events: int


def write(path: Path, megabytes: float, layout: Layout = "profiler") -> TraceFile:
    """Write a trace of about so many million bytes, through gzip where the name ends in .gz."""
    packed = path.suffix == ".gz"
    text_bytes = 0
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
        for part in tiled(megabytes, layout):
            text_bytes += file.write(part.encode())
    copies = _copies(megabytes, layout)
    return TraceFile(path, text_bytes / 1e6, _sample(layout).events(copies))


def tiled(megabytes: float, layout: Layout = "profiler") -> Iterator[str]:
    """Yield the text of a trace of about so many million bytes; at least one repetition."""
    sample = _sample(layout)
    yield sample.head
    for copy in range(_copies(megabytes, layout)):
        yield sample.repetition.text(copy) + sample.separator
    # What has no category (names of processes and threads) stands once, at the end, as in a file
    # that the profiler wrote.
    yield sample.tail


def _copies(megabytes: float, layout: Layout) -> int:
    return max(1, round(megabytes * 1e6 / len(_sample(layout).repetition.text(1))))


class _Template:
    """A text with numbers in it that are others in each repetition.

    Number i of repetition n is first[i] + n * apart[i]; times are written as microseconds.
    """

    def __init__(self, text: str, slots: Sequence[tuple[int, int, bool]]) -> None:
        parts = _SLOT.split(text)
        used = [slots[int(place)] for place in parts[1::2]]
        self._parts = parts
        self._first = np.array([first for first, _, _ in used], dtype=np.int64)
        self._apart = np.array([apart for _, apart, _ in used], dtype=np.int64)
        self._is_time = [is_time for _, _, is_time in used]

    def text(self, copy: int) -> str:
        """Return the text of a repetition."""
        numbers = (self._first + copy * self._apart).tolist()
        self._parts[1::2] = [
            f"{number // 1000}.{number % 1000:03d}" if is_time else str(number)
            for number, is_time in zip(numbers, self._is_time, strict=True)
        ]
        return "".join(self._parts)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample in one layout: what comes before its repeated events, they, and what comes after."""

    head: str
    repetition: _Template
    separator: str
    tail: str
    repeated: int
    once: int

    def events(self, copies: int) -> int:
        return copies * self.repeated + self.once


@cache
def _sample(layout: Layout) -> _Sample:
    document = json.loads(gzip.decompress(SAMPLE.read_bytes()), parse_float=Digits)
    events = document.pop("traceEvents")
    named = [event for event in events if "cat" in event]
    last = [event for event in events if "cat" not in event]
    slots = _Slots(named)
    separator = {"compact": ",", "lines": ",\r\n"}.get(layout, ",\n")
    text = separator.join(_event_text(slots.opened(event), layout) for event in named)
    return _Sample(
        head=f"{render(document, 'compact')[:-1]}{separator}" + '"traceEvents": [',
        repetition=_Template(text, slots.all),
        separator=separator,
        tail=separator.join(_event_text(event, layout) for event in last) + "]}\n",
        repeated=len(named),
        once=len(last),
    )


def _event_text(event: dict[str, Any], layout: Layout) -> str:
    if layout == "profiler":
        lines = render({"traceEvents": [event]}, "pretty").splitlines()
        return "\n".join(lines[3:-2])
    return _indented(event) if layout == "indented" else render(event, "compact")


def _indented(value: object, margin: str = "\n") -> str:
    inner = f"{margin}  "
    if isinstance(value, dict) and value:
        items = (f"{json.dumps(key)}: {_indented(item, inner)}" for key, item in value.items())
        return "{" + inner + f",{inner}".join(items) + margin + "}"
    if isinstance(value, list) and value:
        items = (_indented(item, inner) for item in value)
        return "[" + inner + f",{inner}".join(items) + margin + "]"
    return str(value) if isinstance(value, Digits) else json.dumps(value)


class _Slots:
    """Puts marks into events where each repetition has another number."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        times = [_nanoseconds(event["ts"]) for event in events]
        steps = {event["name"] for event in events if _is_step(event)}
        self._span_ns = (max(times) - min(times)) // 1000 * 1000 + _SPARE_NS
        self._steps = len(steps)
        self.all: list[tuple[int, int, bool]] = []

    def opened(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with marks in the place of the numbers that change."""
        new = dict(event)
        new["ts"] = self._slot(_nanoseconds(event["ts"]), self._span_ns, is_time=True)
        if "id" in event:
            new["id"] = self._slot(event["id"], _IDS_APART)
        if "args" in event:
            new["args"] = {
                key: self._slot(value, _IDS_APART)
                if key in _IDS and isinstance(value, int)
                else value
                for key, value in event["args"].items()
            }
        if _is_step(event):
            number = int(event["name"].removeprefix(_STEP))
            new["name"] = _STEP + self._slot(number, self._steps)
        return new

    def _slot(self, first: int, apart: int, *, is_time: bool = False) -> Digits:
        self.all.append((first, apart, is_time))
        return Digits(f"@@{len(self.all) - 1}@@")


def _is_step(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith(_STEP)


def _nanoseconds(micros: Digits) -> int:
    whole, _, thousandths = micros.partition(".")
    return int(whole) * 1000 + int(f"{thousandths:0<3}")
