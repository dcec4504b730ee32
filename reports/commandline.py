"""A command line as it is shown: the names of files, not where they lie."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

_TAKES_AN_EXPRESSION: Final = "--step-mark"


def base_names(command: str) -> str:
    """Return a command line in which every path is only its base name.

    An expression of --step-mark may hold slashes and stays as it is.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    shown = [
        word if before == _TAKES_AN_EXPRESSION else _base_name(word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(shown)


def _base_name(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if option == _TAKES_AN_EXPRESSION:
        return word
    name = PureWindowsPath(PurePosixPath(value).name).name
    return f"{option}{equals}{name or value}"
