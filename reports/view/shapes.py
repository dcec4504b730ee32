"""Shapes and element types of an operator's inputs, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from traceflops.reports.view.figures import count, shorten_middle

_MOST_WIDTH: Final = 160
_INNER_WIDTH: Final = 60
_MOST_TYPES: Final = 6
_SHORT_TYPES: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "long int": "int64",
    "int": "int32",
    "unsigned char": "uint8",
    "signed char": "int8",
}
_NO_TENSORS: Final = frozenset({"", "Scalar", "ScalarList", "TensorList", "GenericList", "Device"})


def shape_words(text: str, width: int = _MOST_WIDTH) -> str:
    """Return shapes recorded as JSON in words: "8×1024, 1024×4096 and 3 more"; else the text.

    Those that do not fit into about so many characters are counted; only a shape that is longer
    than that alone is cut.
    """  # noqa: RUF002
    shapes = _decoded(text)
    if shapes is None:
        return shorten_middle(text, width)
    return _first([word for shape in shapes if (word := _shape(shape))], width)


def type_words(text: str) -> str:
    """Return the different element types recorded as JSON, such as "bf16, int64"."""
    types = _decoded(text)
    if types is None:
        return shorten_middle(text, _MOST_WIDTH)
    tensors = [name for name in types if isinstance(name, str) and name not in _NO_TENSORS]
    shown = dict.fromkeys(_SHORT_TYPES.get(name, shorten_middle(name, 30)) for name in tensors)
    return _and_more(", ".join(list(shown)[:_MOST_TYPES]), len(shown) - _MOST_TYPES)


def _shape(shape: Any) -> str:
    if not isinstance(shape, list) or not shape:
        return ""
    if not any(isinstance(size, list) for size in shape):
        return "×".join(map(str, shape))  # noqa: RUF001
    inner = _first([word for each in shape if (word := _shape(each))], _INNER_WIDTH)
    if not inner:
        return ""
    return f"{count(len(shape))} tensors ({inner})" if len(shape) > 1 else f"({inner})"


def _first(words: Sequence[str], width: int) -> str:
    """Return the first words that fit, at least one, and how many more there are."""
    kept, used = 0, 0
    for word in words:
        used += len(word) + 2
        if kept and used > width:
            break
        kept += 1
    return _and_more(shorten_middle(", ".join(words[:kept]), width), len(words) - kept)


def _and_more(text: str, more: int) -> str:
    return f"{text} and {count(more)} more" if more > 0 else text


def _decoded(text: str) -> list[Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, list) else None
