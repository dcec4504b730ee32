"""Python pickles as plain values: dicts, lists, tuples, texts, numbers.

No unpickler runs. Only the instructions that make such values are implemented, so a file cannot
name a class or call anything. Keys that are not asked for are dropped with their values. Values may
be shared or contain themselves: code that walks them must not follow each occurrence of a list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Set
from struct import Struct, error
from typing import Any, Final, TypeVar

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource

_MOST_BYTES: Final = 1 << 29
_MOST_STEPS: Final = 20_000_000
"""The most instructions; successive ones that repeat values count as one. An allocator's event
takes about 20 instructions, each at most 240 bytes of memory."""
_MOST_REPEATED: Final = 5
"""How many repeated values (8 bytes each, mostly frames of stacks) there may be per instruction."""
_BAD: Final = (IndexError, AttributeError, TypeError, ValueError, error)
"""Errors of instructions that do not fit together."""


class _TooLarge(Exception):
    """The file is larger than any recording."""


def unpickled(source: ByteSource, keys: Set[str]) -> object:
    """Return a pickle's plain values, in dicts only these keys. Raises InputError for others."""
    try:
        most_bytes = _MOST_BYTES if source.limits else sys.maxsize - 1
        data = source.head(most_bytes + 1)
        if len(data) > most_bytes:
            raise _TooLarge
        # Every instruction takes a byte or more, so without limits these are enough.
        return _Machine(data, keys).run(_MOST_STEPS if source.limits else len(data))
    except _TooLarge:
        raise InputError(
            f"too large: {source.label} (more than {_MOST_BYTES >> 20} MiB or "
            f"{_MOST_STEPS:,} values)",
            "record fewer events (max_entries), or read it with --no-limits if you trust it",
        ) from None
    except KeyError as refused:  # an instruction that makes more than plain values
        raise NotATrace(
            f"{source.label} holds more than plain values, which is unsafe to open (pickle "
            f"instruction {refused.args[0]:#04x})",
            "export the trace as JSON",
        ) from None
    except _BAD:
        raise InputError(
            f"damaged or cut off: {source.label}", "copy it or dump it again"
        ) from None


class _Machine:
    """Runs the instructions of a pickle, which work on a stack, marks in it, and a memo."""

    def __init__(self, data: bytes, keys: Set[str]) -> None:
        """Prepare to run the instructions in `data`; dicts keep only `keys`."""
        self.data = data
        self.keys = keys
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.marks: list[int] = []

    def run(self, most: int) -> object:
        """Run at most `most` instructions; return the value that is left at the end."""
        data, offset, repeated = self.data, 0, 0
        for _ in range(most):
            code = data[offset]
            if code == _STOP:
                return self.stack.pop()
            if code in (_GET, _LONG_GET):
                offset, count = self._gets(offset)
                repeated += count
                if repeated > _MOST_REPEATED * most:
                    raise _TooLarge
            elif code in _ALONE:
                _ALONE[code](self)
                offset += 1
            else:
                layout, do = _WITH_NUMBER[code]
                offset += 1 + layout.size
                offset += do(self, layout.unpack_from(data, offset - layout.size)[0], offset) or 0
        if offset >= len(data):  # not too many instructions, but none to stop: cut off
            raise IndexError
        raise _TooLarge

    def _gets(self, offset: int) -> tuple[int, int]:
        """Run successive instructions that push memoized values, fast: most of a pickle is these.

        Return the offset behind them and how many there were.
        """
        data, memo, push = self.data, self.memo, self.stack.append
        size = len(self.stack)
        while True:
            if data[offset] == _GET:
                push(memo[data[offset + 1]])
                offset += 2
            elif data[offset] == _LONG_GET:
                push(memo[_U4.unpack_from(data, offset + 1)[0]])
                offset += 5
            else:
                return offset, len(self.stack) - size

    def take(self, count: int | None = None) -> list[Any]:
        """Pop and return `count` values, or those above the last mark."""
        index = self.marks.pop() if count is None else len(self.stack) - count
        values = self.stack[index:]
        del self.stack[index:]
        return values

    def set_items(self, values: list[Any]) -> None:
        pairs = zip(values[::2], values[1::2], strict=True)
        keys = self.keys
        self.stack[-1].update((k, v) for k, v in pairs if k.__class__ is str and k in keys)

    def put(self, index: int, _: int) -> None:
        """Memoize the top value; writers number in order, so a gap is an error."""
        if index > len(self.memo):
            raise ValueError
        self.memo[index : index + 1] = [self.stack[-1]]

    def text(self, size: int, offset: int) -> int:
        self.stack.append(self.data[offset : offset + size].decode(errors="replace"))
        return size

    def integer(self, size: int, offset: int) -> int:
        self.stack.append(int.from_bytes(self.data[offset : offset + size], "little", signed=True))
        return size


def _push(machine: _Machine, value: object, _: int = 0) -> None:
    machine.stack.append(value)


def _by_code(table: Mapping[str, _T]) -> dict[int, _T]:
    return {ord(code): value for code, value in table.items()}


_T = TypeVar("_T")
_U1, _U4 = Struct("<B"), Struct("<I")
_GET, _LONG_GET, _STOP = b"hj."
_ALONE: Final[Mapping[int, Callable[[_Machine], None]]] = _by_code(
    {
        "\x94": lambda m: m.memo.append(m.stack[-1]),
        "(": lambda m: m.marks.append(len(m.stack)),
        "a": lambda m: m.stack[-2].append(m.stack.pop()),
        "e": lambda m: m.stack[m.marks[-1] - 1].extend(m.take()),
        "s": lambda m: m.set_items(m.take(2)),
        "u": lambda m: m.set_items(m.take()),
        "]": lambda m: _push(m, []),
        "}": lambda m: _push(m, {}),
        ")": lambda m: _push(m, ()),
        "t": lambda m: _push(m, tuple(m.take())),
        "\x85": lambda m: _push(m, tuple(m.take(1))),
        "\x86": lambda m: _push(m, tuple(m.take(2))),
        "\x87": lambda m: _push(m, tuple(m.take(3))),
        "N": lambda m: _push(m, None),
        "\x88": lambda m: _push(m, True),
        "\x89": lambda m: _push(m, False),
    }
)
_Follows = tuple[Struct, Callable[[_Machine, Any, int], int | None]]
_WITH_NUMBER: Final[Mapping[int, _Follows]] = _by_code(
    {
        "\x80": (_U1, lambda *_: None),  # the version
        "\x95": (Struct("<Q"), lambda *_: None),  # the size of a frame
        "K": (_U1, _push),
        "M": (Struct("<H"), _push),
        "J": (Struct("<i"), _push),
        "G": (Struct(">d"), _push),
        "q": (_U1, _Machine.put),
        "r": (_U4, _Machine.put),
        "X": (_U4, _Machine.text),
        "\x8c": (_U1, _Machine.text),
        "\x8a": (_U1, _Machine.integer),
    }
)
"""Instructions with a number: its format, and a function, which returns how many bytes to skip."""
