"""The reports as text in a terminal."""
