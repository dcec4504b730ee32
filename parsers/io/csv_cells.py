"""The cells of rows of CSV as columns: whole numbers (exact), decimals, texts.

Arrow decodes sound rows. If it finds no number where one is expected, the column is read cell by
cell, with the number formats of printed text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from pyarrow import csv

from traceflops.table.columns import (
    ABSENT,
    Array,
    BoolArray,
    IntArray,
    Names,
    codes,
    floats,
    names,
    numbers,
)
from traceflops.table.grouping import distinct

Kind = Literal["integer", "time", "number", "text"]
"""Times are whole numbers, too; those with decimals, as means of several runs have, are rounded."""
_MISSING: Final = ("", "none", "null", "nan", "n/a", "na", "-")
_NULLS: Final = [
    spelling for word in _MISSING for spelling in dict.fromkeys((word, word.title(), word.upper()))
] + ["NaN"]
_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    "integer": pa.int64(),
    "time": pa.int64(),
    "number": pa.float64(),
    "text": pa.dictionary(pa.int32(), pa.string()),
}
_COLUMN: Final = re.compile(r"column #(\d+)")
_LONGEST_DECIMAL: Final = 160  # no program writes a decimal number in more characters
_LONGEST: Final = 60
_TWO_63: Final = 2**63
_ROUNDING: Final = 2.0**-50  # the largest relative error of a decimal times a power of 10
_SPACES: Final = "'\u2019\u00a0\u202f\u2009 "
_NUMBER: Final = re.compile(rf"-?\d[\d.,{_SPACES}]*")
_WITH_DECIMALS: Final = re.compile(r"-?\d{1,19}\.\d{1,30}")
_THREES: Final = re.compile(rf"-?\d{{1,3}}([.,{_SPACES}])\d{{3}}(?:\1\d{{3}})*")
"""A whole number in groups of three digits, all separated by the same mark."""


class Field(Struct, frozen=True):
    """A column to read: its index in the row, and the kind of its cells."""

    place: int
    kind: Kind


class Texts(Struct, frozen=True):
    """A column of texts: row i is values[codes[i]]."""

    codes: IntArray
    values: list[str]


Column = Array | Texts


class Cells(Struct, frozen=True):
    """Rows of a table: their columns, by the roles that the caller gave them."""

    count: int
    columns: Mapping[str, Column]

    def has(self, role: str) -> bool:
        """Return whether the file has such a column."""
        return role in self.columns

    def numbers(self, role: str) -> IntArray:
        """Return a column of whole numbers, all ABSENT if the file has no such column."""
        column = self.columns.get(role)
        if column is None or isinstance(column, Texts):
            return np.full(self.count, ABSENT, np.int64)
        return column

    __getitem__ = numbers

    def codes(self, role: str, names: Names, otherwise: str | None = None) -> Array:
        """Return a column of texts as codes in `names`; empty ones become `otherwise`, else -1."""
        column = self.columns.get(role)
        if not isinstance(column, Texts):
            code = -1 if otherwise is None else names[otherwise]
            return np.full(self.count, code, np.int32)
        used = distinct(column.codes)
        table = np.full(len(column.values) + 1, -1, np.int32)  # the last: for the code -1, no text
        texts = (column.values[code] or otherwise for code in used.tolist())
        table[used] = [-1 if text is None else names[text] for text in texts]
        return table[column.codes]

    def only(self, rows: BoolArray | IntArray) -> Cells:
        """Return the chosen rows."""
        if rows.dtype == np.bool_ and rows.all():
            return self
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64)
        taken = {
            role: Texts(column.codes[places], column.values)
            if isinstance(column, Texts)
            else column[places]
            for role, column in self.columns.items()
        }
        return Cells(len(places), taken)


def cells(
    text: bytes,
    separator: str,
    width: int,
    fields: Mapping[str, Field],
    *,
    line_ends_inside: bool = False,
) -> tuple[Cells, int, Counter[str]]:
    """Return the columns of CSV text with `width` columns and sound quotes.

    Also return how many rows were skipped, since they have another number of fields, and how many
    cells of each role are no numbers. Whole numbers are int64 (ABSENT for missing), decimals
    float64 (NaN). `line_ends_inside`: fields may contain line ends.
    """
    number_kinds = {f.place: f.kind for f in fields.values() if f.kind != "text"}
    types = {f.place: _TYPES[f.kind] for f in fields.values()}
    loose: set[int] = set()  # columns that are read as texts, then converted cell by cell
    while True:
        as_strings = dict.fromkeys(loose & number_kinds.keys(), pa.string())
        try:
            table, skipped = _table(text, separator, width, types | as_strings, line_ends_inside)
        except pa.ArrowInvalid as error:
            # Read the column that the error names cell by cell; after some retries, all columns.
            match = _COLUMN.search(str(error))
            bad_column = int(match[1]) if match else -1
            is_new = bad_column in types.keys() - loose and len(loose) < 3
            loose |= {bad_column} if is_new else types.keys()
            continue
        texts = {column: table[f"c{column}"].to_pylist() for column in as_strings}
        decimals_printed = (texts[column] for column in texts if number_kinds[column] == "number")
        mark = decimal_mark(cell.strip() for column in decimals_printed for cell in column)
        if mark != "," or number_kinds.keys() <= loose:
            break
        # With decimal commas, points separate thousands: what Arrow read as decimals may be wrong.
        loose |= number_kinds.keys()

    columns: dict[str, Column] = {}
    bad: Counter[str] = Counter()
    for role, field in fields.items():
        column = table[f"c{field.place}"]
        if field.place in texts:
            printed = texts[field.place]
            columns[role], bad[role] = _converted(printed, field.kind, mark, separator)
        elif field.kind == "text":
            has_rows = len(column) > 0
            values = names(column) if has_rows else []
            columns[role] = Texts(codes(column) if has_rows else np.empty(0, np.int64), values)
        else:
            columns[role] = floats(column) if field.kind == "number" else numbers(column, ABSENT)
    return Cells(table.num_rows, columns), skipped, +bad


def _converted(
    printed: Sequence[str], kind: Kind, mark: str | None, separator: str
) -> tuple[Array, int]:
    """Return a column of printed numbers, and how many cells are neither numbers nor missing.

    `mark` is the decimal mark of the column if known. If commas separate cells, an unclear comma in
    a decimal number makes it unreadable.
    """
    values, bad = list[float](), 0
    for cell in (text.strip() for text in printed):
        value: float | None
        if kind != "number":
            value = whole_number(cell)
            is_grouped = len(cell) <= _LONGEST and _THREES.fullmatch(cell) is not None
            if is_grouped and (value is None or mark == ","):  # then 12.000 is 12000, not 12
                value = whole_number(re.sub(r"[^\d-]", "", cell))
            elif kind == "time" and _WITH_DECIMALS.fullmatch(cell):
                value = whole_number(str(Decimal(cell).quantize(Decimal(1))))
        elif own_mark := clear_mark(cell) or (mark if is_ambiguous(cell) else None):
            value = decimal(plain_decimal(cell, comma=own_mark == ","))
        else:
            value = decimal(cell, separator != ",")
        bad += value is None and cell.lower() not in _MISSING
        absent = np.nan if kind == "number" else ABSENT
        values.append(absent if value is None else value)
    return np.array(values, np.float64 if kind == "number" else np.int64), bad


def _table(
    text: bytes, separator: str, width: int, types: Mapping[int, pa.DataType], ends_inside: bool
) -> tuple[pa.Table, int]:
    """Return the columns in `types`, and how many rows were skipped: their field count is wrong."""
    skipped = 0

    def skip(_: object) -> str:
        nonlocal skipped
        skipped += 1
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(
            use_threads=False,
            block_size=len(text) + 1,  # all in one block
            column_names=[f"c{column}" for column in range(width)],
        ),
        csv.ParseOptions(
            delimiter=separator, newlines_in_values=ends_inside, invalid_row_handler=skip
        ),
        csv.ConvertOptions(
            column_types={f"c{column}": type_ for column, type_ in types.items()},
            include_columns=[f"c{column}" for column in types],
            null_values=_NULLS,
            strings_can_be_null=False,
        ),
    )
    return table, skipped


def whole_number(text: str) -> int | None:
    """Return a whole number of 64 bits, also from hexadecimal or with zeros as decimals, else None.

    2^63 and above wraps around; what a spreadsheet rounded (3.42E+14) is None.
    """
    text = text.strip()
    if not text or len(text) > 40 or not text.isascii() or "_" in text:
        return None
    whole, _, decimals = text.partition(".")
    if decimals.strip("0"):
        return None
    try:
        value = int(whole, 16 if whole[:2].lower() == "0x" else 10)
    except ValueError:
        return None
    if not -_TWO_63 < value < 2 * _TWO_63:
        return None
    return value - 2 * _TWO_63 if value >= _TWO_63 else value


def decimal(text: str, comma: bool = False) -> float | None:
    """Return a finite decimal number, else None; with `comma`, a comma is its decimal mark."""
    text = text.strip()
    if len(text) > _LONGEST_DECIMAL or not text.isascii() or "_" in text:
        return None
    try:
        value = float(text.replace(",", ".") if comma else text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def clear_mark(cell: str) -> str | None:
    """Return the decimal mark of a number, None if it is not certain.

    A mark that occurs twice separates thousands; a single mark before three digits may do so, too;
    one at the end is of the sentence: "version 8.6,".
    """
    marks = [c for c in cell[:_LONGEST] if c in ".,"]
    if not marks or len(cell) > _LONGEST or not _NUMBER.fullmatch(cell):
        return None
    last = marks[-1]
    if marks.count(last) > 1:
        return ("," if last == "." else ".") if _THREES.fullmatch(cell) else None
    whole, _, behind = cell.rpartition(last)
    if not behind:
        return None
    has_both = len(set(marks)) == 2
    cannot_be_thousands = len(behind) != 3 or len(whole.lstrip("-")) > 3 or whole == "0"
    return last if has_both or cannot_be_thousands else None


def is_ambiguous(cell: str) -> bool:
    """Return whether the mark of a number may be decimal or thousands: 1.234."""
    match = _THREES.fullmatch(cell) if len(cell) <= _LONGEST else None
    return match is not None and match[1] in ".," and clear_mark(cell) is None


def decimal_mark(cells: Iterable[str]) -> str | None:
    """Return the decimal mark that is certain in most numbers, None if it is certain in none."""
    marks = Counter(mark for cell in cells if (mark := clear_mark(cell)) is not None)
    return max(marks, key=lambda mark: (marks[mark], mark)) if marks else None


def plain_decimal(cell: str, *, comma: bool) -> str:
    """Return a number without thousands separators and with a decimal point."""
    whole, _, decimals = cell.partition("," if comma else ".")
    return re.sub(r"[^\d-]", "", whole) + (f".{decimals}" if decimals else "")


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, with or without marks."""
    return len(cell) <= _LONGEST and _NUMBER.fullmatch(cell) is not None


def step_of(column: npt.NDArray[np.float64], scale: int) -> int:
    """Return the step to which printed decimals are rounded, in parts of which a unit has `scale`.

    Of times in µs with scale 1000 it is in ns: 1.25 and 3.1 are rounded to steps of 10 ns.
    """
    values = column[np.isfinite(column)]
    for decimals in range(len(str(scale))):  # further decimals are smaller than a part
        steps = int(10**decimals)  # per unit
        scaled = values * steps
        if (np.abs(scaled - np.rint(scaled)) <= np.abs(scaled) * _ROUNDING).all():
            return max(scale // steps, 1)
    return 1


def finest(first: int | None, second: int | None) -> int | None:
    """Return the smaller of two steps that may be unknown (None)."""
    return min((step for step in (first, second) if step is not None), default=None)
