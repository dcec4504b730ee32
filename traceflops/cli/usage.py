"""Finds the command that is meant; errors of usage have one error line and one hint line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from glob import escape
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from traceflops.cli.common import EXIT_USAGE, complain, failures
from traceflops.cli.defaults import blame, tell
from traceflops.cli.printing import say
from traceflops.units import command_lines

_WORDS: Final = ("help", "version")
_INSTEAD: Final = {
    "diff": "compare BEFORE AFTER",
    "view": "report TRACE --open",
    "open": "report TRACE --open",
    "show": "report TRACE --open",
    "stats": "summary TRACE",
    "analyze": "report TRACE",
    "record": "recipe",
    "profile": "recipe",
    "sql": 'query TRACE "select …"',
}
"""What to use here for commands that other tools have."""
_IN_A_FILE: Final = {
    **dict.fromkeys(("--markdown", "--md"), "-o FILE.md"),
    "--html": "-o FILE.html",
    "--csv": "-o FOLDER --format csv",
}
_ELSEWHERE: Final = {
    ("check", "--json"): "--junit FILE writes the gates, traceflops summary --json the figures; ",
}
"""What to use for options that a command lacks: by option, here or in a report; by command."""
_WrongUsage: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of what the parser of options raises; Typer exports only subclasses."""


class CommandGroup(TyperGroup):
    """The group of commands; errors of usage have two lines."""

    def make_context(self, info_name: Any, args: list[str], *more: Any, **settings: Any) -> Any:
        """Parse the options before the command; `help` and `version` are options, too."""
        if args and args[0] in _WORDS and not os.path.exists(args[0]):
            args = [*args[1:2], "--help"] if args[0] == "help" else ["--version"]
        with failures(), _two_lines():
            return super().make_context(info_name, args, *more, **settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named, or `summary` if the word is, or looks like, a file."""
        word = args[0]
        is_path = word == "-" or Path(word).suffix != "" or os.sep in word or os.path.exists(word)
        if is_path and self.get_command(ctx, word) is None:
            # A word that begins with - can only have come behind --, which is gone.
            options_end = ["--"] if word.startswith("-") else []
            args = ["summary", *options_end, *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of the command, and run it."""
        with failures(), _two_lines():
            return super().invoke(ctx)


@contextmanager
def _two_lines() -> Iterator[None]:
    """Turn errors of the parser into one error line and one hint line."""
    try:
        yield
    except _WrongUsage as error:
        message = str(getattr(error, "message", "") or getattr(error, "format_message", str)())
        if "\n" in message:  # the help, shown if nothing was typed
            say(message, to_stderr=True)
        else:
            # For an unknown option, format_message adds similar names, but the hint has them.
            if not getattr(error, "possibilities", None):
                message = getattr(error, "format_message", lambda: message)()
            complain(f"{message[:1].lower()}{message[1:]}".rstrip("."), _hint(error))
        raise typer.Exit(EXIT_USAGE) from None


def _hint(error: Exception) -> str:
    """Return what was probably meant, and which --help shows the options."""
    context: Any = getattr(error, "ctx", None)
    wrong_option = str(getattr(error, "option_name", ""))
    near = get_close_matches(wrong_option, getattr(error, "possibilities", None) or (), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    # An option before the command may belong to a command; if to several, summary is suggested.
    commands = getattr(getattr(context, "command", None), "commands", {})
    for name in sorted(commands, key=lambda name: name != "summary"):
        if any(wrong_option in parameter.opts for parameter in commands[name].params):
            meant = f"write traceflops {name} {wrong_option} FILE; "
            break
    own = getattr(getattr(context, "command", None), "params", ())
    if wrong_option in _IN_A_FILE:
        words = {word for word in _IN_A_FILE[wrong_option].split() if word.startswith("-")}
        has_them = words <= {option for each in own for option in each.opts}
        is_writer = getattr(context, "info_name", "") in ("report", "compare") and has_them
        meant = f"{'write' if is_writer else 'use traceflops report FILE'} "
        meant += f"{_IN_A_FILE[wrong_option]}; "
    meant = _ELSEWHERE.get((getattr(context, "info_name", ""), wrong_option), meant)
    missing = getattr(error, "param", None)
    if missing is not None and "-o" in missing.opts:  # where to write must be said
        meant = f"add -o {missing.metavar}; "
    wrong_command = re.search(r"command '(\w+)'", str(getattr(error, "message", "")))
    if wrong_command is not None and wrong_command[1] in _INSTEAD:
        meant = f"use traceflops {_INSTEAD[wrong_command[1]]}; "
    # Without a parent the context is that of traceflops itself, whose --help has no command.
    command = f" {context.info_name}" if context is not None and context.parent is not None else ""
    is_file = wrong_option.startswith("-") and any(Path().glob(f"{escape(wrong_option)}*"))
    about_file = "; for a file whose name starts with -, write ./-NAME" if is_file else ""
    return f"{meant}see traceflops{command} --help{about_file}"


# Help in plain text: options under headings (those of `rich_help_panel`), then the examples.

_LAST = ("Input", "Select", "MFU", "Output", "Privacy", "Options")
"""Headings that many commands have; they come last, in this order."""


class Command(TyperCommand):
    """A command whose help groups the options, some of which may have defaults from a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; report what is taken from a file of defaults."""
        try:
            rest = super().parse_args(ctx, args)
        except _WrongUsage as error:
            blame(ctx, error)
            raise
        tell(ctx)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what may follow the command's name."""
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options, heading by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        parameter: Any
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if parameter.param_type_name == "argument":
                sections.setdefault("Arguments", []).append((parameter.metavar, parameter.help))
            elif row is not None:
                # Options of a group have its heading; most others say what is printed or written.
                default = "Options" if parameter.name == "help" else "Output"
                heading = getattr(parameter, "rich_help_panel", None) or default
                sections.setdefault(heading, []).append(row)
        order = sorted(sections, key=lambda name: _LAST.index(name) + 1 if name in _LAST else 0)
        for heading in order:
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples; long ones are wrapped so that a shell still understands them."""
        formatter.write("\nExamples:\n")
        for example in (self.epilog or "").splitlines():
            formatter.write("\n".join(command_lines(example, formatter.width)) + "\n")
