"""Comma-separated text in every state in which it arrives: rows exactly, or counted as lost."""

import csv
import gzip
import io
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import some
from traceflops.parsers.io.csv_cells import Field, Texts, decimal, whole_number
from traceflops.parsers.io.csv_text import CsvText, Plan, Tables, find_start
from traceflops.parsers.io.inputs import ByteSource
from traceflops.table.columns import ABSENT

Row = tuple[int | None, str, int | None, float | None]


def plan_of(names: Sequence[str]) -> Plan | None:
    if not {"id", "name", "start"} <= set(names):
        return None
    fields = {"id": Field(names.index("id"), "integer")}
    fields |= {"name": Field(names.index("name"), "text")}
    fields |= {"start": Field(names.index("start"), "integer")}
    if "value" in names:
        fields["value"] = Field(names.index("value"), "number")
    return Plan(len(names), fields, names.index("name"), what=tuple(names))


EVENTS = Tables(frozenset({"id,name", 'id","', "id;name", "kind,id"}), plan_of)
"""Tables with the columns id, name, start, value, in any order; some have more."""


class Dribble(io.RawIOBase):
    """A stream that gives few bytes at a time, so that blocks are small."""

    def __init__(self, data: bytes, size: int) -> None:
        self._stream = io.BytesIO(data)
        self._size = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(self._size)


def source_of(data: bytes, step: int = 1 << 20, name: str = "table.csv") -> ByteSource:
    return ByteSource(name, lambda: Dribble(data, step))


def read(data: bytes, step: int = 1 << 20, block_bytes: int = 1 << 20) -> tuple[list[Row], CsvText]:
    """Return the rows of a text, and the reader with what it says of damage."""
    text = CsvText(source_of(data, step), EVENTS, block_bytes)
    rows: list[Row] = []
    for block in text:
        name = block.cells.columns["name"]
        assert isinstance(name, Texts)
        names = [name.values[code] for code in name.codes.tolist()]
        numbers = [
            [
                None if one == ABSENT else one
                for one in np.asarray(block.cells.columns[role]).tolist()
            ]
            for role in ("id", "start")
        ]
        value = np.asarray(
            block.cells.columns.get("value", np.full(block.cells.count, np.nan))
        ).tolist()
        values = [None if one != one else one for one in value]
        assert len(names) == len(numbers[0]) == block.cells.count
        rows += zip(numbers[0], names, numbers[1], values, strict=True)
    return rows, text


HEADER = b"id,name,start,value\n"
THREE: list[Row] = [(1, "a", 10, 0.5), (2, "b<c, d>", 20, None), (3, "", None, 1.25)]
PLAIN = HEADER + b'1,a,10,0.5\n2,"b<c, d>",20,\n3,,None,1.25\n'

SAME = {
    "plain": PLAIN,
    "byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "carriage returns": PLAIN.replace(b"\n", b"\r\n"),
    "no line end at the end": PLAIN.rstrip(),
    "an empty line behind the header": PLAIN.replace(b"value\n", b"value\n\n"),
    "empty lines": PLAIN.replace(b"\n", b"\n\n\n"),
    "everything quoted": HEADER
    + b'"1","a","10","0.5"\n"2","b<c, d>","20",""\n"3","","None","1.25"\n',
    "quoted header": PLAIN.replace(HEADER, b'"id","name","start","value"\n'),
    "semicolons": b"id;name;start;value\n1;a;10;0.5\n2;b<c, d>;20;\n3;;None;1.25\n",
    "decimal commas": b"id;name;start;value\n1;a;10;0,5\n2;b<c, d>;20;\n3;;None;1,25\n",
    "a hint for spreadsheets": (
        b"sep=;\nid;name;start;value\n1;a;10;0,5\n2;b<c, d>;20;\n3;;NULL;1,25\n"
    ),
    "tabs": b"id\tname\tstart\tvalue\n1\ta\t10\t0.5\n2\tb<c, d>\t20\t\n3\t\tNone\t1.25\n",
    "text before the header": b"a profiler says hello\n\n" + PLAIN,
    "a separator behind each row": HEADER + b'1,a,10,0.5,\n2,"b<c, d>",20,,\n3,,None,1.25,\n',
    "other words for nothing": HEADER + b'1,a,10,0.5\n2,"b<c, d>",20,nan\n3,,NULL,1.25\n',
    "the header again": PLAIN.replace(b"2,", HEADER + b"2,"),
    "hexadecimal": HEADER + b'0x1,a,0xA,0.5\n2,"b<c, d>",0x14,\n3,,None,1.25\n',
    "a number with decimals": HEADER + b'1.0,a,10.000,0.5\n2,"b<c, d>",20,\n3,,None,1.25\n',
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_table_in_other_clothes(text: bytes) -> None:
    rows, reader = read(text)
    assert rows == THREE
    assert reader.damage.dropped_rows == 0
    assert reader.damage.cut_bytes is None
    assert not reader.damage.bad_cells


NAMES = {
    "a comma": "operator,(int, int)",
    "a quote": 'lambda "x"',
    "JSON": 'step {"loss": 1, "n": [1,2]}',
    "quotes and commas": '"a","b"',
    "a lone quote": '5" disk',
    "a quote at the end": 'say "hello"',
    "only a quote": '"',
    "a line end": "first\nsecond",
    "much of everything": 'a","b",1,"c"',
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("escaped", [True, False])
def test_any_name_is_read_whether_its_quotes_are_escaped_or_not(name: str, escaped: bool) -> None:
    inside = name.replace('"', '""') if escaped else name
    rows, reader = read(HEADER + f'1,"{inside}",10,0.5\n2,"b",20,1\n'.encode())
    assert rows == [(1, name, 10, 0.5), (2, "b", 20, 1.0)]
    assert reader.damage.dropped_rows == 0
    assert reader.damage.repaired_rows == (0 if escaped or '"' not in name else 1)


@pytest.mark.parametrize(
    ("row", "dropped"),
    [
        (b"9,x\n", 1),
        (b"9\n", 1),
        (b'9,"x,30,1\n', 1),
        (b'9,"x",3"0,1\n', 1),
        (b'"9,x",30,1\n', 1),
    ],
)
def test_what_cannot_be_told_is_left_out_and_counted(row: bytes, dropped: int) -> None:
    rows, reader = read(HEADER + b"1,a,10,0.5\n" + row + b"2,b,20,1\n")
    assert rows == [(1, "a", 10, 0.5), (2, "b", 20, 1.0)]
    assert reader.damage.dropped_rows == dropped


def test_a_name_without_quotes_may_hold_separators() -> None:
    rows, reader = read(HEADER + b"1,f(int, int),10,0.5\n")
    assert rows == [(1, "f(int, int)", 10, 0.5)]
    assert reader.damage.repaired_rows == 1


@pytest.mark.parametrize("end", [b"2,b", b'2,"b', b'2,"b<', b"2,b,", b'2,"b c",1'])
def test_a_last_row_that_is_cut_is_left_out_and_said(end: bytes) -> None:
    rows, reader = read(HEADER + b"1,a,10,0.5\n" + end)
    assert rows == [(1, "a", 10, 0.5)]
    assert reader.damage.cut_bytes == len(end)
    assert reader.damage.dropped_rows == 0


def test_a_last_row_without_line_end_is_marked() -> None:
    blocks = list(CsvText(source_of(HEADER + b"1,a,10,0.5\n2,b,20,1"), EVENTS))
    assert [block.last_is_open for block in blocks] == [True]
    blocks = list(CsvText(source_of(HEADER + b"1,a,10,0.5\n2,b,20,1\n"), EVENTS))
    assert [block.last_is_open for block in blocks] == [False]


def test_of_a_stream_that_was_cut_the_last_row_may_lack_its_end() -> None:
    data = gzip.compress(HEADER + b"".join(b"%d,name %d,10,0.5\n" % (i, i) for i in range(9_999)))
    source = source_of(data[: len(data) // 2])
    text = CsvText(source, EVENTS)
    rows = sum(block.cells.count for block in text)
    assert source.cut
    assert 0 < rows < 9_999
    assert text.damage.cut_bytes is None or text.damage.cut_bytes < 30
    assert text.damage.dropped_rows == 0


EXACT = (2**53 + 1, 2**53 - 1, 2**62, 2**63 - 1, 0, -1, 1550151853029637)


@pytest.mark.parametrize("blank", ["", "None", "x"])
def test_times_stay_exact_whatever_stands_in_other_rows(blank: str) -> None:
    body = "".join(f"{i},k,{time},1.0\n" for i, time in enumerate(EXACT))
    rows, reader = read(HEADER + f"{body}9,k,{blank},1.0\n".encode())
    assert [row[2] for row in rows] == [*EXACT, None]
    assert reader.damage.bad_cells == ({"start": 1} if blank == "x" else {})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        (" 12 ", 12),
        ("-3", -3),
        ("0x1F", 31),
        ("18446744073709551615", -1),
        ("12.000000", 12),
        ("12.5", None),
        ("3.42331E+14", None),
        ("3,42331E+14", None),
        ("", None),
        ("1_000", None),
        ("\u0661", None),
        ("1" * 40, None),
        ("1" * 5000, None),
        ("99999999999999999999999", None),
        ("twelve", None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "comma", "number"),
    [
        ("1.5", False, 1.5),
        ("1,5", True, 1.5),
        ("1,5", False, None),
        ("1e3", False, 1000.0),
        ("inf", False, None),
        ("nan", False, None),
        ("1_0", False, None),
        ("9" * 400, False, None),
    ],
)
def test_decimals(text: str, comma: bool, number: float | None) -> None:
    assert decimal(text, comma) == number


def test_bytes_that_are_no_text_are_replaced_and_counted() -> None:
    rows, reader = read(HEADER + b"1,a,10,1\n2,b\xff\xfec,20,1\n3,d\0e,30,1\n4,\xef\xbf\xbd,40,1\n")
    assert [row[1] for row in rows] == ["a", "b\ufffd\ufffdc", "d\ufffde", "\ufffd"]
    assert reader.damage.replaced_characters == 3
    assert reader.damage.first_bad_byte == len(HEADER) + len("1,a,10,1\n2,b")
    assert reader.damage.rows_with_replacements >= 2


def test_the_first_bad_byte_is_counted_from_the_beginning_of_the_file() -> None:
    data = b"\xef\xbb\xbf" + HEADER + b"1,a,10,1\r\n" * 500 + b"2,\xff,20,1\r\n"
    _, reader = read(data, step=64, block_bytes=256)
    assert reader.damage.first_bad_byte == data.index(b"\xff")


def test_two_tables_one_after_the_other_are_read_by_their_own_headers() -> None:
    rows, reader = read(HEADER + b"1,a,10,0.5\n" + b"kind,id,start,name\nx,2,20,b\ny,3,30,c\n")
    assert rows == [(1, "a", 10, 0.5), (2, "b", 20, None), (3, "c", 30, None)]
    assert reader.damage.repeated_headers == 0
    assert reader.damage.dropped_rows == 0


def test_repeated_headers_are_counted() -> None:
    _, reader = read(PLAIN + PLAIN + PLAIN)
    assert reader.damage.repeated_headers == 2


@pytest.mark.parametrize("text", [b"", b"\n\n", b"hello\nworld\n", b"a,b\n1,2\n", bytes(5000)])
def test_text_without_a_table_has_no_rows(text: bytes) -> None:
    rows, reader = read(text)
    assert rows == []
    assert reader.plan is None
    assert find_start(text, EVENTS) is None


def test_a_line_of_megabytes_is_left_out() -> None:
    long = b"2," + b"x" * (9 << 20) + b",20,1\n"
    rows, reader = read(HEADER + b"1,a,10,1\n" + long + b"3,c,30,1\n")
    assert [row[0] for row in rows] == [1, 3]
    assert reader.damage.dropped_rows == 1


NONSENSE = (b'"\n', b'""""\n', b',",",\n', b"\n", b'1,"a\n', b"id,name,start\n", b"id,name\n")


@pytest.mark.parametrize("line", some((*NONSENSE, b",\n", b"1\n"), 4), ids=repr)
def test_very_many_lines_of_nonsense_take_no_long_time(line: bytes) -> None:
    rows, _ = read(HEADER + b"1,a,10,1\n" + line * (400_000 // len(line)) + b"2,b,20,1\n")
    assert rows[0] == (1, "a", 10, 1.0)


def test_a_large_text_comes_in_blocks() -> None:
    row = b"1,%s,10,0.5\n" % (b"name " * 20)
    step, size = 1 << 12, 1 << 16
    text = CsvText(source_of(HEADER + row * 20_000, step), EVENTS, size)
    rows = [block.cells.count for block in text]
    assert sum(rows) == 20_000
    assert max(rows) * len(row) <= size + step
    assert len(rows) > 20


# Properties

CHARACTERS = st.characters(
    categories=("L", "N", "P", "S", "Zs", "Cc"), exclude_characters="\r\n\0\ufffd"
)
TEXTS = st.text(CHARACTERS, max_size=12)
NUMBERS = st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1))
ROWS = st.lists(
    st.tuples(NUMBERS, TEXTS, NUMBERS, st.one_of(st.none(), st.integers(-9, 9).map(float))),
    min_size=1,
    max_size=30,
)


def escaped(rows: Iterable[Row]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return out.getvalue().encode()


def unescaped(rows: Iterable[Row]) -> bytes:
    """Return rows as a writer makes them that puts quotes around a name and escapes none in it."""
    lines = []
    for number, name, start, value in rows:
        cells = ["" if one is None else str(one) for one in (number, start, value)]
        lines.append(f'{cells[0]},"{name}",{cells[1]},{cells[2]}\n')
    return "".join(lines).encode()


@given(ROWS, st.integers(1, 400))
@example([(1, 'a","b', 2, 1.0), (2, '"', None, None)], 7)
def test_what_was_escaped_comes_back_in_blocks_of_any_size(rows: list[Row], step: int) -> None:
    found, reader = read(HEADER + escaped(rows), step, block_bytes=200)
    assert found == rows
    assert reader.damage.dropped_rows == 0


@given(ROWS, st.integers(1, 400))
def test_of_what_was_not_escaped_no_number_is_wrong(rows: list[Row], step: int) -> None:
    found, reader = read(HEADER + unescaped(rows), step, block_bytes=200)
    assert len(found) + reader.damage.dropped_rows + (reader.damage.cut_bytes is not None) <= len(
        rows
    )
    if not any('"' in row[1] for row in rows):
        assert found == rows
    known = {(row[0], row[2], row[3]) for row in rows}
    assert {(row[0], row[2], row[3]) for row in found} <= known


@given(ROWS, st.data())
def test_a_flipped_cut_or_doubled_piece_never_raises(rows: list[Row], data: st.DataObject) -> None:
    text = bytearray(HEADER + unescaped(rows))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        what = data.draw(st.sampled_from(("flip", "cut", "double", "insert")))
        if what == "flip":
            text[at] = data.draw(st.integers(0, 255))
        elif what == "cut":
            text = text[: at + 1]
        elif what == "double":
            text = text[:at] + text[at // 2 :]
        else:
            text[at:at] = data.draw(st.sampled_from((b'"', b",", b"\n", b"\0", b"\xff", b"\r")))
    read(bytes(text), step=data.draw(st.integers(1, 300)), block_bytes=150)


@given(st.binary(max_size=300))
def test_no_bytes_behind_a_header_raise(noise: bytes) -> None:
    rows, _ = read(HEADER + noise)
    assert len(rows) <= noise.count(b"\n") + noise.count(b"\r") + 1
