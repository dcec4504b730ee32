"""The report as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.markdown.markdown import render_markdown
else:
    __getattr__ = lazy(__name__, __file__)
