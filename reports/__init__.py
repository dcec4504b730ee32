"""Renderers: data in, text out. One module per output; nothing here reads a trace.

An Analysis shows itself by what is here: `render_json`, `framed` (HTML for notebooks) and `save`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.json.report import render_json
    from traceflops.reports.page.html import framed
    from traceflops.reports.write import save
else:
    __getattr__ = lazy(__name__, __file__)
