"""A timeline as boxes that can be drawn: lanes, rows of what overlaps, neighbours put together."""
