"""Connections and types that sources and destinations share: DuckDB, PostgreSQL, Delta."""
