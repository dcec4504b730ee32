"""Messages of Protocol Buffers without their schema: fields by number, as columns.

For speed, one numpy step reads the next field of thousands of messages of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from msgspec import Struct

from traceflops.table.columns import ABSENT, Array, BoolArray, IntArray

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
_MOST_FIELDS: Final = 256  # the most fields of a message; one with more is of another kind
_MOST_NUMBER: Final = 512
_PADDING: Final = 16
_HIGHEST_BITS: Final = np.uint64(0x8080808080808080)
_LOWEST_BITS: Final = np.uint64(0x0101010101010101)
"""The highest and the lowest bit of each of eight bytes."""
_ONE, _LOW, _MORE = np.uint64(1), np.uint64(0x7F), np.uint64(0x80)
_STEPS: Final = tuple(
    (np.uint64(shift), np.uint64(high), np.uint64(low))
    for shift, high, low in (
        (1, 0x7F007F007F007F00, 0x007F007F007F007F),
        (2, 0x3FFF00003FFF0000, 0x00003FFF00003FFF),
        (4, 0x0FFFFFFF00000000, 0x000000000FFFFFFF),
    )
)
"""How to join the low seven bits of eight bytes: (shift, bits to shift down, bits to keep).

Each step joins neighbours: 8 x 7 bits become 4 x 14, then 2 x 28, then 56 bits. Highest bits drop
out in the first step.
"""


def varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """Return the number at an offset and the offset behind it. Raises ValueError without an end."""
    value = 0  # seven bits per byte, the lowest first; the last byte is below 0x80
    for step, byte in enumerate(data[offset : offset + 10]):
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value & (2**64 - 1), offset + step + 1
    raise ValueError("a number without an end")


def signed(value: int) -> int:
    """Return an unsigned number of 64 bits as a signed one."""
    return value - 2**64 if value >= 2**63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and content of the fields of one message. Raises ValueError if it is damaged.

    Content is a number, or bytes: a message, a text, or a number of fixed size.
    """
    offset = 0
    while offset < len(data):
        number, offset, content = _field(data, offset, len(data))
        yield number, data[content] if isinstance(content, slice) else content


def _field(data: bytes, offset: int, end: int) -> tuple[int, int, int | slice]:
    """Return the number of a field, the offset behind it, and its content: a number or a slice."""
    tag, offset = varint(data, offset)
    number, wire = divmod(tag, 8)
    if number == 0 or wire not in (VARINT, LENGTH, *_FIXED):
        raise ValueError("no field")
    if wire == VARINT:
        value, offset = varint(data, offset)
        return number, offset, value
    size, offset = varint(data, offset) if wire == LENGTH else (_FIXED[wire], offset)
    if offset + size > end:
        raise ValueError("a field without an end")
    return number, offset + size, slice(offset, offset + size)


def parts_of(data: bytes, number: int) -> tuple[list[bytes], bool]:
    """Return the contents of the repeated field `number`, and True; [] and False for damage."""
    try:
        parts = [content for field, content in fields(data) if field == number]
    except ValueError:
        return [], False
    return [part for part in parts if isinstance(part, bytes)], True


def last_fields(data: bytes) -> dict[int, Any]:
    """Return the fields of a message up to any damage, by number; the last of a repeated field."""
    content_by_number: dict[int, Any] = {}
    with suppress(ValueError):
        content_by_number.update(fields(data))
    return content_by_number


class Messages(Struct, frozen=True):
    """Messages of one kind in a block, by the offsets where each begins and ends."""

    block: Block
    begin: IntArray
    end: IntArray

    def only(self, rows: BoolArray) -> Messages:
        """Return the marked messages."""
        return Messages(self.block, self.begin[rows], self.end[rows])

    def columns(
        self,
        numbers: Sequence[int],
        parts: Sequence[int] = (),
        fixed: Sequence[int] = (),
        repeated: int | None = None,
    ) -> Columns:
        """Return fields of all messages; the arguments are field numbers.

        `numbers` are varints, `fixed` numbers of eight bytes (as the int64 of these bits),
        `parts` messages or texts. The last of a field counts; of `repeated` all are kept.
        """
        block, end, offset = self.block, self.end, self.begin.copy()
        scalars = (*numbers, *fixed)
        spans = (*parts, *(() if repeated is None else (repeated,)))
        wanted = (*scalars, *spans)  # the slot of a field is its index here, else len(wanted)
        values = np.full((len(wanted), len(offset)), ABSENT, np.int64)
        stops = np.full((len(spans), len(offset)), ABSENT, np.int64)
        repeats = [(np.empty(0, np.int64),) * 3]  # of `repeated`: rows of messages, begins, ends
        slot_of = np.full(_MOST_NUMBER, len(wanted), np.int64)
        slot_of[list(wanted)] = np.arange(len(wanted))
        sound = (offset >= 0) & (offset <= end) & (end <= block.size)
        rows = np.flatnonzero(sound & (offset < end))  # messages with more fields to read
        for _ in range(_MOST_FIELDS):  # one field of each message per pass
            if not len(rows):
                break
            tag, wire, value, after = block.next_fields(offset[rows], end[rows])
            # A wanted field must have the wire type of its slot; other fields are skipped.
            slot = slot_of[np.where((tag > 0) & (tag < _MOST_NUMBER), tag, 0)]
            is_wanted, is_part = slot < len(wanted), wire == LENGTH
            is_number = np.where(slot < len(numbers), wire == VARINT, wire == FIXED64)
            has_wire_type = np.where(slot < len(scalars), is_number, is_part)
            fits = (~is_wanted | has_wire_type) & (after >= 0)
            sound[rows[~fits]] = False
            offset[rows] = after
            taken = fits & is_wanted
            row, slot, is_part, value, stop = (
                column[taken] for column in (rows, slot, is_part, value, after)
            )
            is_fixed = (slot >= len(numbers)) & ~is_part
            value[is_fixed] = block.words[value[is_fixed]].view(np.int64)
            values[slot, row] = value
            stops[slot[is_part] - len(scalars), row[is_part]] = stop[is_part]
            if repeated is not None:
                is_repeated = slot == len(wanted) - 1
                repeats.append((row[is_repeated], value[is_repeated], stop[is_repeated]))
            rows = rows[fits & (after < end[rows])]
        sound[rows] = False  # messages with too many fields
        owner, begins, ends = (np.concatenate(column) for column in zip(*repeats, strict=True))
        order = np.argsort(owner, kind="stable")
        order = order[sound[owner[order]]]
        return Columns(
            block,
            dict(zip(scalars, values[: len(scalars)], strict=True)),
            dict(zip(spans, values[len(scalars) :], strict=True)),
            dict(zip(spans, stops, strict=True)),
            sound,
            Messages(block, begins[order], ends[order]),
            owner[order],
        )


class Columns(Struct, frozen=True):
    """Fields of messages by number, with a value per message: int64, ABSENT without the field.

    `begins` and `ends` are offsets of parts. `sound`: the message is whole and its fields have the
    expected types; values of others are meaningless. `each` are the parts of the repeated field,
    message by message, and `owner` the row of the message of each.
    """

    block: Block
    numbers: dict[int, IntArray]
    begins: dict[int, IntArray]
    ends: dict[int, IntArray]
    sound: BoolArray
    each: Messages
    owner: IntArray

    def has(self, part: int) -> BoolArray:
        """Return which messages have the part with this field number."""
        is_there: BoolArray = self.begins[part] != ABSENT
        return is_there

    def part(self, part: int, rows: BoolArray) -> Messages:
        """Return a part of the marked messages, all of which must have it."""
        return Messages(self.block, self.begins[part][rows], self.ends[part][rows])


class Block:
    """Bytes that contain messages."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.data = np.frombuffer(data + bytes(_PADDING), dtype=np.uint8)
        shape = (len(self.data) - 7,)
        self.words: Array = np.ndarray(shape, np.dtype("<u8"), self.data, strides=(1,))
        """The eight bytes from each offset on, as a number: a view, without copies."""

    def texts(self, begin: IntArray, end: IntArray) -> list[bytes | None]:
        """Return the bytes from each `begin` to its `end`, None if `begin` is ABSENT."""
        data = self.data.data
        spans = zip(begin.tolist(), end.tolist(), strict=True)
        return [None if start == ABSENT else bytes(data[start:stop]) for start, stop in spans]

    def known(self, begin: IntArray, end: IntArray, texts: Sequence[bytes]) -> IntArray:
        """Return the index in `texts` of the text from each `begin` to its `end`, else ABSENT.

        For speed only lengths, and the first and last eight bytes, are compared: `texts`
        must differ in these.
        """
        matches = np.full(len(begin), ABSENT, np.int64)
        first = self.words[np.maximum(begin, 0)]
        last = self.words[np.maximum(end, 8) - 8]
        for number, text in enumerate(texts):
            mask = np.uint64((1 << 8 * min(len(text), 8)) - 1)  # of the bytes of a shorter text
            is_equal = (end - begin == len(text)) & (begin != ABSENT)
            is_equal &= first & mask == int.from_bytes(text[:8], "little")
            if len(text) > 8:
                is_equal &= last == int.from_bytes(text[-8:], "little")
            matches[is_equal] = number
        return matches

    def next_fields(
        self, offset: IntArray, end: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return, per field at an offset: its number, wire type, value, and the offset behind it.

        The value of a varint is the number, that of other fields the offset of their content. The
        offset behind a field is -1 if it is damaged or goes beyond `end`.
        """
        tag, begin = self.varints(offset)
        wire = tag & 7
        value, behind = self.varints(np.minimum(begin, self.size))
        is_number, is_part, is_eight = wire == VARINT, wire == LENGTH, wire == FIXED64
        fixed_end = begin + np.where(is_eight, 8, 4)
        after = np.where(is_number, behind, np.where(is_part, behind + value, fixed_end))
        part_fits = is_part & (value >= 0) & (value <= end - behind)  # `value` is its size
        fits = is_number | part_fits | is_eight | (wire == FIXED32)
        fits &= (tag > 7) & (after <= end)  # below 8 the number of the field is 0: damage
        value = np.where(is_number, value, np.where(is_part, behind, begin))
        return tag >> 3, wire, value, np.where(fits, after, -1)

    def varints(self, offset: IntArray) -> tuple[IntArray, IntArray]:
        """Return the varints at offsets, and the offset behind each.

        A varint has seven bits per byte, the lowest first; all its bytes but the last have the
        highest bit set. The offset behind one of more than ten bytes is beyond the data: damage.
        """
        word = self.words[offset]  # the eight bytes from each offset on
        if not np.bitwise_or.reduce(word) & _MORE:  # all have one byte
            return (word & _LOW).view(np.int64), offset + 1
        # The last byte is the first whose highest bit is 0. `stop` has this bit alone (x & -x keeps
        # the lowest 1 of x), and `stop - 1` all bits under it. If none of the eight bytes is the
        # last, `stop` is 0, and `stop - 1` wraps around to all 64 bits: 56 bits enter `value`.
        stop = ~word & _HIGHEST_BITS
        stop &= ~stop + _ONE
        value = word & (stop - _ONE)
        for shift, high, low in _STEPS:
            value = ((value & high) >> shift) | (value & low)
        # The varint has as many bytes as `stop - 1` has lowest bits of bytes. The multiplication
        # adds up the eight bytes in the highest one.
        size = (((stop - _ONE) & _LOWEST_BITS) * _LOWEST_BITS) >> np.uint64(56)
        after = offset + size.view(np.int64)
        long = np.flatnonzero(stop == 0)
        if len(long):
            # Varints of nine or ten bytes: add the seven bits of the ninth, and the one of the
            # tenth that 64 bits have room for.
            starts = offset[long]
            ninth, tenth = (self.data[starts + byte].astype(np.uint64) for byte in (8, 9))
            has_tenth = ninth >= 0x80
            highest = np.where(has_tenth, (tenth & _ONE) << np.uint64(63), np.uint64(0))
            value[long] = value[long] | ((ninth & _LOW) << np.uint64(56)) | highest
            is_endless = has_tenth & (tenth >= 0x80)
            ends = starts + np.where(has_tenth, 10, 9)
            after[long] = np.where(is_endless, self.size + _PADDING, ends)
        return value.view(np.int64), after


def split(
    data: bytes, offset: int, end: int, number: int, others: dict[int, int | slice] | None = None
) -> tuple[IntArray, IntArray, bool]:
    """Return begin and end offsets of the parts of a message that repeats the field `number`.

    Also return whether the message, data[offset:end], is whole. `others` is filled with the last
    value of each other field: a number, or the slice of its content.
    """
    tag = number << 3 | LENGTH  # one byte, since `number` is below 16
    begins: list[int] = []
    ends: list[int] = []
    try:
        while offset < end:
            if data[offset] != tag:
                other, offset, content = _field(data, offset, end)
                if others is not None:
                    others[other] = content
                continue
            size = data[offset + 1]
            offset += 2
            if size >= 0x80:  # a varint of several bytes
                size, shift, byte = size & 0x7F, 7, 0x80
                while byte >= 0x80 and shift <= 63:
                    byte = data[offset]
                    size |= (byte & 0x7F) << shift
                    offset, shift = offset + 1, shift + 7
            begins.append(offset)
            offset += size
            ends.append(offset)
    except (ValueError, IndexError):
        offset = -1
    if ends and ends[-1] > end:  # the last part is cut off
        begins.pop()
        ends.pop()
    return np.array(begins, np.int64), np.array(ends[: len(begins)], np.int64), offset == end


def message_text(value: object) -> str:
    """Return bytes as a text, "" for other values."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
