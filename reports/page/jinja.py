"""The templates of the page and what they may call."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from traceflops.reports.page import escaped, overview, roofline
from traceflops.reports.view import figures, palette, wording
from traceflops.units import words

if TYPE_CHECKING:
    from jinja2 import Environment

_TITLE_WIDTH: Final = 2_000
"""How much of a name shows when the pointer rests on it."""
_LEAST_WIDTH: Final = 24
"""Characters that are left of a text in the tightest page."""


@cache
def environment(narrower: int = 1) -> Environment:
    """Return what renders templates: it escapes every text and knows no undefined name.

    Texts of a trace get the room that templates give them, or where that makes too large a page
    so many times less.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(template),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": figures.count,
        "duration": figures.duration,
        "place": figures.place,
        "percent": figures.percent,
        "ratio": figures.ratio,
        "several": words.several,
        "numbered": wording.numbered,
        "shorten": lambda text, width: escaped.cut(text, _room(width, narrower)),
        "short_names": lambda names, width: escaped.short_names(names, _room(width, narrower)),
        "tip": lambda text: escaped.tip(text, _room(_TITLE_WIDTH, narrower)),
        "size": figures.size,
        "ranges": wording.number_ranges,
        "collective_label": wording.collective_label,
        "mean_message": wording.mean_message,
        "collective_rate": wording.collective_rate,
        "gap_place": wording.gap_place,
        "look": palette.look,
        "component_label": wording.component_label,
        "category_label": palette.category_label,
        "segments": overview.segments,
        "angle": roofline.angle,
        "whole": figures.unbroken,
        "trusted": _trusted,
    }
    made.globals |= {
        "looks": palette.LINE_LOOKS,
        "causes": palette.CAUSE_LABELS,
    }
    return made


def _room(width: int, narrower: int) -> int:
    return max(width // narrower, min(width, _LEAST_WIDTH))


def template(name: str) -> str:
    """Return the text of a template, a style sheet or a script of the page."""
    path = files("traceflops.reports.page") / "templates" / name
    return path.read_text(encoding="utf-8")


def _harmless(value: Any) -> Any:
    """Show what cannot be seen or encoded in any text that the page prints."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return figures.visible(value)
    return value


def _trusted(text: str) -> Any:
    """Mark text that we or Bokeh wrote as markup; nothing of a trace may pass here."""
    from markupsafe import Markup

    return Markup(text)
