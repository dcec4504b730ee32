"""The report as lines of a terminal.

Analysis
  |  summary.py   the first screen: case.py, gaps.py, aggregates.py
  |  measured.py  what `traceflops mfu` says
  v
Text, Text, ...   runs of characters with a style; tables by lines.named_table()
  |  lines.fitted(): no wider than the terminal, in characters that it has
  v
cli.common        nothing in them acts on a terminal
"""
