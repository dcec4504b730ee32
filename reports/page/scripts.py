"""The scripts of the page, Bokeh's figures, and the policy that allows these scripts only.

No text of a trace is in a figure: labels are numbers and our own words.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from traceflops.reports.page.jinja import template
from traceflops.reports.page.section import Section

_ENDS_A_SCRIPT: Final = re.compile(r"<(?:/?script|!--)", re.IGNORECASE)
_BOKEH: Final = "bokeh-packed"
_MOST_AT_BEST, _PIECE = 4 << 20, 1 << 18
"""Bytes up to which the best compression is used, and that are compressed at a time."""
_GZIP_FRAME: Final = 32  # bytes of header and trailer, rounded up
_SETTINGS: Final = {"HOME": os.devnull, "USERPROFILE": os.devnull, "HOLOVIEWSRC": ""}
_LOG: Final = logging.getLogger(__name__)


class Scripts(Struct, frozen=True):
    """The scripts of a page (`theme` runs first), their data by element id, and the policy."""

    theme: str
    scripts: tuple[str, ...]
    data: Mapping[str, str]
    policy: str


class Embedded(Struct, frozen=True):
    """Figures as markup: a script for all, and the element of each figure by its name."""

    script: str
    divs: Mapping[str, str]


def scripts_of(parts: Sequence[Section], drawn: Embedded | None) -> Scripts:
    """Return the scripts of sections. Raises ValueError if one contains the end of its element."""
    theme = template("theme.js")
    names = dict.fromkeys(name for part in parts for name in part.scripts)
    scripts = [template(name) for name in ("report.js", *names)]
    data = {id_: packed(text) for part in parts for id_, text in part.data.items()}
    libraries = []
    if drawn is not None:
        from bokeh.resources import Resources

        scripts.append(f'addEventListener("bokeh-ready", () => {{\n{drawn.script}\n}});\n')
        scripts.append(template("draw.js"))
        bokeh = str(Resources(mode="inline", components=["bokeh"], minified=True).js_raw[0])
        data[_BOKEH] = packed(bokeh.encode())
        libraries.append(bokeh)
    if any(_ENDS_A_SCRIPT.search(text) for text in scripts):
        raise ValueError("a script would end its own element")
    digests = (hashlib.sha256(text.encode()).digest() for text in (theme, *scripts, *libraries))
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


def embed(figures: Mapping[str, Callable[[], Any]]) -> Embedded:
    """Return the figures that these functions make, in one document, which keeps them small."""
    with _to_log():
        with without_settings("bokeh.embed"):
            from bokeh.embed import components
        models = {name: make_figure() for name, make_figure in figures.items()}
        script, divs = components(models, wrap_script=False)
    return Embedded(script, divs)


@contextmanager
def without_settings(module: str) -> Iterator[None]:
    """Import a module inside without reading the home folder or running code of HOLOVIEWSRC."""
    if module in sys.modules:
        yield
        return
    values_before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name, value in values_before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


class _ToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _LOG.debug("%s: %s", record.name, record.getMessage())


@contextmanager
def _to_log() -> Iterator[None]:
    """Redirect warnings and logs of the libraries to our own log, at debug level."""
    logger = logging.getLogger("bokeh")
    before = logger.handlers, logger.propagate
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger.handlers, logger.propagate = [_ToLog()], False
        try:
            yield
        finally:
            logger.handlers, logger.propagate = before
    for warning in caught:
        _LOG.debug("%s: %s", warning.category.__name__, warning.message)
