"""Renderers: data in, text out. One module per output; nothing here reads a trace.

The methods of Analysis and Comparison call these: `render_json`, `card` (a few kB of HTML for
notebooks), `framed` (the whole page in a notebook), `Plots` (charts) and `save`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.json.comparison import render_comparison
    from traceflops.reports.json.report import render_json
    from traceflops.reports.page.html import framed
    from traceflops.reports.page.notebook import Plots, card
    from traceflops.reports.view.findings import opening
    from traceflops.reports.view.texts import words
    from traceflops.reports.write import save, save_comparison
else:
    __getattr__ = lazy(
        __name__,
        {
            "Plots": "traceflops.reports.page.notebook",
            "card": "traceflops.reports.page.notebook",
            "framed": "traceflops.reports.page.html",
            "opening": "traceflops.reports.view.findings",
            "render_comparison": "traceflops.reports.json.comparison",
            "render_json": "traceflops.reports.json.report",
            "save": "traceflops.reports.write",
            "save_comparison": "traceflops.reports.write",
            "words": "traceflops.reports.view.texts",
        },
    )
