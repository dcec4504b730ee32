"""A command line as it is shown: the names of files, not where they lie."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

from traceflops.table.trace import SourceFile

_TAKE_TEXT: Final = ("--step-mark", "--title")


def base_names(command: str, files: Iterable[SourceFile] = ()) -> str:
    """Return a command line in which every path is only its base name.

    One of `files` has the name that it has in the report, where its folder may tell it from others.
    What is no path may hold slashes, too, and stays as it is.
    """
    folders = [file.name for file in files if "/" in file.name]
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    shown = [
        word if before in _TAKE_TEXT else _shown(word, folders)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(shown)


def _shown(word: str, folders: Iterable[str]) -> str:
    path = f"/{word}".replace("\\", "/")
    return next((name for name in folders if path.endswith(f"/{name}")), _base_name(word))


def _base_name(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    if option in _TAKE_TEXT:
        return word
    name = PureWindowsPath(PurePosixPath(value).name).name
    return f"{option}{equals}{name or value}"
