"""Labels of the rows of a table: as short as they can be, and different where the names are.

A label has three pieces. The first gives way where a column is narrow, and the last before it; the
one between stays, and is what tells a name from others that begin alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Final

from msgspec import Struct

from traceflops.characters import shortened, shortened_around
from traceflops.reports.view.figures import (
    kernel_label,
    kernel_text,
    unqualified,
    visible,
)

_ALIKE: Final = 14
"""Characters of the first piece that are seen however narrow the column is."""
_SHORT: Final = 28
"""Characters of a label that is never cut."""
_HEAD, _TAIL, _MORE, _SPARE = 80, 16, 60, 4
"""The most characters of each piece, and of a last one that is not worth a piece of its own."""
_BEYOND: Final = 8
_LONGEST: Final = 1_000
_FARTHEST_BACK: Final = 12


class Label(Struct, frozen=True):
    """The pieces of a label; where it needs no other, the first is all of it."""

    head: str
    tail: str = ""
    more: str = ""


def kernel_labels(names: Sequence[str]) -> list[Label]:
    """Return the labels of kernels, by their functions' own names."""
    return labels(names, kernel_text, unqualified)


def labels(
    names: Sequence[str],
    shown: Callable[[str], str] = str,
    whole: Callable[[str], str] = str,
) -> list[Label]:
    """Return labels of names by what is shown of each; the same name has the same label.

    Where what is shown is the same of several names, what differs of them `whole` is added.
    """
    distinct = list(dict.fromkeys(names))
    texts = _told_apart(distinct, [visible(shown(name)[:_LONGEST]) for name in distinct], whole)
    made = [Label(shortened(text, _HEAD)) for text in texts]
    for places in _grouped(text[:_ALIKE] for text in texts):
        if len(places) > 1:
            mine = [texts[place] for place in places]
            for place, (start, end) in zip(places, _differ(mine), strict=True):
                made[place] = _pieces(texts[place], start, end)
    by_name = dict(zip(distinct, made, strict=True))
    return [by_name[name] for name in names]


def short_labels(names: Sequence[str], width: int) -> list[str]:
    """Return names of one table in at most `width` characters, different where the names are.

    Of names that would look alike, what is equal is left out and what differs is kept.
    """
    short = {name: kernel_label(name, width) for name in names}
    for alike in _sharing(short):
        texts = [visible(unqualified(name)[:_LONGEST]) for name in alike]
        if len(set(texts)) < len(texts):
            texts = [visible(name[:_LONGEST]) for name in alike]
        places = [start for start, _ in _differ(texts)]
        before = [
            _word_before(text, start, width) for text, start in zip(texts, places, strict=True)
        ]
        for starts in (before, places):
            labels = []
            for text, start in zip(texts, starts, strict=True):
                # As much as has room: the beginning, and what follows the place.
                rest = min(len(text) - start, _room_behind(width))
                labels.append(shortened_around(text, start, max(width - 1 - rest, 0), width))
            if len(set(labels)) == len(labels):
                break
        short |= zip(alike, labels, strict=True)
    for alike in _sharing(short):
        short |= zip(alike, _numbered(short, alike, width), strict=True)
    return [short[name] for name in names]


def _sharing(short: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of names whose labels look alike."""
    names, groups = list(short), _grouped(map(str.strip, short.values()))
    return [[names[place] for place in places] for places in groups if len(places) > 1]


def _word_before(text: str, start: int, width: int) -> int:
    """Return where the word before a place begins, the place itself where both have no room."""
    near = _word_start(text, start - 1)
    end = next((at for at in range(start, len(text)) if not text[at].isalnum()), len(text))
    return near if end - near < _room_behind(width) else start


def _room_behind(width: int) -> int:
    """Return how much of a label follows the mark of the cut."""
    return max(_TAIL + 1, (width - 1) * 2 // 5)


def _numbered(short: Mapping[str, str], names: Sequence[str], width: int) -> Iterator[str]:
    """Give labels of names that differ in nothing that is seen."""
    taken, label = set(short.values()), short[names[0]]
    ends = (f"…{number}" for number in count(1))
    free = (new for end in ends if (new := label[: max(width - len(end), 0)] + end) not in taken)
    yield from islice(free, len(names))


def _pieces(text: str, start: int, end: int) -> Label:
    if len(text) <= _SHORT or start <= 0:
        return Label(shortened(text, _HEAD))
    start += text[start:].startswith("…")
    # A bracket that stands open where the first piece is cut needs no second mark of it.
    head = shortened(text[: start - text[:start].endswith("<…")], _HEAD)
    if len(text) <= end + _SPARE:
        return Label(head, text[start:])
    return Label(head, text[start:end], shortened(text[end:], _MORE))


def _told_apart(names: Sequence[str], texts: list[str], whole: Callable[[str], str]) -> list[str]:
    """Return texts of which those of several names have what differs at their ends."""
    apart = list(texts)
    for places in _grouped(texts):
        if len(places) == 1:
            continue
        mine = [visible(whole(names[place])[:_LONGEST]) for place in places]
        if len(set(mine)) < len(mine):
            mine = [visible(names[place][:_LONGEST]) for place in places]
        for place, name, (start, end) in zip(places, mine, _differ(mine), strict=True):
            differs = name[start:] if len(name) <= end + 1 else f"{name[start:end]}…"
            more = f"…{differs}" if start < len(name) else ""
            apart[place] = f"{texts[place].rstrip('…>')}{more}"
    return apart


def _differ(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places between which each text differs from the others."""
    between = [(0, 0)] * len(texts)
    waiting = [(list(range(len(texts))), -1)]
    while waiting:
        places, before = waiting.pop()
        mine = [texts[place] for place in places]
        # Between the first and the last of them in order none can differ earlier.
        pairs = zip(min(mine), max(mine), strict=False)
        shortest = min(map(len, mine))
        start = _word_start(
            mine[0], next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)
        )
        end = start + _TAIL
        for group in _grouped(text[start:end] for text in mine):
            again = [places[one] for one in group]
            if len({texts[place] for place in again}) > 1 and len(again) < len(places):
                waiting.append((again, start))
            if before >= 0:
                # With what told a few from all others, or the word before, if it is near.
                near = before if start - before <= _TAIL else _word_start(mine[0], start - 1)
            for place in again:
                between[place] = (start, end) if before < 0 else (near, start + _BEYOND)
    return between


def _word_start(text: str, place: int) -> int:
    """Return where the word at a place of a text begins, if that is not far."""
    for start in range(place, max(place - _FARTHEST_BACK, 0), -1):
        if not text[start - 1].isalnum():
            return start
    return place


def _grouped(keys: Iterable[str]) -> list[list[int]]:
    """Return the places of each key."""
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        by_key[key].append(place)
    return list(by_key.values())
