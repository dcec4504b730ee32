"""A store on loopback that answers what pyarrow asks of S3: HEAD, GET with a range, a list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


@dataclass
class Store:
    """The files of a folder as objects of a bucket; `requests` are the paths that were asked for.

    Those in `denied` are refused, those in `lost` after the first range.
    """

    folder: Path
    requests: list[str] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *words: Any) -> None:
        """Be silent."""

    def do_HEAD(self) -> None:
        key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").strip("/")
        self.store.requests.append(key)
        file = self.store.folder / key
        if key in self.store.denied:
            self.answer(403)
        elif file.is_file():
            self.send_file(file, key)
        else:
            self.answer(404 if key else 200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self.answer(200, listed(self.store.folder, query.get("prefix", [""])[0]))
        else:
            self.do_HEAD()

    def send_file(self, file: Path, key: str) -> None:
        content = file.read_bytes()
        asked = self.headers.get("Range", f"bytes=0-{len(content)}").removeprefix("bytes=")
        first, last = map(int, asked.split("-"))
        if key in self.store.lost and self.command == "GET" and first > 0:
            self.answer(403)
        else:
            self.answer(206, content[first : last + 1], first, len(content))

    def answer(self, code: int, body: bytes = b"", first: int = 0, size: int = 0) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def listed(folder: Path, prefix: str) -> bytes:
    """Return all objects whose key begins so, as ListObjectsV2 does."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.*")}
    found = [
        f"<Contents><Key>{escape(key)}</Key><Size>{files[key].stat().st_size}</Size>"
        "<LastModified>2025-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in sorted(files)
        if key.startswith(prefix) and files[key].is_file()
    ]
    count = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{count}{''.join(found)}</ListBucketResult>".encode()


@contextmanager
def serving(folder: Path) -> Iterator[Store]:
    """Give a store of the files in a folder."""
    store = Store(folder)
    handler = type("Handler", (_Handler,), {"store": store})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        store.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield store
        finally:
            server.shutdown()
