"""An object or a list that was gone into: what was taken of it, and what is good of damage."""

from __future__ import annotations

import re
from typing import Final

from traceflops.parsers.io.jsonfiles.mend import LONGEST_MENDED, Damage, mended
from traceflops.parsers.io.jsonfiles.objects import ListObjects
from traceflops.parsers.io.jsonfiles.places import Elements, Members, Path, Place, Records
from traceflops.parsers.io.jsonfiles.text import SPACE, first_value

BETWEEN: Final = SPACE + b","


class Frame:
    """An object or a list that was gone into; `count` is how many values of it were begun.

    Of a list in blocks `pieces` are texts of objects that are to be decoded together. `left` is
    what was last left inside this.
    """

    def __init__(self, place: Place, path: Path, block_bytes: int, damage: Damage) -> None:
        self.place = place
        self.path = path
        self.count = 0
        self.records = place if isinstance(place, Records) else None
        self.objects = ListObjects(self.records.boundaries if self.records else None, block_bytes)
        self.pieces: list[bytes] = []
        self.size = 0
        self.left: Frame | None = None
        self._damage = damage

    @property
    def end(self) -> re.Pattern[bytes] | None:
        """The end of a list of which every object is known by how it begins."""
        return self.objects.boundaries.end if self.objects.boundaries else None

    @property
    def resume(self) -> re.Pattern[bytes] | None:
        """Where this goes on behind damage."""
        if isinstance(self.place, Members):
            return self.place.resume if self.place.keys else None
        if isinstance(self.place, Elements):
            return self.place.each.begins
        return self.objects.boundaries.resume if self.objects.boundaries else None

    def accept(self, text: bytes) -> None:
        """Take the text of objects."""
        if text and not text.isspace():
            self.pieces.append(text)
            self.size += len(text)

    def begun(self, text: bytes) -> int:
        """Return how many objects of the list begin in a text, by the look of it."""
        boundaries = self.objects.boundaries
        return len(boundaries.start.findall(text)) if boundaries else 0

    def drop(self, text: bytes, more: int = 0) -> None:
        """Count a text as lost, and so many bytes before it."""
        self._damage.dropped_places += 1
        self._damage.dropped_events += self.begun(text)
        self._damage.dropped_bytes += len(text) + more

    def salvage(self, text: bytes, *, sound: bool = False) -> None:
        """Take what is good of a text that is damaged, or `sound` but no record; drop the rest."""
        text = text.strip(BETWEEN)
        if not self._mend(text):
            rest = text[self._rescue(text, sound=sound) :].strip(BETWEEN)
            if rest and (rest == text or not self._mend(rest)):
                self.drop(rest)

    def unfinished(self, text: bytes, *, sound: bool) -> bytes:
        """Take what is good of the last text there is, and return what is behind that."""
        if self._mend(text.strip(BETWEEN)):
            return b""
        return text[self._rescue(text, sound=sound) :]

    def _rescue(self, text: bytes, *, sound: bool) -> int:
        """Take the whole objects in a damaged text; return where the last of them ends."""
        done = 0
        rescue = self.records.rescue if self.records else None
        for begin, end in rescue(text, sound=sound) if rescue else ():
            between = text[done:begin].strip(BETWEEN)
            if between and not self._mend(between):
                self.drop(between)
            self.accept(text[begin:end])
            done = end
        return done

    def _mend(self, text: bytes) -> bool:
        """Take the one object of a damaged text if it can be mended, and count how."""
        done: list[str] = []
        for words, better in mended(text) if self.records and len(text) <= LONGEST_MENDED else ():
            done.append(words)
            whole, length = first_value(better)
            value, behind = better[:length], better[length:].strip(BETWEEN + b"]}")
            if whole and value.startswith(b"{") and not behind and self._decodes(value):
                self._damage.repaired.update(done)
                self.accept(value)
                return True
        return False

    def _decodes(self, value: bytes) -> bool:
        return self.records is not None and self.records.reader.check(b"[" + value + b"]") == 1
