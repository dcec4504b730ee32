"""What is told by its shape to lead to a person, a machine or a place, whatever words it is of."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from traceflops.sharing.librarywords import is_library_word, words_of

_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_PATH: Final = re.compile(
    r"(?<![\w.)>*&])(?:[A-Za-z]:|~|\.{1,2})?(?:[/\\]{1,2}[\w.@+-]+){2,}[/\\]?|"
    r"(?<![\w.])(?:[A-Za-z]:|~)[/\\][\w.@+-]+"
)
_EMAIL: Final = re.compile(r"[^\s@<>()\[\]{},;:|\"']+@[\w.-]+")
_ADDRESS: Final = re.compile(
    r"(?<![\w.:])(?P<v4>\d{1,3}(?:\.\d{1,3}){3})(?:/\d{1,2})?(?P<port>:\d{1,5})?(?![\w.:])|"
    r"(?<![\w.:])\[?(?P<v6>[0-9A-Fa-f]{0,4}:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)(?:%\w+)?\]?(?::\d{1,5})?"
    r"(?![\w.:])"
)
_JOINED: Final = re.compile(r"(?<![\w.-])\w+(?:[.-]\w+)+")
_MODULES: Final = re.compile(r"(?:torch|aten|triton|cuda|nccl|c10|cublas|cutlass|cute)[.]")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)+(?:\.?(?:a|b|rc|post|dev)\d+)*")


def replaced_addresses(text: str, replace: Callable[[str], str]) -> str:
    """Return a text in which paths, addresses and names of machines are replaced."""
    if "://" in text:
        text = _URL.sub(lambda found: replace(found.group()), text)
    if "/" in text or "\\" in text:
        text = _PATH.sub(lambda found: replace(found.group()), text)
    if "@" in text:
        text = _EMAIL.sub(lambda found: replace(found.group()), text)
    if "." in text or ":" in text:
        text = _ADDRESS.sub(lambda found: _address(found, replace), text)
    if "." in text or "-" in text:
        text = _JOINED.sub(lambda found: _machine(found.group(), replace), text)
    return text


def _address(found: re.Match[str], replace: Callable[[str], str]) -> str:
    """Return a placeholder for what is the address of a machine; `a::b` of C++ is none."""
    known = found["v4"] or found["v6"]
    if any(char.isdigit() for char in known):
        with suppress(ValueError):
            ip_address(known)
            return replace(found.group())
    return found.group()


def _machine(text: str, replace: Callable[[str], str]) -> str:
    """Return a placeholder for words joined as in names of machines, unless libraries join them."""
    if _VERSION.fullmatch(text) or _MODULES.match(text):
        return text
    if "-" not in text and text.count(".") < 2:
        return text
    is_domain = text.count(".") > 1 or any(char.isdigit() for char in text)
    words = [word for part in re.split(r"[.-]", text) for word in words_of(part)]
    known = text.isascii() and all(map(is_library_word, words))
    return text if known and not is_domain else replace(text)
