"""Text of a Kineto file: numbers from integers exactly, and the layout of Kineto's writer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

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
    if type(value) in (Digits, int):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        inner = (f"{_quoted(k)}{colon}{_value(v, comma, colon)}" for k, v in value.items())
        return "{" + comma.join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + comma.join(_value(item, comma, colon) for item in value) + "]"
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
