"""Traces for agents, by the Model Context Protocol (extra `mcp`).

folders named on the command line
|  Folders: real paths below them, or a refusal that says nothing of what is outside
v
Tools     open_trace(path, words) -> id; every other tool takes an id
|         Opened: the Analysis and its JSON report; a few are kept, by path and file times
v
answers   objects, lists as `Some` of so many items
|  fitted(): lists and texts cut until the JSON has at most 8 KB; `more` counts the rest
v
server    over standard input and output; errors in two lines
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.agents.folders import Folders
    from traceflops.agents.server import make_server
else:
    __getattr__ = lazy(__name__, __file__)
