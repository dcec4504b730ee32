"""The report as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.terminal.comparison import render_comparison, render_runs
    from traceflops.reports.terminal.info import info_object, render_info
    from traceflops.reports.terminal.lines import Style, columns
    from traceflops.reports.terminal.measured import render_measured, render_measured_conventions
    from traceflops.reports.terminal.mfu import (
        render_conventions,
        render_explanation,
        render_utilisation,
    )
    from traceflops.reports.terminal.summary import render_terminal
else:
    __getattr__ = lazy(__name__, __file__)
