"""The reports as JSON, and their schemas."""
