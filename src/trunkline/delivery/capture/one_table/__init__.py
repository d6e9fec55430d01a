"""Capture of one table, in a log of its own format: of DuckLake, or of PostgreSQL."""
