"""Analyses, utilisations and comparisons as JSON.

    Analysis              Utilisation, Reconciliation      Comparison, WhatIf
      report.py             mfu.py                           comparison.py
        devices.py (and ranks)
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
