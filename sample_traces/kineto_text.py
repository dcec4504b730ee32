"""How a Kineto file is written: its variants, its numbers, its names, its layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from msgspec import Struct

from sample_traces.records import RankRun

Style = Literal["pretty", "compact", "list"]
Document = dict[str, Any]


class Digits(str):
    """A number given by its digits; written bare, so that no float comes between."""

    __slots__ = ()


def micros(time_ns: int) -> Digits:
    """Return microseconds with exactly three decimals."""
    whole, thousandths = divmod(time_ns, 1000)
    return Digits(f"{whole}.{thousandths:03d}")


def ratio(amount: int, unit: int) -> Digits:
    """Return amount / unit with six decimals, rounded down."""
    whole, rest = divmod(amount, unit)
    return Digits(f"{whole}.{rest * 1_000_000 // unit:06d}")


def render(document: Document, style: Style) -> str:
    """Return the text of a document made by `kineto_document`."""
    if style == "pretty":
        return _pretty(document)
    if style == "list":
        return _value(document["traceEvents"], ",", ":")
    return _value(document, ",", ":")


def _value(value: object, comma: str = ", ", colon: str = ": ") -> str:
    if isinstance(value, str):
        return value if type(value) is Digits else _quoted(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, dict):
        inner = [f"{_quoted(k)}{colon}{_value(v, comma, colon)}" for k, v in value.items()]
        return "{" + comma.join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + comma.join([_value(item, comma, colon) for item in value]) + "]"
    return json.dumps(value)


_quoted = cache(json.dumps)


def _pretty(document: Document) -> str:
    entries = (_pretty_entry(key, value) for key, value in document.items())
    return "\n{\n" + ",\n".join(entries) + "\n}\n"


def _pretty_entry(key: str, value: Any) -> str:
    if key == "traceEvents":
        return f'  "{key}": [\n' + ",\n".join(map(_pretty_event, value)) + "\n  ]"
    if key == "deviceProperties":
        devices = ",\n".join(f"    {{\n      {_fields(device)}\n    }}" for device in value)
        return f'  "{key}": [\n{devices}\n  ]'
    return f'  "{key}": {_value(value)}'


def _pretty_event(event: dict[str, Any]) -> str:
    lines = ",\n".join(f"    {line}" for line in _event_lines(event))
    return f"  {{\n{lines}\n  }}"


def _event_lines(event: dict[str, Any]) -> Iterator[str]:
    """Yield identity, time, and arguments: one line each."""
    names = [name for name in event if name != "args"]
    split = names.index("ts") if "ts" in names else len(names)
    for part in (names[:split], names[split:]):
        if part:
            yield _fields({name: event[name] for name in part})
    if "args" in event:
        yield f'"args": {{\n      {_fields(event["args"])}\n    }}'


def _fields(mapping: dict[str, Any]) -> str:
    return _value(mapping)[1:-1]


class KinetoOptions(Struct, frozen=True):
    """One variant of the format; the defaults are what torch 2.x writes on CUDA."""

    style: Literal["pretty", "compact", "list"] = "pretty"
    """Layout by Kineto's own writer, re-saved by a JSON library, or bare events without header."""
    metadata: Literal["before", "after"] = "before"
    """Where the header keys stand relative to the events."""
    times: Literal["base", "absolute"] = "base"
    """Three decimals after a base, or Unix time in whole microseconds: both rounded down."""
    ids: Literal["number", "string"] = "number"
    legacy: bool = False
    """Categories, thread names and keys of 2021."""
    flows: bool = True
    python_functions: bool = False
    memory: bool = False
    gpu_annotations: bool = True
    cuda_sync: bool = False
    shapes: bool = True
    rank_metadata: bool = True
    duplicates: bool = False
    """Every device event stands in the file twice, as after a careless merge."""
    device_offset: int = 0
    """Added to the device number of events: ROCm counts the CPU sockets first."""
    base_unix_ns: int | None = None
    """Base of the times; None rounds down as Kineto does."""
    compression: Literal["none", "gzip", "zip"] = "gzip"


# Kineto rounds the base down to a quarter of a Julian year.
_BASE_UNIT_NS = 7_889_238 * 1_000_000_000


class Numbers(Struct, frozen=True):
    """Writes the numbers of one rank's trace as the options ask."""

    rank: RankRun
    options: KinetoOptions

    @property
    def base_unix_ns(self) -> int:
        """Unix ns that every time of the file is relative to."""
        if self.options.base_unix_ns is not None:
            return self.options.base_unix_ns
        return self.rank.origin_unix_ns // _BASE_UNIT_NS * _BASE_UNIT_NS

    @property
    def device(self) -> int:
        """Device number of the rank's events."""
        return self.rank.rank + self.options.device_offset

    def time(self, time_ns: int) -> Digits:
        """Return the text of a moment given in ns since the run began."""
        unix_ns = self.rank.origin_unix_ns + time_ns
        if self.options.times == "absolute":
            return Digits(unix_ns // 1000)
        return micros(unix_ns - self.base_unix_ns)

    def duration(self, dur_ns: int) -> Digits:
        """Return the text of a duration in ns."""
        return Digits(dur_ns // 1000) if self.options.times == "absolute" else micros(dur_ns)

    def id(self, number: int) -> int | str:
        """Return a correlation or external id."""
        return str(number) if self.options.ids == "string" else number

    def thread(self, thread: int) -> int | str:
        """Return a host thread's name."""
        return str(thread) if self.options.legacy else thread

    def stream(self, stream: int) -> int | str:
        """Return a stream's name in the place of a thread."""
        return f"stream {stream}" if self.options.legacy else stream
