"""Takes a kernel name apart: head identifier, namespace, argument words.

Names are written by strangers and can be a megabyte long, so only the first `LONGEST` characters
are read, and every expression here runs in linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from traceflops.characters import kernel_name

LONGEST = 4096
LONGEST_HEAD = 1000
LONGEST_ARGUMENTS = 2000

_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "{anonymous}", "`anonymous namespace'")
_RETURN_TYPE = re.compile(
    r"(?:(?:void|static|inline|extern|typename|const|unsigned|bool|int|float|double|auto|__global__)\s+)+"
)
_CONDITIONAL_TYPES = ("enable_if", "enable_if_t", "conditional", "conditional_t")
_AFTER_RETURN_TYPE = re.compile(r"(?:::type)?[\s&*]+(?=[A-Za-z_])")
_OPENING = re.compile(r"[<(]")
_BRACKET = re.compile(r"->|[<>()]")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_ARGUMENT = re.compile(r"([A-Za-z_]\w*)(?:\)(\d+))?", re.ASCII)
# Whatever of the Itanium grammar holds digits that are not the length of an identifier comes first.
_MANGLED = re.compile(
    r"[ST][0-9A-Z]*_|DF\d+[_bx]|A\d+_|L[a-z]n?\d+E|(?P<length>\d{1,4})|.", re.ASCII | re.DOTALL
)
_ENUM_VALUE = re.compile(r"E(\d+)E", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parts:
    """A kernel name taken apart."""

    name: str
    head: str
    namespace: str
    arguments: str
    """the identifiers of the arguments in both spellings, parted by spaces"""

    def lower(self) -> Parts:
        """The same in lower case."""
        return Parts(
            *(text.lower() for text in (self.name, self.head, self.namespace, self.arguments))
        )


def parse(name: str) -> Parts:
    """The parts of a kernel name, mangled or not."""
    text = clean(name)
    path, arguments = (_mangled if text.startswith("_Z") else _demangled)(text)
    path = [part for part in path if part and not part.startswith("_GLOBAL__N")]
    head = path[-1].strip()[:LONGEST_HEAD] if path else ""
    return Parts(
        text, head, "::".join(path[:-1])[:LONGEST_HEAD], spellings(arguments)[:LONGEST_ARGUMENTS]
    )


def clean(name: str) -> str:
    """The name without quotes, clone suffixes, return type and anonymous namespaces."""
    text = kernel_name(name[:LONGEST].strip().strip("\"'").strip())
    for spelling in _ANONYMOUS:
        text = text.replace(spelling + "::", "")
    returned = _RETURN_TYPE.match(text)
    return text[returned.end() :] if returned else text


@lru_cache(maxsize=50_000)
def words(identifier: str) -> str:
    """The identifier in snake case: `cunn_SoftMaxForward` is `cunn_soft_max_forward`."""
    return _CAMEL.sub("_", identifier).lower().lstrip("_")


def both_spellings(identifier: str) -> str:
    """The identifier in snake case and, where that differs, as written; one per line."""
    snake = words(identifier)
    return snake if snake == identifier else f"{snake}\n{identifier}"


def spellings(identifiers: list[str]) -> str:
    """Each identifier once, in snake case and, where that differs, as written; parted by spaces."""
    return " ".join(dict.fromkeys(chain.from_iterable((words(i), i) for i in identifiers)))


def _demangled(text: str) -> tuple[list[str], list[str]]:
    """The path of a function, after a conditional return type, and the words of its arguments."""
    path = _OPENING.split(text, 1)[0]
    if path.rpartition("::")[2] in _CONDITIONAL_TYPES:
        after = _AFTER_RETURN_TYPE.match(text, _closing(text, len(path)))
        text = text[after.end() :] if after else text
        path = _OPENING.split(text, 1)[0]
    arguments = [
        f"{argument[1]}={argument[2]}" if argument[2] else argument[1]
        for argument in _ARGUMENT.finditer(text[len(path) :])
    ]
    return path.split("::"), arguments


def _closing(text: str, start: int) -> int:
    """The end of the template arguments that begin at `start`; `(8 > 0)` closes none."""
    angles = parentheses = 0
    for bracket in _BRACKET.finditer(text, start):
        parentheses += {"(": 1, ")": -1}.get(bracket.group(), 0)
        angles += {"<": 1, ">": -1}.get(bracket.group(), 0) if parentheses == 0 else 0
        if angles == 0:
            return bracket.end()
    return len(text)


def _mangled(text: str) -> tuple[list[str], list[str]]:
    """The nested name up to its first template argument, and every identifier after it."""
    path: list[str] = []
    position = 3 if text.startswith("_ZN") else 2
    while True:
        start = position + text.startswith("L", position)
        length = _MANGLED.match(text, start)
        if length is None or length["length"] is None:
            break
        position = length.end() + int(length["length"])
        path.append(text[length.end() : position])
    arguments: list[str] = []
    while (piece := _MANGLED.match(text, position)) is not None:
        position = piece.end()
        if piece["length"] is None:
            continue
        end = position + int(piece["length"])
        value = _ENUM_VALUE.match(text, end)
        identifier = text[position:end]
        arguments.append(f"{identifier}={value[1]}" if value else identifier)
        position = value.end() - 1 if value else end
    return path, arguments
