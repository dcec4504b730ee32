"""The JSON file of rocprofv3."""
