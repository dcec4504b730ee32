"""What the commands share: errors, files to write, the console.

Only here text leaves for a terminal. Names in a trace, of files and in options may contain
characters that move the cursor, change colours or turn the reading direction: they are printed as
visible escapes; only the styles that traceflops itself applies take effect.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from traceflops.characters import is_visible, visible
from traceflops.errors import MORE_MEMORY, InputError, TraceflopsError, UsageError, is_out_of_memory
from traceflops.phases import listening, phase

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from traceflops.analysis.result import Analysis
    from traceflops.parsers.io.inputs import ByteSource
    from traceflops.parsers.reading import Watcher
    from traceflops.reports.terminal.lines import Style

_FUNCTIONS_SHOWN: Final = 20
_BAR_AFTER_S: Final = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h, in bytes


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next columns: fresh pages take up to 40 % of the time."""
    import ctypes  # numpy loads it anyway

    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # Before glibc 2.35, 32 MiB is the most, and a higher value is ignored.
        if mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 1 << 25):
            mallopt(_M_TRIM_THRESHOLD, 1 << 29)


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print lines of text. If standard error is full or closed, the text is dropped."""
    with suppress(OSError) if to_stderr else nullcontext():
        typer.echo(_inert(text), err=to_stderr)


def say_object(content: dict[str, Any], *, brief: bool = False) -> None:
    """Print an object as JSON; a `brief` one as one line of at most 8 KB."""
    if brief:
        from traceflops.reports.json.brief import fitted

        say(fitted(content))
        return
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
    """Yield a watcher for `read` with a progress bar after 1 s, None if stderr is no terminal."""
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


EXIT_INTERNAL, EXIT_USAGE, EXIT_INPUT, EXIT_GATE = 1, 2, 3, 4
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SUFFIXES = (".gz", ".zst", ".lz4", ".zip", ".json", ".trace", ".pt", ".tmp")


def stem_of(traces: list[str]) -> str:
    """Return the name of the first input without suffixes; "trace" for standard input."""
    from traceflops.parsers.io.remote import is_remote

    # A pattern in a store is named after its folder; the shell has expanded local patterns.
    first = traces[0].partition("/*")[0] if is_remote(traces[0]) else traces[0]
    path = Path("trace" if first == "-" else Path(first).resolve().name or "trace")
    while path.suffix.lower() in _SUFFIXES:
        path = Path(path.stem)
    return path.name


def path_of(output: str) -> Path:
    """Return the path that -o names. Raises UsageError if it is empty or in a store."""
    if not output.strip():
        raise UsageError("-o has an empty name", "give a name; a shell variable may be unset")
    from traceflops.parsers.io.remote import is_remote

    if is_remote(output):
        raise UsageError(f"cannot write to a store: {output}", "write a file here, then copy it")
    return Path(output)


def spare_inputs(targets: Iterable[Path], inputs: Iterable[str | Path | None]) -> None:
    """Raise UsageError if a target is one of the input files, even by another name."""
    from traceflops.parsers.io.places import files_behind
    from traceflops.parsers.io.remote import is_remote

    def identity(path: Path) -> tuple[int, int] | None:
        """Return device and inode, equal for all names of a file; None if there is no file."""
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        # Writing to a device or a pipe destroys no input.
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None

    existing = {identity(path): path for path in targets}
    existing.pop(None, None)
    if not existing:
        return
    names = [str(name) for name in inputs if name is not None]
    for file in (file for name in names if not is_remote(name) for file in files_behind(name)):
        target = existing.get(identity(Path("/dev/stdin" if file == "-" else file)))
        if target is not None:
            problem = f"would overwrite its own input: {target}"
            raise UsageError(problem, "choose another name with -o")


def keep_apart(target: Path, inputs: Iterable[str], suffix: str | None = None) -> None:
    """Raise UsageError if a later run would read what is written to the folder `target`.

    That is so if `target` is in a folder that is read, or holds an input with this suffix.
    """
    folder = target.resolve()
    for path in (Path(name).resolve() for name in inputs if name != "-"):
        is_beside = path.suffix == suffix and path.parent == folder
        if is_beside or (path.is_dir() and folder.is_relative_to(path)):
            raise UsageError(
                f"would write among its own input: {target}", "choose another folder with -o"
            )


@contextmanager
def failures() -> Iterator[None]:
    """Turn exceptions into one error line, one hint line and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except TraceflopsError as error:
        _print_traceback()
        complain(error.message, error.hint)
        code = EXIT_INPUT if isinstance(error, InputError) else EXIT_USAGE
        raise typer.Exit(code) from None
    except BrokenPipeError:
        # The reader of a pipe (head) has gone: keep Python from failing again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except Exception as error:
        _print_traceback()
        message, code = f"internal error: {type(error).__name__}: {error}", EXIT_INTERNAL
        hint = "run again with TRACEFLOPS_DEBUG=1 and report what it prints"
        if is_out_of_memory(error):  # no fault of traceflops; nor is a full disk, below
            message, hint, code = "out of memory", MORE_MEMORY, EXIT_USAGE
        elif isinstance(error, OSError):
            from traceflops.reports.files import remedy

            about = f": {error.filename}" if error.filename is not None else ""
            message = f"reading or writing failed ({error.strerror or error}){about}"
            hint, code = remedy(error), EXIT_USAGE
        complain(message, hint)
        raise typer.Exit(code) from None


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let signals end the process at once inside the block.

    Libraries that run there do not return to Python, which would call its own handlers.
    """
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, *heeded)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def tidy_up_when_ended() -> None:
    """Let signals that end the process raise SystemExit, so that unfinished files are removed."""

    def end(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # for the second one
        raise SystemExit(128 + number)  # as shells tell which signal it was

    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _print_traceback() -> None:
    if os.environ.get("TRACEFLOPS_DEBUG") == "1":
        import traceback

        say(traceback.format_exc(), to_stderr=True)


def complain(message: str, hint: str) -> None:
    """Print one error line and one hint line on stderr, printable and cut in the middle if long."""
    for label, text in (("error", message), ("hint", hint)):
        line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        if len(line) > 1000:  # a name in it may be of any length
            line = f"{line[:500]} … {line[-500:]}"
        say(f"{label}: {line}", to_stderr=True)


def print_summary(analysis: Analysis, by: str | None = None) -> None:
    """Print the summary in the width, characters and colours of the terminal."""
    from traceflops.reports.terminal.summary import render_terminal

    with phase("print"):
        print_lines(render_terminal(analysis, terminal_style(), by))


def terminal_style() -> Style:
    """Return the width (100 without a terminal), characters and colours of standard output."""
    from rich.console import Console

    from traceflops.reports.terminal.lines import Style

    console = Console()
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else 100
    return Style(
        width=width,
        unicode=encoding.startswith("utf"),
        colour=console.color_system is not None and not console.no_color,
    )
