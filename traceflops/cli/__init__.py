"""The command line: reads options, calls the core, picks a renderer, sets the exit code.

Exit codes: 0 done; 1 a fault in traceflops itself; 2 wrong usage or no room; 3 the input cannot be
read, is not recognised or cannot be true; 4 a gate did not pass.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from traceflops.cli.common import tidy_up_when_ended
from traceflops.cli.defaults import Config
from traceflops.cli.options import flattened
from traceflops.cli.printing import say
from traceflops.cli.usage import Plain, Sectioned

COMMANDS = (
    *("report", "summary", "info", "export", "why", "perfetto", "mfu", "devices", "reduce"),
    *("what_if", "compare", "check", "pack", "unpack", "query", "recipe", "mcp"),
)
"""Each is a function of that name in a module of that name, whose EXAMPLES end its help, and whose
HELP, if any, begins it."""
EPILOG = (
    "Exit codes: 0 done; 1 internal error; 2 wrong usage, or no disk space or memory left; 3 the "
    "input is unreadable, unrecognised or impossible; 4 a gate of check did not pass. No network "
    "requests."
)

app = typer.Typer(
    name="traceflops",
    cls=Plain,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in COMMANDS:
    module = import_module(f"traceflops.cli.{name}")
    command = app.command(
        name.replace("_", "-"),
        epilog="\n".join(module.EXAMPLES),
        cls=Sectioned,
        help=getattr(module, "HELP", None),
    )
    command(flattened(getattr(module, name), config=Config))


def _versions(wanted: bool) -> None:
    """Print the versions of traceflops and of what it uses, and what plug-ins add."""
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    from traceflops._version import __version__
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


@app.callback()
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


def main() -> None:
    """Run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (>&-)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a character the terminal cannot show must not end the run
            reconfigure(errors="replace")
    if os.environ.get("COLUMNS") == "0":  # what some CI systems set where there is no terminal
        del os.environ["COLUMNS"]
    tidy_up_when_ended()
    app()
