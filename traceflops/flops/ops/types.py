"""Types of tensors as the profiler writes them: element sizes and what multiplies them.

The names are those of the C++ types; the numbers are torch's enumeration of scalar types, which an
argument such as `out_dtype` is recorded as.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TF32_OR_FP32: Final = "tf32-or-fp32"
"""float operands: whether the product is TF32 or FP32 only the kernel's name tells."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type: bytes of an element, and the data type of a matrix product of such operands.

    `matrix` is None where no matrix unit has a rate for it. `rank` orders the types as torch
    promotes them: bool, integers, floating point, complex.
    """

    name: str
    bytes: int
    matrix: str | None
    number: int | None
    rank: int

    @property
    def complex(self) -> bool:
        """Return whether an element is a pair of numbers."""
        return self.rank == _COMPLEX


_BOOL, _INTEGER, _FLOATING, _COMPLEX = range(4)

PACKED_FP4: Final = "c10::Float4_e2m1fn_x2"
"""Two values in one element, along the dimension that a product sums over."""

# name, bytes of an element, matrix type, torch's number, rank
_ROWS: Final = (
    ("bool", 1, None, 11, _BOOL),
    ("unsigned char", 1, "int8", 0, _INTEGER),
    ("signed char", 1, "int8", 1, _INTEGER),
    ("short int", 2, None, 2, _INTEGER),
    ("int", 4, None, 3, _INTEGER),
    ("long int", 8, None, 4, _INTEGER),
    ("short unsigned int", 2, None, 27, _INTEGER),
    ("unsigned int", 4, None, 28, _INTEGER),
    ("long unsigned int", 8, None, 29, _INTEGER),
    ("c10::qint8", 1, "int8", 12, _INTEGER),
    ("c10::quint8", 1, "int8", 13, _INTEGER),
    ("c10::qint32", 4, None, 14, _INTEGER),
    ("c10::Float8_e5m2", 1, "fp8", 23, _FLOATING),
    ("c10::Float8_e4m3fn", 1, "fp8", 24, _FLOATING),
    ("c10::Float8_e5m2fnuz", 1, "fp8", 25, _FLOATING),
    ("c10::Float8_e4m3fnuz", 1, "fp8", 26, _FLOATING),
    ("c10::Float8_e8m0fnu", 1, None, 44, _FLOATING),
    (PACKED_FP4, 1, "fp4", 45, _FLOATING),
    ("c10::Half", 2, "fp16", 5, _FLOATING),
    ("c10::BFloat16", 2, "bf16", 15, _FLOATING),
    ("float", 4, TF32_OR_FP32, 6, _FLOATING),
    ("double", 8, "fp64", 7, _FLOATING),
    ("c10::complex<c10::Half>", 4, "fp16", 8, _COMPLEX),
    ("c10::complex<float>", 8, TF32_OR_FP32, 9, _COMPLEX),
    ("c10::complex<double>", 16, "fp64", 10, _COMPLEX),
)

# The same types under the names that other compilers give them.
_ALIASES: Final = {
    "short": "short int",
    "long": "long int",
    "long long": "long int",
    "unsigned short": "short unsigned int",
    "unsigned long": "long unsigned int",
}

_OF_NUMBER: Final = {row[3]: ElementType(*row) for row in _ROWS}
_OF_NAME: Final = {row[0]: ElementType(*row) for row in _ROWS}
_OF_NAME.update({alias: _OF_NAME[name] for alias, name in _ALIASES.items()})

FLOAT: Final = _OF_NAME["float"]
BOOL: Final = _OF_NAME["bool"]
INT32: Final = _OF_NAME["int"]
INT64: Final = _OF_NAME["long int"]


def element_type(name: str) -> ElementType | None:
    """Return the type that the profiler writes so; None for what is no tensor or not known."""
    return _OF_NAME.get(name)


def numbered_type(number: int) -> ElementType | None:
    """Return the type that has this number in torch's enumeration, None if none has."""
    return _OF_NUMBER.get(number)


def promoted(types: list[ElementType]) -> ElementType | None:
    """Return the type of a result of operands of these types, None where there is none.

    The highest rank decides, within it the larger type; two different types of two bytes each
    (fp16 and bf16) give float.
    """
    if not types:
        return None
    highest = max(one.rank for one in types)
    candidates = [one for one in types if one.rank == highest]
    largest = max(candidates, key=lambda one: one.bytes)
    rivals = {candidate.name for candidate in candidates if candidate.bytes == largest.bytes}
    if len(rivals) > 1 and highest == _FLOATING and largest.bytes == FLOAT.bytes // 2:
        return FLOAT
    return largest
