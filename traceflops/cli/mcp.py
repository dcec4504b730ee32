"""`traceflops mcp`: answers agents about traces, over standard input and output."""

from __future__ import annotations

import sys

from traceflops.cli.common import ended_at_once, say
from traceflops.cli.options import Privacy, argument
from traceflops.errors import UsageError

EXAMPLES = ("traceflops mcp traces/", "traceflops mcp before/ after/ --redact")


def mcp(
    folders: list[str] | None = argument(
        "FOLDER...", "Folders with traces. No file outside them is read.", default=None
    ),
    *,
    privacy: Privacy,
) -> None:
    """Answer agents over standard input and output (MCP). Needs traceflops[mcp]."""
    privacy.check()
    if not folders:
        raise UsageError("no folder is given", "name the folders with traces, such as traces/")
    from traceflops.agents.folders import Folders
    from traceflops.agents.server import make_server

    server = make_server(
        Folders(folders), redact=privacy.redact, include_environment=privacy.include_environment
    )
    if sys.stdin is None:
        raise UsageError("standard input is closed", "let an MCP client start this command")
    if sys.stdin.isatty():
        say("Waiting for an MCP client, which should start this command.", to_stderr=True)
    with ended_at_once():  # else the SDK would first wait for a line of standard input
        server.run("stdio")
