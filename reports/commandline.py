"""A command line as it is shown: the names of files, not where they lie."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

_TAKE_TEXT: Final = ("--step-mark", "--title")


def base_names(command: str) -> str:
    """Return a command line in which every path is only its base name.

    What is no path may hold slashes, too, and stays as it is.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    shown = [
        word if before in _TAKE_TEXT else _base_name(word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(shown)


def _base_name(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if option in _TAKE_TEXT:
        return word
    name = PureWindowsPath(PurePosixPath(value).name).name
    return f"{option}{equals}{name or value}"
