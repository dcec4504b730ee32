"""The recorded arguments of an op: shapes, types, strides and values, parsed from JSON texts.

The texts are untrusted: decoded against a fixed schema, never evaluated; what does not fit is
unknown, not an error. Types have their C++ names, or torch's number of a scalar type (`out_dtype`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct

TF32_OR_FP32: Final = "tf32-or-fp32"
"""float operands: only the kernel's name tells whether the product is TF32 or FP32."""
INT64_MAX: Final = 2**63 - 1
MOST_DIMENSIONS: Final = 64
LONGEST_VALUE: Final = 4096
MOST_VALUES: Final = 256
"""Limits: dimensions of a tensor, characters and elements of a recorded value."""
Shape = tuple[int, ...]
Value = None | bool | int | float | tuple["Value", ...]


class ElementType(Struct, frozen=True):
    """One type: bytes of an element, and the data type of a matrix product of such operands.

    `matrix` is None if no matrix unit has a rate for the type. `number` is torch's. `rank` orders
    types as torch promotes them: bool, integers, floating point, complex.
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
    """Return the element type of a profiler's type name; None if unknown or no tensor."""
    return _OF_NAME.get(name)


def promoted(types: list[ElementType]) -> ElementType | None:
    """Return the type of the result for operands of these types, None without any.

    The highest rank decides, and within it the larger type. Two different types of two bytes (fp16
    and bf16) give float.
    """
    if not types:
        return None
    highest = max(kind.rank for kind in types)
    candidates = [kind for kind in types if kind.rank == highest]
    largest = max(candidates, key=lambda kind: kind.bytes)
    rivals = {candidate.name for candidate in candidates if candidate.bytes == largest.bytes}
    if len(rivals) > 1 and highest == _FLOATING and largest.bytes == FLOAT.bytes // 2:
        return FLOAT
    return largest


class Shapes(tuple[Shape, ...]):
    """The shapes of the tensors of a list."""

    __slots__ = ()


class Unreadable:
    """Stands for a value that was not recorded or cannot be read."""


UNREADABLE: Final = Unreadable()
Read = Value | Unreadable
_Size = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
_Stride = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]
_DIMS: Final = msgspec.json.Decoder(list[list[_Size | list[_Size]]])
_STRIDES: Final = msgspec.json.Decoder(list[list[_Stride | list[_Stride]]])
_TEXTS: Final = msgspec.json.Decoder(list[Any])
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_FLOAT: Final = re.compile(
    r"-?(?:[0-9]{1,40}(?:\.[0-9]{0,40}(?:e[+-]?[0-9]{1,4})?|e[+-]?[0-9]{1,4})|inf|nan)"
)
_WORDS: Final[dict[str, Value]] = {"": None, "None": None, "True": True, "False": False}


class Tensor(Struct, frozen=True):
    """One tensor: its shape, its strides in elements (None if not recorded), and its type."""

    shape: Shape
    strides: Shape | None = None
    type: ElementType | None = None

    @property
    def elements(self) -> int:
        """Return the product of the dimensions."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Return an upper bound of the distinct elements in memory.

        A dimension of stride 0 counts once, overlapping windows from first to last element.
        """
        if self.strides is None or self.elements == 0:
            return self.elements
        steps = [(size, abs(step)) for size, step in zip(self.shape, self.strides, strict=True)]
        distinct = prod(size for size, step in steps if step)
        return min(distinct, 1 + sum((size - 1) * step for size, step in steps))

    @property
    def bytes(self) -> int | None:
        """Return the least bytes moved to read or write the whole tensor; None without a type."""
        return None if self.type is None else self.stored * self.type.bytes

    def like(self, shape: Shape) -> Tensor:
        """Return a dense tensor of this type."""
        return Tensor(shape, None, self.type)


class Arguments(Struct, frozen=True):
    """The arguments of one call, by their position in the op's schema.

    `output` is the shape of the result, if another op of the trace tells it; `enclosing` are the
    arguments of the op around this one, if they are needed.
    """

    shapes: tuple[Shape | Shapes, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Shape | Shapes, ...] = ()
    values: tuple[Read, ...] = ()
    output: Shape | None = None
    enclosing: Arguments | None = None

    def tensor(self, position: int | None) -> Tensor | None:
        """Return the tensor at this position; None where there is none."""
        shape = _at(self.shapes, position)
        if not isinstance(shape, tuple) or isinstance(shape, Shapes):
            return None
        kind = element_type(_at(self.types, position) or "")
        if not shape and kind is None:
            return None  # profilers write other arguments as tensors without dimensions
        strides = _at(self.strides, position)
        is_fitting = type(strides) is tuple and len(strides) == len(shape)
        return Tensor(shape, strides if is_fitting else None, kind)

    def given(self, *positions: int | None) -> list[Tensor]:
        """Return the tensors at those of the positions that have one."""
        return [tensor for position in positions if (tensor := self.tensor(position)) is not None]

    def tensors(self, position: int) -> tuple[Tensor, ...] | None:
        """Return the tensors (without types) of the list at this position; None without shapes."""
        shapes = _at(self.shapes, position)
        if not isinstance(shapes, Shapes):
            return None
        strides = _at(self.strides, position)
        is_fitting = isinstance(strides, Shapes) and len(strides) == len(shapes)
        steps_of = strides if is_fitting else ((),) * len(shapes)
        pairs = zip(shapes, steps_of, strict=True)
        return tuple(Tensor(dims, s if len(s) == len(dims) else None) for dims, s in pairs)

    def value(self, position: int | None) -> Read:
        """Return the value at this position: None if not given; UNREADABLE if not recorded."""
        return UNREADABLE if position is None else _at(self.values, position, UNREADABLE)

    def boolean(self, position: int | None) -> bool | None:
        """Return a truth value, None where there is none."""
        value = self.value(position)
        return value if isinstance(value, bool) else None

    def integer(self, position: int | None) -> int | None:
        """Return an integer, None where there is none."""
        value = self.value(position)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def integers(self, position: int | None, count: int) -> Shape | None:
        """Return a list of `count` integers, None if there is none; one number stands for all."""
        value = self.value(position)
        items = value if isinstance(value, tuple) else (value,)
        numbers = tuple(item for item in items if type(item) is int)
        if len(numbers) != len(items):
            return None
        if len(numbers) == 1:
            numbers = numbers * count
        return numbers if len(numbers) == count else None

    def type_at(self, position: int | None) -> ElementType | None:
        """Return the type that an argument such as `out_dtype` names, None if none is given."""
        number = self.integer(position)
        return None if number is None else _OF_NUMBER.get(number)


T = TypeVar("T")


def _at(values: Sequence[T], position: int | None, missing: Any = None) -> Any:
    return values[position] if position is not None and position < len(values) else missing


def arguments_of(row: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a row of the table of ops; without shapes if they are unreadable."""
    shapes, *others = (read(row[column] or "[]") for column, read in READERS.items())
    return Arguments(shapes or (), *others)


def read_shapes(text: str) -> tuple[Shape | Shapes, ...] | None:
    """Return the shape of each argument, or of each tensor of a list; None if unreadable."""
    return _nested(_DIMS, text)


def read_types(text: str) -> tuple[str, ...]:
    """Return the type of each argument as it is written, `""` for one without."""
    return tuple(item if isinstance(item, str) else "" for item in _texts(text))


def read_values(text: str) -> tuple[Read, ...]:
    """Return the value of each argument that is a number, a truth value or a flat list of them."""
    return tuple(read_value(item) for item in _texts(text))


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "input_dims": read_shapes,
    "input_types": read_types,
    "input_strides": lambda text: _nested(_STRIDES, text) or (),  # empty for odd ones
    "concrete_inputs": read_values,
}
"""The function that reads a text of each column, in the order of the fields of Arguments."""


def _texts(text: str) -> list[Any]:
    """Return the entries of a JSON list; [] for another text."""
    try:
        return _TEXTS.decode(text)
    except _UNDECODABLE:
        return []


def read_value(text: object) -> Read:
    """Return the number, truth value or flat list in a text; UNREADABLE for other texts."""
    if not isinstance(text, str) or len(text) > LONGEST_VALUE:
        return UNREADABLE
    if not (text.startswith("[") and text.endswith("]")):
        return _scalar(text)
    inner = text[1:-1].strip()
    items = [_scalar(item.strip()) for item in inner.split(",")] if inner else []
    if len(items) > MOST_VALUES or any(isinstance(item, Unreadable) for item in items):
        return UNREADABLE
    return cast(Value, tuple(items))


def _scalar(text: str) -> Read:
    """Return a word such as True or None, a whole number or a float; else UNREADABLE."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else UNREADABLE


def _nested(decoder: msgspec.json.Decoder[Any], text: str) -> tuple[Shape | Shapes, ...] | None:
    """Return the shape of each entry, or the shapes of a list; None if the text is unreadable."""
    entries: list[Shape | Shapes] = []
    try:
        for items in decoder.decode(text):
            is_list = bool(items) and all(isinstance(item, list) for item in items)
            if not is_list and not all(isinstance(item, int) for item in items):
                return None
            if max(map(len, items) if is_list else (len(items),)) > MOST_DIMENSIONS:
                return None
            entries.append(Shapes(map(tuple, items)) if is_list else tuple(items))
    except _UNDECODABLE:
        return None
    return tuple(entries)
