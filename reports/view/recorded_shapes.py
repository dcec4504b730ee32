"""Tensor shapes and element types as profilers record them (JSON), in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from traceflops.reports.view.figures import and_more, count, shorten_middle

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
    """Return shapes recorded as JSON in words: "8×1024, 1024×4096 and 3 more".

    The listed shapes fit into `width` characters; the first one is cut to it. A text that is no
    JSON list is only cut.
    """
    shapes = _decoded(text)
    if shapes is None:
        return shorten_middle(text, width)
    return _first_that_fit(shapes, width)


def type_words(text: str) -> str:
    """Return the distinct element types of tensors, recorded as JSON: "bf16, int64"."""
    types = _decoded(text)
    if types is None:
        return shorten_middle(text, _MOST_WIDTH)
    tensors = [name for name in types if isinstance(name, str) and name not in _NO_TENSORS]
    short = (_SHORT_TYPES.get(name, shorten_middle(name, 30)) for name in tensors)
    distinct = list(dict.fromkeys(short))
    return and_more(", ".join(distinct[:_MOST_TYPES]), len(distinct) - _MOST_TYPES)


def _shape(shape: Any) -> str:
    """Return a shape as "8×1024", a list of shapes as "2 tensors (8×4, 4)", "" for neither."""
    if not isinstance(shape, list) or not shape:
        return ""
    if not any(isinstance(size, list) for size in shape):
        return "×".join(map(str, shape))
    inner = _first_that_fit(shape, _INNER_WIDTH)
    if not inner:
        return ""
    return f"{count(len(shape))} tensors ({inner})" if len(shape) > 1 else f"({inner})"


def _first_that_fit(shapes: Sequence[Any], width: int) -> str:
    """Return the first shapes that fit into `width`, at least one, and how many more there are.

    Scalars and arguments that are no tensors are left out.
    """
    words = [word for shape in shapes if (word := _shape(shape))]
    fitting, used = 0, 0
    for word in words:
        used += len(word) + len(", ")
        if fitting and used > width:
            break
        fitting += 1
    return and_more(shorten_middle(", ".join(words[:fitting]), width), len(words) - fitting)


def _decoded(text: str) -> list[Any] | None:
    """Return the list that a JSON text encodes, None if the text is anything else."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, list) else None
