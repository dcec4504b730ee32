"""The command line: reads options, calls the core, picks a renderer, sets the exit code.

    words typed, and defaults of options from a file
      |  usage.py: which command is meant; what Typer refuses, in two lines
      v
    a function per command, in a module of its name         options in groups: options.py
      |  AnalysisOptions.analyze(), ReadingOptions.read()
      v
    Analysis, Trace or Comparison
      |  reports: a renderer, or a file
      v
    common.py: text in which nothing acts on a terminal; errors -> exit code

Exit codes: 0 done; 1 a fault in traceflops itself; 2 wrong usage or no room; 3 the input cannot be
read, is not recognised or cannot be true; 4 a gate did not pass.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer

from traceflops._version import __version__
from traceflops.cli.common import own_time, say, tidy_up_when_ended
from traceflops.cli.usage import Command, CommandGroup, Config

COMMANDS = (
    *("report", "summary", "info", "export", "why", "perfetto", "mfu", "devices", "reduce"),
    *("what_if", "compare", "check", "pack", "unpack", "query", "recipe", "mcp", "repro", "skill"),
)
"""Each is a function in a module of the same name. EXAMPLES of the module end the help of the
command; HELP, if the module has it, begins the help instead of the docstring."""
EPILOG = (
    "Exit codes: 0 done; 1 internal error; 2 wrong usage, or no disk space or memory left; 3 the "
    "input is unreadable, unrecognised or impossible; 4 a gate of check did not pass. No network "
    "requests."
)
_SETTINGS = {"help_option_names": ["-h", "--help"]}


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter per option, since Typer knows no groups of options.

    Groups are dataclasses and may hold groups. Each command also gets --config, which acts by its
    callback. If its options ask for it, the command prints the time that traceflops itself took.
    """
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    declared = inspect.signature(command).parameters
    defaults = {name: parameter.default for name, parameter in declared.items()}
    parameters = [*_parameters(hints, defaults), *_parameters({"config": Config}, {"config": None})]
    # A signature has parameters without a default first.
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    @wraps(command)
    def flat(**given: Any) -> None:
        arguments = {name: _value(name, hint, given) for name, hint in hints.items()}
        profile = given.get("profile_self", False)
        is_timed = profile or given.get("verbose")
        with own_time(profile=profile, named=not given["redact"]) if is_timed else nullcontext():
            command(**arguments)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _parameters(
    hints: Mapping[str, Any], defaults: Mapping[str, Any], heading: str | None = None
) -> Iterator[inspect.Parameter]:
    """Yield a parameter per option, for Typer; `heading` is that of options that name none."""
    for name, default in defaults.items():
        hint = hints[name]
        if is_dataclass(hint):
            # A field with metadata declares its option; others have theirs in the annotation.
            of_fields = {f.name: f if f.metadata else f.default for f in fields(hint)}
            field_hints = get_type_hints(hint, include_extras=True)
            yield from _parameters(field_hints, of_fields, getattr(hint, "HEADING", None))
            continue
        # An option is declared by a field (see `options.option`): the default, or inside Annotated
        # if several commands have it.
        value_type, declared = get_args(hint) if get_origin(hint) is Annotated else (hint, default)
        if default is declared:
            default = inspect.Parameter.empty if default.default is MISSING else default.default
        info = declared.metadata["typer"]
        info.rich_help_panel = info.rich_help_panel or heading
        if value_type is bool and not info.param_decls:  # Typer would add its opposite, --no-NAME
            info.param_decls = (f"--{name.replace('_', '-')}",)
        annotation: Any = Annotated[value_type, info]
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


def _value(name: str, hint: Any, given: Mapping[str, Any]) -> Any:
    """Return a parameter's value, or its group, from the values of all options by name."""
    if not is_dataclass(hint):
        return given[name]
    hints = get_type_hints(hint, include_extras=True)
    parts = {part.name: _value(part.name, hints[part.name], given) for part in fields(hint)}
    return cast("type[Any]", hint)(**parts)


def _versions(wanted: bool) -> None:
    """Print the versions of traceflops and of what it uses, and what plug-ins add."""
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    from traceflops.plugins import packages

    say(f"traceflops {__version__} (Python {sys.version.split()[0]})")
    for package in ("pyarrow", "numpy", "msgspec", "holoviews", "bokeh", "pandas", "duckdb", "mcp"):
        try:
            say(f"{package} {version(package)}")
        except PackageNotFoundError:
            say(f"{package} is not installed")
    for package, kinds in packages().items():
        say(f"{package} adds {', '.join(kinds)}")
    raise typer.Exit


def _traceflops(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_versions,
            is_eager=True,
            help=("Print the versions and exit."),
        ),
    ] = False,
) -> None:
    """Show where the time in a profiler trace went, offline.

    Reads traces of PyTorch, AMD rocprof, NVIDIA Nsight and XLA (JAX): files (also gzip, zstd or
    zip), folders of ranks, or - for standard input. Without a command it prints a summary:
    traceflops trace.json.gz.
    """


@cache
def _made(name: str) -> Any:
    """Return a command as the parser needs it."""
    function = name.replace("-", "_")
    module = import_module(f"traceflops.cli.{function}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_SETTINGS)
    examples, text = "\n".join(module.EXAMPLES), getattr(module, "HELP", None)
    command = alone.command(name, cls=Command, epilog=examples, help=text)
    command(flattened(getattr(module, function)))
    return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """The commands by name. To make them all takes ten times as long as to make the one needed."""

    def __getitem__(self, name: str) -> Any:
        if name not in iter(self):
            raise KeyError(name)
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return (name.replace("_", "-") for name in COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Program(CommandGroup):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()


app = typer.Typer(
    name="traceflops",
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings=_SETTINGS,
)
app.callback()(_traceflops)


def main() -> None:
    """Run the command line, on whatever streams and signals the caller has left."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (>&-)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a character the terminal cannot show must not end the run
            reconfigure(errors="replace")
    if os.environ.get("COLUMNS") == "0":  # set by some CI systems that have no terminal
        del os.environ["COLUMNS"]
    tidy_up_when_ended()
    app()
