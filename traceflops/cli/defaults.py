"""Defaults of options from a file: traceflops.toml or pyproject.toml of this folder, or --config.

The folder may come from somebody else, so a file cannot choose what is written, what is read
(except rules and a baseline), what is connected to, or switch off protection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from traceflops.cli.options import OTHERS, Text, option
from traceflops.cli.printing import say
from traceflops.errors import UsageError

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


def tell(context: Any) -> None:
    """Print on stderr which options have their values from a file, and remember them."""
    used = [option for option in context.command.params if _is_from_file(context, option)]
    FROM_FILE.set(frozenset(option.name for option in used))
    if used:
        names = ", ".join(map(_name, used))
        say(f"defaults from {context.meta[_SHARED]}: {names}", to_stderr=True)


def blame(context: Any, error: Exception) -> None:
    """Raise a UsageError that names the file if the value that the parser refuses is from one."""
    parameter = getattr(error, "param", None)
    if parameter is not None and _is_from_file(context, parameter):
        path = Path(context.meta[_SHARED])
        raise _refused(path, f"{_name(parameter)}: {getattr(error, 'message', '')}".rstrip("."))


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
    """Yield options and values of a table as the command line would give them.

    Raises UsageError for options that are unknown or not allowed here, and for wrong types.
    """
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
    """Return a value as if typed on the command line, None if its type is wrong for the option.

    A table, such as {idle = 0.1}, becomes a text "part=share" per row.
    """
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
