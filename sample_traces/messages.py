"""Messages of Protocol Buffers as bytes, field by field."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Return a number as seven bits a byte; a negative one as 64 bits."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def number(field: int, value: int) -> bytes:
    """Return a field that is a number."""
    return varint(field << 3) + varint(value)


def counted(data: bytes) -> bytes:
    """Return bytes behind their length."""
    return varint(len(data)) + data


def part(field: int, data: bytes) -> bytes:
    """Return a field that is a message or a text."""
    return varint(field << 3 | 2) + counted(data)


def fixed(field: int, value: bytes) -> bytes:
    """Return a field of eight bytes."""
    return varint(field << 3 | 1) + value
