"""Short labels for the rows of a table, which stay different if the names differ.

A label has up to three pieces. In a narrow column the last one is cut first, then the first one.
The piece between them is never cut: it distinguishes the name from others that begin alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from msgspec import Struct

from traceflops.characters import shortened, shortened_around
from traceflops.reports.view.figures import kernel_label, kernel_text, unqualified, visible

_ALIKE: Final = 14  # characters that even the narrowest column shows of the first piece
_SHORT: Final = 28  # characters up to which a label is never cut
_HEAD, _TAIL, _MORE, _SPARE = 80, 16, 60, 4
"""The most characters of the three pieces; up to _SPARE, a last piece is joined to the second."""
_BEYOND: Final = 8  # characters of the second piece behind the place where similar names differ
_LONGEST: Final = 1_000  # characters of a name that are compared at all
_FARTHEST_BACK: Final = 12  # characters that are searched for the beginning of a word


class Label(Struct, frozen=True):
    """The pieces of a label in their order: only a head if no other label begins like it."""

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
    """Return a label per name; labels differ if the names do.

    `shown` makes the text of a label from a name. To names with the same text, that part of their
    `whole` text is added in which they differ.
    """
    distinct = list(dict.fromkeys(names))
    texts = [visible(shown(name)[:_LONGEST]) for name in distinct]
    for places in _groups(texts):
        wholes = _distinct_texts([distinct[place] for place in places], whole)
        for place, name, (start, end) in zip(places, wholes, _differences(wholes), strict=True):
            # A last single character takes no more room than the ellipsis would.
            difference = name[start:] if len(name) <= end + 1 else f"{name[start:end]}…"
            addition = f"…{difference}" if start < len(name) else ""
            # The text may end in its own ellipsis or in a bracket, which is now out of place.
            texts[place] = f"{texts[place].rstrip('…>')}{addition}"
    distinct_labels = [Label(shortened(text, _HEAD)) for text in texts]
    for places in _groups(text[:_ALIKE] for text in texts):
        spans = _differences([texts[place] for place in places])
        for place, (start, end) in zip(places, spans, strict=True):
            distinct_labels[place] = _pieces(texts[place], start, end)
    label_of = dict(zip(distinct, distinct_labels, strict=True))
    return [label_of[name] for name in names]


def short_labels(names: Sequence[str], width: int) -> list[str]:
    """Return names of one table in at most `width` characters, keeping what differs in them."""
    label_of = {name: kernel_label(name, width) for name in names}
    for alike in _sharing(label_of):
        label_of |= zip(alike, _around_differences(alike, width), strict=True)
    # Names that differ only beyond _LONGEST characters still look alike: number them at their end.
    for alike in _sharing(label_of):
        taken, label = set(label_of.values()), label_of[alike[0]]
        ends = (f"…{number}" for number in count(1))
        numbered = (label[: max(width - len(end), 0)] + end for end in ends)
        label_of |= zip(alike, (text for text in numbered if text not in taken), strict=False)
    return [label_of[name] for name in names]


def _around_differences(names: Sequence[str], width: int) -> list[str]:
    """Return labels of at most `width` characters that show where the names differ."""
    texts = _distinct_texts(names, unqualified)
    differences = [start for start, _ in _differences(texts)]
    behind_most = max(_TAIL + 1, (width - 1) * 2 // 5)  # characters behind the ellipsis
    # Start at the word before the difference, which helps to read it, if there is room for both.
    with_words = []
    for text, start in zip(texts, differences, strict=True):
        word = _word_start(text, start - 1)
        end = next((i for i in range(start, len(text)) if not text[i].isalnum()), len(text))
        with_words.append(word if end - word < behind_most else start)
    # Words take room from the differences: go without them if some labels would be equal.
    for starts in (with_words, differences):
        labels = []
        for text, start in zip(texts, starts, strict=True):
            behind = min(len(text) - start, behind_most)
            labels.append(shortened_around(text, start, max(width - 1 - behind, 0), width))
        if len(set(labels)) == len(labels):
            break
    return labels


def _distinct_texts(names: Sequence[str], text_of: Callable[[str], str]) -> list[str]:
    """Return the text of each name, or the names themselves if some of these texts are equal."""
    texts = [visible(text_of(name)[:_LONGEST]) for name in names]
    if len(set(texts)) < len(texts):
        texts = [visible(name[:_LONGEST]) for name in names]
    return texts


def _sharing(label_of: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of names that have the same label, by a mapping of names to labels."""
    names, labels = list(label_of), map(str.strip, label_of.values())
    return [[names[place] for place in places] for places in _groups(labels)]


def _pieces(text: str, start: int, end: int) -> Label:
    """Return a text as a label whose second piece is `text[start:end]`.

    A short text, or one that differs from its beginning on, is a single piece. What follows the
    second piece is the third one, unless it is short: then it stays with the second.
    """
    if len(text) <= _SHORT or start <= 0:
        return Label(shortened(text, _HEAD))
    if text[start:].startswith("…"):  # the ellipsis belongs to the first piece
        start += 1
    head = text[:start]
    if head.endswith("<…"):  # the open bracket already shows that something is left out
        head = head[:-1]
    head = shortened(head, _HEAD)
    if len(text) <= end + _SPARE:
        return Label(head, text[start:])
    return Label(head, text[start:end], shortened(text[end:], _MORE))


def _differences(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return per text the start and end of the part in which it differs from the others.

    Texts are split by the _TAIL characters from where they first differ. Those in which these are
    alike, too, form a group that is split again farther behind.
    """
    spans = [(0, 0)] * len(texts)
    # Groups still to be split: the indices of texts, and where they were split last (-1: nowhere).
    to_split = [(list(range(len(texts))), -1)]
    while to_split:
        group, last_split = to_split.pop()
        alike = [texts[index] for index in group]
        # All begin with what the first and the last of them in alphabetical order have in common.
        pairs = zip(min(alike), max(alike), strict=False)
        shortest = min(map(len, alike))
        first = next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)
        start = _word_start(alike[0], first)
        span = start, start + _TAIL
        if last_split >= 0:
            # Show both differences, or if the last one is far, the word before this one.
            is_near = start - last_split <= _TAIL
            shown_from = last_split if is_near else _word_start(alike[0], start - 1)
            span = shown_from, start + _BEYOND
        by_text: defaultdict[str, list[int]] = defaultdict(list)
        for index in group:
            by_text[texts[index][start : start + _TAIL]].append(index)
            spans[index] = span
        # Equal texts cannot be split, and neither can a group that stayed whole.
        to_split += [
            (part, start)
            for part in by_text.values()
            if len({texts[index] for index in part}) > 1 and len(part) < len(group)
        ]
    return spans


def _word_start(text: str, place: int) -> int:
    """Return where the word at `place` begins, or `place` if that is beyond _FARTHEST_BACK."""
    for start in range(place, max(place - _FARTHEST_BACK, 0), -1):
        if not text[start - 1].isalnum():
            return start
    return place


def _groups(keys: Iterable[str]) -> list[list[int]]:
    """Return the indices of each key that occurs more than once."""
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        by_key[key].append(place)
    return [places for places in by_key.values() if len(places) > 1]
