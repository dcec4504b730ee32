"""Finds the command that is meant; errors of usage have one error line and one hint line.

Defaults of options come from a file: traceflops.toml or pyproject.toml of this folder, or --config.
The folder may come from somebody else, so a file cannot choose what is written, what is read
(except rules and a baseline), what is connected to, or switch off protection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from glob import escape
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from traceflops.cli.common import EXIT_USAGE, complain, failures, say
from traceflops.cli.options import OTHERS, Text, option
from traceflops.errors import UsageError
from traceflops.units import command_lines

_FILES: Final = {"traceflops.toml": (), "pyproject.toml": ("tool", "traceflops")}
"""The files that may have defaults, each with the path of their table."""
_LARGEST: Final = 256 * 1024
_SHARED: Final = "defaults"
"""Name of the table for all commands that have the option. In the context's `meta`, the key of the
path of the file."""
_OF_FILES: Final = ("rules", "finding-rules", "baseline")
"""The options for files that a file may set; the paths are relative to it."""
_TYPED: Final = ("force", "open", "update-baseline", "include-environment", "no-limits", "config")
"""Options that may do harm that nobody expects who has forgotten the file."""
_PATHS: Final = ("FILE", "FOLDER", "ADDRESS")
_HINT: Final = "see docs/config.md"
Options = dict[str, Any]
FROM_FILE: Final = ContextVar("from_file", default=frozenset[str]())
"""The parameters of this command whose values are from a file."""


def _use(context: typer.Context, given: Text) -> Text:
    """Set the defaults of all other options; they are parsed later, since --config is eager."""
    if not context.resilient_parsing:  # else the shell only completes a word
        path = Path(given) if given is not None else _in_this_folder()
        if path is not None:
            context.default_map = _defaults(context, path)
            context.meta[_SHARED] = str(path)
    return given


Config = Annotated[
    Text,
    option(
        "FILE",
        "Defaults of options. Default: traceflops.toml or pyproject.toml of this folder.",
        callback=_use,
        is_eager=True,
        **OTHERS,
    ),
]


def _is_from_file(context: Any, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name == "DEFAULT_MAP" and _SHARED in context.meta


def _in_this_folder() -> Path | None:
    """Return the first file of this folder that may have defaults, None if there is none.

    traceflops.toml always counts; pyproject.toml only if it has our table, so that other errors
    in it are not reported.
    """
    for name, tables in _FILES.items():
        path = Path(name)
        if path.is_file():
            with path.open("rb") as file:
                if not tables or f"[{'.'.join(tables)}".encode() in file.read(_LARGEST):
                    return path
    return None


def _defaults(context: Any, path: Path) -> Options:
    """Return the defaults of this command in a file, by parameter.

    The table of the command overrides the table `defaults`. All tables are checked: raises
    UsageError if anything in one of them is wrong.
    """
    from traceflops.categories.rules import toml_of

    try:
        content: Any = toml_of(path, str(path))
    except UsageError as error:
        raise UsageError(error.message, _HINT) from None
    for key in _FILES.get(path.name, ()):  # our tables in a file of others
        content = content.get(key) if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise _refused(path, "tool.traceflops is no table")
    # The options that each table may have: by name of the table, by name of the option.
    options_of: dict[str, Options] = {_SHARED: {}}
    for name, command in context.parent.command.commands.items():
        options = [each for each in command.params if each.param_type_name == "option"]
        options_of[name] = {_name(each): each for each in options}
        options_of[_SHARED].update(options_of[name])
    values: dict[str, Options] = {}
    for key, table in content.items():
        name = str(key).replace("_", "-")
        if name not in options_of:
            raise _unknown(path, "table", name, options_of)
        if not isinstance(table, dict):
            raise _refused(path, f"{name} is no table")
        values[name] = dict(_of_table(path, table, options_of[name]))
    of_command = options_of[context.info_name]
    given = {**values.get(_SHARED, {}), **values.get(context.info_name, {})}
    return {of_command[name].name: value for name, value in given.items() if name in of_command}


def _of_table(path: Path, table: Mapping[str, Any], options: Options) -> Iterator[tuple[str, Any]]:
    """Yield options and values of a table as if typed. Raises UsageError for wrong ones."""
    for key, content in table.items():
        name = key.replace("_", "-")
        if name not in options:
            raise _unknown(path, "option", name, options)
        is_path = options[name].metavar in _PATHS
        if name in _TYPED or (is_path and name not in _OF_FILES):
            raise _refused(path, f"{name} is for the command line alone")
        value = _value(options[name], content)
        if value is None:
            # 60 characters show which value is meant.
            raise _refused(path, f"{name} cannot be {str(content)[:60]!r}")
        yield name, str(path.parent / value) if is_path else value


def _value(parameter: Any, value: object) -> Any:
    """Return a value as if typed, None if its type is wrong; a table becomes "part=share" rows."""
    if parameter.is_flag:
        return value if isinstance(value, bool) else None
    if parameter.multiple:
        if isinstance(value, dict) and "=" in str(parameter.metavar):
            value = [f"{part}={share}" for part, share in value.items()]
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return value if is_list else None
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_plain else None


def _name(parameter: Any) -> str:
    return next(str(name)[2:] for name in parameter.opts if name.startswith("--"))


def _unknown(path: Path, what: str, name: str, known: Mapping[str, Any]) -> UsageError:
    near = get_close_matches(name, known, 1, 0)[0]
    return UsageError(f"{path}: no {what} {name[:60]!r}", f"did you mean {near}? {_HINT}")


def _refused(path: Path, problem: str) -> UsageError:
    return UsageError(f"{path}: {problem}", _HINT)


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
        """Parse the arguments; print on stderr which options have values from a file of defaults.

        Raises UsageError if the parser refuses such a value.
        """
        try:
            rest = super().parse_args(ctx, args)
        except _WrongUsage as error:
            refused = getattr(error, "param", None)
            if refused is not None and _is_from_file(ctx, refused):
                problem = f"{_name(refused)}: {getattr(error, 'message', '')}".rstrip(".")
                raise _refused(Path(ctx.meta[_SHARED]), problem) from None
            raise
        used = [option for option in ctx.command.params if _is_from_file(ctx, option)]
        FROM_FILE.set(frozenset(option.name for option in used))
        if used:
            names = ", ".join(map(_name, used))
            say(f"defaults from {ctx.meta[_SHARED]}: {names}", to_stderr=True)
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
