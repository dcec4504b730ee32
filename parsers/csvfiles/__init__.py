"""Delimited text, however it was damaged or re-saved: blocks of lines into columns."""
