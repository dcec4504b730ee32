"""The JSON file and the database of rocprof v1."""
