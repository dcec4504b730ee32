"""The report as JSON, as the schemas beside the code say."""
