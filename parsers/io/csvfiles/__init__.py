"""CSV: blocks of a file as typed columns, whatever its separators and damage."""
