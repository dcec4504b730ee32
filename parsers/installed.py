"""Formats that installed packages add: what they give is checked, their failures have a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Final, TypeVar

from traceflops.errors import InputError
from traceflops.parsers.io.inputs import ByteSource
from traceflops.parsers.shared.formats import Format, Reading
from traceflops.plugins import blamed, loaded, plugins
from traceflops.table.packed import check_trace
from traceflops.table.trace import Trace

T = TypeVar("T")

GROUP: Final = "parsers"


@cache
def installed_formats() -> tuple[Format, ...]:
    """Return the formats of installed packages. Raises UsageError where one cannot be loaded."""
    given = loaded(GROUP, lambda value, *_: _of_type(value, Format))
    formats = zip(plugins(GROUP), given, strict=True)
    return tuple(_watched(point, format_) for point, format_ in formats)


def _watched(point: EntryPoint, format_: Format) -> Format:
    """Return a format whose failures are errors with its name.

    One that cannot tell what is its own is a UsageError: it would be in the way of every input. One
    that cannot read an input is an InputError: of a folder the other files are read.
    """

    def recognises(head: bytes) -> bool:
        with blamed(GROUP, point):
            return bool(format_.recognises(head))

    def read(sources: Sequence[ByteSource], reading: Reading) -> Sequence[Trace]:
        with blamed(GROUP, point, InputError):
            traces = [_of_type(one, Trace) for one in format_.read(sources, reading)]
            for trace in traces:
                check_trace(trace)
            return traces

    return replace(format_, recognises=recognises, read=read, is_checked=False)


def _of_type(given: object, kind: type[T]) -> T:
    if not isinstance(given, kind):
        raise TypeError(f"it gives {type(given).__name__}, not {kind.__name__}")
    return given
