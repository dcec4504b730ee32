"""Takes the recording machine's identity out of a trace before it is shown or shared.

Environments are never read in the first place. Here home directories become `~`, of other absolute
paths only the last part is left, and the host's and the user's name, where the trace says them, are
replaced wherever they occur, as are addresses of machines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from traceflops.errors import UsageError
from traceflops.privacy.paths import without_folders, without_frame_folders
from traceflops.table import (
    IntArray,
    Names,
    Note,
    Source,
    SourceFile,
    Trace,
    codes,
    dictionary_column,
    names,
)

_PART = r"[^/\\\s\"'<>:|;,()\[\]{}]+"
_HOME = re.compile(
    r"(?<![^\s\"'<>:|=(,;])(?:"
    rf"(?:/{_PART}){{0,2}}/(?:home[0-9]*|users?|people|homes)/{_PART}|"
    rf"/(?:u|scratch)/{_PART}|/root|"
    r"[a-z]:\\+(?:users|documents and settings)\\+[^\\\"'<>:|]+"
    r")(?=$|[^\w.-])",
    re.IGNORECASE,
)
"""Home directories: /home/N, /Users/N, /data/users/N, /fsx/home2/N, /u/N, /root, C:\\Users\\N."""
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}:\d{2,5}(?![\w.])|(?<=//)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
)
"""Of a machine: with a port or in a URL, as numbers alone may be a version (9.1.0.70)."""
_SHORTEST_NAME = 3
"""Host and user names shorter than this would hit ordinary words; they are left alone."""


def check_privacy(include_environment: bool, redact: bool) -> None:
    """Refuse to keep names of host and user in what is to be without names."""
    if include_environment and redact:
        raise UsageError(
            "--redact and --include-environment are mutually exclusive", "give one of them"
        )


def redacted(trace: Trace) -> Trace:
    """Return the trace with paths, host and user names shortened in every text."""
    scrub = _scrubber(trace.source.identities)
    return replace(
        trace,
        tables={name: _scrub_table(name, table, scrub) for name, table in trace.tables.items()},
        source=_scrub_source(trace.source, scrub),
        notes=tuple(_scrub_note(note, scrub) for note in trace.notes),
    )


Scrub = Callable[[str], str]
"""Gives a text without paths, addresses and names of the machine."""


def _scrubber(identities: Iterable[str]) -> Scrub:
    known = sorted({i for i in identities if len(i) >= _SHORTEST_NAME}, key=len, reverse=True)
    names_of_it = "|".join(map(re.escape, known))
    identity = re.compile(rf"(?<![A-Za-z0-9])(?:{names_of_it})(?![A-Za-z0-9])") if known else None

    def scrub(text: str) -> str:
        if "/" in text or "\\" in text:
            text = without_folders(_HOME.sub("~", without_frame_folders(text)))
        if ":" in text:
            text = _ADDRESS.sub("[address]", text)
        return identity.sub("[name]", text) if identity else text

    return scrub


def _scrub_table(name: str, table: pa.Table, scrub: Scrub) -> pa.Table:
    for place, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type) or not table.num_rows:
            continue
        if (name, field.name) == ("processes", "host"):
            table = table.set_column(place, field, _numbered(table[field.name]))
            continue
        old = names(table[field.name])
        new = [scrub(text) for text in old]
        if new != old:
            table = table.set_column(place, field, recoded(codes(table[field.name]), new))
    return table


def _numbered(hosts: pa.ChunkedArray) -> pa.Array:
    """Return numbers in the place of the names of hosts, so that several are told apart."""
    found = list(dict.fromkeys(filter(None, hosts.to_pylist())))
    if len(found) < 2:
        return pa.nulls(len(hosts), hosts.type)
    number = {host: place for place, host in enumerate(found)}
    rows = [number.get(host, -1) for host in hosts.to_pylist()]
    return dictionary_column(np.array(rows, np.int32), [f"host {n + 1}" for n in range(len(found))])


def recoded(old_codes: IntArray, texts: Iterable[str | None]) -> pa.DictionaryArray:
    """Return the column with other texts, or none, for its codes; equal texts share one code."""
    interned = Names()
    recode = np.array([-1 if text is None else interned[text] for text in texts] + [-1], np.int64)
    return dictionary_column(recode[old_codes], list(interned))


def _scrub_source(source: Source, scrub: Scrub) -> Source:
    files = tuple(SourceFile(scrub(f.name), f.bytes, f.text_bytes) for f in source.files)
    facts = {key: scrub(value) for key, value in source.facts.items()}
    described = source.description
    if described is not None:
        described = {key: _scrub_value(value, scrub) for key, value in described.items()}
    return replace(source, files=files, facts=facts, identities=(), description=described)


def _scrub_value(value: object, scrub: Scrub) -> object:
    """Return a JSON value with every text in it shortened; keys are words, and stay."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: _scrub_value(inner, scrub) for key, inner in value.items()}
    return [_scrub_value(one, scrub) for one in value] if isinstance(value, list) else value


def _scrub_note(note: Note, scrub: Scrub) -> Note:
    return replace(note, text=scrub(note.text), file=scrub(note.file) if note.file else None)
