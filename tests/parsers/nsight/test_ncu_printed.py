"""Numbers as Nsight Compute prints them, many at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parsers.nsight.test_ncu import line, read
from tests.parsers.nsight.test_ncu_pages import READ, of, page, table
from traceflops.parsers.nsight.ncu_values import WHATS, Marks, plain_numbers

PRINTED = [
    # What stands in the cell, and what it is with the point and with the comma for decimals.
    ("5", "5", "5"),
    ("-12", "-12", "-12"),
    ("2.33", "2.33", "233"),
    ("2,33", "233", "2.33"),
    ("1,234.50", "1234.50", "1.23450"),
    ("1.234,50", "1.23450", "1234.50"),
    ("1,234,567", "1234567", "no-number"),
    ("1.234.567", "no-number", "1234567"),
    ("1,2,3.4", "123.4", "no-number"),
    ("+7", "7", "7"),
    ("5.", "5", "5"),
    (".5", "0.5", "5"),
    ("1e3", "1000", "1000"),
    (" 8 ", "8", "8"),
    ("1'000", "no-number", "no-number"),
    ("12 (3; 4; 5)", "12", "12"),
    ("(3; 4)", "instances-unread", "instances-unread"),
    ("", "not-available", "not-available"),
    ("n/a", "not-available", "not-available"),
    ("inf", "no-number", "no-number"),
    ("word", "no-number", "no-number"),
    ("9" * 60, "9" * 60, "9" * 60),
    ("9" * 61, "no-number", "no-number"),
]


@pytest.mark.parametrize("comma", [False, True])
def test_each_cell_is_read_with_either_mark(comma: bool) -> None:
    found, kinds = plain_numbers([text for text, *_ in PRINTED], comma=comma)
    wanted = [row[2] if comma else row[1] for row in PRINTED]
    told = [
        value if value is not None else WHATS[kind]
        for value, kind in zip(found.to_pylist(), kinds.tolist(), strict=True)
    ]
    assert told == wanted
    assert [WHATS[kind] == "number" for kind in kinds.tolist()] == [
        value is not None for value in found.to_pylist()
    ]


@pytest.mark.parametrize(
    ("texts", "points", "commas", "ambiguous"),
    [
        (["1.5", "12.25", "1,234.5"], 3, 0, ""),
        (["1,5", "12,25", "1.234,5"], 0, 3, ""),
        (["1,234,567", "1.234.567"], 1, 1, ""),
        (["0.125", "0,125"], 1, 1, ""),
        (["1234.125", "1234,125"], 1, 1, ""),
        (["7", "n/a", "1.2.3", "1,2,3.4.5"], 0, 0, ""),
        (["7", "1,234", "5.678", "-0.125"], 0, 0, "1,234"),
        (["1'234.5", "\u0661.5", " 2.5 "], 3, 0, ""),
        (["9" * 59 + ".5"], 0, 0, ""),
        ([], 0, 0, ""),
    ],
)
def test_marks_of_which_there_is_no_doubt(
    texts: list[str], points: int, commas: int, ambiguous: str
) -> None:
    marks = Marks()
    marks.see(texts)
    assert (marks.counts["."], marks.counts[","], marks.ambiguous) == (points, commas, ambiguous)


def test_units_before_each_kernel_of_very_many(tmp_path: Path) -> None:
    """Of more than 100 rows of units the last ones share a page; each still has its own unit."""
    units = ["byte", "Kbyte", "Mbyte"]
    lines = page(None, metrics=(READ,))
    for number in range(250):
        lines += [line(*[""] * 11, units[number % 3]), line(*of(7, number, f"{number + 1}.5"))]
    found = sorted(table(read(tmp_path, *lines), "value"))
    powers = [1, 1_000, 1_000_000]
    assert found == sorted(((10 * n + 15) * powers[n % 3] / 10,) for n in range(250))
