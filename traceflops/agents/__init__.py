"""Traces for agents, by the Model Context Protocol (extra `mcp`).

Takes the folders below which files may be read; gives a server whose tools say what the JSON report
says, in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.agents.folders import Folders
    from traceflops.agents.server import make_server
else:
    __getattr__ = lazy(__name__, __file__)
