"""The page of a small sample as it was last looked at, so that a change nobody meant is seen.

    python -m tests.reports.golden

writes it anew; what git shows as changed is then to be read. Scripts and style sheets have files
and tests of their own, so only their places are kept; what differs from run to run or from version
to version is masked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import traceflops as tf
from tests.conftest import SAMPLES
from traceflops import __version__
from traceflops.reports.page.html import render_html

GOLDEN: Final = Path(__file__).parent / "gpt_1rank.html"
COMMAND: Final = "traceflops report gpt_1rank.json.gz"
_MASKS: Final = (
    (re.compile(r"(<(script|style)\b[^>]*>).*?(</\2>)", re.DOTALL), r"\1…\3"),
    (re.compile(r"sha256-[A-Za-z0-9+/=]+"), "sha256-…"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r'(data-root-id=")[^"]*'), r"\1ID"),
    (re.compile(r"base64,[A-Za-z0-9+/=]+"), "base64,…"),
    (re.compile(re.escape(__version__)), "VERSION"),
    (re.compile(r"(Download (?:data \(JSON\)|recording)</button>) [\d.]+ kB"), r"\1 SIZE"),
)
"""What is masked, and by what: also the sizes of what it holds, which are no part of it."""


def masked(page: str) -> str:
    """Return a page with an element per line and without what is different each time."""
    for pattern, instead in _MASKS:
        page = pattern.sub(instead, page)
    lines = (line.strip() for line in page.replace("><", ">\n<").splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def today() -> str:
    """Return the page of the sample as it is now."""
    analysis = tf.analyze(tf.read(SAMPLES / "gpt_1rank.json.gz"))
    return masked(render_html(analysis, COMMAND))
