"""The one place at which text leaves for a terminal: nothing in it acts there.

Names in a trace, of files and in options may hold characters that move the cursor, change colours
or turn the reading direction. On every line that is printed they are escapes that can be read; only
the styles that traceflops itself gives to text are acted on.
"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from rich.text import Text

_UNESCAPED: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""What JSON may hold as it is, and some terminals act on or do not show."""


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print lines of text. That standard error is full or closed changes no result."""
    with suppress(OSError) if to_stderr else nullcontext():
        typer.echo(shown(text), err=to_stderr)


def say_json(text: str) -> None:
    """Print JSON; its values stay what they are, whatever stands for them."""
    typer.echo(_UNESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text))


def say_object(content: dict[str, Any]) -> None:
    """Print an object as JSON."""
    from traceflops.reports.json.report import encode

    say_json(encode(content))


def shown(text: str) -> str:
    """Return lines of text in which nothing acts on a terminal."""
    if text.isprintable():
        return text
    from traceflops.reports.view.figures import visible

    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else visible(line) for line in lines)


def print_lines(lines: list[Text]) -> None:
    """Print styled lines; no colour where NO_COLOR is set or stdout is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    # Captured and written by us, because rich answers a closed pipe with exit code 1.
    with console.capture() as captured:
        for line in lines:
            console.print(_inert(line), soft_wrap=True)
    sys.stdout.write(captured.get())


def _inert(line: Text) -> Text:
    """Return a styled line in which nothing but its styles acts on a terminal."""
    if shown(line.plain) == line.plain:
        return line
    hidden = [place for place, char in enumerate(line.plain) if shown(char) != char]
    pieces = line.divide(sorted({0, *hidden, *(place + 1 for place in hidden)}))
    whole = line.blank_copy()
    for piece in pieces:
        text = shown(piece.plain)
        whole.append_text(piece if text == piece.plain else _restyled(piece, text))
    return whole


def _restyled(piece: Text, text: str) -> Text:
    """Return a text in the styles of one character."""
    made = piece.blank_copy(text)
    for span in piece.spans:
        made.stylize(span.style)
    return made
