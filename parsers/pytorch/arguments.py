"""The arguments of loosely decoded events, in a second pass over their text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from traceflops.parsers.io.jsonfiles.mend import valid_utf8
from traceflops.parsers.io.jsonfiles.text import UNDECODABLE
from traceflops.parsers.pytorch.events import Args
from traceflops.parsers.pytorch.values import integer

A = TypeVar("A", bound=Args)


class ArgsReader:
    """Decodes the arguments of many events in one call; counts those that are no object."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.mended = 0

    def read(self, texts: Sequence[msgspec.Raw], args_type: type[A]) -> list[A]:
        """Return the arguments of each event; an event without any has all of them absent."""
        if args_type is Args:
            return [args_type()] * len(texts)
        objects = [bytes(text) or b"{}" for text in texts]
        together = b"[" + b",".join(objects) + b"]"
        try:
            return cast(list[A], decoder(args_type).decode(together))
        except UNDECODABLE:
            pass
        try:
            return _narrowed(decoder(_loose(args_type)).decode(together), args_type)
        except UNDECODABLE:
            return [self._one(text, args_type) for text in objects]

    def _one(self, text: bytes, args_type: type[A]) -> A:
        if text == b"null":
            return args_type()
        # The decoder checks UTF-8 only in the fields that it builds, so it may fail only here.
        for candidate in (text, valid_utf8(text)):
            try:
                decoded = decoder(_loose(args_type)).decode(b"[" + candidate + b"]")
            except UNDECODABLE:
                continue
            self.mended += candidate != text
            return cast(A, _narrowed(decoded, args_type)[0])
        self.unreadable += 1
        return args_type()


@cache
def decoder(element: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of a list of such elements."""
    list_type: Any = list.__class_getitem__(element)
    return msgspec.json.Decoder(list_type)


@cache
def _loose(args_type: type[Args]) -> Any:
    """Return the same arguments with anything in the place of integers and triples of them."""
    fields = [
        (field.name, Any, msgspec.field(name=field.encode_name, default=field.default))
        for field in msgspec.structs.fields(args_type)
        if field.type is not msgspec.Raw
    ]
    return msgspec.defstruct(args_type.__name__, fields, bases=(args_type,), gc=False)


@cache
def _integers(args_type: type[Args]) -> tuple[str, ...]:
    fields = msgspec.structs.fields(args_type)
    return tuple(f.name for f in fields if f.type in (int, int | None))


def _narrowed(loose: list[A], args_type: type[A]) -> list[A]:
    """Put integers where integers belong, whatever the writer put there."""
    names = _integers(args_type)
    for args in loose:
        for name in names:
            value = getattr(args, name)
            if value.__class__ is not int:
                setattr(args, name, integer(value))
    return loose
