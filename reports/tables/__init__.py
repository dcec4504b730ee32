"""Tables in a folder as CSV, Parquet or Arrow: of a trace, and of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.tables.report_tables import TABLES, save_tables
    from traceflops.reports.tables.trace_tables import (
        FORMATS,
        check_folder,
        check_request,
        export_tables,
        table_files,
    )
else:
    __getattr__ = lazy(__name__, __file__)
