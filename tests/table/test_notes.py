"""What is said of several files is said once, with figures that are true of all of them."""

import pytest

from traceflops.table.merged_notes import Owned, together
from traceflops.table.trace import Note, counted_note, of_noun, ranges, rank_from_name, worded

LOST = of_noun("row", "could not be read and [was|were] left out.")


def lost(count: int, file: str) -> Owned:
    return file, counted_note("dropped", "rows-lost", LOST, count, file)


def said(notes: list[Owned], total: int, noun: str = "file") -> list[tuple[str, int | None]]:
    return [(note.text, note.count) for note in together(notes, total, noun)]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 row could not be read and was left out."),
        (0, "0 rows could not be read and were left out."),
        (1234, "1,234 rows could not be read and were left out."),
    ],
)
def test_a_wording_is_a_sentence_for_any_number(count: int, text: str) -> None:
    assert worded(LOST, count) == text


def test_figures_of_files_are_added_up() -> None:
    notes = [lost(1, "a"), lost(1, "b"), lost(2000, "c")]
    assert said(notes, 8) == [
        ("2,002 rows could not be read and were left out. (in 3 of 8 files)", 2002)
    ]
    assert said(notes[:1], 8) == [("1 row could not be read and was left out.", 1)]


def test_two_notes_of_one_file_are_in_one_file() -> None:
    assert said([lost(1, "a"), lost(3, "a")], 8) == [
        ("4 rows could not be read and were left out.", 4)
    ]


def test_values_are_listed() -> None:
    notes: list[Owned] = [(n, rank_from_name([n], f"rank{n}")) for n in (4, 0, 1, 2)]
    text = "Ranks 0 to 2, 4 were taken from file or folder names. (in 4 of 5 files)"
    assert said(notes, 5) == [(text, 4)]
    assert said(notes[:1], 5) == [("Rank 4 was taken from file or folder names.", 1)]
    assert ranges([7, 3, 1, 2, 7, 8]) == "1 to 3, 7, 8"


def test_a_figure_that_all_files_share_is_not_taken_for_their_sum() -> None:
    two: list[Owned] = [(n, Note("missing", "x", "Of 2 records it is unknown.", 2)) for n in (0, 1)]
    assert said(two, 2) == [("Of 2 records it is unknown. (same in 2 of 2 files)", 4)]
    bare: list[Owned] = [(n, Note("missing", "x", "Not there.")) for n in (0, 1)]
    assert said(bare, 3, "recording") == [("Not there. (in 2 of 3 recordings)", None)]


def test_of_many_with_other_figures_it_is_said_how_many_and_how_much_in_all() -> None:
    notes: list[Owned] = [
        (n, Note("dropped", "x", f"{n} of 99 left out.", n, f"f{n}")) for n in range(1, 7)
    ]
    assert said(notes[:3], 9) == [(f"{n} of 99 left out.", n) for n in (1, 2, 3)]
    (found,) = together(notes, 9)
    assert found.text == (
        "f1: 1 of 99 left out. (Similar in 5 more of 9 files: f2, f3, f4, f5, f6; 21 total.)"
    )
    assert (found.count, found.file) == (21, None)


def test_files_that_were_put_together_before_are_counted_one_by_one() -> None:
    bare: list[Owned] = [(n, Note("missing", "bare", "Not there.")) for n in range(5)]
    own: list[Owned] = [(n, Note("dropped", "x", f"{n} of 99 left out.", n)) for n in range(10)]
    parts = [[lost(n, f"f{n}") for n in (1, 2)] + bare, [lost(3, "f3"), *own[:5]], own[5:]]
    owned: list[Owned] = [(at, note) for at, part in enumerate(parts) for note in together(part, 5)]
    assert said(owned, 15) == [
        ("6 rows could not be read and were left out. (in 3 of 15 files)", 6),
        ("Not there. (in 5 of 15 files)", None),
        ("0 of 99 left out. (Similar in 9 more of 15 files; 45 total.)", 45),
    ]


def test_what_is_shown_of_a_note_is_its_text_and_what_it_is_about() -> None:
    note = counted_note("dropped", "rows-lost", LOST, 2, "a")
    assert note.as_dict() == {
        "kind": "dropped",
        "code": "rows-lost",
        "text": "2 rows could not be read and were left out.",
        "count": 2,
        "file": "a",
    }
