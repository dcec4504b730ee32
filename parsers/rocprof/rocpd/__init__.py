"""The SQLite databases of rocprofv3 and of the tools that share its schema."""
