"""The scripts of the page, and the policy that lets these run and nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from traceflops.reports.page.jinja import template
from traceflops.reports.page.section import Section

_ENDS_A_SCRIPT: Final = re.compile(r"<(?:/?script|!--)", re.IGNORECASE)
_MOST_AT_BEST, _PIECE = 4 << 20, 1 << 18
"""Bytes up to which the best compression is used, and that are compressed at a time."""
_GZIP_FRAME: Final = 32  # bytes of header and trailer, rounded up


class Scripts(Struct, frozen=True):
    """The scripts of a page (`theme` runs first), their data by element id, and the policy."""

    theme: str
    scripts: tuple[str, ...]
    data: Mapping[str, str]
    policy: str


def scripts_of(parts: Sequence[Section]) -> Scripts:
    """Return the scripts of sections. Raises ValueError if one contains the end of its element."""
    theme = template("theme.js")
    names = dict.fromkeys(name for part in parts for name in part.scripts)
    scripts = [template(name) for name in ("report.js", *names)]
    data = {id_: packed(text) for part in parts for id_, text in part.data.items()}
    if any(_ENDS_A_SCRIPT.search(text) for text in scripts):
        raise ValueError("a script would end its own element")
    digests = (hashlib.sha256(text.encode()).digest() for text in (theme, *scripts))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Scripts(theme, tuple(scripts), data, policy)


@lru_cache(maxsize=8)
def packed(content: bytes) -> str:
    """Return bytes as Base64 of gzip; equal bytes give an equal text."""
    return base64.b64encode(gzip.compress(content, _level(content), mtime=0)).decode()


def packed_bytes(content: bytes, most: int) -> int:
    """Return the length of `packed(content)`; very long content is given up above `most`."""
    deflate, size = zlib.compressobj(_level(content)), 0
    for start in range(0, len(content), _PIECE):
        size += len(deflate.compress(content[start : start + _PIECE]))
        if size > most and len(content) > _MOST_AT_BEST:
            return size
    return (size + len(deflate.flush()) + _GZIP_FRAME) * 4 // 3  # Base64


def _level(content: bytes) -> int:
    """Return the level of compression: 9 takes minutes on a very long text that repeats itself."""
    return 9 if len(content) <= _MOST_AT_BEST else 6
