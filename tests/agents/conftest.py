"""Sessions of the SDK's own client, over a process or within this one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SAMPLES


class Session:
    """A client that is connected, and what it was told."""

    def __init__(self, portal: Any, client: Any) -> None:
        self._portal, self.client = portal, client

    def text(self, tool: str, **given: Any) -> str:
        """Return the one text of an answer, which is no error and not too long."""
        text, is_error = self._called(tool, given)
        assert not is_error, text
        assert len(text.encode()) <= 8192
        return text

    def ask(self, tool: str, **given: Any) -> Any:
        return json.loads(self.text(tool, **given))

    def refused(self, tool: str, **given: Any) -> str:
        """Return what an error says: what is wrong, and a hint."""
        text, is_error = self._called(tool, given)
        assert is_error, text
        before, message = text.split(f"Error executing tool {tool}: ")
        assert before == "" and "\nhint: " in message and "Traceback" not in message
        return message

    def _called(self, tool: str, given: dict[str, Any]) -> tuple[str, bool]:
        result = self._portal.call(self.client.call_tool, tool, given)
        (content,) = result.content
        assert result.structured_content is None
        return content.text, bool(result.is_error)

    def tools(self) -> list[Any]:
        return list(self._portal.call(self.client.list_tools).tools)


@contextmanager
def connected(to: Any) -> Iterator[Session]:
    """Connect to a server, or over a transport."""
    mcp = pytest.importorskip("mcp")
    from anyio.from_thread import start_blocking_portal

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(mcp.Client(to)) as client,
    ):
        yield Session(portal, client)


def over_stdio(*folders: Path) -> Any:
    mcp = pytest.importorskip("mcp")
    words = ["-m", "traceflops", "mcp", *map(str, folders)]
    return mcp.stdio_client(mcp.StdioServerParameters(command=sys.executable, args=words, cwd=ROOT))


@pytest.fixture(scope="session")
def served() -> Iterator[Session]:
    """Return a session over standard input and output of a server of the samples."""
    with connected(over_stdio(SAMPLES)) as session:
        yield session


@pytest.fixture(scope="session")
def ranks(served: Session) -> str:
    return str(served.ask("open_trace", path="gpt_ddp_4rank")["trace"])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Return what gives a session within this process over folders, by default `tmp_path`."""
    with ExitStack() as stack:

        def served_here(*folders: Path, **privacy: bool) -> Session:
            pytest.importorskip("mcp")
            from traceflops.agents.folders import Folders
            from traceflops.agents.server import make_server

            names = [str(folder) for folder in folders or (tmp_path,)]
            return stack.enter_context(connected(make_server(Folders(names), **privacy)))

        yield served_here
