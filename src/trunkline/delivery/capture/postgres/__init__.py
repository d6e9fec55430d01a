"""Capture of a PostgreSQL database: its stream, its catalog, its slot and chunks of its tables."""
