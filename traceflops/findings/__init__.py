"""What a report has to say first: one rule per module."""
