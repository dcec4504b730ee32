"""Takes the recording machine's identity out of a trace before it is shown or shared.

Environment variables are never read in the first place. Here home directories become `~`, other
absolute paths are cut to their last part, and the names of host and user (as far as the trace
states them) and addresses of machines are replaced wherever they occur.

A path leads to people, projects and machines; its last part says which file it was. Texts that only
look like a path stay: units (`tokens/s`), relative paths, URLs, `operator/`, names of layers that
begin with a slash (`/model/layers.0/MatMul`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from traceflops.errors import UsageError
from traceflops.privacy.known_words import is_library_word, words_of
from traceflops.table.columns import IntArray, Names, codes, dictionary_column, names
from traceflops.table.trace import Note, Trace

_NAME = r"[^/\\\s\"'<>:|;,()\[\]{}]+"
_HOME = re.compile(
    r"(?<![^\s\"'<>:|=(,;])(?:"
    rf"(?:/{_NAME}){{0,2}}/(?:home[0-9]*|users?|people|homes)/{_NAME}|"
    rf"/(?:u|scratch)/{_NAME}|/root|"
    r"[a-z]:\\+(?:users|documents and settings)\\+[^\\\"'<>:|]+"
    r")(?=$|[^\w.-])",
    re.IGNORECASE,
)
"""Home directories: /home/N, /Users/N, /data/users/N, /fsx/home2/N, /u/N, /root, C:\\Users\\N."""
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}:\d{2,5}(?![\w.])|(?<=//)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
)
"""An address with a port or in a URL; four numbers alone may be a version (9.1.0.70)."""
_SHORTEST_NAME = 3
"""Host and user names shorter than this would hit ordinary words; they are left alone."""

_NO_PART: Final = r"/\\\s\"'`<>:|*?,;()\[\]{}"
_PART: Final = rf"[^{_NO_PART}]+"
_BEFORE: Final = r"(?:(?<![\w.~/\\)\]}>%…-])|(?<=\s-[IL])|(?<=^-[IL]))"
_POSIX: Final = rf"{_BEFORE}(?:file:/{{0,2}})?/{_PART}(?:/+{_PART})+(?: {_PART}(?:/+{_PART})+)*/?"
_OF_HOME: Final = rf"(?<![\w.~/\\)\]}}>])~[\w.-]*(?:[/\\]+{_PART})+[/\\]?"
_DRIVE: Final = rf"(?<!\w)[A-Za-z]:[\\/]+(?:[^{_NO_PART}](?:[^{_NO_PART}]| )*[\\/]+)*{_PART}[\\/]?"
_SHARE: Final = rf"(?<![\w\\/])\\\\+{_PART}(?:\\+{_PART})+\\*"
_PATH: Final = re.compile(f"{_DRIVE}|{_SHARE}|{_OF_HOME}|{_POSIX}")
_FRAME: Final = re.compile(
    r"(?:/|~[\w.-]*[/\\]|[A-Za-z]:[\\/]|\\\\)(?:[^\n]*?[/\\])??(?=[^/\\\n]+\(\d+\): )"
)
"""The folders of a Python function's file, whatever characters are in their names."""
_PACKAGES: Final = re.compile(
    r".*[/\\](?:site-packages|dist-packages|lib[/\\]python[0-9.]*)[/\\]|"
    r".*[/\\](?=torch[/\\](?:nn|utils|autograd|optim|distributed|fx|ao|cuda|jit|amp|func|onnx|"
    r"profiler|export|compiler|multiprocessing|testing|_[a-z]\w*)[/\\.])",
    re.IGNORECASE,
)
"""What is behind these folders is a library's own path, the same on every machine."""
_FILE: Final = re.compile(r"\.\w{1,8}(?= )")
_SEPARATOR: Final = re.compile(r"[/\\]+")
_FOLDERS: Final = """
afs app apps archive bin boot build builds cache ceph cluster code content cvmfs data data1 data2
dataset datasets dev disk disk1 efs etc export exports external fs fsx global gpfs gpfs1 group
groups home homes host hpc include install jobs lib lib64 local lustre media mnt mount net network
nfs nobackup opt orcd people persist pfs private proc project projects raid repo repos root run
scratch share shared shares snap software space src srv ssd storage store sys system team teams tmp
u user users usr var vol volume volumes wekafs work workdir workdirs workspace workspaces
"""
"""Folders at the root of file systems; below these there are no layers."""


def check_privacy(include_environment: bool, redact: bool) -> None:
    """Raise UsageError if names of host and user are to be kept and removed at once."""
    if include_environment and redact:
        problem = "--redact and --include-environment are mutually exclusive"
        raise UsageError(problem, "give one of them")


def redacted(trace: Trace, hosts: Names | None = None) -> Trace:
    """Return the trace without paths, addresses and users; hosts are numbered, as in `hosts`."""
    longest_first = sorted(trace.source.identities, key=len, reverse=True)
    identities = [name for name in dict.fromkeys(longest_first) if len(name) >= _SHORTEST_NAME]
    either = "|".join(map(re.escape, identities))
    identity = re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])") if identities else None

    def scrub(text: str) -> str:
        if "/" in text or "\\" in text:
            # A Python function's file loses its folders, except those in an installed package.
            if (folders := _FRAME.match(text)) is not None:
                library = _PACKAGES.match(folders.group())
                own = folders.group()[library.end() :] if library is not None else ""
                text = own + text[folders.end() :]
            text = without_folders(_HOME.sub("~", text))
        if text.count(".") > 2:  # a quick test: an address has three dots
            text = _ADDRESS.sub("[address]", text)
        return identity.sub("[name]", text) if identity else text

    def scrubbed(note: Note) -> Note:
        statement, advice, similar = map(scrub, (note.statement, note.advice, note.similar))
        file = scrub(note.file) if note.file else None
        return replace(note, statement=statement, advice=advice, similar=similar, file=file)

    source = trace.source
    described = source.description
    if described is not None:
        described = {key: _scrub_value(value, scrub) for key, value in described.items()}
    tables = {name: _scrub_table(name, table, scrub, hosts) for name, table in trace.tables.items()}
    return replace(
        trace,
        tables=tables,
        source=replace(
            source,
            files=tuple(replace(file, name=scrub(file.name)) for file in source.files),
            facts={key: scrub(value) for key, value in source.facts.items()},
            identities=(),
            description=described,
        ),
        notes=tuple(map(scrubbed, trace.notes)),
    )


def _scrub_table(name: str, table: pa.Table, scrub: Scrub, hosts: Names | None) -> pa.Table:
    """Return a table with its texts scrubbed, and numbers in place of host names."""
    for index, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type) or not table.num_rows:
            continue
        column = table[field.name]
        if (name, field.name) == ("processes", "host"):
            numbering = Names() if hosts is None else hosts
            code = np.array([numbering[h] if h else -1 for h in column.to_pylist()], np.int32)
            if hosts is None and len(numbering) < 2:
                code[:] = -1  # null: a single host needs no number
            texts = [f"host {number + 1}" for number in range(len(numbering))]
            table = table.set_column(index, field, dictionary_column(code, texts))
            continue
        old = names(column)
        new = [scrub(text) for text in old]
        if new != old:
            table = table.set_column(index, field, recoded(codes(column), new))
    return table


Scrub = Callable[[str], str]
"""Returns a text without paths, addresses and names of the machine."""


def recoded(old_codes: IntArray, texts: Iterable[str | None]) -> pa.DictionaryArray:
    """Return a column of codes with other texts (None: null); equal texts share one code."""
    interned = Names()
    # The last element is for code -1, null.
    recode = np.array([-1 if text is None else interned[text] for text in texts] + [-1], np.int64)
    return dictionary_column(recode[old_codes], list(interned))


def _scrub_value(value: object, scrub: Scrub) -> object:
    """Return a JSON value with every text in it scrubbed; keys are kept."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: _scrub_value(inner, scrub) for key, inner in value.items()}
    return [_scrub_value(item, scrub) for item in value] if isinstance(value, list) else value


def without_folders(text: str) -> str:
    """Return a text with each absolute path cut to its last part, see `_last`."""
    return _PATH.sub(lambda path: _last(path.group()), text)


def _last(path: str) -> str:
    """Return what is shown of a path: its last part, its path in a library, or a layer's name."""
    if path.startswith("/"):
        # A blank belongs to a folder's name, unless a file name ends before it: then text follows.
        if (file := _FILE.search(path)) is not None:
            return _last(path[: file.end()]) + without_folders(path[file.end() :])
        # Exporters of graphs name layers like paths: `/conv/Add`.
        root, *_, last = [part for part in path.split("/") if part]
        is_operation = last[:1].isupper() and "." not in last
        is_layer = is_operation and all(map(is_library_word, words_of(last)))
        if is_layer and root.lower() not in _FOLDERS.split():
            return path
    library = _PACKAGES.match(path)
    if library is not None and library.end() < len(path):
        return path[library.end() :]
    parts = [part for part in _SEPARATOR.split(path) if part]
    # The home directory itself stays: `~`.
    return parts[-1] if len(parts) > 1 or not path.startswith("~") else path
