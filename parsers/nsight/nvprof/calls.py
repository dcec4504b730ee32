"""The names of CUDA calls by their CUPTI numbers, which is all that a database of nvprof has."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final

_TABLE: Final = tomllib.loads(files(__package__).joinpath("calls.toml").read_text(encoding="utf-8"))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and name of each call in a text of `calls.toml`."""
    number = 0
    for word in text.split():
        if word.isdecimal():
            number = int(word)
        else:
            yield number, word
            number += 1


RUNTIME_CALLS: Final[Mapping[int, str]] = dict(_numbered(_TABLE["runtime"]))
DRIVER_CALLS: Final[Mapping[int, str]] = dict(_numbered(_TABLE["driver"]))
