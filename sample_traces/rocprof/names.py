"""How rocprof writes names of kernels, cells and files: texts are quoted, nothing is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from sample_traces.kineto_text import Digits
from sample_traces.rocprof.options import NameForm

_PAIRS: Final = {")": "(", ">": "<", "]": "["}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_ANONYMOUS: Final = "(anonymous namespace)::"


def written(name: str, form: NameForm) -> str:
    """Return a kernel's name in one of the forms that a run can be asked for."""
    if form == "truncated":
        return truncated(name)
    return mangled(name) if form == "mangled" else name


def is_plain(name: str) -> bool:
    """Return whether a name is an identifier, as of C and assembler kernels, not C++ text."""
    return _IDENTIFIER.fullmatch(name) is not None


def cloned(name: str) -> str:
    """Return the name as rocprof v1 writes it: with the suffix of the kernel's descriptor."""
    return f"{name}.kd" if is_plain(name) else f"{name} [clone .kd]"


@cache
def truncated(name: str) -> str:
    """Return the bare name of the function: no arguments, template arguments or namespaces."""
    end = len(name)
    while end and name[end - 1] in ")>] ":
        end = _before_bracket(name, end) if name[end - 1] != " " else end - 1
    begin = max(name.rfind(" ", 0, end), name.rfind(":", 0, end)) + 1
    return name[begin:end]


def _before_bracket(name: str, end: int) -> int:
    """Return where the bracket that closes before `end` opens."""
    closing = name[end - 1]
    opening, depth = _PAIRS[closing], 0
    for place in range(end - 1, -1, -1):
        depth += (name[place] == closing) - (name[place] == opening)
        if depth == 0:
            return place
    return end - 1


@cache
def mangled(name: str) -> str:
    """Return a symbol for the kernel: its path as the C++ ABI nests names, arguments as numbers.

    Not the symbol a compiler would give, which needs the types; but one per name, and of the form.
    """
    if is_plain(name):
        return f"{name}.kd"
    head = re.split(r"[<(]", name.replace(_ANONYMOUS, "_GLOBAL__N_1::"))[0].split(" ")[-1]
    parts = [f"{len(part)}{part}" for part in head.split("::") if part]
    number = sum(place * ord(letter) for place, letter in enumerate(name, start=1))
    return f"_ZN{''.join(parts)}ILi{number}EEEvT_.kd"


Cell = str | int


def cell(value: Cell) -> str:
    """Return the text of one cell: texts in quotes, numbers and `Digits` bare."""
    return f'"{value}"' if isinstance(value, str) and not isinstance(value, Digits) else str(value)


def line(cells: Iterable[Cell]) -> str:
    """Return one row with its line end."""
    return ",".join(map(cell, cells)) + "\n"


def table(header: Sequence[str], rows: Iterable[Iterable[Cell]]) -> str:
    """Return a table whose header is quoted like its texts."""
    return line(header) + "".join(map(line, rows))


def save(path: Path, text: str) -> Path:
    """Write a file, its folders included, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path
