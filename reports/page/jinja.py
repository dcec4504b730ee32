"""The templates of the page and what they may call."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from traceflops.reports import palette, units, wording
from traceflops.reports.page import roofline, shown

if TYPE_CHECKING:
    from jinja2 import Environment

_TITLE_WIDTH: Final = 2_000
"""How much of a name shows when the pointer rests on it."""


@cache
def environment() -> Environment:
    """Return what renders templates: it escapes every text and knows no undefined name."""
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
        "count": units.count,
        "duration": units.duration,
        "percent": units.percent,
        "ratio": units.ratio,
        "shorten": units.shorten_middle,
        "kernel_label": units.kernel_label,
        "size": units.size,
        "ranges": wording.number_ranges,
        "collective_label": wording.collective_label,
        "mean_message": wording.mean_message,
        "collective_rate": wording.collective_rate,
        "look": palette.look,
        "category_label": palette.category_label,
        "segments": shown.segments,
        "angle": roofline.angle,
        "whole": units.unbroken,
        "trusted": _trusted,
    }
    made.globals |= {
        "title_width": _TITLE_WIDTH,
        "looks": palette.LOOKS | palette.LINE_LOOKS,
        "causes": palette.CAUSE_LABELS,
    }
    return made


def template(name: str) -> str:
    """Return the text of a template, a style sheet or a script of the page."""
    path = files("traceflops.reports.page") / "templates" / name
    return path.read_text(encoding="utf-8")


def _harmless(value: Any) -> Any:
    """Show what cannot be seen or encoded in any text that the page prints."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return units.visible(value)
    return value


def _trusted(text: str) -> Any:
    """Mark text that we or Bokeh wrote as markup; nothing of a trace may pass here."""
    from markupsafe import Markup

    return Markup(text)
