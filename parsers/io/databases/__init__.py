"""SQLite: tables as columns, read fast, slowly, or salvaged page by page."""
