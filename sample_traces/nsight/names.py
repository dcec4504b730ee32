"""The forms in which Nsight writes the name of one kernel."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from sample_traces.rocprof import names as symbols

_LAMBDA: Final = re.compile(r"\{lambda\(([^{}]*)\)#(\d+)\}")
_NUMBER: Final = re.compile(r"(?<=[<\s])(-?\d+)(ul|u)?(?=\s?[,>])")
_TRUTH: Final = re.compile(r"(?<=[<\s])(true|false)(?=\s?[,>])")
_CONST: Final = re.compile(r"((?:unsigned )?(?:[A-Za-z_]\w*::)*[A-Za-z_]\w*) const\b")
_MARK: Final = re.compile(r"(?<=[\w>])(?=[*&])")
_CAST: Final = re.compile(r"\((?:unsigned )?(?:int|long|bool)\)(?=-?\d)")
_NAMESPACES: Final = re.compile(r"(?<![\w:])(?:[A-Za-z_]\w*::|<unnamed>::)+")
_ARGUMENT: Final = re.compile(r"(const )?(.*?)( [*&])?")
_TYPES: Final = {None: "int", "u": "unsigned int", "ul": "unsigned long"}


@cache
def demangled(name: str) -> str:
    """Return a name as Nsight Systems writes it: casts before numbers, lambdas in brackets."""
    text = name.replace("(anonymous namespace)", "<unnamed>").replace("operator()", "operator ()")
    text = _LAMBDA.sub(r"[lambda(\1) (instance \2)]", text)
    text = _NUMBER.sub(lambda found: f"({_TYPES[found[2]]}){found[1]}", text)
    text = _TRUTH.sub(lambda found: f"(bool){int(found[1] == 'true')}", text)
    text = _MARK.sub(" ", _CONST.sub(r"const \1", text))
    while " >" in text:
        text = text.replace(" >", ">")
    return _with_parameters(text)


def _with_parameters(text: str) -> str:
    """Return a name in which arguments of a template's own types are called T1, T2 and so on."""
    ends = [
        at for at in range(len(text)) if text.startswith(">(", at) and not _depth(text[: at + 1])
    ]
    if not ends or not text.endswith(")"):
        return text
    end = ends[-1]
    begin = next(at for at in range(end, -1, -1) if not _depth(text[at : end + 1]))
    types = ["", *_parts(text[begin + 1 : end])]
    arguments = [_argument(one, types) for one in _parts(text[end + 2 : -1])]
    return f"{text[: end + 2]}{', '.join(arguments)})"


def _argument(text: str, types: list[str]) -> str:
    found = _ARGUMENT.fullmatch(text)
    assert found is not None
    const, core, mark = (part or "" for part in found.groups())
    return f"{const}T{types.index(core)}{mark}" if core in types else text


def _parts(text: str) -> list[str]:
    """Return the parts between commas that stand in no brackets."""
    parts = [""]
    for piece in text.split(", "):
        inside = bool(_depth(parts[-1]))
        parts[-1:] = [f"{parts[-1]}, {piece}"] if inside else [parts[-1], piece]
    return parts[1:]


def _depth(text: str) -> int:
    """Return how many brackets of a text are open."""
    return sum((letter in "<([") - (letter in ">)]") for letter in text)


@cache
def bare(name: str) -> str:
    """Return a name as Nsight Compute writes it: without namespaces and casts."""
    return _NAMESPACES.sub("", _CAST.sub("", demangled(name)))


def short(name: str) -> str:
    """Return the name of the function alone."""
    return symbols.truncated(name)


def mangled(name: str) -> str:
    """Return a symbol for the kernel: one per name, and of the form that compilers give."""
    return symbols.mangled(name).removesuffix(".kd")
