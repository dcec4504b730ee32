"""The report as lines of a terminal."""
