"""The only place at which text leaves for a terminal.

Names in a trace, of files and in options may contain characters that move the cursor, change
colours or turn the reading direction. Such characters are printed as visible escapes; only the
styles that traceflops itself applies take effect.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from traceflops.characters import is_visible, visible
from traceflops.phases import listening

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from traceflops.parsers.io.inputs import ByteSource
    from traceflops.parsers.reading import Watcher

_FUNCTIONS_SHOWN: Final = 20
_BAR_AFTER_S: Final = 1.0


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print lines of text. If standard error is full or closed, the text is dropped."""
    with suppress(OSError) if to_stderr else nullcontext():
        typer.echo(_inert(text), err=to_stderr)


def say_object(content: dict[str, Any]) -> None:
    """Print an object as JSON."""
    from traceflops.reports.json.report import encode

    say(encode(content))


def _inert(text: str) -> str:
    """Return lines of text with control characters escaped."""
    if is_visible(text):
        return text
    return "\n".join(line if is_visible(line) else visible(line) for line in text.split("\n"))


def print_lines(lines: list[Text]) -> None:
    """Print styled lines; without colour if NO_COLOR is set or stdout is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    # Captured and written here, because rich answers a closed pipe with exit code 1.
    with console.capture() as captured:
        for line in lines:
            console.print(_inert_line(line), soft_wrap=True)
    sys.stdout.write(captured.get())


def _inert_line(line: Text) -> Text:
    """Return a styled line with control characters escaped; its styles stay."""
    if _inert(line.plain) == line.plain:
        return line
    # Divide the line before and behind each character to escape: its escape gets its styles.
    escaped = [index for index, char in enumerate(line.plain) if _inert(char) != char]
    inert = line.blank_copy()
    for piece in line.divide(sorted({0, *escaped, *(index + 1 for index in escaped)})):
        if (text := _inert(piece.plain)) == piece.plain:
            inert.append_text(piece)
            continue
        escape = piece.blank_copy(text)
        for span in piece.spans:
            escape.stylize(span.style)
        inert.append_text(escape)
    return inert


@contextmanager
def own_time(*, profile: bool, named: bool = True) -> Iterator[None]:
    """Print on stderr how many seconds the phases inside the block took.

    With `profile`, also the functions that took most of the time. Unless `named`, files have
    numbers instead of names.
    """
    from cProfile import Profile

    began, profiler = time.perf_counter(), Profile()
    numbers: dict[str, int] = {}

    def tell(phase: str, about: str | None, seconds: float) -> None:
        if about is not None and not named:
            about = f"file {numbers.setdefault(about, len(numbers) + 1)}"
        text = f"{phase} {about}" if about is not None else phase
        say(f"{text:<24} {seconds:8.3f} s", to_stderr=True)

    with profiler if profile else nullcontext(), listening(tell):
        yield
    tell("all", None, time.perf_counter() - began)
    if not profile:
        return
    from pstats import Stats

    functions = Stats(profiler, stream=sys.stderr).get_stats_profile().func_profiles
    rows = sorted(functions.items(), key=lambda row: -row[1].tottime)
    say(f"\n{'own s':>8} {'total s':>15} {'calls':>12}  function", to_stderr=True)
    for name, ran in rows[:_FUNCTIONS_SHOWN]:
        source = f"{Path(ran.file_name).name}:{ran.line_number}" if ran.line_number else "built in"
        line = f"{ran.tottime:8.3f} {ran.cumtime:15.3f} {ran.ncalls:>12}  {name} ({source})"
        say(line, to_stderr=True)
    used = os.times()
    others = used.children_user + used.children_system
    say(f"reader processes used {others:.3f} s more", to_stderr=True)


@contextmanager
def watching(clock: Callable[[], float] = time.monotonic) -> Iterator[Watcher | None]:
    """Yield a watcher for `read` that shows a progress bar of the bytes read, but not before 1 s.

    Yields None if stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    began = clock()
    bars: list[Progress] = []  # none or one

    def watch(source: ByteSource, index: int, inputs: int) -> None:
        """Show, from now on, how much of this input is read; `index` counts from 0."""
        label = "reading" if inputs == 1 else f"reading {index + 1} of {inputs}"

        def advance(done: int) -> None:
            """Update the bar to `done` bytes; the first call after 1 s makes the bar."""
            if not bars and clock() - began >= _BAR_AFTER_S:
                bars.append(_bar())
                bars[0].add_task(label)
                bars[0].start()
            for bar in bars:
                total = source.stored_bytes
                bar.update(bar.task_ids[0], completed=done, total=total, description=label)

        source.progress = advance

    try:
        yield watch
    finally:
        for bar in bars:
            bar.stop()


def _bar() -> Progress:
    """Return a progress bar on stderr, not on the screen yet."""
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
