"""Feeds damaged traces to the command line: `python -m tests.fuzz --count 20000 --seed 1`."""
