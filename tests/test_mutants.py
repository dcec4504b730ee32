"""The list of mutants stays true: what is to be changed is there, and so are the tests named."""

from collections import Counter

from tests.conftest import ROOT, by_night
from tests.mutants import mutants

ROOMS = ("attribution", "timeline", "ranks", "replay", "findings", "mfu", "parsers")


def test_sixty_mutants_are_spread_over_the_rooms() -> None:
    rooms = Counter(one.path.removeprefix("traceflops/").split("/")[0] for one in mutants())
    assert rooms.total() == 60
    assert min(rooms[name] for name in ROOMS) >= 6
    assert [name for one in mutants() for name in one.tests if not (ROOT / name).exists()] == []


@by_night()
def test_each_text_that_is_changed_stands_once_in_its_file() -> None:
    """By night, as the trial itself: whoever moves a line need not know of it at once."""
    texts = {one.path: (ROOT / one.path).read_text(encoding="utf-8") for one in mutants()}
    assert [one for one in mutants() if texts[one.path].count(one.old) != 1] == []
    assert [one for one in mutants() if one.old == one.new] == []
