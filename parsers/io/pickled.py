"""Python pickles as plain values: dicts, lists, tuples, texts, numbers.

No unpickler runs. Only the instructions that write such values are known, so nothing can name a
class or call anything. Keys that are not asked for are dropped with what they hold, so no key of
the file's is hashed but a text. Values may occur in many places, even in themselves: whoever walks
them must not follow each place of a list anew.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from struct import Struct, error
from typing import Any, Final

from traceflops.errors import InputError, NotATrace
from traceflops.parsers.io.inputs import ByteSource

_MOST_BYTES: Final = 1 << 30
_MOST_STEPS: Final = 32_000_000
"""Instructions but repeated ones: an event of an allocator takes about 15, each at most 240 bytes
of memory."""
_BAD: Final = (IndexError, AttributeError, TypeError, ValueError, error)
"""What instructions raise that do not fit together."""
_PLAIN_HINT: Final = "export the trace as JSON"


class _TooLarge(Exception):
    """There is more than any recording holds."""


def unpickled(source: ByteSource, keys: Set[str]) -> object:
    """Return the value in a pickle; of dicts only these keys.

    Raises InputError where it is cut off, damaged, too large or holds anything but plain values.
    """
    try:
        data = _whole(source)
        machine = _Machine(data, keys)
        value = machine.run(_MOST_STEPS if source.limits else len(data))
    except _TooLarge:
        raise InputError(
            f"too large: {source.label} (more than {_MOST_BYTES >> 30} GiB or "
            f"{_MOST_STEPS:,} values)",
            "record fewer events (max_entries), or read it with --no-limits if you trust it",
        ) from None
    except KeyError as refused:
        what = f"{refused.args[0]:#04x}"
        raise NotATrace(
            f"{source.label} holds more than plain values, which is unsafe to open (pickle "
            f"instruction {what})",
            _PLAIN_HINT,
        ) from None
    except _BAD:
        raise InputError(
            f"damaged or cut off: {source.label}", "copy it or dump it again"
        ) from None
    return value


def _whole(source: ByteSource) -> bytes:
    parts, size = [], 0
    for block in source.blocks():
        parts.append(block)
        size += len(block)
        if size > _MOST_BYTES and source.limits:
            raise _TooLarge
    return b"".join(parts)


class _Machine:
    """Runs the instructions of a pickle: each takes the place behind it and returns the next."""

    def __init__(self, data: bytes, keys: Set[str]) -> None:
        self._data = data
        self._keys = keys
        self._stack: list[Any] = []
        self._memo: list[Any] = []
        self._marks: list[int] = []

    def run(self, most: int) -> object:
        """Return the value that is left at the end."""
        data, at = self._data, 0
        for _ in range(most):
            code = data[at]
            if code == _STOP:
                return self._stack.pop()
            at = _INSTRUCTIONS[code](self, at + 1)
        if at >= len(data):
            raise IndexError
        raise _TooLarge

    def get(self, at: int) -> int:
        """Push what was memoized before, and what follows of this kind: most of a pickle is."""
        data, memo, push = self._data, self._memo, self._stack.append
        at -= 1
        while True:
            if data[at] == _GET:
                push(memo[data[at + 1]])
                at += 2
            elif data[at] == _LONG_GET:
                push(memo[_U4.unpack_from(data, at + 1)[0]])
                at += 5
            else:
                return at

    def memoize(self, at: int) -> int:
        self._memo.append(self._stack[-1])
        return at

    def put(self, at: int) -> int:
        return self._put(self._data[at], at + 1)

    def long_put(self, at: int) -> int:
        return self._put(_U4.unpack_from(self._data, at)[0], at + 4)

    def _put(self, place: int, at: int) -> int:
        """Writers number what they memoize in order: no other number is known, however large."""
        if place > len(self._memo):
            raise ValueError
        self._memo[place : place + 1] = [self._stack[-1]]
        return at

    def mark(self, at: int) -> int:
        self._marks.append(len(self._stack))
        return at

    def _marked(self) -> list[Any]:
        """Take what lies above the last mark."""
        place = self._marks.pop()
        values = self._stack[place:]
        del self._stack[place:]
        return values

    def append(self, at: int) -> int:
        value = self._stack.pop()
        self._stack[-1].append(value)
        return at

    def appends(self, at: int) -> int:
        values = self._marked()
        self._stack[-1].extend(values)
        return at

    def set_item(self, at: int) -> int:
        self._marks.append(len(self._stack) - 2)
        return self.set_items(at)

    def set_items(self, at: int) -> int:
        values, keys = self._marked(), self._keys
        pairs = zip(values[::2], values[1::2], strict=True)
        self._stack[-1].update(
            (key, value) for key, value in pairs if key.__class__ is str and key in keys
        )
        return at

    def new_list(self, at: int) -> int:
        self._stack.append([])
        return at

    def new_dict(self, at: int) -> int:
        self._stack.append({})
        return at

    def marked_tuple(self, at: int) -> int:
        self._stack.append(tuple(self._marked()))
        return at

    def text(self, at: int) -> int:
        return self._text(_U4.unpack_from(self._data, at)[0], at + 4)

    def short_text(self, at: int) -> int:
        return self._text(self._data[at], at + 1)

    def _text(self, size: int, at: int) -> int:
        self._stack.append(self._data[at : at + size].decode(errors="replace"))
        return at + size

    def long_int(self, at: int) -> int:
        end = at + 1 + self._data[at]
        self._stack.append(int.from_bytes(self._data[at + 1 : end], "little", signed=True))
        return end


_Instruction = Callable[[_Machine, int], int]


def _constant(value: object) -> _Instruction:
    def run(machine: _Machine, at: int) -> int:
        machine._stack.append(value)
        return at

    return run


def _number(layout: Struct) -> _Instruction:
    def run(machine: _Machine, at: int) -> int:
        machine._stack.append(layout.unpack_from(machine._data, at)[0])
        return at + layout.size

    return run


def _tuple_of(count: int) -> _Instruction:
    def run(machine: _Machine, at: int) -> int:
        machine._marks.append(len(machine._stack) - count)
        return machine.marked_tuple(at)

    return run


def _skip(size: int) -> _Instruction:
    return lambda _, at: at + size


_U4: Final = Struct("<I")
_GET, _LONG_GET, _STOP = b"hj."
_INSTRUCTIONS: Final[dict[int, _Instruction]] = {
    _GET: _Machine.get,
    _LONG_GET: _Machine.get,
    **{
        ord(code): run
        for code, run in {
            "\x80": _skip(1),  # the version
            "\x95": _skip(8),  # the size of a frame
            "\x94": _Machine.memoize,
            "q": _Machine.put,
            "r": _Machine.long_put,
            "(": _Machine.mark,
            "a": _Machine.append,
            "e": _Machine.appends,
            "s": _Machine.set_item,
            "u": _Machine.set_items,
            "]": _Machine.new_list,
            "}": _Machine.new_dict,
            ")": _constant(()),
            "t": _Machine.marked_tuple,
            "\x85": _tuple_of(1),
            "\x86": _tuple_of(2),
            "\x87": _tuple_of(3),
            "N": _constant(None),
            "\x88": _constant(True),
            "\x89": _constant(False),
            "K": _number(Struct("<B")),
            "M": _number(Struct("<H")),
            "J": _number(Struct("<i")),
            "G": _number(Struct(">d")),
            "\x8a": _Machine.long_int,
            "X": _Machine.text,
            "\x8c": _Machine.short_text,
        }.items()
    },
}
