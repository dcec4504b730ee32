"""What is told by its shape to lead to a person, a machine or a place, whatever words it is of."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from traceflops.privacy.library_words import is_library_word, words_of

_URL: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")
_PATH: Final = re.compile(
    r"(?<![\w.)>*&])(?:[A-Za-z]:|~|\.{1,2})?(?:[/\\]{1,2}[\w.@+-]+){2,}[/\\]?|"
    r"(?<![\w.])(?:[A-Za-z]:|~)[/\\][\w.@+-]+"
)
_EMAIL: Final = re.compile(r"[^\s@<>()\[\]{},;:|\"']+@[\w.-]+")
_V4: Final = re.compile(
    r"(?<!\d)(?P<quad>\d{1,3}(?:\.\d{1,3}){3}(?:\.\d+)*)(?:/\d{1,2}(?!\d))?(?::\d{1,5}(?!\d))?|"
    r"(?<!\d)(?<!\d_)(?P<joined>\d{1,3}(?:_\d{1,3}){3})(?!_?\d)"
)
"""Four numbers, whatever stands beside them: a port, a name, the end of a sentence."""
_PRIVATE: Final = re.compile(r"0*(?:10_|127_|192_0*168_|172_0*(?:1[6-9]|2\d|3[01])_|169_0*254_)")
"""How addresses begin that are given out inside of networks; joined by `_`, others are sizes."""
_HARDWARE: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4,18}[0-9A-Fa-f]{2}"
    r"(?![0-9A-Za-z])|(?<![0-9A-Za-z.])[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2}(?![0-9A-Za-z])"
)
_V6: Final = re.compile(
    r"(?<![0-9A-Za-z])(?P<open>\[?)(?P<run>[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?<!\.))(?![0-9A-Za-z])"
    r"(?:%[\w.-]+)?(?:\](?::\d{1,5}(?!\d))?)?"
)
_SHORTEST_V6, _MOST_COLONS = 5, 7
_NUMBERED: Final = re.compile(
    r"(?<![A-Za-z])(?:node|host|server|worker|machine|gpu|compute|login|rack|blade|box|vm|nid|dgx|"
    r"hgx|slurm|pod)[_-]?\d+(?![A-Za-z])",
    re.IGNORECASE,
)
"""What machines are called where they have a number and no name."""
_MACHINES: Final = frozenset(
    {"node", "nodes", "server", "machine", "cluster", "gpu", "login", "rack"}
)
_BYTE: Final = 255
_DOMAINS: Final = frozenset(
    {
        *("internal", "local", "localdomain", "localnet", "lan", "corp", "intra", "intranet"),
        *("private", "home", "arpa", "domain", "cluster", "com", "org", "net", "edu", "gov", "mil"),
    }
)
_JOINED: Final = re.compile(r"(?<![\w.-])\w+(?:[.-]\w+)+")
_MODULES: Final = re.compile(r"(?:torch|aten|triton|cuda|nccl|c10|cublas|cutlass|cute)[.]")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)+(?:\.?(?:a|b|rc|post|dev)\d+)*")


def replaced_addresses(text: str, replace: Callable[[str], str]) -> str:
    """Return a text in which paths, addresses and names of machines are replaced."""
    if "://" in text:
        text = _URL.sub(lambda match: replace(match.group()), text)
    if "/" in text or "\\" in text:
        text = _PATH.sub(lambda match: replace(match.group()), text)
    if "@" in text:
        text = _EMAIL.sub(lambda match: replace(match.group()), text)
    if ":" in text or "-" in text or "." in text:
        text = _HARDWARE.sub(lambda match: replace(match.group()), text)
    if ":" in text:
        text = _V6.sub(lambda match: _v6(match, replace), text)
    if "." in text or "_" in text:
        text = _V4.sub(lambda match: _v4(match, replace), text)
    if "." in text or "-" in text:
        text = _JOINED.sub(lambda match: _machine(match.group(), replace), text)
    return _NUMBERED.sub(lambda match: replace(match.group()), text)


def _v4(match: re.Match[str], replace: Callable[[str], str]) -> str:
    """Return a placeholder for the address; sizes in names of kernels may be joined by `_`."""
    joined = match["joined"]
    if joined is not None:
        parts = [int(part) for part in joined.split("_")]
        if max(parts) > _BYTE or not _PRIVATE.match(joined):
            return match.group()
    return replace(match.group())


def _v6(match: re.Match[str], replace: Callable[[str], str]) -> str:
    """Return a placeholder for an address of version 6; `a::b` of C++ and `12:30:45` are none.

    What is as short as `f16::d` is rather of C++, unless it stands in brackets.
    """
    run = match["run"].lstrip(":")
    is_short = not match["open"] and sum(map(str.isalnum, run)) < _SHORTEST_V6
    parted = "::" in match["run"] or run.count(":") >= _MOST_COLONS
    of_cpp = run.startswith(("c10::", "c10d::")) or not any(map(str.isdigit, run))
    return match.group() if is_short or of_cpp or not parted else replace(match.group())


def _machine(text: str, replace: Callable[[str], str]) -> str:
    """Return a placeholder for words joined as in names of machines, unless libraries join them."""
    in_domain = "." in text and text.rpartition(".")[2].lower() in _DOMAINS
    if in_domain and not _MODULES.match(text):
        return replace(text)
    if _VERSION.fullmatch(text) or _MODULES.match(text):
        return text
    if "-" not in text and text.count(".") < 2:
        return text
    is_domain = text.count(".") > 1 or any(char.isdigit() for char in text)
    words = [word for part in re.split(r"[.-]", text) for word in words_of(part)]
    is_domain |= "-" in text and not _MACHINES.isdisjoint(map(str.lower, words))
    known = text.isascii() and all(map(is_library_word, words))
    return text if known and not is_domain else replace(text)
