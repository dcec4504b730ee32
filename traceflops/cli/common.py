"""What the commands share: options, the selection they make, errors, progress, the console."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflops.errors import InputError, TraceflopsError
from traceflops.selection import Selection, parse_duration, parse_numbers, parse_steps

if TYPE_CHECKING:
    from rich.text import Text

    from traceflops.results import Analysis
    from traceflops.trace import Trace

EXIT_INTERNAL, EXIT_USAGE, EXIT_INPUT = 1, 2, 3

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Trace files, a folder of them (the ranks of one job), or - for standard input.",
        show_default=False,
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(metavar="A:B", help="Steps to use, by number, both included (A:, :B, A)."),
]
Ranks = Annotated[str | None, typer.Option(metavar="LIST", help="Ranks to use, e.g. 0,2,4-7.")]
Gpus = Annotated[
    str | None,
    typer.Option("--gpu", metavar="LIST", help="Device numbers to use, as in the trace."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Start, from the first activity, e.g. 1.5s."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="End, from the first activity, e.g. 200ms."),
]
StepMark = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Marks whose whole name matches are the steps."),
]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Category rules to try before the built-in ones."),
]
Environment = Annotated[
    bool,
    typer.Option(
        "--include-environment", help="Keep host and user names and home directories as they are."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Force = Annotated[
    bool, typer.Option("-f", "--force", help="Overwrite files that are not ours, too.")
]


@dataclass(frozen=True, slots=True)
class Question:
    """What the options ask for, as given; `selection` parses them."""

    steps: str | None = None
    ranks: str | None = None
    gpu: str | None = None
    start: str | None = None
    end: str | None = None
    step_mark: str | None = None

    def selection(self) -> Selection:
        """Return the selection. Raises UsageError where an option cannot be understood."""
        return Selection(
            steps=parse_steps(self.steps) if self.steps is not None else None,
            ranks=parse_numbers("--ranks", self.ranks) if self.ranks is not None else None,
            gpus=parse_numbers("--gpu", self.gpu) if self.gpu is not None else None,
            from_ns=parse_duration("--from", self.start) if self.start is not None else None,
            to_ns=parse_duration("--to", self.end) if self.end is not None else None,
            step_mark=self.step_mark,
        )


def read_trace(traces: list[str]) -> Trace:
    """Return the trace in the given files, with progress on a terminal."""
    from traceflops.cli.progress import watching
    from traceflops.parsers import read

    with watching() as watch:
        return read(traces, watch=watch)


def read_and_analyze(
    traces: list[str], question: Question, rules: Path | None, include_environment: bool
) -> Analysis:
    """Return the analysis that the options ask for."""
    selection = question.selection()
    from traceflops.analysis import analyze

    return analyze(
        read_trace(traces), selection, rules=rules, include_environment=include_environment
    )


@contextmanager
def failures() -> Iterator[None]:
    """Turn exceptions into one error line, one hint line and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except TraceflopsError as error:
        _debug()
        _complain(error.message, error.hint)
        code = EXIT_INPUT if isinstance(error, InputError) else EXIT_USAGE
        raise typer.Exit(code) from None
    except BrokenPipeError:
        # The reader of a pipe (head) has seen enough; a second failure at exit must not show.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except OSError as error:
        _debug()
        reason = error.strerror or str(error)
        _complain(f"reading or writing failed ({reason})", "make room, or use another place")
        raise typer.Exit(EXIT_USAGE) from None
    except MemoryError:
        _complain("not enough memory", "use a machine with more, or fewer ranks with --ranks")
        raise typer.Exit(EXIT_INTERNAL) from None
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except Exception as error:
        _debug()
        _complain(
            f"a fault in traceflops: {type(error).__name__}: {error}",
            "run again with TRACEFLOPS_DEBUG=1 and report what it prints",
        )
        raise typer.Exit(EXIT_INTERNAL) from None


def _debug() -> None:
    if os.environ.get("TRACEFLOPS_DEBUG") == "1":
        import traceback

        traceback.print_exc()


def _complain(message: str, hint: str) -> None:
    for label, text in (("error", message), ("hint", hint)):
        typer.echo(f"{label}: {_one_line(text)}", err=True)


def _one_line(text: str) -> str:
    """Return text without anything that acts on a terminal, on one line."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(shown.split())[:1000]


def print_lines(lines: list[Text]) -> None:
    """Print styled lines; no colour where NO_COLOR is set or stdout is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    # Captured and written by us, because rich answers a closed pipe with exit code 1.
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    sys.stdout.write(captured.get())


def terminal_lines(analysis: Analysis) -> list[Text]:
    """Return the summary in the width, characters and colours of the terminal."""
    from rich.console import Console

    from traceflops.reports.terminal import Style, render_terminal

    console = Console()
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else 100
    return render_terminal(
        analysis,
        Style(
            width=width,
            unicode=encoding.startswith("utf"),
            colour=console.color_system is not None and not console.no_color,
        ),
    )
