"""What PyTorch writes into the text of a range: an operator, its ids and the sizes of its inputs.

`aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]` as torch.autograd.profiler.emit_nvtx has
it. Nearly every such text is another, so they are taken apart as bytes, all of a batch at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from traceflops.parsers.io import UNDECODABLE, Bytes
from traceflops.table import ABSENT, BoolArray, IntArray, numbers, runs

_SEQUENCE: Final = b", seq = "
_ID: Final = b", op_id = "
_SIZES: Final = b", sizes = "
_INPUTS: Final = b", input_op_ids = "
_MOST_DIGITS: Final = 18
_OPERATOR: Final = re.compile(r"[\w.]+::|\w*Backward\d*$")
"""Names of operators. What a program itself marks (`record_function`) is written the same way."""
_BARE: Final = re.compile(r"[a-z_]\w*")
_SIZES_TEXT: Final = re.compile(r"\[[\[\]\d, -]*\]")


@dataclass(frozen=True, slots=True)
class OpTexts:
    """Texts taken apart. `name` and `sizes` are places in lists, `sizes` -1 where there are none.

    `sequence` and `op_id` are ABSENT where the text does not have them; a text that is no operator
    is all name.
    """

    name: IntArray
    names: list[str]
    is_op: BoolArray
    sequence: IntArray
    op_id: IntArray
    sizes: IntArray
    all_sizes: list[str | None]


def op_texts(column: pa.Array) -> OpTexts:
    """Return a column of texts taken apart."""
    data, offsets = _bytes(column)
    commas = np.flatnonzero(data == ord(","))
    begin, end = offsets[:-1], offsets[1:]
    at = {word: _first(data, commas, word, offsets) for word in (_SEQUENCE, _ID, _SIZES, _INPUTS)}
    name_end = end
    for place in at.values():
        name_end = np.where((place >= 0) & (place < name_end), place, name_end)
    name, names = _texts(data, begin, name_end)
    sizes, all_sizes = _sizes(data, at[_SIZES], at[_INPUTS], end)
    sequence = _number(data, at[_SEQUENCE], len(_SEQUENCE), end)
    op_id = _number(data, at[_ID], len(_ID), end)
    of_op = (op_id == ABSENT) & ((sequence != ABSENT) | (at[_SIZES] >= 0))
    name = _in_namespace(name, names, of_op)
    like_op = np.array([bool(_OPERATOR.match(a_name)) for a_name in names], dtype=np.bool_)
    is_op = (sequence != ABSENT) | (sizes >= 0)
    if len(names):
        is_op |= (op_id != ABSENT) & like_op[name]
    return OpTexts(name, names, is_op, sequence, op_id, sizes, all_sizes)


def _in_namespace(name: IntArray, names: list[str], of_op: BoolArray) -> IntArray:
    """Return the names with those of operators as all versions but the oldest write them.

    Before PyTorch 1.7 an operator had no namespace (`mm, seq = 12`), nor an id.
    """
    table = np.arange(len(names))
    for place in np.unique(name[of_op]).tolist():
        if _BARE.fullmatch(names[place]):
            table[place] = len(names)
            names.append(f"aten::{names[place]}")
    return np.where(of_op, table[name], name) if len(names) > len(table) else name


def _bytes(column: pa.Array) -> tuple[Bytes, IntArray]:
    """Return the bytes of all texts, and where each begins and the last ends."""
    _, places, content = column.buffers()
    if not len(column) or content is None:
        return np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    offsets = np.frombuffer(places, dtype=np.int32)[column.offset :][: len(column) + 1]
    return np.frombuffer(content, dtype=np.uint8), offsets.astype(np.int64)


def _first(data: Bytes, commas: IntArray, word: bytes, offsets: IntArray) -> IntArray:
    """Return where a word first stands in each text, -1 where it does not."""
    first = np.full(len(offsets) - 1, -1, dtype=np.int64)
    places = commas[commas + len(word) <= len(data)]
    for step in range(1, len(word)):
        places = places[data[places + step] == word[step]]
    text = np.searchsorted(offsets, places, side="right") - 1
    inside = (text >= 0) & (text < len(first))
    places, text = places[inside], text[inside]
    fits = places + len(word) <= offsets[text + 1]
    first[text[fits][::-1]] = places[fits][::-1]  # the first of a text is written last
    return first


def _number(data: Bytes, at: IntArray, skipped: int, end: IntArray) -> IntArray:
    """Return the number behind each place, ABSENT where there is none."""
    value = np.zeros(len(at), dtype=np.int64)
    digits = np.zeros(len(at), dtype=np.int64)
    going = np.flatnonzero(at >= 0)
    for step in range(_MOST_DIGITS):
        place = at[going] + skipped + step
        inside = place < end[going]
        going, place = going[inside], place[inside]
        digit = data[place].astype(np.int64) - ord("0")
        is_digit = (digit >= 0) & (digit <= 9)
        going = going[is_digit]
        if not len(going):
            break
        value[going] = value[going] * 10 + digit[is_digit]
        digits[going] += 1
    return np.where(digits > 0, value, ABSENT)


def _sizes(
    data: Bytes, at: IntArray, behind: IntArray, end: IntArray
) -> tuple[IntArray, list[str | None]]:
    """Return the sizes of each text, as places in a list of the JSON that they are."""
    rows = np.flatnonzero(at >= 0)
    stop = np.where(behind[rows] > at[rows], behind[rows], end[rows])
    codes, texts = _texts(data, at[rows] + len(_SIZES), stop)
    places = np.full(len(at), -1, dtype=np.int64)
    places[rows] = codes
    return places, [text if _is_sizes(text) else None for text in texts]


def _is_sizes(text: str) -> bool:
    if not _SIZES_TEXT.fullmatch(text):
        return False
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return True


def _texts(data: Bytes, begin: IntArray, end: IntArray) -> tuple[IntArray, list[str]]:
    """Return parts of the bytes as places in a list of the distinct ones."""
    if not len(begin):
        return np.empty(0, np.int64), []
    places, _ = runs(begin, end)
    ends = np.append(0, np.cumsum(end - begin))
    if int(ends[-1]) >= 2**31:
        raise ValueError("a batch of texts is too large")
    content = pa.py_buffer(np.ascontiguousarray(data[places]))
    parts = [None, pa.py_buffer(ends.astype(np.int32)), content]
    # As bytes, since not every text in a file is one; what is none is mended when it is decoded.
    column = pa.Array.from_buffers(pa.binary(), len(begin), parts).dictionary_encode()
    return numbers(column.indices), [
        one.decode(errors="replace") for one in column.dictionary.to_pylist()
    ]
