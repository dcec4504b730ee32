"""Writes the manual page from the help of the commands; `--check` only compares.

python -m docs.manual; look at it with man -l docs/traceflops.1
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer.main

from traceflops import __version__
from traceflops.cli import EPILOG, app

PAGE: Final = Path(__file__).with_name("traceflops.1")
_MANY: Final = 4
"""An option that more commands have is described once for all."""
_SIGNS: Final = {"\\": "\\e", "-": "\\-", "`": "\\(ga", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti"}
_NAME: Final = re.compile(r"--?[A-Za-z][a-z-]*|^[A-Z_]+$|\w+\.toml|^\d$")
_DEFAULTS: Final = "Defaults of options, in the current folder: see --config."
_FILES: Final = (("traceflops.toml", _DEFAULTS), ("pyproject.toml", "The same in tool.traceflops."))
_ENVIRONMENT: Final = (
    ("NO_COLOR", "No colours if it is set."),
    ("COLUMNS", "Width of the output, in the place of that of the terminal."),
    ("TRACEFLOPS_DEBUG", "If it is 1, errors are shown with where they arose."),
)
_Rows = Iterable[tuple[str, str]]


def page() -> str:
    """Return the manual page of the commands as they are today."""
    group: Any = typer.main.get_command(app)
    found = {name: list(_options(name, one)) for name, one in group.commands.items()}
    count = Counter(row for rows in found.values() for row in rows)
    shared = [row for row, commands in count.items() if commands > _MANY]
    about, _, more = str(group.help).partition("\n\n")
    return "\n".join(
        [
            f'.TH TRACEFLOPS 1 "" "traceflops {__version__}" "User Commands"\n.nh\n.ad l',
            f".SH NAME\ntraceflops \\- {_roff(about[:1].lower() + about[1:].rstrip('.'))}",
            ".SH SYNOPSIS\n.B traceflops\n.I COMMAND\n[\\fIOPTIONS\\fR] \\fITRACE\\fR...",
            f".SH DESCRIPTION\n{_roff(more)}\n.SH COMMANDS",
            *(line for name in found for line in _command(name, group, found[name], shared)),
            *_section("OPTIONS WITHOUT A COMMAND", _options("traceflops", group)),
            *_section("COMMON OPTIONS", shared),
            *_section("EXIT STATUS", re.findall(r"(\d) ([^.;]+)", EPILOG)),
            *_section("FILES", _FILES),
            *_section("ENVIRONMENT", _ENVIRONMENT),
            "",
        ]
    )


def _options(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """Yield the options of a command with what its help says of each."""
    context = command.make_context(name, [], resilient_parsing=True)
    options = (one for one in command.get_params(context) if one.param_type_name == "option")
    yield from filter(None, (one.get_help_record(context) for one in options))


def _command(name: str, group: Any, rows: _Rows, shared: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the part about a command: its own options, the names of shared ones, examples."""
    command = group.commands[name]
    words = [str(one.metavar) for one in command.params if one.param_type_name == "argument"]
    names = [re.findall(r"--[a-z-]+", row[0])[0] for row in rows if row in shared]
    yield f".SS {name}\n.B traceflops {_roff(name)}\n[\\fIOPTIONS\\fR] {_roff(' '.join(words))}"
    yield f".PP\n{_roff(str(command.help))}"
    yield from _items(row for row in rows if row not in shared)
    yield f".PP\nCommon options: {_roff(', '.join(names))}."
    yield f".PP\nExamples:\n.PP\n.nf\n{_roff(command.epilog or '')}\n.fi"


def _section(title: str, rows: _Rows) -> list[str]:
    return [f".SH {title}", *_items(rows)]


def _items(rows: _Rows) -> Iterator[str]:
    for name, about in rows:
        bold = _NAME.sub(lambda found: f"\0B{found[0]}\0R", name)
        yield ".TP\n" + _roff(bold).replace("\0", "\\f") + f"\n{_roff(about)}"


def _roff(text: str) -> str:
    """Return text in which nothing is a command of roff."""
    safe = "".join(_SIGNS.get(sign, sign) for sign in text)
    return "\n".join(f"\\&{line}" if line[:1] == "." else line for line in safe.split("\n"))


def main() -> int:
    """Write the page or compare it; return 1 where it is not what the commands say."""
    new, check = page(), "--check" in sys.argv[1:]
    is_old = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != new
    if is_old and not check:
        PAGE.write_text(new, encoding="utf-8")
    if is_old:
        sys.stdout.write(f"{PAGE.name}: {'stale' if check else 'rewritten'}\n")
    return int(is_old and check)


if __name__ == "__main__":
    sys.exit(main())
