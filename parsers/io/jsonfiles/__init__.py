"""JSON: events and lists of files that may be huge or broken."""
