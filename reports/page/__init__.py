"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.page.comparison import render_comparison_page
    from traceflops.reports.page.html import render_html
    from traceflops.reports.page.memory import memory_page
else:
    __getattr__ = lazy(__name__, __file__)
