"""What launched a kernel, in words: op, modules, shapes and types of each way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from traceflops.attribution import launchers
from traceflops.reports.view import count, listed, shorten_middle

if TYPE_CHECKING:
    from traceflops.windows import Prepared

Key = tuple[str, ...]
"""A row of a kernel table: name, kind, top, sub, rule."""

_KEY: Final = ("name", "kind", "top", "sub", "rule")
_COLUMNS: Final = ("op", "call", "scope", "shapes", "dtypes")
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


@dataclass(frozen=True, slots=True)
class Launched:
    """The ways to launch each kernel, which columns any of them fills, and what a scope is.

    `rows` are those of `launchers`; `way` puts one into words.
    """

    rows: Mapping[Key, list[dict[str, Any]]]
    knows: frozenset[str]
    scope_title: str


def launched(prepared: Prepared | None) -> Launched:
    """Return what launched the kernels; nothing where the events were not kept."""
    if prepared is None:
        return Launched({}, frozenset(), "")
    sites = launchers(prepared)
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in sites.table.to_pylist():
        rows.setdefault(key_of(row), []).append(row)
    knows = frozenset(filter(sites.knows, _COLUMNS))
    return Launched(rows, knows, _scope_title(set(sites.table["is_module"].to_pylist())))


def key_of(row: Mapping[str, Any]) -> Key:
    """Return what names a row of a kernel table."""
    return tuple(row[column] for column in _KEY)


def missing(sites: Launched) -> str:
    """Return what the trace does not tell of launches, as a sentence; empty where it tells all."""
    if not sites.rows:
        return ""
    if not sites.knows & {"op", "call"}:
        return "The trace does not record what launched them."
    columns = {"op": "operators", "scope": "modules", "shapes": "shapes"}
    lacks = [text for column, text in columns.items() if column not in sites.knows]
    return f"Not in the trace: {listed(lacks)} of the launches." if lacks else ""


def way(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return one way to launch a kernel in words.

    `scope_more` says how many modules the scope counts for, and that it is that of the forward op.
    """
    return {
        **row,
        "scope_more": ", ".join(_scope_more(row)),
        "shapes": shape_words(row["shapes"] or ""),
        "dtypes": type_words(row["dtypes"] or ""),
    }


def _scope_more(row: Mapping[str, Any]) -> Iterator[str]:
    if (row["modules"] or 0) > 1:
        yield f"{row['modules']:,} modules"
    if row["backward"]:
        yield "backward"


def _scope_title(kinds: set[bool | None]) -> str:
    if True in kinds and False in kinds:
        return "Module or annotation"
    return "Module" if True in kinds else "Annotation"


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
