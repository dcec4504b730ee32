"""Reads a Perfetto trace of one sequence with plain code: each slice with what is said of it."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Fields = dict[int, list[Any]]


def fields_of(data: bytes) -> Fields:
    """Return the fields of a message by number: numbers, and bytes of all else."""
    found: Fields = defaultdict(list)
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found[tag >> 3].append(number())
            continue
        size = {1: 8, 5: 4}[tag & 7] if tag & 7 != 2 else number()
        found[tag >> 3].append(data[at : at + size])
        at += size
    assert at == len(data)
    return found


def _text(said: Fields, number: int) -> str | None:
    return said[number][0].decode() if said[number] else None


class Back:
    """The slices of a file, values of counters, and its process."""

    def __init__(self, path: Path) -> None:
        self.pid = 0
        self.slices: list[dict[str, Any]] = []
        self.values: list[tuple[str, str, int, float]] = []
        self._now = 0
        self._texts: dict[tuple[int, int], str] = {}
        self._tracks: dict[int, str] = {}
        self._open: dict[int, dict[str, Any]] = {}
        for packet in fields_of(path.read_bytes())[1]:
            self._take(fields_of(packet))
        assert not self._open

    def _take(self, packet: Fields) -> None:
        for data in packet[6]:
            for clock in map(fields_of, fields_of(data)[1]):
                self._now = clock[2][0] if clock[1] == [64] else self._now
        for data in packet[12]:
            for kind, entries in fields_of(data).items():
                for entry in map(fields_of, entries):
                    assert (kind, entry[1][0]) not in self._texts
                    self._texts[kind, entry[1][0]] = entry[2][0].decode()
        for data in packet[60]:
            said = fields_of(data)
            self._tracks[said[1][0]] = _text(said, 2) or ""
            for process in map(fields_of, said[3]):
                self.pid = process[1][0]
        if not packet[11]:
            return
        time_ns = packet[8][0]
        if packet[58] != [6]:
            time_ns = self._now = self._now + time_ns
        self._event(time_ns, fields_of(packet[11][0]))

    def _event(self, time_ns: int, said: Fields) -> None:
        kind, track = said[9][0], said[11][0]
        if kind == 4:
            (value,) = struct.unpack("<d", said[44][0])
            self.values.append((_text(said, 22) or "", self._tracks[track], time_ns, value))
        elif kind == 2:
            slice_ = self._open.pop(track)
            slice_["end"] = time_ns
            self.slices.append(slice_)
        else:
            name = _text(said, 23) or self._texts[2, said[10][0]]
            category = _text(said, 22) or self._texts[1, said[3][0]]
            start = {"name": name, "category": category, "start": time_ns}
            start["track"] = self._tracks[track]
            self._open[track] = start | dict(self._annotations(said[4]))

    def _annotations(self, parts: list[bytes]) -> Iterator[tuple[str, Any]]:
        for said in map(fields_of, parts):
            text = _text(said, 6)
            name = _text(said, 10) or self._texts[3, said[1][0]]
            yield name, said[3][0] if text is None else text
