"""The report as one document: tables, sentences and numbers that every renderer shows."""
