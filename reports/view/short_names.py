"""Labels of the rows of a table: as short as they can be, and different if the names are.

A label has three pieces. In a narrow column the last one is cut first, then the first one. The
piece between them always stays: it tells a name from others that begin alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from msgspec import Struct

from traceflops.characters import shortened, shortened_around
from traceflops.reports.view.figures import kernel_label, kernel_text, unqualified, visible

_ALIKE: Final = 14  # characters of the first piece that are seen however narrow the column is
_SHORT: Final = 28  # characters of a label that is never cut
_HEAD, _TAIL, _MORE, _SPARE = 80, 16, 60, 4
"""The most characters of each piece, and of a last one that is not worth a piece of its own."""
_BEYOND: Final = 8  # characters of the second piece from where the last few of similar names differ
_LONGEST: Final = 1_000  # characters of a name that are compared at all
_FARTHEST_BACK: Final = 12  # the most characters from the beginning of a word to a place in it


class Label(Struct, frozen=True):
    """The three pieces of a label, in order; the first alone if nothing else begins like it."""

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
    """Return labels that differ if the names do.

    `shown` makes the text of a name; where it is the same, what differs in `whole` texts is added.
    """
    distinct = list(dict.fromkeys(names))
    texts = [visible(shown(name)[:_LONGEST]) for name in distinct]
    for places in _groups(texts):
        wholes = _distinct_texts([distinct[place] for place in places], whole)
        for place, name, (start, end) in zip(places, wholes, _differences(wholes), strict=True):
            # A last single character takes no more room than the mark of a cut.
            differs = name[start:] if len(name) <= end + 1 else f"{name[start:end]}…"
            more = f"…{differs}" if start < len(name) else ""
            # The text may end in the mark of its own cut, and needs no closing bracket any more.
            texts[place] = f"{texts[place].rstrip('…>')}{more}"
    made = [Label(shortened(text, _HEAD)) for text in texts]
    for places in _groups(text[:_ALIKE] for text in texts):
        spans = _differences([texts[place] for place in places])
        for place, (start, end) in zip(places, spans, strict=True):
            made[place] = _pieces(texts[place], start, end)
    by_name = dict(zip(distinct, made, strict=True))
    return [by_name[name] for name in names]


def short_labels(names: Sequence[str], width: int) -> list[str]:
    """Return names of one table in at most `width` characters, keeping what differs in them."""
    short = {name: kernel_label(name, width) for name in names}
    room_behind = max(_TAIL + 1, (width - 1) * 2 // 5)  # characters that follow the mark of a cut
    for alike in _sharing(short):
        texts = _distinct_texts(alike, unqualified)
        differ = [start for start, _ in _differences(texts)]
        # The word before the difference helps to read it, if both have room.
        words = []
        for text, start in zip(texts, differ, strict=True):
            near = _word_start(text, start - 1)
            end = next((at for at in range(start, len(text)) if not text[at].isalnum()), len(text))
            words.append(near if end - near < room_behind else start)
        for starts in (words, differ):  # without the words only if labels are equal with them
            labels = []
            for text, start in zip(texts, starts, strict=True):
                # As much as has room: the beginning, and what follows the start.
                rest = min(len(text) - start, room_behind)
                labels.append(shortened_around(text, start, max(width - 1 - rest, 0), width))
            if len(set(labels)) == len(labels):
                break
        short |= zip(alike, labels, strict=True)
    # What still looks alike differs beyond what is compared: these get numbers at their end.
    for alike in _sharing(short):
        taken, label = set(short.values()), short[alike[0]]
        ends = (f"…{number}" for number in count(1))
        numbered = (label[: max(width - len(end), 0)] + end for end in ends)
        short |= zip(alike, (new for new in numbered if new not in taken), strict=False)
    return [short[name] for name in names]


def _distinct_texts(names: Sequence[str], text_of: Callable[[str], str]) -> list[str]:
    """Return a text of each name, or if some of these are equal, the names themselves."""
    texts = [visible(text_of(name)[:_LONGEST]) for name in names]
    if len(set(texts)) < len(texts):
        texts = [visible(name[:_LONGEST]) for name in names]
    return texts


def _sharing(short: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of names whose labels look alike; `short` has the label of each name."""
    names = list(short)
    return [[names[at] for at in places] for places in _groups(map(str.strip, short.values()))]


def _pieces(text: str, start: int, end: int) -> Label:
    """Return a text as a label whose second piece is `text[start:end]`.

    A short text, or one that differs from its beginning on, is a single piece. What follows the
    second piece is the third one, unless it is short: then it stays with the second.
    """
    if len(text) <= _SHORT or start <= 0:
        return Label(shortened(text, _HEAD))
    start += text[start:].startswith("…")  # the mark of a cut ends the first piece
    # An open bracket there shows the cut without a mark.
    head = shortened(text[: start - text[:start].endswith("<…")], _HEAD)
    if len(text) <= end + _SPARE:
        return Label(head, text[start:])
    return Label(head, text[start:end], shortened(text[end:], _MORE))


def _differences(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places between which each text differs from the others.

    Where all first differ, they are split by the next _TAIL characters; texts that are still alike
    are split again farther behind.
    """
    between = [(0, 0)] * len(texts)
    # Groups that are alike so far, each with the place where it was split off, -1 for all texts.
    waiting = [(list(range(len(texts))), -1)]
    while waiting:
        places, before = waiting.pop()
        alike = [texts[place] for place in places]
        # All begin with what the first and the last of them in alphabetical order have in common.
        pairs = zip(min(alike), max(alike), strict=False)
        shortest = min(map(len, alike))
        first = next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)
        start = _word_start(alike[0], first)
        end = start + _TAIL
        if before >= 0:  # a group that was split off; all texts together begin at `start`
            # Begin where the group was split off, or at the word before, if the former is far.
            near = before if start - before <= _TAIL else _word_start(alike[0], start - 1)
        by_text: defaultdict[str, list[int]] = defaultdict(list)
        for place in places:
            by_text[texts[place][start:end]].append(place)
            between[place] = (start, end) if before < 0 else (near, start + _BEYOND)
        # A group of equal texts, or of all again, cannot be split.
        waiting += [
            (group, start)
            for group in by_text.values()
            if len({texts[place] for place in group}) > 1 and len(group) < len(places)
        ]
    return between


def _word_start(text: str, place: int) -> int:
    """Return where the word at a place of a text begins, the place itself if that is far."""
    for start in range(place, max(place - _FARTHEST_BACK, 0), -1):
        if not text[start - 1].isalnum():
            return start
    return place


def _groups(keys: Iterable[str]) -> list[list[int]]:
    """Return the places of each key that occurs more than once."""
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        by_key[key].append(place)
    return [places for places in by_key.values() if len(places) > 1]
