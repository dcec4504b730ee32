"""The walk over text that does not decode as a whole: what is good in it is taken.

Values are told apart where that is possible; a damaged one is mended or dropped by itself and
counted, and what is not complete yet is left for later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from traceflops.parsers.io.jsonfiles.mend import mended
from traceflops.parsers.io.jsonfiles.rescue import EVENT_START, events_begun, whole_events
from traceflops.parsers.io.jsonfiles.text import (
    BOUNDARY,
    SPACE,
    first_value,
    split,
)

EVENT_BOUNDARY = re.compile(
    rb'[]}]\s*(?:,\s*)?(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)")'
)
"""Where one object ends and one that looks like an event begins, with or without a comma."""

LONGEST_MENDED = 1 << 20
_AFTER_ARRAY = re.compile(rb'\s*(?:\}\s*(?:[\[{]|$)|[\[{]|,\s*"|$)')
_AFTER_BYTES = 256
_EVENT_SIGN = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_LEAD = re.compile(rb"[\s,]*+")
_OPENERS = re.compile(rb"\[[\s\[]*+(?=" + EVENT_START.pattern + rb")")
_LAST_EVENT = re.compile(rb"\}\s*+(?=\])")
_MOST_ENDS = 100
_BRACES = re.compile(rb"\}[\s}]*+")
SECOND_LIST = "second event list read like the first"
_COMMAS = "stray commas ignored"
_UNPARTED = "missing commas between events assumed"

Check = Callable[[bytes], int | None]
"""Returns how many events a JSON list holds, None where it cannot be decoded."""


@dataclass(slots=True)
class Damage:
    """What was wrong with the text: repairs by kind, and what had to be dropped.

    `dropped_events` is how many events begin in what was dropped, by the look of it.
    `cut_bytes` is what stands after the last complete event where the list does not end,
    `tail_bytes` what could not be read after a list that does, and `another` says that it looks
    like another trace. `cut_events` and `tail_events` are how many events begin in these.
    """

    repaired: Counter[str] = field(default_factory=Counter)
    dropped_places: int = 0
    dropped_events: int = 0
    dropped_bytes: int = 0
    cut_bytes: int | None = None
    cut_events: int = 0
    tail_bytes: int = 0
    tail_events: int = 0
    tail_cut: bool = False
    another: bool = False
    array_closed: bool = False


class Walker:
    """Takes what is good of the text of a list of events.

    `accepted` are the texts of events that decode, until somebody takes them away. `tail` is what
    stands behind the bracket that ends the list, None until that is found. `ended` says that no
    text follows the one that is walked, and `some` whether an event stands before it.
    """

    def __init__(self, check: Check) -> None:
        self.damage = Damage()
        self.accepted: list[bytes] = []
        self.tail: bytes | None = None
        self.ended = False
        self.some = False
        self._check = check
        self._comma = False  # whether one was passed last
        self._salvaged = 0  # how often an event boundary had to be guessed behind damage
        # Of a text, from where on it has none of a sign.
        self._barren: dict[re.Pattern[bytes], tuple[bytes, int]] = {}

    def take_accepted(self) -> list[bytes]:
        """Return the accepted texts and forget them."""
        taken, self.accepted = self.accepted, []
        return taken

    def guess(self) -> None:
        """Remember that a boundary between events was guessed."""
        self._salvaged += 1

    def walk(self, text: bytes) -> bytes:
        """Accept the complete events of a text, past any damage; return what is left."""
        at, follows = 0, False
        while self.tail is None:
            at = self._lead(text, at, follows=follows)
            step = self._step(text, at)
            if step is None:
                return text[at:]
            at, follows = step
        return b""

    def _lead(self, text: bytes, at: int, *, follows: bool) -> int:
        """Return where the next value begins; behind a value there is one comma."""
        lead = _LEAD.match(text, at)
        begin = lead.end() if lead else at
        commas = text.count(b",", at, begin)
        self.damage.repaired[_COMMAS] += max(0, commas - follows)
        if follows and not commas and text[begin : begin + 1] == b"{":
            self.damage.repaired[_UNPARTED] += 1
        if follows or commas:
            self._comma = commas > 0
        return begin

    def _step(self, text: bytes, at: int) -> tuple[int, bool] | None:
        """Take or drop what begins here; return where it ends and whether a comma follows.

        None where it is not complete.
        """
        sign = text[at : at + 1]
        if sign == b"]":
            return self._bracket(text, at)
        if sign != b"{" and (end := self._junk_end(text, at)) > at:
            self._salvaged += 1
            self.drop(text[at:end].strip(SPACE + b","))
            return end, sign == b"}" and not self._comma
        whole, length = first_value(memoryview(text)[at:], strict=True)
        end = at + length
        if end >= len(text):
            return None
        if not whole:
            return self._damaged(text, at, end)
        value = text[at:end]
        if not self.accept(value) and not self.mend(value):
            self._rescue(value, sound=True)  # sound, but no object
        return end, True

    def _junk_end(self, text: bytes, begin: int) -> int:
        """Return where text ends that is the beginning of no value."""
        closers = _BRACES.match(text, begin)
        if closers:  # at the very end they are those of what the list stands in
            return closers.end() if closers.end() < len(text) else begin
        openers = _OPENERS.match(text, begin)
        if openers:  # a list that holds events is another beginning of the one they stand in
            return openers.end()
        whole, length = first_value(memoryview(text)[begin:])
        if whole or begin + length == len(text):
            return begin
        event = self._search(EVENT_START, text, begin)
        return event.start() if event is not None else begin

    def _damaged(self, text: bytes, at: int, broken: int) -> tuple[int, bool] | None:
        """Take a damaged value if it can be mended, else what is good of it.

        A quote too many or too few turns strings inside out, so where the value ends is not
        known then: it goes on where the next event begins by the look of it.
        """
        boundary = self._next_event(text, broken)
        stop = boundary.start() + 1 if boundary else min(len(text), at + LONGEST_MENDED)
        parts = split(text, at, stop, most=1)
        end = parts.commas[0] if parts.commas else parts.close
        closes = end is not None and not parts.commas and self._closes(text, end, at)
        if end is not None and (parts.commas or closes) and self.mend(text[at:end]):
            return end, True
        if boundary is not None:
            self._salvage(text[at:stop])
            return boundary.end(), False
        if self.ended or closes:
            ends = islice(_LAST_EVENT.finditer(text, broken), _MOST_ENDS)
            last = next((e.end() for e in ends if self._closes(text, e.end(), at)), end)
            if last is not None:
                self._salvage(text[at:last])
                return last, True
        return None

    def _bracket(self, text: bytes, at: int) -> tuple[int, bool] | None:
        """End the list with its bracket; pass one that does not end it."""
        closes = self._closes(text, at)
        if closes:
            self.damage.repaired["comma at the end of the event list ignored"] += (
                self._comma and self.some
            )
            self.damage.array_closed = True
            self.tail = text[at + 1 :]
            return at + 1, False
        boundary = None if closes is None else self._next_event(text, at)
        if boundary is None:
            return None
        self._salvage(text[at : boundary.start() + 1])
        return boundary.end(), False

    def _closes(self, text: bytes, at: int, broken: int | None = None) -> bool | None:
        """Return whether a bracket ends the events, None if that is still to be read.

        Quotes in a name that were not escaped make brackets of its text: if what follows is not
        what follows a list, it is believed only where nothing was damaged and no event follows.
        """
        if text[at : at + 1] != b"]":
            return False
        if self.ended or len(text) >= at + _AFTER_BYTES:
            after = _AFTER_ARRAY.match(text, at + 1)
            if after:
                return not self._goes_on(text, after.end())
            if self.ended:
                proven = self._salvaged == 0 and broken is None
                return proven and self._search(EVENT_BOUNDARY, text, at) is None
        return None

    def _goes_on(self, text: bytes, at: int) -> bool:
        """Return whether events of the same list follow a bracket, so that it did not end it."""
        if text[at - 1 : at] == b"[":
            return False
        event = self._search(_EVENT_SIGN, text, at - 1)
        key = EVENTS_KEY.search(text, at, event.start()) if event is not None else None
        return event is not None and key is None

    def _next_event(self, text: bytes, at: int) -> re.Match[bytes] | None:
        """Return the boundary before what looks like an event; at the end any object may do."""
        found = self._search(EVENT_BOUNDARY, text, at)
        if found is None and self.ended and self._search(EVENT_START, text, at) is None:
            return BOUNDARY.search(text, at)
        return found

    def _search(self, sign: re.Pattern[bytes], text: bytes, at: int) -> re.Match[bytes] | None:
        """Search a text for a sign, but not a second time where it is known to have none."""
        barren, start = self._barren.get(sign, (None, 0))
        if barren is text and at >= start:
            return None
        found = sign.search(text, at)
        if found is None:
            self._barren[sign] = (text, at)
        return found

    def _salvage(self, value: bytes) -> None:
        """Take what is good of a value up to a guessed boundary."""
        self._salvaged += 1
        if not self.mend(value):
            self._rescue(value)

    def _rescue(self, text: bytes, *, sound: bool = False) -> None:
        """Take the whole events in a damaged text; what stands between them is mended or lost."""
        done = self.rescue(text, sound=sound)
        self._leave(text[done:], whole=not done)

    def rescue(self, text: bytes, *, sound: bool = False) -> int:
        """Take the whole events in a damaged text, and return where the last of them ends."""
        done = 0
        for begin, end in whole_events(text, sound=sound):
            self._leave(text[done:begin])
            if done and not text[done:begin].strip(SPACE):
                self.damage.repaired[_UNPARTED] += 1
            if not self.accept(text[begin:end]) and not self.mend(text[begin:end]):
                self.drop(text[begin:end])
            done = end
        return done

    def _leave(self, text: bytes, *, whole: bool = False) -> None:
        """Take a text beside rescued events if it can be mended, else count it as lost.

        `whole` says that there were none, so that mending was tried.
        """
        rest = text.strip(SPACE + b",")
        if rest and (whole or not self.mend(rest)):
            self.drop(rest)

    def accept(self, piece: bytes) -> bool:
        """Take the values of a text if they decode."""
        if piece.strip(SPACE):
            if self._check(b"[" + piece + b"]") is None:
                return False
            self.some = True
            self.accepted.append(piece)
        return True

    def mend(self, text: bytes) -> bool:
        """Take the one event of a damaged text if it can be mended, and count how."""
        done: list[str] = []
        for words, better in mended(text) if len(text) <= LONGEST_MENDED else ():
            done.append(words)
            if self._check(b"[" + better + b"]") == 1:
                self.damage.repaired.update(done)
                return self.accept(better)
        return False

    def drop(self, value: bytes) -> None:
        """Count a text as lost."""
        if EVENTS_KEY.search(value):
            self.damage.repaired[SECOND_LIST] += 1
        self.damage.dropped_places += 1
        self.damage.dropped_events += events_begun(value)
        self.damage.dropped_bytes += len(value)
