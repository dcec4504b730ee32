"""Names of functions as compilers mangle them (Itanium ABI): `_ZN2ns4gemmILi4ENS_4ReluEEEvPf`."""

from __future__ import annotations

import re
from typing import Final

# Alternatives with digits that are not the length of an identifier come first.
_PIECE: Final = re.compile(
    r"[ST][0-9A-Z]*_|DF\d+[_bx]|A\d+_|L[a-z](?P<minus>n?)(?P<value>\d+)E|(?P<length>\d{1,4})|.",
    re.ASCII | re.DOTALL,
)
OFFLOADED: Final = re.compile(r"^nvkernel_(_Z.+?)_F\d+L\d+(_\d+)?$", re.ASCII)
"""The name that NVIDIA's compiler gives to a loop of OpenMP: the function with number and line."""
_OF_LOOP: Final = re.compile(
    r"^(?:nvkernel_(_Z.+?)_F\d+(L\d+)(?:_\d+)?|(_Z.+?)_(\d+_gpu(?:__red)?))$", re.ASCII
)
"""The same for OpenMP and OpenACC: the function, and the line that tells its loops apart."""
CONDITIONS_END: Final = re.compile(r">::type[\s&*]+(?=[A-Za-z_])")
"""The end of `enable_if<...>` where brackets do not tell it.

Nsight Systems writes the condition `((8) > (0)) && ...` as `T2>(int)0&&...`.
"""
_BEGUN: Final = re.compile(r"_ZN?[rVK]*")
_ENUM_VALUE: Final = re.compile(r"E(\d+)E", re.ASCII)
_NAMELESS: Final = ("_GLOBAL__N", "_INTERNAL_")
_NO_NAMES: Final = (*_NAMELESS, "_cl")
"""Beginnings of generated names: of anonymous namespaces and of the operator() of lambdas."""
_LONGEST: Final = 4096


def mangled_parts(text: str) -> tuple[list[str], list[str]]:
    """Return the nested name up to its template arguments, and identifiers after it ("Kind=3")."""
    path, position = path_of(text)
    arguments: list[str] = []
    while (piece := _PIECE.match(text, position)) is not None:
        position = piece.end()
        if piece["length"] is None:
            continue
        end = position + int(piece["length"])
        value = _ENUM_VALUE.match(text, end)
        identifier = text[position:end]
        arguments.append(f"{identifier}={value[1]}" if value else identifier)
        position = value.end() if value else end
    return path, arguments


def readable(name: str) -> str:
    """Return a mangled name in readable form, e.g. `ns::gemm<4, Relu>`; other names unchanged.

    Only numbers and classes of the template arguments are shown, no built-in types of C++. Loops of
    OpenMP and OpenACC have their line: `solve_L42`, `solve_42_gpu`.
    """
    loop = _OF_LOOP.match(name) if len(name) <= _LONGEST else None
    name, line = (loop[1] or loop[3], loop[2] or loop[4]) if loop else (name, "")
    if not name.startswith("_Z") or len(name) > _LONGEST:
        return name
    path, position = path_of(name)
    if not path or not all(path):
        return name
    named = (part for part in path[:-1] if not part.startswith(_NAMELESS))
    plain = "::".join((*named, path[-1]))
    plain = f"{plain}_{line}" if line else plain
    if name[position : position + 1] != "I":  # no template arguments
        return plain
    arguments: list[str] = []
    while (piece := _PIECE.match(name, position)) is not None:
        position = piece.end()
        if piece["value"] is not None:
            arguments.append(f"{'-' if piece['minus'] else ''}{piece['value']}")
        elif piece["length"] is not None:
            arguments.append(name[position : position + int(piece["length"])])
            position += int(piece["length"])
    # Leave out namespaces of arguments that are also those of the function.
    shown = [text for text in arguments if text not in path and not text.startswith(_NO_NAMES)]
    return f"{plain}<{', '.join(shown)}>" if shown else plain


def path_of(text: str) -> tuple[list[str], int]:
    """Return the names of namespaces and function of a mangled name, and the position after them.

    `_ZN2ns4gemmIfE` gives ["ns", "gemm"]: each name follows its length.
    """
    path: list[str] = []
    begun = _BEGUN.match(text)
    position = begun.end() if begun else len(text)
    while True:
        # An L before the length marks a function of internal linkage.
        start = position + 1 if text.startswith("L", position) else position
        piece = _PIECE.match(text, start)
        if piece is None or piece["length"] is None:
            return path, position
        position = piece.end() + int(piece["length"])
        path.append(text[piece.end() : position])
