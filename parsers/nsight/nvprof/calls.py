"""The names of CUDA calls and of overheads by their numbers, which is all that nvprof stores."""

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


_RUNTIME_CALLS: Final[Mapping[int, str]] = dict(_numbered(_TABLE["runtime"]))
_DRIVER_CALLS: Final[Mapping[int, str]] = dict(_numbered(_TABLE["driver"]))
MOST_CALLS: Final = 1 << 12
APIS: Final[Mapping[str, tuple[int, Mapping[int, str]]]] = {
    "RUNTIME": (1 << 40, _RUNTIME_CALLS),
    "DRIVER": (1 << 41, _DRIVER_CALLS),
}
"""By API: the id that `StringIds` gets for the name of call 0, and the names by number."""
OVERHEADS: Final[Mapping[int, str]] = {
    2: "compiling",
    3: "flushing buffers",
    4: "instrumenting kernels",
    5: "resources",
    6: "loading modules",
    7: "loading functions",
    8: "command buffer full",
}
"""Names of overheads by the numbers of exports (see `_overheads` for nvprof's numbers)."""
