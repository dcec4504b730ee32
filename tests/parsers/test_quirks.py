"""One tiny file per quirk of the format, each with the rows and notes it must give.

The numbers in the names are those of the checklist in docs/parsers/pytorch.md; `s2` is the
description of the format, `x` a trap for readers. `<name>.expected.json` was written by hand: the
listed columns of all rows of the listed tables, and the codes and counts of the notes about the
text and its events.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parsers.documents import read_bytes
from traceflops.errors import InputError
from traceflops.parsers.reading import read
from traceflops.parsers.shared.sanity_checks import plausible
from traceflops.table.trace import Trace

FIXTURES = Path(__file__).parents[1] / "fixtures" / "pytorch"
QUIRKS = sorted(p.stem for p in FIXTURES.glob("*.json") if ".expected" not in p.name)
ABOUT_CONTENT = {"no-shapes", "no-calls", "no-device-work", "device-ambiguous"}
"""Notes that many tiny files give by being tiny; they are listed only where they are the point."""


def expected_of(quirk: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"{quirk}.expected.json").read_text())
    return loaded


def check(trace: Trace, wanted: dict[str, Any]) -> None:
    for table, rows in wanted["tables"].items():
        found = trace.table(table).to_pylist()
        assert len(found) == len(rows), table
        for row, columns in zip(found, rows, strict=True):
            assert {column: row[column] for column in columns} == columns
    notes: dict[str, int | None] = {}
    for note in trace.notes:
        count = None if note.code in ABOUT_CONTENT else note.count
        notes[note.code] = (notes.get(note.code) or 0) + count if count is not None else None
    listed = {code: n for code, n in notes.items() if code not in ABOUT_CONTENT}
    assert listed == {c: n for c, n in wanted["notes"].items() if c not in ABOUT_CONTENT}
    assert ABOUT_CONTENT & wanted["notes"].keys() <= notes.keys()
    if "counts" in wanted:
        assert trace.source.event_counts == wanted["counts"]
    if "absent" in wanted:
        assert wanted["absent"] not in repr((trace.source, trace.notes))
        tables = {name: table.to_pydict() for name, table in trace.to_arrow().items()}
        assert wanted["absent"] not in repr(tables)


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirk(quirk: str) -> None:
    wanted = expected_of(quirk)
    if "error" in wanted:
        with pytest.raises(InputError, match=wanted["error"]):
            read(FIXTURES / f"{quirk}.json")
    else:
        check(read(FIXTURES / f"{quirk}.json"), wanted)


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirk_in_small_blocks(quirk: str) -> None:
    wanted = expected_of(quirk)
    data = (FIXTURES / f"{quirk}.json").read_bytes()
    for size in (1, 9, 100, 333):
        if "error" in wanted:
            with pytest.raises(InputError, match=wanted["error"]):
                read_bytes(data, size)
        else:
            check(plausible(read_bytes(data, size)), wanted)


def test_every_fixture_has_its_expectation() -> None:
    expectations = {p.name.removesuffix(".expected.json") for p in FIXTURES.glob("*.expected.json")}
    assert expectations == set(QUIRKS)
    assert len(QUIRKS) > 50
