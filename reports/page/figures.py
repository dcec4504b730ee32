"""Figures of the page: Bokeh's models as elements and one script that draws them all.

No text of a trace enters a figure: labels are numbers and our own words.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_LOG = logging.getLogger(__name__)
_TALKATIVE = ("bokeh", "holoviews", "panel", "param")


@dataclass(frozen=True, slots=True)
class Embedded:
    """Figures as they go into a page: a script and the element of each figure."""

    script: str
    divs: Mapping[str, str]


def embed(figures: Mapping[str, Callable[[], Any]]) -> Embedded:
    """Return the figures that these functions make; in one call, so that they share a document."""
    with _complaints_to_log():
        import holoviews.plotting.bokeh  # noqa: F401
        from bokeh.embed import components

        with _loggers_to_log():
            models = {name: made() for name, made in figures.items()}
            script, divs = components(models, wrap_script=False)
    return Embedded(script, divs)


def state(element: Any) -> Any:
    """Return the Bokeh figure of a HoloViews element.

    Drawn on a canvas: WebGL needs another 194 kB of script and is slow where there is no GPU.
    """
    import holoviews as hv

    return hv.renderer("bokeh").instance(webgl=False).get_plot(element).state


def bokeh_js() -> str:
    """Return BokehJS without the parts for widgets, tables, WebGL and formulas."""
    from bokeh.resources import Resources

    return str(Resources(mode="inline", components=["bokeh"], minified=True).js_raw[0])


@contextmanager
def _complaints_to_log() -> Iterator[None]:
    """Send the warnings of the libraries to our log at debug level: they are no user's business."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        _LOG.debug("%s: %s", each.category.__name__, each.message)


class _ToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _LOG.debug("%s: %s", record.name, record.getMessage())


@contextmanager
def _loggers_to_log() -> Iterator[None]:
    """Do the same for what the libraries log; their own handlers write to stderr."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [(each.handlers, each.propagate) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [_ToLog()], False
    try:
        yield
    finally:
        for each, (handlers, propagate) in zip(loggers, before, strict=True):
            each.handlers, each.propagate = handlers, propagate
