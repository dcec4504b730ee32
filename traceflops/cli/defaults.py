"""Defaults of options from a file: traceflops.toml or pyproject.toml of this folder, or --config.

The folder may hold what somebody else sent, so a file has no say in what is written, in what is
read besides rules and a baseline, in connections, and in what protects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, get_type_hints

import typer

from traceflops.cli.options import OTHERS, Text, option
from traceflops.cli.printing import say
from traceflops.errors import UsageError

_FILES: Final = {"traceflops.toml": (), "pyproject.toml": ("tool", "traceflops")}
"""Where defaults may stand, and in which table of it."""
_LARGEST: Final = 256 * 1024
_EVERY: Final = "defaults"
"""The table for all commands that have the option."""
_OF_FILES: Final = ("rules", "finding-rules", "baseline")
"""The files that a file may name; they lie where it says."""
_TYPED: Final = ("force", "open", "update-baseline", "include-environment", "no-limits", "config")
_PLACES: Final = ("FILE", "FOLDER", "ADDRESS")
_HINT: Final = "see docs/config.md"
Options = dict[str, Any]
_FROM_FILE: Final = ContextVar("from_file", default=frozenset[str]())


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the defaults of its options from a file."""
    hints = get_type_hints(command, include_extras=True)
    of_command = inspect.signature(command).parameters.items()
    kind = inspect.Parameter.KEYWORD_ONLY
    config = inspect.Parameter("config", kind, default=None, annotation=_Config)
    parameters = [*(one.replace(annotation=hints[name]) for name, one in of_command), config]

    @wraps(command)
    def configured(config: str | None = None, **given: Any) -> None:
        command(**given)

    configured.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    configured.__annotations__ = {**hints, "config": _Config}
    return configured


def _use(context: typer.Context, given: Text) -> Text:
    """Set the defaults of the options that are parsed after this one."""
    if not context.resilient_parsing:
        path = Path(given) if given is not None else _beside()
        if path is not None:
            context.default_map = _defaults(context, path)
            context.meta[_EVERY] = str(path)
    return given


_Config = Annotated[
    Text,
    option(
        "FILE",
        "Defaults of options. Default: traceflops.toml or pyproject.toml of this folder.",
        callback=_use,
        is_eager=True,
        **OTHERS,
    ),
]


def from_file() -> frozenset[str]:
    """Return the names of the parameters of this command that have their value from a file."""
    return _FROM_FILE.get()


def tell(context: Any) -> None:
    """Say on stderr which options have their value from a file."""
    used = [one for one in context.command.params if _is_from_file(context, one)]
    _FROM_FILE.set(frozenset(one.name for one in used))
    if used:
        names = ", ".join(map(_name, used))
        say(f"defaults from {context.meta[_EVERY]}: {names}", to_stderr=True)


def blame(context: Any, error: Exception) -> None:
    """Raise a UsageError if what the parser refuses stands in a file."""
    parameter = getattr(error, "param", None)
    if parameter is not None and _is_from_file(context, parameter):
        path = Path(context.meta[_EVERY])
        _refuse(path, f"{_name(parameter)}: {getattr(error, 'message', '')}".rstrip("."))


def _is_from_file(context: Any, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name == "DEFAULT_MAP" and _EVERY in context.meta


def _beside() -> Path | None:
    """Return the first file of this folder that has defaults."""
    return next((path for path in map(Path, _FILES) if path.is_file() and _is_ours(path)), None)


def _is_ours(path: Path) -> bool:
    """Return whether a file has a table of ours; what is wrong with one that has none is no matter.

    A file of our name is.
    """
    mark = ".".join(_FILES[path.name])
    with path.open("rb") as file:
        return not mark or f"[{mark}".encode() in file.read(_LARGEST)


def _defaults(context: Any, path: Path) -> Options:
    """Return what a file says of this command, by the names of its parameters.

    Raises UsageError for what is wrong anywhere in it.
    """
    commands = {name: _options(one) for name, one in context.parent.command.commands.items()}
    tables = {str(key).replace("_", "-"): table for key, table in _content(path).items()}
    every = {name: one for options in commands.values() for name, one in options.items()}
    known = {_EVERY: every, **commands}
    read: dict[str, Options] = {}
    for name, table in tables.items():
        if name not in known:
            _unknown(path, "table", name, known)
        if not isinstance(table, dict):
            _refuse(path, f"{name} is no table")
        read[name] = dict(_of_table(path, table, known[name]))
    mine = commands[context.info_name]
    given = {**read.get(_EVERY, {}), **read.get(context.info_name, {})}
    return {mine[key].name: value for key, value in given.items() if key in mine}


def _content(path: Path) -> Mapping[str, Any]:
    from traceflops.categories import toml_of

    try:
        found: Any = toml_of(path, str(path))
    except UsageError as error:
        raise UsageError(error.message, _HINT) from None
    for key in _FILES.get(path.name, ()):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        _refuse(path, "tool.traceflops is no table")
    return found


def _of_table(path: Path, table: Mapping[str, Any], known: Options) -> Iterator[tuple[str, Any]]:
    """Yield what a table says as the command line would."""
    for key, value in ((key.replace("_", "-"), value) for key, value in table.items()):
        if key not in known:
            _unknown(path, "option", key, known)
        is_place = known[key].metavar in _PLACES
        if key in _TYPED or (is_place and key not in _OF_FILES):
            _refuse(path, f"{key} is for the command line alone")
        value = _value(known[key], value)
        if value is None:
            _refuse(path, f"{key} cannot be {str(table.get(key))[:60]!r}")
        yield key, str(path.parent / value) if is_place else value


def _value(parameter: Any, value: object) -> Any:
    """Return a value as it would be typed, None where it is of a wrong type."""
    if parameter.is_flag:
        return value if isinstance(value, bool) else None
    if parameter.multiple:
        if isinstance(value, dict) and "=" in str(parameter.metavar):
            value = [f"{part}={share}" for part, share in value.items()]
        is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return value if is_list else None
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_plain else None


def _options(command: Any) -> Options:
    """Return the options of a command by their long names."""
    options = (one for one in command.params if one.param_type_name == "option")
    return {_name(one): one for one in options}


def _name(parameter: Any) -> str:
    return next(str(name)[2:] for name in parameter.opts if name.startswith("--"))


def _unknown(path: Path, what: str, name: str, known: Mapping[str, Any]) -> NoReturn:
    near = get_close_matches(name, known, 1, 0)[0]
    raise UsageError(f"{path}: no {what} {name[:60]!r}", f"did you mean {near}? {_HINT}")


def _refuse(path: Path, problem: str) -> NoReturn:
    raise UsageError(f"{path}: {problem}", _HINT)
