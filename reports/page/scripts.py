"""The scripts of the page, and the policy that lets them run and nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from traceflops.reports.page import figures
from traceflops.reports.page.jinja import template
from traceflops.reports.page.section import Filled

_ENDS_A_SCRIPT = re.compile(r"<(?:/?script|!--)", re.IGNORECASE)
_BOKEH = "bokeh-packed"
_MOST_AT_BEST, _PIECE = 4 << 20, 1 << 18
_AROUND = 32
"""Bytes of the frame of what is compressed, and some to spare."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """What runs in a page, in order, and the data it reads, packed, by the id of its element.

    `theme` runs before anything is drawn.
    """

    theme: str
    scripts: tuple[str, ...]
    data: Mapping[str, str]
    policy: str


def scripts_of(parts: Sequence[Filled], drawn: figures.Embedded | None) -> Scripts:
    """Return what the sections of a page need to run."""
    theme = template("theme.js")
    scripts = tuple(_scripts(parts, drawn))
    data = {id_: packed(text) for part in parts for id_, text in part.content.data.items()}
    allowed = [theme, *scripts]
    if drawn is not None:
        bokeh = figures.bokeh_js()
        data[_BOKEH] = packed(bokeh.encode())
        allowed.append(bokeh)
    return Scripts(theme, scripts, data, _policy(allowed))


@lru_cache(maxsize=8)
def packed(content: bytes) -> str:
    """Return bytes compressed, as text; the same for the same bytes."""
    return base64.b64encode(gzip.compress(content, _level(content), mtime=0)).decode()


def packed_bytes(content: bytes, most: int) -> int:
    """Return how long bytes are as text once compressed; of very many, at least so long.

    Of those no more is looked at than fills `most`.
    """
    deflate, found = zlib.compressobj(_level(content)), 0
    for at in range(0, len(content), _PIECE):
        found += len(deflate.compress(content[at : at + _PIECE]))
        if found > most and len(content) > _MOST_AT_BEST:
            return found
    return (found + len(deflate.flush()) + _AROUND) * 4 // 3


def _level(content: bytes) -> int:
    """Return how hard to compress: what is very long takes minutes where texts in it repeat."""
    return 9 if len(content) <= _MOST_AT_BEST else 6


def _scripts(parts: Sequence[Filled], drawn: figures.Embedded | None) -> Iterator[str]:
    """Give the scripts after the first; none of them may hold what would end its element."""
    names = dict.fromkeys(name for part in parts for name in part.content.scripts)
    scripts = [template(name) for name in ("report.js", *names)]
    if drawn is not None:
        scripts.append(f'addEventListener("bokeh-ready", () => {{\n{drawn.script}\n}});\n')
        scripts.append(template("draw.js"))
    for text in scripts:
        if _ENDS_A_SCRIPT.search(text):
            raise ValueError("a script would end its own element")
        yield text


def _policy(scripts: Iterable[str]) -> str:
    """Return a policy that lets these scripts run, inline styles apply, and nothing else."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    rules: Mapping[str, str] = {
        "default-src": "'none'",
        "script-src": hashes,
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
