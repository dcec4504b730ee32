"""Analyses, utilisations and comparisons as JSON.

    Analysis              Utilisation, Reconciliation      Comparison, WhatIf
      report.py             mfu.py                           comparison.py
        devices.py
        ranks.py
        measured.py (utilisation)
          |                     |                              |
          +---------------------+------------------------------+   dicts and lists
                                |
                              encode()
                                |
            {"schema": "traceflops.report/1", "traceflops_version": ..., ...}

What each field is (type, meaning, unit) is a line of report.toml, utilisation.toml or
comparison.toml. `json_schema` makes the JSON Schemas from these; tests validate all output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceflops.faces import lazy

if TYPE_CHECKING:
    from traceflops.reports.json.comparison import (
        comparison_object,
        comparisons_object,
        what_if_object,
    )
    from traceflops.reports.json.mfu import mfu_object, models_object, utilisation_object
    from traceflops.reports.json.report import (
        SCHEMA,
        encode,
        findings_object,
        render_json,
        report_object,
    )
    from traceflops.reports.json.schema import json_schema
else:
    __getattr__ = lazy(__name__, __file__)
