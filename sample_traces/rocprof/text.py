"""How cells and files are written: rocprof quotes texts and escapes nothing in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sample_traces.kineto_text import Digits

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
