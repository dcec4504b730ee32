"""The templates of the page and the functions that they may call.

Texts are cut to a number of characters and of bytes, as escaping makes some of them much longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from traceflops import characters, units
from traceflops.categories.kernel_names import without_return_type
from traceflops.reports.page import overview
from traceflops.reports.view import culprits, figures, palette, wording
from traceflops.reports.view.figures import count, shorten_middle
from traceflops.reports.view.short_names import short_labels
from traceflops.reports.view.tables import Name
from traceflops.reports.view.texts import words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_TIP_WIDTH: Final = 2_000  # characters of a name in a tooltip
_LEAST_WIDTH: Final = 24  # characters to which texts are cut at most, however large the page
_MORE_BYTES: Final = {"&": 4, '"': 4, "'": 4, "<": 3, ">": 3}
"""How many bytes more than one these characters take in HTML."""
_OPTION: Final = re.compile(r"(?<![^\s(])--?[A-Za-z][\w-]{0,40}")
_SPARE_BYTES: Final = 200
"""A text may take so many more bytes than characters: short texts are never cut for their bytes."""


_BY_NAME: Final[Sequence[Callable[..., Any]]] = (
    *(figures.count, figures.duration, figures.percent, figures.place, figures.size),
    *(figures.bandwidth, figures.time_share, units.capitalized, units.several, words),
    *(wording.collective_label, wording.component_label, wording.gap_place, wording.mean_message),
    *(wording.numbered, palette.category_label, overview.segments),
)
"""Functions that templates apply as filters of the same names."""


@cache
def environment(narrower: int = 1) -> Environment:
    """Return the Jinja environment; texts of a trace get `1 / narrower` of their usual room."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    jinja = Environment(
        loader=FunctionLoader(template),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {function.__name__: function for function in _BY_NAME}
    jinja.filters |= {
        "calls": figures.mean_count,
        "change": figures.signed_duration,
        "exact": lambda ns: f"{ns:+,}".replace("-", "\N{MINUS SIGN}"),
        "shorten": lambda text, width: cut(text, _room(width, narrower)),
        "short_names": lambda names, width: _short_names(names, _room(width, narrower)),
        "tip": lambda text: tip(text, _room(_TIP_WIDTH, narrower)),
        "ranges": wording.number_ranges,
        "gap_cause": culprits.gap_cause,
        "gap_length": culprits.length_label,
        "function_name": lambda name: without_return_type(characters.function_name(name)),
        "whole": _whole,
        # Only for text that we or Bokeh wrote as markup; nothing of a trace may pass here.
        "trusted": Markup,
    }
    jinja.tests["trace_name"] = lambda text: isinstance(text, Name)
    jinja.globals |= {"looks": palette.LINE_LOOKS, "causes": palette.CAUSE_LABELS}
    return jinja


def _harmless(value: Any) -> Any:
    """Return a text without invisible characters; markup and other values unchanged."""
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return figures.visible(value) if is_text else value


def _whole(text: str) -> Markup:
    """Return a sentence as markup in which no line ends inside an option or before a unit."""
    from markupsafe import Markup, escape

    escaped = str(escape(figures.visible(figures.unbroken(text))))
    return Markup(_OPTION.sub(r'<span class="tight">\g<0></span>', escaped))


def template(name: str) -> str:
    """Return the text of a template, a style sheet or a script of the page."""
    path = files("traceflops.reports.page") / "templates" / name
    return path.read_text(encoding="utf-8")


def style_sheet(names: Iterable[str]) -> str:
    """Return the style sheets as one; dark colours apply if the system or the reader wants them."""
    dark = template("dark.css")
    return (
        f"{''.join(map(template, names))}\n@media screen and (prefers-color-scheme: dark) {{\n"
        f":root:not([data-theme=light]) {{\n{dark}}}\n}}\n"
        f"@media screen {{\n:root[data-theme=dark] {{\n{dark}}}\n}}\n"
    )


def _room(width: int, narrower: int) -> int:
    """Return the width of a text that gets `1 / narrower` of its usual room."""
    return max(width // narrower, min(width, _LEAST_WIDTH))


def cost(text: str) -> int:
    """Return the bytes of a text in HTML. Raises UnicodeEncodeError for lone surrogates."""
    return len(text.encode()) + sum(more * text.count(c) for c, more in _MORE_BYTES.items())


def cut(text: str, width: int) -> str:
    """Return a text cut to `width` characters and at most _SPARE_BYTES more bytes in HTML."""
    most_bytes = width + _SPARE_BYTES
    shown = shorten_middle(text, width)
    while len(shown) > 1 and (shown_bytes := cost(shown)) > most_bytes:
        # Aim at the length that fits if all characters cost the same; at least one less than now.
        length = min(len(shown) * most_bytes // shown_bytes, len(shown) - 1)
        shown = shorten_middle(text, max(length, 1))
    return shown


def _short_names(names: Iterable[str | None], width: int) -> dict[str, str]:
    """Return the short form of each name of a table, by name; see `short_labels` and `cut`."""
    distinct = [name for name in dict.fromkeys(names) if name]
    labels, room = short_labels(distinct, width), width
    while room > 1 and any(cost(label) > width + _SPARE_BYTES for label in labels):
        room -= max(room // 4, 1)
        labels = short_labels(distinct, room)
    return {"": "unknown"} | dict(zip(distinct, labels, strict=True))


def tip(text: str, width: int) -> str:
    """Return a text for a tooltip; if it is cut, it ends with the number of all characters."""
    if len(text) <= width and len(shown := cut(text, width)) >= len(text):
        return shown
    length = f" ({count(len(text))} characters)"
    return f"{cut(text, max(width - len(length), 1))}{length}"
