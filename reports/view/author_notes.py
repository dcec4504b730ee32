"""What the author of a report adds in words of their own: a title, and notes in plain text.

Notes are UTF-8 text of which four forms are understood: `# ` headings, lists of lines that begin
with `- `, code between lines of three backticks, and paragraphs, parted by empty lines. All other
signs are text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final, Literal

from traceflops.errors import UsageError
from traceflops.table import SourceFile

MOST_BYTES: Final = 64 * 1024
LONGEST_TITLE: Final = 200
_FENCE: Final = "```"
_HEADING: Final = re.compile(r"#{1,6} +(.+)")
_ITEM: Final = re.compile(r"[-*] +(.+)")
_HINT: Final = "give a file of UTF-8 text, at most 64 kB"


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A piece of the notes. A heading and a paragraph have one line, a list one per item."""

    kind: Literal["heading", "paragraph", "list", "code"]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Authored:
    """The author's title and notes; None and no blocks where there are none."""

    title: str | None = None
    blocks: tuple[NoteBlock, ...] = ()


NOTHING: Final = Authored()


def authored(title: str | None, notes: Path | None) -> Authored:
    """Return what the author adds. Raises UsageError where that cannot be read or is too long."""
    shown = " ".join(title.split()) if title is not None else ""
    if len(shown) > LONGEST_TITLE:
        raise UsageError(
            f"--title is longer than {LONGEST_TITLE} characters", "give a long text with --notes"
        )
    return Authored(shown or None, tuple(blocks(_text(notes))) if notes is not None else ())


def blocks(text: str) -> Iterator[NoteBlock]:
    """Give the pieces of notes in their order."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if line.startswith(_FENCE):
            end = next((n for n in range(at + 1, len(lines)) if _is_fence(lines[n])), len(lines))
            yield NoteBlock("code", tuple(one.rstrip() for one in lines[at + 1 : end]))
            at = end + 1
        elif heading := _HEADING.fullmatch(line):
            yield NoteBlock("heading", (heading[1],))
            at += 1
        elif line:
            end = _end(lines, at)
            yield _prose([one.strip() for one in lines[at:end]])
            at = end
        else:
            at += 1


def _is_fence(line: str) -> bool:
    return line.strip() == _FENCE


def _end(lines: Sequence[str], at: int) -> int:
    """Return where the list or paragraph ends that begins at a line."""
    is_list = _ITEM.fullmatch(lines[at].strip()) is not None
    for end in range(at + 1, len(lines)):
        line = lines[end].strip()
        is_item = _ITEM.fullmatch(line) is not None
        if not line or line.startswith(_FENCE) or _HEADING.fullmatch(line):
            return end
        if is_item and not is_list:
            return end
    return len(lines)


def _prose(lines: Sequence[str]) -> NoteBlock:
    """Return a paragraph, or a list; a line of it without a dash goes on with the item before."""
    if not _ITEM.fullmatch(lines[0]):
        return NoteBlock("paragraph", (" ".join(lines),))
    items: list[str] = []
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item:
            items.append(item[1])
        else:
            items[-1] += f" {line}"
    return NoteBlock("list", tuple(items))


def _text(path: Path) -> str:
    """Return the text of a file of notes."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the notes: {path} ({error.strerror})", _HINT) from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"the notes are larger than 64 kB: {path}", _HINT)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the notes are not UTF-8 text: {path} (byte {error.start})", _HINT
        ) from None


# A command line as it is shown: the names of files, not where they lie.


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
