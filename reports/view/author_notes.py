"""What the author adds to a report: a title, and notes in plain text.

Notes are UTF-8 text with four kinds of blocks: headings (`# `), lists of lines that begin with
`- `, code between lines of three backticks, and paragraphs, separated by empty lines. All other
characters are plain text.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final, Literal

from msgspec import Struct

from traceflops.errors import UsageError
from traceflops.table.trace import SourceFile

MOST_BYTES: Final = 64 * 1024
LONGEST_TITLE: Final = 200
_FENCE: Final = "```"
_HEADING: Final = re.compile(r"#{1,6} ++(.+)")
_ITEM: Final = re.compile(r"[-*] ++(.+)")
_TAKE_TEXT: Final = ("--step-mark", "--title")
"""Options whose value is a text, never a path, although it may contain slashes."""
_HINT: Final = "give a file of UTF-8 text, at most 64 kB"


class NoteBlock(Struct, frozen=True):
    """A block of the notes. A heading or paragraph has one line, a list has one per item."""

    kind: Literal["heading", "paragraph", "list", "code"]
    lines: tuple[str, ...]


class Authored(Struct, frozen=True):
    """The author's title (None if none is given) and the blocks of the notes."""

    title: str | None = None
    blocks: tuple[NoteBlock, ...] = ()


NOTHING: Final = Authored()


def authored(title: str | None, notes: Path | None) -> Authored:
    """Return title and notes. Raises UsageError if they are too long or cannot be read."""
    clean_title = " ".join(title.split()) if title is not None else ""
    if len(clean_title) > LONGEST_TITLE:
        raise UsageError(
            f"--title is longer than {LONGEST_TITLE} characters", "give a long text with --notes"
        )
    if notes is None:
        return Authored(clean_title or None)
    try:
        with notes.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the notes: {notes} ({error.strerror})", _HINT) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"the notes are larger than 64 kB: {notes}", _HINT)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the notes are not UTF-8 text: {notes} (byte {error.start})"
        raise UsageError(what, _HINT) from None
    return Authored(clean_title or None, tuple(blocks(text)))


def blocks(text: str) -> Iterator[NoteBlock]:
    """Yield the blocks of the notes in their order."""
    lines = deque(text.splitlines())
    while lines:
        line = lines.popleft().strip()
        if line.startswith(_FENCE):
            code: list[str] = []
            while lines and (text_line := lines.popleft()).strip() != _FENCE:
                code.append(text_line.rstrip())
            yield NoteBlock("code", tuple(code))
        elif heading := _HEADING.fullmatch(line):
            yield NoteBlock("heading", (heading[1],))
        elif first := _ITEM.fullmatch(line):
            items = [first[1]]
            for next_line in _prose(lines):
                if item := _ITEM.fullmatch(next_line):
                    items.append(item[1])
                else:  # a line without a dash continues its item
                    items[-1] += f" {next_line}"
            yield NoteBlock("list", tuple(items))
        elif line:
            yield NoteBlock("paragraph", (" ".join([line, *_prose(lines, ends=_ITEM)]),))


def _prose(lines: deque[str], ends: re.Pattern[str] | None = None) -> Iterator[str]:
    """Remove and yield the lines before the next block; one that matches `ends` begins a block."""
    while lines and (line := lines[0].strip()):
        if line.startswith(_FENCE) or _HEADING.fullmatch(line) or (ends and ends.fullmatch(line)):
            break
        yield lines.popleft().strip()


def base_names(command: str, files: Iterable[SourceFile] = ()) -> str:
    """Return a command line with every path replaced by its base name.

    A file of `files` whose name has a folder, because two base names are equal, keeps that name.
    Values of _TAKE_TEXT stay, and so does the option in "--option=path".
    """
    names_with_folder = [file.name for file in files if "/" in file.name]
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote
        words = command.split()
    shown = []
    for previous, word in zip(["", *words], words, strict=False):
        path = f"/{word}".replace("\\", "/")
        name = next((name for name in names_with_folder if path.endswith(f"/{name}")), None)
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if previous in _TAKE_TEXT or (name is None and option in _TAKE_TEXT):
            shown.append(word)
        elif name is not None:
            shown.append(name)
        else:
            base_name = PureWindowsPath(PurePosixPath(value).name).name or value
            shown.append(f"{option}{equals}{base_name}")
    return shlex.join(shown)
