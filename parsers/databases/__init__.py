"""SQLite files, read where they lie and never written to: whole, locked, cut short or damaged."""
