"""What the author of a report adds in words of their own: a title, and notes in plain text.

Notes are UTF-8 text of which four forms are understood: `# ` headings, lists of lines that begin
with `- `, code between lines of three backticks, and paragraphs, parted by empty lines. All other
signs are text.
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
"""Options of which the text may hold slashes and names no file."""
_HINT: Final = "give a file of UTF-8 text, at most 64 kB"


class NoteBlock(Struct, frozen=True):
    """A piece of the notes. A heading and a paragraph have one line, a list one per item."""

    kind: Literal["heading", "paragraph", "list", "code"]
    lines: tuple[str, ...]


class Authored(Struct, frozen=True):
    """The author's title and notes; None and no blocks where there are none."""

    title: str | None = None
    blocks: tuple[NoteBlock, ...] = ()


NOTHING: Final = Authored()


def authored(title: str | None, notes: Path | None) -> Authored:
    """Return what the author adds. Raises UsageError if it cannot be read or is too long."""
    shown = " ".join(title.split()) if title is not None else ""
    if len(shown) > LONGEST_TITLE:
        raise UsageError(
            f"--title is longer than {LONGEST_TITLE} characters", "give a long text with --notes"
        )
    if notes is None:
        return Authored(shown or None)
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
    return Authored(shown or None, tuple(blocks(text)))


def blocks(text: str) -> Iterator[NoteBlock]:
    """Yield the pieces of notes in their order."""
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
            for further in _prose(lines):
                if item := _ITEM.fullmatch(further):
                    items.append(item[1])
                else:  # a line without a dash continues its item
                    items[-1] += f" {further}"
            yield NoteBlock("list", tuple(items))
        elif line:
            yield NoteBlock("paragraph", (" ".join([line, *_prose(lines, ends=_ITEM)]),))


def _prose(lines: deque[str], ends: re.Pattern[str] | None = None) -> Iterator[str]:
    """Take lines away and yield them, up to where another piece begins: also at lines of `ends`."""
    while lines and (line := lines[0].strip()):
        if line.startswith(_FENCE) or _HEADING.fullmatch(line) or (ends and ends.fullmatch(line)):
            break
        yield lines.popleft().strip()


def base_names(command: str, files: Iterable[SourceFile] = ()) -> str:
    """Return a command line in which every path is only its base name.

    Of `files` that have their folder in their name, to tell them apart, that name is kept. The text
    of an option of _TAKE_TEXT is no path; a word "--option=path" keeps its option.
    """
    folders = [file.name for file in files if "/" in file.name]
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote
        words = command.split()
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        path = f"/{word}".replace("\\", "/")
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        base = PureWindowsPath(PurePosixPath(value).name).name or value
        plain = word if option in _TAKE_TEXT else f"{option}{equals}{base}"
        named = next((name for name in folders if path.endswith(f"/{name}")), plain)
        shown.append(word if before in _TAKE_TEXT else named)
    return shlex.join(shown)
