"""What can happen to bytes: each mutation returns the new bytes and says what it did."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Mutation = Callable[[Random, bytes], tuple[bytes, str]]

MOST_BYTES = 400_000
"""No mutation makes an input larger than this."""

_EVENT = re.compile(rb"\{\s*\"(?:ph|cat|name|pid|tid|ts|dur)\"")
TOKENS = (
    b'"',
    b'\\"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r",
    b"null",
    b"true",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"-",
    b".",
    b"e",
    b"0",
    b"9" * 19,
    b"9" * 30,
    b"9" * 5000,
    b"0." + b"0" * 400 + b"1",
    b'"\\ud800"',
    b"\\u0000",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"\x1b[31m",
    b"</script>",
    b"//",
    b"/*",
    b"}, {",
    b"},{",
    b"]}",
    b"]]",
    b'}, {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}, {',
    b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}},',
    b'"traceEvents": [',
    b'"args": {',
    b'"ts": 0,',
    b'"dur": -1,',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"{}," * 500,
    b"\x1f\x8b\x08",
    b"PK\x03\x04",
    b" " * 10_000,
)


def place(draw: Random, data: bytes) -> int:
    """Return a place in some bytes; half of those in a trace are where an event begins."""
    at = draw.randint(0, len(data))
    event = _EVENT.search(data, at) if draw.random() < 0.5 else None
    return event.start() if event is not None else at


def region(draw: Random, data: bytes) -> tuple[int, int]:
    """Return a stretch of some bytes: of a few, or of many, ending at an event or anywhere."""
    start = place(draw, data)
    length = int(2 ** draw.uniform(0, max(len(data), 2).bit_length()))
    stop = min(start + length, len(data))
    event = _EVENT.search(data, stop) if draw.random() < 0.5 else None
    return start, event.start() if event is not None else stop


def cut(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Lose the end, rarely the beginning."""
    at = place(draw, data)
    if draw.random() < 0.15:
        return data[at:], f"cut off the first {at}"
    return data[:at], f"cut at {at}"


def flip(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Flip single bits, near each other or anywhere."""
    if not data:
        return data, "flip nothing"
    new, places = bytearray(data), []
    first = draw.randrange(len(data))
    near = draw.random() < 0.5
    for _ in range(draw.choice((1, 1, 1, 2, 5, 30))):
        at = (first + draw.randrange(50)) % len(data) if near else draw.randrange(len(data))
        new[at] ^= 1 << draw.randrange(8)
        places.append(at)
    return bytes(new), f"flip a bit at {places}"


def noise(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Insert random bytes, or write them over what is there."""
    at, new = place(draw, data), draw.randbytes(draw.choice((1, 1, 2, 8, 64, 1000)))
    over = draw.choice((0, len(new)))
    word = "overwrite" if over else "insert"
    return data[:at] + new + data[at + over :], f"{word} {len(new)} random bytes at {at}"


def token(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Insert a piece of JSON, or write it over what is there."""
    at, new = place(draw, data), draw.choice(TOKENS)
    over = draw.choice((0, 0, len(new)))
    word = "overwrite with" if over else "insert"
    return data[:at] + new + data[at + over :], f"{word} {new[:40]!r} at {at}"


def drop(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Delete a stretch."""
    start, stop = region(draw, data)
    return data[:start] + data[stop:], f"drop {start}:{stop}"


def double(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Repeat a stretch, there or elsewhere."""
    start, stop = region(draw, data)
    times = draw.choice((1, 1, 1, 2, 50))
    at = draw.choice((stop, place(draw, data)))
    times = max(1, min(times, (MOST_BYTES - len(data)) // max(stop - start, 1)))
    new = data[start:stop] * times
    return data[:at] + new + data[at:], f"repeat {start}:{stop} {times} times at {at}"


def swap(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Let two stretches change places."""
    (a, b), (c, d) = sorted((region(draw, data), region(draw, data)))
    if c < b:
        c, d = b, max(b, d)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:], f"swap {a}:{b} and {c}:{d}"


def number(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Write another number over one of a binary file: a length, an offset, a code."""
    size = draw.choice((1, 2, 4, 4, 8))
    first = draw.choice((0, max(len(data) - 1000, 0)))  # what is at the end is often an index
    at = draw.randint(first, len(data)) // size * size
    was = int.from_bytes(data[at : at + size], "little")
    new = draw.choice((0, -1, was + 1, was - 1, was + 8, was << 8, 1 << (size * 8 - 1), len(data)))
    told = (new % (1 << size * 8)).to_bytes(size, "little")
    return data[:at] + told + data[at + size :], f"the number of {size} bytes at {at} is {new}"


def run(draw: Random, data: bytes) -> tuple[bytes, str]:
    """Begin with, or have at a place, a long run of one character, as no pattern likes it."""
    one = draw.choice(
        (b" ", b"\n", b"\t ", b"a", b"0", b'"', b"[", b"* ", b"#", b",", b"a, ", b"/")
    )
    begun = draw.choice((b"", b"[", b"{", b'[{"', b"<", b"** ", b"==PROF=="))
    at = draw.choice((0, 0, place(draw, data)))
    text = begun + one * (draw.choice((1_000, 66_000)) // len(one))
    return data[:at] + text + data[at:], f"a run of {one!r} behind {begun!r} at {at}"


PLAIN: tuple[Mutation, ...] = (cut, flip, noise, number, token, drop, double, swap, run)


@dataclass(frozen=True, slots=True)
class Splice:
    """Go on with another input behind some place, or insert a stretch of it."""

    others: tuple[bytes, ...]

    def __call__(self, draw: Random, data: bytes) -> tuple[bytes, str]:
        """Return the new bytes and what was done."""
        other, at = draw.choice(self.others), place(draw, data)
        if draw.random() < 0.5:
            from_ = place(draw, other)
            return data[:at] + other[from_:], f"splice at {at} with another from {from_}"
        start, stop = region(draw, other)
        return data[:at] + other[start:stop] + data[at:], f"graft {stop - start} bytes at {at}"
